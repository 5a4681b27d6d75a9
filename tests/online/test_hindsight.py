"""Hindsight: rows with goals that were reached later, what they are worth, and tasks that need them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from goal_problems import Bits, GoalEnv, Point, beside

from surefoot.core.base.errors import ConfigError, SimulatorError
from surefoot.core.engine.sources import MAIN, Batch
from surefoot.core.policy.policy import Policy
from surefoot.data.collect import TransitionBuffer
from surefoot.data.dataset import Dataset
from surefoot.envs.acting import spec_of
from surefoot.envs.hindsight import HindsightGoals, hindsight_of
from surefoot.online import ALGORITHMS
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.loops.relabelling import RelabelledReplay
from surefoot.online.loops.replay import Replay

EXACT = "donot_use_mm_for_euclid_dist"


def loop_of(name: str, kind: type[GoalEnv], steps: int, seeds: int = 1, **options: Any) -> OffPolicyLoop:
    data = options.pop("dataset", None)
    given = {"hidden": (64, 64), "num_envs": 4, "initial_steps": 200, **options}
    agent = ALGORITHMS[name](spec_of(beside(kind)), **given)
    agents = [agent.fresh(seed) for seed in range(seeds)]
    env = beside(kind, 4 * seeds)
    shared = {"planned_steps": steps, "batch_size": 128, "kernels": seeds == 1}
    ready = None if data is None else agents[0].prepare(data)
    return OffPolicyLoop(agents, list(range(seeds)), env, dataset=ready, **shared)


def solved(policy: Policy, kind: type[GoalEnv], episodes: int = 60) -> float:
    """Share of episodes that end at their goal."""
    env = beside(kind, 10)
    seen, _ = env.reset(seed=100)
    over = won = 0
    while over < episodes:
        actions, _ = policy.act(torch.from_numpy(np.asarray(seen, np.float32)), {})
        seen, _, terminated, truncated, _ = env.step(actions.numpy())
        over, won = over + int((terminated | truncated).sum()), won + int(terminated.sum())
    return won / over


@pytest.mark.parametrize(
    ("name", "kind", "steps", "options"),
    [("dqn", Bits, 3600, {"updates_per_step": 0.5}), ("td3", Point, 2200, {"discount": 0.95})],
)
def test_goals_are_reached_with_hindsight_and_not_without(
    name: str, kind: type[GoalEnv], steps: int, options: dict[str, Any]
) -> None:
    """Ten bits have 1,024 states: a goal is hardly ever met by chance, and without one there is nothing to learn."""
    rates = []
    for goals in (0, 4):
        loop = loop_of(name, kind, steps, hindsight=goals, **options)
        loop.run(steps)
        rates.append(solved(loop.learner.extract(0).policy(), kind))
    assert rates[0] < 0.25
    assert rates[1] > 0.5


def test_sac_takes_hindsight_too_and_seeds_stacked_are_seeds_alone() -> None:
    together = loop_of("sac", Point, 260, seeds=2, hindsight=4)
    alone = loop_of("sac", Point, 260, hindsight=4)
    for one in (together, alone):
        one.run(212)
    for key, value in alone.state(0).items():
        if key.startswith("agent/"):
            torch.testing.assert_close(together.state(0)[key], value, atol=2e-5, rtol=2e-4)


def test_a_resumed_run_goes_on_bit_for_bit() -> None:
    whole, first = loop_of("td3", Point, 400, hindsight=4), loop_of("td3", Point, 400, hindsight=4)
    whole.run(320)
    first.run(240)
    second = loop_of("td3", Point, 400, hindsight=4)
    assert second.restore([first.state(0)], first.step) is not None  # python environments begin anew
    third = loop_of("td3", Point, 400, hindsight=4)
    third.restore([first.state(0)], first.step)
    for one in (second, third):
        one.run(80)
    for key, value in second.state(0).items():
        assert torch.equal(value, third.state(0)[key]), key


# -- rows ----------------------------------------------------------------------------------------------------


def filled(lengths: tuple[int, ...] = (3, 5), under_way: int = 2) -> TransitionBuffer:
    """Episodes of a lone environment: achieved goals count up from 10 times the episode's number."""
    shapes = {"observations": (3,), "actions": (1,), "rewards": (), "terminations": (), "next_observations": (3,)}
    buffer = TransitionBuffer(32, shapes, torch.device("cpu"), 1, {})
    for number, length in enumerate((*lengths, under_way)):
        for t in range(length):
            at = 10.0 * number + t
            buffer.add(
                {
                    "observations": torch.tensor([[7.0, at, -1.0]]),
                    "actions": torch.zeros(1, 1),
                    "rewards": torch.full((1,), -5.0),
                    "terminations": torch.zeros(1),
                    "next_observations": torch.tensor([[7.0, at + 1, -1.0]]),
                    "truncations": torch.tensor([t == length - 1 and number < len(lengths)]),
                }
            )
    return buffer


def same(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
    return (achieved == desired).all(-1).astype(np.float32)


def drawn(goals: int, steps: int = 40) -> Batch:
    source = RelabelledReplay(Replay(filled()), HindsightGoals(1, 1, 20, goals, same, same))
    source.bind([0], 64, torch.device("cpu"))
    rows = torch.cat([source.rows(step) for step in range(steps)], 1)
    source.bind([0], rows.shape[1], torch.device("cpu"))
    return {key: value[0] for key, value in source.gather(rows).items()}


def test_later_goals_are_of_the_same_episode_and_uniform_to_its_end() -> None:
    batch = drawn(4)
    anew = batch["observations"][:, 2] != -1
    assert float(anew.float().mean()) == pytest.approx(0.8, abs=0.03)
    at, goal = batch["observations"][anew, 1], batch["observations"][anew, 2]
    assert torch.equal(at // 10, (goal - 1) // 10)
    assert bool((goal >= at + 1).all())
    for last, episode in ((3, 0), (15, 1), (22, 2)):  # what each episode achieved last; the third is under way
        assert float(goal[at // 10 == episode].max()) == last
    first = goal[at == 10]  # five goals lie ahead
    shares = torch.bincount(first.long() - 11, minlength=5) / len(first)
    torch.testing.assert_close(shares, torch.full((5,), 0.2), atol=0.08, rtol=0)


def test_rewards_and_ends_are_those_of_the_new_goal() -> None:
    batch = drawn(4)
    anew = batch["observations"][:, 2] != -1
    hit = batch["next_observations"][:, 1] == batch["next_observations"][:, 2]
    assert torch.equal(batch["rewards"][anew], hit[anew].float())
    assert torch.equal(batch["terminations"][anew], hit[anew].float())
    assert bool((batch["rewards"][~anew] == -5).all())
    assert torch.equal(batch["observations"][:, 2], batch["next_observations"][:, 2])
    if "observation_actions" in batch:
        assert torch.equal(batch["observation_actions"][:, :3], batch["observations"])


def test_without_later_goals_rows_are_as_they_were() -> None:
    assert bool((drawn(0)["rewards"] == -5).all())


def test_any_other_way_of_making_many_rows_of_one_fits() -> None:
    """As of a reward machine of three states: each row from each state, which stands in the observation."""

    class Machine:
        variants, horizon = 3, 1

        def __call__(self, batch: Batch, variants: torch.Tensor, later: torch.Tensor) -> Batch:
            assert torch.equal(later, batch["next_observations"])  # a horizon of one step is the row itself
            seen = torch.cat([batch["observations"], variants.unsqueeze(-1).float()], -1)
            return {**batch, "observations": seen, "rewards": variants.float()}

    source = RelabelledReplay(Replay(filled()), Machine())
    source.bind([0], 600, torch.device("cpu"))
    batch = source.gather(source.rows(0))
    assert torch.equal(batch["rewards"], batch["observations"][..., -1])
    assert torch.bincount(batch["rewards"][0].long()).min() > 150


def demonstrations(count: int = 30) -> Dataset:
    """Straight ways to the goal of the point, each of six steps."""
    rng = np.random.default_rng(1)
    rows: dict[str, list[Any]] = {"observations": [], "actions": [], "rewards": [], "next_observations": []}
    for _ in range(count):
        at, goal = rng.uniform(-0.3, 0.3, (2, 2))
        for _ in range(6):
            action = np.clip(0.5 * (goal - at) / 0.15, -1, 1)
            after = at + 0.15 * action
            rows["observations"].append(np.concatenate([at, at, goal]))
            rows["next_observations"].append(np.concatenate([after, after, goal]))
            rows["actions"].append(action)
            rows["rewards"].append(-float(np.abs(after - goal).max() > 0.1))
            at = after
    arrays = {key: np.array(value, np.float32) for key, value in rows.items()}
    total, ends = 6 * count, np.arange(6 * count) % 6 == 5
    return Dataset(
        **arrays, terminations=np.zeros(total, bool), truncations=ends, episode_ids=np.arange(total) // 6,
        valid=np.ones(total, bool), env_id="point", name="demonstrations",
    )  # fmt: skip


def test_demonstrations_stand_beside_and_are_relabelled_too() -> None:
    loop = loop_of("td3", Point, 400, hindsight=4, offline_fraction=0.25, dataset=demonstrations())
    loop.run(240)
    source: Any = loop.learner.sources[MAIN]
    batch = source.gather(source.rows(3))
    ours = source.from_data
    assert int(ours.sum()) == 32
    own = torch.from_numpy(demonstrations().observations[:, :2])
    found = batch["observations"].reshape(-1, 128, 6)[0]
    near = torch.cdist(found[:, :2], own, compute_mode=EXACT).amin(1) < 1e-6
    assert bool(near[ours].all())
    assert not bool(near[~ours].any())
    goals = torch.from_numpy(demonstrations().observations[:, 4:])
    kept = torch.cdist(found[ours][:, 4:], goals, compute_mode=EXACT).amin(1) < 1e-6
    assert 0 < int(kept.sum()) < 24
    judged = torch.from_numpy(Point().compute_reward(*(batch["next_observations"].reshape(-1, 128, 6)[0][:, i:j].numpy()
                                                       for i, j in ((2, 4), (4, 6))), {}))  # fmt: skip
    torch.testing.assert_close(batch["rewards"].reshape(-1, 128)[0], judged)


# -- what is refused -----------------------------------------------------------------------------------------


def test_environments_without_goals_are_refused() -> None:
    from surefoot.envs.vector import make_vec

    with pytest.raises(ConfigError, match="must be 0 here: it is of environments that give observation, achieved_goal"):
        hindsight_of(make_vec("native/pendulum", 1), 4, "sac")


def test_a_reward_of_one_goal_at_a_time_is_refused() -> None:
    alone = HindsightGoals(1, 1, 20, 4, lambda a, d, info: np.zeros(3))
    source = RelabelledReplay(Replay(filled()), alone)
    source.bind([0], 8, torch.device("cpu"))
    with pytest.raises(SimulatorError, match=r"compute_reward gave float64 of shape \(3,\) for 8 goals"):
        source.gather(source.rows(0))


@pytest.mark.parametrize("options", [{"hindsight": -1}, {"hindsight": 4, "n_step": 3}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="hindsight"):
        loop_of("td3", Point, 400, **options)


def test_scaled_rows_are_refused() -> None:
    agent = ALGORITHMS["td3"](spec_of(beside(Point)), hidden=(8,), hindsight=4).fresh(0)
    agent.reward_scale.fill_(2.0)
    with pytest.raises(ConfigError, match="must be 0 where observations or rewards are scaled"):
        OffPolicyLoop([agent], [0], beside(Point), planned_steps=100)


def test_a_run_reaches_the_environment_behind_the_simulators_interface() -> None:
    from surefoot.envs.adapters import adapt

    found = hindsight_of(adapt(beside(Point, 2)), 4, "td3")
    assert (found.horizon, found.variants, found.achieved, found.desired) == (20, 5, slice(2, 4), slice(4, 6))
