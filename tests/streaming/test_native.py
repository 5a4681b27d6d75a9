"""The native kernel beside plain torch, through the agents: the same numbers up to rounding, over many steps."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from stream_problems import ARM, STREAM_X, Samples, buffers, make, name_of

from surefoot.core.engine.agent import Spec
from surefoot.cuda_ext.stream import OBSERVE
from surefoot.streaming import StreamAC, StreamingAgent, StreamTD
from surefoot.streaming.streams import why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no native kernel: {why_not()}")

OPTIONS: list[dict[str, Any]] = [
    {},
    {"preset": "official"},
    {"optimizer": "adaptive"},
    {"optimizer": "sgd", "layer_norm": False},
    {"normalize_observations": False, "scale_rewards": False, "clear_before_add": False, "hidden": (9,)},
    {"clear_before_add": False, "decay": 0.5, "discount": 0.9, "kappa_critic": 1.0, "hidden": ()},
]


def compare(native: StreamingAgent, plain: StreamingAgent, tolerance: float, up_to: int, samples: Samples) -> None:
    """Step both by the same samples; every buffer and every action is close at every step."""
    assert native.native
    assert not plain.native
    np.testing.assert_allclose(samples.begin(native), samples.begin(plain), rtol=tolerance, atol=tolerance)
    for t in range(1, up_to):
        taken, expected = (agent.step(**samples.arguments(t)) for agent in (native, plain))
        np.testing.assert_allclose(taken, expected, rtol=10 * tolerance, atol=10 * tolerance, err_msg=f"step {t}")
        if t % 40 == 0:
            own = buffers(native)
            for name, value in buffers(plain).items():
                torch.testing.assert_close(own[name], value, rtol=tolerance, atol=tolerance, msg=f"{name}, step {t}")
    assert int(native.learned.sum()) > 0.9 * up_to


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("kind", "problem"), STREAM_X, ids=name_of)
def test_native_steps_are_torchs_in_float64(kind: type[StreamingAgent], problem: Spec, options: dict[str, Any]) -> None:
    agents = [make(kind, problem, 2, dtype=torch.float64, **{**options, "native": n}) for n in (True, False)]
    compare(agents[0], agents[1], 1e-9, 121, Samples(problem, streams=2))


@pytest.mark.parametrize(("kind", "problem"), STREAM_X, ids=name_of)
def test_native_steps_are_torchs_in_float32(kind: type[StreamingAgent], problem: Spec) -> None:
    agents = [make(kind, problem, 2, native=native) for native in (True, False)]
    compare(agents[0], agents[1], 2e-3, 81, Samples(problem, streams=2))


@pytest.mark.filterwarnings("ignore:.*holds NaN, infinity")
@pytest.mark.parametrize(("kind", "problem"), STREAM_X, ids=name_of)
def test_acting_first_gaps_and_begins_are_the_same_natively(kind: type[StreamingAgent], problem: Spec) -> None:
    samples = Samples(problem, streams=3)
    samples.observations[[20, 21, 60], 0, 1, 2] = np.nan
    samples.rewards[40, 2] = np.inf
    ended = np.flatnonzero((samples.terminated | samples.truncated)[:, 0])
    samples.observations[ended[1], 0, 0], samples.observations[ended[2], 1, 0] = np.nan, np.inf
    agents = [make(kind, problem, 3, dtype=torch.float64, native=native) for native in (True, False)]
    results: list[list[Any]] = [[], []]
    for agent, taken in zip(agents, results, strict=True):
        samples.begin(agent)
        for t in range(1, 120):
            taken.append(agent.act(**samples.arguments(t)))
            agent.learn()
            if t % 30 == 0:
                taken.append(agent.miss())
            if t % 50 == 0:
                taken.append(agent.begin(samples.observations[t, 1], streams=[True, False, t == 50]))
    for own, expected in zip(*results, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-8, atol=1e-8)
    own = buffers(agents[0])
    for name, value in buffers(agents[1]).items():
        torch.testing.assert_close(own[name], value, rtol=1e-8, atol=1e-8, msg=name)
    assert agents[0].skipped.tolist() == agents[1].skipped.tolist()
    assert int(agents[0].skipped.sum()) >= 6


def test_native_streams_are_bitwise_the_same_alone() -> None:
    _, problem = STREAM_X[0]
    samples = Samples(problem, streams=3)
    together = make(StreamAC, problem, 3, native=True)
    samples.begin(together)
    samples.run(together, 1, 200)
    alone = StreamAC(problem, together.config, seeds=[11], native=True)
    alone.begin(samples.observations[0, 0, 1])
    for t in range(1, 200):
        arguments = {name: value[1] for name, value in samples.arguments(t).items()}
        alone.step(**arguments)
    for name, value in buffers(alone).items():
        expected = buffers(together)[name]
        assert torch.equal(value, expected[1:2] if expected.dim() else expected), name


def test_a_copy_learns_on_its_own_buffers() -> None:
    _, problem = STREAM_X[0]
    agent, samples = make(StreamAC, problem, native=True), Samples(problem)
    samples.begin(agent)
    samples.run(agent, 1, 50)
    before = buffers(agent)
    other = copy.deepcopy(agent)
    samples.run(other, 50, 100)
    assert all(torch.equal(value, before[name]) for name, value in buffers(agent).items())
    samples.run(agent, 50, 100)
    assert all(torch.equal(value, buffers(other)[name]) for name, value in buffers(agent).items())


def test_native_statistics_are_exact_far_from_zero() -> None:
    values = np.random.default_rng(0).normal(1e6, 2.0, 1_000_000)
    agent = make(StreamTD, Spec(1, 0, (), ()), native=True)
    observation, run = agent.in_observations.numpy()[0], agent.kernel.run
    for observation[0] in values:
        run(OBSERVE)
    assert float(agent.observation_mean[0]) == pytest.approx(values.mean(), rel=1e-12)
    assert float(agent.observation_squares[0]) / (len(values) - 1) == pytest.approx(values.var(ddof=1), rel=1e-9)


def test_rows_of_parameters_begin_on_cache_lines() -> None:
    agent = make(StreamAC, ARM, 3, native=True, optimizer="adaptive")
    for name in ("weights", "traces", "second"):
        for rows in (getattr(agent, f"actor_{name}"), getattr(agent, f"critic_{name}")):
            assert [row.data_ptr() % 64 for row in rows] == [0, 0, 0]
