from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.core.actors.heads import GaussianActor
from surefoot.core.actors.memory import Memory, Reactive
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import Array
from surefoot.core.engine.agent import Spec
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.envs import check_spaces, make_vec
from surefoot.envs.systems.pendulum import Pendulum
from surefoot.evaluation import Episodes, RandomPolicy, ScriptedPolicy, evaluate
from surefoot.online import SAC, TD3, spec_of
from surefoot.safe import FISOR


class Walk(gymnasium.Env):
    """Ends after 1 to 30 steps, drawn at reset; reward is the action; cost 2 a step if asked for."""

    def __init__(self, cost: bool = False, bad: str = "", endless: bool = False) -> None:
        self.cost, self.bad, self.endless = cost, bad, endless
        self.observation_space = spaces.Box(-1000, 1000, (2,), np.float64)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(1, 31))
        return np.array([self.t, self.length], float), {"cost": 50.0} if self.cost else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        observation, reward = np.array([self.t, self.length], float), float(action[0])
        if self.bad == "observation" and self.t == 3:
            observation[1] = np.nan
        if self.bad == "reward" and self.t == 3:
            reward = np.inf
        done = self.t == self.length and not self.endless
        return observation, reward, done, False, {"cost": 2.0} if self.cost else {}


class Once(Walk):
    """One step, which is the same each time: its reward is the action."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length = 1
        return np.zeros(2), {}


gymnasium.register("SurefootWalk-v0", entry_point=Walk)
gymnasium.register("SurefootOnce-v0", entry_point=Once, max_episode_steps=1)


class Net(Reactive):
    """A small random network; keeps the shapes of the batches it was given."""

    def __init__(self, seed: int, observation_dim: int = 3, scale: float = 2.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.first = torch.randn(observation_dim, 64, generator=generator)
        self.second = torch.randn(64, 1, generator=generator) * 0.3
        self.scale, self.shapes, self.resets = scale, set(), 0

    def actions(self, observations: torch.Tensor) -> torch.Tensor:
        self.shapes.add((tuple(observations.shape), observations.dtype))
        return self.scale * torch.tanh(torch.relu(observations @ self.first) @ self.second)

    def begin(self, rows: int) -> Memory:
        self.resets += 1
        return {}


class Constant(Net):
    def actions(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.full((len(observations), 1), self.scale)


def test_a_policy_has_the_same_episodes_alone_and_in_company() -> None:
    policies = [Net(i) for i in range(3)]
    together = evaluate(policies, "Pendulum-v1", episodes=12, seed=5, num_envs=4)
    for policy, episodes in zip(policies, together, strict=True):
        alone = evaluate([policy], "Pendulum-v1", episodes=12, seed=5, num_envs=4)[0]
        np.testing.assert_array_equal(alone.returns, episodes.returns)
    assert len({float(episodes.returns.sum()) for episodes in together}) == 3


def test_policies_of_very_different_lengths_do_not_disturb_each_other() -> None:
    policies = [Net(i, 2, 1.0) for i in range(2)]
    together = evaluate(policies, "SurefootWalk-v0", episodes=23, num_envs=5)
    for policy, episodes in zip(policies, together, strict=True):
        alone = evaluate([policy], "SurefootWalk-v0", episodes=23, num_envs=5)[0]
        np.testing.assert_array_equal(alone.returns, episodes.returns)
        np.testing.assert_array_equal(alone.lengths, episodes.lengths)


def test_batches_keep_their_shape_and_are_float32() -> None:
    policy = Net(0, 2, 1.0)
    evaluate([policy], "SurefootWalk-v0", episodes=23, num_envs=5)
    assert policy.shapes == {((5, 2), torch.float32)}
    assert policy.resets == 1


def test_episodes_are_those_of_gymnasium_reset_with_the_same_seeds() -> None:
    episodes = evaluate([Constant(0, scale=0.5)], "Pendulum-v1", episodes=4, seed=9, num_envs=3)[0]
    for e in range(4):
        env = gymnasium.make("Pendulum-v1")
        env.reset(seed=int(np.random.SeedSequence((9, e)).generate_state(1)[0]))
        total, done = 0.0, False
        while not done:
            _, reward, _, done, _ = env.step(np.array([0.5], np.float32))
            total += reward
        assert episodes.returns[e] == pytest.approx(total, rel=1e-12)
        assert episodes.lengths[e] == 200


def test_every_policy_meets_the_same_initial_states_and_another_seed_others() -> None:
    a, b = evaluate([Net(0, 2, 1.0), Net(1, 2, 1.0)], "SurefootWalk-v0", episodes=20, num_envs=4)
    np.testing.assert_array_equal(a.lengths, b.lengths)
    other = evaluate([Net(0, 2, 1.0)], "SurefootWalk-v0", episodes=20, num_envs=4, seed=1)[0]
    assert not np.array_equal(a.lengths, other.lengths)
    fewer = evaluate([Net(0, 2, 1.0)], "SurefootWalk-v0", episodes=20, num_envs=7)[0]
    np.testing.assert_array_equal(a.lengths, fewer.lengths)


def test_short_episodes_are_not_over_represented() -> None:
    lengths = evaluate([Constant(0)], "SurefootWalk-v0", episodes=300, num_envs=64)[0].lengths
    seeds = [int(np.random.SeedSequence((0, e)).generate_state(1)[0]) for e in range(300)]
    drawn = [int(gymnasium.utils.seeding.np_random(seed)[0].integers(1, 31)) for seed in seeds]
    np.testing.assert_array_equal(lengths, drawn)


def test_actions_are_clipped_to_the_bounds() -> None:
    episodes = evaluate([Constant(0, scale=7.0)], "SurefootWalk-v0", episodes=5)[0]
    np.testing.assert_array_equal(episodes.returns, episodes.lengths)


def test_costs_are_summed_over_all_steps_and_the_reset_s_is_not_counted() -> None:
    free, costly = (
        evaluate([Constant(0)], "SurefootWalk-v0", episodes=9, num_envs=2, env_kwargs={"cost": cost})[0]
        for cost in (False, True)
    )
    assert free.costs is None
    np.testing.assert_array_equal(costly.costs, 2.0 * costly.lengths)


@pytest.mark.parametrize("bad", ["observation", "reward"])
def test_non_finite_numbers_of_the_environment_are_refused_with_their_place(bad: str) -> None:
    with pytest.raises(EnvironmentMismatchError, match=rf"SurefootWalk-v0: non-finite {bad}.*episode \d+, step 2"):
        evaluate([Constant(0)], "SurefootWalk-v0", episodes=4, num_envs=2, env_kwargs={"bad": bad})


def test_non_finite_and_misshapen_actions_are_refused() -> None:
    with pytest.raises(EnvironmentMismatchError, match="non-finite action for policy 1 in episode 0, step 0"):
        evaluate([Constant(0), Constant(0, scale=float("nan"))], "Pendulum-v1", episodes=4)

    class Wide(Net):
        def actions(self, observations: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(observations), 6)

    with pytest.raises(EnvironmentMismatchError, match=r"shape \(4, 6\).*\(4, 1\)"):
        evaluate([Wide(0)], "Pendulum-v1", episodes=4)


def test_an_endless_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.envs.acting.episodes.UNLIMITED_EPISODE_STEPS", 100)
    with pytest.raises(EnvironmentMismatchError, match="no time limit"):
        evaluate([Constant(0)], "SurefootWalk-v0", episodes=1, env_kwargs={"endless": True})


def test_vectors_of_numbers_are_no_choices() -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"gave float32 actions .* takes int64 ones"):
        evaluate([Constant(0)], "CartPole-v1", episodes=1)


class Pushing(Reactive):
    """Always pushes the cart to one side."""

    def __init__(self, choice: int) -> None:
        self.choice = choice

    def actions(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.full((len(observations),), self.choice)


def test_choices_are_counted_step_by_step() -> None:
    (left, right) = evaluate([Pushing(0), Pushing(1)], "CartPole-v1", episodes=4)
    for episodes in (left, right):
        assert (episodes.returns == episodes.lengths).all()  # a reward of 1 a step
        assert episodes.lengths.max() <= 11  # the pole falls at once
        assert episodes.lengths.min() >= 8


@pytest.mark.parametrize("kwargs", [{"episodes": 0}, {"num_envs": 0}, {"seed": -1}])
def test_numbers_out_of_range_are_refused(kwargs: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(kwargs))):
        evaluate([Constant(0)], "Pendulum-v1", **kwargs)


def test_progress_counts_every_episode_and_torch_gets_its_threads_back() -> None:
    threads, seen = torch.get_num_threads(), []
    during = []

    class Watching(Constant):
        def actions(self, observations: torch.Tensor) -> torch.Tensor:
            during.append(torch.get_num_threads())
            return super().actions(observations)

    evaluate(
        [Watching(0), Constant(1)],
        "SurefootWalk-v0",
        7,
        num_envs=3,
        progress=lambda done, of: seen.append((done, of)),
    )
    assert seen[-1] == (14, 14)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert set(during) == {1}
    assert torch.get_num_threads() == threads


def test_no_policies_no_episodes() -> None:
    assert evaluate([], "Pendulum-v1") == []


def test_episodes_survive_json() -> None:
    episodes = Episodes(np.array([1.5, -2.0]), np.array([3, 4]), np.array([0.0, 1.0]))
    again = Episodes.from_json(json.loads(json.dumps(episodes.to_json())))
    np.testing.assert_array_equal(again.returns, episodes.returns)
    np.testing.assert_array_equal(again.lengths, episodes.lengths)
    np.testing.assert_array_equal(again.costs, episodes.costs)
    assert Episodes.from_json({"returns": [1], "lengths": [2], "costs": None}).costs is None
    for damaged in ({"returns": [1]}, {"returns": [1], "lengths": [1, 2], "costs": None}):
        with pytest.raises(ConfigError, match="episodes"):
            Episodes.from_json(damaged)


def test_random_and_scripted_policies_repeat_and_score_as_they_should() -> None:
    random, decent = (
        RandomPolicy(np.float32([-2]), np.float32([2])),
        ScriptedPolicy(Pendulum.behaviours["decent"]),
    )
    first = evaluate([random, decent], "Pendulum-v1", episodes=20)
    again = evaluate([random, decent], "Pendulum-v1", episodes=20)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.returns, b.returns)
    assert -1500 < first[0].returns.mean() < -900
    assert first[1].returns.mean() > -300


SYSTEMS = {"native/pendulum": 200, "native/cartpole-swingup": 500, "native/quadrotor-2d": 500}


def trained(env_id: str, seed: int = 0, kind: type[Any] = SAC) -> Policy:
    return kind(spec_of(make_vec(env_id, 1))).fresh(seed).policy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("env_id", SYSTEMS)
def test_the_native_loop_gives_the_episodes_that_stepping_gives_but_for_rounding(env_id: str) -> None:
    policies = [trained(env_id, seed, kind) for seed, kind in ((0, SAC), (1, TD3))]
    limit = {"max_episode_steps": SYSTEMS[env_id]}  # an argument of the environment: it is stepped
    seen: list[list[Any]] = [[[], []], [[], []]]

    def watch(which: int) -> Any:
        return lambda p, observations: seen[which][p].append(np.array(observations))

    native = evaluate(policies, env_id, episodes=7, seed=3, num_envs=3, watch=watch(0))
    stepped = evaluate(policies, env_id, episodes=7, seed=3, num_envs=3, env_kwargs=limit, watch=watch(1))
    for p, (a, b) in enumerate(zip(native, stepped, strict=True)):
        assert (a.loop, b.loop) == ("native", "steps")
        np.testing.assert_allclose(a.returns, b.returns, rtol=1e-4)
        np.testing.assert_array_equal(a.lengths, b.lengths)
        np.testing.assert_array_equal(a.costs, b.costs)
        np.testing.assert_array_equal(a.violations, b.violations)
        np.testing.assert_allclose(a.action_changes, b.action_changes, rtol=2e-2, atol=1e-6)
        assert [len(rows) for rows in seen[0][p]] == [len(rows) for rows in seen[1][p]]
        np.testing.assert_array_equal(seen[0][p][0], seen[1][p][0])  # the first states are the same to the bit
        np.testing.assert_allclose(seen[0][p][1], seen[1][p][1], atol=1e-4)


@pytest.mark.parametrize("loop", ["native", "steps"])
def test_drawn_actions_have_the_spread_of_the_head(loop: str) -> None:
    actor = GaussianActor(3, 1, (4,))
    with torch.no_grad():
        actor.log_std.fill_(math.log(0.2))
        for weights in (*actor.mlp.weights, *actor.mlp.biases):
            weights.zero_()
    made = Policy.of(actor, Normalizer(3), torch.tensor([-2.0]), torch.tensor([2.0]))
    limit = {} if loop == "native" else {"max_episode_steps": 200}
    still, drawn = evaluate([made, made.sampled()], "native/pendulum", episodes=20, env_kwargs=limit)
    assert (still.loop, drawn.loop) == (loop, loop)
    assert (still.action_changes == 0).all()
    assert drawn.action_changes is not None
    assert drawn.action_changes.mean() == pytest.approx(2 * 0.2**2, rel=0.05)  # of 3,980 independent pairs
    assert len(set(drawn.action_changes)) == 20


def test_policies_beside_each_other_go_each_their_own_way() -> None:
    known, other = trained("native/pendulum"), Constant(0)
    told: list[tuple[int, int]] = []
    found = evaluate([other, known], "native/pendulum", episodes=4, progress=lambda *done: told.append(done))
    assert [one.loop for one in found] == ["steps", "native"]
    assert told[-1] == (8, 8)
    (alone,) = evaluate([known], "native/pendulum", episodes=4)
    np.testing.assert_array_equal(alone.returns, found[1].returns)
    assert Episodes.from_json(alone.to_json()).loop == "native"
    assert Episodes.from_json({k: v for k, v in alone.to_json().items() if k != "loop"}).loop == "steps"


def test_a_policy_that_draws_its_noise_draws_other_numbers_where_an_evaluation_goes_on() -> None:
    with torch.no_grad():
        made = FISOR(Spec(2, 1, (-1.0,), (1.0,)), hidden=(4,), noise_hidden=(4,), samples=1)
        for weights in made.average_noise_network.parameters():
            weights.zero_()
    policy = made.policy()
    begun, again, later = (evaluate([policy], "SurefootOnce-v0", 20, first=first)[0].returns for first in (0, 0, 20))
    np.testing.assert_array_equal(begun, again)
    assert len(set(begun.tolist())) > 3  # noise decides
    assert (begun != later).any()


def test_the_native_loop_refuses_what_stepping_refuses() -> None:
    with pytest.raises(EnvironmentMismatchError, match="3 observations and 1 actions"):
        evaluate([trained("native/pendulum")], "native/quadrotor-2d", episodes=2)
    policy = trained("native/pendulum")
    for weight in policy.actor.mlp.weights:  # type: ignore[union-attr]
        weight.copy_(weight.sign() * 3e38)  # finite, and the sums of their products are not
    with pytest.raises(EnvironmentMismatchError, match="non-finite action for policy 0 in episode 0, step 0"):
        evaluate([policy], "native/pendulum", episodes=2)


CAMERA = "native/pendulum-camera"


def camera_policy(scaled: str | None) -> Policy:
    """Of an agent whose pictures had half the size that the environment's have."""
    spec = spec_of(make_vec(CAMERA, 1))
    half = Array((32, 32), "uint8", scaled=scaled)
    small = Spec({**spec.observations, "image": half}, 1, spec.action_low, spec.action_high)
    return SAC(small, encoder="small", encoder_features=4, hidden=(8,)).fresh(0).policy()


def test_a_policy_whose_data_were_scaled_acts_where_pictures_are_larger(tmp_path: pathlib.Path) -> None:
    policy = camera_policy("box")
    policy.save(tmp_path / "policy")
    policy = Policy.load(tmp_path / "policy")
    check_spaces(CAMERA, policy.arrays, policy.action_dim)
    seen, _ = make_vec(CAMERA, 3).reset(seed=0)
    large = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in seen.items()}
    own = {**large, "image": large["image"].view(3, 32, 2, 32, 2).float().mean((2, 4)).round()}
    own["image"] = own["image"].to(torch.uint8)
    found, expected = (policy.act(rows, policy.begin(3))[0] for rows in (large, own))
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)  # grey levels may differ by 1
    for row in range(3):
        one = {key: value[row] for key, value in seen.items()}
        np.testing.assert_allclose(policy.select_action(one), found[row].numpy(), atol=1e-6)
    assert len(evaluate([policy], CAMERA, 2, num_envs=2)[0].returns) == 2


def test_what_to_do_about_pictures_of_another_size_is_in_the_refusal() -> None:
    policy = camera_policy(None)
    with pytest.raises(EnvironmentMismatchError, match=r"or train with image_size=: a policy scales 'image' where"):
        check_spaces(CAMERA, policy.arrays, policy.action_dim)
    scaled = camera_policy("box")
    with pytest.raises(EnvironmentMismatchError, match=r"read the data with image_size=\[64,64\]: who acts"):
        check_spaces(CAMERA, scaled.arrays, scaled.action_dim, scales=False)
    seen, _ = make_vec(CAMERA, 2).reset(seed=0)
    rows = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in seen.items()}
    with pytest.raises(EnvironmentMismatchError, match="this policy was trained on image"):
        policy.act(rows, policy.begin(2))
    with pytest.raises(EnvironmentMismatchError, match="this policy was trained on image"):  # frames are no size
        scaled.act({**rows, "image": rows["image"][:, None].expand(-1, 3, -1, -1)}, scaled.begin(2))
