"""The action-Jacobian penalty inside the engine: stacked, over kernels and tapes, resumed; and what it is for."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from problems import VARIANTS, agents, learner, random_store, relative

from surefoot.core.engine import smoothness
from surefoot.core.engine.agent import Agent, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.smoothness import measured
from surefoot.core.engine.sources import MAIN, Uniform
from surefoot.core.nn.native import native
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.evaluation import evaluate
from surefoot.offline import BC, TD3BC

SEEDS = [3, 0, 17]
PENALISED = [
    name
    for name in VARIANTS
    if not (head := agents(name, [0])[0].actor).always_samples | head.has_memory | head.discrete
]
"""Those whose policy has a mean action that depends on the observation alone."""
SOME = ["bc", "td3bc", "iql", "iql-dropout", "cql", "famo2o", "riql"]


def states_equal(one: Learner, other: Learner, position: int = 0) -> bool:
    own, theirs = one.state(position), other.state(position)
    return own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_weight_of_zero_changes_nothing(variant: str) -> None:
    store = random_store()
    without = learner(agents(variant, [3]), [3], store, kernels=True)
    zero = learner(agents(variant, [3]), [3], store, kernels=True, jacobian_penalty=0.0)
    assert without.run(20) == zero.run(20)
    assert states_equal(without, zero)
    assert [u.loss for u in zero.updates] == [u.loss for u in zero.agent.updates() if isinstance(u, Update)]


@pytest.mark.parametrize("variant", PENALISED)
def test_the_penaltys_noise_changes_no_other_random_number(variant: str) -> None:
    store = random_store()
    without = learner(agents(variant, [3]), [3], store)
    weighed = learner(agents(variant, [3]), [3], store, jacobian_penalty=0.1)
    for step in (0, 1, 40):
        assert torch.equal(without.sources[MAIN].rows(step), weighed.sources[MAIN].rows(step))
        before, after = without.stream.at(step), weighed.stream.at(step)
        assert set(after) - set(before) == {"jacobian"}
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert [u.name for u in without.updates] == [u.name for u in weighed.updates]


@pytest.mark.parametrize("variant", SOME)
def test_stacked_seeds_equal_each_seed_alone_in_float64(variant: str) -> None:
    store = random_store(torch.float64)
    own: dict[str, Any] = {"jacobian_penalty": 0.2}
    together = learner(agents(variant, SEEDS), SEEDS, store, torch.float64, **own)
    report = together.run(40)
    assert together.stacked
    for position, seed in enumerate(SEEDS):
        alone = learner(agents(variant, [seed]), [seed], store, torch.float64, **own)
        values = alone.run(40)
        assert not alone.stacked
        assert report["jacobian"][position] == pytest.approx(values["jacobian"][0], rel=1e-8)
        expected = alone.state(0)
        for name, value in together.state(position).items():
            assert relative(value, expected[name]) < 1e-9, name


@pytest.mark.skipif(native.library() is None, reason="no native module")
@pytest.mark.parametrize("variant", SOME)
def test_kernels_and_tapes_equal_plain_pytorch(variant: str) -> None:
    store = random_store()
    fast = learner(agents(variant, [3]), [3], store, kernels=True, jacobian_penalty=0.2)
    plain = learner(agents(variant, [3]), [3], store, jacobian_penalty=0.2)
    own, other = fast.run(4), plain.run(4)
    assert own == {name: pytest.approx(value, rel=1e-3, abs=1e-5) for name, value in other.items()}
    for name, network in plain.networks.items():
        assert relative(fast.networks[name].gradient, network.gradient) < 1e-3 or not network.gradient.any(), name
    if native.library() is not None and variant != "iql-dropout":
        unpenalised = learner(agents(variant, [3]), [3], store, kernels=True)
        unpenalised.run(4)
        assert fast.eager_because() == unpenalised.eager_because() == {}


def test_a_resumed_run_with_a_penalty_equals_an_uninterrupted_one_bit_for_bit() -> None:
    store = random_store()
    whole, before, after = (
        learner(agents("td3bc", [3]), [3], store, kernels=True, jacobian_penalty=0.2) for _ in range(3)
    )
    whole.run(40)
    before.run(17)
    after.restore([{name: value.clone() for name, value in before.state(0).items()}], 17)
    after.run(23)
    assert states_equal(whole, after)


# -- what it is for ----------------------------------------------------------------------------------------


class Trembling(gymnasium.Env[Any, Any]):
    """A double integrator whose position and velocity are seen with noise: x'' = u, steps of 0.1, 60 of them."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def seen(self) -> np.ndarray:
        return (self.state + 0.1 * self.np_random.standard_normal(2)).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.state = 0, self.np_random.uniform(-1, 1, 2)
        return self.seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.state = self.state + 0.1 * np.array([self.state[1], float(action[0])])
        return self.seen(), -float(self.state @ self.state), False, self.t == 60, {}


gymnasium.register("SurefootTrembling-v0", entry_point=Trembling)


def recorded(episodes: int = 40) -> Dataset:
    """What a stiff controller does there, which answers every tremor."""
    env = Trembling()
    columns: dict[str, list[Any]] = {"observations": [], "actions": [], "rewards": [], "next_observations": []}
    for episode in range(episodes):
        seen, _ = env.reset(seed=episode)
        for _ in range(60):
            action = np.clip(-4 * seen[:1] - 3 * seen[1:], -1, 1).astype(np.float32)
            after, reward, *_ = env.step(action)
            for name, value in zip(columns, (seen, action, reward, after), strict=True):
                columns[name].append(value)
            seen = after
    steps = np.arange(60 * episodes)
    ends = steps % 60 == 59
    arrays = {name: np.array(values, np.float32) for name, values in columns.items()}
    return Dataset(
        **arrays,
        terminations=np.zeros(len(steps), bool),
        truncations=ends,
        episode_ids=steps // 60,
        valid=np.ones(len(steps), bool),
    )


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return recorded()


def trained(kind: type[Agent], dataset: Dataset, weight: float) -> tuple[float, float]:
    """Mean action change among the tremors, and the squared Jacobian, of a policy trained with this weight."""
    agent = kind(dataset, hidden=(32, 32)).fresh(0)
    ready = agent.prepare(dataset)
    store = store_from_dataset(ready, agent.required_columns)
    made = Learner([agent], [0], Uniform(store), batch_size=64, jacobian_penalty=weight, kernels=True)
    made.run(1500)
    policy = made.extract(0).policy()
    (found,) = evaluate([policy], "SurefootTrembling-v0", episodes=20)
    assert found.action_changes is not None
    norm = measured(policy, torch.from_numpy(dataset.observations[::10].copy()))
    assert norm is not None
    return float(found.action_changes.mean()), norm


@pytest.mark.parametrize("kind", [BC, TD3BC])
def test_among_noisy_observations_actions_change_less_the_more_the_penalty_weighs(
    kind: type[Agent], dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, norms = zip(*(trained(kind, dataset, weight) for weight in (0.0, 0.03, 0.3)), strict=True)
    assert changes[0] > 1.2 * changes[1] > 1.2**2 * changes[2]
    assert norms[0] > 1.2 * norms[1] > 1.2**2 * norms[2]
    right = smoothness.squared_jacobian_estimate
    monkeypatch.setattr(smoothness, "squared_jacobian_estimate", lambda *given: -right(*given))
    flipped, _ = trained(kind, dataset, 0.03)
    assert flipped > changes[0]
