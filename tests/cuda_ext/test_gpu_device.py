"""Rollouts on a GPU: equal to the processor's, and fast. Reported as skipped where there is none."""

from __future__ import annotations

import pytest
import torch
from test_gpu_emulated import RECORD, policy_of
from torch import Tensor

from surefoot.cuda_ext import gpu
from surefoot.cuda_ext.rollout import rollout
from surefoot.cuda_ext.rollout_arrays import SUMS
from surefoot.envs.systems import SYSTEMS, system

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU"),
]


def assert_near(found: Tensor, expected: Tensor, name: str, tolerance: float = 2e-4) -> None:
    scale = expected.double().abs().clamp(min=1).amax()
    error = float(((found.cpu().double() - expected.double()).abs() / scale).max())
    assert error <= (tolerance if expected.dtype == torch.float32 else 0), f"{name} {error:.3g}"


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("envs", [50, 20_000, 70_000])
def test_a_policy_leads_where_it_leads_on_the_processor(name: str, envs: int) -> None:
    s = system(name)
    options = {"policy": policy_of(s), "num_envs": envs, "horizon": 10, "record": RECORD if envs < 100 else ()}
    expected, found = rollout(s, **options), rollout(s, **options, device="cuda", backend="native")
    for key in SUMS:
        assert_near(getattr(found, key), getattr(expected, key), key)
    for key, value in expected.records.items():
        assert_near(found.records[key], value, key)


def test_random_actions_and_episodes_that_begin_again_are_the_processors() -> None:
    s = system("cartpole_balance")
    options = {"random": True, "num_envs": 3000, "horizon": 60, "episodes": "many"}
    expected, found = rollout(s, **options), rollout(s, **options, device="cuda", backend="native")
    # float32 rounding may move a fall by a step in few of them
    assert float((found.finished.cpu() == expected.finished).float().mean()) > 0.99
    assert abs(float(found.returns.sum()) - float(expected.returns.sum())) == 0  # a reward of 1 each step


def test_a_kernel_runs_on_the_current_stream_and_inside_torch_compile() -> None:
    s = system("pendulum")
    policy = policy_of(s)

    def score() -> Tensor:
        return rollout(s, policy=policy, num_envs=256, horizon=20, device="cuda").returns.mean()

    expected = score()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        assert torch.equal(score(), expected)
    assert_near(torch.compile(score)(), expected.cpu(), "returns")


def test_cart_pole_with_two_layers_of_64_makes_a_thousand_million_steps_a_second() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the figure is for a data-centre GPU of compute capability 9.0 or more")
    s = system("cartpole_balance")
    envs, horizon = 65_536, 500
    options = {"policy": policy_of(s), "num_envs": envs, "horizon": horizon, "episodes": "many", "device": "cuda"}
    rollout(s, **options)
    seconds = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        rollout(s, **options)
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    rate = envs * horizon / min(seconds)
    print(f"{rate:.3g} steps/s on {torch.cuda.get_device_name()}, {gpu.CudaDriver(torch.device('cuda')).limits()}")
    assert rate >= 1e9
