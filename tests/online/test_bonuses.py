"""Exploration bonuses: closed forms, scales by hand, what is added to which rewards, and a chain that needs one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from online_problems import Scripted, loop, parameters
from refusals import refused
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Array
from surefoot.core.engine.agent import Spec
from surefoot.data.collect import TransitionBuffer
from surefoot.online import DQN, PPO, SAC, TD3
from surefoot.online.bonuses.attach import BONUSES, bonus_of, with_bonus
from surefoot.online.bonuses.bonus import Bonus, merged
from surefoot.online.bonuses.counts import CountedReplay, Counts, cells
from surefoot.online.bonuses.disagreement import spread
from surefoot.online.bonuses.icm import ICM
from surefoot.online.bonuses.rnd import RND
from surefoot.online.bonuses.value_bonus import ValueBonus
from surefoot.online.loops.loop import make_loop
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.loops.replay import Replay

KINDS = sorted(kind for kind, bonus in BONUSES.items() if not bonus.by_choice)
ALL = [*KINDS, "value"]
CONTINUOUS, CHOICES = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0)), Spec.of_choices(3, 4)
SMALL: dict[str, Any] = {"bonus_hidden": (8,), "bonus_features": 5, "hidden": (8, 8)}


def rows(count: int, actions: int = 4, seed: int = 0) -> dict[str, Tensor]:
    source = np.random.default_rng(seed)
    found = {
        "observations": source.normal(size=(count, 3)),
        "actions": np.eye(actions)[source.integers(0, actions, count)],
        "rewards": source.normal(size=count),
        "terminations": (source.random(count) < 0.3).astype(float),
        "next_observations": 2 + 3 * source.normal(size=(count, 3)),
    }
    made = {name: torch.from_numpy(value).float() for name, value in found.items()}
    return {**made, "observation_actions": torch.cat([made["observations"], made["actions"]], -1)}


def made(kind: str, algorithm: Any = DQN, problem: Spec = CHOICES, **options: Any) -> Bonus:
    bonus: Bonus = algorithm(problem, bonus=kind, **{**SMALL, **options}).fresh(0).bonus
    return bonus


def test_a_linear_predictors_error_shrinks_as_the_closed_form_says() -> None:
    """One-hot states, linear networks, plain steps of rate eta: an error is (1 - 2 eta)^2 of the last one."""
    bonus = made("rnd")
    assert isinstance(bonus, RND)
    weights = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    fixed = torch.randn(5, 3, dtype=torch.float64)
    bonus.errors = lambda x: (x @ weights.T - x @ fixed.T).square().sum(-1)  # type: ignore[method-assign]
    bonus.mean, bonus.variance = torch.zeros(3), torch.ones(3) - 1e-8
    eta, state = 0.1, torch.eye(3, dtype=torch.float64)[1:2]
    batch, noise = {"next_observations": state}, {"bonus_rows": torch.zeros(1, 1)}
    errors = []
    for _ in range(5):
        loss, metrics = bonus.loss(batch, noise)
        errors.append(float(metrics["novelty"].detach()))
        (slope,) = torch.autograd.grad(loss, weights)
        weights.data -= eta * slope
    assert np.divide(errors[1:], errors[:-1]) == pytest.approx([(1 - 2 * eta) ** 2] * 4, rel=1e-6)


def test_moments_are_those_of_all_rows_so_far() -> None:
    source = np.random.default_rng(2)
    values = source.normal(3, 2, (40, 2))
    state: tuple[Tensor, ...] = (torch.zeros(()), torch.zeros(2), torch.ones(2))
    weight = source.random(40) < 0.7
    for first in range(0, 40, 8):
        part = slice(first, first + 8)
        state = merged(*state, torch.from_numpy(values[part]), torch.from_numpy(weight[part]).double())
    assert float(state[0]) == weight.sum()
    np.testing.assert_allclose(state[1], values[weight].mean(0))
    np.testing.assert_allclose(state[2], values[weight].var(0))


def test_a_block_is_scaled_by_the_deviation_of_its_filtered_sums() -> None:
    """Of 2 environments over 3 steps, in numpy; the sums continue in the next block."""
    bonus = made("rnd", PPO, num_envs=2, horizon=3, minibatches=1, bonus_discount=0.9)
    block = {name: value.unflatten(0, (3, 2)) for name, value in rows(6).items()}
    flat = block["next_observations"].reshape(6, 3).numpy()
    normal = np.clip((flat - flat.mean(0)) / flat.std(0), -5, 5)
    raw = bonus.errors(torch.from_numpy(normal).float()).detach().numpy().reshape(3, 2)  # type: ignore[operator]
    total, sums = np.zeros(2), []
    for step in range(3):
        total = 0.9 * total + raw[step]
        sums.append(total)
    found = bonus.measured(block)
    np.testing.assert_allclose(bonus.reward(block, found).detach(), raw / np.std(sums), rtol=1e-4)
    np.testing.assert_allclose(found["filtered"].detach(), total, rtol=1e-4)
    assert float(found["gain_count"]) == 6


def test_disagreement_by_hand() -> None:
    """Members (1, 2), (3, 2), (2, 5): biased variances 2/3 and 2, mean 4/3."""
    predictions = torch.tensor([[[1.0, 2.0]], [[3.0, 2.0]], [[2.0, 5.0]]])
    assert spread(predictions).item() == pytest.approx(4 / 3)
    bonus = made("disagreement")
    batch = rows(4)
    np.testing.assert_allclose(
        bonus.novelty(batch, bonus.numbers).detach(),
        spread(bonus.predictions(batch, bonus.numbers)).detach(),  # type: ignore[operator]
    )


@pytest.mark.parametrize("problem", [CHOICES, CONTINUOUS], ids=["choices", "continuous"])
def test_icms_losses_by_a_second_computation_and_only_the_inverse_model_shapes_features(problem: Spec) -> None:
    algorithm = DQN if problem.discrete else SAC
    bonus = made("icm", algorithm, problem)
    assert isinstance(bonus, ICM)
    batch = rows(6, problem.action_dim)
    loss, metrics = bonus.loss(batch, {})
    first, second = (
        bonus.features(batch["observations"].clamp(-5, 5)),
        bonus.features(batch["next_observations"].clamp(-5, 5)),
    )
    error = bonus.forward_model(torch.cat([first, batch["actions"]], 1)) - second
    surprise = 0.5 * (error**2).sum(1)
    told = bonus.inverse_model(torch.cat([first, second], 1))
    if problem.discrete:
        inverse = torch.nn.functional.cross_entropy(told, batch["actions"].argmax(1))
    else:
        inverse = 0.5 * ((told - batch["actions"]) ** 2).sum(1).mean()
    torch.testing.assert_close(loss, 0.2 * surprise.mean() + 0.8 * inverse)
    torch.testing.assert_close(metrics["novelty"], surprise)
    torch.testing.assert_close(bonus.novelty(batch, bonus.numbers), surprise)
    weight = bonus.features.weights[0]
    (whole,) = torch.autograd.grad(loss, weight, retain_graph=True)
    (alone,) = torch.autograd.grad(0.8 * inverse, weight)
    torch.testing.assert_close(whole, alone)


def test_a_visit_is_counted_once_however_often_its_row_is_drawn() -> None:
    shapes = {"observations": (1,), "next_observations": (1,), "rewards": (), "terminations": ()}
    buffer = TransitionBuffer(8, shapes, num_envs=2)

    def add(*values: float) -> None:
        nothing = {name: torch.zeros(2) for name in ("rewards", "terminations", "truncations")}
        seen = torch.tensor(values).unsqueeze(1)
        buffer.add({"observations": seen, "next_observations": seen, **nothing})

    source = CountedReplay(Replay(buffer), Replay(buffer), 0.5)
    source.bind([0], 4, torch.device("cpu"))
    add(0.0, 1.0)
    add(0.1, 3.0)
    for step in range(3):
        source.rows(step)
    assert source.gather(torch.tensor([[0, 1, 2, 3]]))["visits"].tolist() == [[2, 1, 2, 1]]
    for value in (1.0, 1.0, 1.0):  # the ring is written round
        add(value, 7.0)
        source.rows(3)
    assert source.gather(torch.tensor([[0, 1]]))["visits"].tolist() == [[4, 3]]
    bonus = made("counts")
    np.testing.assert_allclose(bonus.reward({"visits": torch.tensor([1.0, 4.0, 0.0])}), [1, 0.5, 1])
    assert len(cells(torch.randn(50, 3), 0.01).unique()) > 48
    assert torch.equal(cells(torch.tensor([[0.1, 0.9]]), 0.5), cells(torch.tensor([[-0.1, 1.1]]), 0.5))


def test_on_a_block_counts_stand_in_a_table() -> None:
    bonus = made("counts", PPO, num_envs=2, horizon=3, minibatches=1)
    assert isinstance(bonus, Counts)
    block = {
        "rewards": torch.zeros(3, 2),
        "next_observations": torch.tensor([0.0, 0, 0, 0, 9, 0])[:, None].repeat(1, 3),
    }
    block["next_observations"] = block["next_observations"].unflatten(0, (3, 2))
    found = bonus.measured(block)
    np.testing.assert_allclose(bonus.reward(block, found), np.array([[5, 5], [5, 5], [1, 5]]) ** -0.5)


# -- where it enters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", [DQN, SAC, TD3])
def test_replayed_rewards_have_the_bonus_of_the_present_networks(algorithm: Any, kind: str) -> None:
    problem = CHOICES if algorithm is DQN else CONTINUOUS
    agent = algorithm(problem, bonus=kind, bonus_weight=0.3, **SMALL).fresh(0)
    batch = {**rows(7, problem.action_dim), "visits": torch.arange(1.0, 8.0)}
    found = agent.annotate(batch)["rewards"]
    torch.testing.assert_close(found, batch["rewards"] + 0.3 * agent.bonus.reward(batch))
    assert not found.requires_grad
    assert (agent.bonus.reward(batch) > 0).all()
    if kind != "counts":
        for value in agent.bonus.parameters():
            value.data.mul_(1.5)
        assert not torch.allclose(agent.annotate(batch)["rewards"], found)
    plain = algorithm(problem, hidden=(8, 8))
    assert plain.annotate(batch) is batch
    assert bonus_of(plain) is None


def test_ppos_bonus_has_returns_that_no_end_cuts_short() -> None:
    """Generalised advantages over three steps by a loop; the second step ends its episode."""
    agent = PPO(CHOICES, bonus="rnd", num_envs=1, horizon=3, minibatches=1, bonus_weight=0.25, **SMALL).fresh(0)
    block = {name: value.unsqueeze(1) for name, value in rows(3).items()}
    block |= {"terminations": torch.tensor([[0.0], [1.0], [0.0]]), "truncations": torch.tensor([[0.0], [0.0], [1.0]])}
    found = agent.bonus_columns(block)
    earned = agent.bonus.reward(block, agent.bonus.measured(block))[:, 0]  # type: ignore[union-attr]
    value = [float(v) for v in agent.bonus_value(block["observations"][:, 0])]
    last = float(agent.bonus_value(block["next_observations"][2]))
    after = float(agent.bonus_value(block["next_observations"][0]))  # of the step that ended nothing
    advantage, wanted = 0.0, []
    for step, later in ((2, last), (1, value[2]), (0, after)):
        advantage = float(earned[step]) + 0.99 * later - value[step] + 0.99 * 0.95 * advantage
        wanted.insert(0, advantage)
    np.testing.assert_allclose(found["bonus_advantages"][:, 0].detach(), wanted, rtol=1e-4)
    np.testing.assert_allclose(found["bonus_returns"][:, 0].detach(), np.add(wanted, value), rtol=1e-4)
    whole = agent.columns(block)
    np.testing.assert_allclose(
        whole["advantages"][:, 0].detach(),
        (agent.advantages(block)["advantages"][:, 0] + 0.25 * torch.tensor(wanted)).detach(),
        rtol=1e-4,
    )


# -- what it finds -------------------------------------------------------------------------------------------------


class Chain(Scripted):
    """Twenty states in a row, one-hot; choice 1 climbs, choice 0 goes back to the start; the far end alone pays."""

    length, limit = 20, 25
    observation_dim = 20

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.single_action_space = Discrete(2)
        self.action_space = Box(0, 1, (num_envs,), np.int64)
        self.paid = 0

    def begin(self, source: np.random.Generator) -> np.ndarray:
        return np.eye(self.length)[0]

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        place = np.where(actions == 1, states.argmax(1) + 1, 0)
        ended = place == self.length - 1
        self.paid += int(ended.sum())
        return np.eye(self.length)[place], ended.astype(float), ended

    def get_state(self) -> dict[str, np.ndarray]:
        return {"states": self.states, "elapsed": self.elapsed}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.states, self.elapsed = state["states"].copy(), state["elapsed"].copy()


def explored(kind: str | None, steps: int) -> tuple[int, int]:
    """How often the far end was reached, and after how many steps, once it was five times or these are over."""
    env = Chain(4)
    options: dict[str, Any] = {
        "hidden": (64,), "num_envs": 4, "initial_steps": 200, "updates_per_step": 0.25, "epsilon_steps": 4000,
        "target_every": 50, "learning_rate": 1e-3, "bonus": kind, "bonus_hidden": (32,), "bonus_features": 16,
        "bonus_cell": 1.0, "bonus_weight": 1.0, "bonus_learning_rate": 1e-3, "last_epsilon": 0.05,
    }  # fmt: skip
    agent = DQN(Spec.of_choices(20, 2), **options).fresh(0)
    ran = OffPolicyLoop([agent], [0], env, planned_steps=20_000, batch_size=64, kernels=True)
    while ran.step < steps and env.paid < 5:
        ran.run(500)
    return env.paid, ran.step


def test_without_a_bonus_the_far_end_of_a_chain_is_not_found() -> None:
    assert explored(None, 20_000) == (0, 20_000)


@pytest.mark.parametrize("kind", ALL)
def test_each_bonus_finds_the_far_end_of_the_chain(kind: str) -> None:
    paid, steps = explored(kind, 8_000)
    assert paid >= 5, steps


# -- how it runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_a_killed_run_continues_bit_for_bit(kind: str) -> None:
    def fresh() -> OffPolicyLoop:
        options: dict[str, Any] = {"priority": 0.5} if kind == "counts" else {}
        return loop("dqn", Chain(), kernels=True, batch_size=16, initial_steps=20, bonus=kind, **SMALL, **options)

    whole = fresh()
    whole.run(60)
    saved = {name: value.clone() for name, value in whole.state(0).items()}
    resumed = fresh()
    assert resumed.restore([saved], 60) is None
    np.testing.assert_equal(resumed.run(20), whole.run(20))
    assert torch.equal(parameters(resumed), parameters(whole))


@pytest.mark.parametrize("kind", KINDS)
def test_ppo_continues_bit_for_bit_and_reports_what_the_environment_pays(kind: str) -> None:
    def fresh() -> Any:
        options: dict[str, Any] = {"num_envs": 2, "horizon": 16, "minibatches": 4, "epochs": 2}
        agent = PPO(Spec.of_choices(20, 2), bonus=kind, **SMALL, **options)
        return make_loop([agent.fresh(0)], [0], Chain(2), planned_steps=400)

    whole = fresh()
    whole.run(96)
    saved = {name: value.clone() for name, value in whole.state(0).items()}
    resumed = fresh()
    assert resumed.restore([saved], 96) is None
    first, second = resumed.run(64), whole.run(64)
    np.testing.assert_equal(first, second)
    assert first["episode_return"][0] == 0
    assert math.isfinite(first["bonus_value"][0])
    assert torch.equal(parameters(resumed), parameters(whole))


@pytest.mark.parametrize("kind", ALL)
def test_stacked_seeds_equal_each_alone(kind: str) -> None:
    options: dict[str, Any] = {"initial_steps": 20, "batch_size": 16, "bonus": kind, **SMALL}
    together = loop("dqn", Chain(4), seeds=(1, 2), **options)
    together.run(50)
    for position, seed in enumerate((1, 2)):
        alone = loop("dqn", Chain(2), seeds=(seed,), **options)
        alone.run(50)
        torch.testing.assert_close(parameters(alone), parameters(together, position), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["rnd", "counts"])
def test_stacked_ppo_equals_each_seed_alone(kind: str) -> None:
    def ran(seeds: tuple[int, ...]) -> Any:
        options: dict[str, Any] = {"num_envs": 2, "horizon": 16, "minibatches": 4, "epochs": 1}
        agent = PPO(Spec.of_choices(20, 2), bonus=kind, **SMALL, **options)
        made = make_loop([agent.fresh(s) for s in seeds], seeds, Chain(2 * len(seeds)), planned_steps=400)
        made.run(96)
        return made

    together = ran((1, 2))
    for position, seed in enumerate((1, 2)):
        found = parameters(together, position)
        torch.testing.assert_close(parameters(ran((seed,))), found, rtol=1e-3, atol=1e-4)


def test_what_does_not_go_with_a_bonus_is_refused() -> None:
    from surefoot.runs.algorithms import ALGORITHMS

    with refused("bonus", "choice"):
        DQN.configure(bonus="luck")
    for options in ({"n_step": 3}, {"hindsight": 4}, {"offline_fraction": 0.5}):
        with refused(next(iter(options)), "conflict"):
            SAC.configure(bonus="rnd", **options)
    with refused("bonus_share", "range"):
        PPO.configure(bonus="rnd", bonus_share=0.0)
    kind: Any = ALGORITHMS["recurrent_ppo"]
    with refused("bonus", "conflict"):
        kind.configure(bonus="rnd")
    with pytest.raises(ConfigError, match=r"dqn\.bonus is rnd, must be null with images"):
        DQN(Spec.of_choices({"image": Array((36, 36, 3), "uint8")}, 3), encoder="small", bonus="rnd")


def test_a_value_bonuss_fixed_point_is_its_functions_and_it_changes_choices_alone() -> None:
    """Two rows by loops, the second at an end; and with predictors equal to the functions the loss is 0."""
    agent = DQN(CHOICES, bonus="value", bonus_members=2, discount=0.9, bonus_weight=1e6, **SMALL).fresh(0)
    bonus = agent.bonus
    assert isinstance(bonus, ValueBonus)
    batch = rows(2)
    batch["terminations"] = torch.tensor([0.0, 1.0])
    batch = agent.annotate(batch)
    assert torch.equal(batch["rewards"], rows(2)["rewards"])
    loss, metrics = bonus.loss(batch, {})
    f, g = bonus.both(batch["observations"], bonus.numbers)
    later_f, later_g = bonus.both(batch["next_observations"], bonus.numbers)
    wanted, sizes = 0.0, []
    for row in range(2):
        a, best = int(batch["actions"][row].argmax()), int(agent.critic(batch["next_observations"])[row].argmax())
        sizes.append(max(abs(float(f[k, row, a] - g[k, row, a])) for k in range(2)))
        for k in range(2):
            reach = 0.9 * (1 - float(batch["terminations"][row]))
            reward = float(f[k, row, a]) - reach * float(later_f[k, row, best])
            wanted += (float(g[k, row, a]) - reward - reach * float(later_g[k, row, best])) ** 2 / 2
    assert float(loss.detach()) == pytest.approx(wanted, rel=1e-5)
    np.testing.assert_allclose(metrics["novelty"].detach(), sizes, rtol=1e-5)
    agent.epsilon.zero_()
    seen = batch["observations"]
    chosen = agent.explore(seen, torch.randn(2, agent.explore_dim)).argmax(1)
    assert torch.equal(chosen, bonus.of_choices(seen).argmax(1))
    bonus.both = lambda observations, numbers: (f, f)  # type: ignore[method-assign]
    assert float(bonus.loss(batch, {})[0]) == pytest.approx(0, abs=1e-12)
    with refused("bonus", "conflict"):
        SAC.configure(bonus="value")


def test_a_batch_without_a_bonus_is_left_alone() -> None:
    batch = rows(2)
    assert with_bonus(SAC(CONTINUOUS), batch) is batch
