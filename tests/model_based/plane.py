"""A plane in which every state can be reached: s' = s + a, the reward falls with the distance from (0.5, 0.5)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from surefoot.data.dataset import Dataset
from surefoot.model_based.imagined_sac import ImaginedSAC
from surefoot.model_based.ravl import RAVL
from surefoot.world_models.dynamics import Dynamics, Outcome, StepNoise


class Plane(Dynamics):
    state_dim = action_dim = 2
    noise_dim = 0
    members = 1

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        reward = (-(states - 0.5).square().sum(-1) / 4).exp()
        return Outcome(states + actions, reward, torch.zeros_like(reward), torch.zeros_like(reward, dtype=torch.bool))


class PlaneBase(ImaginedSAC):
    name = "test_plane_base"
    learned = False

    def world(self) -> Dynamics:
        return Plane()


class PlaneRAVL(RAVL):
    name = "test_plane_ravl"
    learned = False

    def world(self) -> Dynamics:
        return Plane()


def plane_data(rows: int, seed: int = 0) -> Dataset:
    """Single steps of random actions from states in the unit box."""
    random = np.random.default_rng(seed)
    states, actions = (random.uniform(-1, 1, (rows, 2)).astype(np.float32) for _ in range(2))
    rewards = np.exp(-np.square(states - 0.5).sum(-1) / 4).astype(np.float32)
    none, every = np.zeros(rows, bool), np.ones(rows, bool)
    return Dataset(states, actions, rewards, states + actions, none, every, np.arange(rows), every, name="plane")
