"""`Policy`: the deployable policy: a `PolicyModule` that is saved, loaded, exported, and quick with one observation."""

from __future__ import annotations

import functools
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.files import beside, stem_of, write_json
from surefoot.core.policy.policy_file import load_checked, read_pair
from surefoot.core.policy.policy_module import PolicyModule
from surefoot.core.policy.single_action import single_action

_PREPARING = threading.Lock()


class Policy(PolicyModule):
    """Maps observations to actions, both in the environment's units, on any device; leaves as a file."""

    _single: Callable[[Any], np.ndarray | None] | None
    _prepared: bool

    def reset(self, seed: int = 0, goal: Any = None, task: Any = None) -> None:
        """As `ControlLoop.reset`."""
        super().reset(seed, goal, task)
        self._single, self._prepared = None, False

    def select_action(self, observation: Any, mask: Any = None) -> np.ndarray:
        """As `ControlLoop.select_action`; plain networks and flows have a quicker way (`core.policy.single_action`).

        A policy that obeys a mask of actions takes it as `mask`, (A,) 1 where one is allowed, or as the array
        `action_mask` of a mapping.

        Weights that are changed in place count at once; a part that is replaced counts from the next `reset`.
        """
        if mask is not None:
            return super().select_action(self.with_mask(observation, mask))
        if not self._prepared:
            with _PREPARING:  # threads whose first calls meet share what one of them prepares
                if not self._prepared:
                    self._single, self._prepared = None if self._sampled else single_action(self), True
        if self._single is not None:
            action = self._single(observation)
            if action is not None:
                return action
        return super().select_action(observation)  # which also says what is wrong with an observation

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        self._prepared = False  # the tensors move
        return super()._apply(*arguments, **options)

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """As of any module."""
        self._prepared = False
        return super().load_state_dict(*arguments, **options)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: it prepares its own quick way."""
        memory = self._memory and {name: value.clone() for name, value in self._memory.items()}
        return {**self.__dict__, "_single": None, "_prepared": False, "_memory": memory}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write PATH.safetensors and PATH.json (PATH may carry either ending).

        Raises:
            SurefootError: the disk is full or the folder can't be written.
        """
        stem = stem_of(path)
        checkpoint.save(beside(stem, ".safetensors"), self.state_dict(), {"kind": "policy", **self.description()})
        write_json(beside(stem, ".json"), self.description())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote.

        Raises:
            CheckpointError: a file is missing, damaged, of another version, or not what `core.policy.policy_file` asks
            for.
        """
        stem = stem_of(path)
        file = beside(stem, ".safetensors")
        if not file.is_file() and not str(path).endswith(".safetensors"):
            words = f"{file}: there is no such file, and {path} is no run folder"
            if pathlib.Path(path).suffix in (".onnx", ".pt2", ".hpp"):
                words = f"{path}: is an exported policy, and acts without surefoot; give the run folder or .safetensors"
            raise CheckpointError(words)
        tensors, meta = read_pair(stem)
        try:
            policy = load_checked(file, tensors, meta, functools.partial(cls.from_description, meta))
        except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError, ConfigError) as error:
            raise CheckpointError(f"{stem}.safetensors: tensors and description disagree ({error})") from error
        return policy.requires_grad_(False)

    def export(self, path: str | os.PathLike[str], *, sampling: bool = False) -> None:
        """Write the policy as ONNX (.onnx), `torch.export` program (.pt2) or C++ header (.hpp), by the path's ending.

        A header (`core.policy.cpp`) holds plain networks only; what follows is of the other two.

        Inputs: `observations` (batch, O) float32, or each of several arrays under its key (batch, *shape); with
        `sampling`, and always where the policy always samples, `noise` (batch, Z) standard normal too.
        Output: `actions` (batch, A) in the environment's units. The batch size is free. Neither file needs surefoot.
        A policy with a memory has the further inputs `ended` (batch,) bool, True at the first step of an episode; where
        it needs them, `rewards` and `costs` (batch,) of the step before; and `memory.NAME`, zeros at first. Its further
        outputs `memory.NAME.next` are the next step's inputs. A .pt2 file takes and gives the memory as one dict.

        Raises:
            ExportError: another ending, or the exporter failed.
            MissingExtraError: the ONNX packages are not installed.
        """
        from surefoot.core.policy.export import export

        export(self, path, sampling=sampling)
