"""Networks of the flow algorithms written once more, plainly: for second implementations of whole updates."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surefoot.core.networks import MLP

FLAX_EPSILON = 1e-6
"""What layer norms of flax add to the variance."""


class Plain:
    """A copy of an MLP, or of an ensemble: its own leaf tensors, and a forward pass written out.

    Activation and layer norms are given as the authors have them: of the network only its numbers are taken.
    """

    def __init__(self, mlp: MLP, activation: str = "gelu_tanh", after: bool = False) -> None:
        self.activation, self.after, self.layers = activation, after, len(mlp.weights)
        self.tensors = [p.detach().clone().requires_grad_() for p in mlp.parameters()]

    def __call__(self, *parts: Tensor) -> Tensor:
        x, n = torch.cat(parts, -1), self.layers
        weights, biases, rest = self.tensors[:n], self.tensors[n : 2 * n], self.tensors[2 * n :]
        for layer in range(n):
            x = torch.einsum("...oi,...bi->...bo", weights[layer], x) + biases[layer].unsqueeze(-2)
            if layer == n - 1:
                return x
            x = self.act(x)
            if self.after:
                centred = x - x.mean(-1, keepdim=True)
                x = centred / (centred.square().mean(-1, keepdim=True) + FLAX_EPSILON).sqrt()
                x = x * rest[layer].unsqueeze(-2) + rest[n - 1 + layer].unsqueeze(-2)
        raise AssertionError

    def act(self, x: Tensor) -> Tensor:
        if self.activation == "relu":
            return x * (x > 0)
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))

    def follow(self: Plain | Whole, other: Plain | Whole, rate: float) -> None:
        """Move towards another by a rate."""
        with torch.no_grad():
            for mine, theirs in zip(self.tensors, other.tensors, strict=True):
                mine.mul_(1 - rate).add_(rate * theirs)

    def copy(self) -> Plain:
        found = object.__new__(Plain)
        found.__dict__.update(self.__dict__)
        found.tensors = [t.detach().clone() for t in self.tensors]
        return found


class Whole:
    """A copy of any module, as `Plain` is one of an MLP; its forward pass is the module's own."""

    def __init__(self, module: nn.Module) -> None:
        self.module = copy.deepcopy(module).requires_grad_(True)
        self.tensors = list(self.module.parameters())

    def __call__(self, *given: Tensor) -> Tensor:
        return self.module(*given)  # type: ignore[no-any-return]

    follow = Plain.follow


class JointAdam:
    """One Adam over all networks, written out; optionally with the norm of all gradients clipped."""

    def __init__(self, networks: Sequence[Plain | Whole], rate: float, clip: float | None = None) -> None:
        self.tensors = [t for network in networks for t in network.tensors]
        self.rate, self.clip, self.count = rate, clip, 0
        self.first, self.second = [[torch.zeros_like(t) for t in self.tensors] for _ in range(2)]

    def step(self, loss: Tensor) -> float:
        """Down the gradient of a loss; gives the norm of it."""
        found = torch.autograd.grad(loss, self.tensors, allow_unused=True)
        gradients = [torch.zeros_like(t) if g is None else g for g, t in zip(found, self.tensors, strict=True)]
        norm = float(torch.stack([g.square().sum() for g in gradients]).sum().sqrt())
        if self.clip is not None and norm > self.clip:
            gradients = [g * self.clip / norm for g in gradients]
        self.count += 1
        with torch.no_grad():
            for t, g, m, v in zip(self.tensors, gradients, self.first, self.second, strict=True):
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.999).add_(0.001 * g.square())
                t -= self.rate * (m / (1 - 0.9**self.count)) / ((v / (1 - 0.999**self.count)).sqrt() + 1e-8)
        return norm


def euler(velocity: Plain, seen: Tensor, z: Tensor, steps: int) -> Tensor:
    """Where a flow carries z, clipped at the end."""
    for k in range(steps):
        time = torch.full_like(z[:, :1], k / steps)
        z = z + velocity(seen, z, time) / steps
    return z.clamp(-1, 1)


def targets(rows: dict[str, Tensor], chunk: int, discount: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards, reach and weight of each window, step by step in python."""
    found = []
    for rewards, ends, mask in zip(*(rows[name].tolist() for name in ("rewards", "terminations", "mask")), strict=True):
        total, reach, weight = 0.0, 1.0, 1.0
        for k in range(chunk):
            if not mask[k]:
                weight = 0.0
                break
            total, reach = total + discount**k * rewards[k], discount ** (k + 1)
            if ends[k]:
                reach = 0.0
                break
        found.append((total, reach, weight))
    return tuple(torch.tensor(column, dtype=torch.float64) for column in zip(*found, strict=True))  # type: ignore[return-value]


class Rows:
    """A batch of windows as the references read it."""

    def __init__(self, rows: dict[str, Tensor], chunk: int, discount: float) -> None:
        self.s, self.following = rows["observations"][:, 0], rows["next_observations"][:, chunk - 1]
        self.a = rows["actions"][:, :chunk].flatten(1)
        self.mask = rows["mask"][:, :chunk].repeat_interleave(rows["actions"].shape[-1], 1)
        self.g = rows["returns_to_go"][:, 0]
        self.r, self.reach, self.weight = targets(rows, chunk, discount)
        self.next_a = rows["actions"][:, chunk:].flatten(1)
        self.next_mask = rows["mask"][:, chunk:].repeat_interleave(rows["actions"].shape[-1], 1)


def cloning(velocity: Plain, rows: Rows, noise: dict[str, Tensor], weight: Tensor | None = None) -> Tensor:
    """Flow matching, averaged over all numbers of all rows."""
    t, x0 = noise["time"], noise["start"]
    wrong = velocity(rows.s, (1 - t) * x0 + t * rows.a, t) - (rows.a - x0)
    each = (rows.mask * wrong**2).sum(1) if weight is None else weight * (rows.mask * wrong**2).sum(1)
    return each.sum() / wrong.numel()
