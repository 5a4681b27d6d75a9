"""Episodes, scores with intervals, comparisons, plots and reports."""

from surefoot.evaluation.adastop import adastop
from surefoot.evaluation.anytime import (
    hedged_capital,
    mean_sequence,
    mixture_e,
    mixture_sequence,
    t_e_process,
    t_sequence,
)
from surefoot.evaluation.certificates import (
    Certificate,
    broken_promise,
    certificate,
    filter_words,
    sequential_certificate,
    where_certified,
)
from surefoot.evaluation.curves import CurvePoint
from surefoot.evaluation.deciding import Look, LookPlan, looks
from surefoot.evaluation.dsrl import DSRLScore, dsrl_score
from surefoot.evaluation.families import Family, cvar, family
from surefoot.evaluation.one_look import permutation_p, seeds_needed, smallest_p, too_few
from surefoot.evaluation.report import write_report
from surefoot.evaluation.rollout import Episodes, PolicyLike, RandomPolicy, ScriptedPolicy, evaluate
from surefoot.evaluation.runs import RunData, load_runs
from surefoot.evaluation.safety import Safety, safety
from surefoot.evaluation.selection import (
    Bandit,
    doubly_robust,
    expected_maximum,
    rank_correlation,
    regret_at,
    tuning_curve,
)
from surefoot.evaluation.smoothness import Met, smoothness
from surefoot.evaluation.statistics import (
    Interval,
    bounded_interval,
    cost_interval,
    difference_interval,
    hierarchical_interval,
    interquartile_mean,
    mean,
    median,
    optimality_gap,
    performance_profile,
    performance_profile_interval,
    probability_of_improvement,
    probability_of_improvement_interval,
    stratified_bootstrap_interval,
)
from surefoot.evaluation.success import says_success, success_rate
from surefoot.evaluation.survival import kaplan_meier, median_steps, steps_to
from surefoot.evaluation.until import evaluate_until

__all__ = [
    "Bandit",
    "Certificate",
    "CurvePoint",
    "DSRLScore",
    "Episodes",
    "Family",
    "Interval",
    "Look",
    "LookPlan",
    "Met",
    "PolicyLike",
    "RandomPolicy",
    "RunData",
    "Safety",
    "ScriptedPolicy",
    "adastop",
    "bounded_interval",
    "broken_promise",
    "certificate",
    "cost_interval",
    "cvar",
    "difference_interval",
    "doubly_robust",
    "dsrl_score",
    "evaluate",
    "evaluate_until",
    "expected_maximum",
    "family",
    "filter_words",
    "hedged_capital",
    "hierarchical_interval",
    "interquartile_mean",
    "kaplan_meier",
    "load_runs",
    "looks",
    "mean",
    "mean_sequence",
    "median",
    "median_steps",
    "mixture_e",
    "mixture_sequence",
    "optimality_gap",
    "performance_profile",
    "performance_profile_interval",
    "permutation_p",
    "probability_of_improvement",
    "probability_of_improvement_interval",
    "rank_correlation",
    "regret_at",
    "safety",
    "says_success",
    "seeds_needed",
    "sequential_certificate",
    "smallest_p",
    "smoothness",
    "steps_to",
    "stratified_bootstrap_interval",
    "success_rate",
    "t_e_process",
    "t_sequence",
    "too_few",
    "tuning_curve",
    "where_certified",
    "write_report",
]
