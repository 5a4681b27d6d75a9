"""Policy heads whose chain of noisy steps goes along a flow: ReinFlow's, a stochastic equation's, consistency's.

What acts in the end is the flow, without the noise that only explored. `core.actors.chains` says what their density is.

Sources: Zhang et al., "ReinFlow: Fine-tuning Flow Matching Policy with Online Reinforcement Learning"; Chen et al.,
"pi_RL" (the stochastic differential equation with the flow's marginals); Oertell et al., "RL for Consistency Models".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chains import ChainActor, at
from surefoot.core.actors.flow_actor import FlowActor, field
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.losses.flow import euler, times
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.velocity import VelocityNetwork


class FlowChainActor(ChainActor):
    """A chain along a flow: of a velocity network, acting without noise but the first."""

    def __init__(
        self,
        network: VelocityNetwork,
        action_dim: int,
        steps: int,
        clip_each: bool,
        noise_limit: float | None,
        clip_last: bool,
    ) -> None:
        super().__init__(action_dim, steps, noise_limit, clip_last)
        self.network, self.clip_each = network, clip_each

    def time(self, x: Tensor, step: int | Tensor) -> Tensor:
        """(1,) or (B,) k / K of steps k."""
        return x.new_full((1,), step / self.steps) if isinstance(step, int) else step / self.steps

    def velocity(self, observations: Tensor, x: Tensor, step: int | Tensor) -> Tensor:
        """(B, D) at places after `step` steps; of sized networks over the next step."""
        time = self.time(x, step)
        size = torch.full_like(time, 1 / self.steps) if self.network.sized else None
        return self.network(observations, x, time, size)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, D) where the flow alone carries (B, D) standard normal noise: what is deployed."""
        return self.deployed().act(observations, noise)

    def carried(self, network: VelocityNetwork, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, D) where another network of this kind, in this head's place, would carry what `act` takes."""
        velocity = field(network, observations, self.steps)
        return euler(velocity, noise, self.steps, 1.0, self.clip_each)

    def deployed(self) -> Actor:
        """The flow in as many steps, clipped likewise: the velocity network only."""
        return FlowActor(self.network, self.action_dim, self.steps, clip_each=self.clip_each)


NOISES = ("const", "learn", "learn_decay")
HOLD, LEFT = 0.35, 0.7
"""Of "learn_decay": the share of a run for which the bound stays, and of the range what is left in the end."""


def decayed(low: float, high: float, progress: Tensor) -> Tensor:
    """() the greatest deviation of "learn_decay": `high`, then along half a cosine to 0.3 low + 0.7 high.

    Args:
        low: least deviation.
        high: greatest deviation at first.
        progress: () in [0, 1], how much of the run is over.
    """
    phase = ((progress - HOLD) / (1 - HOLD)).clamp(0, 1)
    return high - (1 - LEFT) * (high - low) * (1 - torch.cos(math.pi * phase)) / 2


class ReinFlowActor(FlowChainActor):
    r"""Euler's steps along a flow, with learned noise in each: the noise network goes when the policy is deployed.

    .. math::
        \mu_k = clip(x_k + v(x_k, k / K, s) / K), \quad
        \log \sigma_k = \log \sigma_{min} + \log(\sigma_{max} / \sigma_{min}) (1 + \tanh h_k) / 2

    h is an MLP of tanh units of the velocity network's embedding of the time, which gets no gradient from here, and of
    its features of the observation, which do. So deviations lie between the bounds on a geometric scale.
    """

    kind = "reinflow"
    ceiling: Tensor
    """() greatest deviation at present; a rule that writes `decayed(...)` there makes it shrink."""

    def __init__(
        self,
        network: VelocityNetwork,
        action_dim: int,
        steps: int = 4,
        *,
        noise_limit: float | None = 3.0,
        clip_last: bool = True,
        clip_each: bool = True,
        low: float = 0.08,
        high: float = 0.16,
        noise: str = "learn",
        explorer_hidden: Sequence[int] = (64, 64),
        timed: bool = True,
        trained: int | None = None,
    ) -> None:
        """Take the velocity network, and make the one that sets the noise.

        Args:
            network: velocity; one that clones data to begin with.
            action_dim: D.
            steps: K.
            noise_limit: as of `ChainActor`.
            clip_last: as of `ChainActor`.
            clip_each: clip means to [-1, 1].
            low: least deviation, and that of "const".
            high: greatest deviation, of noise that is learned.
            noise: "const" (`low` everywhere, no network), "learn" (fixed bounds), or "learn_decay" (`ceiling` follows
                `decayed`, which is for the algorithm to write there).
            explorer_hidden: widths of the noise network.
            timed: whether the noise depends on the step.
            trained: steps at the end whose noise is learned; those before have `low`. None: all.

        Raises:
            ConfigError: another kind of noise, or bounds or steps out of range.
        """
        super().__init__(network, action_dim, steps, clip_each, noise_limit, clip_last)
        if noise not in NOISES:
            raise ConfigError(f"noise is {noise!r}; {nearest(noise, NOISES)}")
        if not low > 0 or (noise != "const" and low > high):
            raise ConfigError(f"deviations are between {low} and {high}; needs 0 < low <= high")
        if trained is not None and not 1 <= trained <= steps:
            raise ConfigError(f"{trained} of {steps} steps are trained; needs 1 to {steps}, or None for all")
        self.low, self.high, self.noise, self.timed = low, high, noise, timed
        self.explorer_hidden, self.trained = tuple(explorer_hidden), trained
        self.register_buffer("ceiling", torch.tensor(float(high)))
        self.explorer: MLP | None = None
        if noise != "const":
            width = network.condition_width + (network.time_width if timed else 0)
            self.explorer = MLP(width, action_dim, explorer_hidden, activation="tanh")

    def transition(self, observations: Tensor, x: Tensor, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """As `ChainActor.transition`."""
        mean = x + self.velocity(observations, x, step) / self.steps
        return (mean.clamp(-1, 1) if self.clip_each else mean), self.log_std(observations, x, step)

    def log_std(self, observations: Tensor, x: Tensor, step: int | Tensor) -> Tensor:
        """Log deviation of the next place's numbers, (B, D), or () of noise that is not learned."""
        least = math.log(self.low)
        if self.explorer is None:
            return x.new_full((), least)
        features = self.network.condition(observations)
        if self.timed:
            embedded = self.network.time_features(self.time(x, step)).detach()
            features = torch.cat([embedded.expand(x.shape[0], -1), features], -1)
        share = (1 + torch.tanh(self.explorer(features))) / 2
        found = least + (self.ceiling.log() - least) * share
        if self.trained is None or self.trained == self.steps:
            return found
        learned = at([float(k >= self.steps - self.trained) for k in range(self.steps)], step, x)
        return torch.where(learned > 0, found, least)


class FlowSDEActor(FlowChainActor):
    r"""The stochastic differential equation that has a flow's marginals, in K steps; it learns no noise.

    With r = 1 - t, \delta = 1 / K, the data x + r v and the noise x - t v that the velocity points at, and \sigma = a
    \sqrt{r / (1 - r)}, where 1 - r counts as 1 / K in the first step:

    .. math::
        \mu = (x + r v) (t + \delta) + (x - t v) (r - \delta - \sigma^2 \delta / (2 r)), \quad
        \sigma_k = \sigma \sqrt{\delta}
    """

    kind = "flow_sde"

    def __init__(
        self,
        network: VelocityNetwork,
        action_dim: int,
        steps: int = 4,
        *,
        noise_limit: float | None = None,
        clip_last: bool = False,
        clip_each: bool = False,
        amount: float = 0.5,
    ) -> None:
        """Take the velocity network.

        Args:
            network: velocity.
            action_dim: D.
            steps: K, at least 2: of a single step the noise would be none.
            noise_limit: as of `ChainActor`.
            clip_last: as of `ChainActor`.
            clip_each: clip means to [-1, 1].
            amount: a.
        """
        super().__init__(network, action_dim, steps, clip_each, noise_limit, clip_last)
        if steps < 2 or not amount > 0:
            raise ConfigError(f"{steps} steps with noise {amount}; needs at least 2 steps, and a positive amount")
        self.amount, delta = amount, 1 / steps
        self._data, self._noise, self._log_std = [], [], []
        for time in times(steps):
            rest = 1 - time
            sigma = amount * math.sqrt(rest / (time if time > 0 else delta))
            self._data.append(time + delta)
            self._noise.append(rest - delta - sigma**2 * delta / (2 * rest))
            self._log_std.append(math.log(sigma) + 0.5 * math.log(delta))

    def transition(self, observations: Tensor, x: Tensor, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """As `ChainActor.transition`."""
        velocity, time = self.velocity(observations, x, step), at(times(self.steps), step, x)
        data, noise = x + (1 - time) * velocity, x - time * velocity
        mean = at(self._data, step, x) * data + at(self._noise, step, x) * noise
        return (mean.clamp(-1, 1) if self.clip_each else mean), at(self._log_std, step, x)


class ConsistencyActor(FlowChainActor):
    r"""A jump to the data from each place, and back to the next time with fresh noise: a consistency model's sampler.

    .. math:: f = clip(x_k + (1 - t_k) u(x_k, t_k)), \quad \mu_k = t_{k+1} f, \quad \sigma_k = max(1 - t_{k+1}, floor)

    u is the mean velocity over all that is left of the path: of networks that read the step's size (shortcut models,
    MeanFlow), or of any whose paths are straight. The paper's last step has no noise and so no density; here it has
    the floor's while it is trained. What acts has no floor.
    """

    kind = "consistency"

    def __init__(
        self,
        network: VelocityNetwork,
        action_dim: int,
        steps: int = 4,
        *,
        noise_limit: float | None = None,
        clip_last: bool = False,
        clip_each: bool = True,
        floor: float = 0.1,
    ) -> None:
        """Take the network; `floor` is the least deviation of a step, and `clip_each` clips f to [-1, 1]."""
        super().__init__(network, action_dim, steps, clip_each, noise_limit, clip_last)
        if not floor > 0:
            raise ConfigError(f"floor is {floor}, must be positive: the last step would have no density")
        self.floor = floor

    def jump(
        self, observations: Tensor, x: Tensor, step: int | Tensor, network: VelocityNetwork | None = None
    ) -> Tensor:
        """(B, D) f: the data that places after `step` steps lead to, by this head's network or another."""
        time = self.time(x, step)
        there = x + (1 - time).unsqueeze(-1) * (network or self.network)(observations, x, time, 1 - time)
        return there.clamp(-1, 1) if self.clip_each else there

    def transition(self, observations: Tensor, x: Tensor, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """As `ChainActor.transition`."""
        after = [(k + 1) / self.steps for k in range(self.steps)]
        log_std = [math.log(max(1 - time, self.floor)) for time in after]
        return at(after, step, x) * self.jump(observations, x, step), at(log_std, step, x)

    @property
    def noise_dim(self) -> int:
        """K D: where it begins, and what each step but the last adds."""
        return self.steps * self.action_dim

    def deployed(self) -> Actor:
        """Itself."""
        return self

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, D) of (B, K D) standard normal noise: the sampler without a floor, whose last step is a jump."""
        if noise is None:
            raise ConfigError("a consistency policy has no action without noise; give (B, noise_dim) normal numbers")
        return self.carried(self.network, observations, noise)

    def carried(self, network: VelocityNetwork, observations: Tensor, noise: Tensor) -> Tensor:
        """As `FlowChainActor.carried`."""
        x, *draws = noise.split(self.action_dim, -1)
        for step, draw in enumerate(draws):
            after = (step + 1) / self.steps
            x = after * self.jump(observations, x, step, network) + (1 - after) * draw
        return self.jump(observations, x, self.steps - 1, network).clamp(-1, 1)
