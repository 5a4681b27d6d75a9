"""What a control loop meets: samples that are lost or broken, saving at any step, budgets, wrong calls."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from loop_agents import ALL, same
from stream_problems import ARM, CHOICES, EXTENSIONS, STREAM_X, Samples, buffers, make, name_of

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError, ConfigError, DivergenceError, EnvironmentMismatchError
from surefoot.core.engine.agent import Spec
from surefoot.streaming import IntentionalQ, StreamAC, StreamingAgent, StreamQ, StreamTD


@pytest.mark.parametrize(
    ("kind", "problem", "optimizer"),
    [
        *((*case, optimizer) for case in STREAM_X for optimizer in ("obgd", "adaptive")),
        *((*c, None) for c in EXTENSIONS),
    ],
    ids=name_of,
)
def test_a_saved_agent_goes_on_to_the_same_bits(
    kind: type[StreamingAgent], problem: Spec, optimizer: str | None, tmp_path: pathlib.Path
) -> None:
    options: dict[str, Any] = {"native": None, **({"optimizer": optimizer} if optimizer else {})}
    samples = Samples(problem, streams=2, length=60)
    agent, path = make(kind, problem, 2, **options), tmp_path / "agent.safetensors"
    agent.plan(300)
    samples.begin(agent)
    for t in range(1, 40):
        agent.save(path)
        copies = [make(kind, problem, 2, **options), kind.open(path)] if t % 13 == 0 else [kind.open(path)]
        if t % 13 == 0:
            copies[0].load(path)
        expected = agent.step(**samples.arguments(t))
        for other in copies:
            np.testing.assert_array_equal(other.step(**samples.arguments(t)), expected)
            same(other, agent)
            assert other.planned_steps == 300
    resumed = kind.open(path)  # saved before the last step, and never since
    assert samples.run(resumed, 39, 60)[-1].tolist() == samples.run(agent, 40, 60)[-1].tolist()
    same(resumed, agent)


def test_an_agent_that_0_2_saved_goes_on_with_a_warning(tmp_path: pathlib.Path) -> None:
    """What it learned is whole; only the numbers that it explores by are others."""
    samples, path = Samples(CHOICES), tmp_path / "agent.safetensors"
    agent = make(StreamQ, CHOICES)
    samples.begin(agent)
    samples.run(agent, 1, 10)
    agent.save(path)
    tensors, meta = checkpoint.load(path)
    del meta["random_numbers"]
    checkpoint.save(path, tensors, meta)
    with pytest.warns(RuntimeWarning, match=r"written by surefoot 0\.2.*explores by other random numbers") as caught:
        other = StreamQ.open(path)
    assert pathlib.Path(caught[0].filename) == pathlib.Path(__file__)  # the warning points at who opened it
    same(other, agent)


def test_saving_between_act_and_learn_loses_nothing(tmp_path: pathlib.Path) -> None:
    samples = Samples(ARM)
    agent, other = make(StreamAC, ARM), make(StreamAC, ARM)
    for each in (agent, other):
        samples.begin(each)
    for t in range(1, 30):
        np.testing.assert_array_equal(agent.act(**samples.arguments(t)), other.act(**samples.arguments(t)))
        agent.save(tmp_path / "agent.safetensors")
        agent = StreamAC.open(tmp_path / "agent.safetensors")
        agent.learn()  # nothing is due any more
        if t % 2:
            other.learn()  # else `act` takes the step that is due
    other.learn()
    same(agent, other)


def test_a_stream_can_be_taken_out_and_put_back() -> None:
    samples = Samples(CHOICES, streams=2)
    agent, other = make(StreamQ, CHOICES, 2), make(StreamQ, CHOICES, 2)
    samples.begin(agent)
    samples.run(agent, 1, 30)
    for position in range(2):
        state = agent.state(position)
        assert all(name.startswith("agent/") and (v.dim() == 0 or len(v) == 1) for name, v in state.items())
        other.restore(position, state)
    samples.run(agent, 30, 60)
    samples.run(other, 30, 60)
    same(agent, other)


def test_files_of_other_agents_are_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "agent.safetensors"
    agent = make(StreamAC, ARM)
    agent.save(path)
    for other, field in (
        (make(StreamQ, CHOICES), "algorithm"),
        (make(StreamAC, ARM, decay=0.5), "config"),
        (make(StreamAC, ARM, 2), "seeds"),
        (make(StreamAC, ARM, dtype=torch.float64), "dtype"),
        (make(StreamAC, Spec(5, 2, (-1.0, -1.0), (1.0, 1.0))), "problem"),
    ):
        before = buffers(other)
        with pytest.raises(CheckpointError, match=f"its {field} is"):
            other.load(path)
        assert all(torch.equal(value, before[name]) for name, value in buffers(other).items())
    with pytest.raises(CheckpointError, match="holds a stream_ac agent, not stream_q"):
        StreamQ.open(path)
    for option in ("dtype", "seeds", "decay"):
        with pytest.raises(ConfigError, match=f"open takes native and budget_us, not '{option}'"):
            StreamAC.open(path, **{option: 1})
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        agent.load(path)


# -- lost and broken samples ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["observation", "reward"])
@pytest.mark.parametrize(("kind", "problem"), ALL, ids=name_of)
def test_a_broken_sample_is_skipped_and_the_last_action_repeated(
    kind: type[StreamingAgent], problem: Spec, broken: str
) -> None:
    samples = Samples(problem)
    agent = make(kind, problem, native=None)
    samples.begin(agent)
    last = samples.run(agent, 1, 10)[-1]
    before = buffers(agent)
    arguments = {**samples.arguments(10), "terminated": False, "truncated": False}
    arguments[broken] = arguments[broken] * (np.nan if broken == "observation" else np.inf)
    with pytest.warns(RuntimeWarning, match="skipped and the last action repeated"):
        again = agent.step(**arguments)
    if kind is not StreamTD:
        np.testing.assert_array_equal(again, last)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a second one is silent
        agent.step(**arguments)
    kept = ("weights", "observation_mean", "observation_count", "reward_count", "chosen", "states", "learned")
    for name, value in buffers(agent).items():
        if name.endswith(kept):
            assert torch.equal(value, before[name]), name
    assert agent.report()["skipped"] == [2]
    samples.run(agent, 11, 12)
    assert int(agent.learned) == int(before["learned"])  # nothing is learned across the gap
    samples.run(agent, 12, 14)
    assert int(agent.learned) == int(before["learned"]) + 2  # and after it all continues
    assert all(bool(torch.isfinite(v).all()) for v in buffers(agent).values())


def test_traces_grow_old_over_a_gap() -> None:
    samples = Samples(ARM)
    agent = make(StreamAC, ARM, dtype=torch.float64)
    samples.begin(agent)
    samples.terminated[:], samples.truncated[:] = False, False
    last = samples.run(agent, 1, 10)[-1]
    traces, total = agent.critic_traces.clone(), float(agent.reward_trace)
    assert traces.any()
    np.testing.assert_array_equal(agent.miss(), last)  # neither to the missing sample nor from it
    torch.testing.assert_close(agent.critic_traces, traces * (0.99 * 0.8) ** 2)
    agent.miss()  # one more
    torch.testing.assert_close(agent.critic_traces, traces * (0.99 * 0.8) ** 3)
    assert float(agent.reward_trace) == pytest.approx(total * 0.99**3)
    assert agent.report()["missed"] == [2]


@pytest.mark.parametrize("native", [False, None])
@pytest.mark.parametrize("kind", [StreamQ, IntentionalQ])
@pytest.mark.parametrize("lost", ["miss", "step", "act"])
def test_no_error_after_a_lost_sample_credits_steps_before_an_exploratory_action(
    lost: str, kind: type[StreamingAgent], native: bool | None
) -> None:
    samples = Samples(CHOICES, streams=2)
    samples.terminated[:], samples.truncated[:] = False, False
    agent = make(kind, CHOICES, 2, native=native, last_epsilon=0.5)
    samples.begin(agent)
    t = 1
    while not bool(agent.explored[0]) or not agent.critic_traces.any(1).all():
        samples.run(agent, t, t + 1)
        t += 1
    traces, total = agent.critic_traces.clone(), agent.reward_trace.clone()
    if lost == "miss":
        agent.miss()
    else:
        arguments = samples.arguments(t)
        arguments["observation"][0] = np.nan
        with pytest.warns(RuntimeWarning, match="of stream 0"):
            getattr(agent, lost)(**arguments)
    assert not agent.critic_traces[0].any()
    assert float(agent.reward_trace[0]) == pytest.approx(float(total[0]) * 0.99**2)
    if lost == "act":  # the other stream continues, its traces too, which no transition but its own may cut
        torch.testing.assert_close(agent.critic_traces[1], traces[1])


@pytest.mark.parametrize("act_first", [False, True])
def test_an_episode_that_ends_with_a_broken_sample_ends_all_the_same(act_first: bool) -> None:
    samples = Samples(ARM)
    agent = make(StreamAC, ARM)
    samples.begin(agent)
    samples.run(agent, 1, 10)
    learned = int(agent.learned)
    bad = {"observation": np.full(5, np.nan), "reward": 1.0, "terminated": True, "truncated": False}
    with pytest.warns(RuntimeWarning):
        (agent.act if act_first else agent.step)(**bad, first=np.ones(5))
    assert not agent.critic_traces.any()
    assert not agent.actor_traces.any()
    assert float(agent.reward_trace) == 0
    agent.step(np.zeros(5), 1.0, False, False)
    assert int(agent.learned) == learned + 1  # the first transition of the next episode
    agent.step(**bad)  # without `first`
    with pytest.raises(EnvironmentMismatchError, match="call begin"):
        agent.step(np.zeros(5), 1.0, False, False)


def test_a_broken_first_observation_gives_the_middle_and_the_loop_goes_on() -> None:
    agent = make(StreamAC, ARM)
    with pytest.warns(RuntimeWarning):
        assert agent.begin(np.full(5, np.nan)).tolist() == [0.0, 0.5]  # of bounds -2 to 2 and 0 to 1
    agent.step(np.ones(5), 1.0, False, False)
    assert agent.learned.tolist() == [0]
    agent.step(np.zeros(5), 1.0, False, False)
    assert agent.learned.tolist() == [1]


def test_an_end_right_after_a_gap_clears_the_traces() -> None:
    samples = Samples(ARM)
    agent = make(StreamAC, ARM)
    samples.begin(agent)
    samples.run(agent, 1, 10)
    agent.miss()
    assert agent.critic_traces.any()
    agent.step(np.zeros(5), 1.0, False, True, first=np.ones(5))
    assert not agent.critic_traces.any()


def test_other_streams_learn_on_while_one_is_broken() -> None:
    samples = Samples(ARM, streams=3)
    samples.terminated[:], samples.truncated[:] = False, False
    whole, broken = make(StreamAC, ARM, 3, native=None), make(StreamAC, ARM, 3, native=None)
    samples.begin(whole)
    samples.begin(broken)
    for t in range(1, 30):
        arguments = samples.arguments(t)
        whole.step(**arguments)
        if t in (7, 8, 20):
            arguments["observation"] = arguments["observation"].copy()
            arguments["observation"][1, 2] = np.inf
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                broken.step(**arguments)
        else:
            broken.step(**arguments)
    assert broken.skipped.tolist() == [0, 3, 0]
    assert broken.learned.tolist() == [29, 29 - 5, 29]  # each gap takes one transition more than samples
    for name, value in buffers(whole).items():
        if value.dim():
            assert torch.equal(value[[0, 2]], buffers(broken)[name][[0, 2]]), name


@pytest.mark.parametrize("native", [False, None])
@pytest.mark.parametrize("value", [1e19, 1e39, 1e200])
def test_numbers_too_large_for_the_weights_are_broken_samples(value: float, native: bool | None) -> None:
    samples = Samples(ARM)
    agent = make(StreamAC, ARM, native=native)
    samples.begin(agent)
    samples.run(agent, 1, 10)
    for broken in ("observation", "reward"):
        arguments = {**samples.arguments(10), "terminated": False, "truncated": False}
        arguments[broken] = np.full(5, -value) if broken == "observation" else -value
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "stream_ac: a sample holds")
            agent.step(**arguments)
    agent.step(np.ones(5), 0.0, True, False, first=np.full(5, value))
    assert agent.report()["skipped"] == [3]
    agent.begin(np.full(5, value))
    assert agent.report()["skipped"] == [4]
    agent.begin(np.full(5, 1e17))  # far, but a number
    agent.step(np.full(5, 1e17), -1e17, False, False)
    assert agent.report()["skipped"] == [4]
    samples.run(agent, 11, 20)
    assert all(bool(torch.isfinite(v).all()) for v in buffers(agent).values())


@pytest.mark.filterwarnings("ignore:.*observation_limit")
def test_a_spike_beyond_the_limit_is_skipped_once_there_are_statistics() -> None:
    random = np.random.default_rng(0)
    observations = random.normal(2.0, 1.0, (150, 5))
    observations[:, 4] = 0.0  # never changes
    spike = np.array([0.0, 500.0, 0.0, 0.0, 0.0])
    for limit, skipped in ((20.0, 1), (1000.0, 0), (None, 0)):
        agent = make(StreamAC, ARM, observation_limit=limit)
        agent.begin(observations[0])
        for row in observations[1:]:
            agent.step(row, 0.0, False, False)
        mean = agent.observation_mean.clone()
        agent.step(spike, 0.0, False, False)
        assert agent.report()["skipped"] == [skipped], limit
        assert torch.equal(agent.observation_mean, mean) == bool(skipped)
        agent.step(observations[0] + [0.0, 0.0, 0.0, 0.0, 9.0], 0.0, False, False)  # its first change
        assert agent.report()["skipped"] == [skipped]
        young = make(StreamAC, ARM, observation_limit=limit)
        young.begin(observations[0])
        young.step(spike, 0.0, False, False)
        assert young.report()["skipped"] == [0]
    with pytest.raises(ConfigError, match="observation_limit is 5, must be None where observations are not normalised"):
        make(StreamAC, ARM, observation_limit=5, normalize_observations=False)


# -- results that are not finite --------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [False, None])
@pytest.mark.parametrize("act_first", [False, True])
@pytest.mark.parametrize("streams", [1, 3])
def test_no_action_comes_from_weights_that_are_not_finite(
    streams: int, act_first: bool, native: bool | None, tmp_path: pathlib.Path
) -> None:
    samples, path = Samples(ARM, streams=streams), tmp_path / "agent.safetensors"
    samples.terminated[:], samples.truncated[:] = False, False
    agent = make(StreamAC, ARM, streams, native=native)
    samples.begin(agent)
    samples.run(agent, 1, 10)
    agent.save(path)
    kept = path.read_bytes()
    agent.critic_weights[-1, 3] = np.inf
    last = agent.learn if act_first else lambda: agent.step(**samples.arguments(10))
    if act_first:
        agent.act(**samples.arguments(10))
    with pytest.raises(DivergenceError, match=rf"the TD error of stream {streams - 1} \(seed {9 + streams}\)"):
        last()
    with pytest.raises(DivergenceError):
        agent.save(path)
    assert path.read_bytes() == kept
    agent.load(path)
    samples.run(agent, 11, 20)  # and it continues
    agent.actor_weights[-1] = np.nan
    with pytest.raises(DivergenceError, match=f"the action of stream {streams - 1}"):
        agent.begin(samples.observations[0, 0] if streams > 1 else samples.observations[0, 0, 0])
