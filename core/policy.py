"""`Policy`: what leaves the building. Normaliser, network and action scaling in one module."""

from __future__ import annotations

import copy
import importlib
import math
import os
import pathlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core import checkpoint
from surefoot.core.actors import ACTORS, Actor, CategoricalActor
from surefoot.core.errors import CheckpointError, ConfigError, EnvironmentMismatchError
from surefoot.core.files import read_json, write_json
from surefoot.core.normalizer import Normalizer
from surefoot.core.random import generator
from surefoot.core.received import FORMAT, load_checked

PART = 1024
"""Rows that a policy which always samples works on at once: its networks see each row many times."""
_HOMES = {
    "diffusion": "surefoot.core.diffusion",
    "perturbed": "surefoot.core.vae",
    "decision_transformer": "surefoot.core.transformer",
}
"""Kind of actor -> module that defines it, of those that are not in `core.actors`."""


class Policy(nn.Module):
    """Maps observations to actions, both in the environment's units, on any device."""

    action_low: Tensor
    action_high: Tensor

    def __init__(self, actor: Actor, normalizer: Normalizer, action_low: Tensor, action_high: Tensor) -> None:
        """Take the parts as they are; `Policy.of` copies them."""
        super().__init__()
        self.actor = actor
        self.normalizer = normalizer
        self.register_buffer("action_low", action_low)
        self.register_buffer("action_high", action_high)
        self.reset()

    @classmethod
    def of(cls, actor: Actor, normalizer: Normalizer, action_low: Tensor, action_high: Tensor) -> Policy:
        """A frozen float32 copy on the CPU."""
        fixed = Normalizer(normalizer.mean.shape[0], normalizer.limit)  # running statistics stop here
        fixed.load_state_dict({"mean": normalizer.mean, "scale": normalizer.scale})
        policy = _class_for(actor, cls)(*copy.deepcopy((actor, fixed, action_low, action_high)))
        for parameter in policy.parameters():
            parameter.data = parameter.data.clone()  # not a view of a Learner's storage
        return policy.float().cpu().requires_grad_(False)

    @property
    def observation_dim(self) -> int:
        """Width of an observation."""
        return int(self.normalizer.mean.shape[0])

    @property
    def action_dim(self) -> int:
        """Width of an action, or the number of choices."""
        return int(self.action_low.shape[0])

    @property
    def discrete(self) -> bool:
        """Whether it gives the number of a choice instead of a vector."""
        return isinstance(self.actor, CategoricalActor)

    @property
    def always_samples(self) -> bool:
        """Whether it has no action without noise; `act` draws it then."""
        return self.actor.always_samples

    @property
    def noise_dim(self) -> int:
        """Z: standard normal numbers per row that a sample reads; 0 of a deterministic policy."""
        return self.actor.noise_dim

    def forward(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions for (B, O) observations; (B, Z) standard normal `noise` makes them samples.

        A discrete policy gives (B,) int64 numbers of choices, 0 to A - 1.
        """
        action = self.actor.act(self.normalizer(observations), noise)
        if self.discrete:
            return action.argmax(-1)
        action = action.clamp(-1, 1)
        middle, half = (self.action_high + self.action_low) / 2, (self.action_high - self.action_low) / 2
        return middle + half * action

    @torch.no_grad()
    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """`forward` without gradient: for batches. A policy that always samples draws the noise that it isn't given."""
        if not self.always_samples:
            return self(observations, noise)  # type: ignore[no-any-return]
        if noise is None:
            source = generator(self._seed, "policy", self._calls)
            drawn = source.standard_normal((len(observations), self.noise_dim), dtype=np.float32)
            noise = torch.from_numpy(drawn).to(observations.device)
            self._calls += 1
        parts = zip(observations.split(PART), noise.split(PART), strict=True)
        return torch.cat([self(rows, numbers) for rows, numbers in parts])

    def reset(self, seed: int = 0) -> None:
        """Begin an episode, or a batch of them, with the noise of this seed; nothing else is kept between steps.

        Only a policy that always samples has noise of its own: `act` numbers its calls from here on.
        """
        self._seed, self._calls = seed, 0

    def select_action(self, observation: np.ndarray) -> np.ndarray:
        """One action (A,) float32, or () int64 of a discrete policy, for one observation (O,): for a control loop.

        Raises:
            EnvironmentMismatchError: an observation of another shape, or one that is not finite.
        """
        observation = np.asarray(observation, dtype=np.float32)
        if observation.shape != (self.observation_dim,):
            raise EnvironmentMismatchError(
                f"observation has shape {observation.shape}; this policy was trained on ({self.observation_dim},)"
            )
        if not np.isfinite(observation).all():
            index = int(np.flatnonzero(~np.isfinite(observation))[0])
            raise EnvironmentMismatchError(f"observation[{index}] is {observation[index]}; check that sensor")
        return self.act(torch.from_numpy(observation).unsqueeze(0)).squeeze(0).numpy()

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
        }
        if self.normalizer.limit != math.inf:
            value["observation_limit"] = self.normalizer.limit
        return value

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write PATH.safetensors and PATH.json (PATH may carry either ending).

        Raises:
            SurefootError: the disk is full or the folder can't be written.
        """
        stem = _stem(path)
        checkpoint.save(_with(stem, ".safetensors"), self.state_dict(), {"kind": "policy", **self.description()})
        write_json(_with(stem, ".json"), self.description())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read what `save` wrote.

        Raises:
            CheckpointError: a file is missing, damaged, of another version, or not what `core.received` asks for.
        """
        stem = _stem(path)
        tensors, meta = checkpoint.load(_with(stem, ".safetensors"), kind="policy")
        described = read_json(_with(stem, ".json"))
        if described != {key: value for key, value in meta.items() if key != "kind"}:
            raise CheckpointError(f"{stem}.json does not describe {stem}.safetensors; restore the pair from a copy")

        def build() -> Policy:
            actor = _actor_class(meta["actor"]).from_description(meta["observation_dim"], meta["action_dim"], meta)
            low, high = (torch.tensor(meta[name], dtype=torch.float32) for name in ("action_low", "action_high"))
            normalizer = Normalizer(meta["observation_dim"], meta.get("observation_limit", math.inf))
            return _class_for(actor, cls)(actor, normalizer, low, high)

        try:
            policy = load_checked(_with(stem, ".safetensors"), tensors, meta, build)
        except (KeyError, TypeError, ValueError, RuntimeError, ConfigError) as error:
            raise CheckpointError(f"{stem}.safetensors: tensors and description disagree ({error})") from error
        return policy.requires_grad_(False)

    def example(self, rows: int = 2) -> dict[str, Tensor]:
        """Inputs of `forward` by name, for exporters."""
        return {"observations": torch.zeros(rows, self.observation_dim)}

    def export(self, path: str | os.PathLike[str], *, sampling: bool = False) -> None:
        """Write the policy as ONNX (.onnx) or as a `torch.export` program (.pt2), by the path's ending.

        Inputs: `observations` (batch, O) float32 and, for a sampling policy, `noise` (batch, Z) standard normal: with
        `sampling`, and always where the policy always samples.
        Output: `actions` (batch, A) in the environment's units. The batch size is free. Neither file needs
        surefoot to run.

        Raises:
            ExportError: another ending, or the exporter failed.
            MissingExtraError: the ONNX packages are not installed.
        """
        from surefoot.core.export import export

        export(self, path, sampling=sampling)


def _actor_class(kind: str) -> type[Actor]:
    """The head of this kind; heads that few policies have are imported when one is read."""
    if kind in _HOMES and kind not in ACTORS:
        importlib.import_module(_HOMES[kind])
    if kind not in ACTORS:
        known = ", ".join(sorted({*ACTORS, *_HOMES}))
        raise ConfigError(f"no actor of kind {kind!r} is known (known: {known}); import the module that defines it")
    return ACTORS[kind]


def _class_for(actor: Actor, asked: type[Policy]) -> type[Policy]:
    """The class of policy that a head needs: one that keeps the steps of the episode where it reads them."""
    if not getattr(actor, "remembers", False):
        return asked
    from surefoot.core.episode_policy import EpisodePolicy

    return asked if issubclass(asked, EpisodePolicy) else EpisodePolicy


def _stem(path: str | os.PathLike[str]) -> pathlib.Path:
    path = pathlib.Path(path)
    return path.with_suffix("") if path.suffix in {".safetensors", ".json"} else path


def _with(stem: pathlib.Path, ending: str) -> pathlib.Path:
    return stem.parent / (stem.name + ending)
