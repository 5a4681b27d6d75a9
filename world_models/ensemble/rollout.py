"""Candidates of a plan in a learned ensemble: many steps of many rows with few operations.

`futures.sums_of` asks a world step by step, whatever it is. Of an ensemble more is known: a future keeps its member (or
draws one for a whole row), so that rows go through one member's layers in one product and nothing is gathered; states
can stay in the units that the networks read; and where episodes end is asked once, of all steps, since nothing that
comes after an end is counted. Numbers are those of `GaussianEnsemble.step` within rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.core.nn.native import kernels
from surefoot.world_models.draws import future_normals_of
from surefoot.world_models.ensemble.gaussian import GaussianMembers
from surefoot.world_models.futures import Objective, future_member

_FLOATS = 8_000_000
"""That inputs of all steps may take at once: states of a batch are planned for in parts of so many."""
_ROWS = 1024
"""Of one product: a layer's activations stay in a core's second cache."""


class _Networks(NamedTuple):
    """The ensemble for rollouts: state changes in deviations of the inputs, rewards and costs in their own units."""

    members: list[Callable[[Tensor, Tensor], None]]
    """Of each: (B, S + A) normalised inputs -> written outputs, (B, D or 2 D)."""
    width: int
    """Of the outputs."""
    scale: Tensor
    """(D,) what predicted deviations are multiplied by."""
    random: bool
    """Whether log-variances come after the means."""


@torch.no_grad()
def sums_in_ensemble(
    model: GaussianMembers, states: Tensor, actions: Tensor, draws: Tensor, objective: Objective
) -> tuple[Tensor, Tensor] | None:
    """As `futures.sums_of`; None where it is not for this way: the noise of a mixture."""
    random = objective.futures > 1 and objective.spread in ("both", "aleatoric")
    steps = actions.shape[2] if objective.propagation == "ts1" else 1
    chosen = [future_member(model, objective, draws, t) for t in range(steps)]
    drawn = [one for one in chosen if one is not None]
    if random and not drawn:
        return None
    member = torch.stack(drawn) if drawn else None  # (H or 1, F, B)
    networks = _networks(model, random)
    futures, (rows, candidates, horizon) = objective.futures, actions.shape[:3]
    each = futures * candidates * (horizon + 1) * (model.state_dim + model.action_dim)
    part = max(1, _FLOATS // max(1, each))
    found = []
    for first in range(0, rows, part):
        some = slice(first, first + part)
        of_part = None if member is None else member[:, :, some]
        found.append(_sums(model, networks, states[some], actions[some], draws[some], of_part, objective))
    return torch.cat([returns for returns, _ in found], 1), torch.cat([costs for _, costs in found], 1)


def _networks(model: GaussianMembers, random: bool) -> _Networks:
    width = model.noise_dim
    weights, biases = ([*group] for group in (model.network.weights, model.network.biases))
    units = torch.ones_like(model.target_scale)
    units[: model.state_dim] = model.input_scale[: model.state_dim]
    scale, shift = model.target_scale / units, model.target_mean / units
    means = (weights[-1][:, :width] * scale[:, None], biases[-1][:, :width] * scale + shift)
    if random:
        means = (
            torch.cat([means[0], weights[-1][:, width:]], 1),
            torch.cat([means[1], biases[-1][:, width:]], 1),
        )
    weights[-1], biases[-1] = means[0].contiguous(), means[1].contiguous()
    count = range(model.members)
    members = [kernels.prepared([w[e] for w in weights], [b[e] for b in biases], "silu") for e in count]
    return _Networks(members, weights[-1].shape[1], scale * model.temperature.sqrt(), random)


def _sums(
    model: GaussianMembers,
    networks: _Networks,
    states: Tensor,
    actions: Tensor,
    draws: Tensor,
    member: Tensor | None,
    objective: Objective,
) -> tuple[Tensor, Tensor]:
    """(F, B, N) as `futures.sums_of`. A block is a future of a row: N candidates that share member and noise."""
    size, width = model.state_dim, model.noise_dim
    rows, candidates, horizon = actions.shape[:3]
    futures = objective.futures
    blocks = futures * rows
    order, counts = _order(member, blocks, model)
    order = order.expand(horizon, -1)
    moves = len(counts) > 1  # blocks change places from step to step
    step = torch.arange(horizon, device=states.device)[:, None]
    mean, scale = model.input_mean, model.input_scale
    inputs = states.new_empty(horizon + 1, blocks, candidates, size + model.action_dim)  # each step in its order
    inputs[0, ..., :size] = ((states - mean[:size]) / scale[:size])[order[0] % rows].unsqueeze(1)
    given = ((actions - mean[size:]) / scale[size:]).permute(2, 0, 1, 3)
    inputs[:-1, ..., size:] = given[step, order % rows]
    normal = None
    if networks.random:
        normal = future_normals_of(draws, futures, range(horizon), width, states.dtype) * networks.scale
        normal = normal.view(horizon, blocks, 1, width)[step, order]
    results = states.new_empty(horizon, blocks, candidates, width - size)  # rewards, costs
    back = order.argsort(-1)
    for t in range(horizon):
        now = inputs[t]
        out = _mean(networks, now, model.elites) if member is None else _each(networks, now, counts[t % len(counts)])
        if normal is not None:
            out = _noisy(model, out, normal[t])
        results[t] = out[..., size:width]
        following = now[..., :size] + out[..., :size]
        inputs[t + 1, ..., :size] = following[back[t][order[t + 1]]] if moves and t + 1 < horizon else following
    ends, results = None, results[step, back]
    if any(known is not None for known in (model.terminates, model.rewards_of, model.costs_of)):
        every = inputs[..., :size] * scale[:size] + mean[:size]  # that after a step lies in the next step's order
        after, places = every[1:], torch.cat([back[1:], back[-1:]])
        if model.rewards_of is not None:
            given = actions.permute(2, 0, 1, 3).repeat(1, futures, 1, 1)
            results[..., 0] = model.rewards_of(every[step, back], given, after[step, places])
        if model.terminates is not None:
            ends = model.terminates(after)[step, places]
        if model.costs_of is not None:
            results = torch.stack([results[..., 0], model.costs_of(after)[step, places]], -1)
    return _summed(results, ends, objective.discount, (futures, rows, candidates))


def _order(member: Tensor | None, blocks: int, model: GaussianMembers) -> tuple[Tensor, list[list[int]]]:
    """(H or 1, blocks) the order in which blocks of one member lie side by side, and how many each member has."""
    if member is None:
        return torch.arange(blocks, device=model.elites.device)[None], []
    flat = member.reshape(len(member), blocks)
    counts = [torch.bincount(one, minlength=model.members).tolist() for one in flat]
    return flat.argsort(stable=True, dim=-1), counts


def _each(networks: _Networks, inputs: Tensor, counts: list[int]) -> Tensor:
    """(blocks, N, D or 2 D) of (blocks, N, S + A), of which `counts` after one another are each member's."""
    flat = inputs.flatten(0, 1)
    found, first = flat.new_empty(len(flat), networks.width), 0
    for member, count in zip(networks.members, counts, strict=True):
        last = first + count * inputs.shape[1]
        for row in range(first, last, _ROWS):
            some = slice(row, min(row + _ROWS, last))
            member(flat[some], found[some])
        first = last
    return found.unflatten(0, inputs.shape[:2])


def _mean(networks: _Networks, inputs: Tensor, elites: Tensor) -> Tensor:
    """(blocks, N, D) means over the elites."""
    flat = inputs.flatten(0, 1)
    found = flat.new_empty(len(elites), len(flat), networks.width)
    for place, e in enumerate(elites.tolist()):
        for row in range(0, len(flat), _ROWS):
            networks.members[e](flat[row : row + _ROWS], found[place, row : row + _ROWS])
    return found.mean(0).unflatten(0, inputs.shape[:2])


def _noisy(model: GaussianMembers, out: Tensor, normal: Tensor) -> Tensor:
    """(blocks, N, D) of means and log-variances with (blocks, 1, D) noise, in units of the means."""
    width = model.noise_dim
    deviation = model.clamped(out[..., width:]).mul_(0.5).exp_()
    return torch.addcmul(out[..., :width], deviation, normal)


def _summed(
    results: Tensor, ends: Tensor | None, discount: float, shape: tuple[int, int, int]
) -> tuple[Tensor, Tensor]:
    """Sums over (H, blocks, N, 1 or 2) rewards and costs: nothing is earned after an end, and its cost continues."""
    horizon = len(results)
    rewards = results[..., 0]
    if discount != 1:
        rewards = rewards * discount ** torch.arange(horizon, dtype=rewards.dtype, device=rewards.device)[:, None, None]
    costs = results[..., 1] if results.shape[-1] > 1 else None
    if ends is not None:
        step = torch.arange(horizon, device=ends.device)[:, None, None]
        last = torch.where(ends, step, horizon).amin(0)  # of each candidate
        rewards = torch.where(step <= last, rewards, 0)
        costs = None if costs is None else costs.gather(0, torch.minimum(step, last))
    returns = rewards.sum(0).view(shape)
    return returns, torch.zeros_like(returns) if costs is None else costs.sum(0).view(shape)
