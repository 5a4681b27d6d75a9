"""FamO2O fine-tuning: the policy learns at the coefficients that the balance model picks; how both variants run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hybrid_problems import regulated
from online_problems import RICCATI, Regulator, loop, parameters, regulators_gain, spec

from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Uniform
from surefoot.data.store import Store
from surefoot.envs.native import NativeVectorEnv
from surefoot.offline import FamO2O
from surefoot.online import FamO2OCQLOnline, FamO2OOnline
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.runs.embedded import generate

SMALL = {"coefficients": (1.0, 5.0), "rewards": "none"}


BOTH = {FamO2OOnline: SMALL, FamO2OCQLOnline: {"sampled_actions": 2}}
"""On IQL and on CQL, and options for small problems."""
Kind = type[FamO2OOnline] | type[FamO2OCQLOnline]


def fresh(seeds: tuple[int, ...] = (0,), num_envs: int = 1, kind: Kind = FamO2OOnline, **options: Any) -> OffPolicyLoop:
    env = Regulator(num_envs * len(seeds))
    data = kind(spec(env), **BOTH[kind]).prepare(regulated())
    given = {**BOTH[kind], "initial_steps": 20, "batch_size": 16, "dataset": data, **options}
    return loop(kind.name, env, seeds, **given)


def test_online_the_policys_loss_has_the_balance_models_own_coefficients() -> None:
    online = FamO2OOnline(Spec(1, 1, (-1.0,), (1.0,)), hidden=(8,), **SMALL).fresh(0)
    batch = {"observations": torch.randn(6, 1), "actions": torch.randn(6, 1), "target_q": torch.randn(6)}
    noise = {"coefficient": torch.randn(6, 1)}
    picked = online.balance.sample(batch["observations"], noise["coefficient"])[0].detach()
    assert float(picked.std()) > 0
    loss, _ = online.actor_loss(batch, noise)
    offline = FamO2O(Spec(1, 1, (-1.0,), (1.0,)), hidden=(8,), **SMALL)
    offline.load_state_dict(online.state_dict())
    expected, _ = offline.actor_loss(batch, {"coefficient": ((picked - 1) / 4).unsqueeze(1)})
    torch.testing.assert_close(loss, expected)
    gradients = torch.autograd.grad(loss, list(online.balance.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in gradients)  # how it picks is not learned there


def test_the_other_losses_are_the_offline_ones() -> None:
    trained = fresh()
    trained.run(60)
    online, offline = trained.agent, FamO2O(trained.agent.spec, hidden=(16, 16), **SMALL)
    offline.load_state_dict(online.state_dict())
    assert [u.name for u in online.updates()] == [u.name for u in offline.updates()]
    batch = online.annotate(trained.learner.sources[MAIN].gather(trained.learner.sources[MAIN].rows(3)[0]))
    noise = {"choice": torch.randn(16, 1), "action": torch.randn(16, 1)}
    for mine, other in zip(online.updates(), offline.updates(), strict=True):
        if mine.name != "actor_loss":
            torch.testing.assert_close(mine.loss(batch, noise)[0], other.loss(batch, noise)[0])


@pytest.mark.parametrize("kind", BOTH)
def test_a_training_step_runs_from_the_tape(kind: Kind) -> None:
    trained = fresh(kind=kind, kernels=True)
    trained.run(40)
    assert trained.learner.step == 20
    assert trained.learner.eager_because() == {}


@pytest.mark.parametrize("kind", BOTH)
def test_stacked_seeds_equal_each_alone(kind: Kind) -> None:
    together = fresh((1, 2), 2, kind)
    together.run(30)
    for position, seed in enumerate((1, 2)):
        alone = fresh((seed,), 2, kind)
        alone.run(30)
        torch.testing.assert_close(parameters(alone), parameters(together, position), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("kind", BOTH)
def test_a_killed_run_goes_on_bit_for_bit(kind: Kind) -> None:
    def one() -> OffPolicyLoop:
        env = NativeVectorEnv("native/pendulum", 1, max_episode_steps=37)
        data = kind(spec(env), **BOTH[kind]).prepare(generate("native/pendulum", transitions=300, seed=1))
        return loop(kind.name, env, initial_steps=50, batch_size=16, dataset=data, kernels=True,
                    **BOTH[kind])  # fmt: skip

    whole, resumed = one(), one()
    whole.run(90)
    saved = {name: value.clone() for name, value in whole.state(0).items()}
    last = whole.run(60)
    assert resumed.restore([saved], 90) is None
    np.testing.assert_equal(resumed.run(60), last)
    for name, value in whole.state(0).items():
        assert torch.equal(value, resumed.state(0)[name]), name


class ClonesTheWorst(FamO2OOnline):
    """FamO2O that weighs actions by how bad they are."""

    def weights(self, advantages: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
        return super().weights(-advantages, coefficients)


@pytest.mark.parametrize("kind", [FamO2OOnline, ClonesTheWorst])
def test_fine_tuning_brings_the_policy_to_the_regulators_gain(kind: type[FamO2OOnline]) -> None:
    """From data of uniform actions, the gain after a few steps offline and after acting; Riccati's is -1.34427 in u."""
    env, data = Regulator(8), regulated(2000)
    shape = {"hidden": (32, 32), "learning_rate": 3e-3, "discount": 0.95, "target_rate": 0.1, "expectile": 0.7,
             "coefficients": (0.5, 8.0), "rewards": "none", "initialization": "torch"}  # fmt: skip
    offline = FamO2O(spec(env), **shape).fresh(0)
    store_of = offline.prepare(data)
    store = Store.pack({key: getattr(store_of, key) for key in FamO2O.required_columns})
    Learner([offline], [0], Uniform(store), batch_size=128, kernels=True).run(100)
    before = regulators_gain(offline)
    online = kind(spec(env), num_envs=8, initial_steps=400, updates_per_step=0.5, **shape)
    online.load_state_dict(offline.state_dict())
    trained = OffPolicyLoop(
        [online],
        [0],
        env,
        planned_steps=4000,
        batch_size=128,
        kernels=True,
        dataset=online.prepare(data),
    )
    trained.run(3000)
    after = regulators_gain(trained.agent)
    found = abs(before - RICCATI) > 0.3 and after == pytest.approx(RICCATI, abs=0.15)
    assert found == (kind is FamO2OOnline), (before, after)
