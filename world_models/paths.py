"""Whole paths in a world: those that are better than what is known are kept, to be cloned by what they still earned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.core.base.errors import DataError
from surefoot.core.base.random import Noise
from surefoot.data.dataset import Dataset
from surefoot.world_models.dynamics import Dynamics, StepNoise


class Paths(NamedTuple):
    """H steps of B paths."""

    observations: Tensor
    """(H, B, O)."""
    actions: Tensor
    """(H, B, A)."""
    rewards: Tensor
    """(H, B)."""

    @property
    def returns_to_go(self) -> Tensor:
        """(H, B) sums of rewards from each step on, undiscounted; the first row is the paths' returns."""
        return self.rewards.flip(0).cumsum(0).flip(0)

    @property
    def finite(self) -> Tensor:
        """(B,) bool: the world gave finite numbers all along."""
        return (self.observations.isfinite().all(-1) & self.rewards.isfinite()).all(0)

    def rows(self, chosen: Tensor) -> dict[str, Tensor]:
        """Steps as (H B, ...) columns with returns-to-go, of which those of the (B,) bool chosen paths are `valid`."""
        columns = {"observations": self.observations, "actions": self.actions, "returns_to_go": self.returns_to_go}
        found = {name: value.flatten(0, 1) for name, value in columns.items()}
        return {**found, "valid": chosen.expand(len(self.rewards), -1).flatten()}


def follow(
    world: Dynamics,
    act: Callable[[Tensor, Tensor], Tensor],
    observations: Tensor,
    noise: Iterable[tuple[Tensor, StepNoise]],
    bounds: tuple[Tensor, Tensor] | None = None,
) -> Paths:
    """Paths of a policy from (B, O) observations, as many steps as there is noise; ends are not asked for.

    Args:
        world: of observations.
        act: (B, O) observations and noise -> (B, A) actions in [-1, 1].
        observations: where they begin.
        noise: of each step, the policy's and the world's.
        bounds: lowest and highest (O,) that states are kept in; None: they go where they go.
    """
    path = []
    for drawn, chance in noise:
        actions = act(observations, drawn)
        outcome = world.step(observations, actions, chance)
        path.append((observations, actions, outcome.rewards))
        observations = outcome.states if bounds is None else outcome.states.clamp(*bounds)
    return Paths(*(torch.stack(column) for column in zip(*path, strict=True)))


NAMES = ("imagined_action", "imagined_member", "imagined_outcome")


def path_noise(horizon: int, to_act: int, world: Dynamics) -> dict[str, Noise]:
    """The random numbers of paths: `to_act` standard normal ones of the policy at each step, and the world's."""
    return {
        "imagined_action": Noise("normal", horizon * to_act),
        "imagined_member": Noise("uniform", horizon),
        "imagined_outcome": Noise("normal", horizon * world.noise_dim),
    }


def step_by_step(
    noise: Mapping[str, Tensor], horizon: int, members: Callable[[Tensor], Tensor | None]
) -> Iterator[tuple[Tensor, StepNoise]]:
    """Of each step the numbers to act by, and those of the world: what `follow` takes.

    Args:
        noise: (B, ...) as `path_noise` asks for it.
        horizon: H.
        members: (B,) uniform numbers -> members that predict a step.
    """
    parts = (noise[name].unflatten(-1, (horizon, -1)).unbind(1) for name in NAMES)
    for to_act, member, outcome in zip(*parts, strict=True):
        yield to_act, StepNoise(members(member.squeeze(-1)), outcome)


def path_notes(horizon: int, dataset: Dataset) -> list[str]:
    """What to say where returns of paths of `horizon` steps are no fair match for those of episodes."""
    found, longest = [], int(dataset.episode_lengths.max())
    if abs(horizon - longest) > 0.05 * longest:
        found.append(
            f"paths have {horizon:,} steps, and the data's longest episode {longest:,}: the sums of rewards that are "
            f"compared are of unequal lengths; give algo.horizon={longest} unless that is meant"
        )
    if dataset.terminations.any():
        found.append(
            "episodes of the data end by termination, and paths continue: "
            "in the model they may earn what no episode could"
        )
    return found


def nothing_kept(name: str, tried: int, threshold: float, best: float) -> DataError:
    """What to say where no path beat the data: `name` of the algorithm, paths tried, their best return."""
    return DataError(
        f"{name}: none of {tried:,} paths returned more in the model than the data's best episode, {threshold:.2f}; "
        f"the best returned {best:.2f}. Either the data hold no parts of a better path, or the clone takes none: "
        "give algo.behavior_updates or algo.rollout_batches more, or train rcsl"
    )
