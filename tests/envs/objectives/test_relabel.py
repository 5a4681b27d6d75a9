"""Counterfactual rows: what a step would have been from each state of the machine, in replay and along episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from walks import Walk, labels

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.sources import MAIN
from surefoot.envs.acting import spec_of
from surefoot.envs.adapters.gym_in import adapt
from surefoot.envs.objectives import ObjectiveEnv, machine_of, objective
from surefoot.envs.objectives.relabel import Counterfactuals, courses
from surefoot.envs.side_by_side import PausingVectorEnv
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.runs.algorithms import ALGORITHMS

WEIGHTED: dict[str, Any] = {
    "start": "out",
    "accepting": ["done"],
    "transitions": [
        {"from": "out", "when": "far", "to": "back", "reward": 0.25},
        {"from": "back", "when": "home", "to": "done", "reward": 1},
        {"from": "back", "when": "far & !home", "to": "back", "cost": 0.5},
    ],
    "environment_reward": 2,
}


def walk(machine: Any, shaping: str = "none", rows: int = 2) -> ObjectiveEnv:
    env = ObjectiveEnv(adapt(PausingVectorEnv([Walk] * rows)), machine, labels)
    env.shape(shaping, 0.9)
    return env


def loop_of(name: str = "sac", machine: Any = None, shaping: str = "none", **options: Any) -> OffPolicyLoop:
    env = walk(machine or machine_of(WEIGHTED), shaping)
    given = {"hidden": (16, 16), "num_envs": 2, "initial_steps": 40, "counterfactual": True, **options}
    agent = ALGORITHMS[name](spec_of(env), **given)
    return OffPolicyLoop([agent.fresh(0)], [0], env, planned_steps=400, batch_size=64)


def drawn(loop: OffPolicyLoop, steps: int = 20) -> tuple[dict[str, Any], Any, Any]:
    """Relabelled rows, the machine's state in each, and the rows as they were."""
    source = loop.learner.sources[MAIN]
    indices = torch.cat([source.rows(step) for step in range(steps)], 1)
    batch = {key: value[0] for key, value in source.gather(indices).items()}
    real = {key: value[0] for key, value in loop.experience.buffer.gather(indices[..., 0].contiguous()).items()}
    return batch, indices[0, :, 2], real


@pytest.mark.parametrize("shaping", ["none", "value", "negative_value"])
def test_rows_are_those_of_every_state_by_the_machines_definition(shaping: str) -> None:
    loop = loop_of(shaping=shaping)
    loop.run(120)
    batch, states, real = drawn(loop)
    assert "objective" not in batch
    assert torch.bincount(states, minlength=2).float().div(len(states)).tolist() == pytest.approx([0.5, 0.5], abs=0.05)
    machine = machine_of(WEIGHTED)
    phi = {"none": 0, "value": 1, "negative_value": -1}[shaping] * machine.values(0.9)
    for i in range(0, len(states), 7):
        u, here, there = int(states[i]), float(batch["observations"][i, 0]), float(batch["next_observations"][i, 0])
        far, home = there >= 2, here > 0 >= there
        after = {0: 1 if far else 0, 1: 2 if home else 1}[u]
        reward = 2 * there + {(0, 1): 0.25, (1, 2): 1.0}.get((u, after), 0.0)
        over = after == 2 or there > 5
        wanted = reward + (0.9 * (0 if over else phi[after]) - phi[u] if shaping != "none" else 0)
        assert float(batch["rewards"][i]) == pytest.approx(wanted, abs=1e-5)
        assert bool(batch["terminations"][i]) == over
        assert batch["observations"][i, 1:].tolist() == [u == 0, u == 1]
        assert batch["next_observations"][i, 1:].tolist() == [after == 0, after == 1]
        assert torch.equal(batch["actions"][i], real["actions"][i])
    mine = (batch["observations"] == real["observations"]).all(1)  # where the drawn state is the one that was met
    assert 0 < int(mine.sum()) < len(mine)
    assert torch.equal(batch["next_observations"][mine], real["next_observations"][mine])
    torch.testing.assert_close(batch["rewards"][mine], real["rewards"][mine])
    assert torch.equal(batch["terminations"][mine], real["terminations"][mine])


def test_costs_of_rows_are_the_machines_beside_the_environments() -> None:
    relabelling = Counterfactuals(machine_of(WEIGHTED))
    far = machine_of(WEIGHTED).letter(["far"])
    batch = {
        "observations": torch.tensor([[1.5, 1, 0], [1.5, 0, 1]]),
        "next_observations": torch.tensor([[2.5, 0, 1], [2.5, 0, 1]]),
        "rewards": torch.zeros(2),
        "terminations": torch.zeros(2),
        "actions": torch.ones(2, 1),
        "costs": torch.zeros(2),
        "objective": torch.tensor([[far, 0, 2.5, 1.0]] * 2),
    }
    found = relabelling(batch, torch.tensor([1, 0]), torch.zeros(2, 3))
    assert found["costs"].tolist() == [1.5, 1.0]
    assert found["rewards"].tolist() == [5, 5.25]
    assert found["observations"].tolist() == [[1.5, 0, 1], [1.5, 1, 0]]


@pytest.mark.parametrize("name", ["sac", "td3", "sac_lag"])
def test_algorithms_learn_from_such_rows(name: str) -> None:
    loop = loop_of(name)
    result = loop.run(60)
    assert all(np.isfinite(values[0]) for key, values in result.items() if key.endswith("loss"))
    again = loop_of(name)
    again.restore([loop.state(0)], loop.step)
    assert torch.equal(again.experience.buffer["objective"][:40], loop.experience.buffer["objective"][:40])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n_step": 3}, "counterfactual is True, must be false where n_step"),
        ({"hindsight": 2}, "counterfactual is True, must be false where"),
    ],
)
def test_options_that_contradict_it_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        loop_of(**options)


def test_without_an_objective_there_is_nothing_to_relabel_by() -> None:
    env = adapt(PausingVectorEnv([Walk]))
    agent = ALGORITHMS["sac"](spec_of(env), num_envs=1, counterfactual=True)
    with pytest.raises(ConfigError, match="give objective= and labels="):
        OffPolicyLoop([agent.fresh(0)], [0], env, planned_steps=10)


# -- along episodes ------------------------------------------------------------------------------------------


def test_courses_take_each_step_once_from_each_state() -> None:
    machine = objective("F(a & F(b & F c))")
    letter = np.array([machine.letter(true) for true in ([], ["b"], ["a"], [], ["b"], ["a"], ["c"], [])])
    over = np.zeros(8, bool)
    ((rows, before, after),) = courses(machine, letter, over, False)
    assert before.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert after.tolist() == [0, 0, 1, 1, 2, 2, machine.states.index("satisfied")]
    every = list(courses(machine, letter, over, True))
    assert every[0][1].tolist() == before.tolist()
    assert rows.tolist() == list(range(7))
    pairs = [(int(t), int(u)) for rows, states, _ in every for t, u in zip(rows, states, strict=True)]
    assert sorted(pairs) == [(t, u) for t in range(8) for u in range(3)]
    for rows, before, after in every:
        assert np.array_equal(rows, np.arange(rows[0], rows[-1] + 1))
        assert np.array_equal(machine.following[before, letter[rows]], after)
        assert np.array_equal(before[1:], after[:-1])


def test_courses_end_where_the_episode_terminated() -> None:
    machine = objective("F a")
    ((rows, _, after),) = courses(machine, np.array([0, 0]), np.array([False, True]), True)
    assert (rows.tolist(), after.tolist()) == ([0, 1], [0, 0])
