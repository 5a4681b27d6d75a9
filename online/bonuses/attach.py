"""How agents are given a bonus: its module, its updates, and where its rewards enter."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Rule, Update
from surefoot.core.engine.sources import Source, Stores
from surefoot.online.bonuses.bonus import Bonus
from surefoot.online.bonuses.counts import CountedReplay, Counts
from surefoot.online.bonuses.disagreement import Disagreement
from surefoot.online.bonuses.icm import ICM
from surefoot.online.bonuses.rnd import RND
from surefoot.online.bonuses.value_bonus import ValueBonus
from surefoot.online.loops.replay import Replay

BONUSES: dict[str, type[Bonus]] = {kind.kind: kind for kind in (RND, ICM, Disagreement, Counts, ValueBonus)}


def bonus_of(agent: Agent) -> Bonus | None:
    """The bonus that an agent's config asks for, to be its attribute `bonus`; None where it asks for none.

    Raises:
        ConfigError: of images or several arrays.
    """
    config: Any = agent.config
    kind = getattr(config, "bonus", None)
    if kind is None:
        return None
    if agent.encoder is not None:
        raise ConfigError(
            f"{agent.name}.bonus is {kind}, must be null with images or several arrays: it is of one vector"
        )
    return BONUSES[kind](agent.spec.observation_dim, agent.decision_dim, config, agent.spec.discrete)


def bonus_entries(agent: Any, on_block: bool = False) -> list[Update | Rule]:
    """What an agent with `bonus` does for it: its moments first, so that losses see those of their own rows.

    Args:
        agent: whose `bonus` may be None; agents of other losses need not have it.
        on_block: whether moments are taken in by block, in the order of time.
    """
    bonus: Bonus | None = getattr(agent, "bonus", None)
    if bonus is None:
        return []

    def bonus_moments(batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        return {f"bonus.{name}": value for name, value in agent.bonus.measured(batch).items()}, {}

    def bonus_loss(batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        found: tuple[Tensor, Metrics] = agent.bonus.loss(batch, noise)
        return found

    found: list[Update | Rule] = []
    if on_block:
        found.append(Rule(bonus_moments, ("bonus",), on="block", source="block"))
    elif bonus.scaled:
        found.append(Rule(bonus_moments, ("bonus",)))
    if bonus.learns:
        adam = Adam(bonus.config.bonus_learning_rate)
        found.append(Update(bonus_loss, ("bonus",), adam, noise=bonus.noise))
    return found


def with_bonus(agent: Any, batch: Batch) -> Batch:
    """A batch of replayed rows whose rewards have the bonus as it is now, weighted; as it is where there is none.

    So it is of the present networks, however old a row is. A time limit does not end what it adds up to, as it does
    not end the task's return; the task's own end does.
    """
    if getattr(agent, "bonus", None) is None:
        return batch
    if agent.bonus.by_choice:
        return batch
    return {**batch, "rewards": batch["rewards"] + agent.config.bonus_weight * agent.bonus.reward(batch).detach()}


def counting(agent: Any, stores: Stores, rows: Source) -> Source:
    """The source of an agent with `bonus`: one that counts visits, where the bonus is of counts."""
    if not isinstance(getattr(agent, "bonus", None), Counts):
        return rows
    return CountedReplay(rows, Replay(stores.replay), agent.config.bonus_cell)
