"""The best policy of a run beside the last one: chosen by evaluations while it trains, measured on other episodes.

The evaluation that chose a policy is too high: of several noisy means the highest is taken (the winner's curse). What
is reported of it at the end is therefore measured anew, from the initial states of the final evaluation, which chose
none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import CheckpointError
from surefoot.core.base.schema import Many, Maybe, Number, Record
from surefoot.core.policy.policy import Policy
from surefoot.evaluation import Episodes, evaluate, hierarchical_interval
from surefoot.runs.plan import FINAL_EVALUATION_SEED
from surefoot.runs.run import Run

CHOSEN = Record({"step": Number(0, whole=True), "returns": Many(Number(), 1), "cost": Maybe(Number())})
"""What a checkpoint has of the best policy so far: its step, the returns that chose it, and their mean cost."""


class Best:
    """The best policies of some seeds of a run; nothing where the plan does not ask for them."""

    def __init__(self, run: Run, seeds: Sequence[int]) -> None:
        self.run, self.seeds, self.asked = run, list(seeds), run.plan.keep_best
        self.chosen: dict[int, dict[str, Any]] = {}
        """Seed -> what `CHOSEN` says."""

    def observe_outcome(self, seed: int, step: int, episodes: Episodes, policy: Callable[[], Policy]) -> None:
        """Keep the policy of now where this evaluation is better than all before; of equal ones the first."""
        if not self.asked:
            return
        cost = None if episodes.costs is None else float(episodes.costs.mean())
        found = {"step": step, "returns": episodes.returns.tolist(), "cost": cost}
        if seed not in self.chosen or self._rank(found) > self._rank(self.chosen[seed]):
            policy().save(self.run.best_path(seed))
            self.chosen[seed] = found

    def _rank(self, found: Mapping[str, Any]) -> tuple[bool, float]:
        """The mean return; under a cost limit first whether it was kept, and of those that did not the lower cost."""
        mean, limit = sum(found["returns"]) / len(found["returns"]), self.run.plan.cost_limit
        if limit is None or found["cost"] is None or found["cost"] <= limit:
            return True, mean
        return False, -found["cost"]

    def results(
        self, step: int, last: Mapping[int, Episodes], pause: Callable[[], None]
    ) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
        """Of each seed's result: step, file, what chose the policy, and episodes that did not.

        A policy that is the last one too is not run again: its episodes are those of the final evaluation.

        Args:
            step: of the last policies.
            last: seed -> episodes of the final evaluation.
            pause: called while episodes are run.

        Returns:
            Seed -> the result; and seed -> why there is none, where its file is gone or damaged.
        """
        policies, gone = dict[int, Policy](), dict[int, str]()
        for seed in self.chosen:
            try:
                policies[seed] = Policy.load(self.run.best_path(seed))
            except CheckpointError as error:
                gone[seed] = str(error)
        there = list(policies)
        again = [seed for seed in there if self.chosen[seed]["step"] != step or seed not in last]
        found = evaluate(
            [policies[seed] for seed in again],
            str(self.run.plan.environment),
            self.run.plan.episodes,
            seed=FINAL_EVALUATION_SEED,
            progress=lambda *unused: pause(),
        )
        episodes = {**last, **dict(zip(again, found, strict=True))}
        return {seed: self._result(seed, episodes[seed]) for seed in there}, gone

    def _result(self, seed: int, episodes: Episodes) -> dict[str, Any]:
        chosen = self.chosen[seed]
        interval = hierarchical_interval([np.asarray(chosen["returns"])]).to_json()
        return {
            "step": chosen["step"],
            "policy": str(self.run.best_path(seed).relative_to(self.run.folder)),
            "chosen_by": {**interval, "episodes": len(chosen["returns"])},
            "evaluation": episodes.to_json(),
        }
