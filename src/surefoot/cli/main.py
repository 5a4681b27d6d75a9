"""`surefoot`: finds the command, runs it, and turns errors into a sentence and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import TextIO

import surefoot
from surefoot.cli.support.parser import Parser
from surefoot.core.base.errors import ConfigError, SurefootError, nearest, printable, show_warnings_printable
from surefoot.core.base.files import FULL, why
from surefoot.core.base.memory import ADVICE, short_of_memory
from surefoot.cuda_ext import StaleModuleError
from surefoot.runs.processes.stopping import Terminated, terminable

EXAMPLES = """\
examples:
  surefoot train                                            the main job: a complete small experiment
  surefoot train algo=riql dataset=hopper.hdf5 env=Hopper-v5 steps=100000 seeds=3
  surefoot train -m algo=bc,iql,td3bc dataset=d4rl/hopper-medium-v2
  surefoot evaluate RUN --episodes 100
  surefoot watch runs/ -o curves.html
  surefoot watch RUN -o episodes.mp4
  surefoot rollout RUN --env native/quadrotor-2d --envs 65536
  surefoot execute RUN --latency 0.08 --rate 50
  surefoot certify RUN --env native/dubins-obstacles --episodes 1000000
  surefoot label data.hdf5 -o labels.npz --pairs 100
  surefoot cliff RUN --noise 0.01 --retrain 3
  surefoot horizon table.npz --horizon 20
  surefoot restless arms.npz --budget 10
  surefoot plan native/cartpole-swingup --planner mppi --envs 64
  surefoot reach native/dubins-obstacles -o safe_set.npz --plot
  surefoot report RUN... -o report.html
  surefoot compare 'runs/iql-*' 'runs/bc-*' --until decided
  surefoot select runs/*/ --dataset held-out.hdf5
  surefoot results runs/ -o results.csv --plot
  surefoot tune algo=iql steps=20000 --trials 32 --space space.yaml
  surefoot bench offline-small
  surefoot reproduce dqn-cartpole
  surefoot export RUN -o policy.onnx
  surefoot snapshots RUN -o snapshots.npz
  surefoot llm train model=FOLDER prompts=prompts.jsonl reward=my_rewards:exact method=dapo_clip steps=200

exit codes: 0 done, 2 the command or the data is wrong, 130 interrupted, 143 terminated, 1 an internal error
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    show_warnings_printable()
    try:
        with terminable():
            code = dispatch(arguments)
        sys.stdout.flush()
    except (SurefootError, StaleModuleError) as error:
        return _end(2, f"surefoot: error: {error}")
    except KeyboardInterrupt as error:
        return _end(128 + signal.SIGINT, f"\n{printable(str(error)) or 'interrupted'}")
    except Terminated as error:
        return _end(128 + signal.SIGTERM, None if error.reported else "terminated")
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _silence(sys.stdout)
        return 0
    except (MemoryError, OSError, RuntimeError) as error:
        if short_of_memory(error):
            return _end(2, f"surefoot: error: the memory is not enough ({printable(_line(error))}); {ADVICE}")
        if not isinstance(error, OSError):
            raise
        if error.errno == errno.ENAMETOOLONG:
            return _end(2, f"surefoot: error: {error.filename}: no file system takes a name this long; choose another")
        if error.errno not in FULL:
            raise
        _silence(sys.stdout)
        return _end(2, f"surefoot: error: the output can't be written: {why(error)}")
    return code


def _line(error: BaseException) -> str:
    """What an error says first, without the places in C++ that torch adds."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _end(code: int, text: str | None) -> int:
    """The exit code, after a last sentence, if anybody reads it."""
    try:
        if text is not None:
            print(text, file=sys.stderr, flush=True)
    except OSError:
        _silence(sys.stderr)
    with contextlib.suppress(ValueError):  # a stream that was closed
        try:
            sys.stdout.flush()
        except OSError:
            _silence(sys.stdout)
    return code


def _silence(stream: TextIO) -> None:
    """Lead to nowhere what can't be written any more, which would be tried again at the end of the process."""
    with contextlib.suppress(OSError, ValueError):  # no stream of the process, as in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def dispatch(arguments: list[str]) -> int:
    """Find the command and run it."""
    import numpy  # noqa: F401, ICN001 - torch's C code imports it otherwise, and loses what a signal raises in between

    line = shlex.join(["surefoot", *arguments])
    if arguments[:1] == ["train"]:  # its overrides may stand anywhere among the options
        from surefoot.cli import train

        return train.run(arguments[1:])
    if arguments[:1] == ["tune"]:  # so may those of this
        from surefoot.cli import tune

        return tune.run(arguments[1:])
    if arguments[:1] == ["bench"]:
        from surefoot.cli import bench

        arguments = ["bench", *bench.readable(arguments[1:])]
    parser = build_parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in parser.commands:
        raise ConfigError(f"unknown command {arguments[0]!r}: {nearest(arguments[0], parser.commands)}")
    if not arguments:
        parser.print_help()
        return 0
    known, rest = parser.parse_known_args(arguments, argparse.Namespace(line=line))
    if rest and (not hasattr(known, "settings") or any(one.startswith("-") for one in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # name=value behind an option
        known.settings = [*known.settings, *rest]
    if known.version:
        print(f"surefoot {surefoot.__version__}")
        return 0
    if not hasattr(known, "run"):
        raise ConfigError("no command is given; `surefoot --help` shows them")
    code: int = known.run(known)
    return code


def build_parser() -> Parser:
    """All commands but `train`, which reads its own arguments."""
    from surefoot.cli import (
        algorithms,
        bench,
        build,
        certify,
        cliff,
        compare,
        datasets,
        doctor,
        envs,
        evaluate,
        execute,
        export,
        horizon,
        import_sb3,
        label,
        llm,
        new,
        plan,
        reach,
        report,
        reproduce,
        restless,
        results,
        rollout,
        select,
        snapshots,
        task,
        watch,
    )

    parser = Parser(
        prog="surefoot",
        description="Classical, offline and safe reinforcement learning for control and robotics.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    commands.add_parser("train", help="train, evaluate and save policies (surefoot train --help)", add_help=False)
    commands.add_parser("tune", help="search for options of an algorithm (surefoot tune --help)", add_help=False)
    watch.add_parser(commands)
    new.add_parser(commands)
    build.add_parser(commands)
    doctor.add_parser(commands)
    evaluate.add_parser(commands)
    report.add_parser(commands)
    export.add_parser(commands)
    task.add_parser(commands)
    snapshots.add_parser(commands)
    compare.add_parser(commands)
    select.add_parser(commands)
    bench.add_parsers(commands)
    reproduce.add_parser(commands)
    results.add_parser(commands)
    rollout.add_parser(commands)
    certify.add_parser(commands)
    cliff.add_parser(commands)
    horizon.add_parser(commands)
    restless.add_parser(commands)
    execute.add_parser(commands)
    plan.add_parser(commands)
    reach.add_parser(commands)
    envs.add_parser(commands)
    datasets.add_parser(commands)
    import_sb3.add_parser(commands)
    label.add_parser(commands)
    algorithms.add_parser(commands)
    llm.add_parsers(commands)
    parser.commands = commands.choices
    return parser
