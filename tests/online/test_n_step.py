"""Targets of several steps: rows against stable-baselines3's, full updates, known values, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from online_problems import (
    RICCATI,
    Climb,
    EndsEverywhere,
    Regulator,
    assert_taped_equals_plain,
    assert_value,
    climbs_value,
    loop,
    mistaken,
    regulators_gain,
    spec,
)
from refusals import refused
from test_off_policy_updates import Rows, assert_updates_equal

from surefoot.core.engine.agent import Batch, Metrics, Spec
from surefoot.core.engine.sources import MAIN
from surefoot.online import SAC, TD3
from surefoot.online.base.agents import bootstrapped
from surefoot.online.loops.off_policy import OffPolicyLoop

ROWS, STEPS, N = 6, 4, 3
PROBLEM = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))


def windows() -> list[Rows]:
    """Batches (ROWS, N, ...) of which some windows end by themselves and some are cut."""
    source = np.random.default_rng(5)
    made = []
    for _ in range(STEPS):
        kept = source.integers(1, N + 1, ROWS)
        ends = np.zeros((ROWS, N))
        ends[np.arange(ROWS), kept - 1] = source.random(ROWS) < 0.4
        places = np.minimum(np.arange(N), kept[:, None] - 1)[..., None]
        found = {
            "observations": source.normal(size=(ROWS, N, 3)),
            "actions": source.uniform(-1, 1, (ROWS, N, 2)),
            "rewards": 3 * source.normal(size=(ROWS, N)),
            "terminations": np.take_along_axis(ends, places[..., 0], 1),
            "next_observations": np.take_along_axis(source.normal(size=(ROWS, N, 3)), places, 1),
            "mask": (np.arange(N) < kept[:, None]).astype(float),
        }
        made.append({name: torch.from_numpy(value) for name, value in found.items()})
    return made


def single(batch: Rows, discount: float) -> Rows:
    """The windows as rows of one step: their sums, and "terminations" of which the discount leaves the right factor."""
    rewards, following, factors = torch.zeros(ROWS).double(), torch.zeros(ROWS, 3).double(), torch.zeros(ROWS).double()
    for row in range(ROWS):
        factor = 1.0
        for k in range(N):
            if batch["mask"][row, k] == 0:
                break
            rewards[row] += factor * batch["rewards"][row, k]
            following[row] = batch["next_observations"][row, k]
            factor *= discount * (1 - float(batch["terminations"][row, k]))
        factors[row] = factor
    first = {name: batch[name][:, 0] for name in ("observations", "actions")}
    return {**first, "rewards": rewards, "next_observations": following, "terminations": 1 - factors / discount}


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_full_updates_equal_the_second_implementation(kind: Any) -> None:
    agent = kind(PROBLEM, hidden=(7, 6), n_step=N, discount=0.9).fresh(2)
    for name, value in agent.named_parameters():
        if name.startswith("target_critic"):
            value.data.add_(0.1)
    given = windows()
    assert_updates_equal(agent, given, [single(batch, 0.9) for batch in given], ROWS)


def test_rows_are_stable_baselines3_s() -> None:
    """Of 40 steps with ends, limits and the newest step: sums of rewards, where they lead, and what is behind them."""
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    rng, count = np.random.default_rng(3), 40
    ends = rng.random(count) < 0.15
    limits = ~ends & (rng.random(count) < 0.15)
    rewards = rng.normal(size=count).astype(np.float32)

    class Scripted(Climb):
        at, limit = 0, 10**6

        def step(self, actions: Any) -> Any:
            end, cut = ends[self.at : self.at + 1], limits[self.at : self.at + 1]
            following = np.array([[self.at + 1.0]], np.float32)
            info = {"final_obs": following.copy(), "_final_obs": end | cut} if (end | cut).any() else {}
            self.states = np.array([[self.at + 1.5]], np.float32) if info else following
            self.at += 1
            return self.states.copy(), rewards[self.at - 1 : self.at], end, cut, info

    theirs = buffers.NStepReplayBuffer(
        count + 1, Box(-9, 99, (1,)), Box(-1, 1, (1,)), device="cpu", n_steps=N, gamma=0.9
    )
    ours = loop("td3", Scripted(), n_step=N, discount=0.9, initial_steps=10**6, batch_size=count, replay_capacity=64)
    ours.run(count)
    source: Any = ours.learner.sources[MAIN]
    for at in range(count):
        row = source.buffer.gather(torch.tensor([at]))
        done = np.array([ends[at] or limits[at]])
        theirs.add(
            row["observations"].numpy(), row["next_observations"].numpy(), row["actions"].numpy(),
            rewards[at : at + 1], done, [{"TimeLimit.truncated": bool(limits[at])}],
        )  # fmt: skip
    indices = np.arange(count)
    wanted = theirs._get_samples(indices)
    found = ours.agent.annotate(source.gather(torch.from_numpy(indices)))
    torch.testing.assert_close(found["rewards"], wanted.rewards.squeeze(1).float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found["actions"], wanted.actions.float())
    torch.testing.assert_close(found["observation_actions"][:, :1], wanted.observations.float())
    discounts = (wanted.discounts * (1 - wanted.dones)).squeeze(1).float()
    torch.testing.assert_close(found["reach"], discounts, rtol=1e-5, atol=1e-6)
    going = wanted.dones.squeeze(1) == 0
    torch.testing.assert_close(found["next_observations"][going], wanted.next_observations[going].float())


class Far(Climb):
    """`Climb` with a limit of four steps: windows of three are whole, cut by the limit, and cut by the newest step."""

    limit = 4


@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.parametrize(("env", "right"), [(Far, True), (mistaken(EndsEverywhere, Far), False)])
def test_values_past_a_time_limit_are_learned(n: int, env: Any, right: bool) -> None:
    one = env(8)
    options: dict[str, Any] = {"hidden": (32, 32), "initial_steps": 200, "discount": 0.9, "target_rate": 0.3}
    agent = TD3(spec(one), num_envs=8, updates_per_step=0.25, learning_rate=3e-3, n_step=n, **options)
    trained = OffPolicyLoop([agent.fresh(0)], [0], one, planned_steps=8000, batch_size=128, kernels=True)
    trained.run(4000)
    with torch.no_grad():
        found = float(trained.agent.critic(torch.zeros(1, 2)).mean())
    assert_value(found, climbs_value(0.9), right)


class WrongTarget(TD3):
    """TD3 whose critics learn the cost where they should learn the reward."""

    def critic_loss(self, batch: Batch, noise: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Metrics]:
        return super().critic_loss({**batch, "rewards": -batch["rewards"]}, noise)


@pytest.mark.parametrize("kind", [TD3, WrongTarget])
def test_the_regulators_gain_is_near_riccatis(kind: Any) -> None:
    """Only near: the second action of each window is the noisy one that was taken."""
    env = Regulator(8)
    agent = kind(spec(env), num_envs=8, updates_per_step=0.5, n_step=2, exploration_noise=0.1, learning_rate=3e-3,
                 hidden=(32, 32), initial_steps=200, discount=0.95, target_rate=0.1)  # fmt: skip
    trained = OffPolicyLoop([agent.fresh(0)], [0], env, planned_steps=8000, batch_size=128, kernels=True)
    trained.run(4000 if kind is TD3 else 1500)
    gain = regulators_gain(trained.agent)
    assert (abs(gain - RICCATI) < 0.25 * abs(RICCATI)) == (kind is TD3), gain


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_a_taped_step_leaves_what_plain_pytorch_leaves(algorithm: str) -> None:
    options: dict[str, Any] = {"batch_size": 8, "initial_steps": 20, "n_step": N, "hidden": (16, 16)}
    made = [loop(algorithm, Climb(2), num_envs=2, kernels=kernels, **options) for kernels in (True, False)]
    assert_taped_equals_plain(made, 40)


def test_of_plain_rows_the_target_is_that_of_one_step() -> None:
    batch = {"rewards": torch.tensor([1.0, 2.0]), "terminations": torch.tensor([0.0, 1.0])}
    assert bootstrapped(batch, torch.tensor([10.0, 10.0]), 0.5).tolist() == [6.0, 2.0]
    assert SAC(PROBLEM).annotate(batch) is batch


def test_what_it_cant_learn_is_refused_by_name() -> None:
    with refused("n_step", "range"):
        SAC.configure(n_step=0)
    with refused("offline_fraction", "conflict"):
        TD3.configure(n_step=2, offline_fraction=0.5)
    for other in ("redq", "wsrl", "mbpo"):
        kind: Any = __import__("surefoot.runs.algorithms", fromlist=["ALGORITHMS"]).ALGORITHMS[other]
        with refused("n_step", "unknown"):
            kind.configure(n_step=2)
