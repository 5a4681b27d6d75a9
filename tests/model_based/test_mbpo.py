"""MBPO: the schedule of rollout lengths, the parts of the replay buffer, and a run that resumes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refused

from surefoot.core.base.errors import Code
from surefoot.core.engine.agent import Rule, Spec
from surefoot.core.engine.sources import MAIN
from surefoot.data.collect import TransitionBuffer
from surefoot.envs import make_vec
from surefoot.model_based.base.alarm import Alarm
from surefoot.model_based.mbpo import MBPO, rollout_length
from surefoot.online import spec_of
from surefoot.online.loops.loop import make_loop
from surefoot.online.loops.model_replay import Members, Newest, Split
from surefoot.online.loops.off_policy import OffPolicyLoop

SMALL = {
    "hidden": (16, 16), "model_hidden": (16, 16), "model_decays": (), "model_members": 3, "model_elites": 2,
    "model_updates": 20, "model_every": 2, "rollouts": 30, "imagine_every": 25, "initial_steps": 60,
    "updates_per_step": 2.0, "length_schedule": (80, 120, 1, 4), "model_rows": 32, "model_holdout_limit": 64,
}  # fmt: skip


def test_rollout_lengths_are_those_of_the_schedule() -> None:
    """Hopper's: epochs of 1,000 steps 20 -> 1, 85 -> 8, 150 -> 15 (Janner et al., appendix C)."""
    hopper = (20_000, 150_000, 1, 15)
    steps = (0, 20_000, 85_000, 150_000, 10**6)
    assert [rollout_length(step, hopper) for step in steps] == [1, 1, 8, 15, 15]
    assert rollout_length(29_285, hopper) == 1
    assert rollout_length(29_286, hopper) == 2
    assert {rollout_length(step, (20_000, 150_000, 1, 1)) for step in steps} == {1}


def filled(steps: int, envs: int, capacity: int) -> TransitionBuffer:
    buffer = TransitionBuffer(capacity, {"rewards": ()}, "cpu", envs)
    for step in range(steps):
        ends = np.zeros(envs, bool)
        rewards = 100.0 * step + np.arange(envs)
        buffer.add({"rewards": rewards, "terminations": ends, "truncations": ends, "valid": ~ends})
    return buffer


@pytest.mark.parametrize("seeds", [[0], [4, 7]])
def test_a_tenth_of_the_steps_is_held_out_from_the_model_and_from_it_alone(seeds: list[int]) -> None:
    envs = 2 * len(seeds)
    buffer = filled(43, envs, 100 * envs)
    ours, held = Split(buffer, 10, False, "model"), Split(buffer, 10, True, "held")
    members = Members(buffer, 10, 3, "members")
    for source in (ours, held, members):
        source.bind(seeds, 400, torch.device("cpu"))
    wanted = {step for step in range(43) if step % 10 == 9}
    for source, steps in ((held, wanted), (ours, set(range(43)) - wanted), (members, set(range(43)) - wanted)):
        rewards = source.gather(source.rows(3))["rewards"]
        assert rewards.shape[:2] == (len(seeds), 400)
        assert {int(value) // 100 for value in rewards.flatten()} == steps
        for position in range(len(seeds)):
            assert {int(value) % 100 for value in rewards[position].flatten()} == {2 * position, 2 * position + 1}
    assert members.rows(3).shape == (len(seeds), 400, 3)
    one = members.rows(3)
    assert not torch.equal(one[..., 0], one[..., 1])


def bound(source: Split, rows: int = 400) -> np.ndarray:
    source.bind([0], rows, torch.device("cpu"))
    return source.rows(3).flatten().numpy()


def test_before_a_step_is_held_out_all_rows_that_are_there_are() -> None:
    buffer = filled(6, 64, 6400)
    assert bound(Split(buffer, 10, True, "held")).max() < 6 * 64
    assert bound(Split(filled(6, 4, 24), 10, True, "held")).max() < 24  # the buffer will never have ten steps


@pytest.mark.parametrize("every", [20, 21])
def test_rows_that_are_no_transitions_are_in_no_part(every: int) -> None:
    buffer = TransitionBuffer(400, {"rewards": ()}, "cpu", 1)
    for step in range(400):
        inserted = step % every == every - 1
        ends = np.array([step % every == every - 2])
        columns = {"rewards": np.ones(1), "terminations": ends, "truncations": np.zeros(1, bool)}
        buffer.add({**columns, "valid": np.array([not inserted])})
    for held in (True, False):
        rows = bound(Split(buffer, 10, held, "part"))
        assert (rows % every != every - 1).all()
        assert ((rows % 10 == 9) == held).all()


def test_the_newest_rows_are_found_round_the_rings_end() -> None:
    buffer = filled(25, 1, 10)
    newest = Newest(buffer, "fresh")
    newest.bind([0], 4, torch.device("cpu"))
    assert newest.gather(newest.rows(0))["rewards"].tolist() == [[2400, 2300, 2200, 2100]]


def loop_of(seed: int = 0, **options: object) -> OffPolicyLoop:
    env = make_vec("native/pendulum", 1)
    agent = MBPO(spec_of(env), **{**SMALL, **options}).fresh(seed)
    return make_loop([agent], [seed], env, planned_steps=200, batch_size=32)  # type: ignore[return-value]


def test_rows_are_imagined_at_the_lengths_of_the_schedule_and_old_ones_are_left_out() -> None:
    loop = loop_of()
    first = loop.run(80)  # 40 training steps
    assert first["rollout_length"] == [1.0]
    assert loop.learner.sources[MAIN].added == 2 * 30  # at steps 21 and 25
    last = loop.run(80)
    assert last["rollout_length"] == [4.0]
    assert np.isfinite([value for values in last.values() for value in values if not np.isnan(value)]).all()
    assert int(loop.learner.sources[MAIN].rows_added(0)["kept"]) == 4 * 30 * 4
    elites = loop.learner.buffers["model.elites"][0].tolist()
    assert len(set(elites)) == 2
    assert last["model_error"][0] < first["model_error"][0]
    alarm = Alarm(loop.learner.agent.config)
    alarm.observe_outcome(80, {name: values[0] for name, values in last.items()})
    assert alarm.watched == ["value_excess", "value_growth", "edge_share", "reward_excess", "calibration_drift"]


def test_only_a_model_that_came_recalibrated_is_recalibrated_as_it_learns_on() -> None:
    env = make_vec("native/pendulum", 1)
    for came in (1.0, 40.0):
        agent = MBPO(spec_of(env), **SMALL).fresh(0)
        agent.model.temperature.fill_(came)
        loop = make_loop([agent], [0], env, planned_steps=200, batch_size=32)
        loop.run(110)
        now = loop.learner.buffers["model.temperature"][0]
        assert bool((now == 1).all()) == (came == 1)
        assert bool((now < 40).any())


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit() -> None:
    whole, before, after = loop_of(), loop_of(), loop_of()
    whole.run(110)
    before.run(90)
    assert after.restore([{name: value.clone() for name, value in before.state(0).items()}], before.step) is None
    after.run(20)
    expected = whole.state(0)
    for name, value in after.state(0).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length_schedule": (10, 5, 1, 2)}, ("length_schedule", "conflict")),
        ({"real_ratio": -0.1}, ("real_ratio", "range")),
        ({"model_every": 0}, ("model_every", "range")),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, object], message: tuple[str, Code]) -> None:
    with refused(*message):
        MBPO.configure(**options)


def test_statistics_found_anew_leave_what_the_model_predicts() -> None:
    made = MBPO(Spec(1, 1, (-1.0,), (1.0,)), **SMALL).fresh(0).double()
    draw = torch.Generator().manual_seed(0)

    def rows(scale: float) -> dict[str, torch.Tensor]:
        sizes = {"observations": (40, 1), "actions": (40, 1), "next_observations": (40, 1), "rewards": (40,)}
        return {n: scale * torch.randn(s, generator=draw, dtype=torch.float64) + scale for n, s in sizes.items()}

    first, later = (rule for rule in made.updates() if isinstance(rule, Rule) and "limits" in rule.changes)
    assert (first.until, later.after, later.every) == (1, SMALL["model_updates"] + 1, SMALL["imagine_every"])
    asked = torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None]
    seen = []
    for rule, scale in ((first, 1.0), (later, 30.0)):
        assert rule.change is not None
        made.load_state_dict({**made.state_dict(), **rule.change(rows(scale), {})[0]})
        predicted = made.model.predict_all(asked, 0 * asked)
        seen.append((made.model.input_scale.clone(), made.limits.clone(), predicted.mean, predicted.std))
    (scale, limits, mean, std), (other_scale, other_limits, other_mean, other_std) = seen
    assert (other_scale > 5 * scale).all()
    assert (other_limits[[1, 4]] > 5 * limits[[1, 4]]).all()
    assert limits[2] == limits[1]  # growth above what the rewards met allow is a sign
    torch.testing.assert_close(other_mean, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(other_std, std, rtol=1e-9, atol=1e-9)
