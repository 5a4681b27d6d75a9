"""Calls of a control loop: acting first, units and bounds, wrong calls, several streams, budgets."""

from __future__ import annotations

import copy
import pathlib
import time
from typing import Any

import numpy as np
import pytest
import torch
from loop_agents import ALL, same
from stream_problems import ARM, CHOICES, Samples, buffers, make, name_of

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import CheckpointError, ConfigError, EnvironmentMismatchError
from surefoot.core.engine.agent import Spec
from surefoot.streaming import Latency, StreamAC, StreamingAgent, StreamQ, StreamSARSA, StreamTD

# -- acting first ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "problem"), ALL, ids=name_of)
def test_acting_first_gives_the_action_of_weights_that_have_not_learned_yet(
    kind: type[StreamingAgent], problem: Spec
) -> None:
    samples = Samples(problem)
    agent = make(kind, problem)
    samples.begin(agent)
    samples.run(agent, 1, 20)
    arguments = {**samples.arguments(20), "terminated": False, "truncated": False}
    before, frozen = buffers(agent), copy.deepcopy(agent)
    frozen.improve = lambda rows: None  # type: ignore[method-assign]
    taken = agent.act(**arguments)
    assert torch.equal(agent.critic_weights, before["critic_weights"])
    expected = frozen.step(**arguments)
    if kind is not StreamTD:
        np.testing.assert_array_equal(taken, expected)
    agent.learn()
    assert not torch.equal(agent.critic_weights, before["critic_weights"])
    weights = agent.critic_weights.clone()
    agent.learn()
    assert torch.equal(agent.critic_weights, weights)
    assert int(agent.learned) == int(before["learned"]) + 1


def test_acting_first_learns_before_the_action_where_an_episode_ended() -> None:
    samples = Samples(ARM)
    one, two = make(StreamAC, ARM), make(StreamAC, ARM)
    for agent in (one, two):
        samples.begin(agent)
        samples.run(agent, 1, 10)
    end = {**samples.arguments(10), "terminated": True, "truncated": False}
    np.testing.assert_array_equal(one.act(**end), two.step(**end))
    one.learn()
    same(one, two)


# -- shapes, ends, time ---------------------------------------------------------------------------------------------


def test_actions_are_in_the_environments_units_and_bounds() -> None:
    agent, samples = make(StreamAC, ARM), Samples(ARM)
    taken = [samples.begin(agent), *samples.run(agent, 1, 300)]
    assert np.shape(taken) == (300, 2)
    low, high = np.min(taken, 0), np.max(taken, 0)
    assert low.tolist() == [-2.0, 0.0]  # clipped at times
    assert high.tolist() == [2.0, 1.0]
    assert float(agent.chosen.abs().max()) < 10
    before = agent.chosen.clone()
    assert agent.answer().tolist() == pytest.approx(
        [2 * float(before[0, 0].clamp(-1, 1)), 0.5 + 0.5 * float(before[0, 1].clamp(-1, 1))]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_actions_are_exactly_within_a_box_of_their_dtype(dtype: torch.dtype) -> None:
    random = np.random.default_rng(0)
    own = np.float32 if dtype == torch.float32 else np.float64
    low = random.normal(0.0, 10.0, 200).astype(own)
    high = low + random.uniform(0.1, 30.0, 200).astype(own)
    agent = make(StreamAC, Spec(1, 200, tuple(low.tolist()), tuple(high.tolist())), dtype=dtype)
    for sign, bound in ((-1, low), (1, high)):
        agent.chosen.fill_(sign)
        middle, half = (high + low) / 2, (high - low) / 2
        assert (middle + sign * half != bound).any()  # rounding would leave the box or fall short of it
        taken = agent.answer()
        assert ((low <= taken) & (taken <= high)).all()
        agent.chosen.fill_(sign * 3.0)
        assert agent.answer().tolist() == bound.tolist()


def test_one_stream_may_also_be_given_with_its_dimension() -> None:
    samples = Samples(ARM)
    flat, deep = make(StreamAC, ARM), make(StreamAC, ARM)
    samples.begin(flat)
    assert deep.begin(samples.observations[0, 0]).shape == (1, 2)
    for t in range(1, 60):
        arguments = samples.arguments(t)
        raised = {name: value[None] if np.ndim(value) else [value] for name, value in arguments.items()}
        np.testing.assert_array_equal(deep.step(**raised)[0], flat.step(**arguments))
    choices = make(StreamQ, CHOICES)
    assert np.shape(choices.begin(np.zeros(4))) == ()
    assert make(StreamQ, CHOICES, 3).begin(np.zeros((3, 4))).dtype == np.int64


def test_wrong_calls_say_what_is_wrong() -> None:
    agent = make(StreamAC, ARM)
    with pytest.raises(EnvironmentMismatchError, match="none has started"):
        agent.step(np.zeros(5), 0.0, False, False)
    with pytest.raises(
        EnvironmentMismatchError, match=r"observation has shape \(4,\); this stream_ac agent takes \(5,\)"
    ):
        agent.begin(np.zeros(4))
    agent.begin(np.zeros(5))
    with pytest.raises(EnvironmentMismatchError, match=r"first has shape \(2, 5\)"):
        agent.step(np.zeros(5), 0.0, True, False, first=np.zeros((2, 5)))
    with pytest.raises(EnvironmentMismatchError, match="reward is"):
        agent.step(np.zeros(5), [1.0, 2.0], False, False)
    agent.step(np.zeros(5), 0.0, True, False)
    for call in (lambda: agent.step(np.zeros(5), 0.0, False, False), agent.miss):
        with pytest.raises(EnvironmentMismatchError, match=r"call begin\(observation\)"):
            call()
    many = make(StreamAC, ARM, 3)
    many.begin(np.zeros((3, 5)))
    with pytest.raises(EnvironmentMismatchError, match=r"reward has shape \(\); this agent has 3 streams"):
        many.step(np.zeros((3, 5)), 0.0, np.zeros(3, bool), np.zeros(3, bool))
    many.step(np.zeros((3, 5)), np.zeros(3), np.array([False, True, False]), np.zeros(3, bool))
    with pytest.raises(EnvironmentMismatchError, match="in stream 1"):
        many.step(np.zeros((3, 5)), np.zeros(3), np.zeros(3, bool), np.zeros(3, bool))
    many.begin(np.ones((3, 5)), streams=[False, True, False])
    many.step(np.zeros((3, 5)), np.zeros(3), np.zeros(3, bool), np.zeros(3, bool))
    assert many.learned.tolist() == [2, 2, 2]


def test_what_is_no_array_of_numbers_is_named() -> None:
    agent = make(StreamAC, ARM)
    agent.begin(np.zeros(5))
    with_gradient = torch.zeros(5, requires_grad=True)
    for broken in ("abc", ["a"] * 5, [[1.0], [1.0, 2.0]], None, with_gradient):
        with pytest.raises(EnvironmentMismatchError, match="observation"):
            agent.step(broken, 0.0, False, False)
    for name, broken in (("reward", "abc"), ("reward", with_gradient[0]), ("terminated", -1), ("truncated", 1000)):
        with pytest.raises(EnvironmentMismatchError, match=f"{name} is"):
            agent.step(np.zeros(5), **{"reward": 0.0, "terminated": False, "truncated": False, name: broken})
    many = make(StreamAC, ARM, 3)
    with pytest.raises(EnvironmentMismatchError, match=r"streams has shape .* and dtype int64; one bool is needed"):
        many.begin(np.zeros((3, 5)), streams=[0, 1, 1])
    many.begin(np.zeros((3, 5)))
    with pytest.raises(EnvironmentMismatchError, match="reward is"):
        many.step(np.zeros((3, 5)), torch.zeros(3, requires_grad=True), np.zeros(3, bool), np.zeros(3, bool))


@pytest.mark.parametrize(("kind", "problem"), [(StreamAC, ARM), (StreamQ, CHOICES)], ids=name_of)
def test_beginning_one_stream_leaves_the_others_as_they_are(kind: type[StreamingAgent], problem: Spec) -> None:
    samples = Samples(problem, streams=3)
    samples.terminated[:], samples.truncated[:] = False, False
    agent, other = make(kind, problem, 3), make(kind, problem, 3)
    for each in (agent, other):
        samples.begin(each)
        samples.run(each, 1, 10)
    firsts = [agent.begin(samples.observations[t, 1], streams=np.array([False, True, False])) for t in (10, 11)]
    assert kind is StreamQ or (firsts[0][1] != firsts[1][1]).any()
    np.testing.assert_array_equal(firsts[0][[0, 2]], other.answer()[[0, 2]])
    for t in range(11, 150):
        np.testing.assert_array_equal(
            agent.step(**samples.arguments(t))[[0, 2]], other.step(**samples.arguments(t))[[0, 2]]
        )
    assert int(agent.acted) == int(other.acted)


@pytest.mark.parametrize("kind", [StreamQ, StreamSARSA])
def test_epsilon_falls_alike_whether_episodes_follow_by_begin_or_by_first(kind: type[StreamingAgent]) -> None:
    samples = Samples(CHOICES)
    samples.terminated[:], samples.truncated[:] = False, False
    samples.terminated[2::2] = True  # episodes of two steps
    epsilons: dict[bool, list[float]] = {}
    for begins in (False, True):
        agent, found = make(kind, CHOICES, exploration_fraction=1.0), []
        agent.plan(1000)
        samples.begin(agent)
        for t in range(1, 301):
            arguments = samples.arguments(t)
            first = arguments.pop("first")
            agent.step(**arguments, **({} if begins else {"first": first}))
            if begins and arguments["terminated"]:
                agent.begin(first)
            found.append(float(agent.in_epsilon))
        epsilons[begins] = found
        assert agent.report()["acted"] == 301
    assert epsilons[True] == epsilons[False]
    assert epsilons[True][-1] == pytest.approx(1 - 0.99 * 301 / 1000, abs=2e-3)


def test_first_actions_of_episodes_that_begin_have_noise_of_their_own() -> None:
    """Not that of the step before, or of the one after; and each stream's is the same alone."""
    seen: dict[int, list[list[float]]] = {}
    for streams in (1, 2):
        agent, no = make(StreamAC, ARM, streams), np.zeros(streams, bool)
        agent.begin(np.zeros((streams, 5)))
        drawn = []
        for t in range(1, 6):
            agent.step(np.full((streams, 5), float(t)), np.zeros(streams), no, ~no)
            drawn.append(agent.in_noise[0].tolist())
            agent.begin(np.zeros((streams, 5)))
            drawn.append(agent.in_noise[0].tolist())
        seen[streams] = drawn
    assert seen[1] == seen[2]
    assert len(set(map(tuple, seen[1]))) == 10


def test_beginning_again_gives_an_episode_up() -> None:
    samples = Samples(ARM)
    agent = make(StreamAC, ARM)
    samples.begin(agent)
    samples.run(agent, 1, 10)
    learned = int(agent.learned)
    agent.begin(np.zeros(5))
    assert not agent.critic_traces.any()
    assert int(agent.learned) == learned


def test_steps_over_the_budget_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    clock = iter(range(0, 10**9, 1_000_000))  # each look at the clock is a millisecond after the last
    agent = make(StreamAC, ARM, budget_us=1500.0)
    agent.begin(np.zeros(5))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(clock))
    for _ in range(5):
        agent.step(np.ones(5), 0.0, False, False)  # one millisecond each
    assert agent.report()["overruns"] == 0
    agent.act(np.ones(5), 0.0, False, False)
    agent.learn()  # together two
    assert agent.report()["overruns"] == 1
    agent.save(tmp_path / "agent.safetensors")
    assert StreamAC.open(tmp_path / "agent.safetensors", budget_us=1.0).report()["overruns"] == 1
    latency = agent.report()["latency"]
    assert latency["step"]["count"] == 5
    assert latency["step"]["p50_us"] == latency["act"]["longest_us"] == latency["learn"]["p99_us"] == 1000.0
    with pytest.raises(ConfigError, match="budget_us"):
        make(StreamAC, ARM, budget_us=0)


def test_percentiles_are_within_a_sixteenth_of_numpys() -> None:
    random = np.random.default_rng(0)
    durations = np.exp(random.normal(10.0, 1.5, 20_000)).astype(int)  # nanoseconds around 22 microseconds
    latency = Latency()
    for duration in durations.tolist():
        latency.add(duration)
    for share in (1, 50, 99, 99.9):
        assert latency.percentile(share) == pytest.approx(np.percentile(durations, share) / 1000, rel=1 / 12)
        assert latency.percentile(share) >= np.percentile(durations, share, method="inverted_cdf") / 1000
    assert latency.longest_us == latency.percentile(100) == durations.max() / 1000
    text = str(latency)
    assert sum(int(line.split("us")[1].split()[0].replace(",", "")) for line in text.splitlines()[:-1]) == 20_000
    assert "median" in text.splitlines()[-1]
    extremes = Latency()
    assert str(extremes) == "no durations yet"
    for duration in (0, 1, 127, 128, 10**15):
        extremes.add(duration)
    assert extremes.count == 5
    assert extremes.percentile(50) == 0.128


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"native": "yes"}, "native is 'yes', must be true or false"),
        ({"dtype": "import os"}, "dtype is 'import os', must be one of float32, float64"),
        ({"seeds": [0, "1"]}, r"seeds\[1\] is '1', must be a whole number"),
        ({"config": {"hidden": [1.5]}}, r"config: hidden\[0\] is 1.5, must be a whole number"),
        ({"config": {"decay": 2.0}}, r"decay is 2.0, must be in \[0, 1\]"),
        ({"problem": {"observation_dim": 3}}, "has no key 'action_dim'"),
        ({"planned_steps": None, "overruns": -1}, "overruns is -1, must be"),
    ],
)
def test_a_saved_agent_of_other_types_is_refused_by_field(
    tmp_path: pathlib.Path, change: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "agent.safetensors"
    make(StreamAC, ARM, 1).save(path)
    tensors, meta = checkpoint.load(path)
    checkpoint.save(path, tensors, {**meta, **change})
    with pytest.raises(CheckpointError, match=sentence):
        StreamAC.open(path)


def test_a_saved_agent_whose_weights_are_not_finite_is_refused_by_tensor(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "agent.safetensors"
    make(StreamAC, ARM, 1).save(path)
    tensors, meta = checkpoint.load(path)
    name = max(tensors, key=lambda name: tensors[name].numel())
    checkpoint.save(path, {**tensors, name: tensors[name] * float("nan")}, meta)
    with pytest.raises(CheckpointError, match=f"the tensor '{name}' holds nan"):
        StreamAC.open(path)


@pytest.mark.parametrize(("kind", "problem"), ALL, ids=name_of)
def test_acting_first_a_stream_draws_the_same_alone_and_beside_one_that_begins_an_episode(
    kind: type[StreamingAgent], problem: Spec
) -> None:
    samples = Samples(problem, streams=2)
    both, alone = make(kind, problem, 2, dtype=torch.float64), make(kind, problem, 1, dtype=torch.float64)
    both.begin(samples.observations[0, 0])
    alone.begin(samples.observations[0, 0, 0])
    for t in range(1, 40):
        ends = {"terminated": np.array([False, t % 5 == 0]), "truncated": np.zeros(2, bool)}
        rows, first = samples.observations[t]
        together = both.act(rows, samples.rewards[t], **ends, first=first)
        one = {"terminated": False, "truncated": False, "first": first[0]}
        np.testing.assert_allclose(together[0], alone.act(rows[0], samples.rewards[t, 0], **one), rtol=1e-6, atol=1e-9)
        both.learn()
        alone.learn()
