"""What a streaming kernel must do, for one stream, in float64 by torch's autograd: plain, and from the papers alone."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn import functional

from surefoot.cuda_ext import stream
from surefoot.cuda_ext.stream import StreamSettings

State = dict[str, Tensor]
"""One stream's part of each tensor of `stream.layout`; floating ones in float64."""


def outputs(flat: Tensor, widths: tuple[int, ...], x: Tensor, layer_norm: bool) -> Tensor:
    at = 0
    for layer, (before, after) in enumerate(itertools.pairwise(widths)):
        weight, bias = flat[at : at + before * after].view(after, before), flat[at + before * after :][:after]
        x, at = functional.linear(x, weight, bias), at + (before + 1) * after
        if layer < len(widths) - 2:
            x = functional.layer_norm(x, (after,)) if layer_norm else x
            x = functional.leaky_relu(x, 0.01)
    return x


def policy(raw: Tensor, discrete: bool) -> torch.distributions.Distribution:
    if discrete:
        return torch.distributions.Categorical(logits=raw)
    mean, deviation = raw.chunk(2)
    deviation = torch.log(1 + torch.exp(deviation))
    return torch.distributions.Independent(torch.distributions.Normal(mean, deviation), 1)


def normalise(s: StreamSettings, t: State, x: Tensor) -> None:
    if s.normalize_observations:
        welford(t, "observation", x)
        x = (x - t["observation_mean"]) / (variance(t, "observation") + 1e-8) ** 0.5
    t["following"].copy_(x)


def welford(t: State, name: str, x: Tensor) -> None:
    count, mean, squares = (t[f"{name}_{part}"] for part in ("count", "mean", "squares"))
    count += 1
    before = mean.clone()
    mean += (x - before) / count
    squares += (x - before) * (x - mean)


def variance(t: State, name: str) -> Tensor:
    count, squares = t[f"{name}_count"], t[f"{name}_squares"]
    return squares / (count - 1) if count > 1 else torch.ones_like(squares)


def scaled_reward(s: StreamSettings, t: State, done: bool) -> Tensor:
    if not s.scale_rewards:
        return t["in_rewards"]
    if done and s.clear_before_add:
        t["reward_trace"].zero_()
    t["reward_trace"].copy_(s.discount * t["reward_trace"] + t["in_rewards"])
    welford(t, "reward", t["reward_trace"])
    if done and not s.clear_before_add:
        t["reward_trace"].zero_()
    return t["in_rewards"] / (variance(t, "reward") + 1e-8) ** 0.5


def update(s: StreamSettings, t: State, net: str, gradient: Tensor, delta: Tensor, cut: bool, clear: bool) -> None:
    w, z = t[f"{net}_weights"], t[f"{net}_traces"]
    z.mul_(0.0 if cut else s.discount * s.decay).add_(gradient)
    kappa = s.kappa_critic if net == "critic" else s.kappa_actor
    direction = z.clone()
    if s.optimizer == "adaptive":
        v, n = t[f"{net}_second"], float(t["count"])
        v.mul_(s.beta2).add_((1 - s.beta2) * (delta * z) ** 2)
        direction = z / (v / (1 - s.beta2**n) + s.epsilon_adaptive) ** 0.5
    if s.optimizer == "sgd":
        step = s.learning_rate
    else:
        step = s.step_size / max(s.step_size * kappa * max(abs(float(delta)), 1) * float(direction.abs().sum()), 1.0)
    w += step * delta * direction
    if clear:
        z.zero_()


def learn(s: StreamSettings, t: State) -> None:
    done = bool(t["in_terminated"] or t["in_truncated"])
    ends = done if s.official_time_limit else bool(t["in_terminated"])
    w = t["critic_weights"].clone().requires_grad_()
    here = outputs(w, s.critic_widths, t["states"], s.layer_norm)
    after = outputs(w, s.critic_widths, t["following"], s.layer_norm).detach()
    if s.kind in ("q", "sarsa"):
        here = here[t["chosen"]]
        after = after.max() if s.kind == "q" else after[t["next_chosen"]]
    delta = (scaled_reward(s, t, done) + (0 if ends else s.discount) * after - here).detach().squeeze()
    t["out_td"].copy_(delta)
    if s.optimizer == "adaptive":
        t["count"] += 1
    if s.kind == "ac":
        theta = t["actor_weights"].clone().requires_grad_()
        pi = policy(outputs(theta, s.actor_widths, t["states"], s.layer_norm), s.discrete)
        objective = pi.log_prob(t["chosen"]) + s.entropy * torch.sign(delta) * pi.entropy()
        update(s, t, "actor", torch.autograd.grad(objective, theta)[0], delta, False, done)
    watkins = s.kind == "q" and bool(t["explored"]) and s.trace_cut == "watkins"
    official = s.kind == "q" and bool(t["explored"]) and s.trace_cut == "official"
    update(s, t, "critic", torch.autograd.grad(here.squeeze(), w)[0], delta, watkins, done or official)
    t["learned"] += 1


def act(s: StreamSettings, t: State) -> None:
    net, widths = ("actor", s.actor_widths) if s.kind == "ac" else ("critic", s.critic_widths)
    raw, noise = outputs(t[f"{net}_weights"], widths, t["following"], s.layer_norm), t["in_noise"]
    if not s.discrete:
        pi = policy(raw, False).base_dist
        action = pi.loc + pi.scale * noise
    elif s.kind == "ac":
        action = (torch.softmax(raw, 0).cumsum(0) > noise[0]).int().argmax()
    else:
        greedy = raw.argmax()
        action = (noise[1] * s.action_dim).long() if noise[0] < t["in_epsilon"] else greedy
        t["next_explored"].copy_(action != greedy)
    t["next_chosen"].copy_(action)
    t["out_actions"].copy_(action)


def run(s: StreamSettings, t: State, phases: int) -> None:
    """What `StreamKernel.run` does, for one stream."""
    first, done = bool(t["in_ended_with_first"]), bool(t["in_terminated"] or t["in_truncated"])
    if not t["in_active"]:
        return
    if phases & stream.OBSERVE:
        normalise(s, t, t["in_observations"])
    if phases & stream.ACT_BEFORE and s.kind != "td":
        act(s, t)
    if phases & stream.LEARN and t["ready"]:
        learn(s, t)
    if phases & stream.RESET and first:
        normalise(s, t, t["in_first"])
    if phases & stream.ACT and s.kind != "td" and (first or not phases & stream.ACT_BEFORE):
        act(s, t)
    if phases & stream.SHIFT:
        t["states"].copy_(t["following"])
        t["ready"].fill_(first or not done)
        if s.kind != "td":
            for to, of in (("chosen", "next_chosen"), ("explored", "next_explored"), ("out_actions", "next_chosen")):
                t[to].copy_(t[of])
