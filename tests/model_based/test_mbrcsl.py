"""MBRCSL: stitching where all can be counted, the filter, the clone, schedules, resuming, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from surefoot.core.agent import Adam, Agent
from surefoot.core.errors import ConfigError, DataError
from surefoot.core.learner import Learner
from surefoot.core.noise_unet import UNetNoise
from surefoot.core.optimizer import Network, Optimizer
from surefoot.core.sources import Stores
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.model_based.mbrcsl import KEPT, MBRCSL
from surefoot.offline.rcsl import RCSL
from surefoot.world_models.dynamics import Outcome, StepNoise

SMALL: dict[str, Any] = {
    "model_members": 2, "model_elites": 1, "model_hidden": (8,), "model_decays": (), "model_rows": 8, "model_epoch": 3,
    "model_updates": 4, "behaviour_updates": 4, "rollout_batches": 3, "rollouts": 5, "horizon": 3, "kept": 7,
    "behaviour_widths": (8,), "diffusion_steps": 2, "hidden": (8,), "behaviour_warm_up": 2,
}  # fmt: skip


def dataset_of(observations: Any, actions: Any, rewards: Any, next_observations: Any, length: int) -> Dataset:
    rows = len(rewards)
    return Dataset(
        observations=np.asarray(observations, np.float32),
        actions=np.asarray(actions, np.float32),
        rewards=np.asarray(rewards, np.float32),
        next_observations=np.asarray(next_observations, np.float32),
        terminations=np.zeros(rows, bool),
        truncations=np.arange(rows) % length == length - 1,
        episode_ids=np.arange(rows) // length,
        valid=np.ones(rows, bool),
        env_id=None,
        name="made up",
    )


def random_data(rewards: float | None = None) -> Dataset:
    numbers = np.random.default_rng(0)
    earned = numbers.normal(size=60) if rewards is None else np.full(60, rewards)
    return dataset_of(numbers.normal(size=(60, 3)), numbers.uniform(-0.9, 0.9, (60, 2)), earned,
                      numbers.normal(size=(60, 3)), 3)  # fmt: skip


def learner_of(agents: list[Agent], dataset: Dataset, seeds: list[int], steps: int, **options: Any) -> Learner:
    dtype = options.get("dtype", torch.float32)
    ready = [agent.prepare(dataset) for agent in agents][-1]
    store = store_from_dataset(ready, agents[0].reads, "cpu", dtype=dtype)
    settings = {"batch_size": 8, "planned_steps": steps, **options}
    return Learner(agents, seeds, agents[0].sources(Stores(ready, store)), **settings)


# -- stitching on a grid --------------------------------------------------------------------------------------

WALLS = torch.tensor(
    [[1, 1, 1, 1, 1, 1],
     [1, 0, 0, 1, 1, 1],
     [1, 0, 0, 0, 0, 1],
     [1, 1, 1, 1, 1, 1]], dtype=torch.bool
)  # fmt: skip
START, A, B, M, GOAL = (1, 2), (1, 1), (2, 1), (2, 2), (2, 4)
MOVES = torch.tensor([[0.0, 0.0], [0.0, 0.9], [0.0, -0.9], [-0.9, 0.0], [0.9, 0.0]])
LENGTH = 10


class Grid:
    """Exact: an action moves by its nearest whole numbers, walls stop it, and the reward falls with the distance."""

    state_dim, action_dim, noise_dim, members = 2, 2, 1, 1

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        there = (states + actions.round()).round()
        blocked = WALLS[there[..., 0].long().clamp(0, 3), there[..., 1].long().clamp(0, 5)]
        following = torch.where(blocked.unsqueeze(-1), states, there)
        rewards = (-(following - torch.tensor(GOAL)).abs().sum(-1)).exp()
        return Outcome(following, rewards, torch.zeros_like(rewards), torch.zeros_like(rewards, dtype=torch.bool))


def grid_data() -> Dataset:
    """Half of the episodes S-M and stay, half S-A-B-M-.-G and stay."""
    routes = {"dead end": [4], "detour": [2, 4, 1, 1, 1]}
    rows: list[tuple[Any, ...]] = []
    for number in range(40):
        state, route = torch.tensor([START], dtype=torch.float32), list(routes["detour" if number % 2 else "dead end"])
        for _ in range(LENGTH):
            action = MOVES[[route.pop(0) if route else 0]]
            outcome = Grid().step(state, action, StepNoise())
            rows.append((state[0].numpy(), action[0].numpy(), float(outcome.rewards), outcome.states[0].numpy()))
            state = outcome.states
    return dataset_of(*(np.array(column) for column in zip(*rows, strict=True)), length=LENGTH)


class GridMBRCSL(MBRCSL):
    """With exact dynamics, and the data's action frequencies for a clone."""

    name = "grid_mbrcsl"

    def build(self) -> None:
        super().build()
        self.register_buffer("frequencies", torch.zeros(4, 6, len(MOVES)))

    def prepare(self, dataset: Dataset) -> Dataset:
        ready = super().prepare(dataset)
        cells = torch.from_numpy(dataset.observations).long()
        taken = torch.cdist(torch.from_numpy(dataset.actions), MOVES).argmin(-1)
        self.frequencies.index_put_((cells[:, 0], cells[:, 1], taken), torch.ones(len(taken)), accumulate=True)  # type: ignore[operator]
        return ready

    @property
    def world(self) -> Grid:  # type: ignore[override]
        return Grid()

    def draw_member(self, uniform: Tensor) -> None:
        return None

    def behave(self, observations: Tensor, noise: Tensor) -> Tensor:
        cells = observations.round().long()
        odds = self.frequencies[cells[:, 0], cells[:, 1]]  # type: ignore[index]
        uniform = 0.5 * (1 + torch.erf(noise[:, 0, :1] / 2**0.5))
        return MOVES[(uniform > (odds / odds.sum(-1, keepdim=True)).cumsum(-1)).sum(-1).clamp(max=len(MOVES) - 1)]


def played(agent: RCSL, target: float | None = None) -> tuple[float, list[tuple[int, int]]]:
    """Return and cells of an episode of the exact grid."""
    if target is not None:
        agent.actor.target_return.fill_(target)
    policy, state, total, cells = agent.policy(), torch.tensor([START], dtype=torch.float32), 0.0, [START]
    memory = policy.begin(1)
    for _ in range(LENGTH):
        action, memory = policy.act(state, memory)
        outcome = Grid().step(state, action, StepNoise())
        memory = policy.hear(memory, outcome.rewards, outcome.costs, outcome.ended)
        state, total = outcome.states, total + float(outcome.rewards)
        cells.append((int(state[0, 0]), int(state[0, 1])))
    return total, cells


def test_on_a_grid_the_paths_that_are_kept_are_stitched_and_only_their_clone_goes_straight() -> None:
    dataset, policy = grid_data(), {"hidden": (64, 64), "l2": 0.0, "learning_rate": 3e-3}
    data_best = float(dataset.episode_returns.max())
    torch.manual_seed(0)
    agent = GridMBRCSL(
        dataset, **{**SMALL, **policy, "model_updates": 1, "behaviour_updates": 1, "rollout_batches": 2,
                    "rollouts": 200, "horizon": LENGTH, "kept": 300}
    )  # fmt: skip
    learner = learner_of([agent], dataset, [0], 1004, kernels=True, batch_size=64)
    learner.run(4)
    kept = learner.sources[KEPT].rows_added(0)  # type: ignore[attr-defined]
    count = int(kept["added"])
    assert count == LENGTH * int(agent.accepted) > 0
    first = kept["observations"][:count][(kept["returns_to_go"][:count] == agent.actor.target_return).nonzero()[0, 0]]
    assert tuple(first.int().tolist()) == START
    stitched = 10 * 1.0 - sum(1 - float(np.exp(-d)) for d in (2, 1))  # M, ., and then at the goal for eight steps
    assert float(agent.actor.target_return) == pytest.approx(stitched, rel=1e-5)
    assert float(kept["returns_to_go"][:count].max()) > data_best + 0.5
    learner.run(1000)
    total, cells = played(agent)
    assert total == pytest.approx(stitched, rel=1e-4)
    assert cells[1] == M

    torch.manual_seed(0)
    plain = RCSL(dataset, **policy)
    learner_of([plain], dataset, [0], 1000, kernels=True, batch_size=64).run(1000)
    for target in (data_best, stitched):
        assert played(plain, target)[0] < data_best + 0.1


# -- the filter -----------------------------------------------------------------------------------------------


class Counting:
    """Earns what its first state says at every step, and counts the steps in its second."""

    state_dim, action_dim, noise_dim, members = 3, 2, 1, 1

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        following = states + torch.tensor([0.0, 1.0, 0.0])
        zero = torch.zeros_like(states[:, 0])
        return Outcome(following, states[:, 0].clone(), zero, zero.bool())


class Counted(MBRCSL):
    name = "counted_mbrcsl"

    @property
    def world(self) -> Counting:  # type: ignore[override]
        return Counting()

    def draw_member(self, uniform: Tensor) -> None:
        return None


def test_paths_are_kept_whole_where_they_return_more_than_the_best_without_a_discount() -> None:
    torch.manual_seed(0)
    agent = Counted(random_data(1.0), **{**SMALL, "horizon": 4, "bounded": False})
    agent.prepare(random_data(1.0))
    assert float(agent.threshold) == 3.0  # three steps of 1
    starts = torch.tensor([[0.75, 0, 0], [0.7500001, 0, 0], [0.76, 0, 0], [np.nan, 0, 0], [9.0, 0, 0]])
    noise = {entry: torch.rand(5, width.width) for entry, width in agent.updates()[-2].noise.items()}
    with torch.no_grad():
        found, metrics = agent.imagine({"observations": starts}, noise)
    rows: Mapping[str, Tensor] = found[KEPT]
    by_path = {name: value.unflatten(0, (4, 5)) for name, value in rows.items()}
    assert by_path["valid"].all(0).tolist() == by_path["valid"].any(0).tolist() == [False, True, True, False, True]
    assert by_path["observations"][:, 4, 1].tolist() == [0, 1, 2, 3]
    assert by_path["returns_to_go"][:, 4].tolist() == [36, 27, 18, 9]
    assert by_path["actions"][:, by_path["valid"][0]].abs().max() <= 1
    assert float(found["actor.target_return"]) == 36
    assert (int(found["accepted"]), int(found["tried"])) == (3, 1)
    assert float(metrics["acceptance"]) == pytest.approx(0.6)
    assert float(metrics["model_return_over_best"]) == pytest.approx(12.0)


def test_with_enough_paths_no_more_are_made_and_a_target_of_ones_own_stays() -> None:
    agent = Counted(random_data(1.0), **SMALL, target_return=5.0)
    agent.prepare(random_data(1.0))
    noise = {entry: torch.rand(5, width.width) for entry, width in agent.updates()[-2].noise.items()}
    with torch.no_grad():
        found, _ = agent.imagine({"observations": torch.full((5, 3), 2.0)}, noise)
        assert float(found["actor.target_return"]) == 5.0
        agent.accepted.fill_(7)
        assert agent.imagine({"observations": torch.full((5, 3), 2.0)}, noise) == ({}, {})


def test_where_no_path_beats_the_data_the_run_says_so_and_what_it_means() -> None:
    torch.manual_seed(0)
    data = random_data(100.0)
    with pytest.raises(DataError, match=r"none of 15 paths returned more .* 300\.00.*no parts of a better path"):
        learner_of([Counted(data, **SMALL)], data, [0], 20, kernels=True).run(20)


def test_states_in_the_model_stay_in_the_range_of_the_data() -> None:
    for bounded in (True, False):
        agent = Counted(random_data(), **SMALL, bounded=bounded)
        agent.prepare(random_data())
        noise = {entry: torch.rand(5, width.width) for entry, width in agent.updates()[-2].noise.items()}
        with torch.no_grad():
            seen = agent.follow(agent.high.expand(5, -1) - 0.5, noise).observations
        assert bool((seen[-1, :, 1] <= agent.high[1]).all()) == bounded


# -- the clone ------------------------------------------------------------------------------------------------


def plain_unet(net: UNetNoise, actions: Tensor, observations: Tensor, step: float) -> Tensor:
    """The network written out: blocks by number, with its own weights."""
    f = nn.functional
    frequencies = net.sinusoids.frequencies
    time = torch.cat([(step * frequencies).sin(), (step * frequencies).cos()])
    embed = [layer for layer in net.embed]
    time = embed[1](f.mish(embed[0](time)))
    known = torch.cat([time.expand(len(actions), -1), observations], 1)

    def single(block: Any, x: Tensor) -> Tensor:
        y = x @ block.linear.weight.T + block.linear.bias
        y = (y - y.mean(1, keepdim=True)) / (y.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        return f.mish(y * block.norm.weight + block.norm.bias)

    def block(one: Any, x: Tensor) -> Tensor:
        gain, shift = (known @ one.modulation.weight.T + one.modulation.bias).chunk(2, 1)
        y = single(one.two, gain * single(one.one, x) + shift)
        return y + (x if one.skip is None else x @ one.skip.weight.T + one.skip.bias)

    down, up = list(net.down), list(net.up)
    first = block(down[0][1], block(down[0][0], actions))
    second = block(down[1][1], block(down[1][0], first))
    third = block(down[2][1], block(down[2][0], second))
    x = block(net.middle[1], block(net.middle[0], third))
    x = block(up[0][1], block(up[0][0], torch.cat([x, third], 1)))
    x = block(up[1][1], block(up[1][0], torch.cat([x, second], 1)))
    return single(net.end, x) @ net.last.weight.T + net.last.bias


def test_the_unet_equals_one_written_out() -> None:
    torch.manual_seed(0)
    net = UNetNoise(3, 2, (8, 12, 16)).double()
    actions, observations = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    found = net(actions, observations, torch.tensor([3.0], dtype=torch.float64))
    torch.testing.assert_close(found, plain_unet(net, actions, observations, 3.0), rtol=1e-10, atol=1e-12)
    with pytest.raises(ConfigError, match="unet_widths are"):
        UNetNoise(3, 2, ())


def test_one_update_of_the_clone_equals_a_second_implementation_in_float64() -> None:
    torch.manual_seed(3)
    options = {**SMALL, "behaviour_network": "mlp_unet", "behaviour_widths": (8, 12, 16), "model_updates": 1}
    rates = {"behaviour_learning_rate": 0.01, "behaviour_weight_decay": 0.2, "behaviour_warm_up": 0}
    agent = MBRCSL(random_data(), **{**options, **rates, "average_rate": 0.25})
    learner = learner_of([agent], random_data(), [0], 5, dtype=torch.float64)
    learner.run(1)
    other = UNetNoise(3, 2, (8, 12, 16)).double()
    other.load_state_dict(agent.behaviour.state_dict())
    before = {name: value.clone() for name, value in agent.average_behaviour.state_dict().items()}
    rows = learner.sources["batch"].rows(1)[0].numpy()
    noise = {name: value[0] for name, value in learner.stream.at(1).items()}
    learner.run(1)
    steps = (noise["step"][:, 0] * 2).floor()
    f = [np.cos(np.pi / 2 * (n / 2 + 0.008) / 1.008) ** 2 for n in range(3)]
    products = np.cumprod([max(f[n + 1] / f[n], 1e-3) for n in range(2)])
    left = torch.from_numpy(products[steps.long().numpy()]).unsqueeze(1)
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.2)
    data = random_data()
    actions = torch.from_numpy(data.actions[rows]).double()
    noisy = left.sqrt() * actions + (1 - left).sqrt() * noise["noise"]
    seen = torch.from_numpy(data.observations[rows]).double()
    predicted = torch.cat([plain_unet(other, noisy[i : i + 1], seen[i : i + 1], float(steps[i])) for i in range(8)])
    loss = (predicted - noise["noise"]).square().mean()
    loss.backward()
    optimizer.step()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(agent.behaviour.state_dict()[name], value, rtol=1e-8, atol=1e-10)
        averaged = agent.average_behaviour.state_dict()[name]
        torch.testing.assert_close(averaged, 0.75 * before[name] + 0.25 * value, rtol=1e-8, atol=1e-10)


def test_ten_steps_of_diffusion_keep_both_modes() -> None:
    torch.manual_seed(0)
    rows = 512
    signs = np.where(np.arange(rows) % 2 == 0, 0.8, -0.8)[:, None]
    zeros = np.zeros((rows, 1))
    data = dataset_of(zeros, signs, np.zeros(rows), zeros, 4)
    updates = {"behaviour_updates": 1500, "behaviour_widths": (64, 64), "diffusion_steps": 10, "model_updates": 1}
    agent = MBRCSL(data, **{**SMALL, **updates, "behaviour_learning_rate": 3e-3, "average_rate": 0.01})
    learner_of([agent], data, [0], 1504, kernels=True, batch_size=128).run(1501)
    with torch.no_grad():
        drawn = agent.behave(torch.zeros(4000, 1), torch.randn(4000, 10, 1))
    assert float(drawn.abs().max()) <= 1
    assert float((drawn > 0).double().mean()) == pytest.approx(0.5, abs=0.05)
    assert float((drawn.abs() - 0.8).abs().lt(0.25).double().mean()) > 0.88


# -- the run --------------------------------------------------------------------------------------------------


def rates(settings: Adam, planned: int, at: list[int]) -> list[float]:
    optimizer = Optimizer(settings, [Network({"w": torch.zeros(1, 1)})], planned)
    found = []
    for step in at:
        optimizer.taken = step
        found.append(optimizer.learning_rate())
    return found


def test_schedules_warm_up_and_the_published_slip_never_leaves_it() -> None:
    adam = next(e for e in MBRCSL(random_data(), preset="official_schedule").updates() if "behaviour" in _trains(e))
    planned = 38_900
    assert (adam.optimizer.stride, adam.until - adam.after) == (778, planned)
    at = [0, 777, 778, 2 * 778, 49 * 778, planned - 1]
    epochs = [1, 1, 2, 3, 50, 50]
    assert rates(adam.optimizer, planned, at) == pytest.approx([1e-4 * (e - 1) / 500 for e in epochs])
    plain = Adam(2.0, schedule="cosine", warm_up=10)
    cosine = 0.5 * (1 + np.cos(np.pi * 45 / 90))
    assert rates(plain, 100, [0, 5, 10, 55, 100]) == pytest.approx([0, 1, 2, 2 * cosine, 0], abs=1e-12)
    for wrong in ({"warm_up": -1}, {"stride": 0}):
        with pytest.raises(ConfigError, match="must be >= 0 and >= 1"):
            Adam(1.0, schedule="cosine", **wrong)


def _trains(entry: Any) -> tuple[str, ...]:
    return getattr(entry, "trains", ())


@pytest.mark.parametrize("stop", [2, 6, 9, 14])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(stop: int) -> None:
    data = random_data(-1.0)

    def new() -> Learner:
        torch.manual_seed(5)
        return learner_of([Lucky(data, **SMALL)], data, [3], 18, kernels=True)

    whole, before, after = new(), new(), new()
    whole.run(18)
    before.run(stop)
    after.restore([{name: value.clone() for name, value in before.state(0).items()}], stop)
    after.run(18 - stop)
    assert int(whole.agent.accepted) >= 7  # type: ignore[arg-type]
    found, wanted = after.state(0), whole.state(0)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


class Lucky(MBRCSL):
    """Whose paths always beat the data."""

    name = "lucky_mbrcsl"

    def prepare(self, dataset: Dataset) -> Dataset:
        ready = super().prepare(dataset)
        self.threshold.fill_(-1e6)
        return ready


def test_stacked_seeds_equal_each_seed_alone() -> None:
    data, seeds = random_data(), [3, 8]

    def agents(chosen: list[int]) -> list[Agent]:
        return [Lucky(data, **SMALL).fresh(seed) for seed in chosen]

    together = learner_of(agents(seeds), data, seeds, 16, dtype=torch.float64)
    together.run(16)
    for position, seed in enumerate(seeds):
        alone = learner_of(agents([seed]), data, [seed], 16, dtype=torch.float64)
        alone.run(16)
        for name, value in alone.state(0).items():
            torch.testing.assert_close(together.state(position)[name], value, rtol=1e-8, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"kept": 0}, r"mbrcsl\.kept is 0, must be >= 1"),
        ({"average_rate": 0.0}, r"average_rate is 0\.0, must be in \(0, 1\]"),
        ({"behaviour_network": "cnn"}, "must be mlp or mlp_unet"),
        ({"model_holdout": 1.0}, "model_holdout"),
        ({"l2": -1.0}, "l2"),
        ({"history": 2}, r"mbrcsl\.history is 2, must be 1: its model predicts single observations"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        MBRCSL(random_data(), **options)
