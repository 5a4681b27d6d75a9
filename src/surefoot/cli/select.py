"""`surefoot select`: which of several trained policies to take, from data alone or with a few real episodes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.data import Dataset
    from surefoot.evaluation.selection import Bandit
    from surefoot.studies.select import Candidate, Estimate, Selection


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "select", help="choose among several trained policies, judged by data alone or by a few real episodes"
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folders, each seed a policy, or policy files")
    parser.add_argument("--dataset", required=True, metavar="FILE", help="path or id of data of the same task")
    parser.add_argument(
        "--method", choices=("critics", "model"), default="critics",
        help="judge by fitted-Q critics (default), or by whole episodes in a learned model",
    )  # fmt: skip
    parser.add_argument(
        "--discount", type=float, help="discount of the estimated value (default: critics 0.99, model 1)"
    )
    parser.add_argument("--truth", action="store_true", help="compare with the runs' own evaluations in a simulator")
    parser.add_argument("--episodes", type=int, metavar="N", help="real episodes to spend (upper confidence bounds)")
    parser.add_argument("--env", metavar="ID", help="where these episodes are run (default: the dataset's)")
    parser.add_argument("--seed", type=int, default=0, help="of resamples and episodes (default 0)")
    parser.add_argument("-o", "--output", metavar="FILE", help="picture of the estimates, as .png")
    output.add_trust(parser)
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=select)


def select(arguments: argparse.Namespace) -> int:
    """Judge, rank, say what can be reported, and spend the episodes that are allowed."""
    from surefoot.offline.evaluation.least_squares_q import LeastSquaresQConfig
    from surefoot.runs.embedded import load
    from surefoot.studies import select as selecting
    from surefoot.studies.select_model import ModelJudgeConfig, notes, select_by_model

    if arguments.episodes is not None and arguments.episodes < 1:
        raise ConfigError(f"--episodes is {arguments.episodes}; it must be at least 1, or left out")
    if arguments.env is not None and arguments.episodes is None:
        raise ConfigError("--env is where real episodes are run: say how many with --episodes N, or leave it out")
    if arguments.seed < 0:
        raise ConfigError(f"--seed is {arguments.seed}; it must be at least 0")
    if arguments.output is not None and not arguments.output.lower().endswith(".png"):
        raise ConfigError(f"-o {arguments.output}: the picture is a .png")
    given = {} if arguments.discount is None else {"discount": arguments.discount}
    by_model = arguments.method == "model"
    if given and not by_model and not 0 <= arguments.discount < 1:
        raise ConfigError(
            f"--discount is {arguments.discount:g}; critics need one in [0, 1): whole episodes are judged by "
            "--method model"
        )
    critics = LeastSquaresQConfig(**({} if by_model else given))
    model = ModelJudgeConfig(**(given if by_model else {}))
    chosen = selecting.candidates(arguments.runs)
    with output.download_bar(arguments.quiet) as downloading:
        dataset = load(arguments.dataset, progress=downloading)
    env_id = _environment(arguments, dataset)
    with output.episodes_bar(arguments.quiet or arguments.json, lines=False) as bar:
        if by_model:
            found = select_by_model(chosen, dataset, model, arguments.seed, bar, arguments.truth)
        else:
            found = selecting.select(chosen, dataset, critics, arguments.seed, bar, arguments.truth)
    reported = notes(dataset) if by_model else []
    tried = None if env_id is None else _try_out(found, chosen, dataset, env_id, arguments)
    if arguments.output is not None:
        from surefoot.evaluation.plots import save_png
        from surefoot.studies.select_picture import picture

        save_png(picture(found, dataset.name), arguments.output)
    if arguments.json:
        output.print_json({**_json(found, dataset, tried), "notes": reported})
        return 0
    _present(found, tried)
    for note in reported:
        output.say(f"note: {note}")
    if arguments.output is not None:
        output.say(f"picture: {output.short(arguments.output)}")
    return 0


def _environment(arguments: argparse.Namespace, dataset: Dataset) -> str | None:
    from surefoot.runs.embedded import environment_of
    from surefoot.runs.trust import allow

    if arguments.episodes is None:
        return None
    allow(arguments.env)
    env_id = environment_of(dataset, arguments.env, arguments.trust)
    if env_id is None:
        raise ConfigError("--episodes are of a simulator or robot: name it with --env ID")
    return env_id


def _try_out(
    found: Selection, chosen: list[Candidate], dataset: Dataset, env_id: str, arguments: argparse.Namespace
) -> Bandit:
    """Spend the episodes, best guess first; every policy meets the same initial states in the same order."""
    from surefoot.evaluation import Bandit, evaluate

    policies = {one.label: one.policy for one in chosen}
    returns = dataset.episode_returns
    bandit = Bandit(len(found.estimates), float(returns.min()), float(returns.max()))
    for _ in range(arguments.episodes):
        arm = bandit.next()
        policy = policies[found.estimates[arm].label]
        episodes = evaluate([policy], env_id, 1, arguments.seed, num_envs=1, first=len(bandit.returns[arm]))
        bandit.tell(arm, float(episodes[0].returns[0]))
    return bandit


def _json(found: Selection, dataset: Dataset, tried: Bandit | None) -> dict[str, Any]:
    value: dict[str, Any] = {
        "dataset": dataset.name,
        "method": found.method,
        "discount": found.discount,
        "members": found.members,
        "data": {"value": found.data_value, "estimate": found.data_estimate, "best": found.best_in_data},
        "widened_by": found.factor,
        "policies": [one.to_json() for one in found.estimates],
        "answer": found.sentence(),
        "can_tell": not found.tied and found.best.believable,
        "not_separated": [one.label for one in found.tied],
        "set_aside": [one.label for one in found.set_aside],
        "truth": found.against_truth(),
        "episodes": None,
    }
    if tried is not None:
        value["episodes"] = {
            "spent": tried.episodes,
            "chosen": found.estimates[tried.answer].label,
            "returns": {one.label: seen for one, seen in zip(found.estimates, tried.returns, strict=True) if seen},
        }
    return value


def _beside(one: Estimate) -> dict[str, str]:
    """What stands beside the critics' estimate."""
    from surefoot.studies.select import LEAST_EFFECTIVE

    values = (one.doubly_robust, one.importance, one.effective_episodes, one.distance)
    robust, importance, behind, distance = (np.nan if value is None else value for value in values)
    return {
        "doubly_robust": f"{robust:.4g}",
        "importance": f"{importance:.4g}" if behind >= LEAST_EFFECTIVE else "-",
        "episodes_behind": f"{behind:.1f}",
        "distance": f"{distance:.2f}",
    }


def _note(one: Estimate) -> str:
    if one.impossible:
        return "below what the rewards allow: the critics fail"
    return "above the data: not supported" if one.implausible else ""


def _present(found: Selection, tried: Bandit | None) -> None:
    by_model = found.method == "model"
    judge = "model" if by_model else "fitted_Q"
    rows = [
        {
            "rank": rank,
            "policy": one.label,
            judge: f"{one.mean:.4g} [{one.low:.4g}, {one.high:.4g}]",
            **({} if by_model else _beside(one)),
            "note": _note(one),
            "truth": None if one.truth is None else f"{one.truth:.4g}",
        }
        for rank, one in enumerate(found.estimates, 1)
    ]
    columns = [name for name in rows[0] if name not in ("truth", "note")]
    columns += ["truth"] * any(row["truth"] is not None for row in rows) + ["note"] * any(row["note"] for row in rows)
    output.print_rows(rows, columns)
    returns = "Returns of whole episodes" if found.discount == 1 else f"Discounted returns ({found.discount:g})"
    output.say(
        f"{returns} from the data's first states; the data's own {found.data_value:.4g}, best {found.best_in_data:.4g}."
    )
    missed = "The model gave the recorded actions" if by_model else "The critics gave the data"
    off = "" if by_model else "the difference is taken off all, and "
    output.say(
        f"{missed} {found.data_estimate:.4g}; {off}intervals are {found.factor:.2g} times as wide as the members' "
        "spread."
    )
    output.say(f"\n{found.sentence()}")
    truth = found.against_truth()
    if truth is not None:
        regret = ", ".join(f"regret@{k} {truth[f'regret_at_{k}']:.3f}" for k in (1, 3) if f"regret_at_{k}" in truth)
        output.say(f"truth: Spearman's rho of the ranking {truth.get('rank_correlation', np.nan):.2f}, {regret}")
    if tried is not None:
        best, seen = found.estimates[tried.answer], tried.returns[tried.answer]
        output.say(
            f"after {tried.episodes} real episodes: {best.label}, mean return {np.mean(seen):.4g} of {len(seen)}; "
            f"{sum(bool(one) for one in tried.returns)} of {len(tried.returns)} policies were tried"
        )
