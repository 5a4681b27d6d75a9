"""Choices that are not allowed: never sampled, of no probability, no gradient and no value; and what is refused."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from on_policy_problems import QUICK, Bandit
from online_problems import Scripted

from surefoot.core.actors.masked_actors import FORBIDDEN, MaskedCategoricalActor, MaskedGreedyActor
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import Array, Spec
from surefoot.core.policy.policy import Policy
from surefoot.envs import make_vec
from surefoot.envs.check import check_environment
from surefoot.envs.choices import numbered
from surefoot.envs.episodes import run_episodes
from surefoot.envs.masks import MaskedObservation, with_masks
from surefoot.online import ALGORITHMS, spec_of
from surefoot.online.loops.loop import make_loop
from surefoot.safe import ALGORITHMS as CONSTRAINED

QUICK_TOO: dict[str, dict[str, Any]] = {
    **{name: {**QUICK[name], "normalize_observations": False} for name in ("ppo", "recurrent_ppo")},
    "dqn": {"num_envs": 4, "hidden": (8, 8), "initial_steps": 32, "replay_capacity": 400, "epsilon_steps": 300},
}


class Doors(Scripted):
    """Five doors, of which a mask allows two or three; opening a forbidden one ends the run with an error.

    The allowed door of the highest number pays 1, others 0. Every third mask is all there is to see: observations are
    noise.
    """

    observation_dim, doors, limit = 2, 5, 4

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.single_action_space = Discrete(self.doors)
        self.action_space = Box(0, self.doors - 1, (num_envs,), np.int64)
        mask = Box(0, 1, (self.doors,), np.int8)
        self.single_observation_space = Dict({"observation": self.single_observation_space, "action_mask": mask})
        self.masks = np.zeros((num_envs, self.doors), np.int8)

    def begin(self, source: np.random.Generator) -> np.ndarray:
        return source.normal(size=2)

    def observed(self, observations: np.ndarray) -> dict[str, np.ndarray]:
        for row, source in enumerate(self.sources):
            self.masks[row] = 0
            self.masks[row, source.choice(self.doors, source.integers(2, 4), replace=False)] = 1
        return {"observation": observations, "action_mask": self.masks.copy()}

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        assert self.masks[np.arange(len(states)), actions].all(), "a forbidden door was opened"
        best = self.doors - 1 - self.masks[:, ::-1].argmax(1)
        return np.stack([s.normal(size=2) for s in self.sources]), (actions == best) * 1.0, np.zeros(len(states), bool)

    def reset(self, **options: Any) -> Any:
        observations, info = super().reset(**options)
        return self.observed(observations), info

    def step(self, actions: Any) -> Any:
        observations, rewards, terminations, truncations, info = super().step(actions)
        seen = self.observed(observations)
        if "final_obs" in info:
            info["final_obs"] = {"observation": info["final_obs"], "action_mask": seen["action_mask"].copy()}
        return seen, rewards, terminations, truncations, info


def made(algorithm: str, env: Any, planned: int = 8192, **options: Any) -> Any:
    kind: Any = ALGORITHMS[algorithm]
    agent = kind(spec_of(env), **{**QUICK_TOO[algorithm], **options}).fresh(0)
    return make_loop([agent], [0], env, planned_steps=planned, batch_size=32, kernels=True)


# -- numbers by hand ---------------------------------------------------------------------------------------


def fixed_logits(kind: Any) -> Any:
    """A head of 4 choices whose scores are 1, 2, 3 and 4 whatever it sees: features are 2 numbers and the mask."""
    head = kind(6, 4, (5,))
    with torch.no_grad():
        head.mlp.weights[-1].zero_()
        head.mlp.biases[-1].copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    return head


SEEN = torch.tensor([[0.3, -1.0, 1.0, 0.0, 1.0, 0.0], [0.3, -1.0, 1.0, 1.0, 1.0, 1.0]])


def test_probabilities_are_those_of_the_allowed_choices() -> None:
    """Of scores 1 and 3 alone: 1 / (1 + e^2) and e^2 / (1 + e^2), of entropy 0.365334 nats."""
    head = fixed_logits(MaskedCategoricalActor)
    outputs = head(SEEN)
    low = 1 / (1 + math.exp(2))
    assert outputs[0].exp().tolist() == pytest.approx([low, 0, 1 - low, 0], abs=1e-7)
    assert outputs[1].exp().tolist() == pytest.approx([0.0320586, 0.0871443, 0.2368828, 0.6439143], abs=1e-6)
    found = head.evaluate(SEEN, torch.eye(4)[[2, 3]], {})
    assert found.log_density.tolist() == pytest.approx([math.log(1 - low), -0.4401897], abs=1e-6)
    assert found.entropy.tolist() == pytest.approx([0.3653335, 0.9475369], abs=1e-6)
    assert head.divergence(outputs, outputs).tolist() == [0, 0]


def test_forbidden_logits_have_no_gradient_and_are_never_drawn() -> None:
    head = fixed_logits(MaskedCategoricalActor)
    found = head.evaluate(SEEN[:1], torch.eye(4)[[0]], {})
    (found.log_density + found.entropy).sum().backward()
    gradient = head.mlp.biases[-1].grad
    assert gradient[1] == gradient[3] == 0
    assert min(abs(gradient[0]), abs(gradient[2])) > 0.05
    drawn = head.act(SEEN[:1].expand(20_000, -1), torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0)))
    assert drawn.sum(0)[[1, 3]].tolist() == [0, 0]
    assert float(drawn[:, 0].mean()) == pytest.approx(1 / (1 + math.exp(2)), abs=0.01)
    assert head.act(SEEN).argmax(-1).tolist() == [2, 3]


def test_values_are_compared_among_allowed_choices() -> None:
    head = fixed_logits(MaskedGreedyActor)
    assert head(SEEN).tolist() == [[1, FORBIDDEN, 3, FORBIDDEN], [1, 2, 3, 4]]
    assert head.act(SEEN).argmax(-1).tolist() == [2, 3]


@pytest.mark.parametrize("double", [True, False])
def test_targets_of_dqn_are_of_allowed_next_choices(double: bool) -> None:
    """The next observation allows scores 1 and 3: target 0.5 + 0.9 * 3; where the episode ended, nothing is."""
    arrays = {"observation": Array((2,)), "action_mask": Array((4,))}
    agent: Any = ALGORITHMS["dqn"](Spec.of_choices(arrays, 4), discount=0.9, double=double, hidden=(5,))
    agent.critic = agent.target_critic = fixed_logits(MaskedGreedyActor)
    following = torch.cat([SEEN[:1], torch.zeros(1, 6)])
    batch = {
        "next_observations": following, "rewards": torch.tensor([0.5, 0.5]), "terminations": torch.tensor([0.0, 1.0]),
    }  # fmt: skip
    assert agent.targets(batch).squeeze(1).tolist() == pytest.approx([0.5 + 0.9 * 3, 0.5])


# -- learning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", sorted(QUICK_TOO))
def test_the_best_allowed_door_is_found_and_no_forbidden_one_opened(algorithm: str) -> None:
    options: dict[str, Any] = {
        "ppo": {"num_envs": 16, "learning_rate": 1e-2, "schedule": "constant", "minibatches": 4},
        "recurrent_ppo": {"num_envs": 16, "learning_rate": 1e-2, "schedule": "constant", "minibatches": 4},
        "dqn": {"learning_rate": 3e-3, "discount": 0.5, "hidden": (32,), "target_every": 50},
    }[algorithm]
    loop = made(algorithm, Doors(options.get("num_envs", 4)), **options)
    first = loop.run(256)["episode_return"][0]
    loop.run(2_500 if algorithm == "dqn" else 7_000)
    reached = loop.run(512)["episode_return"][0]
    assert first < 2.8  # of 4, and 1.7 where each allowed door is as likely; dqn learns within these steps too
    assert reached > 3.4


class Costly(Doors):
    """Every step costs 1."""

    def step(self, actions: Any) -> Any:
        *found, info = super().step(actions)
        return *found, {**info, "cost": np.ones(self.num_envs)}


@pytest.mark.parametrize("algorithm", ["ppo_lag", "focops", "cup"])
def test_algorithms_under_a_constraint_obey_too(algorithm: str) -> None:
    kind: Any = CONSTRAINED[algorithm]
    env = Costly(4)
    agent = kind(spec_of(env), num_envs=4, horizon=32, minibatches=4, hidden=(8,)).fresh(0)
    found = make_loop([agent], [0], env, planned_steps=512, kernels=True).run(256)
    assert np.isfinite(found["entropy"][0])


def test_a_bandit_whose_best_arm_is_forbidden_is_refused_by_what_can_not_obey() -> None:
    with pytest.raises(ConfigError, match=r"a2c does not obey masks of actions.*train it with ppo"):
        ALGORITHMS["a2c"](spec_of(Doors(2)))
    assert not spec_of(Bandit(2)).masked


def test_the_first_ratio_is_one_with_a_mask() -> None:
    for algorithm in ("ppo", "recurrent_ppo"):
        loop = made(algorithm, Doors(4))
        loop.run(64)
        loop._write(loop.blocks.fill(1))
        loop.minibatches.begin(loop.learner.step, 5)
        batch = loop.store.gather(loop.minibatches.rows(loop.learner.step)[0])
        batch["observations"] = loop.agent.encoder({n: batch[f"observations/{n}"] for n in loop.agent.encoder.arrays})
        with torch.no_grad():
            _, metrics = loop.agent.policy_loss(batch, {})
        assert float(metrics["ratio_max"]) == pytest.approx(1, abs=1e-5)
        assert float(metrics["entropy"]) < math.log(3)  # at most three are allowed


# -- environments ------------------------------------------------------------------------------------------


class Corridor(gymnasium.Env[Any, Any]):
    """A walk on 0 to 4 from 2; a step beyond an end is forbidden, and its mask says so in one of some ways."""

    action_space: Any = Discrete(2)

    def __init__(self, way: str = "none", wrong: Any = None) -> None:
        self.way, self.wrong, self.place = way, wrong, 2
        vector = Box(0, 4, (1,), np.float32)
        own = Dict({"observation": vector, "action_mask": Box(0, 1, (2,), np.int8)})
        self.observation_space = own if way == "dict" else vector

    def seen(self) -> tuple[Any, dict[str, Any]]:
        mask = np.array([self.place > 0, self.place < 4]) if self.wrong is None else self.wrong
        vector = np.array([self.place], np.float32)
        observation = {"observation": vector, "action_mask": mask.astype(np.int8)} if self.way == "dict" else vector
        return observation, {"action_mask": mask} if self.way == "info" else {}

    def reset(self, **options: Any) -> Any:
        super().reset(seed=options.get("seed"))
        self.place, self.steps = 2, 0
        return self.seen()

    def step(self, action: Any) -> Any:
        self.place += 1 if action == 1 else -1
        self.steps += 1
        assert 0 <= self.place <= 4, "beyond the end"
        observation, info = self.seen()
        return observation, float(self.place == 4), False, self.steps >= 12, info


class Asked(Corridor):
    """As MaskablePPO asks for it."""

    def action_masks(self) -> np.ndarray:
        return np.array([self.place > 0, self.place < 4])


class Two(gymnasium.Env[Any, Any]):
    """Two choices at once, of 2 and 3; the mask has a number for each choice of each."""

    action_space: Any = MultiDiscrete([2, 3])
    observation_space: Any = Box(-1, 1, (1,), np.float32)

    def action_masks(self) -> np.ndarray:
        return np.array([1, 0, 0, 1, 1])

    def reset(self, **options: Any) -> Any:
        return np.zeros(1, np.float32), {}


@pytest.mark.parametrize("env", [Asked(), Corridor("dict"), MaskedObservation(Corridor("info"))], ids=str)
def test_every_way_to_give_a_mask_comes_to_the_same(env: Any) -> None:
    env = with_masks(env)
    assert set(env.observation_space.spaces) == {"observation", "action_mask"}
    seen, _ = env.reset(seed=0)
    assert seen["action_mask"].tolist() == [1, 1]
    for _ in range(2):
        seen, *_ = env.step(0)
    assert seen["action_mask"].tolist() == [0, 1]
    assert seen["observation"].tolist() == [0]
    assert env.observation_space.contains(seen)


def test_choices_of_several_are_allowed_where_each_is() -> None:
    seen, _ = with_masks(numbered(Two())).reset()
    assert seen["action_mask"].tolist() == [0, 1, 1, 0, 0, 0]


def test_environments_without_a_mask_stay_as_they_are() -> None:
    env = gymnasium.make("CartPole-v1")
    assert with_masks(env) is env
    assert not spec_of(make_vec("CartPole-v1", 2)).masked


@pytest.mark.parametrize(("env", "words"), [
    (MaskedObservation(Corridor("info", np.array([1, 0, 1]))), r"shape \(3,\).*must be \(2,\) of 0 and 1"),
    (MaskedObservation(Corridor("none")), r"its reset gave no info\['action_mask'\]"),
])  # fmt: skip
def test_masks_that_are_missing_or_of_another_size_are_named(env: Any, words: str) -> None:
    with pytest.raises(EnvironmentMismatchError, match=words):
        env.reset()


class Closed(Doors):
    """Row 1 allows nothing from its third step on."""

    value = 0

    def step(self, actions: Any) -> Any:
        found = super().step(actions)
        if self.steps >= 3:
            found[0]["action_mask"][1] = self.value
        return found


def test_a_row_that_allows_nothing_is_named() -> None:
    for algorithm in ("ppo", "dqn"):
        with pytest.raises(EnvironmentMismatchError, match="action_mask of row 1 allows no action after step 3"):
            made(algorithm, Closed(4)).run(64)


def test_numbers_that_are_no_mask_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closed, "value", 2)
    with pytest.raises(EnvironmentMismatchError, match=r"action_mask of row 1 is \[2.*1 where an action is allowed"):
        made("ppo", Closed(4)).run(64)


@pytest.mark.parametrize("env", [Asked(), Corridor("dict"), Corridor("info")], ids=["method", "dict", "info"])
def test_the_checker_obeys_masks_too(env: Any) -> None:
    said = "\n".join(str(finding) for finding in check_environment(env, steps=60))
    assert "beyond the end" not in said
    assert "observations are a Dict" not in said


# -- policies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", sorted(QUICK_TOO))
def test_a_policy_takes_the_mask_with_each_observation(algorithm: str, tmp_path: pathlib.Path) -> None:
    loop = made(algorithm, Doors(4), **({} if algorithm == "dqn" else {"normalize_observations": True}))
    loop.run(200)
    loop.learner.extract(0).policy().save(tmp_path / "policy")
    policy = Policy.load(tmp_path / "policy.safetensors")
    assert policy.masked
    for mask in torch.eye(5).tolist():
        policy.reset()
        assert int(policy.select_action(np.zeros(2, np.float32), mask=mask)) == mask.index(1)
        assert int(policy.select_action({"observation": np.zeros(2), "action_mask": mask})) == mask.index(1)
    with pytest.raises(EnvironmentMismatchError, match="obeys a mask of actions and was given none"):
        policy.select_action(np.zeros(2, np.float32))
    with pytest.raises(EnvironmentMismatchError, match="allows no action"):
        policy.select_action(np.zeros(2, np.float32), mask=np.zeros(5))
    with pytest.raises(EnvironmentMismatchError, match=r"action_mask is .* of shape \(4,\)"):
        policy.select_action(np.zeros(2, np.float32), mask=np.ones(4))


def test_a_policy_without_masks_refuses_one(tmp_path: pathlib.Path) -> None:
    kind: Any = ALGORITHMS["ppo"]
    policy = kind(spec_of(make_vec("CartPole-v1", 1))).policy()
    with pytest.raises(EnvironmentMismatchError, match="trained without masks"):
        policy.select_action(np.zeros(4, np.float32), mask=[1, 0])


def test_an_evaluation_obeys_the_mask_in_episodes_of_any_length() -> None:
    gymnasium.register("Asked-v0", Asked, max_episode_steps=10)
    loop = made("ppo", make_vec("Asked-v0", 4))
    loop.run(128)
    found = run_episodes(loop.learner.extract(0).policy(), "Asked-v0", np.arange(5))
    assert found.lengths.tolist() == [10] * 5


def test_a_file_for_elsewhere_has_the_mask_as_an_input(tmp_path: pathlib.Path) -> None:
    import onnxruntime

    policy = made("ppo", Doors(4)).learner.extract(0).policy()
    policy.export(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    assert {given.name for given in session.get_inputs()} == {"observation", "action_mask"}
    for mask in np.eye(5, dtype=np.float32):
        given = {"observation": np.zeros((1, 2), np.float32), "action_mask": mask[None]}
        assert int(session.run(None, given)[0][0]) == int(mask.argmax())
