"""`surefoot train -m`: Hydra's own multirun, each job one run in a folder of its own inside the sweep's."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

from omegaconf import DictConfig

from surefoot import config, grammar
from surefoot.cli import output
from surefoot.cli.train import Style, train_one
from surefoot.core.errors import ConfigError, SurefootError
from surefoot.experiment.folders import claim_named, claim_new

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

    def job(cfg: DictConfig) -> str:
        return train_job(cfg, folder, job_style, trust)

    application = hydra.main(version_base=config.VERSION_BASE, config_path=None, config_name=config.PRIMARY)(job)
    arguments = [*_swept(rest), f"hydra.sweep.dir={grammar.quoted(str(folder))}", *HYDRA_SETTINGS, "--multirun"]
    failure: SurefootError | None = None
    with command_line(arguments), grammar.hydra_errors():
        try:
            application()
        except SurefootError as error:
            failure = error
    finished = sorted(path.parent for path in folder.glob("*/summary.json"))
    if finished:
        show(folder, finished, style)
    if failure is not None:
        raise failure
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


def train_job(cfg: DictConfig, folder: pathlib.Path, style: Style, trust: bool = False) -> str:
    """One job, as a Hydra launcher calls it, maybe in another process; the run folder."""
    from hydra.core.hydra_config import HydraConfig

    settings = HydraConfig.get()
    number = int(settings.job.num)
    try:
        request = config.resolve(cfg, list(settings.overrides.task))
        with claim_new(folder / f"{number:02}-{request.label}") as claim:
            return str(train_one(request, style, claim, label=f"#{number} ", trust=trust).folder)
    except SurefootError as error:
        print(f"surefoot: job {number} failed: {error}", file=sys.stderr)
        raise SurefootError(f"job {number} of the sweep in {folder}: {error}") from None  # plain: it may be pickled


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
    """Compose every combination of listed values once, so that a bad one is told before anything is written.

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
    before, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [before[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full


def show(folder: pathlib.Path, finished: Sequence[pathlib.Path], style: Style) -> None:
    """The sweep's table."""
    if style.json:
        output.print_json(
            {"sweep": str(folder), "runs": [str(path) for path in finished], "rows": output.rows_json(finished)}
        )
        return
    print()
    output.print_runs(finished)
    print(f"\n{'sweep folder:':<17}{output.short(folder)}")
    print(f"\nnext:\n  surefoot report {output.typed(folder)}/*/ -o report.html")
