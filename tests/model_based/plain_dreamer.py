"""DreamerV3's losses once more for one vector: row by row and step by step where the library works on all at once."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Weights = dict[str, Tensor]


def mlp(w: Weights, name: str, x: Tensor) -> Tensor:
    last = sum(key.startswith(f"{name}.weights.") for key in w) - 1
    for layer in range(last):
        x = x @ w[f"{name}.weights.{layer}"].T + w[f"{name}.biases.{layer}"]
        x = functional.layer_norm(x, x.shape[-1:], w[f"{name}.scales.{layer}"], w[f"{name}.shifts.{layer}"], 1e-5)
        x = x / (1 + torch.exp(-x))
    return x @ w[f"{name}.weights.{last}"].T + w[f"{name}.biases.{last}"]


def symlog(x: Tensor) -> Tensor:
    return x.sign() * (1 + x.abs()).log()


def bins_of(w: Weights) -> Tensor:
    return w["critic.bins"]


def cross_entropy(logits: Tensor, value: Tensor, bins: Tensor) -> Tensor:
    """One row: (K,), ()."""
    value = value.detach().clamp(bins[0], bins[-1])
    above = int((bins <= value).sum().clamp(1, len(bins) - 1))
    share = (value - bins[above - 1]) / (bins[above] - bins[above - 1])
    log_p = logits.log_softmax(-1)
    return -((1 - share) * log_p[above - 1] + share * log_p[above])


def mean(logits: Tensor, bins: Tensor) -> Tensor:
    return (logits.softmax(-1) * bins).sum(-1)


def log_probabilities(outputs: Tensor, c: Any) -> Tensor:
    parts = [0.99 * group.softmax(-1) + 0.01 / c.classes for group in outputs.split(c.classes, -1)]
    return torch.stack(parts, -2).log()


def sample(outputs: Tensor, noise: Tensor, c: Any) -> Tensor:
    """One row."""
    if c.states == "gaussian":
        average, free = outputs.chunk(2, -1)
        return average + (functional.softplus(free) + 0.1) * noise
    found = []
    for p, number in zip(log_probabilities(outputs, c).exp(), noise, strict=True):
        u = 0.5 * (1 + math.erf(float(number) / math.sqrt(2)))
        place = next(k for k in range(c.classes) if float(p[: k + 1].sum().detach()) > u)
        hot = torch.zeros(c.classes, dtype=p.dtype)
        hot[place] = 1
        found.append(hot + p - p.detach())
    return torch.cat(found)


def divergence(first: Tensor, second: Tensor, c: Any) -> Tensor:
    """One row."""
    if c.states == "gaussian":
        (m, f), (n, g) = first.chunk(2, -1), second.chunk(2, -1)
        s, t = functional.softplus(f) + 0.1, functional.softplus(g) + 0.1
        return torch.distributions.kl_divergence(
            torch.distributions.Normal(m, s), torch.distributions.Normal(n, t)
        ).sum()
    p, q = log_probabilities(first, c), log_probabilities(second, c)
    return (p.exp() * (p - q)).sum()


def rms(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean() + 1e-4).sqrt() * gain


def cell(w: Weights, state: Tensor, action: Tensor, c: Any) -> Tensor:
    """One row; block by block."""
    r = {name.removeprefix("model.rssm.cell."): v for name, v in w.items() if name.startswith("model.rssm.cell.")}
    h, z = state[: c.deterministic], state[c.deterministic :]
    x = r["entry.weight"] @ torch.cat([h, z, action]) + r["entry.bias"]
    x = functional.silu(rms(x, r["entry_norm.weight"]))
    own = h.split(c.deterministic // c.blocks)
    mixed = [torch.cat([own[k], x]) @ r["mix.weight"][k] + r["mix.bias"][k] for k in range(c.blocks)]
    mixed = functional.silu(rms(torch.cat(mixed), r["mix_norm.weight"])).split(c.deterministic // c.blocks)
    found = []
    for k in range(c.blocks):
        reset, new, update = (mixed[k] @ r["gates.weight"][k] + r["gates.bias"][k]).split(c.deterministic // c.blocks)
        update = 1 / (1 + torch.exp(1 - update))
        found.append(update * (reset.sigmoid() * new).tanh() + (1 - update) * own[k])
    return torch.cat(found)


def windows(w: Weights, batch: Weights, noise: Weights, c: Any) -> tuple[Tensor, list[list[Tensor]]]:
    """The world's loss, and the states of each row."""
    bins, rows, length = bins_of(w), len(batch["rewards"]), batch["rewards"].shape[1]
    sums = dict.fromkeys(("picture", "dynamics", "representation", "reward", "goes_on"), 0.0)
    states: list[list[Tensor]] = []
    for row in range(rows):
        states.append([])
        drawn = noise["posterior"][row].view(length + 1, -1)
        for t in range(length + 1):
            here = 1.0 if t == 0 else float(batch["mask"][row, t - 1])
            o = batch["observations"][row, 0] if t == 0 else batch["next_observations"][row, t - 1]
            size = batch["actions"].shape[-1]
            width = c.deterministic + (c.groups if c.states == "gaussian" else c.groups * c.classes)
            before = torch.zeros(width, dtype=o.dtype) if t == 0 else states[row][-1]
            action = torch.zeros(size, dtype=o.dtype) if t == 0 else batch["actions"][row, t - 1]
            h = cell(w, before, action, c)
            embedded = mlp(w, "model.embedding", symlog(o))
            posterior = mlp(w, "model.rssm.posterior", torch.cat([h, embedded]))
            prior = mlp(w, "model.rssm.prior", h)
            state = torch.cat([h, sample(posterior, drawn[t], c)])
            states[row].append(state)
            sums["picture"] += here * (mlp(w, "model.decoders.observations.mlp", state) - symlog(o)).square().sum()
            sums["dynamics"] += here * divergence(posterior.detach(), prior, c).clamp(min=c.free_nats)
            sums["representation"] += here * divergence(posterior, prior.detach(), c).clamp(min=c.free_nats)
            if t > 0:
                logits = mlp(w, "model.reward.mlp", state)
                sums["reward"] += here * cross_entropy(logits, batch["rewards"][row, t - 1], bins)
                odds = mlp(w, "model.continuation", state)[0]
                wanted = 1 - batch["terminations"][row, t - 1]
                sums["goes_on"] += here * -(wanted * odds.sigmoid().log() + (1 - wanted) * (1 - odds.sigmoid()).log())
    real = float(batch["mask"].sum())
    of_states = (
        sums["picture"] + c.dynamics_weight * sums["dynamics"] + c.representation_weight * sums["representation"]
    )
    return of_states / (real + rows) + (sums["reward"] + sums["goes_on"]) / real, states


def behaviour(
    w: Weights, states: list[list[Tensor]], batch: Weights, noise: Weights, c: Any, r_range: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of policy and values, imagined returns of the states (B, L + 1), and their range."""
    bins, size = bins_of(w), batch["actions"].shape[-1]
    rows, length = batch["rewards"].shape
    drawn = noise["imagined"].reshape(rows, length + 1, c.imagined, -1)
    total, counted, everything = 0.0, 0.0, []
    ahead = torch.zeros(rows, length + 1, dtype=torch.float64)
    for row in range(rows):
        for start in range(length + 1):
            alive = 1.0
            if start > 0:
                alive = float(batch["mask"][row, start - 1] * (1 - batch["terminations"][row, start - 1]))
            state, seen, actions = states[row][start].detach(), [], []
            seen.append(state)
            with torch.no_grad():
                for t in range(c.imagined):
                    average, free = mlp(w, "behaviour.mlp", state).chunk(2, -1)
                    std = 0.9 * (free + 2).sigmoid() + 0.1
                    numbers = drawn[row, start, t]
                    actions.append(average.tanh() + std * numbers[-size:])
                    h = cell(w, state, actions[-1].clamp(-1, 1), c)
                    state = torch.cat([h, sample(mlp(w, "model.rssm.prior", h), numbers[:-size], c)])
                    seen.append(state)
                rewards = [mean(mlp(w, "model.reward.mlp", s), bins) for s in seen]
                goes_on = [mlp(w, "model.continuation", s)[0].sigmoid() for s in seen]
                values = [mean(mlp(w, "critic.mlp", s), bins) for s in seen]
                slow = [mean(mlp(w, "slow_critic.mlp", s), bins) for s in seen]
                returns = [values[-1]]
                for t in reversed(range(c.imagined)):
                    mixed = (1 - c.trace) * values[t + 1] + c.trace * returns[0]
                    returns.insert(0, rewards[t + 1] + c.discount * goes_on[t + 1] * mixed)
            ahead[row, start] = returns[0]
            everything += returns[:-1] if start == 0 or batch["mask"][row, start - 1] else []
            weight = alive
            for t in range(c.imagined):
                average, free = mlp(w, "behaviour.mlp", seen[t]).chunk(2, -1)
                normal = torch.distributions.Normal(average.tanh(), 0.9 * (free + 2).sigmoid() + 0.1)
                gain = (returns[t] - values[t]) / max(1.0, r_range)
                policy = -(gain * normal.log_prob(actions[t]).sum() + c.entropy_weight * normal.entropy().sum())
                logits = mlp(w, "critic.mlp", seen[t])
                value = cross_entropy(logits, returns[t], bins) + c.slow_weight * cross_entropy(logits, slow[t], bins)
                total = total + weight * (policy + value)
                weight = weight * c.discount * float(goes_on[t + 1])
            counted += alive
    ordered = torch.stack(everything)
    spread = torch.quantile(ordered, 0.95) - torch.quantile(ordered, 0.05)
    return total / (c.imagined * counted), ahead, spread


def replay_values(w: Weights, states: list[list[Tensor]], batch: Weights, ahead: Tensor, c: Any) -> Tensor:
    bins, total = bins_of(w), 0.0
    for row in range(len(batch["rewards"])):
        last = int(batch["mask"][row].sum())
        found = torch.zeros((), dtype=torch.float64)
        for t in reversed(range(last)):
            after = ahead[row, t + 1]
            mixed = after if t == last - 1 else (1 - c.trace) * after + c.trace * found
            found = batch["rewards"][row, t] + c.discount * (1 - batch["terminations"][row, t]) * mixed
            logits = mlp(w, "critic.mlp", states[row][t])
            slow = mean(mlp(w, "slow_critic.mlp", states[row][t]), bins)
            total = total + cross_entropy(logits, found, bins) + c.slow_weight * cross_entropy(logits, slow, bins)
    return total / float(batch["mask"].sum())


def loss(w: Weights, batch: Weights, noise: Weights, c: Any, r_range: float) -> tuple[Tensor, Tensor]:
    """All of them, and the range of returns."""
    world, states = windows(w, batch, noise, c)
    imagined, ahead, spread = behaviour(w, states, batch, noise, c, r_range)
    return world + imagined + c.replay_value_weight * replay_values(w, states, batch, ahead, c), spread


def one_update(w: Weights, batch: Weights, noise: Weights, c: Any) -> float:
    """Change `w` in place as one training step does; gives the running range of returns after it."""
    trained = [n for n in w if w[n].requires_grad and not n.startswith("slow_critic")]
    total, spread = loss(w, batch, noise, c, 0.0)
    found = torch.autograd.grad(total, [w[n] for n in trained], materialize_grads=True)
    for n, gradient in zip(trained, found, strict=True):
        w[n].grad = gradient
    for n in trained:  # LaProp's first step: the moments' corrections make it g / (|g| + epsilon)
        g, own = w[n].grad, max(float(w[n].detach().norm()), 1e-3)
        g = g * min(1.0, c.clip * own / max(float(g.norm()), 1e-30))
        w[n].data -= c.learning_rate * g / (g.abs() + c.epsilon)
    for n in trained:
        if n.startswith("critic."):
            w[f"slow_{n}"].data += c.target_rate * (w[n].data - w[f"slow_{n}"].data)
    return c.scale_rate * float(spread)
