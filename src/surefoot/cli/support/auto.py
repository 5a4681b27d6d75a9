"""`surefoot train algo=auto`: a small portfolio, and the policy of it that the data support."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.runs.algorithms import AUTO

if TYPE_CHECKING:
    from surefoot.cli.support.config import Request
    from surefoot.cli.support.training import Style
    from surefoot.data import Dataset
    from surefoot.runs.folders import Claim
    from surefoot.studies.auto import Auto

OPTIONS = {
    "portfolio": "algorithms to train, bc among them, which is handed over where no other is better with confidence",
    "budget": "training steps of all runs together, in place of steps= for each",
    "judge": "critics (the default) or model: what compares their policies (docs/choosing.md)",
}


def asked(overrides: Sequence[str]) -> bool:
    """Whether the command line says algo=auto."""
    return any(text.replace(" ", "") == f"algo={AUTO}" for text in overrides)


def run(overrides: Sequence[str], style: Style, trust: bool, multirun: bool) -> int:
    """Train the portfolio and hand over; the exit code."""
    import dataclasses

    from surefoot.cli.support import training
    from surefoot.runs.embedded import environment_of, source_name
    from surefoot.runs.plan import SHARED, Plan
    from surefoot.runs.trust import FunctionName, allow
    from surefoot.studies.auto import CLONE, Auto

    request, portfolio, judge = compose(overrides, multirun)
    fields = request.fields
    allow(fields["env"])  # for the user names it, and its reward
    if fields["reward"] is not None:
        allow(FunctionName(fields["reward"]))
    with training.claimed(dataclasses.replace(request, algorithm=AUTO)) as claim:
        dataset = training.load(request, style)
        plan = Plan(
            algorithm=CLONE,
            config=request.options,
            dataset=source_name(fields["dataset"]),
            environment=environment_of(dataset, fields["env"], trust),
            **{name: fields[name] for name in SHARED},
        )
        return _carry_out(Auto(plan, portfolio, judge), claim, dataset, style, trust)


def compose(overrides: Sequence[str], multirun: bool = False) -> tuple[Request, tuple[str, ...], str]:
    """The clone's request, the algorithms to train, and what judges them.

    Raises:
        ConfigError: anything unknown, or that is of one algorithm.
    """
    import dataclasses

    from surefoot.cli.support import config
    from surefoot.studies.auto import CLONE, PORTFOLIO

    if multirun:
        raise ConfigError(f"algo={AUTO} trains several algorithms already: leave out -m")
    own, others = {}, []
    for text in overrides:
        key, _, value = text.partition("=")
        name = key.removeprefix("algo.")
        if key.startswith("algo."):
            if name not in OPTIONS:
                raise ConfigError(f"{AUTO} has no option {key!r}: {nearest(key, [f'algo.{one}' for one in OPTIONS])}")
            own[name] = value
        elif key.split(".")[0] in ("preset", "init", "envs", "logger", "logger_options", "listener"):
            raise ConfigError(f"{key}= is of one algorithm, and algo={AUTO} trains several: leave it out")
        elif key != "algo":
            others.append(text)
    portfolio = tuple(part.strip() for part in own.get("portfolio", ",".join(PORTFOLIO)).strip("[]").split(","))
    mine = [f"algo={CLONE}", *others]
    request = config.compose(mine)
    if "budget" in own:
        if any(text.startswith("steps=") for text in others):
            raise ConfigError("steps= are those of each run and algo.budget= of all of them together: leave out one")
        steps = _steps(own["budget"], len(portfolio) * len(request.fields["seeds"]))
        request = dataclasses.replace(request, fields={**request.fields, "steps": steps})
    return request, portfolio, own.get("judge", "critics")


def _steps(text: str, runs: int) -> int:
    """Steps of each run, of a budget of all of them."""
    try:
        budget = float(text)
    except ValueError:
        budget = 0.0
    if not runs <= budget < 1e12:
        raise ConfigError(
            f"algo.budget={text}: must be a number of training steps, at least one for each of {runs} runs"
        )
    return int(budget) // runs


def resume(folder: pathlib.Path, style: Style, trust: bool) -> int:
    """Continue a portfolio that was interrupted; the exit code."""
    from surefoot.core.base.errors import CheckpointError
    from surefoot.core.base.files import read_json
    from surefoot.runs.embedded import load
    from surefoot.runs.folders import claim_begun
    from surefoot.runs.run import CONFIG, names_in
    from surefoot.runs.trust import refuse_links_to_runs, require_trust
    from surefoot.studies.auto import FILE, RUNS, Auto

    auto = Auto.read(folder)
    refuse_links_to_runs(folder, trust)
    for name in names_in(auto.plan):
        require_trust(name, folder / FILE, trust)
    with claim_begun(folder) as claim, output.download_bar(style.quiet) as progress:
        dataset = load(str(auto.plan.dataset), progress=progress, **auto.plan.reading)
        first = folder / RUNS / auto.portfolio[0] / "config.json"
        if first.is_file():
            began = read_json(first, CONFIG).get("dataset") or {}
            if began.get("sha256") != dataset.sha256:
                raise CheckpointError(f"{auto.plan.dataset}: not the file that {folder} began with (SHA-256 differs)")
        return _carry_out(auto, claim, dataset, style, trust)


def _carry_out(auto: Auto, claim: Claim, dataset: Dataset, style: Style, trust: bool) -> int:
    import contextlib

    from surefoot.cli.support import training
    from surefoot.runs.processes.stopping import resumable
    from surefoot.runs.run import Run, names_in
    from surefoot.runs.trust import module_of
    from surefoot.studies import auto as automatic

    count = len(auto.portfolio)
    style.say(
        f"auto: {', '.join(auto.portfolio)}, {auto.plan.steps:,} steps each, {len(auto.plan.seeds)} seeds; then "
        f"chosen by the data ({output.short(claim.folder)})"
    )
    trusted = " --trust" if trust or any(module_of(name) for name in names_in(auto.plan)) else ""
    command = f"surefoot train --resume {output.typed(claim.folder)}{trusted}"
    with resumable(claim.folder, lambda: command), contextlib.ExitStack() as watchers:

        def listener(name: str):  # type: ignore[no-untyped-def]
            watchers.close()  # one bar at a time
            number = auto.portfolio.index(name) + 1
            return watchers.enter_context(style.watcher(f"{name} ", f"{name} ({number} of {count})"))

        answer = automatic.carry_out(auto, claim.folder, dataset, listener, trust)
    finished = Run.open(claim.folder)
    if style.json:
        rows = output.rows_json([finished.folder])
        output.print_json({"run": str(finished.folder), "rows": rows, "selection": answer})
        return 0
    training.present([finished.folder], finished, style)
    output.say(f"\n{answer['answer']}.")
    if (finished.folder / automatic.PICTURE).is_file():
        output.say(f"estimates: {output.short(finished.folder / automatic.PICTURE)}, {automatic.ANSWER} beside it")
    return 0
