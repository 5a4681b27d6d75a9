"""Sums of a reward's terms over training episodes, kept where the rewards are: on a GPU or in numpy's memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.envs.interface import Array, as_numpy
from surefoot.envs.reward_terms import DECLARED, PREFIXES, STEM, SUMMED, reward_terms


class TermSums:
    """Mean sums over training episodes of each term, for each of S seeds of N environments.

    Episodes in which a sum is not finite are left out of that term's mean. Nothing is kept where there are no terms.
    """

    def __init__(self, seeds: int, num_envs: int, device: str | torch.device = "cpu") -> None:
        self.seeds, self.num_envs, self.device = seeds, num_envs, device
        self.names: tuple[str, ...] = ()
        self._running = torch.zeros(0, seeds, num_envs, dtype=torch.float64, device=device)
        self._ended = torch.zeros(2, 0, seeds, dtype=torch.float64, device=device)  # sums over episodes, and counts
        self._keys: Any = None  # of the last info, whose terms `_of_keys` names
        self._of_keys: dict[str, str] = {}
        self._summed: dict[str, Tensor] = {}  # name -> (2, S) likewise, of terms that the environment sums up

    def begin(self) -> None:
        """All rows begin an episode."""
        self._running.zero_()

    def add_step(self, info: Mapping[str, Any], ended: Any) -> None:
        """Take in one step: its info, and where (S * N,) an episode ended."""
        if SUMMED in info:
            self._add_summed(info[SUMMED], ended)
        terms = self._terms(info)
        if not terms and not self.names:
            return
        self._know(terms)
        if self._running.device.type == "cpu":
            self._add_here(terms, as_numpy(ended), info.get("valid"))
            return
        shape, valid = (self.seeds, self.num_envs), info.get("valid")
        there = torch.as_tensor(valid, device=self.device).view(shape).bool() if valid is not None else None
        for index, name in enumerate(self.names):
            if name in terms:
                value = torch.as_tensor(terms[name], device=self.device).view(shape).double()
                self._running[index] += value if there is None else torch.where(there, value, 0.0)
        over = torch.as_tensor(ended, device=self.device).view(shape).bool()
        self._end(over)

    def _terms(self, info: Mapping[str, Any]) -> Mapping[str, Any]:
        """The terms of a step's info; which keys those are is found once, where steps have the same keys."""
        rows = self.seeds * self.num_envs
        if info.keys() == self._keys and all(info[key].shape == (rows,) for key in self._of_keys.values()):
            return {name: info[key] for name, key in self._of_keys.items()}
        terms = reward_terms(info, rows)
        found = {name: f"{one}{name}" for name in terms for one in PREFIXES if info.get(f"{one}{name}") is terms[name]}
        self._keys = set(info) if len(found) == len(terms) and DECLARED not in info else None
        self._of_keys = found
        return terms

    def _add_here(self, terms: Mapping[str, Any], ended: Array, valid: Any) -> None:
        """The same on a CPU, where an operation of numpy takes a fifth of the time of torch's."""
        running = self._running.numpy().reshape(len(self.names), -1)
        there = None if valid is None else as_numpy(valid).astype(np.bool_)
        if there is not None and there.all():
            there = None
        for index, name in enumerate(self.names):
            if name in terms:
                value = as_numpy(terms[name])
                running[index] += value if there is None else np.where(there, value, 0.0)
        if ended.any():
            self._end(torch.from_numpy(ended).view(self.seeds, self.num_envs))

    def _end(self, over: Tensor) -> None:
        """Take in the sums of the (S, N) episodes that ended."""
        counted = over & self._running.isfinite()
        self._ended[0] += torch.where(counted, self._running, 0.0).sum(2)
        self._ended[1] += counted.sum(2)
        self._running.masked_fill_(over, 0.0)

    def _add_summed(self, means: Mapping[str, Any], ended: Any) -> None:
        over = torch.as_tensor(ended, device=self.device).view(self.seeds, self.num_envs).bool().sum(1).double()
        for name, mean in means.items():
            value = torch.as_tensor(mean, device=self.device).double()
            fine = value.isfinite()
            found = self._summed.setdefault(name, over.new_zeros(2, self.seeds))
            found += torch.stack([torch.where(fine, value, 0.0) * over, fine * over])

    def _know(self, terms: Mapping[str, Any]) -> None:
        """Make room for terms that were not there before."""
        new = [name for name in terms if name not in self.names]
        if new:
            self.names += tuple(new)
            running, ended = self._running, self._ended
            self._running = running.new_zeros(len(self.names), *running.shape[1:])
            self._ended = ended.new_zeros(2, len(self.names), self.seeds)
            self._running[: len(running)], self._ended[:, : len(running)] = running, ended

    def take(self) -> dict[str, list[float]]:
        """`reward/TERM` -> a mean per seed over the episodes that ended since the last call; NaN where none did."""
        sums, counts = self._ended.tolist()
        found = {name: (sums[index], counts[index]) for index, name in enumerate(self.names)}
        found |= {name: tuple(value.tolist()) for name, value in self._summed.items()}
        self._ended.zero_()
        for value in self._summed.values():
            value.zero_()
        return {
            f"{STEM}{name}": [one / count if count else math.nan for one, count in zip(*pair, strict=True)]
            for name, pair in found.items()
        }

    def state(self, position: int) -> dict[str, Tensor]:
        """The sums of one seed, copied; nothing where there are no terms."""
        found = {}
        for index, name in enumerate(self.names):
            found[f"{name}/running"] = self._running[index, position].clone()
            found[f"{name}/ended"] = self._ended[:, index, position].clone()
        return found | {f"{name}/summed": value[:, position].clone() for name, value in self._summed.items()}

    def restore(self, position: int, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` gave."""
        names = [key.removesuffix("/running") for key in state if key.endswith("/running")]
        self._know(dict.fromkeys(names))
        for name in names:
            index = self.names.index(name)
            self._running[index, position] = state[f"{name}/running"]
            self._ended[:, index, position] = state[f"{name}/ended"]
        for key in (key for key in state if key.endswith("/summed")):
            summed = self._ended.new_zeros(2, self.seeds)
            self._summed.setdefault(key.removesuffix("/summed"), summed)[:, position] = state[key]
