"""`AttributePlanner`: a policy head that draws plans by diffusion and acts by the one with the attributes asked for.

Source: Dong et al., "AlignDiff: Aligning Diverse Human Preferences via Behavior-Customisable Diffusion Model" (ICLR
2024); Ho and Salimans, "Classifier-Free Diffusion Guidance".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from surefoot.core.actors.actor import OptionsActor
from surefoot.core.actors.diffusion import Schedule, implicit, implicit_steps
from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.attributes import AttributeModel
from surefoot.core.nn.noise_networks import NoiseNetwork, PlainNoise
from surefoot.core.nn.noise_transformer import TransformerNoise

MODEL: dict[str, Any] = {"horizon": 16, "attribute_width": 64, "attribute_layers": 1, "attribute_heads": 4,
                         "attribute_members": 3, "network": "mlp", "hidden": (256, 256, 256), "width": 128,
                         "layers": 4, "heads": 4}  # fmt: skip
"""Options of the networks."""
SEARCH: dict[str, Any] = {"sampler_steps": 5, "guidance": 1.5, "candidates": 16}
"""Options of the sampler."""


class AttributePlanner(OptionsActor):
    r"""Plans of an action and the states after it, drawn by guided diffusion; the nearest to what is asked for acts.

    .. math:: \epsilon = w\, \epsilon_\theta(x, s, v, \mu) + (1 - w)\, \epsilon_\theta(x, s, 0, 0)

    with the strengths v, of which :math:`\mu` says which are asked for. Of N plans from the present state that one acts
    whose strengths, by the attribute model, are nearest to those asked for, among these; its first action is carried
    out. `wanted` (m,) strengths in [0, 1], and `asked` (m,) of 0 and 1, may be written anew at any time.
    """

    kind = "attribute_planner"
    defaults = MODEL | SEARCH
    always_samples = True
    wanted: Tensor
    asked: Tensor
    strength_low: Tensor
    strength_high: Tensor
    state_low: Tensor
    state_high: Tensor

    def __init__(
        self,
        network: NoiseNetwork,
        attributes: AttributeModel,
        schedule: Schedule,
        action_dim: int,
        bounds: Mapping[str, Tensor],
        wanted: Tensor,
        options: Mapping[str, Any],
    ) -> None:
        """Take the parts as they are.

        Args:
            network: predicts noise in plans, given state, strengths and what is asked for.
            attributes: scores of plans.
            schedule: of T steps.
            action_dim: A.
            bounds: `strength_low` and `strength_high` (m,), scores that strengths 0 and 1 stand for, `state_low` and
                `state_high` (O,), what -1 and 1 stand for in a plan.
            wanted: (m,) strengths in [0, 1]; a negative one is not asked for.
            options: those of `MODEL` and `SEARCH`.

        Raises:
            ConfigError: no candidate, or more steps than the schedule has.
        """
        super().__init__()
        self.options = {name: options.get(name, default) for name, default in (MODEL | SEARCH).items()}
        self.options |= {"alphas": schedule.alphas, "attributes": len(wanted)}
        implicit_steps(schedule.steps, self.options["sampler_steps"])
        if self.options["candidates"] < 1:
            raise ConfigError(f"{self.options['candidates']} candidates: at least 1 is drawn")
        self.network, self.attributes, self.schedule, self.action_dim = network, attributes, schedule, action_dim
        for name in ("strength_low", "strength_high", "state_low", "state_high"):
            self.register_buffer(name, bounds[name])
        self.register_buffer("wanted", wanted.clamp(min=0))
        self.register_buffer("asked", (wanted >= 0).to(wanted.dtype))

    @property
    def plan_dim(self) -> int:
        """Numbers of a plan: of an action and H - 1 states."""
        return int(self.action_dim + (self.options["horizon"] - 1) * len(self.state_low))

    @property
    def noise_dim(self) -> int:
        """Where each candidate begins."""
        return int(self.options["candidates"]) * self.plan_dim

    def strengths(self, windows: Tensor) -> Tensor:
        """(B, m) of (B, H, O) normalised states: 0 and 1 are the least and the most of the data."""
        return strengths(self.attributes, windows, self.strength_low, self.strength_high)

    def plans(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(B, A) actions and (B, H, O) states, the present one first, of (B, D) noise."""
        asked = self.asked.expand(observations.shape[0], -1)  # `len` would fix the rows of exported files
        given = torch.cat([observations, self.wanted * asked, asked], -1)
        free = torch.cat([observations, 0 * asked, 0 * asked], -1)
        weight = self.options["guidance"]

        def predict(x: Tensor, step: int) -> Tensor:
            found = self.network(x.repeat(2, 1), torch.cat([given, free]), torch.full_like(x[:1, 0], step))
            aimed, plain = found.unflatten(0, (2, -1)).unbind()
            return weight * aimed + (1 - weight) * plain

        drawn = implicit(predict, noise.unsqueeze(-2), self.schedule, self.options["sampler_steps"])
        ahead = drawn[:, self.action_dim :].unflatten(-1, (self.options["horizon"] - 1, -1))
        states = self.state_low + (ahead + 1) / 2 * (self.state_high - self.state_low)
        return drawn[:, : self.action_dim], torch.cat([observations.unsqueeze(1), states], 1)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) of (B, O) observations and (B, `noise_dim`) standard normal noise, which it can't do without."""
        if noise is None:
            raise ConfigError("plans are drawn from noise: give (B, noise_dim) standard normal numbers")
        count = self.options["candidates"]
        seen = observations.unsqueeze(1).expand(-1, count, -1).flatten(0, 1)
        actions, states = self.plans(seen, noise.unflatten(-1, (count, -1)).flatten(0, 1))
        away = (self.asked * (self.strengths(states) - self.wanted).square()).sum(-1)
        place = away.unflatten(0, (-1, count)).argmin(-1).reshape(-1, 1, 1).expand(-1, 1, self.action_dim)
        return actions.unflatten(0, (-1, count)).gather(1, place).squeeze(1)

    @classmethod
    def built(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `OptionsActor.built`; what is asked for, and the bounds, are among the weights."""
        count, zeros = options["attributes"], torch.zeros
        bounds = {"strength_low": zeros(count), "strength_high": zeros(count)}
        bounds |= {"state_low": zeros(observation_dim), "state_high": zeros(observation_dim)}
        network, attributes = networks(observation_dim, action_dim, count, options)
        schedule = Schedule(options["alphas"])
        return cls(network, attributes, schedule, action_dim, bounds, zeros(count), options)


def strengths(model: AttributeModel, windows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(B, m) mean scores of a model's members, as shares of the way from (m,) `low` to `high`; not cut at the ends."""
    return (model(windows).mean(0) - low) / (high - low).clamp(min=1e-6)


def networks(
    observation_dim: int, action_dim: int, attributes: int, options: Mapping[str, Any]
) -> tuple[NoiseNetwork, AttributeModel]:
    """Noise network and attribute model of the sizes of `MODEL`."""
    o = MODEL | dict(options)
    plan, known = action_dim + (o["horizon"] - 1) * observation_dim, observation_dim + 2 * attributes
    noise: NoiseNetwork
    if o["network"] == "transformer":
        noise = TransformerNoise(known, plan, o["horizon"], action_dim, o["width"], o["layers"], o["heads"])
    else:
        noise = PlainNoise(known, plan, tuple(o["hidden"]))
    sizes = (o[f"attribute_{name}"] for name in ("width", "layers", "heads", "members"))
    return noise, AttributeModel(observation_dim, o["horizon"], attributes, *sizes)
