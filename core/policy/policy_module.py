"""`PolicyModule`: normaliser, head and action scaling in one module: what a policy computes, without files."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.actors.actor import Actor, actor_class
from surefoot.core.actors.memory import DRAWS, TASK, Memory, in_parts, joined
from surefoot.core.actors.task_actor import TaskActor
from surefoot.core.base.actions import to_agent, to_bounds
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.random import drawn
from surefoot.core.base.scaling import scaled
from surefoot.core.base.spec import MASK, VECTOR, Array, arrays_from_json, arrays_to_json, in_words
from surefoot.core.nn.encoders import Encoder, by_key, on_vectors
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.control_loop import ControlLoop, as_array, check_width, refuse_untold

FORMAT = "surefoot-policy-1"
"""Version of the description."""
PICTURES = "mean_pictures"
"""Key of a description."""
PART = 1024
"""Rows that a policy which always samples works on at once: its networks see each row many times."""
FARTHEST = 1e18
"""Deviations from the data beyond which a discrete policy refuses an observation: its scores may overflow unseen."""
NOISE = "policy"
"""Purpose of the noise that a policy draws for itself."""
ONE_MORE = torch.tensor([0, 1])
"""Added to a memory's (1, 2) seed and number of calls."""


def policy_noise(rows: int, width: int, seed: int, call: int) -> Tensor:
    """(rows, width) standard normal noise of a policy's call, on the CPU, by the policy's seed and the call's number.

    Args:
        rows: that it acts on.
        width: numbers of a row.
        seed: of the policy.
        call: how many it has drawn for before.
    """
    return drawn([seed], NOISE, call, torch.device("cpu"), lambda source: source.standard_normal((rows, width)))[0]


class PolicyModule(ControlLoop, nn.Module):
    """Maps observations to actions, both in the environment's units, on any device.

    What its head remembers of an episode is an explicit memory (`core.actors.memory`): `begin`, then `act`,
    `observe_outcome`, `act`...
    """

    action_low: Tensor
    action_high: Tensor

    def __init__(
        self,
        actor: Actor,
        normalizer: Normalizer,
        action_low: Tensor,
        action_high: Tensor,
        encoder: Encoder | None = None,
    ) -> None:
        """Take the parts as they are; `of` copies them."""
        super().__init__()
        self.actor = actor
        self.normalizer = normalizer
        self.encoder = encoder
        self.names: dict[str, list[str]] = {}
        self.pictures: dict[str, list[Any]] = {}
        """Camera -> its mean picture in training (`core.policy.mean_pictures`), where it is known."""
        self._sampled = False
        self.register_buffer("action_low", action_low)
        self.register_buffer("action_high", action_high)
        self.reset()

    @classmethod
    def of(
        cls,
        actor: Actor,
        normalizer: Normalizer,
        action_low: Tensor,
        action_high: Tensor,
        encoder: Encoder | None = None,
    ) -> Self:
        """A frozen float32 copy on the CPU."""
        fixed = Normalizer(normalizer.mean.shape[0], normalizer.limit)  # in memory of its own
        fixed.load_state_dict({"mean": normalizer.mean, "scale": normalizer.scale})
        policy = cls(*copy.deepcopy((actor, fixed, action_low, action_high, encoder)))
        for parameter in policy.parameters():
            parameter.data = parameter.data.clone()  # not a view of a Learner's storage
        return policy.float().cpu().requires_grad_(False)

    def named(self, observations: Sequence[str] | None, actions: Sequence[str] | None) -> Self:
        """Itself, with a name for each number of its observations' vectors and of its actions, where there are so many.

        They change nothing that it does: files that it is saved to and exported to hold them.
        """
        sizes = (len(self.normalizer.mean), self.action_dim)
        for key, names, size in zip(("observation_names", "action_names"), (observations, actions), sizes, strict=True):
            if names is not None and len(names) == size:
                self.names[key] = list(names)
        return self

    def pictured(self, pictures: Mapping[str, list[Any]] | None) -> Self:
        """Itself, with the mean pictures of its cameras; as names, they change nothing that it does."""
        self.pictures = dict(pictures or {})
        return self

    @property
    def observation_dim(self) -> int:
        """Width of an observation, or of the features that the encoder makes of several arrays."""
        return int(self.normalizer.mean.shape[0]) if self.encoder is None else self.encoder.width

    @property
    def arrays(self) -> dict[str, Array]:
        """Key -> shape and dtype of an observation, as `Spec.observations`."""
        return {VECTOR: Array((self.observation_dim,))} if self.encoder is None else self.encoder.arrays

    def read(self, observations: Any) -> Tensor:
        """(B, F) what the head reads: normalised observations, or features of several arrays or of a lone one."""
        if self.encoder is None:
            return self.normalizer(observations)
        if not isinstance(observations, Mapping):
            observations = dict.fromkeys(self.encoder.arrays, observations)
        return self.encoder(on_vectors(self.normalizer, observations, self.encoder.vectors))

    @property
    def action_dim(self) -> int:
        """Width of an action, or the number of choices."""
        return int(self.action_low.shape[0])

    @property
    def discrete(self) -> bool:
        """Whether it gives the number of a choice instead of a vector."""
        return self.actor.discrete

    @property
    def always_samples(self) -> bool:
        """Whether `act` draws noise that it isn't given: it has no action without, or was made by `sampled`."""
        return self.actor.always_samples or self._sampled

    def sampled(self) -> Self:
        """A copy, or itself, that draws each action as in training; `reset(seed)` and `begin` say by what noise.

        A file that it is saved to holds the same policy as ever, which acts by the mean action.

        Raises:
            ConfigError: a deterministic policy, which has nothing to draw.
        """
        if self.noise_dim == 0:
            raise ConfigError("this policy is deterministic: it has no distribution that actions could be drawn from")
        drawing = self if self.always_samples else copy.deepcopy(self)
        drawing._sampled = True
        drawing.reset(drawing._seed)  # what it remembers has no noise counted
        return drawing

    @property
    def masked(self) -> bool:
        """Whether it chooses among allowed actions alone: the array `action_mask` of its observations says which."""
        return MASK in self.arrays

    @property
    def noise_dim(self) -> int:
        """Z: standard normal numbers per row that a sample reads; 0 of a deterministic policy."""
        return self.actor.noise_dim

    @property
    def needs_outcomes(self) -> bool:
        """Whether actions depend on rewards or costs, so that `observe_outcome` or `observe` must follow each."""
        return self.actor.needs_outcomes

    @property
    def has_memory(self) -> bool:
        """Whether actions depend on more than the present observation and noise."""
        return self.actor.has_memory

    def forward(self, observations: Any, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions for (B, O) observations at the first step of an episode; that is any step without a memory.

        (B, Z) standard normal `noise` makes them samples. A discrete policy gives (B,) int64 numbers of choices, 0 to
        A - 1. Of several arrays, `observations` is a mapping of them by key.
        """
        return self._in_units(self.actor.act(self.read(observations), noise))

    def step(self, observations: Any, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """Actions as of `forward`, but at any step of an episode, and the new memory; what exported files compute."""
        if not memory:
            return self.forward(observations, noise), memory
        chosen, memory = self.actor.step(self.read(observations), memory, noise)
        actions = self._in_units(chosen)
        return actions, self.executed(memory, actions)

    def _in_units(self, action: Tensor) -> Tensor:
        if self.discrete:
            return action.argmax(-1)
        scaled: Tensor = to_bounds(action, self.action_low, self.action_high)
        return scaled

    def executed(self, memory: Memory, actions: Tensor) -> Memory:
        """The memory once (B, A) actions are carried out: `act` says so of its own, a filter of those it gives."""
        if self.discrete:
            return self.actor.executed(memory, nn.functional.one_hot(actions, self.action_dim).float())
        return self.actor.executed(memory, to_agent(actions, self.action_low, self.action_high))

    def begin(self, rows: int, seed: int = 0) -> Memory:
        """The memory of `rows` rows at the first step of an episode: empty of a policy that needs none.

        Args:
            rows: how many.
            seed: in [0, 2**63), of the noise of a policy that always samples; its draws are counted in the memory.
        """
        memory = self.actor.begin(rows)
        if self.always_samples:
            memory = {**memory, DRAWS: torch.tensor([[seed, 0]]).repeat(rows, 1)}
        return memory

    def set_task(self, task: Any) -> None:
        """Take one (D,) task, as `task_of` of an agent gives it, in all episodes that are given none by `reset`.

        Raises:
            EnvironmentMismatchError: a task of another shape, not finite or 0, or of a policy that takes none.
        """
        value = self._checked_aim(self.begin(1), TASK, task)
        next(part for part in self.actor.modules() if isinstance(part, TaskActor)).fix(value)
        self.reset(self._seed)

    @torch.no_grad()
    def act(self, observations: Any, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """(B, A) actions for (B, O) observations, without gradient, and the new memory.

        Args:
            observations: in the environment's units; of several arrays a mapping, key -> (B, *shape).
            memory: of these rows, as `begin`, `act` or `observe_outcome` gave it. It is not changed.
            noise: (B, Z) standard normal, for samples. A policy that always samples draws what it isn't given.

        Raises:
            ConfigError: a memory of other rows.
            EnvironmentMismatchError: an action is not finite; the message names the row, and what to look at.
        """
        if self.encoder is not None:
            observations = by_key(observations, self.encoder.arrays)
        else:
            check_width(observations, self.observation_dim)
        rows = len(next(iter(observations.values())) if self.encoder is not None else observations)
        if any(len(value) != rows for value in memory.values()):
            sizes = {name: len(value) for name, value in memory.items()}
            raise ConfigError(f"{rows} observations were given with the memory of other rows: {sizes}")
        parts: list[tuple[Any, Memory, Tensor | None]] = [(observations, memory, noise)]
        if self.always_samples:
            if noise is None:
                noise, memory = self._drawn(rows, memory)
            parts = in_parts(observations, memory, noise.to(self.action_low.device), PART)
        found = [self.step(*part) for part in parts]
        actions, memory = found[0] if len(found) == 1 else joined(found)
        good = self.read(observations).abs() <= FARTHEST if self.discrete else actions.isfinite()
        if not bool(good.all()):
            refuse_untold(memory)
            raise self._not_finite(observations, int((~good).any(-1).nonzero()[0]))
        return actions, memory

    def _drawn(self, rows: int, memory: Memory) -> tuple[Tensor, Memory]:
        """(rows, Z) noise of this call, and the memory with one more counted."""
        if DRAWS not in memory:
            raise ConfigError("this policy draws noise, counted in the memory that begin() gives: pass that, or noise")
        draws = memory[DRAWS]
        seed, count = draws[0].tolist()
        return policy_noise(rows, self.noise_dim, seed, count), {**memory, DRAWS: draws + ONE_MORE}

    def _not_finite(self, observations: Any, row: int) -> EnvironmentMismatchError:
        if self.encoder is not None:
            return EnvironmentMismatchError(
                f"the action of row {row} is not finite; check the sensors of {in_words(self.arrays)}, or the policy's "
                "weights"
            )
        far = self.normalizer(observations[row]).abs().nan_to_num(nan=math.inf)
        index = int(far.argmax())
        return EnvironmentMismatchError(
            f"the action is not finite: observation[{index}] is {float(observations[row, index]):g} in row {row}, "
            f"{float(far[index]):g} deviations from the data; check that sensor, or the policy's weights"
        )

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """The memory after the actions' outcome: needed by policies with a memory, harmless to others.

        Args:
            memory: as `act` gave it. It is not changed.
            rewards: (B,) in the environment's units.
            costs: (B,), zeros where there is no constraint.
            ended: (B,) bool: those rows begin a new episode. A policy's own noise sequence continues.
        """
        return self.actor.observe_outcome(memory, rewards, costs, ended) if memory else memory

    def hear(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """Alias of `observe_outcome`, by its name up to 0.3; until version 0.5."""
        warnings.warn("Policy.hear is named observe_outcome now", DeprecationWarning, stacklevel=2)
        return self.observe_outcome(memory, rewards, costs, ended)

    def checked(self, observation: Any) -> Any:
        """As `ControlLoop.checked`; of several arrays each by its key, and a lone one as it is."""
        if self.encoder is None:
            return super().checked(observation)
        arrays = self.encoder.arrays
        if self.masked and (not isinstance(observation, Mapping) or MASK not in observation):
            raise EnvironmentMismatchError(
                "this policy obeys a mask of actions and was given none: select_action(observation, mask=mask) takes "
                f"it, (A,) 1 where an action is allowed, or the observation has it under {MASK!r}"
            )
        if not isinstance(observation, Mapping) and len(arrays) == 1:
            observation = dict.fromkeys(arrays, observation)
        if not isinstance(observation, Mapping) or set(observation) != set(arrays):
            found = sorted(observation) if isinstance(observation, Mapping) else type(observation).__name__
            raise EnvironmentMismatchError(f"the observation is {found}; this policy reads {in_words(arrays)}")
        ready = {}
        for key, array in arrays.items():
            value = as_array(observation[key])
            if value.dtype == np.bool_ and array.dtype == "uint8":
                value = value.view(np.uint8)
            if array.scaled is not None and value.dtype == np.uint8 and value.ndim == len(array.shape):
                value = scaled(value, array.image_size[1:])
            wrong = value.dtype != np.uint8 if array.dtype == "uint8" else value.dtype.kind not in "biuf"
            if value.shape != array.shape or wrong:
                raise EnvironmentMismatchError(
                    f"{key} is {value.dtype} of shape {value.shape}; this policy was trained on {array.dtype} of shape "
                    f"{array.shape}"
                )
            ready[key] = np.ascontiguousarray(value, array.dtype)
            if not np.isfinite(ready[key]).all():
                raise EnvironmentMismatchError(f"{key} is not finite; check that sensor")
        if self.masked and not ready[MASK].any():
            raise EnvironmentMismatchError(f"{MASK} allows no action: it is 1 where one is allowed, and 0 elsewhere")
        return ready

    def with_mask(self, observation: Any, mask: Any) -> dict[str, Any]:
        """An observation with its mask of actions, as `select_action` and `act` read it.

        Args:
            observation: a mapping of arrays, or the one array beside the mask; of one row or several.
            mask: (A,), or (N, A) of several rows: 1 where an action is allowed.

        Raises:
            EnvironmentMismatchError: the policy obeys no mask, or reads several arrays and was given one.
        """
        if not self.masked:
            raise EnvironmentMismatchError("this policy was trained without masks of actions: leave mask out")
        if isinstance(observation, Mapping):
            return {**observation, MASK: mask}
        others = [key for key in self.arrays if key != MASK]
        if len(others) > 1:
            raise EnvironmentMismatchError(
                f"the observation is one array, and this policy reads {in_words(self.arrays)}: give a mapping by key"
            )
        return {others[0]: observation, MASK: mask}

    def description(self) -> dict[str, Any]:
        """The architecture as JSON values: enough, with the tensors, to build the policy again."""
        value: dict[str, Any] = {
            "format": FORMAT,
            "actor": self.actor.kind,
            "observation_dim": self.observation_dim,
            "action_dim": self.action_dim,
            **self.actor.description(),
            "action_low": self.action_low.tolist(),
            "action_high": self.action_high.tolist(),
            **self.names,
            **({PICTURES: self.pictures} if self.pictures else {}),
        }
        if self.encoder is not None:
            value |= {"observations": arrays_to_json(self.encoder.arrays), **self.encoder.description()}
        if self.normalizer.limit != math.inf:
            value["observation_limit"] = self.normalizer.limit
        return value

    @classmethod
    def from_description(cls, meta: Mapping[str, Any]) -> Self:
        """A policy as `description` tells it, with weights of chance; errors are those of what is missing in it."""
        actor = actor_class(meta["actor"]).from_description(meta["observation_dim"], meta["action_dim"], meta)
        low, high = (torch.tensor(meta[name], dtype=torch.float32) for name in ("action_low", "action_high"))
        limit, width = meta.get("observation_limit", math.inf), meta["observation_dim"]
        names = (meta.get("observation_names"), meta.get("action_names"))
        if "observations" not in meta:
            return cls(actor, Normalizer(width, limit), low, high).named(*names)
        arrays = arrays_from_json(meta["observations"])
        encoder = Encoder.from_description(arrays, meta)
        width = sum(arrays[key].shape[0] for key in encoder.vectors)
        policy = cls(actor, Normalizer(width, limit), low, high, encoder).named(*names)
        return policy.pictured(meta.get(PICTURES))
