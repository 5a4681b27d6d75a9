"""`surefoot train -m`: Hydra's own multirun, each job one run in a folder of its own inside the sweep's."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig

from surefoot.cli import config, grammar, output
from surefoot.cli.train import Style, train_one
from surefoot.core.errors import ConfigError, SurefootError
from surefoot.core.files import read_json, write_json
from surefoot.experiment.folders import claim_named, claim_new

FAILED = "-failed.json"
"""Behind a job's number: the name of the file that says why it failed."""
IN_THE_LABEL = ("algo", "dataset")
"""What the name of every run's folder says."""
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
    out, rest = sweep_out(overrides)
    check_combinations(rest)
    with claim_named("", "multirun") if out is None else claim_new(out) as claim:
        return _carry_out(rest, claim.folder, style, trust)


def _carry_out(rest: Sequence[str], folder: pathlib.Path, style: Style, trust: bool) -> int:
    import hydra

    beside = any(item.key == "hydra/launcher" for item in grammar.parse(rest))
    job_style = Style(style.quiet, style.json, bars=False if beside else style.bars)

    varied = tuple(item.key for item in grammar.parse(rest) if item.sweep and item.key not in IN_THE_LABEL)

    def job(cfg: DictConfig) -> str:
        return train_job(cfg, folder, job_style, trust, varied)

    application = hydra.main(version_base=config.VERSION_BASE, config_path=None, config_name=config.PRIMARY)(job)
    arguments = [*_swept(rest), f"hydra.sweep.dir={grammar.quoted(str(folder))}", *HYDRA_SETTINGS, "--multirun"]
    ended_early: Exception | None = None
    with command_line(arguments), grammar.hydra_errors():
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
    if any(job["unexpected"] for job in failed) or not isinstance(ended_early, SurefootError | None):
        if not failed:
            raise ended_early or AssertionError
        return 1
    if ended_early is not None:
        raise ended_early
    return 0


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
    cfg: DictConfig, folder: pathlib.Path, style: Style, trust: bool = False, varied: Sequence[str] = ()
) -> str:
    """One job, as a Hydra launcher calls it, maybe in another process; the run folder, named by what is varied."""
    from hydra.core.hydra_config import HydraConfig

    settings = HydraConfig.get()
    number = int(settings.job.num)
    try:
        task = list(settings.overrides.task)
        request = config.resolve(cfg, task)
        told = told_apart(task, [key for key in varied if key != "env" or request.fields["dataset"] is not None])
        with claim_new(folder / "-".join([f"{number:02}", request.label, *told])) as claim:
            label = f"#{number} " + (f"({', '.join(told)}) " if told else "")
            return str(train_one(request, style, claim, label=label, trust=trust).folder)
    except Exception as error:
        unexpected = not isinstance(error, SurefootError)
        if unexpected:
            traceback.print_exc()
        text = f"{type(error).__name__}: {error}" if unexpected else str(error)
        output.say(f"surefoot: job {number} failed: {text}", stderr=True)
        write_json(folder / f"{number:02}{FAILED}", {"job": number, "error": text, "unexpected": unexpected})
        raise SurefootError(f"job {number} of the sweep in {folder}: {text}") from None  # plain: it may be pickled


def told_apart(overrides: Sequence[str], varied: Sequence[str]) -> list[str]:
    """What a job has of the options that are varied, fit for a folder's name.

    >>> told_apart(["algo=iql", "algo.expectile=0.9", "algo.hidden=[64,64]"], ["algo.expectile", "algo.hidden"])
    ['expectile_0.9', 'hidden_64_64']
    """
    found = []
    for text in overrides:
        key, _, value = text.partition("=")
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


def check_combinations(overrides: Sequence[str]) -> None:
    """Compose every combination of listed values once, so that a bad one is reported before anything is written.

    Sweepers other than Hydra's own choose values themselves; nothing can be checked beforehand then.
    """
    parsed = grammar.parse(overrides)
    if any(item.key.startswith("hydra/sweeper") for item in parsed):
        return
    own = [item for item in parsed if item.key.split(".")[0].split("/")[0] != "hydra"]
    choices = [[f"{item.key}={value}" for value in item.values] if item.sweep else [item.text] for item in own]
    for combination in itertools.product(*choices):
        config.compose(combination)


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
