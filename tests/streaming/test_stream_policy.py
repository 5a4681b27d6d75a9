"""What leaves the building: the policies of streaming agents, as they are and as files."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch
from stream_problems import ARM, CHOICES, EXTENSIONS, STREAM_X, Samples, make, name_of
from torch import Tensor

from surefoot.core.actors.heads import SoftplusGaussianActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.policy.policy import Policy
from surefoot.streaming import AVG, StreamAC, StreamingAgent, StreamQ, StreamTD
from surefoot.streaming.avg import UnitNetwork

CASES = [case for case in [*STREAM_X, *EXTENSIONS] if case[0] is not StreamTD]


def trained(kind: type[StreamingAgent], problem: Spec, **options: object) -> StreamingAgent:
    agent, samples = make(kind, problem, 2, **options), Samples(problem, streams=2)
    samples.begin(agent)
    samples.run(agent, 1, 60)
    return agent


def greedy(agent: StreamingAgent, stream: int, observations: Tensor) -> Tensor:
    """Mean or likeliest actions, from the agent's own buffers."""
    count = float(agent.observation_count[stream])
    scale = (agent.observation_squares[stream] / (count - 1) + 1e-8).sqrt()
    inputs = ((observations - agent.observation_mean[stream]) / scale).to(agent.dtype)
    network = agent.networks[agent.policy_network]
    flat = getattr(agent, f"{agent.policy_network}_weights")[stream].expand(len(inputs), -1)
    if isinstance(network, UnitNetwork):
        mean = torch.tanh(network.outputs_of(flat, inputs).chunk(2, -1)[0])
    elif agent.spec.discrete:
        return network.forward(flat, inputs).outputs.argmax(-1)
    else:
        mean = network.forward(flat, inputs).outputs.chunk(2, -1)[0].clamp(-1, 1)
    low, high = torch.tensor(agent.spec.action_low), torch.tensor(agent.spec.action_high)
    return (high + low) / 2 + (high - low) / 2 * mean


@pytest.mark.parametrize(
    ("kind", "problem", "layer_norm"),
    [(*case, value) for case in CASES for value in (True, False) if case[0] is not AVG or not value],
    ids=name_of,
)
def test_policies_act_as_the_stream_would_without_exploring(
    kind: type[StreamingAgent], problem: Spec, layer_norm: bool, tmp_path: pathlib.Path
) -> None:
    agent = trained(kind, problem, **({} if kind is AVG else {"layer_norm": layer_norm}))
    observations = torch.from_numpy(Samples(problem, length=50, seed=9).observations[:, 0, 0])
    for stream in range(2):
        policy = agent.policy(stream)
        expected = greedy(agent, stream, observations)
        torch.testing.assert_close(policy(observations.float()), expected, rtol=1e-4, atol=1e-4)
        policy.save(tmp_path / "policy")
        loaded = Policy.load(tmp_path / "policy")
        assert loaded.description() == policy.description()
        assert torch.equal(loaded(observations.float()), policy(observations.float()))
        noise = torch.randn(50, problem.action_dim)
        assert torch.equal(loaded(observations.float(), noise), policy(observations.float(), noise))
    before, network = policy(observations.float()), f"{agent.policy_network}_weights"
    weights = getattr(agent, network).clone()
    samples = Samples(problem, streams=2, seed=4)
    samples.run(agent, 1, 10)
    assert not torch.equal(getattr(agent, network)[1], weights[1])
    assert torch.equal(policy(observations.float()), before)  # it does not learn on


def test_samples_of_a_policy_are_the_streams_own() -> None:
    agent = trained(StreamAC, ARM)
    policy = agent.policy(1)
    observation = np.full(5, 2.0)
    agent.begin(np.stack([observation] * 2))  # with the noise of the agent's own, as it was drawn
    count, normal = agent.observation_count, agent.in_noise[1:2]
    assert float(count[1]) > 50
    after = agent.policy(1)  # its statistics have seen the observation
    taken = after(torch.from_numpy(observation).float().unsqueeze(0), normal)
    np.testing.assert_allclose(taken[0], agent.answer()[1], rtol=1e-4, atol=1e-5)
    assert isinstance(policy.actor, SoftplusGaussianActor)


@pytest.mark.parametrize(
    ("kind", "problem", "sampling"),
    [(StreamAC, ARM, True), (StreamAC, CHOICES, True), (StreamQ, CHOICES, False), (AVG, ARM, False)],
    ids=name_of,
)
def test_exported_policies_give_the_same_actions(
    kind: type[StreamingAgent], problem: Spec, sampling: bool, tmp_path: pathlib.Path
) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="the onnx extra is not installed")
    import onnxruntime

    policy = trained(kind, problem).policy()
    policy.export(tmp_path / "policy.onnx", sampling=sampling)
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    observations = Samples(problem, length=20, seed=9).observations[:, 0, 0].astype(np.float32)
    inputs = {"observations": observations}
    if sampling:
        inputs["noise"] = np.random.default_rng(0).normal(size=(20, problem.action_dim)).astype(np.float32)
    (actions,) = session.run(None, inputs)
    expected = policy(*(torch.from_numpy(value) for value in inputs.values()))
    np.testing.assert_allclose(actions, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_without_normalisation_a_policy_reads_raw_observations() -> None:
    policy = trained(StreamAC, ARM, normalize_observations=False).policy()
    assert torch.equal(policy.normalizer.scale, torch.ones(5))
    assert not policy.normalizer.mean.any()


def test_a_predictor_has_no_policy() -> None:
    with pytest.raises(ConfigError, match="predicts and has no policy"):
        trained(StreamTD, ARM).policy()


def test_policies_of_streaming_agents_are_evaluated_by_steps() -> None:
    from surefoot.envs.native_rollout import evaluates

    assert not evaluates(trained(StreamAC, ARM).policy())
    assert not evaluates(trained(AVG, ARM).policy())
