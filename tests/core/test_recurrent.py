"""Recurrent units against torch's own, step by step and along sequences in which episodes begin."""

from __future__ import annotations

import pytest
import torch

from surefoot.core.nn.recurrent import UNITS, Gates

THEIRS = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}


def pair(kind: str) -> tuple[Gates, torch.nn.GRU | torch.nn.LSTM]:
    """A unit of 5 for 3 inputs, and torch's with the same weights."""
    torch.manual_seed(1)
    own, theirs = UNITS[kind](), THEIRS[kind](3, 5, batch_first=True)
    own.make_gates(3, 5)
    own.of_observation.load_state_dict({"weight": theirs.weight_ih_l0, "bias": theirs.bias_ih_l0})
    own.of_state.load_state_dict({"weight": theirs.weight_hh_l0, "bias": theirs.bias_hh_l0})
    return own, theirs


@pytest.mark.parametrize("kind", sorted(UNITS))
def test_a_sequence_is_torchs_with_its_gradient(kind: str) -> None:
    own, theirs = pair(kind)
    steps, first = torch.randn(4, 7, 3), torch.randn(4, own.state_width)
    parts = [part.unsqueeze(0).contiguous() for part in first.chunk(own.parts, -1)]
    expected, last = theirs(steps, tuple(parts) if kind == "lstm" else parts[0])
    found = own.unrolled(steps, first, torch.zeros(4, 7))
    torch.testing.assert_close(found, expected)
    state = first
    for time in range(7):
        state = own.cell(steps[:, time], state)
        torch.testing.assert_close(own.output(state), expected[:, time])
    torch.testing.assert_close(state, torch.cat(last, -1)[0] if kind == "lstm" else last[0])
    weight = torch.randn_like(found)
    ours = torch.autograd.grad((found * weight).sum(), [own.of_state.weight, own.of_observation.bias])
    torchs = torch.autograd.grad((expected * weight).sum(), [theirs.weight_hh_l0, theirs.bias_ih_l0])
    torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(UNITS))
def test_an_episode_that_begins_within_a_sequence_begins_from_zero(kind: str) -> None:
    own, theirs = pair(kind)
    steps, begins = torch.randn(2, 6, 3), torch.zeros(2, 6)
    begins[0, 4] = begins[1, 0] = 1
    found = own.unrolled(steps, torch.randn(2, own.state_width), begins)
    torch.testing.assert_close(found[0, 4:], theirs(steps[:1, 4:])[0][0])
    torch.testing.assert_close(found[1], theirs(steps[1:])[0][0])
    assert not torch.allclose(found[0, :4], theirs(steps[:1, :4])[0][0])  # it continues from what it was given


@pytest.mark.parametrize("kind", sorted(UNITS))
def test_the_gradient_along_a_sequence_is_that_of_its_steps(kind: str) -> None:
    """Of everything that it depends on; the steps one by one are differentiated by autograd."""
    own, _ = pair(kind)
    own.double()
    steps = torch.randn(3, 8, 3, dtype=torch.float64, requires_grad=True)
    first = torch.randn(3, own.state_width, dtype=torch.float64, requires_grad=True)
    begins = torch.zeros(3, 8, dtype=torch.float64)
    begins[0, 3] = begins[0, 6] = begins[1, 0] = 1
    weight = torch.randn(3, 8, 5, dtype=torch.float64)
    state, expected = first, []
    for time in range(8):
        state = own.cell(steps[:, time], state * (1 - begins[:, time, None]))
        expected.append(own.output(state))
    found = own.unrolled(steps, first, begins)
    torch.testing.assert_close(found, torch.stack(expected, 1))
    of_all = [steps, first, *own.parameters()]
    theirs = torch.autograd.grad((torch.stack(expected, 1) * weight).sum(), of_all)
    torch.testing.assert_close(torch.autograd.grad((found * weight).sum(), of_all), theirs)
    assert not bool(theirs[1][1].any())  # an episode that begins at once reads nothing of the state before
    assert all(float(one.abs().max()) > 1e-3 for one in theirs)


@pytest.mark.parametrize("kind", sorted(UNITS))
def test_orthogonal_weights_are_so_gate_by_gate(kind: str) -> None:
    own, _ = pair(kind)
    own.make_orthogonal()
    for gate in own.of_state.weight.chunk(own.gates):
        torch.testing.assert_close(gate @ gate.T, torch.eye(5), rtol=0, atol=1e-5)
    assert not bool(own.of_state.bias.any())
