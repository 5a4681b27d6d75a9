"""`surefoot train`: one run, the main job, or the continuation of a run; sweeps are in `sweep`."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence

from surefoot.cli.support import output
from surefoot.cli.support.parser import Parser
from surefoot.cli.support.train_options import OPTIONS
from surefoot.cli.support.training import Style, claimed, present, train_one
from surefoot.core.base.errors import ConfigError


def run(arguments: Sequence[str]) -> int:
    """Read the arguments and train; the exit code."""
    if any(argument in ("-h", "--help") for argument in arguments):
        from surefoot.cli.support.help_text import short_help, train_help

        output.say(train_help() if "all" in arguments else short_help())
        return 0
    known = parser().parse_intermixed_args(list(arguments))
    style = Style(known.quiet, known.json)
    style.say("loading libraries and settings; then the data and the environment")  # which takes seconds
    if known.resume is not None:
        steps = _more_steps(known.overrides)
        if known.multirun or (known.overrides and steps is None):
            raise ConfigError(
                "--resume continues the run's own settings: leave out the others; steps=MORE alone, which extends "
                "it, may stand there"
            )
        return _resume(known.resume, style, known.trust, steps, known.skip_failing)
    if known.skip_failing and not known.multirun:
        raise ConfigError("--skip-failing is of sweeps, which have several jobs: add -m, or leave it out")
    from surefoot.cli.support import auto, config, config_file, grammar, presets

    def read(given: Sequence[str]) -> list[str]:
        return grammar.readable(presets.with_own_presets(given, known.config_dir), known.multirun)

    overrides = read(known.overrides)
    if known.config is not None:
        overrides = [*read(config_file.overrides_of(known.config, overrides, known.trust)), *overrides]
    overrides = config.respelled(overrides)
    if auto.asked(overrides):
        return auto.run(overrides, style, known.trust, known.multirun)
    config.check_overrides(overrides, known.multirun, some=known.skip_failing)
    if known.multirun:
        from surefoot.cli.support import sweep

        return sweep.run(overrides, style, known.trust, known.skip_failing)
    stated = {item.key.split(".")[0] for item in grammar.parse(overrides)}
    if not stated & {"algo", "dataset", "preset", "init"}:
        from surefoot.cli.support import demo

        return demo.main_job(overrides, stated, style)  # which trusts nothing: its data is surefoot's
    request = config.compose(overrides, known.trust)
    with claimed(request) as claim:
        finished = train_one(request, style, claim, trust=known.trust)
    present([finished.folder], finished, style)
    return 0


def parser() -> argparse.ArgumentParser:
    """The options; overrides may stand anywhere among them."""
    made = Parser(prog="surefoot train", add_help=False)
    made.add_argument("overrides", nargs="*")
    for names, options, what in OPTIONS:
        made.add_argument(*names, help=what, **options)
    return made


def _more_steps(overrides: Sequence[str]) -> int | None:
    """What a single `steps=` says; None for anything else."""
    from surefoot.cli.support import grammar

    if len(overrides) != 1 or not overrides[0].startswith("steps="):
        return None
    value = grammar.readable(overrides)[0].removeprefix("steps=")
    if not value.isdigit():
        raise ConfigError(f"steps={value}: must be a whole number, as in steps=200000")
    return int(value)


def _resume(text: str, style: Style, trust: bool, steps: int | None = None, skip: bool = False) -> int:
    from surefoot.runs.extend import extend
    from surefoot.runs.start import resume

    folder = pathlib.Path(text)
    from surefoot.cli.support import auto, sweep
    from surefoot.studies.auto import started

    if started(folder):
        if steps is not None:
            raise ConfigError(f"{text}: trains several algorithms and is not finished; continue it without steps=")
        return auto.resume(folder.resolve(), style, trust)
    if (folder / sweep.FILE).is_file():
        if steps is not None:
            raise ConfigError(f"{text}: is a sweep; extend the runs in it one by one, with --resume RUN steps={steps}")
        return sweep.resume(folder, style, trust, skip)
    if skip:
        raise ConfigError(f"--skip-failing is of sweeps, and {text} is one run: leave it out")
    with style.watcher() as watcher:
        if steps is None:
            finished = resume(folder, listener=watcher, trust=trust)
        else:
            finished = extend(folder, steps, listener=watcher, trust=trust)
    present([finished.folder], finished, style)
    return 0
