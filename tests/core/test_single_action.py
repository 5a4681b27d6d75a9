"""One action at a time by numpy is the batch's action, at once after every change of the weights."""

from __future__ import annotations

import copy
import pathlib

import numpy as np
import pytest
import torch
from policies import KINDS, observations, policy

from surefoot.core.actors.heads import TanhGaussianActor, UnboundedGaussianActor
from surefoot.core.base.errors import EnvironmentMismatchError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.core.policy.single_action import fits

QUICK = {"deterministic", "gaussian", "tanh_gaussian", "unbounded_gaussian", "state_dependent"}
LARGEST = float(np.finfo(np.float32).max)


def agrees(tested: Policy, rows: torch.Tensor) -> None:
    found = np.stack([tested.select_action(row.numpy()) for row in rows])
    np.testing.assert_allclose(found, tested(rows).numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_action_alone_is_that_of_a_batch(kind: str) -> None:
    tested = policy(kind)
    assert fits(tested) == (kind in QUICK)
    agrees(tested, observations(50))
    agrees(tested, observations(50) * 30)  # where actions are cut


@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
def test_networks_that_numpy_does_not_run_take_the_general_way(activation: str) -> None:
    for actor in (TanhGaussianActor(3, 2, (16, 8), activation=activation), TanhGaussianActor(3, 2, layer_norm=True)):
        tested = Policy.of(actor, Normalizer(3), torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 6.0]))
        assert fits(tested) == (activation != "silu" and len(actor.mlp.scales) == 0)
        agrees(tested, torch.randn(20, 3))
    clipping = Policy.of(actor, Normalizer(3, 1.5), torch.zeros(2), torch.ones(2))
    assert not fits(clipping)
    agrees(clipping, torch.randn(20, 3) * 3)


def test_every_change_of_a_policy_counts_in_the_next_action(tmp_path: pathlib.Path) -> None:
    tested, rows = policy("gaussian"), observations(5)
    agrees(tested, rows)
    with torch.no_grad():
        tested.actor.mlp.weights[1].mul_(3)
        tested.normalizer.mean.add_(0.3)
    agrees(tested, rows)
    tested.action_high.add_(2.0)
    agrees(tested, rows)
    another = policy("gaussian")
    tested.load_state_dict(another.state_dict(), assign=True)
    agrees(tested, rows)
    tested.double().float()
    agrees(tested, rows)
    apart = copy.deepcopy(tested)
    with torch.no_grad():
        tested.actor.mlp.biases[0].add_(1)
    agrees(apart, rows)
    agrees(tested, rows)
    assert (apart(rows) - tested(rows)).abs().max() > 0.01
    tested.actor = policy("gaussian").actor  # a part is replaced: from the next episode on
    tested.reset()
    agrees(tested, rows)


def test_an_action_given_before_is_not_written_over() -> None:
    tested, rows = policy("deterministic"), observations(2).numpy()
    first = tested.select_action(rows[0])
    kept = first.copy()
    tested.select_action(rows[1])
    np.testing.assert_array_equal(first, kept)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_finite_observations_however_large_never_give_an_action_that_is_not_finite(kind: str) -> None:
    tested, refused = policy(kind), 0
    for value in (LARGEST, -LARGEST, 1e38, 1e30, 1e20, 1e10):
        for index in range(3):
            seen = observations(1)[0].numpy()
            seen[index] = value
            batch = torch.from_numpy(seen).repeat(2, 1)
            for act in (
                lambda s=seen: tested.select_action(s),
                lambda b=batch: tested.act(b, tested.begin(2))[0].numpy(),
            ):
                try:
                    action = act()
                except EnvironmentMismatchError as error:
                    assert f"observation[{index}] is" in str(error)  # noqa: PT017
                    refused += 1
                else:
                    assert np.isfinite(action).all()
    assert refused > 0 or tested.actor.mlp.activation == "tanh"  # which cuts what comes in


def test_a_policy_whose_weights_are_broken_says_so_instead_of_acting() -> None:
    actor = UnboundedGaussianActor(3, 2, (8,))
    tested = Policy.of(actor, Normalizer(3), -torch.ones(2), torch.ones(2))
    with torch.no_grad():
        tested.actor.mlp.biases[-1][0] = float("nan")
    for act in (lambda: tested.select_action(np.zeros(3)), lambda: tested.act(torch.zeros(4, 3), {})):
        with pytest.raises(EnvironmentMismatchError, match=r"the action is not finite: .*in row 0.*policy's weights"):
            act()
