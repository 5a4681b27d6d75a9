"""Rollouts and plans on a GPU, after the first: one launch, no wait, no copy. Counted against a driver that is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda, installed
from test_gpu_emulated import policy_of
from torch import Tensor
from waits import Copies

from surefoot.core.policy.policy import Policy
from surefoot.cuda_ext import resident
from surefoot.cuda_ext.operation import mark_bad_policies
from surefoot.cuda_ext.policy import NativePolicy
from surefoot.cuda_ext.resident import on_device
from surefoot.cuda_ext.rollout import rollout
from surefoot.envs import make_vec
from surefoot.envs import rollout as rollout_by_name
from surefoot.envs.systems import system
from surefoot.online import PPO, spec_of
from surefoot.world_models.futures import Objective
from surefoot.world_models.known.exact import NativeDynamics
from surefoot.world_models.planners import CEM, ICEM, MPPI

META = torch.device("meta")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, nvrtc: None) -> FakeCuda:
    """CUDA without a driver, for tensors of the meta device."""
    monkeypatch.setattr(resident, "_kept", type(resident._kept)())
    monkeypatch.setattr(resident, "_bytes", 0)
    return installed(monkeypatch, "meta")


def there(policy: NativePolicy) -> NativePolicy:
    """The policy with its tensors on the device."""

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(META)
        return [one.to(META) for one in value] if isinstance(value, list) else value

    return NativePolicy(**{name: moved(value) for name, value in vars(policy).items()})


def waits_after_the_first(fake: FakeCuda, call: Callable[[], Any]) -> tuple[list[str], list[str]]:
    """Kernels that the third call launched, and copies that it made."""
    call()
    call()
    fake.launched.clear()
    waited = fake.waited
    with Copies() as copies:
        call()
    assert fake.waited == waited
    return [launched[2] for launched in fake.launched], copies


CARTPOLE = system("cartpole_balance")
NOISY = {"log_std_range": (-5.0, 2.0)}
CALLS: dict[str, dict[str, Any]] = {
    "a policy of the host": {"policy": policy_of(CARTPOLE), "num_envs": 9},
    "a policy of the GPU": {"policy": there(policy_of(CARTPOLE)), "num_envs": 9},
    "a sampling policy": {"policy": there(policy_of(CARTPOLE, **NOISY)), "num_envs": 9, "episodes": "many"},
    "policies of several seeds": {"policy": [policy_of(CARTPOLE), policy_of(CARTPOLE)], "num_envs": 8},
    "random actions": {"random": True, "num_envs": 9},
    "actions of the host": {"actions": np.zeros((10, 9, 1), np.float32)},
    "actions of the GPU": {"actions": torch.zeros(10, 9, 1, device=META)},
    "a seed an environment": {"random": True, "seeds": np.arange(9)},
    "states and parameters": {
        "random": True,
        "states": np.zeros((9, len(CARTPOLE.states))),
        "parameters": CARTPOLE.default_parameters().repeat(9, 1),
    },
    "records": {"random": True, "num_envs": 9, "record": ("observations", "terminated"), "horizon": 7},
}


@pytest.mark.parametrize("name", CALLS)
def test_a_rollout_after_the_first_is_one_launch_and_copies_nothing(name: str, fake: FakeCuda) -> None:
    kernels, copies = waits_after_the_first(fake, lambda: rollout(CARTPOLE, **CALLS[name], device=META))
    own_states = "states" in CALLS[name]
    assert kernels == (["surefoot_rollout"] if own_states else ["surefoot_reset", "surefoot_rollout"])
    assert copies == []


def test_the_first_rollout_copies_and_the_count_sees_it(fake: FakeCuda) -> None:
    with Copies() as copies:
        rollout(CARTPOLE, **CALLS["a policy of the host"], device=META)
    assert len(copies) > 1
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(torch.isfinite(torch.zeros(3, device=META)).all())


def test_weights_that_changed_are_copied_once(fake: FakeCuda) -> None:
    policy = policy_of(CARTPOLE)
    rollout(CARTPOLE, policy=policy, num_envs=9, device=META)
    policy.weights[0].add_(1)
    with Copies() as copies:
        rollout(CARTPOLE, policy=policy, num_envs=9, device=META)
        rollout(CARTPOLE, policy=policy, num_envs=9, device=META)
    assert len(copies) == 1


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(
    "planner",
    [MPPI(horizon=5, samples=8), CEM(horizon=5, samples=8), ICEM(horizon=5, samples=16)],
    ids=lambda one: one.name,
)
def test_a_plan_after_the_first_is_one_launch_and_copies_nothing(planner: Any, members: int, fake: FakeCuda) -> None:
    world = NativeDynamics(CARTPOLE, CARTPOLE.default_parameters().repeat(members, 1), backend="native")
    memory = {name: value.to(META) for name, value in planner.begin(3, 1).items()}
    states, objective = (
        torch.zeros(3, len(CARTPOLE.states), device=META),
        Objective(futures=members, spread="epistemic"),
    )
    kernels, copies = waits_after_the_first(fake, lambda: planner.plan(world, states, memory, objective))
    assert kernels == ["surefoot_plan"]
    assert copies == []


def test_a_block_of_several_seeds_is_one_launch_and_copies_nothing(fake: FakeCuda) -> None:
    env = make_vec("native/cartpole-balance", 12)
    env.reset(seed=0)
    agents = [PPO(spec_of(env)).fresh(seed).to(META) for seed in range(3)]
    policies = [Policy(agent.actor, agent.normalizer, agent.action_low, agent.action_high) for agent in agents]
    kernels, copies = waits_after_the_first(fake, lambda: env.roll_out(policies, 6, META))
    assert kernels == ["surefoot_rollout"]
    assert copies == []


def test_parameters_by_name_are_copied_once(fake: FakeCuda) -> None:
    def call() -> None:
        rollout_by_name("random", "native/cartpole-balance", 9, 5, parameters={"pole_mass": 0.2}, device=META)

    assert waits_after_the_first(fake, call)[1] == []


def test_a_policy_of_the_host_that_is_not_finite_is_refused_and_one_of_the_gpu_gives_no_returns(
    fake: FakeCuda,
) -> None:
    policy = policy_of(CARTPOLE)
    policy.weights[0][0, 0] = float("nan")
    with pytest.raises(ValueError, match="no finite numbers"):
        rollout(CARTPOLE, policy=policy, num_envs=9, device=META)
    returns = torch.arange(6.0)
    mark_bad_policies(returns, torch.tensor([[3e38, 3e38], [1.0, float("inf")], [float("nan"), 0.0]]))
    assert returns[:2].tolist() == [0, 1]
    assert returns[2:].isnan().all()


def test_large_tensors_go_by_page_locked_memory(monkeypatch: pytest.MonkeyPatch, fake: FakeCuda) -> None:
    pinned, large = [], torch.zeros(resident.LARGEST // 4 + 1)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: pinned.append(self.numel()) or self)
    on_device(large, META)
    assert pinned == [len(large)]
    assert len(resident._kept) == 0


def test_what_is_kept_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch, fake: FakeCuda) -> None:
    monkeypatch.setattr(resident, "MOST", 100)
    first, second, third = (torch.full((10,), float(number)) for number in range(3))
    kept = on_device(first, META)
    other = on_device(second, META)
    assert on_device(first.clone(), META) is kept
    on_device(third, META)
    assert on_device(first, META) is kept
    assert on_device(second, META) is not other
