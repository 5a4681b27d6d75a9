"""FB, VC-FB, MC-FB and HILP: one training, a policy for each reward that comes later."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any

import numpy as np
import pytest
import torch
from square import CORNERS, arrivals, near, walks

from surefoot.core.base.errors import ConfigError, DataError, EnvironmentMismatchError
from surefoot.core.base.spec import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.offline import ALGORITHMS
from surefoot.offline.zero_shot import ZeroShotAgent

SMALL: dict[str, Any] = {"hidden": (64, 64), "width": 64, "latent": 16, "discount": 0.9}
FAST: dict[str, Any] = {"learning_rate": 1e-3, "actor_learning_rate": 3e-4}
OWN: dict[str, dict[str, Any]] = {
    "fb": {"backward_hidden": (64, 64)},
    "vc_fb": {"backward_hidden": (64, 64), "uniform_actions": 2, "policy_actions": 1},
    "mc_fb": {"backward_hidden": (64, 64), "uniform_actions": 2, "policy_actions": 1},
    "hilp": {"feature_hidden": (64, 64), "feature_discount": 0.9, "goal_discount": 0.9, "value_goals": (0.0, 0.6, 0.4)},
}


def agent_of(name: str, data: Dataset, **options: Any) -> Any:
    spec = Spec.of(data, -np.ones(2), np.ones(2))
    return ALGORITHMS[name](spec, **{**SMALL, **OWN.get(name, {}), **options}).fresh(0)


def trained(name: str, data: Dataset, steps: int, **options: Any) -> Any:
    agent = agent_of(name, data, **{**FAST, **options})
    ready = agent.prepare(data)
    stores = Stores(ready, store_from_dataset(ready, agent.required_columns))
    learner = Learner([agent], [0], agent.sources(stores), batch_size=128, planned_steps=steps, kernels=True)
    learner.run(steps)
    return learner.extract(0)


@functools.cache
def taught(name: str) -> tuple[Dataset, Any]:
    data = walks()
    return data, trained(name, data, {"hilp": 1500}.get(name, 700))


@pytest.mark.parametrize(("name", "least"), [("fb", 0.9), ("vc_fb", 0.8), ("mc_fb", 0.8), ("hilp", 0.4)])
def test_one_training_gives_a_policy_for_each_corner(name: str, least: float) -> None:
    """From 4,000 random steps: each corner's reward, shown by labelled states alone. Doing nothing gets to 1 in 16."""
    data, agent = taught(name)
    policy, states = agent.policy(), data.next_observations
    found = [arrivals(policy, agent.task_of(states, near(states, corner)), corner) for corner in CORNERS]
    assert min(found) >= least


def test_cloning_goes_to_no_corner() -> None:
    data = walks()
    kind = ALGORITHMS["bc"]
    agent = kind(Spec.of(data, -np.ones(2), np.ones(2)), hidden=(64, 64)).fresh(0)
    ready = agent.prepare(data)
    stores = Stores(ready, store_from_dataset(ready, agent.required_columns))
    learner = Learner([agent], [0], agent.sources(stores), batch_size=128, planned_steps=300)
    learner.run(300)
    assert max(arrivals(learner.extract(0).policy(), None, corner) for corner in CORNERS) < 0.4


@pytest.mark.parametrize("name", ["fb", "hilp"])
def test_the_policy_leaves_with_the_task_of_the_datas_own_rewards(name: str) -> None:
    data, agent = taught(name)
    exact = agent.task_of(data.next_observations, data.rewards)
    own = agent.actor.begin(1)["task"][0]
    assert float(own @ exact) / SMALL["latent"] > 0.8
    assert float(own.norm()) == pytest.approx(SMALL["latent"] ** 0.5, rel=1e-5)


def test_a_goal_is_a_task() -> None:
    _, agent = taught("fb")
    for corner in CORNERS:
        assert arrivals(agent.policy(), agent.task_to(0.9 * np.array(corner)), corner) > 0.9
    torch.testing.assert_close(agent.task_to([0.3, 0.4]), agent.task_of([[0.3, 0.4]], [2.0]))
    with pytest.raises(DataError, match="must be 2 finite numbers"):
        agent.task_to([1.0])
    with pytest.raises(ConfigError, match="hilp has no task for a goal"):
        taught("hilp")[1].task_to([0.3, 0.4])


def test_tasks_do_not_depend_on_the_size_of_rewards() -> None:
    data, agent = taught("fb")
    rewards = near(data.next_observations, (1, -1))
    task = agent.task_of(data.next_observations, rewards)
    torch.testing.assert_close(task, agent.task_of(data.next_observations, 7 * rewards))
    assert float(task.norm()) == pytest.approx(4, rel=1e-5)


@pytest.mark.parametrize(
    ("states", "rewards", "error", "words"),
    [
        (np.zeros((3, 2)), np.zeros(3), ConfigError, "these rewards give no task"),
        (np.zeros((3, 3)), np.zeros(3), DataError, r"states have shape \(3, 3\).*must be \(n, 2\)"),
        (np.zeros((3, 2)), np.zeros(2), DataError, r"rewards \(2,\)"),
        (np.array([[0, 0], [0, np.nan]]), np.ones(2), DataError, "states: row 1 is not finite"),
        (np.zeros((2, 2)), np.array([np.inf, 1]), DataError, "rewards: row 0 is not finite"),
    ],
)
def test_labels_that_say_nothing_are_refused(states: Any, rewards: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        taught("fb")[1].task_of(states, rewards)


def test_rewards_change_no_network() -> None:
    data = walks()
    other = dataclasses.replace(data, rewards=near(data.next_observations, (-1, -1)))
    first, second = (trained("fb", one, 3) for one in (data, other))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]) == (name != "actor.task"), name


def test_terminations_stop_the_measure() -> None:
    """With every row an end, targets are 0: what follows counts for nothing."""
    agent = agent_of("fb", walks())
    rows = torch.randn(8, 2)
    batch = {
        "observations": rows,
        "actions": torch.zeros(8, 2),
        "rewards": torch.zeros(8),
        "directions": rows.repeat(1, 8),
    }
    noise = {name: torch.rand(8, one.width) for name, one in agent.task_noise().items()}
    ends = {**batch, "terminations": torch.ones(8)}
    first = agent.representation_loss({**ends, "next_observations": rows}, noise)[1]["measure_loss"]
    with torch.no_grad():
        for parameter in agent.target_forward_map.parameters():
            parameter.add_(1)
    again = agent.representation_loss({**ends, "next_observations": rows}, noise)[1]["measure_loss"]
    assert torch.equal(first, again)
    going = {**batch, "terminations": torch.zeros(8), "next_observations": rows}
    assert not torch.equal(first, agent.representation_loss(going, noise)[1]["measure_loss"])


def test_the_gradient_passes_where_the_bound_cuts_an_action() -> None:
    """Of an action of .95 and noise of .3 the value is 1, and its derivative that of the policy's action."""
    config = ALGORITHMS["fb"].Config()
    agent: Any = types.SimpleNamespace(config=config, actor=lambda observations, tasks: observations)
    actions = torch.tensor([[0.95, -0.5]], requires_grad=True)
    found = ZeroShotAgent.noisy_action(agent, actions, torch.ones(1, 16), torch.tensor([[9.0, 1.0]]))
    torch.testing.assert_close(found, torch.tensor([[1.0, -0.3]]))
    assert torch.equal(torch.autograd.grad(found.sum(), actions)[0], torch.ones(1, 2))


def test_directions_are_of_the_maps_before_the_step() -> None:
    """FB's of the rows' states; HILP's of the next ones, less their mean and by the inverse of the second moment."""
    batch = {"observations": torch.randn(6, 2), "next_observations": torch.randn(6, 2)}
    fb, hilp = agent_of("fb", walks(2)), agent_of("hilp", walks(2))
    torch.testing.assert_close(fb.annotate(batch)["directions"], fb.backward_map(batch["observations"]))
    hilp.moment.copy_(torch.diag(torch.arange(1.0, 17.0)))
    hilp.feature_mean.fill_(0.5)
    expected = (hilp.features_of(batch["next_observations"])[0] - 0.5) / torch.arange(1.0, 17.0)
    torch.testing.assert_close(hilp.annotate(batch)["directions"], expected)


def test_the_penaltys_weight_rises_while_it_is_above_its_target() -> None:
    data = walks()
    for target, sign in ((-1e3, 1), (1e3, -1)):
        agent = trained("vc_fb", data, 20, penalty_target=target)
        assert sign * float(agent.penalty_weight().detach() - 1) > 0


def test_tasks_in_a_batch_are_half_of_states_and_of_one_length() -> None:
    agent = agent_of("fb", walks())
    directions = torch.eye(16)[torch.arange(400) % 16]
    noise = {name: torch.randn(400, one.width) for name, one in agent.task_noise().items()}
    noise["task_kind"] = torch.rand(400, 1)
    tasks = agent.mixed_tasks(noise, directions)
    torch.testing.assert_close(tasks.norm(dim=-1), torch.full((400,), 4.0))
    of_states = (tasks == 4 * directions.roll(1, 0)).all(-1)
    assert torch.equal(of_states, noise["task_kind"][:, 0] < 0.5)


# -- what a policy does with a task --------------------------------------------------------------------------


def test_a_policy_without_its_task_says_so_and_takes_one() -> None:
    data = walks()
    policy: Any = agent_of("fb", data).policy()
    state = np.array([0.2, -0.3], np.float32)
    with pytest.raises(ConfigError, match=r"needs a task: begin the episode by reset\(task="):
        policy.select_action(state)
    task = np.random.default_rng(0).normal(size=16)
    policy.reset(task=task)
    expected = policy.select_action(state)
    policy.reset(task=3 * task)
    np.testing.assert_allclose(policy.select_action(state), expected, rtol=1e-5)
    policy.reset(task=-task)
    assert not np.allclose(policy.select_action(state), expected)
    policy.set_task(task)
    np.testing.assert_allclose(policy.select_action(state), expected, rtol=1e-5)
    for wrong, words in ((np.zeros(16), "task is 0"), (np.ones(3), r"task has shape \(3,\).*\(16,\)")):
        with pytest.raises(EnvironmentMismatchError, match=words):
            policy.set_task(wrong)
        with pytest.raises(EnvironmentMismatchError, match=words):
            policy.reset(task=wrong)
    with pytest.raises(EnvironmentMismatchError, match="trained without goals"):
        policy.reset(goal=np.zeros(2))
    plain = ALGORITHMS["bc"](Spec.of(data, -np.ones(2), np.ones(2)), hidden=(8,)).fresh(0).policy()
    with pytest.raises(EnvironmentMismatchError, match="trained without tasks"):
        plain.set_task(task)


@pytest.mark.parametrize("options", [{}, {"history": 3}])
def test_a_task_travels_with_a_file(options: dict[str, Any], tmp_path: Any) -> None:
    data = walks(20)
    agent = agent_of("fb", data, normalization="observations", **options)
    agent.prepare(data)
    policy, state = agent.policy(), np.array([0.2, -0.3], np.float32)
    policy.set_task(np.arange(16) - 3.5)
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy")
    for _ in range(3):
        np.testing.assert_array_equal(policy.select_action(state), loaded.select_action(state))


def test_the_task_is_an_input_of_an_exported_policy(tmp_path: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = agent_of("fb", walks(20)).policy()
    policy.export(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    assert {one.name for one in session.get_inputs()} == {"observations", "ended", "memory.task"}
    state, task = np.array([[0.2, -0.3]], np.float32), np.ones((1, 16), np.float32)
    given = {"observations": state, "ended": np.zeros(1, bool), "memory.task": task}
    policy.reset(task=task[0])
    np.testing.assert_allclose(session.run(["actions"], given)[0][0], policy.select_action(state[0]), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fb", {"latent": 0}, "latent"),
        ("fb", {"task_share": 1.5}, "task_share"),
        ("vc_fb", {"penalty_weight": 0.0}, "to be learned"),
        ("mc_fb", {"uniform_actions": 0}, "uniform_actions"),
        ("hilp", {"value_goals": (1.0,)}, "value_goals has 1 numbers"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        agent_of(name, walks(2), **options)
