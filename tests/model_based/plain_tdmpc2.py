"""TD-MPC2's losses once more, step by step and member by member, with torch's own layers, optimiser and clipping."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Weights = dict[str, Tensor]


def mlp(w: Weights, name: str, x: Tensor, member: int | None = None, dropped: Tensor | None = None) -> Tensor:
    def get(kind: str, layer: int) -> Tensor:
        value = w[f"{name}.{kind}.{layer}"]
        return value if member is None else value[member]

    last = sum(key.startswith(f"{name}.weights.") for key in w) - 1
    for layer in range(last):
        x = x @ get("weights", layer).T + get("biases", layer)
        if layer == 0 and dropped is not None:
            x = x * dropped
        x = functional.layer_norm(x, x.shape[-1:], get("scales", layer), get("shifts", layer), 1e-5)
        x = x * torch.tanh(torch.log(1 + torch.exp(x)))
    return x @ get("weights", last).T + get("biases", last)


def simplices(w: Weights, name: str, x: Tensor, group: int) -> Tensor:
    x = mlp(w, f"{name}.mlp", x)
    x = functional.layer_norm(x, x.shape[-1:], w[f"{name}.norm.weight"], w[f"{name}.norm.bias"], 1e-5)
    return torch.cat([part.softmax(-1) for part in x.split(group, -1)], -1)


def expected_value(logits: Tensor, bins: Tensor) -> Tensor:
    x = (logits.softmax(-1) * bins).sum(-1)
    return x.sign() * (x.abs().exp() - 1)


def soft_cross_entropy(logits: Tensor, value: Tensor, bins: Tensor) -> Tensor:
    """(B, K), (B,) -> (B,)."""
    x = (value.sign() * (1 + value.abs()).log()).clamp(float(bins[0]), float(bins[-1]))
    place = (x - bins[0]) / (bins[1] - bins[0])
    low = place.floor().long().clamp(max=len(bins) - 2)
    share = place - low
    log_p = logits.log_softmax(-1)
    rows = torch.arange(len(x))
    return -((1 - share) * log_p[rows, low] + share * log_p[rows, low + 1])


def dropout(noise: Tensor, member: int, step: int, steps: int) -> Tensor:
    return noise.roll(member * steps + step, 0)


def model_loss(w: Weights, batch: Weights, noise: Weights, c: Any, discount: float) -> Tensor:
    bins = torch.linspace(-c.limit, c.limit, c.bins, dtype=torch.float64)
    horizon = batch["rewards"].shape[1]
    chosen = chosen_pair(noise["target_subset"])
    z = simplices(w, "representation", batch["observations"][:, 0], c.group)
    total = torch.zeros((), dtype=torch.float64)
    for t in range(horizon):
        with torch.no_grad():
            ahead = simplices(w, "representation", batch["next_observations"][:, t], c.group)
            mean, free = mlp(w, "prior.mlp", ahead).chunk(2, -1)
            low, high = c.log_std_range
            log_std = low + 0.5 * (high - low) * (free.tanh() + 1)
            size = mean.shape[-1]
            action = (mean + log_std.exp() * noise["next_action"][:, t * size : (t + 1) * size]).tanh()
            pair = torch.cat([ahead, action], -1)
            low_q = torch.minimum(*(expected_value(mlp(w, "target_critic.mlp", pair, i), bins) for i in chosen))
            target = batch["rewards"][:, t] + discount * (1 - batch["terminations"][:, t]) * low_q
        pair = torch.cat([z, batch["actions"][:, t]], -1)
        z = simplices(w, "model.dynamics", pair, c.group)
        consistency = (z - ahead).square().mean(-1)
        reward = soft_cross_entropy(mlp(w, "model.reward", pair), batch["rewards"][:, t], bins)
        values = [
            soft_cross_entropy(mlp(w, "critic.mlp", pair, i, dropout(noise["keep"], i, t, horizon)), target, bins)
            for i in range(c.critics)
        ]
        value = sum(values) / c.critics
        each = c.consistency_weight * consistency + c.reward_weight * reward + c.value_weight * value
        here = batch["mask"][:, t]
        total = total + c.step_decay**t * (each * here).sum() / here.sum() / horizon
        if c.terminates:
            odds = mlp(w, "model.termination", z).squeeze(-1)
            ends = batch["terminations"][:, t]
            wrong = -(ends * odds.sigmoid().log() + (1 - ends) * (1 - odds.sigmoid()).log())
            total = total + c.termination_weight * (wrong * here).sum() / batch["mask"].sum()
    return total


def chosen_pair(uniform: Tensor) -> list[int]:
    """The two members whose numbers are largest or smallest, as `core.nn.ensembles.subset` has it."""
    from surefoot.core.nn import ensembles

    return ensembles.subset(uniform, 2).tolist()


def prior_loss(w: Weights, batch: Weights, noise: Weights, c: Any, q_range: float) -> tuple[Tensor, Tensor]:
    """The loss, and the values at the windows' beginnings."""
    bins = torch.linspace(-c.limit, c.limit, c.bins, dtype=torch.float64)
    steps = batch["rewards"].shape[1] + 1
    chosen = chosen_pair(noise["subset"])
    z = simplices(w, "representation", batch["observations"][:, 0], c.group).detach()
    total, first = torch.zeros((), dtype=torch.float64), torch.zeros(0)
    for t in range(steps):
        mean, free = mlp(w, "prior.mlp", z).chunk(2, -1)
        low, high = c.log_std_range
        log_std = low + 0.5 * (high - low) * (free.tanh() + 1)
        size = mean.shape[-1]
        normal = noise["action"][:, t * size : (t + 1) * size]
        action = (mean + log_std.exp() * normal).tanh()
        log_density = (-0.5 * normal**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        pair = torch.cat([z, action], -1)
        both = [
            expected_value(mlp(w, "critic.mlp", pair, i, dropout(noise["keep"], place, t, steps)), bins)
            for place, i in enumerate(chosen)
        ]
        q = (both[0] + both[1]) / 2
        here = torch.ones(len(z), dtype=torch.float64) if t == 0 else batch["mask"][:, t - 1]
        each = q / q_range - c.entropy_weight * size * log_density
        total = total - c.step_decay**t * (each * here).sum() / here.sum() / steps
        first = q.detach() if t == 0 else first
        if t < steps - 1:
            z = simplices(w, "model.dynamics", torch.cat([z, batch["actions"][:, t]], -1), c.group).detach()
    return total, first


def one_update(w: Weights, batch: Weights, noise: Weights, c: Any, discount: float, q_range: float) -> float:
    """Change `w` in place as one training step does; gives the range of values after it."""
    groups = ("representation", "model", "critic", "prior")
    own = {g: [n for n in w if n.split(".")[0] == g] for g in groups}

    def step(names: list[str], loss: Tensor, rates: list[float], epsilon: float) -> None:
        found = torch.autograd.grad(loss, [w[n] for n in names])
        for n, gradient in zip(names, found, strict=True):
            w[n].grad = gradient
        torch.nn.utils.clip_grad_norm_([w[n] for n in names], c.max_gradient_norm)
        settings = [{"params": [w[n]], "lr": rate} for n, rate in zip(names, rates, strict=True)]
        torch.optim.Adam(settings, eps=epsilon).step()

    names = own["representation"] + own["model"] + own["critic"]
    rates = [c.learning_rate * (c.encoder_factor if n in own["representation"] else 1) for n in names]
    step(names, model_loss(w, batch, noise, c, discount), rates, 1e-8)
    for n in own["critic"]:
        w[f"target_{n}"].data += c.target_rate * (w[n].data - w[f"target_{n}"].data)
    loss, first = prior_loss(w, batch, noise, c, q_range)
    step(own["prior"], loss, [c.learning_rate] * len(own["prior"]), 1e-5)
    ordered = first.sort().values
    place = [q * (len(first) - 1) for q in (0.05, 0.95)]
    low, high = (
        ordered[int(p)] + (p - int(p)) * (ordered[min(int(p) + 1, len(first) - 1)] - ordered[int(p)]) for p in place
    )
    spread = max(1.0, float(high - low))
    return q_range + c.scale_rate * (spread - q_range)
