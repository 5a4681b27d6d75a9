"""Diffusion policies whose last denoising steps are trained by policy gradients: DPPO's head.

Source: Ren et al., "Diffusion Policy Policy Optimization"; Song, Meng and Ermon, "Denoising Diffusion Implicit Models".
"""

from __future__ import annotations

import copy
import math
from typing import Any

from torch import Tensor

from surefoot.core.actors.chains import ChainActor, at
from surefoot.core.actors.diffusion import Schedule, implicit_coefficients, implicit_steps
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.noise_networks import NoiseNetwork

LEAST = 1e-3
"""Deviation of the steps of what acts by DDPM, but of the last, which has none."""


class DenoisingActor(ChainActor):
    """A chain of denoising steps, the last K of them trained; a frozen copy takes those before.

    While it trains a step is DDPM's, or DDIM's with eta = 1, with a deviation of at least `floor`, both when sampling
    and in the density. What acts is DDPM with hardly any floor, or, with `taken` steps, DDIM without noise but the
    first. The frozen copy is a part of this head: train it without weight decay.
    """

    kind = "denoising"

    def __init__(
        self,
        network: NoiseNetwork,
        schedule: Schedule,
        action_dim: int,
        *,
        floor: float = 0.1,
        noise_limit: float | None = 3.0,
        clip_last: bool = False,
        taken: int | None = None,
        trained: int | None = None,
    ) -> None:
        """Take the network, and copy it where not all steps are trained.

        Args:
            network: gives the noise in noisy actions; one that clones data to begin with.
            schedule: of T steps, that it was trained with.
            action_dim: D.
            floor: least deviation while it trains.
            noise_limit: as of `ChainActor`.
            clip_last: as of `ChainActor`.
            taken: steps of DDIM, evenly spaced ones of the T; None: all, by DDPM.
            trained: K, of these the last ones; None: all.

        Raises:
            ConfigError: more steps than there are, or no floor.
        """
        grid = implicit_steps(schedule.steps, taken) if taken is not None else tuple(reversed(range(schedule.steps)))
        kept = len(grid) if trained is None else trained
        if not 1 <= kept <= len(grid) or not floor > 0:
            raise ConfigError(
                f"{kept} of {len(grid)} steps are trained with a floor of {floor}; needs 1 to {len(grid)}, and a "
                "positive floor"
            )
        super().__init__(action_dim, kept, noise_limit, clip_last)
        self.network, self.schedule, self.taken, self.trained, self.floor = network, schedule, taken, trained, floor
        self.frozen = None if kept == len(grid) else copy.deepcopy(network).requires_grad_(False)
        self.starts_normal = self.frozen is None
        self._grid, products = grid, schedule.products
        self._products = [products[step] for step in grid]
        self._before = [*self._products[1:], 1.0]

    def refreeze(self) -> None:
        """Let the steps that are not trained be taken by the network as it is now: after its weights were loaded."""
        if self.frozen is not None:
            self.frozen.load_state_dict(self.network.state_dict())

    @property
    def _early(self) -> int:
        """Steps that the frozen copy takes."""
        return len(self._grid) - self.steps

    @property
    def start_dim(self) -> int:
        """D, and D for each step that the frozen copy takes."""
        return (1 + self._early) * self.action_dim

    def start(self, observations: Tensor, noise: Tensor) -> Tensor:
        """As `ChainActor.start`: what the frozen copy makes of the noise, exploring as the trained steps do."""
        x, *draws = noise.split(self.action_dim, -1)
        for step, draw in enumerate(draws):
            mean, log_std = self._move(self.frozen, observations, x, step)
            draw = draw if self.noise_limit is None else draw.clamp(-self.noise_limit, self.noise_limit)
            x = mean + log_std.exp() * draw
        return x

    def transition(self, observations: Tensor, x: Tensor, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """As `ChainActor.transition`; step 0 is the first that is trained."""
        return self._move(self.network, observations, x, step + self._early)

    def _move(
        self, network: NoiseNetwork | None, observations: Tensor, x: Tensor, place: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        assert network is not None
        predicted = self._predicted(network, observations, x, place)
        parts = self._parts(1.0)
        mean = self._mean(x, predicted, [p[0] for p in parts], [p[1] for p in parts], place)
        return mean, at([math.log(max(p[2], self.floor)) for p in parts], place, x)

    def _parts(self, eta: float) -> list[tuple[float, float, float]]:
        """Of each step: the factors of the data and the noise in the next place's mean, and the deviation."""
        pairs = zip(self._products, self._before, strict=True)
        return [implicit_coefficients(product, before, eta) for product, before in pairs]

    def _predicted(self, network: NoiseNetwork, observations: Tensor, x: Tensor, place: int | Tensor) -> Tensor:
        steps = at([float(step) for step in self._grid], place, x).reshape(-1)
        return network(x, observations, steps)

    def _mean(self, x: Tensor, predicted: Tensor, to_data: Any, to_noise: Any, place: int | Tensor) -> Tensor:
        """The next place's mean: towards the data that the noise implies, clipped, and the noise that these imply."""
        kept = at([math.sqrt(p) for p in self._products], place, x)
        added = at([math.sqrt(1 - p) for p in self._products], place, x)
        data = ((x - added * predicted) / kept).clamp(-1, 1)
        return at(to_data, place, x) * data + at(to_noise, place, x) * (x - kept * data) / added

    @property
    def noise_dim(self) -> int:
        """D of DDIM; of DDPM D for each of the T steps: where it begins, and what each but the last adds."""
        return self.action_dim * (1 if self.taken is not None else len(self._grid))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, D) of (B, `noise_dim`) standard normal noise: all steps, the early ones by the frozen copy."""
        if noise is None:
            raise ConfigError("a diffusion policy has no action without noise; give (B, noise_dim) normal numbers")
        x, *draws = noise.split(self.action_dim, -1)
        parts = self._parts(0.0 if self.taken is not None else 1.0)
        for place in range(len(self._grid)):
            network = self.frozen if self.frozen is not None and place < self._early else self.network
            predicted = self._predicted(network, observations, x, place)
            x = self._mean(x, predicted, [p[0] for p in parts], [p[1] for p in parts], place)
            if place < len(draws):
                x = x + max(parts[place][2], LEAST) * draws[place]
        return x.clamp(-1, 1)
