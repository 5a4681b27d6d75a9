"""Boosted trees by hand, and PPO with them on problems whose answer is known."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch
from on_policy_problems import Bandit

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.boosted import Trees, fit_tree
from surefoot.core.policy.policy import Policy
from surefoot.envs import make_vec
from surefoot.online import PPOTrees, spec_of
from surefoot.online.loops.on_policy import OnPolicyLoop

SMALL: dict[str, Any] = {"num_envs": 8, "horizon": 16, "epochs": 2, "minibatches": 2, "capacity": 200, "depth": 2}


def grown(inputs: torch.Tensor, gradients: torch.Tensor, depth: int, rate: float) -> Trees:
    trees = Trees(gradients.shape[1], 3, depth)
    trees.load_state_dict(trees.grown(fit_tree(inputs, gradients, depth, 8), torch.full((gradients.shape[1],), rate)))
    return trees


@pytest.mark.parametrize(("depth", "expected"), [(1, (-0.5, -0.5, 1.0, 1.0)), (2, (-0.5, -0.5, 1.5, 0.5))])
def test_a_tree_is_that_of_the_paper_s_library(depth: int, expected: tuple[float, ...]) -> None:
    """Gradients 1, 1, -3, -1 at 0, 1, 2, 3 with a step of one half, as gbrl 1.1 fits them."""
    inputs, gradients = torch.arange(4.0)[:, None], torch.tensor([[1.0], [1], [-3], [-1]])
    assert grown(inputs, gradients, depth, 0.5)(inputs)[:, 0].tolist() == list(expected)


def test_a_level_asks_for_the_number_that_explains_most() -> None:
    """Two outputs: the first depends on number 1 of three, the second, less, on number 2."""
    inputs = torch.rand(400, 3, generator=torch.Generator().manual_seed(0))
    gradients = torch.stack([3.0 * (inputs[:, 1] > 0.5), 1.0 * (inputs[:, 2] > 0.5)], 1)
    gradients = gradients - gradients.mean(0)
    tree = fit_tree(inputs, gradients, 2, 64)
    assert tree.features.tolist() == [1, 2]
    assert tree.thresholds.tolist() == pytest.approx([0.5, 0.5], abs=0.03)
    trees = Trees(2, 1, 2)
    trees.load_state_dict(trees.grown(tree, torch.ones(2)))
    assert (trees(inputs) + gradients).abs().mean() < 0.1  # beside a mean of 1
    shares = trees.importance(3)
    assert shares.argmax() == 1
    assert shares[0] == 0
    assert shares.sum() == pytest.approx(1)


def test_trees_add_up_and_room_ends() -> None:
    inputs, gradients = torch.arange(4.0)[:, None], torch.tensor([[1.0], [1], [-3], [-1]])
    trees = grown(inputs, gradients, 1, 0.5)
    trees.load_state_dict(trees.grown(fit_tree(inputs, gradients, 1, 8), torch.tensor([0.5])))
    assert trees(inputs)[:, 0].tolist() == [-1, -1, 2, 2]
    assert trees(inputs.reshape(2, 2, 1)).shape == (2, 2, 1)
    trees.load_state_dict(trees.grown(fit_tree(inputs, gradients, 1, 8), torch.tensor([0.5])))
    trees.check_room(0)
    with pytest.raises(ConfigError, match="3 of 3 trees are grown, and the next block grows 2: give more room"):
        trees.check_room(2)
    with pytest.raises(ConfigError, match=r"4 of 6 trees are grown, and the next block grows 4"):
        trained(256, capacity=6)


def trained(steps: int, seeds: tuple[int, ...] = (0,), **options: Any) -> list[PPOTrees]:
    env = Bandit(8 * len(seeds))
    agents = [PPOTrees(spec_of(env), **{**SMALL, **options}).fresh(seed) for seed in seeds]
    loop = OnPolicyLoop(agents, list(seeds), env, planned_steps=steps)
    loop.run(steps)
    return [loop.learner.extract(i) for i in range(len(seeds))]  # type: ignore[misc]


def test_the_arm_that_pays_is_found() -> None:
    (agent,) = trained(128 * 30, policy_rate=0.3)
    assert agent.act(torch.zeros(1, agent.features)).argmax() == Bandit.best
    chance = agent.actor(torch.zeros(1, agent.features)).exp()[0, Bandit.best]
    assert chance > 0.9
    assert int(agent.actor.trees.count) == 30 * 4


def test_two_seeds_beside_each_other_are_each_alone() -> None:
    both = trained(128 * 3, (0, 5))
    for seed, one in zip((0, 5), both, strict=True):
        (alone,) = trained(128 * 3, (seed,))
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(one.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_its_policy_is_kept_in_a_file_and_loaded(tmp_path: pathlib.Path) -> None:
    (agent,) = trained(128 * 2)
    agent.policy().save(tmp_path / "p.safetensors")
    seen = torch.randn(5, agent.features)
    loaded = Policy.load(tmp_path / "p.safetensors")
    assert torch.equal(loaded.act(seen, loaded.begin(5))[0], agent.policy().act(seen, agent.policy().begin(5))[0])
    assert torch.equal(loaded.actor.trees.leaves, agent.actor.trees.leaves)  # type: ignore[union-attr, operator]


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="ppo_trees learns discrete actions"):
        PPOTrees(spec_of(make_vec("Pendulum-v1", 1)))
