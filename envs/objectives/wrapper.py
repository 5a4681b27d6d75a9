"""`ObjectiveEnv`: an environment whose reward is a machine's, and whose observations say in which state that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs.around import Around
from surefoot.envs.interface import Array, Numbers, as_numpy, final_observations, reset_mask, valid_rows
from surefoot.envs.objectives.labels import Labels, letters
from surefoot.envs.objectives.machine import Machine
from surefoot.envs.reward_terms import DECLARED
from surefoot.envs.side_by_side import name_of

SHAPINGS = ("none", "value", "negative_value")
FACTS = ("letter", "terminated", "reward", "cost")
"""What `info["objective"]` (N, 4) says of a step: its letter, and what the environment itself gave. With it, the step
can be written anew for any state of the machine."""
STATE = "objective_states"
"""Of `get_state`: the machine's."""


def potentials(machine: Machine, shaping: str, discount: float) -> Array | None:
    """(U,) potential of each state, 0 at an end; None without shaping.

    Args:
        machine: whose values are the potentials.
        shaping: of `SHAPINGS`: the values themselves, or, as in the code of Toro Icarte et al., less than 0.
        discount: of the algorithm.

    Raises:
        ConfigError: another word, or a discount of 1.
    """
    if shaping not in SHAPINGS:
        raise ConfigError(f"shaping is {shaping!r}, must be one of {', '.join(SHAPINGS)}", field="shaping")
    if shaping == "none":
        return None
    values = machine.values(discount)
    return values if shaping == "value" else -values


class ObjectiveEnv(Around):
    """A machine's reward, its state beside the observation, and its ends of episodes.

    Observations are the environment's, (N, O) numbers, and behind them the machine's state as a one-hot vector, which
    is zeros where the machine ended the episode. Rewards are the machine's, with the environment's own by the machine's
    weight. A machine with costs adds them to the environment's own, if it has any, and takes away its margins. In the
    info: `success` (N,), where the machine has states that accept; the reward's term `progress`, whose sum over an
    episode is how far the machine came, from 0 to 1, and which is no part of the reward; `objective` (N, 4), as `FACTS`
    has it.

    Args:
        env: contract environment of vectors that, where the machine ends episodes, can reset single rows.
        machine: what is wanted.
        labels: which propositions hold in a step.
        name: of the labelling function, for messages.

    Raises:
        EnvironmentMismatchError: other observations, or none of the end of an episode.
    """

    def __init__(self, env: Any, machine: Machine, labels: Labels, name: str = "labels") -> None:
        space = env.single_observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise EnvironmentMismatchError(
                f"{name_of(env)}: an objective's state is put behind observations that are one vector, and here they "
                f"are {space}: make one vector of them"
            )
        if getattr(env, "inserts_rows", False) or not getattr(env, "exact_final_obs", True):
            raise EnvironmentMismatchError(
                f"{name_of(env)} does not give an episode's last observation with the step that led to it, which an "
                "objective needs labels of: use a simulator that does"
            )
        low, high = (np.asarray(bound, np.float32) for bound in (space.low, space.high))
        zeros, ones = np.zeros(machine.live, np.float32), np.ones(machine.live, np.float32)
        wider = gymnasium.spaces.Box(np.concatenate([low, zeros]), np.concatenate([high, ones]), dtype=np.float32)
        super().__init__(env, wider)
        self.machine, self.labels, self.labels_name = machine, labels, name
        self.states = np.full(env.num_envs, machine.start)
        """(N,) int64: the machine's state in each row."""
        self._last: Array = np.zeros((env.num_envs, *space.shape), np.float32)
        self._progress = machine.progress()
        self._potentials: Array | None = None
        self._discount = 1.0

    def shape(self, shaping: str, discount: float) -> None:
        """Add discount * Phi(next state) - Phi(state) to rewards from now on, Phi as `potentials` has it."""
        self._potentials, self._discount = potentials(self.machine, shaping, discount), discount

    @property
    def potentials(self) -> Array | None:
        """(U,) what shaping goes by; None: there is none."""
        return self._potentials

    @property
    def discount(self) -> float:
        """Of shaping."""
        return self._discount

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment resets; the machine starts anew in these rows."""
        observations, info = self.env.reset(seed=seed, options=options)
        mask = reset_mask(options, self.num_envs)
        self.states[slice(None) if mask is None else mask] = self.machine.start
        return self._seen(observations), info

    def step(self, actions: Any) -> tuple[Any, Numbers, Numbers, Numbers, dict[str, Any]]:
        """One step of the environment and of the machine.

        Raises:
            ConfigError: the labelling function raises.
            EnvironmentMismatchError: it gives no labels, or the environment can't reset single rows.
        """
        machine, before = self.machine, self.states
        observations, rewards, terminations, truncations, info = self.env.step(actions)
        following = np.asarray(as_numpy(final_observations(observations, info)), np.float32)
        own, over, cut = (as_numpy(value) for value in (rewards, terminations, truncations))
        over, cut = over.astype(np.bool_), cut.astype(np.bool_)
        valid = as_numpy(valid_rows(info, self.num_envs)).astype(np.bool_)
        letter = letters(
            self.labels, machine.propositions, self._last, self._chosen(actions), following, self.labels_name
        )
        after = np.where(valid, machine.following[before, letter], before)
        done = over | (after >= machine.live) & valid
        given = np.where(valid, machine.rewards[before, letter] + machine.environment_reward * own, 0.0)
        if self._potentials is not None:
            ahead = np.where(done, 0.0, self._potentials[after])
            given += np.where(valid, self._discount * ahead - self._potentials[before], 0.0)
        info = _without(info, ("success", "is_success") if machine.accepting.any() else ())
        cost = as_numpy(info["cost"]) if "cost" in info else np.zeros(self.num_envs, np.float32)
        facts = np.stack([letter, over, own, cost], 1).astype(np.float32)
        if machine.has_costs:
            info = _without(info, ("cost", "margin"))
            info["cost"] = self.give((cost + np.where(valid, machine.costs[before, letter], 0)).astype(np.float32))
        if machine.accepting.any():
            info["success"] = self.give(machine.accepting[after])
        if self._progress is not None:
            terms = {name: value for name, value in dict(info.get(DECLARED) or {}).items()}
            terms["progress"] = self.give((self._progress[after] - self._progress[before]).astype(np.float32))
            info[DECLARED] = terms
        info["objective"] = self.give(facts)
        ended = done & ~(over | cut) & valid
        if ended.any():
            observations, info = self.begin_anew(ended, over | cut, following, info, "the objective")
        finished = done | cut
        self.states = np.where(finished, machine.start, after)
        if finished.any():
            info["final_obs"] = self.give(np.concatenate([following, machine.one_hot(after)], 1))
            info["_final_obs"] = finished
        seen = self._seen(observations)
        return seen, self.give(given.astype(np.float32)), self.give(done), self.give(cut), info

    def _seen(self, observations: Any) -> Numbers:
        """Observations with the machine's states behind them; they are what the next labels are of."""
        self._last = np.array(as_numpy(observations), np.float32)
        return self.give(np.concatenate([self._last, self.machine.one_hot(self.states)], 1))

    def _chosen(self, actions: Any) -> Array:
        """Actions as labelling functions get them."""
        discrete = isinstance(self.single_action_space, gymnasium.spaces.Discrete)
        return np.asarray(as_numpy(actions), np.int64 if discrete else np.float32)

    def __getattr__(self, name: str) -> Any:
        """As of `Around`; the state of an environment that can be saved has the machine's too."""
        if name == "get_state":
            inner = super().__getattr__(name)
            return lambda: {**inner(), STATE: self.states.copy(), "objective_last": self._last.copy()}
        if name == "set_state":
            inner = super().__getattr__(name)
            return lambda state: self._set(inner, state)
        return super().__getattr__(name)

    def _set(self, inner: Any, state: Mapping[str, Any]) -> None:
        states, last = (np.array(state[name]) for name in (STATE, "objective_last"))
        if states.shape != (self.num_envs,) or not ((states >= 0) & (states < self.machine.live)).all():
            raise EnvironmentMismatchError("the saved states of the objective are of another machine, or of other rows")
        inner({name: value for name, value in state.items() if name not in (STATE, "objective_last")})
        self.states, self._last = states.astype(np.int64), last.astype(np.float32)


def _without(info: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """An info without entries that the machine says otherwise, also of episodes that ended."""
    found = {key: value for key, value in info.items() if key.removeprefix("_") not in names}
    final = found.get("final_info")
    if isinstance(final, Mapping):
        found["final_info"] = {key: value for key, value in final.items() if key.removeprefix("_") not in names}
    return found
