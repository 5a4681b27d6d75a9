"""`surefoot train` started many times: each a fork of a process that has imported it, which saves seconds and memory.

Everything else is the command line's own: its arguments, its processes' workers, its exit code, what it prints.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

from surefoot.runs.progress_events import Listener
from surefoot.runs.run import Run

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
NOWHERE = pathlib.Path(os.devnull)


def _command(arguments: Sequence[str], folder: pathlib.Path, log: pathlib.Path | None, alone: bool) -> None:
    """What a started process does: `surefoot train` in a folder; what it prints goes to a file, or errors to ours."""
    from surefoot.cli.main import main

    if alone:
        from surefoot.runs import start as training

        training.work = work_here
    os.chdir(folder)
    printed = os.open(log or NOWHERE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, 1)
    if log is not None:
        os.dup2(printed, 2)
    sys.exit(main(["train", "-q", *arguments]))


def work_here(run: Run, groups: list[list[int]], notify: Listener, lock: int) -> None:
    """Train in this process, where a command would start workers."""
    import torch

    from surefoot.core.nn.native import kernels
    from surefoot.runs.trainers.choose import seed_trainer
    from surefoot.runs.trainers.trainer import never

    torch.set_num_threads(1)
    kernels.keep_memory()
    for seeds in groups:
        run.seed_folder(seeds[0]).mkdir(parents=True, exist_ok=True)
        trainer = seed_trainer(run, seeds, notify, never)
        trainer.train()
        trainer.finish()


class Commands:
    """Starts commands."""

    def __init__(self) -> None:
        os.environ.update(dict.fromkeys(THREADS, "1"))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["surefoot.cli.support.training", "surefoot.runs.start", "h5py", "mujoco"])

    def start(
        self,
        arguments: Sequence[str],
        folder: pathlib.Path | None = None,
        log: pathlib.Path | None = None,
        alone: bool = False,
    ) -> BaseProcess:
        """The process of one, in a working directory and with a file for what it prints; `alone`: without workers."""
        process = self._context.Process(target=_command, args=(arguments, folder or pathlib.Path.cwd(), log, alone))
        process.start()
        return process
