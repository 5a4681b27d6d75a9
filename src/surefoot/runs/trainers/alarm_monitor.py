"""The alarm of a run: it hears the metrics of model-based algorithms, and keeps the last policy from before it rang."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from surefoot import model_based
from surefoot.core.base.errors import CheckpointError
from surefoot.core.policy.policy import Policy
from surefoot.model_based.base.alarm import Alarm, Ring
from surefoot.runs.plan import agent_class
from surefoot.runs.run import Run

Judged = Callable[[Policy, int], dict[str, Any]]
"""(policy, seed) -> what it is worth, as JSON values."""


class Watch:
    """The alarms of some seeds of a run; there are none where no model is learned."""

    def __init__(self, run: Run, seeds: Sequence[int]) -> None:
        """Listen where the run's algorithm is a model-based one that learns to act."""
        self.run, self.alarms = run, dict[int, Alarm]()
        self.kept: dict[int, int] = {}
        """Seed -> step of the policy that is kept."""
        kind = agent_class(run.plan.algorithm)
        modelled = kind.name in model_based.ALGORITHMS or issubclass(kind.Config, model_based.AlarmConfig)
        if modelled and kind.requires.policy:
            config = kind.configure(**run.plan.config)
            self.alarms = {seed: Alarm(config) for seed in seeds}

    def observe_outcome(self, seed: int, step: int, values: Mapping[str, Any]) -> list[Ring]:
        """What rings anew at these metrics of training."""
        return self.alarms[seed].observe_outcome(step, values) if seed in self.alarms else []

    def hear_again(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Take the metrics of a checkpoint, so that a resumed run rings as an uninterrupted one does."""
        for line in lines:
            if line["kind"] == "train":
                self.observe_outcome(line["seed"], line["step"], line["values"])

    def keep(self, step: int, policy: Callable[[int], Policy], missing: bool = False) -> None:
        """Write the policies of now, of watched seeds in which nothing has rung, in the place of those before.

        Args:
            step: of now.
            policy: position of a seed -> its policy.
            missing: only where one was kept that is not there any more, as in a run that was complete and continues.
        """
        for position, (seed, alarm) in enumerate(self.alarms.items()):
            path = self.run.supported_path(seed)
            if not alarm.rings and (not missing or (seed in self.kept and not path.is_file())):
                policy(position).save(path)
                self.kept[seed] = step

    def result(self, seed: int, judged: Judged) -> dict[str, Any]:
        """Of a seed's result: what rang, and what the policy kept is worth; nothing where no model is learned.

        `watched` are the signals that the algorithm gave: without any the alarm could not ring. A policy kept that is
        the last one, since nothing rang, is removed.
        """
        if seed not in self.alarms:
            return {}
        path, rings, watched = self.run.supported_path(seed), self.alarms[seed].rings, self.alarms[seed].watched
        if not rings:
            for file in (path, path.with_suffix(".json")):
                file.unlink(missing_ok=True)
            return {"alarm": {"rings": [], "supported": None, "watched": watched}}
        supported = None
        if path.is_file():
            try:
                supported = {"policy": path.name, "step": self.kept.get(seed), **judged(Policy.load(path), seed)}
            except CheckpointError:  # a power cut between its two files
                supported = None
        return {"alarm": {"rings": [ring.to_json() for ring in rings], "supported": supported, "watched": watched}}
