"""`surefoot train -m`: Hydra's own multirun, each job one run in a folder of its own inside the sweep's.

`sweep.json` says what was asked for. Where a job's folder is follows from its number and its overrides alone, so that a
job that is restarted, by `surefoot train --resume SWEEP` or by a queue, continues where it stood.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from surefoot.cli.support import config, grammar, launchers, output, sweeper
from surefoot.cli.support import file_overrides as received
from surefoot.cli.support.ahead import SKIP, check_jobs, reasons, refusal, reported
from surefoot.cli.support.training import Style, train_one
from surefoot.core.base.errors import CheckpointError, ConfigError, SurefootError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.schema import Flag, Many, Number, Record, Text
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.folders import SWEEP as FILE
from surefoot.runs.folders import FolderInUseError, claim_begun, claim_named, claim_new
from surefoot.runs.processes.stopping import resumable
from surefoot.runs.start import resume as resume_run
from surefoot.runs.trust import refuse_links_to_runs

FAILED = "-failed.json"
"""Behind a job's number: the name of the file that says why it failed."""
IN_THE_LABEL = ("algo", "dataset")
"""What the name of every run's folder says."""
SWEEP = Record(
    {"format": Number(1, 1, whole=True), "overrides": Many(Text(10_000)), "folder": Text(10_000)},
    {"skip_failing": Flag()},
)
"""What sweep.json holds: what was given, and where."""
# Job folders are the run folders that we make ourselves, and the log is ours too.
HYDRA_SETTINGS = (
    "hydra.sweep.subdir=.",
    "hydra.output_subdir=null",
    "hydra/hydra_logging=none",
    "hydra/job_logging=none",
)


def run(overrides: Sequence[str], style: Style, trust: bool = False, skip: bool = False) -> int:
    """Train once for each combination of the listed values; the exit code.

    Args:
        overrides: what is reported, with lists of values.
        style: how to talk.
        trust: as of `surefoot train`.
        skip: give up combinations that can't be trained, and train the others.

    Raises:
        SurefootError: a job failed (the others were carried out), or a combination is bad (nothing was started).
    """
    config.register()
    config.register_algorithms(ALGORITHMS)  # a sweeper may choose among them
    out, rest = sweep_out(overrides)
    launchers.check(rest)
    check_seeds(rest)
    if skip and _chosen(rest):
        raise ConfigError(f"{SKIP}: a sweeper of your own chooses the jobs while others run, so none is checked before")
    sweep = None if _chosen(rest) else Combinations.of(rest, trust)
    failed = {} if sweep is None else sweep.failing(style, trust, skip)
    with claim_named("", "multirun") if out is None else claim_new(out) as claim:
        reported = {"format": 1, "overrides": list(rest), "folder": os.getcwd()}
        write_json(claim.folder / FILE, {**reported, "skip_failing": True} if skip else reported)
        return _carry_out(rest, claim.folder, style, trust, sweep, failed)


def resume(folder: pathlib.Path, style: Style, trust: bool = False, skip: bool = False) -> int:
    """Continue a sweep that was interrupted: jobs that were started or never started, and those that failed, again.

    Args:
        folder: of the sweep.
        style: how to talk.
        trust: as of `surefoot train`.
        skip: give up jobs that can't be trained; a sweep that was started so continues so.

    Raises:
        ConfigError: its jobs were chosen by a sweeper other than Hydra's, or it names a module and `trust` is false.
        SurefootError: as `run`.
    """
    config.register()
    config.register_algorithms(ALGORITHMS)  # a sweeper may choose among them
    asked = _asked(folder, trust)
    refuse_links_to_runs(folder, trust)
    rest = config.respelled(asked["overrides"])
    if not pathlib.Path(asked["folder"]).is_dir():
        raise ConfigError(
            f"{folder}: was started in {asked['folder']}, which its relative paths are meant from and which is gone; "
            "make it again, or continue each run that is not complete: surefoot train --resume RUN"
        )
    with claim_begun(folder) as claim, contextlib.chdir(asked["folder"]):
        skip = skip or asked.get("skip_failing", False)
        with received.said_by(folder / FILE):
            config.check_overrides(rest, True, skip)  # which tells Hydra of algorithms of one's own, found from here
        sweep = Combinations.of(rest, trust)
        failed = sweep.failing(style, trust, skip, claim.folder)
        for path in claim.folder.glob(f"*{FAILED}"):
            path.unlink()
        return _carry_out(rest, claim.folder, style, trust, sweep, failed)


def _asked(folder: pathlib.Path, trust: bool) -> dict[str, Any]:
    """What a sweep's file says, whose overrides may be given to Hydra.

    Raises:
        CheckpointError: it is damaged.
        ConfigError: as `resume`, but for what its working folder has to do with.
    """
    path = folder / FILE
    asked: dict[str, Any] = read_json(path, SWEEP)
    received.check(asked["overrides"], path, trust)  # a file says them, and not who resumes
    if _chosen(asked["overrides"]):
        raise ConfigError(
            f"{folder}: its jobs were chosen by a sweeper that does not say which are missing; continue each run in "
            "it that is not complete: surefoot train --resume RUN"
        )
    with received.said_by(path):
        launchers.check(asked["overrides"])
    return asked


@dataclasses.dataclass(frozen=True)
class Combinations:
    """The jobs of a sweep by their numbers, as Hydra's own sweeper counts them."""

    requests: Mapping[int, config.Request]
    overrides: Mapping[int, Sequence[str]]  # of each request
    odd: Mapping[int, SurefootError]  # combinations whose values don't go together
    elsewhere: bool  # whether jobs are carried out on other machines
    varied: tuple[str, ...]  # options that differ between jobs and are not in every folder's name

    @classmethod
    def of(cls, overrides: Sequence[str], trust: bool = False) -> Combinations:
        """Compose every combination of listed values once.

        Raises:
            ConfigError: two of them would train the same seed in the same way.
        """
        parsed = grammar.parse(overrides)
        own = {item.key: item for item in parsed if item.key.split(".")[0].split("/")[0] != "hydra"}
        choices = [[f"{i.key}={value}" for value in i.values] if i.sweep else [i.text] for i in own.values()]
        requests, given, odd = {}, {}, dict[int, SurefootError]()
        for number, combination in enumerate(itertools.product(*choices)):
            try:
                requests[number], given[number] = config.compose(combination, trust), combination
            except ConfigError as error:
                odd[number] = error
        made = cls(requests, given, odd, launchers.elsewhere(overrides), varied_in(parsed))
        made._refuse_the_same()
        return made

    @property
    def count(self) -> int:
        """How many jobs there are."""
        return len(self.requests) + len(self.odd)

    def _refuse_the_same(self) -> None:
        seen: dict[str, int] = {}
        for number, request in self.requests.items():
            fields = {key: value for key, value in request.fields.items() if key not in ("seeds", "out")}
            for seed in request.fields["seeds"]:
                what = json.dumps([request.algorithm, request.options, fields, seed], sort_keys=True, default=str)
                if (other := seen.setdefault(what, number)) != number:
                    raise ConfigError(
                        f"jobs {other} and {number} would both train seed {seed} with the same settings "
                        f"({' '.join(self.overrides[other])} and {' '.join(self.overrides[number])}): leave out what "
                        "is listed twice. seeds=2 are seeds 0 and 1; seeds=[1,2] are 1 and 2 in one run, and "
                        "seeds=[1],[2] a run of each"
                    )

    def failing(
        self, style: Style, trust: bool, skip: bool, folder: pathlib.Path | None = None
    ) -> dict[int, SurefootError]:
        """The jobs that can't be trained, each with the reason; of a sweep that continues, of those not started.

        Raises:
            ConfigError: there are some and `skip` is false, or all are.
        """
        new = {str(n): request for n, request in self.requests.items() if folder is None or not self._begun(folder, n)}
        found = check_jobs(new, style, trust, here=not self.elsewhere)
        failed = {**self.odd, **{int(label): error for label, error in found.items()}}
        if failed and (not skip or len(failed) == self.count):
            raise refusal({str(number): failed[number] for number in sorted(failed)}, self.count)
        return failed

    def _begun(self, folder: pathlib.Path, number: int) -> bool:
        return (self.place(folder, number) / "config.json").is_file()

    def finished(self, folder: pathlib.Path, number: int) -> bool:
        """Whether a job has its result."""
        return number in self.requests and (self.place(folder, number) / "summary.json").is_file()

    def place(self, folder: pathlib.Path, number: int) -> pathlib.Path:
        """The folder of a job."""
        return place_of(folder, number, self.requests[number], self.overrides[number], self.varied)


def varied_in(parsed: Sequence[grammar.Parsed]) -> tuple[str, ...]:
    """Options that a sweep varies, but those that every run's folder names."""
    return tuple(item.key for item in parsed if item.sweep and item.key not in IN_THE_LABEL)


def place_of(
    folder: pathlib.Path, number: int, request: config.Request, overrides: Sequence[str], varied: Sequence[str]
) -> pathlib.Path:
    """The folder of a job in that of its sweep: its number, what it trains, and what it has of what is varied."""
    return folder / "-".join([f"{number:02}", request.label, *_told_of(request, overrides, varied)])


def _told_of(request: config.Request, overrides: Sequence[str], varied: Sequence[str]) -> list[str]:
    return told_apart(overrides, [key for key in varied if key != "env" or request.fields["dataset"] is not None])


def check_seeds(overrides: Sequence[str]) -> None:
    """Refuse a sweep over numbers of seeds, each of which would begin with seed 0.

    Raises:
        ConfigError: says how seeds are listed.
    """
    for item in grammar.parse(overrides):
        if item.key == "seeds" and item.sweep and len(item.values) > 1 and all(v.isdigit() for v in item.values):
            listed = ",".join(item.values)
            raise ConfigError(
                f"{item.text}: a number after seeds= is how many, so all of these would train seed 0. For "
                f"seeds {listed.replace(',', ', ')} side by side in one run write seeds=[{listed}], for a run of each "
                f"seeds={','.join(f'[{value}]' for value in item.values)}"
            )


def _carry_out(
    rest: Sequence[str],
    folder: pathlib.Path,
    style: Style,
    trust: bool,
    combinations: Combinations | None,
    given_up: Mapping[int, SurefootError],
) -> int:
    """Carry out the jobs that are missing; the exit code.

    Args:
        rest: what is reported.
        folder: of the sweep.
        style: how to talk.
        trust: as of `surefoot train`.
        combinations: all jobs; None: a sweeper of the user's chooses them.
        given_up: jobs that can't be trained, with the reason.
    """
    for number, error in given_up.items():
        _write_failure(folder, number, str(error), unexpected=False, given_up=True)
    numbers = None
    if combinations is not None:
        every = range(combinations.count)
        numbers = [n for n in every if n not in given_up and not combinations.finished(folder, n)]
        if len(numbers) == len(every):
            numbers = None
        elif done := len(every) - len(numbers) - len(given_up):
            style.say(f"{done} of {len(every)} jobs are finished already")
    trusted = " --trust" if trust or received.needs_trust(rest) else ""
    resume_command = f"surefoot train --resume {shlex.quote(str(folder))}{trusted}"
    ended_early = None if numbers == [] else _launch(rest, folder, style, trust, numbers, resume_command)
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
            f"{len(finished)} are finished; continue: {resume_command}"
        ) from ended_early
    if failed:
        which = reported([str(job["job"]) for job in failed])
        raise SurefootError(
            f"{which} of the sweep in {output.short(folder)} did not end with a result, for the reasons above; the "
            f"{len(finished)} others did. Once fixed, continue: {resume_command}"
        )
    if ended_early is not None:
        raise ended_early
    return 0


def _launch(
    rest: Sequence[str],
    folder: pathlib.Path,
    style: Style,
    trust: bool,
    numbers: Sequence[int] | None,
    resume_command: str,
) -> Exception | None:
    """Have Hydra carry jobs out, all or those of some numbers; what ended it early."""
    import hydra

    beside = any(item.key == "hydra/launcher" for item in grammar.parse(rest))
    job_style = Style(style.quiet, style.json, bars=False if beside else style.bars)
    sweep = os.getpid()
    varied = varied_in(grammar.parse(rest))

    def job(cfg: DictConfig) -> str:
        return train_job(cfg, folder, job_style, trust, varied, sweep, numbers)

    application = hydra.main(version_base=config.VERSION_BASE, config_path=None, config_name=config.PRIMARY)(job)
    sweeper.register()
    part = [] if numbers is None else [f"hydra/sweeper={sweeper.NAME}", f"hydra.sweeper.numbers={list(numbers)}"]
    arguments = [
        *config.for_hydra(_swept(rest)),
        f"hydra.sweep.dir={grammar.quoted(str(folder))}",
        *HYDRA_SETTINGS,
        *part,
        "--multirun",
    ]
    # Jobs that another sweeper has chosen are continued one by one, as each says itself.
    whole = contextlib.nullcontext() if _chosen(rest) else resumable(folder, lambda: resume_command)
    with whole, command_line(arguments), grammar.hydra_errors():
        try:
            application()
        except Exception as error:  # of a job, or a launcher's, such as that of a job's process which was killed
            return error
    return None


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
    numbers: Sequence[int] | None = None,
) -> str:
    """One job, as a Hydra launcher calls it, maybe in another process; the run folder, named by what is varied.

    A run that is there already is continued. Where another process holds it, such as the first copy of a job that a
    queue or a resumed sweep has started twice, its end is waited for.

    Args:
        cfg: what Hydra composed.
        folder: of the sweep.
        style: how to talk.
        trust: as of `surefoot train`.
        varied: options that the sweep varies.
        sweep: process of the sweep; one that it has started itself ends with it.
        numbers: of the jobs that Hydra carries out, where they are not all.
    """
    from hydra.core.hydra_config import HydraConfig

    if os.getppid() == sweep:
        _end_with(sweep)
    settings = HydraConfig.get()
    number = int(settings.job.num) if numbers is None else numbers[int(settings.job.num)]
    try:
        task = list(settings.overrides.task)
        request = config.resolve(cfg, task, trust)
        place, differs = place_of(folder, number, request, task, varied), _told_of(request, task, varied)
        label, waits = f"#{number} " + (f"({', '.join(differs)}) " if differs else ""), False
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
        same = _first_with(folder, text)
        why = f": {text}" if same is None else f", as job {same} did"
        output.say(f"surefoot: job {number} failed{why}", stderr=True)
        _write_failure(folder, number, text, unexpected=unexpected)
        raise SurefootError(f"job {number} of the sweep in {folder}: {text}") from None  # plain: it may be pickled


def _write_failure(folder: pathlib.Path, number: int, text: str, *, unexpected: bool, given_up: bool = False) -> None:
    reported = {"job": number, "error": text, "unexpected": unexpected, "given_up": given_up}
    write_json(folder / f"{number:02}{FAILED}", reported)


def _first_with(folder: pathlib.Path, text: str) -> int | None:
    """A job that has failed for this reason already."""
    for path in sorted(folder.glob(f"*{FAILED}")):
        with contextlib.suppress(CheckpointError):  # another process's, being written
            if (failure := read_json(path))["error"] == text:
                return int(failure["job"])
    return None


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
    for given_up, word in ((False, "failed"), (True, "given up")):
        some = [(str(job["job"]), job["error"]) for job in failed if job.get("given_up", False) is given_up]
        for reason, labels in reasons(some).items():
            output.say(f"{reported(labels)} {word}: {reason}")
    output.say(f"\n{'sweep folder:':<17}{output.short(folder)}")
    if not finished:
        return
    name = output.typed(folder)
    output.say(
        f"\nnext:\n  surefoot report {name}/*/ -o report.html\n"
        f"  surefoot results {name} --group-by task,setting --pivot setting -o table.tex"
    )
    if any((run / "best").is_dir() for run in finished):
        output.say(f"  surefoot results {output.typed(folder)} --best")
