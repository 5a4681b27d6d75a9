"""Episodes, scores with intervals, comparisons, plots and reports."""

from surefoot.evaluation.certificates import (
    Certificate,
    broken_promise,
    certificate,
    filter_words,
    where_certified,
)
from surefoot.evaluation.dsrl import DSRLScore, dsrl_score
from surefoot.evaluation.report import write_report
from surefoot.evaluation.rollout import Episodes, PolicyLike, RandomPolicy, ScriptedPolicy, evaluate
from surefoot.evaluation.runs import CurvePoint, RunData, load_runs
from surefoot.evaluation.safety import Safety, safety
from surefoot.evaluation.smoothness import Met, smoothness
from surefoot.evaluation.statistics import (
    Interval,
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
from surefoot.evaluation.success import success_rate

__all__ = [
    "Certificate",
    "CurvePoint",
    "DSRLScore",
    "Episodes",
    "Interval",
    "Met",
    "PolicyLike",
    "RandomPolicy",
    "RunData",
    "Safety",
    "ScriptedPolicy",
    "broken_promise",
    "certificate",
    "difference_interval",
    "dsrl_score",
    "evaluate",
    "filter_words",
    "hierarchical_interval",
    "interquartile_mean",
    "load_runs",
    "mean",
    "median",
    "optimality_gap",
    "performance_profile",
    "performance_profile_interval",
    "probability_of_improvement",
    "probability_of_improvement_interval",
    "safety",
    "smoothness",
    "stratified_bootstrap_interval",
    "success_rate",
    "where_certified",
    "write_report",
]
