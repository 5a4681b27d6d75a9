"""`surefoot evaluate`: trained policies in a simulator again."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.core.policy.policy import Policy
    from surefoot.evaluation import Episodes
    from surefoot.evaluation.frequency import Frequencies
    from surefoot.evaluation.statistics import Interval
    from surefoot.evaluation.tables import Row


NO_OTHERS = "Other means have no interval: theirs are for a number of episodes that was fixed beforehand."
DRAWN = "Actions were drawn, as in training (--sample); without it the mean ones are taken."


@dataclasses.dataclass(frozen=True)
class Judged:
    """The policies of a run or of a file, where they act, and what is known of their training."""

    policies: dict[int, Policy]
    env_id: str
    cost_limit: float | None
    algorithm: str
    dataset: str | None = None
    steps: int | None = None
    preset: str | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    best_steps: tuple[int, ...] = ()  # of best policies, where they are known


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser("evaluate", help="run trained policies in a simulator again")
    parser.add_argument("folder", metavar="RUN", help="run folder, or a policy's .safetensors")
    parser.add_argument("--episodes", type=int, help="per seed (default 100; with --until at most, default 10,000)")
    parser.add_argument("--env", help="another environment than the run's; required for a policy file")
    parser.add_argument(
        "--until",
        type=float,
        metavar="W",
        help="stop once the mean success of these policies is known to +-W (95 %%, holds at every look)",
    )
    parser.add_argument(
        "--vary",
        metavar="NAME=LOW:HIGH",
        action="append",
        help="in variants of a native system whose constants are drawn from ranges, as mass=0.5:2,gravity=8:12: mean, "
        "CVaR and worst case over the family, with --episodes of each variant (default 20)",
    )
    parser.add_argument("--variants", type=int, help="number of variants for --vary (default 50)")
    parser.add_argument("--share", type=float, help="with --vary: CVaR is the mean of this worst share (default 0.1)")
    parser.add_argument(
        "--sample", action="store_true", help="draw actions, as in training, instead of the mean action"
    )
    parser.add_argument(
        "--range", metavar="LOW,HIGH", help="with --until: the return, clipped to this range, instead of success"
    )
    parser.add_argument(
        "--cost-limit", type=float, help="limit of an episode's cost (default: the algorithm's cost_limit)"
    )
    parser.add_argument(
        "--seed", type=int, default=2, help="seed of the initial states (default 2; training uses 0 and 1)"
    )
    parser.add_argument(
        "--goals",
        choices=("task",),
        help="evaluate goal-conditioned policies on each of OGBench's five goals, with --episodes for each",
    )
    parser.add_argument(
        "--decision-steps",
        metavar="L,L,...",
        help="let the policies decide every L steps only, for each of several increasing L, as 1,2,4,8,16: return at "
        "each, and the mean over them (--episodes of each, default 100)",
    )
    parser.add_argument("--curve", metavar="FILE", help="of --decision-steps: the curve, as .svg, .pdf or .png")
    parser.add_argument(
        "--best", action="store_true", help="the best policies by evaluations in training, of a run with keep_best=true"
    )
    output.add_trust(parser)
    parser.add_argument(
        "--weights",
        metavar="PARTS",
        type=int,
        help="of weighted:...: each policy by all weights that are multiples of 1/PARTS: Pareto front, hypervolume",
    )
    parser.add_argument(
        "--reference", metavar="R1,R2,...", help="of --weights: the hypervolume's origin (default: the worst of each)"
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=evaluate)


def evaluate(arguments: argparse.Namespace) -> int:
    """Episodes of all seeds' policies, as one row of the table, or what one of the other ways asks for."""
    from surefoot.evaluation.safety import check_limit

    check_limit(arguments.cost_limit)
    judged = _judged(arguments)
    drawn = arguments.sample and not all(policy.always_samples for policy in judged.policies.values())
    if drawn:
        judged = dataclasses.replace(judged, policies={k: policy.sampled() for k, policy in judged.policies.items()})
    if arguments.vary is not None:
        return _evaluate_variants(arguments, judged.env_id, list(judged.policies.values()), drawn)
    for name in ("variants", "share"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} is of --vary: add it, or leave --{name} out")
    if arguments.decision_steps is not None:
        return _evaluate_frequencies(arguments, judged, drawn)
    if arguments.weights is not None:
        return _evaluate_weights(arguments, judged)
    if arguments.reference is not None:
        raise ConfigError("--reference is of --weights: add them, or leave --reference out")
    if arguments.curve is not None:
        raise ConfigError("--curve is of --decision-steps: add them, or leave --curve out")
    if arguments.goals is not None:
        return _evaluate_goals(arguments, judged, drawn)
    return _evaluate_episodes(arguments, judged, drawn)


def _evaluate_episodes(arguments: argparse.Namespace, judged: Judged, drawn: bool) -> int:
    """What is asked for without another way: so many episodes, or until the mean is known."""
    import torch

    from surefoot.core.engine.smoothness import measured
    from surefoot.evaluation import Met, evaluate_until, smoothness
    from surefoot.evaluation import evaluate as roll_out

    acting, env, cut = list(judged.policies.values()), judged.env_id, _range(arguments)
    met, known = Met(len(acting)), None
    wanted = arguments.episodes if arguments.episodes is not None else 100 if arguments.until is None else 10_000
    with output.episodes_bar(arguments.quiet, lines=False) as progress:
        if arguments.until is None:
            found = roll_out(acting, env, wanted, arguments.seed, progress=progress, watch=met)
        else:
            half = arguments.until
            found, known = evaluate_until(acting, env, half, wanted, arguments.seed, cut, progress=progress, watch=met)
    norms = [measured(policy, torch.from_numpy(met.of(p))) for p, policy in enumerate(acting)]
    row = _row(judged, found)
    if arguments.best:
        row = dataclasses.replace(row, name=f"{row.label}, best policies", steps=None)
    row = dataclasses.replace(row, smoothness=smoothness(found, norms))
    if known is not None:
        row = _stopped(row, known, cut)
    if arguments.json:
        _print_json(arguments, judged, drawn, row, found, known)
        return 0
    output.print_table([row], details=True)
    if arguments.best:
        output.say(_words_of_best(judged, arguments.seed))
    if drawn:
        output.say(DRAWN)
    if known is not None:
        _say_known(known, cut, arguments.until, wanted, found)
    _say_seeds(judged, row, found)
    return 0


def _print_json(
    arguments: argparse.Namespace,
    judged: Judged,
    drawn: bool,
    row: Row,
    found: Sequence[Episodes],
    known: Interval | None,
) -> None:
    """What --json prints of episodes."""
    from surefoot.evaluation.until import is_known

    listed = {str(seed): episodes.to_json() for seed, episodes in zip(judged.policies, found, strict=True)}
    shown = {"run": arguments.folder, "rows": [row.to_json()], "seed": arguments.seed, "episodes": listed}
    shown |= {"sampled": True} if drawn else {}
    until = {} if known is None else {"until": {**known.to_json(), "reached": is_known(known, arguments.until)}}
    output.print_json({**shown, **until})


def _say_known(
    known: Interval, cut: tuple[float, float] | None, until: float, wanted: int, found: Sequence[Episodes]
) -> None:
    """What is known of the mean after the episodes that --until took."""
    from surefoot.evaluation.until import is_known

    what = "success" if cut is None else f"return cut to [{cut[0]:g}, {cut[1]:g}]"
    whose = "this policy" if len(found) == 1 else f"these {len(found)} policies"
    output.say(
        f"mean {what} of {whose}: {known.estimate:.4g} [{known.low:.4g}, {known.high:.4g}] "
        f"after {len(found[0].returns):,} episodes each (95 %, holds at every look; it says nothing of other seeds)"
    )
    output.say(NO_OTHERS)
    if not is_known(known, until):
        output.say(
            f"it is not known to +-{until:g} yet (--until) after the {wanted:,} episodes that were "
            "admitted: raise --episodes"
        )


def _say_seeds(judged: Judged, row: Row, found: Sequence[Episodes]) -> None:
    """A line for each seed, then safety and smoothness of all."""
    from surefoot.envs.make import is_team
    from surefoot.evaluation import tables

    for seed, episodes in zip(judged.policies, found, strict=True):
        name = judged.algorithm if judged.steps is None else f"seed {seed}"
        lengths = f"{episodes.lengths.mean():.0f} steps"
        solved = "" if episodes.successes is None else f", {100 * episodes.successes.mean():.0f} % of them solved"
        output.say(
            f"{name}: mean return {episodes.returns.mean():.1f} over {len(episodes.returns)} episodes of {lengths}"
            f"{solved}"
        )
        if is_team(judged.env_id) and episodes.reward_terms:
            each = ", ".join(f"{agent} {values.mean():.1f}" for agent, values in episodes.reward_terms.items())
            output.say(f"  its agents' own returns: {each}")
    if row.safety is not None:
        output.say(row.safety.sentence())
    if row.smoothness is not None and row.smoothness["jacobian"] is not None:
        norm = tables.format_small(row.smoothness["jacobian"])
        output.say(f"squared norm of the policy's Jacobian: {norm} (mean over observations met)")


def _words_of_best(judged: Judged, seed: int) -> str:
    """Which policies these are, and whether these episodes are new to them."""
    from surefoot.runs.plan import TRAINING_EVALUATION_SEED

    steps = f", of steps {', '.join(f'{step:,}' for step in judged.best_steps)}" if judged.best_steps else ""
    new = "these episodes chose none of them"
    if seed == TRAINING_EVALUATION_SEED:
        new = f"--seed {seed} are the initial states that chose them, so that these means are too high"
    return f"Best policies by evaluations in training{steps}; {new}."


def _judged(arguments: argparse.Namespace) -> Judged:
    """What RUN and --env name.

    Raises:
        CheckpointError: neither a finished run nor a policy.
        ConfigError: it is not known where they act.
        EnvironmentMismatchError: the policies' observations or actions are not the environment's.
    """
    from surefoot.core.policy.policy import Policy
    from surefoot.envs import check_spaces
    from surefoot.runs.run import Run
    from surefoot.runs.trust import allow, require_trust

    path, env, limit = pathlib.Path(arguments.folder), arguments.env, arguments.cost_limit
    allow(env)
    if path.is_file():
        if arguments.best:
            raise ConfigError(f"--best chooses among the policies of a run, and {path} is one policy: leave it out")
        policy = Policy.load(path)
        if env is None:
            raise ConfigError(f"{path}: is one policy; say where it acts with --env ID")
        judged = Judged({0: policy}, env, limit, path.name)
    else:
        run = Run.open(path)
        env = env or run.plan.environment
        require_trust(env, run.folder / "config.json", arguments.trust)
        if env is None:
            raise ConfigError(f"{arguments.folder}: was trained without a simulator; name one with --env ID")
        judged = Judged(
            run.policies(best=arguments.best),
            env,
            run.plan.cost_limit if limit is None else limit,
            run.plan.algorithm,
            output.short_dataset(run.plan.dataset),
            run.summary["steps"] if run.complete else run.plan.steps,
            *run.reported,
            tuple(run.summary.get("best", {}).get("per_seed_steps", ())) if arguments.best and run.complete else (),
        )
    first = next(iter(judged.policies.values()))
    check_spaces(env, first.arrays, first.action_dim, first.discrete)
    return judged


def _evaluate_weights(arguments: argparse.Namespace, judged: Judged) -> int:
    """What --weights asks for: the returns of each objective by each weight, the front and the hypervolume."""
    from surefoot.cli.support.pareto import evaluate_weights, print_front

    for name in ("until", "range", "goals", "curve"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} does not go with --weights: leave one of them out")
    policies = list(judged.policies.values())
    episodes = 20 if arguments.episodes is None else arguments.episodes
    quiet = arguments.quiet or arguments.json
    found = evaluate_weights(
        policies, judged.env_id, arguments.weights, arguments.reference, episodes, arguments.seed, quiet
    )
    if arguments.json:
        output.print_json({"run": arguments.folder, "environment": judged.env_id, **found})
    else:
        print_front(found, len(policies))
    return 0


def _evaluate_goals(arguments: argparse.Namespace, judged: Judged, drawn: bool) -> int:
    """What --goals asks for: a row a goal, and one of all, in which each goal counts alike."""
    from surefoot.core.actors.memory import GOAL
    from surefoot.envs.suites.names import tasks_of
    from surefoot.evaluation import evaluate as roll_out

    for name in ("until", "range"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} does not go with --goals: leave one of them out")
    policies = list(judged.policies.values())
    if GOAL not in policies[0].begin(1):
        raise ConfigError(f"--goals: {judged.algorithm} was trained without goals; hiql, gciql and others have them")
    envs, wanted = tasks_of(judged.env_id), 20 if arguments.episodes is None else arguments.episodes
    rows, every = [], []
    for number, env in enumerate(envs, start=1):
        with output.episodes_bar(arguments.quiet, lines=False) as progress:
            found = roll_out(policies, env, wanted, arguments.seed, progress=progress)
        every.append(found)
        rows.append(dataclasses.replace(_row(judged, found), name=f"goal {number}"))
    together = [_together([found[p] for found in every]) for p in range(len(policies))]
    rows.append(dataclasses.replace(_row(judged, together), name=f"all {len(envs)} goals"))
    if arguments.json:
        listed = [
            {str(seed): episodes.to_json() for seed, episodes in zip(judged.policies, found, strict=True)}
            for found in every
        ]
        shown = {"run": arguments.folder, "rows": [row.to_json() for row in rows], "seed": arguments.seed}
        output.print_json({**shown, "goals": listed, **({"sampled": True} if drawn else {})})
        return 0
    output.print_table(rows, details=True)
    if drawn:
        output.say(DRAWN)
    output.say(f"{wanted} episodes of each goal for each of {len(policies)} seeds; intervals over seeds and episodes.")
    return 0


def _evaluate_frequencies(arguments: argparse.Namespace, judged: Judged, drawn: bool) -> int:
    """What --decision-steps asks for: a line a frequency, and the mean over them."""
    from surefoot.envs.return_bounds import return_bounds
    from surefoot.evaluation.frequency import evaluate_frequencies
    from surefoot.evaluation.plots import check_figure
    from surefoot.evaluation.tables import format_bounds

    for name in ("until", "range", "goals"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} does not go with --decision-steps: leave one of them out")
    if arguments.curve is not None:
        check_figure(arguments.curve)
    steps, wanted = _decision_steps(arguments.decision_steps), 100 if arguments.episodes is None else arguments.episodes
    policies = list(judged.policies.values())
    with output.episodes_bar(arguments.quiet, lines=False) as progress:
        bounds = return_bounds(judged.env_id)
        found = evaluate_frequencies(policies, judged.env_id, steps, wanted, arguments.seed, progress, bounds=bounds)
    if arguments.curve is not None:
        _draw_frequencies(judged, found, arguments.curve)
    if arguments.json:
        about = {"run": arguments.folder, "environment": judged.env_id, "seed": arguments.seed, "episodes": wanted}
        output.print_json({**about, **found.to_json(), **({"sampled": True} if drawn else {})})
        return 0
    columns = ["steps per decision", "return", f"lost since {steps[0]}"]
    listed = [
        dict(zip(columns, (str(one), format_bounds(mean.to_json()), format_bounds(lost.to_json())), strict=True))
        for one, mean, lost in zip(found.steps, found.returns, found.lost, strict=True)
    ]
    output.print_rows(listed, columns, title=f"{judged.algorithm} in {judged.env_id}")
    if found.average is not None:
        mean = format_bounds(found.average.to_json())
        output.say(f"mean return over {steps[0]} to {steps[-1]} steps per decision: {mean}")
    if found.published is not None:
        output.say(f"frequency-averaged score as the paper's code has it: {found.published:.3f} (docs/evaluation.md)")
    if drawn:
        output.say(DRAWN)
    output.say(
        f"{wanted} episodes at each for each of {len(policies)} seeds, from the same initial states; in brackets 95 % "
        "intervals over seeds and episodes."
    )
    if arguments.curve is not None:
        output.say(f"curve: {output.short(arguments.curve)}")
    return 0


def _decision_steps(words: str) -> list[int]:
    """What --decision-steps lists; `evaluate_frequencies` says which numbers make sense."""
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise ConfigError(f"--decision-steps {words}: give whole numbers, as in --decision-steps 1,2,4,8,16") from None


def _draw_frequencies(judged: Judged, found: Frequencies, path: str) -> None:
    """The curve over decision steps, with its bands."""
    import math

    from surefoot.evaluation import CurvePoint, plots

    points = [
        CurvePoint(steps, mean.estimate, *(math.nan if end is None else end for end in (mean.low, mean.high)))
        for steps, mean in zip(found.steps, found.returns, strict=True)
    ]
    plots.save(plots.learning_curves({judged.algorithm: points}, judged.env_id, None, "steps per decision"), path)


def _together(found: list[Episodes]) -> Episodes:
    """The episodes of one policy with several goals, one goal after another."""
    import numpy as np

    from surefoot.evaluation import Episodes

    columns = ("returns", "lengths", "costs", "violations", "action_changes", "successes")
    parts = {name: [getattr(one, name) for one in found] for name in columns}
    whole = {name: None if any(p is None for p in part) else np.concatenate(part) for name, part in parts.items()}
    return Episodes(**whole)  # type: ignore[arg-type]


def _evaluate_variants(arguments: argparse.Namespace, env: str, policies: list[Policy], drawn: bool) -> int:
    """What --vary asks for."""
    from surefoot.evaluation.tables import format_bounds
    from surefoot.safety.variants import evaluate_variants, ranges_of

    for name in ("until", "range", "cost-limit", "goals", "decision-steps", "curve"):
        if getattr(arguments, name.replace("-", "_")) is not None:
            raise ConfigError(f"--{name} does not go with --vary: leave one of them out")
    settings = {"variants": arguments.variants, "share": arguments.share, "episodes": arguments.episodes}
    given = {name: value for name, value in settings.items() if value is not None}
    varied = evaluate_variants(policies, env, ranges_of(arguments.vary, env), seed=arguments.seed, **given)
    if arguments.json:
        output.print_json({"run": arguments.folder, **varied.to_json(), **({"sampled": True} if drawn else {})})
        return 0
    found, count = varied.found, varied.scores.shape[1]
    where = {name: float(column[found.worst_variant]) for name, column in varied.values.items()}
    stated = ", ".join(f"{name}={value:.4g}" for name, value in where.items())
    low = "" if found.too_low is None else f"; of equal variants it would be {found.too_low:.3g} too low"
    shown = {
        "environment": f"{env}, {count:,} variants, {varied.episodes:,} episodes of each for {len(policies)} seeds",
        "mean return": format_bounds(found.mean.to_json()),
        f"{100 * found.share:g} % quantile": format_bounds(found.quantile.to_json()),
        f"CVaR, worst {100 * found.share:g} %": format_bounds(found.cvar.to_json()),
        "worst variant of each seed": f"{format_bounds(found.worst.to_json())}{low}",
        f"at {stated}": f"{format_bounds(varied.again.to_json())} in fresh episodes: the worst variant over all seeds",
    }
    output.print_facts(shown)
    if drawn:
        output.say(DRAWN)
    output.say("Each figure is of each training seed first; in brackets 95 % intervals over seeds.")
    return 0


def _range(arguments: argparse.Namespace) -> tuple[float, float] | None:
    """What --range says."""
    if arguments.range is None:
        return None
    if arguments.until is None:
        raise ConfigError("--range is of --until: add it, or leave the range out")
    try:
        low, high = map(float, arguments.range.split(","))
    except ValueError:
        raise ConfigError(f"--range {arguments.range}: give two numbers, as in --range=-1000,0") from None
    if not -float("inf") < low < high < float("inf"):
        raise ConfigError(f"--range {arguments.range}: the second number must be above the first")
    return low, high


def _row(judged: Judged, found: list[Any]) -> Row:
    """The row of this evaluation, with intervals over seeds and initial states."""
    from surefoot.data import normalized_score, reference_scores
    from surefoot.envs.return_bounds import return_bounds
    from surefoot.evaluation import bounded_interval, cost_interval, safety, success_rate, tables

    returns = bounded_interval([episodes.returns for episodes in found], return_bounds(judged.env_id)).to_json()
    reference = reference_scores(judged.env_id)
    normalized = None
    if reference is not None:
        normalized = {
            key: None if returns[key] is None else float(normalized_score(returns[key], reference))
            for key in ("mean", "low", "high")
        }
    costs = [episodes.costs for episodes in found if episodes.costs is not None]
    return tables.Row(
        algorithm=judged.algorithm,
        preset=judged.preset,
        options=judged.options,
        dataset=judged.dataset,
        environment=judged.env_id,
        steps=judged.steps,
        seeds=len(found),
        episodes=len(found[0].returns),
        returns=returns,
        normalized=normalized,
        cost=cost_interval(costs).to_json() if len(costs) == len(found) else None,
        updates_per_second=None,
        safety=safety(found, judged.cost_limit),
        success=None if (solved := success_rate(found)) is None else solved.to_json(),
    )


def _stopped(row: Row, known: Interval, cut: tuple[float, float] | None) -> Row:
    """The row of episodes that ended by looking at them.

    The success that was looked at has the interval that holds at every look. No other mean has one, the return where
    it was cut to a range neither: those of `_row` hold for a number of episodes that was fixed beforehand.
    """
    from surefoot.evaluation.until import without_interval

    def bare(bounds: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return None if bounds is None else without_interval(bounds)

    smoothness = row.smoothness
    if smoothness is not None:
        smoothness = {**smoothness, "action_change": bare(smoothness["action_change"])}
    return dataclasses.replace(
        row,
        returns=bare(row.returns),
        normalized=bare(row.normalized),
        cost=bare(row.cost),
        success=known.to_json() if cut is None else bare(row.success),
        smoothness=smoothness,
    )
