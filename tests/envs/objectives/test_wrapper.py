"""`ObjectiveEnv`: rewards, ends, costs and the machine's state in every row; saved states; names."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from walks import Walk, broken, labels, raising

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.envs.adapters.gym_in import adapt
from surefoot.envs.make import names_in, only_here, without_objective
from surefoot.envs.native import NativeVectorEnv
from surefoot.envs.objectives import Machine, ObjectiveEnv, machine_of, objective
from surefoot.envs.objectives.named import named, objective_in
from surefoot.envs.side_by_side import PausingVectorEnv
from surefoot.envs.training import make_training
from surefoot.envs.vector import make_vec

THERE_AND_BACK = "F(far & F home) & G !left"
WALK = "objective:walks:Walk?formula=F(far %26 F home) %26 G !left&labels=walks:labels"


def made(machine: Machine | str, rows: int = 2, function: Any = labels, limit: int = 8) -> ObjectiveEnv:
    env = adapt(PausingVectorEnv([lambda: Walk(limit)] * rows))
    return ObjectiveEnv(env, objective(machine) if isinstance(machine, str) else machine, function)


def act(env: Any, *actions: float) -> tuple[Any, ...]:
    return env.step(np.array(actions, np.float32)[:, None])  # type: ignore[no-any-return]


def test_rows_have_machines_of_their_own_and_the_agent_sees_them() -> None:
    env = made(THERE_AND_BACK)
    first, _ = env.reset(seed=0)
    assert env.single_observation_space.shape == (3,)
    assert first.tolist() == [[0, 1, 0]] * 2
    act(env, 1, -0.5)
    seen, rewards, terminated, truncated, info = act(env, 1, -0.5)  # the first row is far
    assert seen.tolist() == [[2, 0, 1], [-1, 1, 0]]
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([0, 0], [False] * 2, [False] * 2)
    assert info["reward_terms"]["progress"].tolist() == [0.5, 0]
    assert info["success"].tolist() == [False, False]


def test_an_objective_that_is_met_ends_the_episode_with_its_last_observation() -> None:
    env = made(THERE_AND_BACK)
    env.reset(seed=0)
    for action in (1, 1, -1):
        act(env, action, 0)
    seen, rewards, terminated, truncated, info = act(env, -1, 0)
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([1, 0], [True, False], [False, False])
    assert info["success"].tolist() == [True, False]
    assert info["final_obs"].tolist() == [[0, 0, 0], [0, 1, 0]]  # zeros where the machine has ended it
    assert info["_final_obs"].tolist() == [True, False]
    assert seen.tolist() == [[0, 1, 0], [0, 1, 0]]  # a new episode, in the machine's start
    assert info["objective"].tolist() == [[2, 0, 0, 0], [0, 0, 0, 0]]
    assert act(env, 1, 1)[0].tolist() == [[1, 1, 0], [1, 1, 0]]
    lengths = [env.env.envs[row].steps for row in range(2)] if hasattr(env.env, "envs") else [1, 5]
    assert lengths == [1, 5]


def test_a_violation_costs_one_beside_the_environments_costs_and_ends_the_episode() -> None:
    env = made(THERE_AND_BACK)
    env.reset(seed=0)
    _, _, _, _, info = act(env, -0.8, 0)
    assert info["cost"].tolist() == [1, 0]  # the environment's own
    _, rewards, terminated, _, info = act(env, -0.8, 0)
    assert info["cost"].tolist() == [2, 0]
    assert (terminated.tolist(), rewards.tolist(), info["success"].tolist()) == ([True, False], [0, 0], [False, False])
    assert "margin" not in info


def test_ends_of_the_environment_keep_the_machines_state_in_the_last_observation() -> None:
    env = made(THERE_AND_BACK, limit=3)
    env.reset(seed=0)
    for _ in range(2):
        act(env, 1, 1)
    seen, _, terminated, truncated, info = act(env, 1, -0.5)
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [True, True])
    assert info["final_obs"].tolist() == [[3, 0, 1], [1.5, 0, 1]]  # what a target bootstraps from
    assert seen.tolist() == [[0, 1, 0]] * 2
    assert env.states.tolist() == [0, 0]


def test_a_constraint_keeps_the_environments_reward() -> None:
    env = made("G !far")
    env.reset(seed=0)
    act(env, 1, 0.5)
    _, rewards, terminated, _, info = act(env, 1, 0.5)
    assert (rewards.tolist(), terminated.tolist()) == ([2, 1], [False, False])
    assert (info["cost"].tolist(), info["success"].tolist()) == ([1, 0], [False, True])
    _, rewards, _, _, info = act(env, 1, 0)
    assert (rewards.tolist(), info["cost"].tolist()) == ([3, 1], [0, 0])  # violated once


@pytest.mark.parametrize(("shaping", "sign"), [("value", 1), ("negative_value", -1)])
def test_shaping_adds_potentials_which_are_zero_at_every_end(shaping: str, sign: int) -> None:
    """Also where the environment ends the episode, and not at a time limit."""
    env = made("F(far & F home)", limit=7)
    env.shape(shaping, 0.9)
    env.reset(seed=0)
    assert act(env, 0, 0)[1].tolist() == pytest.approx([sign * (0.9 - 1) * 0.9] * 2)
    act(env, 1, 1)
    assert act(env, 1, 1)[1].tolist() == pytest.approx([0, 0])  # 0.9 * 1 - 0.9
    for _ in range(3):
        act(env, 1, 0)
    rewards, terminated, truncated = act(env, 1, 0)[1:4]
    assert (terminated.tolist(), truncated.tolist()) == ([True, False], [True, True])
    assert rewards.tolist() == pytest.approx([sign * (0 - 1), sign * (0.9 - 1)])


def test_a_weight_adds_the_environments_reward_and_paused_rows_stay() -> None:
    machine = machine_of(
        {
            "start": "u",
            "transitions": [{"from": "u", "when": "far", "to": "v", "reward": 10}],
            "environment_reward": 0.5,
        }
    )
    env = ObjectiveEnv(PausingVectorEnv([Walk, Walk]), machine, labels)
    env.reset(seed=0)
    env.active[:] = [True, False]
    act(env, 1, 1)
    _, rewards, _, _, info = act(env, 1, 1)
    assert rewards.tolist() == [11, 0]
    assert (env.states.tolist(), info["valid"].tolist()) == ([1, 0], [True, False])
    assert "success" in info  # the environment's: the machine accepts nowhere
    assert "cost" in info


def test_resets_of_some_rows_start_their_machines_alone() -> None:
    env = made("F(far & F home)")
    env.reset(seed=0)
    for _ in range(2):
        act(env, 1, 1)
    seen, _ = env.reset(options={"reset_mask": np.array([False, True])})
    assert seen.tolist() == [[2, 0, 1], [0, 1, 0]]


def test_planned_seeds_are_those_of_episodes_that_the_objective_starts() -> None:
    """As evaluation plans them: which episode comes next must not depend on who ended the last one."""

    def down(observations: Any, actions: Any, following: Any) -> dict[str, Any]:
        return {"down": np.ones(len(observations), bool)}

    env = ObjectiveEnv(NativeVectorEnv("pendulum", 2), objective("F down"), down)
    plain = NativeVectorEnv("pendulum", 2)
    wanted, _ = plain.reset(seed=[11, 12])
    env.reset(seed=0)
    env.next_seeds = [11, 12]
    seen = env.step(np.zeros((2, 1), np.float32))[0]
    assert np.array_equal(np.asarray(seen)[:, :3], wanted)


def test_saved_states_have_the_machines() -> None:
    first, second = (ObjectiveEnv(NativeVectorEnv("pendulum", 3), objective("F(a & F b)"), tilted) for _ in range(2))
    first.reset(seed=3)
    second.reset(seed=4)
    actions = np.full((3, 1), 1.5, np.float32)
    for _ in range(25):
        first.step(actions)
    assert len(set(first.states.tolist())) == 2
    second.set_state(first.get_state())
    for _ in range(40):
        ours, theirs = first.step(actions), second.step(actions)
        assert np.array_equal(ours[0], theirs[0])
        assert np.array_equal(ours[1], theirs[1])
    odd = {**first.get_state(), "objective_states": np.array([0, 1, 7])}
    with pytest.raises(EnvironmentMismatchError, match="another machine"):
        second.set_state(odd)


def tilted(observations: Any, actions: Any, following: Any) -> dict[str, Any]:
    return {"a": following[:, 0] < 0, "b": following[:, 0] > 0}


def test_tensors_are_given_where_the_environment_gives_tensors() -> None:
    env = ObjectiveEnv(NativeVectorEnv("pendulum", 2, tensors="torch"), objective("F(a & F b)"), tilted)
    env.reset(seed=0)
    seen, rewards, terminated, truncated, info = env.step(torch.zeros(2, 1))
    assert all(isinstance(value, torch.Tensor) for value in (seen, rewards, terminated, truncated, info["objective"]))
    assert seen.shape == (2, 5)


# -- what is wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "text", "says", "kind"),
    [
        (broken, "F far", r"'far' is float32 of shape \(2, 1\)", EnvironmentMismatchError),
        (broken, "F home", r"'home' is float32", EnvironmentMismatchError),
        (broken, "F left", r"'left' is int64 of shape \(\)", EnvironmentMismatchError),
        (labels, "F hom", "gives no 'hom', which the objective reads.*home", EnvironmentMismatchError),
        (raising, "F far", "labels raised KeyError: 'room'", ConfigError),
        (lambda *_: [True], "F far", "gave a list", EnvironmentMismatchError),
    ],
)
def test_labels_that_are_none_are_refused(function: Any, text: str, says: str, kind: type[Exception]) -> None:
    env = made(text, function=function)
    env.reset(seed=0)
    with pytest.raises(kind, match=says):
        act(env, 0, 0)


def test_observations_that_are_no_vector_are_refused() -> None:
    class Pictures(Walk):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)

    with pytest.raises(EnvironmentMismatchError, match="one vector"):
        ObjectiveEnv(PausingVectorEnv([Pictures]), objective("F far"), labels)


# -- names ---------------------------------------------------------------------------------------------------


def test_a_name_says_all_of_an_objective() -> None:
    assert named("walks:Walk", " F(far & F  home) & G !left", "walks:labels") == WALK
    assert without_objective(WALK) == "walks:Walk"
    assert names_in(WALK) == (("walks:Walk",), ("walks:labels",))
    base, machine, function = objective_in(WALK) or ("", None, "")
    assert (base, function) == ("walks:Walk", "walks:labels")
    assert machine is not None
    assert machine.live == 2
    assert only_here("objective:here:Arm?formula=F a&labels=walks:labels") is not None
    for env in (make_training(WALK, 2), make_vec(WALK, 2, limit=4)):
        seen, _ = env.reset(seed=0)
        assert seen.tolist() == [[0, 1, 0]] * 2


@pytest.mark.parametrize(
    ("env", "text", "function", "says"),
    [
        (WALK, "F far", "walks:labels", "has one already"),
        ("walks:Walk", "F far", None, "without labels="),
        ("walks:Walk", "F (far", "walks:labels", "character 7"),
    ],
)
def test_names_of_no_objective_are_refused(env: str, text: str, function: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        named(env, text, function)


def test_functions_that_are_not_there_are_refused() -> None:
    for name, says in (("walks:rooms", "no function 'rooms'"), ("nowhere_1:f", "can't be imported"), ("f", "names no")):
        with pytest.raises(ConfigError, match=says):
            make_training(f"objective:walks:Walk?formula=F far&labels={name}", 1)
    with pytest.raises(ConfigError, match="one of the arguments"):
        make_training("objective:walks:Walk?labels=walks:labels", 1)
