"""Policies and comparisons shared by the tests of the rollouts."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from surefoot.cuda_ext.policy import NativePolicy
from surefoot.cuda_ext.rollout import Rollout
from surefoot.cuda_ext.system import System


def random_policy(
    system: System,
    hidden: list[int],
    activation: str = "tanh",
    *,
    layer_norm: bool = False,
    squash: bool = True,
    sampling: str = "none",
    seed: int = 0,
) -> NativePolicy:
    """A policy with random weights; `sampling` is none, after or before (the squash)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return 0.3 * torch.randn(*shape, generator=generator)

    observations, actions = len(system.observations), len(system.actions)
    widths = [observations, *hidden, actions * (2 if sampling == "before" else 1)]
    low, high = torch.tensor(system.action_low), torch.tensor(system.action_high)
    return NativePolicy(
        weights=[draw(b, a) for a, b in itertools.pairwise(widths)],
        biases=[draw(b) for b in widths[1:]],
        action_middle=(low + high) / 2,
        action_half=(high - low) / 2,
        activation=activation,
        gains=[1 + draw(width) for width in hidden] if layer_norm else (),
        shifts=[draw(width) for width in hidden] if layer_norm else (),
        mean=draw(observations),
        scale=1 + draw(observations).abs(),
        squash=squash,
        std=draw(actions).abs() if sampling == "after" else None,
        log_std_range=(-2.0, 1.0) if sampling == "before" else None,
    )


def largest_differences(a: Rollout, b: Rollout) -> dict[str, float]:
    """Field or record -> largest difference relative to the larger of 1 and the values; shapes and types must agree."""
    tables = [
        {**{name: value for name, value in vars(r).items() if isinstance(value, Tensor)}, **vars(r.carry), **r.records}
        for r in (a, b)
    ]
    assert tables[0].keys() == tables[1].keys()
    found = {}
    for name, x in tables[0].items():
        y = tables[1][name]
        assert x.shape == y.shape, name
        assert x.dtype == y.dtype, name
        scale = max(1.0, float(y.double().abs().max()))
        found[name] = float((x.double() - y.double()).abs().max()) / scale
    return found
