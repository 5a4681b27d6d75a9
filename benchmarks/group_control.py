"""Advantages against a group instead of a critic, in control: rollouts from one state, beside PPO with GAE.

    python benchmarks/group_control.py              # compute what is missing, then write the table
    python benchmarks/group_control.py --table      # only the table
    python benchmarks/group_control.py --quick      # one small cell, for CI

Native systems whose episodes all end at their time limit. 32 environments a seed: at the beginning of each block, which
is one whole episode, each eight are set to the state of the first of them, and continue with noise of their own. All
methods have the same actor, environments, states, epochs, minibatches and steps of Adam (1e-3); PPO has a critic beside
(GAE 0.95). GRPO and RLOO give each step of a rollout the advantage of its undiscounted return against its group; "to
come" is that of the discounted rewards to come against the group's at the same time. VESPO weighs whole rollouts by the
product of their ratios, and so takes steps on whole blocks, 40 of each.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from cells import Results
from study import Cell, difference, entry, git_commit, study_main
from torch import Tensor

from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.losses.masked import reduce
from surefoot.core.losses.policy_gradient import clip_surrogate, log_ratio, ratio_metrics, vespo_surrogate
from surefoot.envs import make_vec
from surefoot.evaluation import evaluate
from surefoot.llm.losses import group_baseline, token_returns
from surefoot.online import PPO, spec_of
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.online.base.on_policy_config import EpochsConfig
from surefoot.online.loops.on_policy import OnPolicyLoop

GROUP, ENVS, EPISODES, POINTS = 8, 32, 100, 4


@dataclasses.dataclass(frozen=True)
class GroupConfig(EpochsConfig):
    """Settings of `GroupAgent`; groups are of `GROUP` environments in a row."""

    baseline: str = "meanstd"  # of core's group baselines: meanstd (GRPO), loo (RLOO)
    to_come: bool = False  # at each time against the group, instead of one advantage a rollout
    whole: bool = False  # VESPO's weights of whole rollouts instead of clipped ratios of steps
    clip: float = 0.2
    learning_rate: float = 1e-3


class GroupAgent(OnPolicyAgent):
    """An actor alone, whose rollouts are compared with those of their group."""

    name = "group"
    Config = GroupConfig
    config: GroupConfig

    def build(self) -> None:
        """An actor alone."""
        self.build_actor()

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Advantages (T, N), and each row's place in the block."""
        c, rewards = self.config, block["rewards"]
        steps, envs = rewards.shape
        if c.to_come:
            returns = token_returns(rewards.T, discount=c.discount).T
            groups = torch.arange(steps * envs, device=rewards.device) // GROUP
            advantages = group_baseline(returns.flatten(), groups, c.baseline).view(steps, envs)
        else:
            groups = torch.arange(envs, device=rewards.device) // GROUP
            advantages = group_baseline(rewards.sum(0), groups, c.baseline).expand(steps, envs)
        places = torch.arange(steps * envs, device=rewards.device, dtype=rewards.dtype).view(steps, envs)
        columns = {"advantages": advantages.clone(), "behaviour_log_prob": self.behaviour_log_prob(block)}
        return self.acted(block) | columns | {"places": places}

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Clipped ratios of steps; or, of a whole block, log-probabilities weighed by their rollout's ratio."""
        c = self.config
        log_prob, entropies, _ = self.evaluate(batch)
        ratios = log_ratio(log_prob, batch["behaviour_log_prob"])
        metrics = {**ratio_metrics(ratios), "entropy": entropies.mean()}
        if not c.whole:
            return reduce(clip_surrogate(ratios, batch["advantages"], c.clip)[0]), metrics
        order = batch["places"].argsort()

        def rollouts(values: Tensor) -> Tensor:
            return values[order].view(-1, c.num_envs).T  # (N, T)

        whole = rollouts(ratios).sum(-1, keepdim=True)
        return reduce(vespo_surrogate(whole, rollouts(log_prob), rollouts(batch["advantages"]))), metrics

    def updates(self) -> list[Update]:
        """Steps of the actor."""
        c = self.config
        return [Update(self.loss, ("actor",), Adam(c.learning_rate, epsilon=1e-5, max_gradient_norm=0.5))]


class Variant(NamedTuple):
    """A way of getting advantages."""

    name: str
    title: str
    options: dict[str, Any]
    critic: bool = False


VARIANTS = (
    Variant("ppo", "PPO, GAE", {"schedule": "constant", "value_clip": None}, critic=True),
    Variant("grpo", "GRPO", {}),
    Variant("rloo", "RLOO", {"baseline": "loo"}),
    Variant("to-come", "RLOO, rewards to come", {"baseline": "loo", "to_come": True}),
    Variant("vespo", "VESPO", {"whole": True, "epochs": 40, "minibatches": 1}),
)
SYSTEMS = {
    "pendulum": (200, 320_000, 0.95, 5),
    "double_integrator": (100, 160_000, 0.95, 5),
    "reacher": (100, 320_000, 0.95, 5),
}
"""Name -> steps of an episode, environment steps of each seed, discount, seeds."""


def compute(
    variant: Variant, system: str, seeds: int | None = None, share: float = 1.0, episodes: int = EPISODES
) -> Any:
    """All seeds of one method on one system, side by side."""
    torch.set_num_threads(1)
    length, steps, discount, all_seeds = SYSTEMS[system]
    steps, seeds = int(steps * share), seeds or all_seeds
    env = make_vec(f"native/{system}", seeds * ENVS)
    options: dict[str, Any] = {
        "num_envs": ENVS,
        "horizon": length,
        "epochs": 10,
        "minibatches": 16,
        "discount": discount,
    }
    options |= {"learning_rate": 1e-3, "normalize_observations": False} | variant.options
    kind: type[OnPolicyAgent] = PPO if variant.critic else GroupAgent
    agents = [kind(spec_of(env), **options).fresh(seed) for seed in range(seeds)]
    loop = OnPolicyLoop(agents, list(range(seeds)), env, planned_steps=steps)

    def same_states() -> None:
        """A block ends where all episodes end, so that all rows stand at a first state here."""
        states = env.state
        env.state = states[np.arange(len(states)) // GROUP * GROUP]

    loop.pause = same_states
    began, curve = time.process_time(), list[tuple[int, list[float]]]()
    for part in range(POINTS):
        loop.run(steps // POINTS)
        policies = [loop.learner.extract(seed).policy() for seed in range(seeds)]
        last = part + 1 == POINTS
        found = evaluate(policies, f"native/{system}", episodes if last else 20, seed=1000)
        curve.append((loop.step, [float(np.mean(one.returns)) for one in found]))
    return {
        "system": system,
        "options": options,
        "steps": loop.step,
        "returns": [[round(float(value), 3) for value in one.returns] for one in found],
        "curve": curve,
        "cpu_seconds": round(time.process_time() - began, 1),
        "git": git_commit(),
    }


def table(found: Results) -> list[str]:
    """A part for each system."""
    lines = [
        "# Groups instead of a critic, in control",
        "",
        *(__doc__ or "").split("\n\n")[-1].strip().splitlines(),
        "",
    ]
    lines += [f"Mean returns of {EPISODES} episodes of the mean action, brackets 95 % intervals over seeds"]
    lines += ["and episodes; differences from PPO on the same episodes."]
    for system, (length, steps, _, seeds) in SYSTEMS.items():
        lines += ["", f"## {system}, {steps:,} steps, episodes of {length}, {seeds} seeds", ""]
        lines += [
            "| method | return | difference from PPO | return after a quarter | CPU seconds |",
            "|---|---|---|---|---|",
        ]
        base = [np.array(one) for one in found.get(f"{system}-ppo", {"returns": []})["returns"]]
        for variant in VARIANTS:
            cell = found.get(f"{system}-{variant.name}")
            if cell is None:
                lines.append(f"| {variant.title} |" + " missing |" * 4)
                continue
            own = [np.array(one) for one in cell["returns"]]
            quarter = f"{np.mean(cell['curve'][0][1]):.0f}"
            gap = "" if variant.critic else difference(own, base)
            lines.append(f"| {variant.title} | {entry(own, seeds)} | {gap} | {quarter} | {cell['cpu_seconds']:.0f} |")
    return lines


CELLS = [Cell(f"{s}-{v.name}", functools.partial(compute, v, s)) for s in SYSTEMS for v in VARIANTS]

if __name__ == "__main__":
    quick = Cell("quick", functools.partial(compute, VARIANTS[-1], "double_integrator", 2, 0.08, 4))
    study_main(__doc__, "group_control", CELLS, table, quick)
