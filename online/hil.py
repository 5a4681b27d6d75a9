"""HIL: RLPD with a person who shows and corrects, two buffers, and a gripper that is a choice (HIL-SERL)."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.choice_actor import ChoiceActor, choice_of, chosen_action
from surefoot.core.actors.greedy_actor import GreedyActor, highest
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Requires
from surefoot.core.losses.value_learning import td_target
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.online.loops.corrected import Corrected
from surefoot.online.loops.replay import Replay
from surefoot.online.rlpd import RLPD, RLPDConfig

INTERVENED, PENALTIES = "intervened", "penalties"


@dataclasses.dataclass(frozen=True)
class HILConfig(RLPDConfig):
    """Settings of HIL; the defaults are those of rail-berkeley/hil-serl, where they differ from RLPD's."""

    replay_capacity: int = 200_000
    corrections: int = option(
        100_000, "steps in which a person acted that are kept apart too, rounded down as replay_capacity", range=">= 1"
    )
    initial_steps: int = 100
    initial_actions: str = option(
        "policy",
        "first actions: policy, since a robot should not begin with actions drawn from its whole range, or random",
    )
    discount: float = 0.97
    critics: int = 2
    subset: float = 2
    critic_steps: int = 2
    entropy_backup: bool = False
    temperature: float = 0.01
    log_std_range: tuple[float, float] = option(
        (-11.5, 1.6), "bounds of the log standard deviation; these are deviations of 1e-5 to 5"
    )
    layer_norm_actor: bool = True
    choices: int = option(
        0, "K that the last action is among, as 3: close, stay, open; 0: it is a number as the others"
    )
    choice_learning_rate: float = option(3e-4, "learning rate of the values of choices", range=">= 0")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        require(self.choices == 0 or 2 <= self.choices <= 255, "hil", "choices", self.choices, "0, or from 2 to 255")


class HIL(RLPD):
    r"""HIL-SERL of Luo, Xu, Wu and Levine, "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop
    Reinforcement Learning" (2024): RLPD while a person watches and takes over.

    Where the environment says that a person acted, his action is what is stored. The step goes to the replay buffer as
    any other, and to a second buffer, with the demonstrations. Half of each batch (`offline_fraction`) is drawn from
    each; as long as there are neither demonstrations nor corrections, all of it comes from the replay buffer. Of a
    dataset that says in which steps a person acted (`extras/intervened`) those alone are demonstrations.

    With `choices` = K the last action is one of K evenly spaced numbers, a gripper's commands, whose values are learned
    as double DQN's (van Hasselt et al., 2016); actor and critics know the other actions alone:

    .. math::
        y_g &= r + p + \gamma (1 - d)\, \hat Q_g(s', \arg\max_k Q_g(s', k)) \\
        L_g &= E\, (Q_g(s, k) - y_g)^2

    where p is a penalty that the environment may give on a command, `info["grasp_penalty"]` or
    `info["discrete_penalty"]`. The policy takes the choice of the highest value.
    """

    name = "hil"
    Config = HILConfig
    requires = Requires(data="optional")
    required_columns = (*RLPD.required_columns, PENALTIES)
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "hil-serl": {},
        "rlpd": {"critics": 10, "critic_steps": 20, "discount": 0.99, "temperature": 1.0, "entropy_backup": True},
    }
    config: HILConfig

    @property
    def corrections(self) -> int:  # type: ignore[override]
        """Steps of people that are kept apart: none, where no part of a batch comes from there."""
        return self.config.corrections if self.config.offline_fraction > 0 else 0

    @property
    def drawn_dim(self) -> int:
        """Without the choice."""
        return self.spec.action_dim - (self.config.choices > 0)

    def build(self) -> None:
        """RLPD's networks, and the values of choices with their target."""
        c = self.config
        if self.drawn_dim < 1:
            raise ConfigError(f"hil.choices={c.choices}: there is one action; with choices it is beside one or more")
        super().build()
        if c.choices:
            self.choice = GreedyActor(self.features, c.choices, c.hidden, c.initialization, layer_norm=True)
            self.target_choice = copy.deepcopy(self.choice).requires_grad_(False)

    def notes(self, dataset: Dataset) -> list[str]:
        """How many rows of a dataset are demonstrations."""
        rows = people(dataset)
        if rows is None:
            return []
        return [
            f"{dataset.name}: a person acted in {int(rows.sum()):,} of {len(dataset):,} rows; these are demonstrations"
        ]

    def prepare(self, dataset: Dataset) -> Dataset:
        """Rows of people, their actions scaled; penalties are 0 where the data have none."""
        rows = people(dataset)
        if rows is not None:
            dataset = dataset.replace(valid=dataset.valid & rows)
        if PENALTIES not in dataset.extras:
            none = np.zeros(len(dataset), np.float32)
            dataset = dataset.replace(extras={**dataset.extras, PENALTIES: none})
        return super().prepare(dataset)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """What people did and what the agent met, both in each batch."""
        if stores.corrections is None:
            return super().sources(stores)
        share = self.config.offline_fraction
        return {MAIN: Corrected(stores.data, stores.corrections, Replay(stores.replay), share)}

    def annotate(self, batch: Batch) -> Batch:
        """The choice apart from the other actions."""
        if not self.config.choices:
            return batch
        free, last = batch["actions"][..., :-1], batch["actions"][..., -1]
        pairs = torch.cat([batch["observations"], free], -1)
        return {**batch, "actions": free, "observation_actions": pairs, "choices": choice_of(last, self.config.choices)}

    def choice_targets(self, batch: Batch) -> Tensor:
        """(B,) reward, penalty and the target's value of the choice that is the best now."""
        following = batch["next_observations"]
        values = (self.target_choice(following) * highest(self.choice(following))).sum(-1)
        return td_target(batch["rewards"] + batch[PENALTIES], batch["terminations"], values, self.config.discount)

    def choice_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance of the values of the choices that were made to their targets."""
        q = (self.choice(batch["observations"]) * batch["choices"]).sum(-1)
        return (q - self.choice_targets(batch)).square().mean(), {"choice_q": q}

    def updates(self) -> list[Update | Rule]:
        """RLPD's; the choice's values learn as often as the critics, from the same rows."""
        c, own = self.config, super().updates()
        if not c.choices:
            return own
        choice = Update(
            self.choice_loss,
            ("choice",),
            Adam(c.choice_learning_rate),
            repeat=c.critic_steps,
            rows=self.batch_size,
            target_updates={"target_choice": ("choice", c.target_rate)},
        )
        return [own[0], choice, *own[1:]]

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) as `Agent.act`; the choice is the best one, with noise too."""
        if not self.config.choices:
            return super().act(observations, noise)
        free = self.actor.act(observations, None if noise is None else noise[..., : self.drawn_dim])
        return torch.cat([free, chosen_action(highest(self.choice(observations)))], -1)

    def policy(self) -> Policy:
        """As `Agent.policy`."""
        if not self.config.choices:
            return super().policy()
        return self.policy_of(ChoiceActor(self.actor, self.choice, self.config.choices))


def people(dataset: Dataset) -> np.ndarray[Any, Any] | None:
    """(N,) bool rows in which a person acted; None where the data do not say so of any."""
    rows = dataset.extras.get(INTERVENED)
    if rows is None or not np.asarray(rows).any():
        return None
    return np.asarray(rows).reshape(len(dataset)) != 0
