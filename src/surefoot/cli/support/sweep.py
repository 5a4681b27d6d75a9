"""`surefoot train -m`: Hydra's own multirun, each job one run in a folder of its own inside the sweep's.

`sweep.json` says what was asked for. Where a job's folder is follows from its number and its overrides alone, so that a
job that is begun again, by `surefoot train --resume SWEEP` or by a queue, goes on where it stood.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pathlib
import re
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig

from surefoot.cli.support import config, grammar, launchers, output
from surefoot.cli.support import file_overrides as received
from surefoot.cli.support.training import Style, train_one
from surefoot.core.base.errors import ConfigError, SurefootError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.schema import Many, Number, Record, Text
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.folders import SWEEP as FILE
from surefoot.runs.folders import FolderInUseError, claim_begun, claim_named, claim_new
from surefoot.runs.processes.stopping import resumable
from surefoot.runs.start import resume as resume_run

FAILED = "-failed.json"
"""Behind a job's number: the name of the file that says why it failed."""
IN_THE_LABEL = ("algo", "dataset")
"""What the name of every run's folder says."""
SWEEP = Record({"format": Number(1, 1, whole=True), "overrides": Many(Text(10_000)), "folder": Text(10_000)})
"""What sweep.json holds: what was said, and where."""
# Job folders are the run folders that we make ourselves, and the log is ours too.
HYDRA_SETTINGS = (
    "hydra.sweep.subdir=.",
    "hydra.output_subdir=null",
    "hydra/hydra_logging=none",
    "hydra/job_logging=none",
)


def run(overrides: Sequence[str], style: Style, trust: bool = False) -> int:
    """Train once for each combination of the listed values; the exit code.

    Raises:
        SurefootError: a job failed (the others were carried out), or a combination is bad (nothing was begun).
    """
    config.register()
    config.register_algorithms(ALGORITHMS)  # a sweeper may choose among them
    out, rest = sweep_out(overrides)
    launchers.check(rest)
    check_combinations(rest, trust)
    with claim_named("", "multirun") if out is None else claim_new(out) as claim:
        write_json(claim.folder / FILE, {"format": 1, "overrides": list(rest), "folder": os.getcwd()})
        return _carry_out(rest, claim.folder, style, trust)


def resume(folder: pathlib.Path, style: Style, trust: bool = False) -> int:
    """Go on with a sweep that was interrupted: jobs that were begun or never begun, and those that failed, again.

    Raises:
        ConfigError: its jobs were chosen by a sweeper other than Hydra's, or it names a module and `trust` is false.
        SurefootError: as `run`.
    """
    config.register()
    config.register_algorithms(ALGORITHMS)  # a sweeper may choose among them
    asked = read_json(folder / FILE, SWEEP)
    rest = list(asked["overrides"])
    if _chosen(rest):
        raise ConfigError(
            f"{folder}: its jobs were chosen by a sweeper that does not say which are missing; go on with each run in "
            "it that is not complete: surefoot train --resume RUN"
        )
    received.check(rest, folder / FILE, trust)  # a file says them, and not who resumes
    launchers.check(rest)
    if not pathlib.Path(asked["folder"]).is_dir():
        raise ConfigError(
            f"{folder}: was begun in {asked['folder']}, which its relative paths are meant from and which is not there "
            "any more; make it again, or go on with each run that is not complete: surefoot train --resume RUN"
        )
    with claim_begun(folder) as claim, contextlib.chdir(asked["folder"]):
        config.check_overrides(rest, True)  # which tells Hydra of algorithms of one's own, found from here
        for path in claim.folder.glob(f"*{FAILED}"):
            path.unlink()
        return _carry_out(rest, claim.folder, style, trust)


def _carry_out(rest: Sequence[str], folder: pathlib.Path, style: Style, trust: bool) -> int:
    import hydra

    beside = any(item.key == "hydra/launcher" for item in grammar.parse(rest))
    job_style = Style(style.quiet, style.json, bars=False if beside else style.bars)
    sweep = os.getpid()

    varied = tuple(item.key for item in grammar.parse(rest) if item.sweep and item.key not in IN_THE_LABEL)

    def job(cfg: DictConfig) -> str:
        return train_job(cfg, folder, job_style, trust, varied, sweep)

    application = hydra.main(version_base=config.VERSION_BASE, config_path=None, config_name=config.PRIMARY)(job)
    arguments = [
        *config.for_hydra(_swept(rest)),
        f"hydra.sweep.dir={grammar.quoted(str(folder))}",
        *HYDRA_SETTINGS,
        "--multirun",
    ]
    ended_early: Exception | None = None
    trusted = " --trust" if trust or received.needs_trust(rest) else ""
    resume_command = f"surefoot train --resume {shlex.quote(str(folder))}{trusted}"
    # Jobs that another sweeper has chosen are gone on with one by one, as each says itself.
    whole = contextlib.nullcontext() if _chosen(rest) else resumable(folder, lambda: resume_command)
    with whole, command_line(arguments), grammar.hydra_errors():
        try:
            application()
        except SurefootError as error:
            ended_early = error
        except Exception as error:  # a launcher's, such as that of a job's process which was killed
            ended_early = error
    failed = [read_json(path) for path in sorted(folder.glob(f"*{FAILED}"))]
    finished = sorted(path.parent for path in folder.glob("*/summary.json"))
    if finished or failed:
        show(folder, finished, failed, style)
    if any(job["unexpected"] for job in failed):
        return 1
    if not isinstance(ended_early, SurefootError | None):
        first = (str(ended_early).strip().splitlines() or ["no message"])[0]
        raise SurefootError(
            f"{folder}: the process of a job, or what launched it, ended before the job did "
            f"({type(ended_early).__name__}: {first}); "
            f"{len(finished)} are finished; go on with: {resume_command}"
        ) from ended_early
    if ended_early is not None:
        raise ended_early
    return 0


def _chosen(overrides: Sequence[str]) -> bool:
    """Whether a sweeper other than Hydra's own chooses the jobs."""
    return any(item.key.startswith("hydra/sweeper") for item in grammar.parse(overrides))


def _swept(overrides: Sequence[str]) -> list[str]:
    """Options of listed algorithms as lists of one: Hydra first composes what is not listed, with the default one."""
    parsed = grammar.parse(overrides)
    if not any(item.key == "algo" and item.sweep for item in parsed):
        return list(overrides)
    return [
        f"{item.key}=choice({item.text.partition('=')[2]})"
        if item.key.startswith("algo.") and not (item.sweep or item.changes_keys)
        else item.text
        for item in parsed
    ]


def train_job(
    cfg: DictConfig,
    folder: pathlib.Path,
    style: Style,
    trust: bool = False,
    varied: Sequence[str] = (),
    sweep: int = 0,
) -> str:
    """One job, as a Hydra launcher calls it, maybe in another process; the run folder, named by what is varied.

    A run that is there already is gone on with. Where another process holds it, such as the first copy of a job that a
    queue or a resumed sweep has begun twice, its end is waited for.

    Args:
        cfg: what Hydra composed.
        folder: of the sweep.
        style: how to talk.
        trust: as of `surefoot train`.
        varied: options that the sweep varies.
        sweep: process of the sweep; one that it has started itself ends with it.
    """
    from hydra.core.hydra_config import HydraConfig

    if os.getppid() == sweep:
        _end_with(sweep)
    settings = HydraConfig.get()
    number = int(settings.job.num)
    try:
        task = list(settings.overrides.task)
        request = config.resolve(cfg, task, trust)
        told = told_apart(task, [key for key in varied if key != "env" or request.fields["dataset"] is not None])
        place = folder / "-".join([f"{number:02}", request.label, *told])
        label, waits = f"#{number} " + (f"({', '.join(told)}) " if told else ""), False
        while True:
            try:
                if (place / "config.json").is_file():
                    with style.watcher(label) as watcher:
                        return str(resume_run(place, listener=watcher, trust=trust).folder)
                with claim_new(place) as claim:
                    return str(train_one(request, style, claim, label=label, trust=trust).folder)
            except FolderInUseError as error:
                if not waits:
                    output.say(f"job {number} waits: {error}", stderr=True)
                waits = True
                time.sleep(1)
    except Exception as error:
        unexpected = not isinstance(error, SurefootError)
        if unexpected:
            traceback.print_exc()
        text = f"{type(error).__name__}: {error}" if unexpected else str(error)
        output.say(f"surefoot: job {number} failed: {text}", stderr=True)
        write_json(folder / f"{number:02}{FAILED}", {"job": number, "error": text, "unexpected": unexpected})
        raise SurefootError(f"job {number} of the sweep in {folder}: {text}") from None  # plain: it may be pickled


@functools.cache
def _end_with(parent: int) -> None:
    """End this process soon after its parent has ended, however that ended; its workers then end with it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def told_apart(overrides: Sequence[str], varied: Sequence[str]) -> list[str]:
    """What a job has of the options that are varied, fit for a folder's name.

    >>> told_apart(["algo=iql", "algo.expectile=0.9", "algo.hidden=[64,64]"], ["algo.expectile", "algo.hidden"])
    ['expectile_0.9', 'hidden_64_64']
    """
    found = []
    for text in overrides:
        key, _, value = text.removeprefix("+").partition("=")
        if key in varied:
            found.append(re.sub(r"[^A-Za-z0-9.]+", "_", f"{key.removeprefix('algo.')}={value}").strip("_")[:40])
    return found


def sweep_out(overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """What `out=` says, and the overrides without it.

    Raises:
        ConfigError: several are listed.
    """
    named = [item for item in grammar.parse(overrides) if item.key == "out"]
    rest = [text for text in overrides if text.partition("=")[0] != "out"]
    if named and named[-1].sweep:
        raise ConfigError(f"{named[-1].text}: a sweep has one folder; each job gets its own inside")
    return (named[-1].values[0] if named else None), rest


def check_combinations(overrides: Sequence[str], trust: bool = False) -> None:
    """Compose every combination of listed values once, so that a bad one is reported before anything is written.

    Sweepers other than Hydra's own choose values themselves; nothing can be checked beforehand then.
    """
    if _chosen(overrides):
        return
    own = [item for item in grammar.parse(overrides) if item.key.split(".")[0].split("/")[0] != "hydra"]
    choices = [[f"{item.key}={value}" for value in item.values] if item.sweep else [item.text] for item in own]
    for combination in itertools.product(*choices):
        config.compose(combination, trust)


@contextlib.contextmanager
def command_line(arguments: Sequence[str]) -> Iterator[None]:
    """Arguments for `hydra.main`, which reads them from `sys.argv`, and errors raised instead of printed."""
    settings = {"HYDRA_FULL_ERROR": "1", "PYTHONSAFEPATH": "1"}  # launchers' processes import nothing from here either
    before, variables = sys.argv, {name: os.environ.get(name) for name in settings}
    sys.argv = [before[0], *arguments]
    os.environ.update(settings)
    try:
        yield
    finally:
        sys.argv = before
        for name, value in variables.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def show(
    folder: pathlib.Path, finished: Sequence[pathlib.Path], failed: Sequence[dict[str, Any]], style: Style
) -> None:
    """The sweep's table, and the jobs that are not in it."""
    if style.json:
        runs, rows = [str(path) for path in finished], output.rows_json(finished) if finished else []
        output.print_json({"sweep": str(folder), "runs": runs, "rows": rows, "failed": list(failed)})
        return
    output.say()
    if finished:
        output.print_runs(finished)
    for job in failed:
        output.say(f"job {job['job']} failed: {job['error']}")
    output.say(f"\n{'sweep folder:':<17}{output.short(folder)}")
    output.say(f"\nnext:\n  surefoot report {output.typed(folder)}/*/ -o report.html")
