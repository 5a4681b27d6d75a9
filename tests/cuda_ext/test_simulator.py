"""The step interface: rollouts one step at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from surefoot import cuda_ext
from surefoot.cuda_ext.rollout import rollout
from surefoot.cuda_ext.simulator import Simulator
from surefoot.envs.systems import system

BACKENDS = [
    pytest.param("native", marks=pytest.mark.skipif(cuda_ext.native() is None, reason=cuda_ext.why_not_native())),
    "twin",
]


def actions_for(steps: int, count: int) -> torch.Tensor:
    return 10 * torch.randn(steps, count, 1, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_are_those_of_a_rollout_of_many_episodes(backend: str) -> None:
    s, actions = system("cartpole_balance"), actions_for(60, 70)
    names = ("rewards", "terminated", "truncated", "costs", "margins", "next_observations")
    whole = rollout(
        s, actions=actions, seeds=3, episodes="many", max_steps=20, record=(*names, "observations"), backend=backend
    )
    simulator = Simulator(s, 70, seeds=3, max_steps=20, tensors="torch", backend=backend)
    seen = simulator.reset()
    for t in range(60):
        assert torch.equal(seen, whole.records["observations"][t])
        step = simulator.step(actions[t])
        seen = step.observations
        for name in names:
            value = step.final_observations if name == "next_observations" else getattr(step, name)
            assert torch.equal(value, whole.records[name][t]), (name, t)
    assert bool(whole.records["truncated"].any())
    assert bool(whole.records["terminated"].any())


@pytest.mark.parametrize("backend", BACKENDS)
def test_final_observations_differ_from_observations_exactly_where_an_episode_ended(backend: str) -> None:
    simulator = Simulator(system("cartpole_balance"), 70, backend=backend)
    simulator.reset()
    ended = 0
    for row in actions_for(40, 70).numpy():
        step = simulator.step(row)
        done = step.terminated | step.truncated
        assert isinstance(step.observations, np.ndarray)
        assert np.array_equal((step.observations != step.final_observations).any(1), done)
        assert (np.abs(step.observations[done]) <= 0.05).all()
        ended += int(done.sum())
    assert ended > 20


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_is_set_again_repeats_what_followed(backend: str) -> None:
    simulator = Simulator(system("cartpole_balance"), 20, tensors="torch", backend=backend)
    simulator.reset()
    actions = actions_for(50, 20)
    for row in actions[:10]:
        simulator.step(row)
    saved, seen = simulator.state, simulator.observations.clone()
    first = torch.stack([simulator.step(row).observations.clone() for row in actions[10:]])
    simulator.state = saved
    assert torch.equal(simulator.observations, seen)
    assert torch.equal(torch.stack([simulator.step(row).observations.clone() for row in actions[10:]]), first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_resets_the_chosen_environments_only(backend: str) -> None:
    simulator = Simulator(system("pendulum"), 6, tensors="torch", backend=backend)
    first = simulator.reset().clone()
    simulator.step(torch.ones(6, 1))
    moved = simulator.observations.clone()
    mask = torch.tensor([True, False, False, True, False, False])
    after = simulator.reset(mask=mask)
    assert torch.equal(after[~mask], moved[~mask])
    assert not torch.equal(after[mask], first[mask])  # their second episode
    assert simulator.state.elapsed.tolist() == [0, 1, 1, 0, 1, 1]
    assert simulator.state.episodes.tolist() == [1, 0, 0, 1, 0, 0]
    assert torch.equal(simulator.reset(seeds=0), first)  # the base seed it began with


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_can_be_changed_for_each_environment_between_steps(backend: str) -> None:
    s = system("pendulum")
    simulator = Simulator(s, 2, seeds=[5, 5], tensors="torch", backend=backend)
    simulator.reset()
    step = simulator.step(torch.zeros(2, 1))
    assert torch.equal(step.observations[0], step.observations[1])
    table = simulator.parameters.repeat(2, 1)
    table[1, 0] = 20.0
    simulator.set_parameters(table)
    step = simulator.step(torch.zeros(2, 1))
    assert step.observations[0, 2] != step.observations[1, 2]
    assert simulator.parameters.shape == (2, 7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_time_limit_an_episode_goes_on(backend: str) -> None:
    simulator = Simulator(system("pendulum"), 1, max_steps=0, backend=backend)
    simulator.reset()
    assert not any(simulator.step(np.zeros((1, 1), np.float32)).truncated[0] for _ in range(300))


def test_unfit_arguments_are_named() -> None:
    s = system("pendulum")
    with pytest.raises(ValueError, match="at least one environment"):
        Simulator(s, 0)
    with pytest.raises(ValueError, match="'numpy' or 'torch'"):
        Simulator(s, 1, tensors="jax")
    simulator = Simulator(s, 3)
    simulator.reset()
    with pytest.raises(ValueError, match=r"must have \(3, 1\)"):
        simulator.step(np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match=r"must have \(7,\) or \(3, 7\)"):
        simulator.set_parameters(np.zeros(5))
    with pytest.raises(ValueError, match=r"must have \(3,\)"):
        simulator.reset(mask=np.zeros(2, bool))
