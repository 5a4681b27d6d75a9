"""SAC's relatives: what they share, in what they differ, and what each draws its batches from."""

from __future__ import annotations

import pytest
import torch
from ensemble_rows import rows_of
from online_problems import Constant, loop, spec

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic
from surefoot.envs.vector import make_vec
from surefoot.offline import CQL
from surefoot.online import WSRL
from surefoot.safe.sac_lag import SACLag

# -- the subset of critics -------------------------------------------------------------------------------------


def taken(subsets: list[torch.Tensor]) -> torch.Tensor:
    """(N, 5) which of five members are in each of N subsets."""
    found = torch.zeros(len(subsets), 5, dtype=torch.bool)
    for row, members in zip(found, subsets, strict=True):
        row[members] = True
    return found


def test_a_subset_without_replacement_has_its_size_and_every_pair_is_as_likely() -> None:
    uniform = torch.rand(30_000, 1, 5, generator=torch.Generator().manual_seed(1))
    chosen = taken([ensembles.subset(row, 2) for row in uniform])
    assert bool((chosen.sum(1) == 2).all())
    pairs = torch.tensor([float((chosen[:, i] & chosen[:, j]).float().mean()) for i in range(5) for j in range(i)])
    assert float((pairs - 0.1).abs().max()) < 0.01  # ten pairs


@pytest.mark.parametrize(("size", "sizes"), [(2.25, (2, 3)), (1.5, (1, 2)), (4.75, (4, 5))])
def test_a_size_that_is_not_whole_is_the_next_smaller_or_larger_one(size: float, sizes: tuple[int, int]) -> None:
    width = ensembles.subset_noise(5, size)["subset"].width
    uniform = torch.rand(30_000, 1, width, generator=torch.Generator().manual_seed(1))
    subsets = [ensembles.subset(row, size) for row in uniform]
    assert {len(members) for members in subsets} == {sizes[1]}
    chosen = taken(subsets)
    found = chosen.sum(1)
    assert set(found.tolist()) == set(sizes)
    assert float(found.float().mean()) == pytest.approx(size, abs=0.01)
    assert float((chosen.float().mean(0) - size / 5).abs().max()) < 0.01  # all members as often


def test_a_subset_that_is_not_whole_and_several_next_actions_train_from_the_tape() -> None:
    options = {"critics": 4, "subset": 1.5, "critic_steps": 2, "backup_actions": 3}
    env = make_vec("native/pendulum", 2)
    made = loop("wsrl", env, kernels=True, initial_steps=16, **options)
    made.run(64)
    assert made.learner.eager_because() == {}


def test_equal_numbers_still_give_different_members_and_of_them_the_first() -> None:
    for draws, expected in (
        ([0.9, 0.1, 0.5, 0.1], [1, 3, 2]),
        ([0.1, 0.9, 0.1, 0.0], [3, 0, 2]),
        ([0.5] * 4, [0, 1, 2]),
    ):
        assert ensembles.subset(torch.tensor([draws]), 3).tolist() == expected


def test_the_largest_number_below_1_draws_the_last_member() -> None:
    largest = torch.full((1, 10), 1 - 2**-24)
    assert ensembles.subset(largest, 2, replacement=True).tolist() == [9, 9]


def test_replacement_draws_among_as_few_critics_as_the_subset_has_too() -> None:
    assert not ensembles.subset_noise(2, 2)
    assert ensembles.subset_noise(2, 2, replacement=True)
    for kind in (WSRL, CQL):
        agent = kind(spec(Constant()), hidden=(4,), subset_replacement=True)
        assert any("subset" in update.noise for update in agent.updates())


def test_a_subset_with_replacement_is_one_critic_in_one_of_e_draws() -> None:
    uniform = torch.rand(30_000, 1, 5, generator=torch.Generator().manual_seed(1))
    sizes = taken([ensembles.subset(row, 2, replacement=True) for row in uniform]).sum(1)
    assert set(sizes.tolist()) == {1, 2}
    assert float((sizes == 1).float().mean()) == pytest.approx(1 / 5, abs=0.01)


def test_the_gradient_of_the_minimum_goes_to_the_lowest() -> None:
    values = torch.tensor([[3.0, 1.0, 4.0], [2.0, 5.0, 4.0]], requires_grad=True)
    lowest = ensembles.minimum(values)
    assert lowest.tolist() == [2.0, 1.0, 4.0]
    (gradient,) = torch.autograd.grad(lowest.sum(), values)
    assert gradient.tolist() == [[0.0, 1.0, 0.5], [1.0, 0.0, 0.5]]


@pytest.mark.parametrize("layer_norm", [False, True])
def test_members_alone_say_what_they_say_in_the_ensemble_and_only_they_get_a_gradient(layer_norm: bool) -> None:
    critic = Critic(3, 2, (8, 8), members=4, layer_norm=layer_norm)
    pairs, members = torch.randn(6, 5), ensembles.subset(torch.tensor([[0.9, 0.1, 0.5, 0.2]]), 2)
    assert members.tolist() == [1, 3]
    torch.testing.assert_close(critic(pairs, members), critic(pairs)[[1, 3]])
    for parameter in critic.parameters():
        (found,) = torch.autograd.grad(critic(pairs, members).square().sum(), parameter)
        (expected,) = torch.autograd.grad(critic(pairs)[[1, 3]].square().sum(), parameter)
        torch.testing.assert_close(found, expected)
        assert not found[[0, 2]].any()


def test_the_three_critic_losses_by_hand() -> None:
    values, targets = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([0.0, 4.0])
    # squared errors 1, 4 and 9, 1: means 2.5 and 5
    found = {word: float(ensembles.critic_loss(values, targets, word)) for word in ensembles.REDUCTIONS}
    assert found == {"mean": 3.75, "sum": 7.5, "half_sum": 3.75}


def test_the_best_of_several_next_actions_is_what_a_target_takes() -> None:
    agent = WSRL(Spec(3, 2, (-1.0,) * 2, (1.0,) * 2), hidden=(8, 8), critics=4, backup_actions=3).fresh(0).double()
    rows = {k: torch.from_numpy(v) for k, v in rows_of(6).items()}
    rows = {k: v.double() for k, v in rows.items()}
    noise = {"next_action": torch.randn(6, 6).double(), "subset": torch.tensor([[0.9, 0.1, 0.5, 0.2]]).double()}
    expected = []
    for row in range(6):
        seen, values = rows["next_observations"][row : row + 1], []
        for draw in noise["next_action"][row].view(3, 2):
            action, _ = agent.actor.draw(seen, draw[None])
            values.append(agent.target_critic(torch.cat([seen, action], -1))[[1, 3]].min())
        expected.append(rows["rewards"][row] + 0.99 * (1 - rows["terminations"][row]) * max(values))
    found = rows["rewards"] + 0.99 * (1 - rows["terminations"]) * agent.next_values(rows, noise)
    torch.testing.assert_close(found, torch.stack(expected))
    with pytest.raises(ConfigError, match=r"wsrl\.backup_actions is 3, must be 1, or entropy_backup false"):
        WSRL.configure(backup_actions=3, entropy_backup=True)


def test_the_cost_critics_target_is_the_cost_of_one_next_action_without_entropy() -> None:
    lag = SACLag(Spec(3, 2, (-1.0,) * 2, (1.0,) * 2), hidden=(8, 8)).fresh(0).double()
    rows = {k: torch.from_numpy(v).double() for k, v in rows_of(6).items()}
    noise = {"next_action": torch.randn(6, 2).double()}
    action, _ = lag.actor.draw(rows["next_observations"], noise["next_action"])
    costs = lag.target_cost_critic(torch.cat([rows["next_observations"], action], -1)).amax(0)
    rows |= {"costs": torch.rand(6).double(), "observation_actions": torch.randn(6, 5).double()}
    target = rows["costs"] + lag.config.cost_discount * (1 - rows["terminations"]) * costs
    error = (lag.cost_critic(rows["observation_actions"]) - target).square().mean(1)
    torch.testing.assert_close(lag.cost_critic_loss(rows, noise)[0], 0.5 * error.sum())
