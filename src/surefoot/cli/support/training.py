"""What commands that train share: how they talk, one run, and what is shown of it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output

if TYPE_CHECKING:
    from surefoot.cli.support.config import Request
    from surefoot.cli.support.progress import Watcher
    from surefoot.data import Dataset
    from surefoot.runs.folders import Claim
    from surefoot.runs.plan import Plan
    from surefoot.runs.run import Run


@dataclasses.dataclass(frozen=True)
class Style:
    """How a command talks."""

    quiet: bool = False
    json: bool = False  # people's lines go to standard error, one JSON value to standard output
    bars: bool | None = None  # None: where it is a terminal

    def watcher(self, label: str = "", title: str = "") -> Watcher:
        """A listener that shows training in this style."""
        from surefoot.cli.support.progress import Watcher

        return Watcher(output.console(stderr=self.json), self.quiet, self.bars, label, title)

    def say(self, text: str = "") -> None:
        """A line for people."""
        if not self.quiet:
            output.console(stderr=self.json).print(text, markup=False, soft_wrap=True)


def train_one(
    request: Request,
    style: Style,
    claim: Claim,
    dataset: Dataset | None = None,
    label: str = "",
    trust: bool = False,
) -> Run:
    """Carry out one request.

    Args:
        request: what to train.
        style: how to talk.
        claim: the folder of the run.
        dataset: what the request names, where it is loaded already.
        label: in front of what is shown.
        trust: import modules that the dataset or the run in `init=` names.

    Raises:
        SurefootError: anything that the user can fix.
        Interrupted, Terminated: Ctrl-C or SIGTERM after training had started.
    """
    from surefoot.envs.names import in_words
    from surefoot.runs.start import train

    fields = request.fields
    if dataset is None and fields["dataset"] is not None:
        dataset = load(request, style)
    plan = plan_of(request, dataset, trust)
    place = in_words(plan.environment) if plan.environment else "without a simulator"
    if plan.gap is not None:
        place += f" (acting with gap {plan.gap})"
    title = f"{request.algorithm} on {place if dataset is None else f'{describe(dataset)}, {place}'}"
    with style.watcher(label, title) as watcher:
        named = {name: fields[name] for name in ("logger", "logger_options")} | {"listener_name": fields["listener"]}
        return train(plan, claim, dataset=dataset, listener=watcher, trust=trust, **named)


def train_or_resume(
    request: Callable[[], Request], place: pathlib.Path, style: Style, *, label: str = "", trust: bool = False
) -> Run:
    """The run in a folder: finished already, continued where it was interrupted, or carried out now.

    Args:
        request: gives what to train, where nothing was started.
        place: the folder, which need not be there.
        style: how to talk.
        label: in front of what is shown.
        trust: as of `surefoot train`.

    Raises:
        SurefootError: anything that the user can fix.
        Interrupted, Terminated: Ctrl-C or SIGTERM after training had started.
    """
    from surefoot.runs.folders import claim_new
    from surefoot.runs.start import resume

    if (place / "config.json").is_file():
        with style.watcher(label) as watcher:
            return resume(place, listener=watcher, trust=trust)
    with claim_new(place) as claim:
        return train_one(request(), style, claim, label=label, trust=trust)


def plan_of(request: Request, dataset: Dataset | None, trust: bool = False) -> Plan:
    """The plan of a request, whose dataset is given, loaded.

    Raises:
        ConfigError: no environment is named, by the data neither, or one of a module that is not trusted.
    """
    from surefoot.runs.embedded import environment_of, source_name
    from surefoot.runs.plan import SHARED, Plan

    return Plan(
        algorithm=request.algorithm,
        config=request.options,
        dataset=None if dataset is None else source_name(request.fields["dataset"]),
        environment=environment_of(dataset, request.fields["env"], trust),
        **{name: request.fields[name] for name in SHARED},
    )


def load(request: Request, style: Style) -> Dataset:
    """The request's dataset, with a bar where it has to be fetched."""
    from surefoot.runs import embedded as generate
    from surefoot.runs.plan import READING

    name, fields = request.fields["dataset"], request.fields
    if generate.find(name) and not generate.exists(name) and not generate.cached_path(name).exists():
        style.say(f"generating {name}: {generate.describe(name)} (kept for the next time)")
    with output.download_bar(style.quiet) as progress:
        return generate.load(name, progress=progress, **{key: fields[key] for key in READING})


def describe(dataset: Dataset) -> str:
    """A dataset in a few words."""
    name = pathlib.Path(dataset.name).name
    episodes = len(dataset.episode_lengths)
    returns = f"mean return {dataset.episode_returns.mean():.1f}" if dataset.has_rewards else "no rewards"
    return f"{name} ({len(dataset):,} transitions, {episodes:,} episodes, {returns})"


def claimed(request: Request) -> Claim:
    """The folder of a run: `out=`, which must be new or empty, or runs/<algorithm>-<dataset>-<time>.

    Raises:
        ConfigError: it exists and holds something, or another process has just started in it.
    """
    from surefoot.runs.folders import claim_named, claim_new

    asked = request.fields["out"]
    return claim_named(request.label) if asked is None else claim_new(asked)


def present(
    folders: Sequence[pathlib.Path],
    finished: Run,
    style: Style,
    picture: pathlib.Path | None = None,
    more: Callable[[], None] | None = None,
    more_json: dict[str, Any] | None = None,
) -> None:
    """The result: table, picture, run folder, policies, and what to do next."""
    from surefoot.evaluation import RunData
    from surefoot.evaluation.estimates import estimate_lines
    from surefoot.evaluation.run_warnings import alarm_lines, best_lines, limit_lines

    if style.json:
        output.print_json({"run": str(finished.folder), "rows": output.rows_json(folders), **(more_json or {})})
        return
    output.say()
    output.print_runs(folders)
    loaded = RunData.load(finished.folder)
    for line in (*estimate_lines(loaded), *limit_lines(loaded), *best_lines(loaded)):
        output.say(line)
    for line in alarm_lines(loaded):
        output.say(f"*** {line}")
    if more is not None:
        more()
    title = "picture" if picture is not None else "learning curves"
    picture, model = picture or finished.folder / "curves.png", finished.folder / "model.png"
    first = finished.policy_path(finished.plan.seeds[0])
    rest = len(finished.plan.seeds) - 1
    others = f" (and of {rest} more seed{'s' if rest > 1 else ''} beside it)" if rest > 0 else ""
    lines = [
        (title, output.short(picture) if picture.is_file() else None),
        ("model", output.short(model) if model.is_file() else None),
        ("run folder", output.short(finished.folder)),
        ("policy", f"{output.short(first)}{others}" if first.is_file() else None),
    ]
    output.say()
    for name, value in lines:
        if value is not None:
            output.say(f"{name + ':':<17}{value}")
    output.say("\nnext:")
    for command in next_commands(folders, finished):
        output.say(f"  {command}")


def next_commands(folders: Sequence[pathlib.Path], finished: Run) -> list[str]:
    """Commands worth trying after a run."""
    from surefoot.envs.known_systems import registered
    from surefoot.envs.names import is_native
    from surefoot.runs.plan import agent_class
    from surefoot.runs.run import names_in
    from surefoot.runs.trust import module_of

    run_text = output.typed(finished.folder)
    commands = [f"surefoot report {' '.join(output.typed(folder) for folder in folders)} -o report.html"]
    if agent_class(finished.plan.algorithm).requires.policy:
        commands.append(f"surefoot export {run_text} -o policy.onnx")
    elif finished.plan.algorithm == "classifier":
        commands.append(f"surefoot train algo=hil env=ID reward={run_text}")
    elif finished.plan.algorithm == "preferences":
        commands.append(f"surefoot train algo=iql dataset=FILE reward={run_text}")
    elif finished.spec.environment is not None:
        trust = " --trust" if any(map(module_of, names_in(finished.plan))) else ""
        commands.append(f"surefoot plan {run_text} --planner cem --futures 10 --envs 1{trust}")
    if finished.plan.evaluates:
        name = finished.plan.environment
        fast = name is not None and (is_native(name) or registered(name.rpartition(":")[2]) is not None)
        trust = " --trust" if module_of(finished.plan.environment) else ""  # the policy alone needs no module
        certify = [f"surefoot certify {run_text} --episodes 100000{trust}"] if fast else []
        return [f"surefoot evaluate {run_text} --episodes 100{trust}", *certify, *commands]
    dataset = str(finished.plan.dataset)  # there is one where there is no simulator
    quoted = output.typed(dataset) if pathlib.Path(dataset).exists() else dataset
    return [*commands, f"surefoot datasets info {quoted}"]
