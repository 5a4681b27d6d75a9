"""Imagined rollouts: masks, dropped rows, bounded memory, and states beyond reach."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.data.sources import Added, BesideAdded
from surefoot.data.store import Store
from surefoot.world_models.dynamics import Dynamics, Outcome, StepNoise
from surefoot.world_models.imagine import MEMBER, NOISE, imagine, rollout_noise
from surefoot.world_models.reach import edge_share, outside


class Line(Dynamics):
    """s' = s + 1, which ends at 3; the reward is s; members add nothing; noise of 100 breaks the world."""

    state_dim = action_dim = noise_dim = 1
    members = 1

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        assert noise.normal is not None
        following = torch.where(noise.normal > 50, torch.nan, states + 1)
        reward = states.squeeze(-1)
        return Outcome(following, reward, torch.zeros_like(reward), following.squeeze(-1) == 3)


class Two(Line):
    """Of two members the second goes ten times as far."""

    members = 2

    def draw_elites(self, uniform: Tensor) -> Tensor:
        return (2 * uniform).long()

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        assert noise.member is not None
        following = states + torch.where(noise.member == 1, 10.0, 1.0).unsqueeze(-1)
        reward = states.squeeze(-1)
        return Outcome(following, reward, torch.zeros_like(reward), torch.zeros_like(reward, dtype=torch.bool))


def still(states: Tensor, noise: Tensor) -> Tensor:
    return noise.tanh()


def drawn(world: Dynamics, rows: int, length: int, value: float = 0.0) -> dict[str, Tensor]:
    shapes = rollout_noise(world, length)
    return {name: torch.full((rows, kind.width), value) for name, kind in shapes.items()}


def test_a_rollout_ends_where_its_episode_does_and_its_further_steps_are_not_valid() -> None:
    found = imagine(Line(), still, torch.tensor([[0.0], [2.0], [7.0]]), drawn(Line(), 3, 5), 5)
    assert found.valid.T.tolist() == [[True] * 3 + [False] * 2, [True] + [False] * 4, [True] * 5]
    assert found.terminations.T[0, :3].tolist() == [0, 0, 1]
    assert found.states[:, 2, 0].tolist() == [7, 8, 9, 10, 11]
    assert found.rewards[found.valid].sum() == 0 + 1 + 2 + 2 + 7 + 8 + 9 + 10 + 11
    assert found.next_states[:, 1, 0].tolist()[0] == 3
    assert found.rows()["observations"].shape == (15, 1)


def test_a_step_that_is_not_finite_is_not_valid_and_ends_its_rollout() -> None:
    noise = drawn(Line(), 2, 3)
    noise[NOISE].view(2, 3, 2)[1, 1, 1] = 100  # row 1, step 1, the world's number
    found = imagine(Line(), still, torch.tensor([[10.0], [20.0]]), noise, 3)
    assert found.valid.T.tolist() == [[True, True, True], [True, False, False]]
    assert bool(found.next_states.isfinite().all())


def test_rows_stepped_in_parts_equal_all_at_once_and_a_judge_is_heard() -> None:
    torch.manual_seed(0)
    noise = {name: torch.randn_like(value) for name, value in drawn(Line(), 11, 4).items()}
    states = torch.randn(11, 1)
    whole, parts = (imagine(Line(), still, states, noise, 4, rows_at_once=rows) for rows in (100, 3))
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))
    judged = imagine(Line(), still, states, noise, 4, lambda s, a, o: o._replace(rewards=o.rewards - 1))
    assert torch.equal(judged.rewards, whole.rewards - 1)
    longer = imagine(Line(), still, states, noise, 2)
    assert torch.equal(longer.states, whole.states[:2])


def test_a_member_is_drawn_for_each_row_and_step() -> None:
    noise = drawn(Two(), 2, 2)
    noise[MEMBER][:] = torch.tensor([[0.0, 0.9], [0.6, 0.2]])
    found = imagine(Two(), still, torch.zeros(2, 1), noise, 2)
    assert found.next_states[..., 0].T.tolist() == [[1, 11], [10, 11]]


def test_rows_that_are_not_valid_are_not_added_and_seeds_count_by_themselves() -> None:
    source = Added(4, {"rewards": ()}, "imagined")
    source.bind([0, 1], 64, torch.device("cpu"))
    valid = torch.tensor([[True, False, True], [False, False, True]])
    source.add({"rewards": torch.tensor([[1.0, 2, 3], [4, 5, 6]]), "valid": valid})
    assert source.added == 1
    assert len(source) == 1
    batch = source.gather(source.rows(0))["rewards"]
    assert set(batch[0].tolist()) == {1, 3}
    assert set(batch[1].tolist()) == {6}
    source.add({"rewards": torch.arange(14.0).reshape(2, 7)})  # more than there is room for: the newest stay
    batch = source.gather(source.rows(1))["rewards"]
    assert set(batch[0].tolist()) == {3, 4, 5, 6}
    assert set(batch[1].tolist()) == {10, 11, 12, 13}
    assert [int(source.rows_added(position)["added"]) for position in (0, 1)] == [9, 8]
    again = Added(4, {"rewards": ()}, "imagined")
    again.bind([0, 1], 64, torch.device("cpu"))
    for position in (0, 1):
        for name, value in again.rows_added(position).items():
            value.copy_(source.rows_added(position)[name])
    assert torch.equal(again.rows(5), source.rows(5))
    assert torch.equal(again.gather(again.rows(5))["rewards"], source.gather(source.rows(5))["rewards"])


def test_a_batch_has_the_datas_share_of_its_rows_first() -> None:
    data = Store.pack({"observations": torch.ones(5, 2), "actions": torch.ones(5, 1), "rewards": torch.ones(5)})
    source = BesideAdded(data, 0.3, 6, "batch")
    source.bind([0], 10, torch.device("cpu"))
    rows = {"observations": torch.zeros(1, 3, 2), "actions": torch.zeros(1, 3, 1), "rewards": torch.zeros(1, 3)}
    source.add(rows)
    indices = source.rows(7)
    plain, into = source.gather(indices), source.gather(indices[0], source.workspace(10))
    assert plain["rewards"].tolist() == [[1.0] * 3 + [0.0] * 7]
    assert all(torch.equal(plain[name][0], into[name]) for name in plain)
    assert plain["observation_actions"].shape == (1, 10, 3)
    alone = BesideAdded(data, 1.0, 6, "batch")
    alone.bind([0], 4, torch.device("cpu"))
    assert alone.gather(alone.rows(0))["rewards"].tolist() == [[1.0] * 4]  # nothing need be added


def test_states_far_from_all_trained_ones_are_outside() -> None:
    torch.manual_seed(0)
    trained = torch.rand(400, 2)
    asked = torch.cat([torch.rand(100, 2), 2 + torch.rand(50, 2)])
    found = outside(asked, trained, torch.rand(400, 2))
    assert bool(found[100:].all())
    assert found[:100].float().mean() < 0.05


def test_the_edge_share_is_that_of_last_steps_which_lead_out() -> None:
    """On a line that is walked right from [0, 1] the last of four steps leads out of what the first three covered."""
    torch.manual_seed(0)

    class Right(Line):
        def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
            reward = states.squeeze(-1)
            following = states + self.stride
            return Outcome(following, reward, reward * 0, torch.zeros_like(reward, dtype=torch.bool))

        stride = 1.0

    world = Right()
    start = torch.rand(3000, 1)
    assert abs(float(edge_share(imagine(world, still, start, drawn(world, 3000, 4), 4))) - 0.25) < 0.01
    world.stride = 0.0
    assert float(edge_share(imagine(world, still, start, drawn(world, 3000, 4), 4))) < 0.01
    ended = imagine(Line(), still, torch.full((50, 1), 2.0), drawn(Line(), 50, 2), 2)
    assert float(edge_share(ended)) == 0  # nothing bootstraps
