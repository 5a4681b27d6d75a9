"""The native streaming update against numbers worked out by hand, and what it refuses."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
from levels import LIBRARY
from stream_tensors import NORMAL, STEP, TD, Tensors, tensors_for

from surefoot.cuda_ext import stream
from surefoot.cuda_ext.stream import ACT, LEARN, OBSERVE, SHIFT, StreamKernel, StreamSettings

LINEAR = StreamSettings(
    "td", False, 2, 0, (), discount=0.9, decay=0.8, normalize_observations=False, scale_rewards=False
)
# The end has the features 0, and so the value 0: ended for real, the last trace could not be read.
FEATURES, REWARDS = [(1.0, 0.0), (0.5, 1.0), (0.0, 2.0), (0.0, 0.0)], [1.0, -0.5, 2.0]
Steps = list[tuple[float, list[float], list[float]]]


def episode_by_hand(settings: StreamSettings) -> Steps:
    """TD error, trace and weights of each step of the episode worked out by hand, whose network has no bias."""
    tensors = tensors_for(settings, 1)
    tensors["critic_weights"].copy_(torch.tensor([[0.3, -0.2, 0.0]], dtype=torch.float64))
    kernel, found = StreamKernel(settings, tensors), []
    tensors["in_observations"].copy_(torch.tensor([FEATURES[0]]))
    kernel.run(OBSERVE | SHIFT)
    for features, reward in zip(FEATURES[1:], REWARDS, strict=True):
        tensors["in_observations"].copy_(torch.tensor([features]))
        tensors["in_rewards"].fill_(reward)
        tensors["critic_traces"][0, 2] = -1 / (settings.discount * settings.decay)  # the step makes 0 of it
        kernel.run(OBSERVE | LEARN | SHIFT)
        trace, weights = (tensors[f"critic_{part}"][0].tolist() for part in ("traces", "weights"))
        found.append((float(tensors["out_td"]), trace[:2], weights[:2]))
        assert abs(trace[2]) < 1e-15
        assert abs(weights[2]) < 1e-9
    return found


def test_forward_and_backward_views_agree_on_the_episode(level: str) -> None:
    steps = episode_by_hand(dataclasses.replace(LINEAR, optimizer="sgd", learning_rate=0.0))
    assert [step[0] for step in steps] == pytest.approx([0.655, -0.81, 2.4], abs=1e-14)
    assert steps[-1][1] == pytest.approx([0.8784, 2.72], abs=1e-14)
    total = sum(delta * np.array(trace) for delta, trace, _ in steps)
    returns = [1.61596, 0.868, 2.0]  # lambda returns by hand
    gaps = [g - v for g, v in zip(returns, (0.3, -0.05, -0.4), strict=True)]
    assert total == pytest.approx([1.77496, 5.718], abs=1e-12)
    assert total == pytest.approx(sum(gap * np.array(x) for gap, x in zip(gaps, FEATURES)), abs=1e-12)


@pytest.mark.parametrize(
    ("kappa", "deltas", "weights"),
    [
        (2.0, [0.655, -0.97375, 2.8386261], [(0.6275, -0.2), (0.3599381, -0.4193131), (0.4819923, -0.0413673)]),
        (3.0, [0.655, None, 2.6760260], [None, None, (0.4313270, -0.0860492)]),
    ],
)
def test_obgd_gives_the_vectors_worked_out_by_hand(kappa: float, deltas: list, weights: list, level: str) -> None:
    steps = episode_by_hand(dataclasses.replace(LINEAR, kappa_critic=kappa))
    for (delta, trace, moved), wanted_trace, wanted_delta, wanted in zip(
        steps, [(1.0, 0.0), (1.22, 1.0), (0.8784, 2.72)], deltas, weights, strict=True
    ):
        assert trace == pytest.approx(wanted_trace, abs=1e-14)
        assert wanted_delta is None or delta == pytest.approx(wanted_delta, abs=5e-8)
        assert wanted is None or moved == pytest.approx(wanted, abs=5e-8)


def test_obgd_moves_by_the_same_lengths_whatever_alpha_is() -> None:
    steps = episode_by_hand(LINEAR)
    places = np.array([(0.3, -0.2), *(weights for _, _, weights in steps)])
    assert np.abs(np.diff(places, axis=0)).sum(1) == pytest.approx([0.3275, 0.486875, 0.5], abs=1e-12)
    other = episode_by_hand(dataclasses.replace(LINEAR, step_size=7.0))
    assert np.array(other[-1][2]) == pytest.approx(places[-1], abs=1e-12)


def test_adaptive_obgd_gives_the_vectors_worked_out_by_hand(level: str) -> None:
    steps = episode_by_hand(dataclasses.replace(LINEAR, optimizer="adaptive"))
    for (_, _, weights), wanted in zip(
        steps, [(0.6275, -0.2), (0.4001788, -0.4595538), (0.6357200, -0.1950950)], strict=True
    ):
        assert weights == pytest.approx(wanted, abs=2e-7)  # the bias adds 1e-12 to the norm, and eps 1e-8


def test_observations_are_normalised_by_welfords_statistics() -> None:
    settings = dataclasses.replace(LINEAR, observation_dim=1, normalize_observations=True)
    tensors = tensors_for(settings, 1)
    kernel, found = StreamKernel(settings, tensors), []
    for value in (1, 3, 2, 6):
        tensors["in_observations"].fill_(value)
        kernel.run(OBSERVE)
        found.append(float(tensors["following"]))
    assert found == pytest.approx([0, 0.7071068, 0, 1.3887302], abs=1e-7)


@pytest.mark.parametrize(
    ("clear_before_add", "traces", "scaled"),
    [
        (True, [1, 1.99, 2.0, 2.98], [1.0, 1.4284985, 3.4813772, 1.2370924]),
        # Without the quirk: 0.99 * 1.99 + 2, then a trace of its own: deviation of (1, 1.99, 3.9701, 1) by hand.
        (False, [1, 1.99, 0, 1.0], [1.0, 1.4284985, 2 / np.std([1, 1.99, 3.9701], ddof=1),
                                    1 / np.std([1, 1.99, 3.9701, 1], ddof=1)]),
    ],
)  # fmt: skip
def test_rewards_are_scaled_by_the_deviation_of_their_discounted_sum(
    clear_before_add: bool, traces: list, scaled: list
) -> None:
    settings = StreamSettings(
        "td", False, 1, 0, (), optimizer="sgd", learning_rate=0.0, clear_before_add=clear_before_add
    )
    tensors = tensors_for(settings, 1)
    tensors["critic_weights"].zero_()  # so that the TD error is the reward
    kernel = StreamKernel(settings, tensors)
    kernel.run(OBSERVE | SHIFT)
    for step, reward in enumerate((1, 1, 2, 1)):
        tensors["in_rewards"].fill_(reward)
        tensors["in_terminated"].fill_(step == 2)
        tensors["in_ended_with_first"].fill_(step == 2)
        kernel.run(STEP)
        assert float(tensors["reward_trace"]) == pytest.approx(traces[step], abs=1e-12)
        assert float(tensors["out_td"]) == pytest.approx(scaled[step], abs=5e-8)


@pytest.mark.parametrize("trace_cut", stream.TRACE_CUTS)
def test_an_exploratory_action_cuts_the_trace_before_its_own_update_only_with_watkins(trace_cut: str) -> None:
    """(S0, A0 greedy), (S1, A1 exploratory, reward 1, end)."""
    settings = StreamSettings(
        "q", True, 2, 2, (), trace_cut=trace_cut, normalize_observations=False, scale_rewards=False
    )
    tensors = tensors_for(settings, 1)
    tensors["critic_weights"].zero_()
    kernel = StreamKernel(settings, tensors)
    tensors["in_observations"].copy_(torch.tensor([[1.0, 0.0]]))
    kernel.run(OBSERVE | ACT | SHIFT)
    assert (int(tensors["chosen"]), bool(tensors["explored"])) == (0, False)
    tensors["in_observations"].copy_(torch.tensor([[0.0, 1.0]]))
    tensors["in_epsilon"].fill_(1)
    tensors["in_noise"].copy_(torch.tensor([[0.3, 0.7]]))
    kernel.run(STEP)
    assert (int(tensors["chosen"]), bool(tensors["explored"])) == (1, True)
    tensors["in_rewards"].fill_(1)
    tensors["in_terminated"].fill_(1)
    kernel.run(STEP)
    moved = tensors["critic_weights"][0].tolist()  # W of action 0 and 1 at (S0, S1), then biases
    assert moved[3] > 0  # q(S1, A1)
    assert (moved[0] != 0) == (trace_cut == "official")  # q(S0, A0)
    assert not tensors["critic_traces"].any()
    assert not tensors["ready"].any()


def test_with_a_negative_error_the_entropy_still_grows() -> None:
    """One step from empty traces: the actor's move with tau, less that without, is along the entropy's gradient."""
    moves = []
    for entropy in (0.0, 0.2):
        settings = dataclasses.replace(NORMAL, hidden=(), entropy=entropy, optimizer="sgd", scale_rewards=False)
        torch.manual_seed(3)
        tensors = tensors_for(settings, 1)
        before = tensors["actor_weights"].clone()
        kernel = StreamKernel(settings, tensors)
        kernel.run(OBSERVE | ACT | SHIFT)
        tensors["in_rewards"].fill_(-5)
        kernel.run(OBSERVE | LEARN)
        assert float(tensors["out_td"]) < 0
        moves.append((tensors["actor_weights"] - before)[0, -12:])  # the output biases: 6 means, 6 deviations
    grown = moves[1] - moves[0]
    assert grown[:6].abs().max() < 1e-15
    assert (grown[6:] > 0).all()


def test_subnormal_traces_become_zero() -> None:
    tensors = tensors_for(LINEAR, 1, "float32")
    tensors["critic_traces"][0, 1] = 1e-38
    tensors["in_observations"].copy_(torch.tensor([[1.0, 0.0]]))
    kernel = StreamKernel(LINEAR, tensors)
    kernel.run(OBSERVE | SHIFT)
    kernel.run(OBSERVE | LEARN | SHIFT)
    assert LIBRARY.level() == "generic" or float(tensors["critic_traces"][0, 1]) == 0
    assert 1e-38 * 0.72 / 2 != 0  # and python's own arithmetic is as before
    assert float(torch.tensor(1e-38) * 0.5) > 0


def changed(tensors: Tensors, name: str, value: object) -> dict:
    return {**tensors, name: value}


def test_tensors_that_do_not_fit_are_named() -> None:
    good = tensors_for(NORMAL, 2, "float32")
    wide = torch.zeros(2, 36, dtype=torch.float32)
    cases = [
        ({n: v for n, v in good.items() if n != "critic_weights"}, "critic_weights of shape"),
        ({n: v for n, v in good.items() if n != "in_first"}, "'in_first' of shape (2, 18) and dtype float64 is"),
        (changed(good, "critic_wieghts", wide), "'critic_wieghts'"),
        (changed(good, "states", wide), "states has shape (2, 36) and dtype float32; (2, 18) and float32"),
        (changed(good, "states", wide[:, :18]), "states is not contiguous"),
        (changed(good, "actor_traces", good["actor_traces"].double()), "actor_traces has shape"),
        (changed(good, "ready", good["ready"].to(torch.uint8)), "dtype uint8; (2,) and bool"),
        (changed(good, "critic_weights", good["critic_weights"].half()), "critic_weights is float16"),
        (changed(good, "states", torch.zeros(2, 18, device="meta")), "states is on meta"),
    ]
    gaps = stream.parameter_rows(*good["actor_traces"].shape, torch.float32)
    cases += [
        (changed(good, "actor_traces", gaps), "rows of actor_traces are 2048 numbers apart, those of the weights 2044"),
        (changed(good, "actor_traces", good["actor_traces"].T.contiguous().T), "actor_traces has rows that are not"),
    ]
    read_only = np.zeros((2, 18), np.float32)
    read_only.flags.writeable = False
    cases.append((changed(good, "states", read_only), "states is read-only"))
    for tensors, message in cases:
        with pytest.raises(ValueError, match=re.escape(message)):
            StreamKernel(NORMAL, tensors)


def test_tensors_of_the_agent_that_these_settings_do_not_need_are_left_alone() -> None:
    tensors = tensors_for(TD, 1)
    others = {"acted": torch.zeros((), dtype=torch.int64), "actor_weights": torch.ones(1, 2)}
    kernel = StreamKernel(TD, {**tensors, **others})
    kernel.run(OBSERVE | SHIFT)
    assert bool(tensors["ready"])


def test_numpy_arrays_serve_as_well_as_tensors() -> None:
    tensors = tensors_for(NORMAL, 1)
    arrays = {name: value.numpy().copy() for name, value in tensors.items()}
    for kernel in (StreamKernel(NORMAL, tensors), StreamKernel(NORMAL, arrays)):
        kernel.run(OBSERVE | ACT | SHIFT)
        kernel.run(STEP)
    assert (arrays["actor_weights"] == tensors["actor_weights"].numpy()).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "a2c"}, "StreamSettings.kind is 'a2c'"),
        ({"optimizer": "adam"}, "can be obgd, adaptive, sgd"),
        ({"trace_cut": "none"}, "trace_cut"),
        ({"kind": "q"}, "q needs choices"),
        ({"action_dim": 0}, "action_dim is 0"),
        ({"observation_dim": 0}, "observation_dim is 0"),
        ({"hidden": (4, 0)}, "hidden is (4, 0)"),
        ({"hidden": (4,) * 17}, "0 to 16"),
    ],
)
def test_settings_that_make_no_agent_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(NORMAL, **change)
