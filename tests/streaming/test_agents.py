"""The four agents: cuts, signs, ends of both kinds, schedules, and that they learn."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from stream_problems import ARM, CHOICES, STREAM_X, Samples, buffers, make, name_of
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.streaming import (
    ALGORITHMS,
    StreamAC,
    StreamingAgent,
    StreamQ,
    StreamSARSA,
    StreamTD,
    exploration,
    stream_ac,
)
from surefoot.streaming.exploration import epsilon_at

PLAIN: dict[str, Any] = {"normalize_observations": False, "scale_rewards": False, "hidden": (), "dtype": torch.float64}
"""A linear function of raw numbers, for results that can be worked out."""


def two_steps(trace_cut: str, decay: float, explored: bool) -> tuple[Tensor, Tensor]:
    """Linear q on one-hot observations: (S0, A0) greedy, then (S1, A1), reward 1, end. Weights after each."""
    agent = make(StreamQ, Spec.of_choices(2, 2), trace_cut=trace_cut, decay=decay, last_epsilon=0.0, **PLAIN)
    agent.critic_weights.zero_()
    agent.begin([1.0, 0.0])
    agent.chosen[0], agent.explored[0] = 0, False
    agent.step([0.0, 1.0], 0.0, False, False)
    agent.chosen[0], agent.explored[0] = 1, explored
    before = agent.critic_weights.clone()
    agent.step([1.0, 0.0], 1.0, True, False)
    assert not agent.critic_traces.any()
    return before, agent.critic_weights


@pytest.mark.parametrize(("trace_cut", "credited"), [("watkins", False), ("official", True)])
def test_an_exploratory_step_credits_the_one_before_by_the_official_rule_only(trace_cut: str, credited: bool) -> None:
    before, after = two_steps(trace_cut, 0.8, explored=True)
    assert bool((after != before)[0, 0]) == credited  # q(S0, A0) is the weight of the first input, first output
    assert (after != before)[0, 3]  # q(S1, A1)
    for again in (two_steps(trace_cut, 0.8, explored=False), two_steps("watkins", 0.8, explored=False)):
        assert (again[1] != again[0])[0, 0]  # a greedy one always does


def test_without_lambda_both_cuts_are_the_same() -> None:
    watkins, official = two_steps("watkins", 0.0, True)[1], two_steps("official", 0.0, True)[1]
    torch.testing.assert_close(watkins, official, rtol=0, atol=0)


def test_the_official_cut_forgets_the_exploratory_step_itself() -> None:
    """After an exploratory step the official rule has no trace left, and Watkins' has that step's gradient."""
    for trace_cut, left in (("watkins", True), ("official", False)):
        agent = make(StreamQ, CHOICES, trace_cut=trace_cut)
        agent.begin([0.0, 1.0, 2.0, 3.0])
        agent.explored[0] = True
        agent.step([1.0, 1.0, 0.0, 0.0], 1.0, False, False)
        assert bool(agent.critic_traces.any()) == left


@pytest.mark.parametrize("problem", [ARM, CHOICES], ids=name_of)
def test_entropy_rises_whatever_the_errors_sign(problem: Spec) -> None:
    """With an empty trace the entropy's part of the step, delta * tau sign(delta) grad H, is along grad H."""
    for reward in (5.0, -5.0):
        moved = []
        for entropy in (0.0, 0.5):
            agent = make(StreamAC, problem, entropy=entropy, optimizer="sgd", dtype=torch.float64, scale_rewards=False)
            samples = Samples(problem)
            agent.actor_weights += 0.3 * torch.randn(
                agent.actor_weights.shape, generator=torch.Generator().manual_seed(1)
            )
            samples.begin(agent)
            before = agent.actor_weights.clone()
            agent.step(samples.observations[1, 0, 0], reward, False, False)
            moved.append(agent.actor_weights - before)
            assert float(agent.out_td[0]) * reward > 0
        # what the entropy adds, measured on the policy at the state that was learned from
        network, states = agent.networks["actor"], torch.zeros(1, problem.observation_dim).double()
        low, high = (network.forward(before + move, states).outputs for move in moved)
        assert entropy_of(high, problem) > entropy_of(low, problem)


def entropy_of(outputs: Tensor, problem: Spec) -> float:
    if problem.discrete:
        return float(torch.distributions.Categorical(logits=outputs[0]).entropy())
    return float(torch.nn.functional.softplus(outputs[0, problem.action_dim :]).log().sum())


@pytest.mark.parametrize("weight", [0.0, 0.3, -0.3])
def test_policy_derivatives_are_autograds(weight: float) -> None:
    random = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 4, generator=random, dtype=torch.float64, requires_grad=True)
    weights = torch.full((3,), weight, dtype=torch.float64)
    mean, raw = outputs.chunk(2, -1)
    normal = torch.distributions.Normal(mean, torch.nn.functional.softplus(raw))
    taken = torch.randn(3, 2, generator=random, dtype=torch.float64)
    total = normal.log_prob(taken).sum(-1) + weights * normal.entropy().sum(-1)
    (expected,) = torch.autograd.grad(total.sum(), outputs)
    torch.testing.assert_close(exploration.gaussian_gradient(outputs.detach(), taken, weights), expected)
    choices = torch.tensor([0, 3, 2])
    softmax = torch.distributions.Categorical(logits=outputs)
    (expected,) = torch.autograd.grad((softmax.log_prob(choices) + weights * softmax.entropy()).sum(), outputs)
    torch.testing.assert_close(exploration.softmax_gradient(outputs.detach(), choices, weights), expected)


def test_softmax_draws_the_first_choice_whose_cumulative_probability_exceeds_the_number() -> None:
    logits = torch.log(torch.tensor([0.2, 0.5, 0.3])).expand(6, 3)
    numbers = torch.tensor([0.0, 0.19, 0.21, 0.69, 0.71, 1.0])
    assert exploration.sample_softmax(logits, numbers).tolist() == [0, 0, 1, 1, 2, 2]


def test_a_random_draw_of_the_greedy_choice_is_not_exploration() -> None:
    values = torch.tensor([[1.0, 3.0, 3.0]]).expand(5, 3)
    uniform = torch.tensor([[0.05, 0.0], [0.05, 0.4], [0.05, 0.99], [0.5, 0.0], [0.1, 0.0]])
    chosen, explored = exploration.epsilon_greedy(values, uniform, torch.tensor(0.1).double())
    assert chosen.tolist() == [0, 1, 2, 1, 1]
    assert explored.tolist() == [True, False, True, False, False]


def test_epsilon_falls_from_one_in_a_fraction_of_the_planned_steps() -> None:
    assert epsilon_at(1, 1000, 0.05, 0.01) == pytest.approx(1 - 0.99 / 50)
    assert epsilon_at(25, 1000, 0.05, 0.01) == pytest.approx(0.505)
    assert [epsilon_at(t, 1000, 0.05, 0.01) for t in (50, 51, 10**6)] == pytest.approx([0.01] * 3)
    agent = make(StreamQ, CHOICES)
    agent.plan(1000)
    samples = Samples(CHOICES)
    samples.begin(agent)
    samples.run(agent, 1, 25)
    assert float(agent.in_epsilon) == pytest.approx(0.505)  # that of the 25th action


@pytest.mark.parametrize(("official", "value"), [(False, 10.0), (True, None)])
def test_truncation_bootstraps_unless_the_official_way_is_asked_for(official: bool, value: float | None) -> None:
    """Reward 1 for ever, stopped every 10 steps, gamma 0.9: worth 10; without bootstrapping, less with each step."""
    width = 1 if value else 10
    agent = make(StreamTD, width, **{**PLAIN, "official_time_limit": official, "discount": 0.9, "native": None})
    agent.critic_weights.zero_()
    clock = np.ones((10, 1)) if value else np.eye(10)  # what is observed at step k of an episode
    agent.begin(clock[0])
    for step in range(1, 3001):
        end = step % 10 == 0
        agent.step(clock[step % 10] if not end else clock[0], 1.0, False, end, first=clock[0] if end else None)
    values = agent.predict(clock)
    expected = [10.0] * 10 if value else [(1 - 0.9 ** (10 - k)) / 0.1 for k in range(10)]
    assert values.tolist() == pytest.approx(expected, abs=0.3)


def test_sarsa_takes_the_action_that_its_error_contains_except_over_an_episodes_end() -> None:
    agent = make(StreamSARSA, CHOICES, last_epsilon=1.0)  # always at random
    samples, equal, drawn = Samples(CHOICES), [], []
    samples.begin(agent)
    for t in range(1, 300):
        seen: dict[str, Tensor] = {}
        improve = agent.improve
        agent.improve = lambda rows, seen=seen, improve=improve: (  # type: ignore[method-assign]
            seen.update(chosen=agent.next_chosen.clone()),
            improve(rows),
        )
        taken = agent.step(**samples.arguments(t))
        agent.improve = improve  # type: ignore[method-assign]
        ended = samples.terminated[t, 0] or samples.truncated[t, 0]
        (drawn if ended else equal).append(int(seen["chosen"]) == taken)
    assert all(equal)
    assert 2 < len(drawn) - sum(drawn) < len(drawn)  # a draw of its own: differs about two times in three


@pytest.mark.parametrize(("kind", "problem"), STREAM_X, ids=name_of)
def test_streams_learn_beside_others_as_alone(kind: type[StreamingAgent], problem: Spec) -> None:
    samples = Samples(problem, streams=3, length=120)
    together = make(kind, problem, 3, dtype=torch.float64)
    samples.begin(together)
    samples.run(together, 1, 120)
    for k in range(3):
        alone = make(kind, problem, dtype=torch.float64)
        alone = kind(problem, alone.config, seeds=[10 + k], native=False, dtype=torch.float64)
        own = Samples(problem, streams=1, length=120)
        for name in ("rewards", "terminated", "truncated"):
            setattr(own, name, getattr(samples, name)[:, k : k + 1])
        own.observations = samples.observations[:, :, k : k + 1]
        own.begin(alone)
        own.run(alone, 1, 120)
        for name, value in buffers(alone).items():
            expected = buffers(together)[name]
            expected = expected[k : k + 1] if expected.dim() else expected
            # Batched products may round otherwise than single ones, so not bit for bit.
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)


def reward_of_contexts(agent: StreamingAgent, problem: Spec, steps: int) -> float:
    """Mean reward of the last fifth of one-step episodes: act as the context, 1 or -1 (or 1 or 0), says."""
    streams = len(agent.seeds)
    random = np.random.default_rng(5)
    contexts = random.choice([-1.0, 1.0], (steps + 1, streams, 1))
    taken, rewards, end = agent.begin(contexts[0]), [], np.ones(streams, bool)
    for t in range(1, steps + 1):
        told = contexts[t - 1, :, 0]
        reward = (taken == (told > 0)) * 1.0 if problem.discrete else -np.abs(taken[:, 0] - 0.5 * told)
        taken = agent.step(contexts[t - 1], reward, end, ~end, first=contexts[t])
        rewards.append(reward.mean())
    return float(np.mean(rewards[-steps // 5 :]))


LINE, COIN = Spec(1, 1, (-1.0,), (1.0,)), Spec.of_choices(1, 2)


@pytest.mark.parametrize(("kind", "problem"), [(StreamAC, COIN), (StreamQ, COIN), (StreamSARSA, COIN)], ids=name_of)
def test_choices_that_the_context_asks_for_are_learned(kind: type[StreamingAgent], problem: Spec) -> None:
    agent = make(kind, problem, 4)
    agent.plan(1000)
    assert reward_of_contexts(agent, problem, 500) > 0.9


def test_continuous_actions_go_where_the_context_asks() -> None:
    """By small steps: by those of the default the mean overshoots its shrinking deviation and leaves the bounds."""
    assert reward_of_contexts(make(StreamAC, LINE, 6, kappa_actor=30), LINE, 800) > -0.2  # at random it is -0.7


@pytest.mark.parametrize("sign", ["delta", "actor"])
def test_a_wrong_sign_would_be_noticed(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error, gradient = stream_ac.td_error, stream_ac.actor_gradient
    if sign == "delta":
        monkeypatch.setattr(stream_ac, "td_error", lambda agent, rows: (-(found := error(agent, rows))[0], found[1]))
    else:
        monkeypatch.setattr(stream_ac, "actor_gradient", lambda agent, of_error: -gradient(agent, of_error))
    choosing, moving = make(StreamAC, COIN, 4), make(StreamAC, LINE, 4, kappa_actor=30)
    assert reward_of_contexts(choosing, COIN, 300) < 0.7
    assert reward_of_contexts(moving, LINE, 800) < -0.6


def test_values_of_a_chain_are_its_discounted_rewards() -> None:
    """Stream TD with scaled rewards and normalised observations, in the rewards' own units: a nonlinear network."""
    agent = make(StreamTD, 3, 3, hidden=(32,), discount=0.8, native=None)
    chain = np.eye(3)
    agent.begin(np.stack([chain[0]] * 3))
    for _ in range(600):
        for place in range(3):
            row, end = np.stack([chain[(place + 1) % 3]] * 3), np.full(3, place == 2)
            agent.step(row, np.full(3, 10.0 * (place + 1)), end, ~end & False, first=np.stack([chain[0]] * 3))
    values = np.mean([agent.predict(chain, k) for k in range(3)], 0)
    assert values.tolist() == pytest.approx([10 + 0.8 * (20 + 0.8 * 30), 20 + 0.8 * 30, 30], rel=0.1)


def test_the_official_preset_is_what_the_authors_code_does() -> None:
    for kind in (StreamAC, StreamQ, StreamSARSA, StreamTD):
        config = kind.configure(preset="official")
        assert (config.min_nonzero, config.official_time_limit, config.clear_before_add) == (0, True, True)
    assert StreamQ.configure(preset="official").trace_cut == "official"
    zero_first_layer = make(StreamQ, CHOICES, preset="official", hidden=(32, 32))
    assert not zero_first_layer.networks["critic"].layers(zero_first_layer.critic_weights)[0][0].any()


def test_widths_follow_the_kind_of_actions() -> None:
    assert StreamAC(ARM, native=False).hidden == StreamTD(4, native=False).hidden == (128, 128)
    assert StreamAC(CHOICES, native=False).hidden == StreamQ(CHOICES, native=False).hidden == (32, 32)


def test_a_file_that_ran_natively_opens_in_plain_torch_where_there_is_no_kernel(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = StreamAC(ARM, hidden=(4,))
    if not agent.native:
        pytest.skip("there is no native kernel here")
    agent.save(tmp_path / "agent.safetensors")
    monkeypatch.setattr("surefoot.cuda_ext.stream.native_stream", lambda: None)
    with pytest.raises(ConfigError, match=r"in the native kernel, and .* StreamAC\.open\(path, native=False\)"):
        StreamAC.open(tmp_path / "agent.safetensors")
    assert not StreamAC.open(tmp_path / "agent.safetensors", native=False).native


def test_what_is_asked_for_wrongly_is_named() -> None:
    with pytest.raises(ConfigError, match="stream_q learns discrete actions"):
        StreamQ(ARM)
    with refused("trace_cut", "choice"):
        StreamQ(CHOICES, trace_cut="late")
    with refused("optimizer", "choice"):
        StreamAC(ARM, optimizer="adam")
    with refused("kapa_actor", "unknown"):
        StreamAC(ARM, kapa_actor=1)
    for seeds in ([], 3, [1, 1], "12", [1.5], [-1], None):
        with refused("seeds", "conflict"):
            StreamAC(ARM, seeds=seeds)  # type: ignore[arg-type]
    for hidden in (64, (4.0, 4), (0,), "64", (True,)):
        with pytest.raises(ConfigError, match=r"stream_ac\.hidden(\[0\])? is .*, must be (a list|a whole number|>= 1)"):
            StreamAC(ARM, hidden=hidden)
    assert not StreamAC(ARM, hidden=(4,) * 17).native  # more layers than the kernel takes
    with pytest.raises(ConfigError, match="native=True was asked for, but the native kernel takes up to 16 hidden"):
        StreamAC(ARM, hidden=(4,) * 17, native=True)
    with pytest.raises(ConfigError, match="intentional_ac has no native kernel"):
        ALGORITHMS["intentional_ac"](ARM, native=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="another with dtype="):
        StreamAC(ARM).double()
