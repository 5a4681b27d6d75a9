"""The shape of MBPO: a model learned from real rows, imagined rows, and critics on a mixture of both, in one list.

Source: Janner, Fu, Zhang and Levine, "When to Trust Your Model: Model-Based Policy Optimization" (2019), with
rollouts of one step and one network for a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Metrics, Rule, Update
from surefoot.core.engine.sources import Batch, Source, Stores, joined
from surefoot.core.nn.networks import MLP
from surefoot.data.sources import Added
from surefoot.online.loops.replay import Replay
from surefoot.online.sac import SAC, SACConfig

REAL, IMAGINED = "real", "imagined"
Parts = dict[str, Batch]


@dataclasses.dataclass(frozen=True)
class MBPOConfig(SACConfig):
    """SAC's, and the model's."""

    real_rows: int = 16  # of each training step's batch
    imagined_rows: int = 48
    model_learning_rate: float = 3e-3
    imagine_every: int = 1  # training steps


class MBPO(SAC):
    """SAC whose losses read rows that its own model made, beside some real ones."""

    name = "test_mbpo"
    Config = MBPOConfig
    PRESETS = {}  # noqa: RUF012
    config: MBPOConfig

    def build(self) -> None:
        """SAC's networks, and the model: the change of the observation and the reward."""
        super().build()
        size = self.spec.observation_dim
        self.model = MLP(size + self.spec.action_dim, size + 1, (64, 64))

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Real rows, and those that `imagine` adds."""
        size = self.spec.observation_dim
        columns = {"observations": (size,), "actions": (self.spec.action_dim,), "rewards": (), "terminations": ()}
        imagined = Added(2_000, {**columns, "next_observations": (size,)}, IMAGINED)
        return {REAL: Replay(stores.replay, REAL), IMAGINED: imagined}

    def model_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error on real rows."""
        wanted = torch.cat([batch["next_observations"] - batch["observations"], batch["rewards"].unsqueeze(-1)], -1)
        error = (self.model(batch["observation_actions"]) - wanted).square().mean()
        return error, {"model_error": error}

    def imagine(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """One step of the model from real states, by the policy's own actions."""
        observations = batch["observations"]
        actions, _ = self.actor.draw(observations, noise["imagined_action"])
        change = self.model(torch.cat([observations, actions], -1))
        rows = {
            "observations": observations,
            "actions": actions,
            "rewards": change[:, -1],
            "terminations": torch.zeros_like(change[:, -1]),
            "next_observations": observations + change[:, :-1],
        }
        return {IMAGINED: rows}, {"imagined_reward": change[:, -1].mean()}  # type: ignore[dict-item]

    def critic_loss(self, parts: Parts, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:  # type: ignore[override]
        """SAC's on both kinds of rows."""
        loss, metrics = super().critic_loss(joined(parts), noise)
        return loss, {**metrics, "rows": torch.tensor(float(len(joined(parts)["rewards"])))}

    def updates(self) -> list[Update | Rule]:
        """The model, then rows by it, then SAC on them."""
        c, noise = self.config, Noise("normal", self.spec.action_dim)
        critic, actor, temperature = (entry for entry in super().updates() if isinstance(entry, Update))
        mine = {"rows": c.real_rows, "source": IMAGINED}
        return [
            Update(self.model_loss, ("model",), Adam(c.model_learning_rate), REAL, rows=64),
            Rule(self.imagine, source=REAL, rows=64, every=c.imagine_every, noise={"imagined_action": noise}),
            dataclasses.replace(critic, rows=c.real_rows, source=(REAL, IMAGINED)),
            dataclasses.replace(actor, **mine),
            dataclasses.replace(temperature, **mine),
        ]
