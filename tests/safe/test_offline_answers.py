"""Problems with known answers: what the offline safe algorithms must find, and do not where a sign flips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safe_problems import learner, spec
from scipy.optimize import linprog
from torch import Tensor

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.engine.agent import Agent, Batch, Metrics, Spec
from surefoot.data.dataset import Dataset
from surefoot.safe import CDT, CPQ, BCQLag, BCSafe, BEARLag, COptiDICE

ONE = Spec(1, 1, (-1.0,), (1.0,))


def dataset(observations: Any, actions: Any, rewards: Any, costs: Any, following: Any, ids: Any, ends: Any) -> Dataset:
    """Episodes by `ids`; `ends` are terminations, other last rows are cut off."""
    last = np.append(np.diff(ids) != 0, True)
    return Dataset(
        observations=np.asarray(observations, np.float32),
        actions=np.asarray(actions, np.float32),
        rewards=np.asarray(rewards, np.float32),
        next_observations=np.asarray(following, np.float32),
        terminations=np.asarray(ends, bool),
        truncations=last & ~np.asarray(ends, bool),
        episode_ids=np.asarray(ids, np.int64),
        valid=np.ones(len(ids), bool),
        costs=np.asarray(costs, np.float32),
    )


def bandit(rows: int = 600) -> Dataset:
    """One step: reward a, cost a^2, actions uniform in [-1, 1]. Within a limit d the best action is sqrt(d)."""
    actions = np.random.default_rng(0).uniform(-1, 1, (rows, 1))
    zeros, everywhere = np.zeros((rows, 1)), np.ones(rows, bool)
    return dataset(zeros, actions, actions[:, 0], actions[:, 0] ** 2, zeros, np.arange(rows), everywhere)


LIMIT = 0.25
SMALL: dict[str, Any] = {
    "cost_limit": LIMIT, "hidden": (24,), "vae_hidden": (24,), "reward_scale": 1.0, "normalization": "none",
    "learning_rate": 3e-3, "sampled_actions": 4,
}  # fmt: skip
FREE: dict[str, dict[str, Any]] = {
    # the data holds every action, so nothing must keep the policy near it
    "bcq_lag": {**SMALL, "perturbation": 1.0, "gains": (0.5, 0.05, 0.0)},
    "bear_lag": {**SMALL, "largest_discrepancy": 10.0, "gains": (0.5, 0.05, 0.0), "actor_learning_rate": 3e-3},
}


def trained(agent: Agent, data: Dataset, steps: int, **options: Any) -> Agent:
    torch.manual_seed(0)
    run = learner([agent], [0], data, batch_size=64, kernels=True, **options)
    run.run(steps)
    return run.extract(0)


def chosen(agent: Agent) -> float:
    """The action of the bandit's only state, averaged over the policy's draws where those are it."""
    policy = agent.policy()
    rows = torch.zeros(512, 1)
    noise = torch.randn(512, policy.noise_dim, generator=torch.Generator().manual_seed(0))
    return float(policy(rows, noise).mean())


@pytest.mark.parametrize("kind", [BCQLag, BEARLag])
def test_the_bandits_best_action_within_its_limit_is_found(kind: type[Agent]) -> None:
    agent = kind(ONE, **FREE[kind.name]).fresh(0)
    assert chosen(trained(agent, bandit(), 1200)) == pytest.approx(LIMIT**0.5, abs=0.1)


class Greedy(BEARLag):
    """The constraint's sign flipped: what costs more is preferred."""

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        loss, metrics = super().actor_loss(batch, noise)
        _, cost_q = self.values(batch["observations"], self._unsquashed(batch, noise)[0].tanh())
        return loss - 2 * self.multiplier() * (cost_q.mean() - self.cost_threshold), metrics


class Averse(BEARLag):
    """The reward's sign flipped."""

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        loss, metrics = super().actor_loss(batch, noise)
        q, _ = self.values(batch["observations"], self._unsquashed(batch, noise)[0].tanh())
        return loss + 2 * q.mean(), metrics


@pytest.mark.parametrize("kind", [Greedy, Averse])
def test_with_a_sign_flipped_it_is_not(kind: type[Agent]) -> None:
    agent = kind(ONE, **FREE["bear_lag"]).fresh(0)
    assert abs(chosen(trained(agent, bandit(), 600)) - LIMIT**0.5) > 0.25


def fork(rows: int = 400) -> Dataset:
    """From A actions above 0 lead to C, which earns 1, others to B, which earns 2 and costs 1. A earns a tenth of a."""
    first = np.random.default_rng(0).uniform(-1, 1, rows)
    second = np.random.default_rng(1).uniform(-1, 1, rows)
    eye, to_b = np.eye(3), first <= 0
    observations = np.stack([np.tile(eye[0], (rows, 1)), np.where(to_b[:, None], eye[1], eye[2])], 1).reshape(-1, 3)
    following = np.stack([observations[1::2], np.zeros((rows, 3))], 1).reshape(-1, 3)
    actions = np.stack([first, second], 1).reshape(-1, 1)
    rewards = np.stack([0.1 * first, np.where(to_b, 2.0, 1.0)], 1).reshape(-1)
    costs = np.stack([np.zeros(rows), to_b], 1).reshape(-1)
    ends = np.tile([False, True], rows)
    return dataset(observations, actions, rewards, costs, following, np.repeat(np.arange(rows), 2), ends)


@pytest.mark.parametrize(("limit", "road", "value"), [(0.5, "C", 1.0), (50.0, "B", 2.0)])
def test_cpqs_values_come_through_affordable_actions_only(limit: float, road: str, value: float) -> None:
    """With a limit of .5 the road over B is worth nothing and C's its 1; where all is affordable, B's is worth 2.

    The penalty is off: every action is in the data here.
    """
    spec = Spec(3, 1, (-1.0,), (1.0,))
    options = {**SMALL, "cost_limit": limit, "actor_learning_rate": 3e-3, "penalty_gradient": False, "discount": 0.9}
    found: Any = trained(CPQ(spec, **options).fresh(0), fork(), 1000)
    a = torch.eye(3)[:1]
    over = {"B": torch.cat([a, torch.tensor([[-0.6]])], 1), "C": torch.cat([a, torch.tensor([[0.6]])], 1)}
    worth = {name: float(found.critic(pair).mean()) for name, pair in over.items()}
    assert worth[road] == pytest.approx(0.9 * value + (0.06 if road == "C" else -0.06), abs=0.2)
    if road == "C":
        assert worth["B"] == pytest.approx(-0.06, abs=0.2)
    action = float(found.policy()(a))
    assert action > 0.1 if road == "C" else action < -0.1


def ring(steps: int = 40, episodes: int = 60) -> tuple[Dataset, np.ndarray, np.ndarray, np.ndarray]:
    """Three states in a ring: action + continues, - stays. Rewards, costs and transitions by (state, action)."""
    rewards = np.array([[0.0, 1.0], [0.2, 0.1], [0.0, 0.6]])
    costs = np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.3]])
    moves = np.array([[0, 1], [1, 2], [2, 0]])
    source = np.random.default_rng(0)
    states, actions = np.zeros((episodes, steps), int), source.integers(0, 2, (episodes, steps))
    following = np.zeros_like(states)
    for t in range(steps):
        following[:, t] = moves[states[:, t], actions[:, t]]
        if t + 1 < steps:
            states[:, t + 1] = following[:, t]
    s, a, n = states.reshape(-1), actions.reshape(-1), following.reshape(-1)
    eye, ids = np.eye(3), np.repeat(np.arange(episodes), steps)
    made = dataset(eye[s], (a - 0.5)[:, None], rewards[s, a], costs[s, a], eye[n], ids, np.zeros(len(s)))
    return made, rewards, costs, moves


def programme(rewards: np.ndarray, costs: np.ndarray, moves: np.ndarray, discount: float, limit: float) -> np.ndarray:
    """(S, A) the best normalised discounted visits: max r'd, flow from state 0, c'd <= limit."""
    count, choices = rewards.shape
    flow = np.zeros((count, count * choices))
    for s in range(count):
        for a in range(choices):
            flow[s, s * choices + a] += 1
            flow[moves[s, a], s * choices + a] -= discount
    first = np.zeros(count)
    first[0] = 1 - discount
    found = linprog(-rewards.reshape(-1), costs.reshape(1, -1), [limit], flow, first, bounds=(0, None))
    assert found.success
    return found.x.reshape(count, choices)


@pytest.mark.parametrize("limit", [0.08, 0.15])
def test_coptidice_finds_the_linear_programmes_visits(limit: float) -> None:
    """Its weights times the data's own visits, on a CMDP whose solution is known; the limit binds."""
    data, rewards, costs, moves = ring()
    discount, steps = 0.9, 40
    best = programme(rewards, costs, moves, discount, limit)
    assert (best * costs).sum() == pytest.approx(limit, abs=1e-6)
    per_episode = limit * steps / (1 - discount**steps)  # so that (1 - g) q_thr is the limit of the programme
    agent = COptiDICE(
        Spec(3, 1, (-1.0,), (1.0,)), discount=discount, cost_limit=per_episode, regularization=0.02, radius=0.0,
        hidden=(32,), learning_rate=5e-3, reward_scale=1.0, normalization="none", multiplier=2.0,
    ).fresh(0)  # fmt: skip
    found = trained(agent, data, 4000)
    assert float(found.step_limit) == pytest.approx(limit, rel=1e-5)
    ready = found.prepare(data)
    columns = {
        name: torch.from_numpy(np.asarray(getattr(ready, name), np.float32)) for name in found.required_columns[:-1]
    }
    weights = found.annotate({**columns, "initial_observations": columns["observations"]})["weights"].detach().numpy()
    weights = weights / weights.mean()
    assert (weights * data.rewards).mean() == pytest.approx((best * rewards).sum(), rel=0.15)  # within .12 over seeds
    assert data.costs is not None
    assert (weights * data.costs).mean() == pytest.approx(limit, rel=0.5)  # the units' slip is off by a factor of 10


def test_bc_safe_clones_the_cheap_and_bc_the_rest_by_mode() -> None:
    episodes = 20
    ids = np.repeat(np.arange(episodes), 5)
    dear = ids % 2 == 1
    actions = np.where(dear, 0.5, -0.5)[:, None]
    zeros = np.zeros((len(ids), 1))
    data = dataset(zeros, actions, dear.astype(float), dear * 10.0, zeros, ids, np.zeros(len(ids)))
    answers = {"safe": -0.5, "all": 0.0, "risky": 0.5}
    for mode, answer in answers.items():
        options = {"hidden": (8,), "normalization": "none", "cost_limit": 25.0, "learning_rate": 1e-2, "mode": mode}
        found = trained(BCSafe(ONE, **options).fresh(0), data, 200)
        assert float(found.policy()(torch.zeros(1, 1))) == pytest.approx(answer, abs=0.1), mode
    with pytest.raises(DataError, match="none of 20 episodes is boundary"):
        BCSafe(ONE, mode="boundary").prepare(data)


def test_the_frontier_holds_what_earns_most_for_its_cost() -> None:
    from surefoot.safe.bc_safe import chosen_episodes

    costs = np.array([0.0, 10.0, 20.0, 30.0, 40.0, 5.0, 35.0])
    returns = np.array([0.0, 10.0, 20.0, 30.0, 40.0, -20.0, 5.0])  # five on a line, two far below it
    assert chosen_episodes(returns, costs, 25.0, "frontier").tolist() == [0, 1, 2, 3, 4]
    assert chosen_episodes(returns, costs, 20.0, "boundary").tolist() == [1, 2, 3]
    assert chosen_episodes(returns, costs, 20.0, "risky").tolist() == [4]


def test_cdt_does_what_it_is_asked_for() -> None:
    """Two steps: + earns 1 and costs 1, - nothing. Asked for 2 at a cost of 2 it takes +, +; for 0 at 0 it takes -, -.

    Asked for 1 at 1 what is left decides: after a + nothing, so -, and after a - it takes +.
    """
    episodes = 120
    ids = np.repeat(np.arange(episodes), 2)
    bold = np.random.default_rng(1).integers(0, 2, len(ids))
    zeros = np.zeros((len(ids), 1))
    data = dataset(zeros, (bold - 0.5)[:, None], bold, bold, zeros, ids, np.zeros(len(ids)))
    options = {"width": 16, "heads": 2, "layers": 1, "context": 2, "dropout": 0.0, "learning_rate": 3e-3}
    agent = CDT(ONE, **options, cost_limit=2.0, normalization="none", max_gradient_norm=5.0).fresh(0)
    found = trained(agent, data, 500)
    policy: Any = found.policy()
    assert (float(policy.actor.target_return), float(policy.actor.target_cost)) == (2.0, 2.0)

    def taken(target: float, first: float, left: float) -> float:
        """The second action, after `first`, which left so much of the target."""
        window = {
            "observations": torch.zeros(1, 2, 1),
            "actions": torch.tensor([[[first], [0.0]]]),
            "returns_to_go": torch.tensor([[target, left]]),
            "costs_to_go": torch.tensor([[target, left]]),
            "timesteps": torch.tensor([[0.0, 1.0]]),
            "mask": torch.ones(1, 2),
        }
        return float(policy.actor.act_in(window))

    for target, first, left, answer in (
        (2.0, 0.5, 1.0, 0.5),
        (0.0, -0.5, 0.0, -0.5),
        (1.0, 0.5, 0.0, -0.5),
        (1.0, -0.5, 1.0, 0.5),
    ):
        assert taken(target, first, left) == pytest.approx(answer, abs=0.2), (target, first)
    for target, answer in ((2.0, 0.5), (0.0, -0.5)):
        policy.actor.target_return.fill_(target)
        policy.actor.target_cost.fill_(target)
        policy.reset()
        for _ in range(2):  # in a loop, by what it is given
            assert float(policy.select_action(np.zeros(1))[0]) == pytest.approx(answer, abs=0.2)
            policy.observe(target / 2, target / 2)
    policy.select_action(np.zeros(1))
    with pytest.raises(ConfigError, match="observe"):
        policy.select_action(np.zeros(1))


def test_cost_critics_see_beyond_a_time_out() -> None:
    """A cost of 1 a step, cut off every 5 steps: at a discount of .5 a state costs 2, not what is left of 5 steps."""
    ids = np.repeat(np.arange(40), 5)
    source = np.random.default_rng(0)
    zeros = np.zeros((len(ids), 3))
    data = dataset(zeros, source.uniform(-1, 1, (len(ids), 2)), zeros[:, 0], np.ones(len(ids)), zeros, ids, zeros[:, 0])
    options = {**SMALL, "hidden": (16,), "discount": 0.5, "target_rate": 0.05, "cost_limit": 5.0}
    found: Any = trained(BCQLag(spec(), **options).fresh(0), data, 500)
    pairs = torch.cat([torch.zeros(8, 3), torch.rand(8, 2) * 2 - 1], 1)
    torch.testing.assert_close(found.cost_critic(pairs).detach(), torch.full((2, 8), 2.0), atol=0.2, rtol=0)
