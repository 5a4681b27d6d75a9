"""Weights & Biases: one run a seed, all seeds of a run folder in one group."""

from __future__ import annotations

import importlib
import os
import pathlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from surefoot.runs.progress_events import Event
from surefoot.runs.trackers.ids import KeptIds
from surefoot.runs.trackers.numbers import axis, finals, numbers, require
from surefoot.runs.trackers.options import DEFAULT_PROJECT, settled
from surefoot.runs.trackers.reach import unreachable

INIT_SECONDS, FINISH_SECONDS = 20.0, 30.0
"""How long W&B may take to start a run, and to send the rest of one that has ended."""
SERVER = "https://api.wandb.ai"
LINKS = frozenset(("latest-run", "debug.log", "debug-internal.log", "debug-core.log"))
"""What W&B makes links of."""


class WandbListener:
    """Sends progress, losses and evaluations of each seed, and at the end what its last policy scores."""

    note: Callable[[str], None]

    def __init__(self, folder: pathlib.Path, resumed: bool = False, options: Mapping[str, Any] | None = None) -> None:
        """Prepare to send; raises MissingExtraError without wandb.

        Args:
            folder: of the run.
            resumed: without effect: a run whose ids are kept continues.
            options: project, entity, group, tags, name and mode; what is not there comes from W&B's own variables.
        """
        require("wandb", "wandb", "logger=wandb")
        self.folder, self.options = folder, dict(options or {})
        self.note = lambda text: None
        self._runs: dict[int, Any] = {}
        self._plan: Mapping[str, Any] = {}
        self._axis = ""
        self._mode: str | None = None
        self._ids: KeptIds | None = None

    def __call__(self, event: Event) -> None:
        """Send the numbers of one event; the plan becomes the runs' config."""
        if event["kind"] == "start":
            self._start(event["plan"])
        if self._ids is None:
            return
        found = dict(numbers(event))
        if found:
            self._run(int(event["seed"])).log({**found, self._axis: int(event["step"])})
        if event["kind"] == "summary":
            summary = event["summary"]
            for seed in summary["seeds"]:
                run, last = self._run(seed), finals(summary, seed)
                if last:
                    run.log({**last, self._axis: int(summary["steps"])})
                run.summary.update({"complete": True, **last})
            self._finish(0)

    def close(self) -> None:
        """End what is open: of a run that was interrupted, as failed, until it is resumed."""
        self._finish(1)

    def _start(self, plan: Mapping[str, Any]) -> None:
        self._plan, self._axis = plan, axis(plan)
        self._ids, self._mode = KeptIds(self.folder, "wandb"), settled("wandb", "mode", self.options)
        if self._ids.copied_from is not None:
            self.note(f"this folder is a copy of {self._ids.copied_from}: it gets runs of its own at W&B")
        wandb = importlib.import_module("wandb")
        if self._mode not in (None, "online"):
            return
        if not wandb.login(prompt=False, verify=False):
            self._keep_offline("no one is logged in to W&B (wandb login)")
        elif why := unreachable(os.environ.get("WANDB_BASE_URL") or SERVER):
            self._keep_offline(why)

    def _keep_offline(self, why: str) -> None:
        self._mode = "offline"
        place = self.folder / "wandb"
        self.note(f"{why}: its runs are kept in {place}; to send them: wandb sync {place}/offline-run-*")

    def _run(self, seed: int) -> Any:
        if seed not in self._runs:
            assert self._ids is not None
            if (known := self._ids.get(seed)) is None:
                known = secrets.token_hex(8)
                self._ids.keep(seed, known)
            try:
                self._runs[seed] = self._opened(seed, known)
            except Exception as error:
                if self._mode in ("offline", "disabled"):
                    raise
                self._keep_offline(f"W&B starts no run ({type(error).__name__}: {' '.join(str(error).split())[:80]})")
                known = secrets.token_hex(8)  # W&B takes the other for in use
                self._ids.keep(seed, known)
                self._runs[seed] = self._opened(seed, known)
        return self._runs[seed]

    def _opened(self, seed: int, known: str) -> Any:
        wandb = importlib.import_module("wandb")
        given = {name: settled("wandb", name, self.options) for name in ("entity", "tags")}
        run = wandb.init(
            project=settled("wandb", "project", self.options) or DEFAULT_PROJECT,
            group=settled("wandb", "group", self.options) or self.folder.name,
            name=f"{settled('wandb', 'name', self.options) or self.folder.name}-seed{seed}",
            id=known,
            resume="allow",
            reinit="create_new",
            mode=self._mode,
            dir=str(self.folder),
            config={**self._plan, "seed": seed},
            settings=wandb.Settings(
                silent=True,
                console="off",
                symlink=False,
                init_timeout=INIT_SECONDS,
                finish_timeout=FINISH_SECONDS,
            ),
            **given,
        )
        run.define_metric(self._axis)
        run.define_metric("*", step_metric=self._axis)
        if not self._runs and self._mode in (None, "online") and run.url:
            self.note(f"Weights & Biases: {run.url}")
        return run

    def _finish(self, code: int) -> None:
        for run in self._runs.values():
            run.finish(exit_code=code)
        self._runs.clear()


def remove_links(folder: pathlib.Path) -> None:
    """Remove W&B's links to its own logs from a run folder, which is not resumed with links in it."""
    for place, folders, files in os.walk(folder / "wandb"):  # which follows none
        for name in LINKS.intersection((*folders, *files)):
            if (path := pathlib.Path(place, name)).is_symlink():
                path.unlink()
