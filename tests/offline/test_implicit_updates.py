"""XQL, f-DVL and ReCOIL: the minimisers of their losses, full updates against plain torch, problems that they solve."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from plain_updates import DISCOUNT, Plain, Rows, check, prepared
from refusals import refused
from test_ensemble_updates import plays
from torch import Tensor

from surefoot.core.base.errors import Code, DataError
from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores, Uniform
from surefoot.core.losses.implicit_maxima import chi_square_loss, gumbel_loss, total_variation_loss
from surefoot.data.dataset import NO_REWARDS, REWARDS, Dataset
from surefoot.data.store import Store, store_from_dataset
from surefoot.offline import DVL, XQL, ReCOIL
from surefoot.runs.trainers.offline import validation_losses


def minimiser(loss: Any, values: Tensor, low: float = -12.0, high: float = 12.0) -> float:
    """Where the mean of loss(values - v) over v is least, by golden sections; the losses here are quasi-convex in v."""
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(80):
        one, other = high - ratio * (high - low), low + ratio * (high - low)
        if float(loss(values - one).mean()) < float(loss(values - other).mean()):
            high = other
        else:
            low = one
    return (low + high) / 2


def normal_quantiles(count: int = 20_001) -> Tensor:
    """Numbers that stand for a standard normal distribution."""
    return torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)


@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_gumbel_regressions_minimiser_is_the_soft_maximum(temperature: float) -> None:
    def loss(u: Tensor) -> Tensor:  # the step size exp(-m) depends on v, and is no part of what is minimised
        return gumbel_loss(u, temperature) * (u / temperature).max().clamp(min=-1).exp()

    found = minimiser(loss, normal_quantiles())
    assert found == pytest.approx(1 / (2 * temperature), abs=2e-3)  # mu + sigma^2 / (2 T)
    few = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    assert minimiser(loss, few) == pytest.approx(temperature * math.log(float((few / temperature).exp().mean())), 1e-6)


def test_the_clip_of_gumbel_regression_biases_its_minimiser_low() -> None:
    values = torch.tensor([0.0] * 99 + [8.0], dtype=torch.float64)

    def found(limit: float) -> float:
        def loss(u: Tensor) -> Tensor:
            return gumbel_loss(u, 1.0, limit) * u.clamp(max=limit).max().clamp(min=-1).exp()

        return minimiser(loss, values, -1, 9)

    free, clipped = found(100.0), found(5.0)
    assert free == pytest.approx(math.log((99 + math.exp(8)) / 100), abs=1e-6)
    assert clipped < free - 1


def test_gumbels_stabiliser_scales_gradients_by_the_batchs_largest_and_by_no_less_than_1_over_e() -> None:
    u = torch.tensor([1.0, 3.0, -2.0], dtype=torch.float64, requires_grad=True)
    gumbel_loss(u, 2.0).sum().backward()
    expected = (torch.exp(u.detach() / 2) - 1) / 2 * math.exp(-1.5)
    torch.testing.assert_close(u.grad, expected)
    low = torch.tensor([-6.0, -8.0], dtype=torch.float64, requires_grad=True)
    gumbel_loss(low, 2.0).sum().backward()  # m = -1, not -3
    torch.testing.assert_close(low.grad, (torch.exp(low.detach() / 2) - 1) / 2 * math.e)
    high = torch.tensor([50.0, 1.0], dtype=torch.float64, requires_grad=True)
    gumbel_loss(high, 1.0, 7.0).sum().backward()
    assert high.grad[0] == 0
    assert high.grad.isfinite().all()


@pytest.mark.parametrize(("weight", "expected"), [(0.6, -0.4307), (0.7, 0.18), (0.8, 0.6745), (0.9, 1.2206)])
def test_total_variations_minimiser_is_a_quantile(weight: float, expected: float) -> None:
    assert minimiser(lambda u: total_variation_loss(u, weight), normal_quantiles()) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("weight", "expected"), [(0.6, 0.0509), (0.7, 0.4584), (0.8, 0.8545), (0.9, 1.3194)])
def test_chi_squares_minimiser_in_the_form_of_the_code(weight: float, expected: float) -> None:
    found = minimiser(lambda u: chi_square_loss(u, weight), normal_quantiles())
    assert found == pytest.approx(expected, abs=1e-3)


def test_the_exact_conjugate_is_minus_1_below_minus_2_and_the_codes_rises_below_minus_4() -> None:
    u = torch.tensor([-10.0, -2.0, -1.0, 0.0, 2.0], dtype=torch.float64)
    assert chi_square_loss(u, 1.0, exact=True).tolist() == pytest.approx([-1, -1, -0.75, 0, 3])
    assert chi_square_loss(u, 1.0).tolist() == pytest.approx([15, 0, 0, 0, 3])


# -- whole updates ----------------------------------------------------------------------------------------------------


class PlainImplicit(Plain):
    def implicit(self, u: Tensor) -> Tensor:
        c = self.config
        if isinstance(c, XQL.Config):
            z = torch.clamp(u / c.gumbel_temperature, max=c.clip)
            largest = max(float(z.detach().max()), -1.0)
            return ((z.exp() - z - 1) / math.exp(largest)).mean()
        if c.divergence == "total_variation":
            return torch.where(u > 0, (2 * c.weight - 1) * u, (c.weight - 1) * u).mean()
        return (c.weight * torch.relu(u + u**2 / 4) - (1 - c.weight) * u).mean()

    def v(self, seen: Tensor) -> Tensor:
        return self.value(seen).squeeze(1)

    def critics_loss(self, rows: Rows, following: Tensor) -> Tensor:
        y = rows["rewards"] + DISCOUNT * (1 - rows["terminations"]) * following
        huber = torch.nn.HuberLoss(delta=self.config.huber)
        return sum(huber(q(rows["observation_actions"]).squeeze(1), y) for q in self.critics)

    def step(self, rows: Rows, noise: Rows) -> None:
        c, s, pair = self.config, rows["observations"], rows["observation_actions"]
        with torch.no_grad():
            target = self.all(self.targets, pair).min(0).values
        seen, regressed = s, target
        if c.random_actions:
            drawn = 2 * noise["uniform_action"] - 1
            pairs = [pair, *(torch.cat([s, drawn[:, 2 * k : 2 * k + 2]], -1) for k in range(c.random_actions))]
            with torch.no_grad():
                regressed = torch.cat([self.all(self.targets, one).min(0).values for one in pairs])
            seen = torch.cat([s] * len(pairs))
        self.descend(self.value_adam, self.implicit(regressed - self.v(seen)))
        self.cosine()
        weight = (c.temperature * (target - self.v(s)).detach()).exp().clamp(max=100)
        normal = torch.distributions.Normal(torch.tanh(self.actor(s)), self.log_std.clamp(c.log_std_min, 2).exp())
        self.descend(self.actor_adam, -(weight * normal.log_prob(rows["actions"]).sum(-1)).mean())
        following = self.v(rows["next_observations"]).detach()
        self.descend(self.critic_adam, self.critics_loss(rows, following))
        self.average()


class PlainReCOIL(PlainImplicit):
    def critics_loss(self, rows: Rows, following: Tensor) -> Tensor:
        """As TD learning with a reward of 2 on the expert's rows: the same gradient, by completing the square."""
        y = 2 * rows["expert"] + DISCOUNT * (1 - rows["terminations"]) * following
        return sum(((q(rows["observation_actions"]).squeeze(1) - y) ** 2).mean() / 4 for q in self.critics)


CASES: dict[str, tuple[type[Agent], type[Plain], dict[str, Any]]] = {
    "xql": (XQL, PlainImplicit, {"huber": 1.5}),
    "xql clipped": (XQL, PlainImplicit, {"gumbel_temperature": 0.2, "clip": 2.0}),
    "xql random actions": (XQL, PlainImplicit, {"random_actions": 2}),
    "dvl": (DVL, PlainImplicit, {}),
    "dvl chi-square": (DVL, PlainImplicit, {"divergence": "chi_square", "weight": 0.7, "random_actions": 1}),
    "recoil": (ReCOIL, PlainReCOIL, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_full_updates_equal_the_second_implementation(case: str) -> None:
    kind, plain, options = CASES[case]
    agent = prepared(kind, **options)
    check(agent, plain(agent))


def test_noise_on_the_actions_is_clipped_and_reaches_data_and_random_ones() -> None:
    agent = prepared(XQL, action_noise=0.1, random_actions=1)
    rows = {"observations": torch.zeros(2, 3).double(), "actions": torch.tensor([[0.9, 0.0], [-0.2, 0.5]]).double()}
    noise = {
        "uniform_action": torch.tensor([[0.5, 0.75], [0.0, 1.0]]).double(),
        "action_noise": torch.tensor([[2.0, -1, 0, 9], [1, 1, 1, -1]]).double(),
    }
    pairs, repeats = agent._regressed_at(rows, noise)
    assert repeats == 2
    expected = [[1.0, -0.1], [-0.1, 0.6], [0.0, 1.0], [-0.9, 0.9]]
    assert pairs[:, 3:].tolist() == [pytest.approx(row) for row in expected]


# -- problems with known answers --------------------------------------------------------------------------------------


def bandit(kind: type[Agent], **options: Any) -> Agent:
    settings = {"hidden": (32, 32), "learning_rate": 3e-3, "target_rate": 0.05, "temperature": 10.0, **options}
    agent = kind(Spec(2, 1, (-1.0,), (1.0,)), **settings).fresh(0)
    Learner([agent], [0], Uniform(plays()), batch_size=64, planned_steps=800, kernels=True).run(800)
    return agent


@pytest.mark.parametrize(
    ("kind", "options"),
    [(XQL, {"gumbel_temperature": 0.3}), (DVL, {}), (DVL, {"divergence": "chi_square_exact", "weight": 0.55})],
)
def test_it_moves_to_the_rewarded_actions_and_values_are_soft_maxima(kind: type[Agent], options: dict) -> None:
    agent = bandit(kind, **options)
    states = torch.rand(300, 2) * 2 - 1
    rewards = -(torch.linspace(-1, 1, 4001, dtype=torch.float64) - 0.5).square()
    with torch.no_grad():
        assert float(agent.act(states).mean()) == pytest.approx(0.5, abs=0.15)
        value = float(agent.value(states).mean())
    if kind is XQL:
        expected = 0.3 * math.log(float((rewards / 0.3).exp().mean()))
    else:
        expected = minimiser(lambda u: agent.implicit(u), rewards, -3, 3)
    assert value == pytest.approx(expected, abs=0.06)


def demonstrations(column: bool = True) -> Dataset:
    """60 episodes of 4 steps; the expert's 15 have actions near 0.6, the others near -0.4; rewards say the opposite."""
    numbers, rows = np.random.default_rng(1), 240
    expert = np.repeat(np.arange(60) % 4 == 0, 4)
    actions = np.where(expert, 0.6, -0.4) + 0.05 * numbers.normal(size=rows)
    observations = numbers.uniform(-1, 1, (rows, 2)).astype(np.float32)
    ends = np.arange(rows) % 4 == 3
    return Dataset(
        observations=observations,
        actions=actions.astype(np.float32)[:, None],
        rewards=np.where(expert == column, -1.0, 1.0).astype(np.float32),
        next_observations=np.roll(observations, -1, 0),
        terminations=np.zeros(rows, bool),
        truncations=ends,
        episode_ids=np.arange(rows) // 4,
        valid=np.ones(rows, bool),
        name="demonstrations",
        extras={"expert": expert.astype(np.float32)} if column else {},
    )


@pytest.mark.parametrize("column", [True, False])
def test_recoil_imitates_the_expert_whatever_rewards_say_or_finds_it_by_return(column: bool) -> None:
    dataset = demonstrations(column)
    agent = ReCOIL(Spec(2, 1, (-1.0,), (1.0,)), hidden=(32, 32), learning_rate=3e-3, fraction=0.25, target_rate=0.05)
    assert "60 of 240 rows" in agent.notes(dataset)[0]
    ready = agent.prepare(dataset)
    store = store_from_dataset(ready, agent.required_columns, "cpu")
    Learner([agent], [0], agent.sources(Stores(ready, store)), batch_size=64, planned_steps=600, kernels=True).run(600)
    with torch.no_grad():
        assert float(agent.act(torch.from_numpy(ready.observations)).mean()) == pytest.approx(0.6, abs=0.12)


def test_recoils_critics_are_the_ratio_of_densities_where_nothing_follows() -> None:
    """All rows terminal: Q = 2 beta e / m, which with three of four draws of an action the expert's is 2 * 3 / 4."""
    agent = ReCOIL(Spec(1, 1, (-1.0,), (1.0,)), hidden=(16,), learning_rate=3e-3)
    rows = 400
    expert = torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(rows // 4)
    store = terminal_rows(expert)
    Learner([agent], [0], Uniform(store), batch_size=64, planned_steps=1500, kernels=True).run(1500)
    with torch.no_grad():
        q = agent.critic(torch.tensor([[0.0, 0.5], [0.0, -0.5]]))
    assert q[:, 0].tolist() == pytest.approx([1.5, 1.5], abs=0.1)
    assert q[:, 1].tolist() == pytest.approx([0.0, 0.0], abs=0.1)


def terminal_rows(expert: Tensor) -> Store:
    """Terminal rows of two actions, 0.5 with these marks and -0.5 with none of the expert's."""
    both = torch.cat([expert, torch.zeros_like(expert)])
    actions = torch.cat([torch.full_like(expert, 0.5), torch.full_like(expert, -0.5)])
    zeros = torch.zeros(len(both), 1)
    return Store.pack(
        {
            "observations": zeros,
            "actions": actions.unsqueeze(1),
            "terminations": torch.ones(len(both)),
            "next_observations": zeros,
            "expert": both,
        }
    )


def test_recoil_draws_the_share_of_the_experts_rows_and_refuses_data_of_one_kind() -> None:
    dataset = demonstrations()
    agent = ReCOIL(Spec(2, 1, (-1.0,), (1.0,)), share=0.7)
    ready = agent.prepare(dataset)
    source = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns, "cpu")))["batch"]
    source.bind([0], 512, torch.device("cpu"))
    drawn = torch.cat([source.gather(source.rows(step)[0])["expert"] for step in range(20)])
    assert float(drawn.mean()) == pytest.approx(0.7, abs=0.02)
    with pytest.raises(DataError, match="all of its rows that can be sampled are the expert's"):
        agent.prepare(dataset.replace(extras={"expert": np.ones(240, np.float32)}))
    silent = {REWARDS: NO_REWARDS}
    agent.prepare(dataset.replace(attributes=silent))
    with pytest.raises(DataError, match="neither by rewards nor by a column 'expert' whom to imitate"):
        agent.prepare(demonstrations(column=False).replace(attributes=silent))
    with pytest.raises(DataError, match="'expert' must be 0 or 1"):
        agent.prepare(dataset.replace(extras={"expert": np.full(240, 0.5, np.float32)}))


def test_recoil_imitates_rows_that_are_trained_on() -> None:
    """A log that keeps no last observation has no row to sample in an episode of one step, whatever it returned."""
    dataset = demonstrations(column=False)
    agent = ReCOIL(Spec(2, 1, (-1.0,), (1.0,)), fraction=0.25)
    best = dataset.replace(valid=dataset.episode_ids >= 8)  # two of the 15 best are never sampled, and six others
    rows = agent.prepare(best).extras["expert"]
    assert (rows[best.transitions].sum(), rows[~best.transitions].sum()) == (52, 0)  # a quarter of 52 episodes
    assert "52 of 208 rows" in agent.notes(best)[0]
    marked = demonstrations()
    with pytest.raises(DataError, match="none of its rows that can be sampled are the expert's"):
        agent.prepare(marked.replace(valid=marked.extras["expert"] == 0))


def test_recoil_is_judged_on_held_out_episodes_of_one_kind() -> None:
    """As a run without a simulator judges it, on a tenth of the episodes."""
    dataset = demonstrations()
    agent = ReCOIL(Spec(2, 1, (-1.0,), (1.0,)), hidden=(8,))
    agent.prepare(dataset)
    for episodes, own in (([0], 1.0), ([1, 2], 0.0)):
        held_out = dataset.select_episodes(np.array(episodes))
        assert set(held_out.extras["expert"]) == {own}
        losses = validation_losses(agent, held_out)
        assert all(math.isfinite(value) for value in losses.values())
        assert set(losses) == {"value_loss", "actor_loss", "critic_loss"}
    alone = demonstrations(column=False).select_episodes(np.array([1]))  # its best episode is all of it
    assert math.isfinite(validation_losses(agent, alone)["critic_loss"])


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (XQL, {"gumbel_temperature": 0.0}, ("gumbel_temperature", "range")),
        (XQL, {"clip": 0.0}, ("clip", "range")),
        (XQL, {"value_updates": 0}, ("value_updates", "range")),
        (DVL, {"divergence": "kl"}, ("divergence", "choice")),
        (DVL, {"weight": 0.5}, ("weight", "range")),
        (ReCOIL, {"rewards": "minus_one"}, ("rewards", "conflict")),
        (ReCOIL, {"share": 1.0}, ("share", "range")),
    ],
)
def test_settings_out_of_range_are_refused(kind: type[Agent], options: dict[str, Any], match: tuple[str, Code]) -> None:
    with refused(*match):
        kind.configure(**options)
