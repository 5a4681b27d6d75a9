"""Full updates of the algorithms of flows and chunks against a second implementation, in float64.

Both start from equal weights and see equal windows and noise. Windows end by a termination within the chunk, at its
last step, by a time limit, and not at all. Three steps are compared after each: one optimiser over a sum, targets that
lag, delays and orders all leave marks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from plain_flow import JointAdam, Plain, Rows, Whole, cloning, euler
from problems import relative, spec
from refusals import refused
from torch import Tensor, nn

from surefoot.core.engine.agent import Agent
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.networks import MLP
from surefoot.offline import FQL, IDQL, IFQL, QAM, QAME, QAMF, QC, QCFQL, AWRFlow, DiffusionBC, FlowBC, RAFTFlow, ReBRAC

ROWS, RATE, PLANNED = 6, 3e-3, 8
Noise = Mapping[str, Tensor]


def windows(count: int, length: int) -> list[dict[str, Tensor]]:
    """Batches of 6 windows of `length` steps."""
    source = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(ROWS, length, *shape, generator=source, dtype=torch.float64)

    made = []
    for _ in range(count):
        mask, ends = torch.ones(ROWS, length, dtype=torch.float64), torch.zeros(ROWS, length, dtype=torch.float64)
        mask[1, 1:] = 0
        ends[1, 0:] = 1  # terminated in the first step; padding repeats it
        ends[2, length - 1] = 1
        mask[3, length // 2 :] = 0  # a time limit
        mask[4, 1:] = 0  # another
        made.append(
            {
                "observations": normal(3),
                "actions": normal(2).tanh(),
                "rewards": normal(),
                "terminations": ends,
                "next_observations": normal(3),
                "mask": mask,
                "returns_to_go": normal(),
            }
        )
    return made


Step = Callable[[Rows, Noise], None]


def plain_fql(agent: Agent, nets: dict[str, Plain]) -> Step:
    c = agent.config
    adam = JointAdam([nets["velocity"], nets["student"], nets["critic"]], RATE)

    def step(rows: Rows, noise: Noise) -> None:
        v, mu, q, target = (nets[name] for name in ("velocity", "student", "critic", "target_critic"))
        with torch.no_grad():
            flowed = euler(v, rows.s, noise["policy"], c.flow_steps)
            next_q = target(rows.following, mu(rows.following, noise["next"]).clamp(-1, 1)).squeeze(-1)
            y = rows.r + rows.reach * (next_q.mean(0) if c.aggregate == "mean" else next_q.min(0).values)
        mine = mu(rows.s, noise["policy"])
        fixed = [t.detach() for t in q.tensors]
        trained, q.tensors = q.tensors, fixed
        value = q(rows.s, mine.clamp(-1, 1)).squeeze(-1).mean(0)
        q.tensors = trained
        scale = 1 / value.abs().mean().detach() if c.normalize_q else 1
        loss = cloning(v, rows, noise)
        loss = loss + c.alpha * ((mine - flowed) ** 2).mean() - scale * value.mean()
        loss = loss + (rows.weight * (q(rows.s, rows.a).squeeze(-1) - y) ** 2).mean()
        old = q.copy()
        adam.step(loss)
        target.follow(old, c.target_rate)

    return step


def plain_qc(agent: Agent, nets: dict[str, Plain]) -> Step:
    c = agent.config
    adam = JointAdam([nets["velocity"], nets["critic"]], RATE)

    def step(rows: Rows, noise: Noise) -> None:
        v, q, target = (nets[name] for name in ("velocity", "critic", "target_critic"))
        chosen = []
        with torch.no_grad():
            for row in range(ROWS):
                seen = rows.following[row : row + 1]
                drawn = [euler(v, seen, z.reshape(1, -1), c.flow_steps) for z in noise["next"][row].chunk(c.samples)]
                values = [float(q(seen, a).mean() if c.aggregate == "mean" else q(seen, a).min()) for a in drawn]
                chosen.append(drawn[values.index(max(values))])
            next_q = target(rows.following, torch.cat(chosen)).squeeze(-1)
            y = rows.r + rows.reach * (next_q.mean(0) if c.aggregate == "mean" else next_q.min(0).values)
        old = q.copy()
        adam.step(cloning(v, rows, noise) + (rows.weight * (q(rows.s, rows.a).squeeze(-1) - y) ** 2).mean())
        target.follow(old, c.target_rate)

    return step


def plain_ifql(agent: Agent, nets: dict[str, Plain]) -> Step:
    c = agent.config
    adam = JointAdam([nets["velocity"], nets["value"], nets["critic"]], RATE)

    def step(rows: Rows, noise: Noise) -> None:
        v, value, q, target = (nets[name] for name in ("velocity", "value", "critic", "target_critic"))
        with torch.no_grad():
            y = rows.r + rows.reach * value(rows.following).squeeze(-1)
            goal = target(rows.s, rows.a).squeeze(-1).min(0).values
        u = goal - value(rows.s).squeeze(-1)
        tau = torch.where(u < 0, 1 - c.expectile, c.expectile)
        wrong = (rows.weight * (q(rows.s, rows.a).squeeze(-1) - y) ** 2).mean(1).sum()
        old = q.copy()
        adam.step(cloning(v, rows, noise) + (rows.weight * tau * u**2).mean() + wrong)
        target.follow(old, c.target_rate)

    return step


def plain_flow_bc(agent: Agent, nets: dict[str, Plain]) -> Step:
    adam = JointAdam([nets["velocity"]], RATE)

    def step(rows: Rows, noise: Noise) -> None:
        adam.step(cloning(nets["velocity"], rows, noise))
        nets["average_velocity"].follow(nets["velocity"], agent.config.average_rate)

    return step


def plain_rebrac(agent: Agent, nets: dict[str, Plain]) -> Step:
    c, taken = agent.config, [0]
    of_critic, of_actor = JointAdam([nets["critic"]], RATE), JointAdam([nets["actor"]], RATE)

    def lowest(values: Tensor) -> Tensor:
        return (
            values.min(0).values
            if c.aggregate == "min"
            else values.mean(0) - c.deviations * values.var(0, False) ** 0.5
        )

    def step(rows: Rows, noise: Noise) -> None:
        taken[0] += 1
        q, pi, target, old_pi = (nets[name] for name in ("critic", "actor", "target_critic", "target_actor"))
        with torch.no_grad():
            a = old_pi(rows.following).tanh() + (0.2 * noise["target_noise"]).clamp(-0.5, 0.5)
            a = a.clamp(-1, 1)
            away = (rows.next_mask * (a - rows.next_a) ** 2).sum(1)
            y = rows.r + rows.reach * (lowest(target(rows.following, a).squeeze(-1)) - c.critic_penalty * away)
        errors = (rows.weight * (q(rows.s, rows.a).squeeze(-1) - y) ** 2).mean(1)
        old_q, before_pi = q.copy(), pi.copy()
        of_critic.step(errors.sum() if c.critic_loss == "sum" else errors.mean())
        if taken[0] % 2 == 0:
            judge = q.copy() if c.order == "sequential" else old_q
            mine = pi(rows.s).tanh()
            value = lowest(judge(rows.s, mine).squeeze(-1))
            away = (rows.mask * (mine - rows.a) ** 2).sum(1)
            of_actor.step((c.actor_penalty * away - value / value.abs().mean().detach()).mean())
            target.follow(judge, c.target_rate)
            old_pi.follow(before_pi, c.target_rate)

    return step


def plain_qam(agent: Agent, nets: dict[str, Plain]) -> Step:
    c, distilled, edits = agent.config, "student" in nets, "edit" in nets
    more = [name for name in ("student", "edit", "temperature") if name in nets]
    adam = JointAdam([nets[name] for name in ("velocity", "critic", "improved", *more)], RATE, clip=c.max_gradient_norm)
    h = 1 / c.flow_steps

    def edited(seen: Tensor, flowed: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = nets["edit"](seen, flowed).chunk(2, -1)
        log_std = log_std.clamp(-20, 2)
        e = torch.tanh(mean + log_std.exp() * z)
        normal = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)
        return flowed + c.edit_scale * e, (normal - torch.log(1 - e**2)).sum(1)

    def step(rows: Rows, noise: Noise) -> None:
        v, u, q = nets["velocity"], nets["improved"], nets["critic"]
        slow, target = nets["average_velocity"], nets["target_critic"]
        e = noise["path"].reshape(ROWS, c.flow_steps, -1)

        def at(t: float) -> Tensor:
            return torch.full((ROWS, 1), t, dtype=torch.float64)

        sigma = [(2 * (1 - k * h + h) / (k * h + h)) ** 0.5 for k in range(c.flow_steps)]
        x, path = e[:, 0], []
        with torch.no_grad():
            for k in range(c.flow_steps):
                path.append(x)
                if k < c.flow_steps - 1:
                    x = x + h * (2 * u(rows.s, x, at(k * h)) - x / (k * h + h)) + h**0.5 * sigma[k] * e[:, k + 1]
                else:
                    x = x + h * slow(rows.s, x, at(k * h))
        x = x.requires_grad_()
        (gradient,) = torch.autograd.grad(target(rows.s, x.clamp(-1, 1)).squeeze(-1).mean(0).sum(), x)
        adjoint, loss = -c.inverse_temperature * gradient, torch.zeros((), dtype=torch.float64)
        for k in reversed(range(c.flow_steps)):
            place = path[k].detach().requires_grad_()
            drift = 2 * slow(rows.s, place, at(k * h + h)) - place / (k * h + h)
            (back,) = torch.autograd.grad(drift, place, adjoint)
            adjoint = adjoint + h * back
            away = u(rows.s, path[k], at(k * h)) - slow(rows.s, path[k], at(k * h)).detach()
            loss = loss + (2 * away / sigma[k] + sigma[k] * adjoint).square().sum(1).mean()
        if distilled:
            mine = nets["student"](rows.s, noise["policy"])
            flowed = euler(u, rows.s, noise["policy"], c.flow_steps).detach()
            judge = q.copy()(rows.s, mine.clamp(-1, 1)).squeeze(-1).mean(0)
            loss = loss + c.alpha * ((mine - flowed) ** 2).mean() - judge.mean()
        if edits:
            flowed = euler(u, rows.s, noise["policy"], c.flow_steps).detach()
            action, density = edited(rows.s, flowed, noise["edit"])
            alpha = nets["temperature"]()
            judge = q.copy()(rows.s, action.clamp(-1, 1)).squeeze(-1).mean(0)
            loss = loss + (alpha.detach() * density - judge).mean()
            loss = loss - alpha * (density.detach() - 0.5 * action.shape[1]).mean()
        with torch.no_grad():
            if distilled:
                chosen = nets["student"](rows.following, noise["next"]).clamp(-1, 1)
            elif edits:
                start, z = noise["next"].chunk(2, 1)
                chosen = edited(rows.following, euler(u, rows.following, start, c.flow_steps), z)[0].clamp(-1, 1)
            else:
                chosen = euler(u, rows.following, noise["next"], c.flow_steps)
            values = target(rows.following, chosen).squeeze(-1)
            y = rows.r + rows.reach * (values.mean(0) - c.deviations * values.var(0, False) ** 0.5)
        loss = loss + cloning(v, rows, noise, rows.weight)  # a window that a time limit cuts is not cloned
        loss = loss + (rows.weight * (q(rows.s, rows.a).squeeze(-1) - y) ** 2).mean()
        old_q, old_v = q.copy(), v.copy()
        assert adam.step(loss) > c.max_gradient_norm  # so that the clip leaves its mark
        target.follow(old_q, c.target_rate)
        slow.follow(old_v, c.target_rate)

    return step


def falling(taken: int) -> float:
    return RATE * 0.5 * (1 + math.cos(math.pi * taken / PLANNED))


def noisy(products: list[float], rows: Rows, noise: Noise) -> tuple[Tensor, Tensor]:
    """Actions with the noise of the steps that are drawn, and these steps."""
    steps = (noise["step"].squeeze(1) * len(products)).floor()
    kept = torch.tensor([products[int(step)] for step in steps], dtype=torch.float64).unsqueeze(1)
    return kept.sqrt() * rows.a + (1 - kept).sqrt() * noise["noise"], steps


def denoising(network: Any, products: list[float], rows: Rows, noise: Noise) -> Tensor:
    x, steps = noisy(products, rows, noise)
    return (rows.mask * (network(x, rows.s, steps) - noise["noise"]) ** 2).sum(1).mean()


def plain_diffusion_bc(agent: Agent, nets: dict[str, Any]) -> Step:
    steps, adam = agent.config.diffusion_steps, JointAdam([nets["noise_network"]], RATE)

    def left(n: int) -> float:
        return math.cos((n / steps + 0.008) / 1.008 * math.pi / 2) ** 2

    products, product = [], 1.0
    for n in range(steps):
        product *= 1 - min(1 - left(n + 1) / left(n), 0.999)
        products.append(product)

    def step(rows: Rows, noise: Noise) -> None:
        adam.step(denoising(nets["noise_network"], products, rows, noise))
        nets["average_noise_network"].follow(nets["noise_network"], agent.config.average_rate)

    return step


def plain_idql(agent: Agent, nets: dict[str, Any]) -> Step:
    c, taken = agent.config, [0]
    steps = c.diffusion_steps
    logs = [-0.1 / steps - 9.9 * (2 * n - 1) / (2 * steps**2) for n in range(1, steps + 1)]
    products = [math.exp(sum(logs[: n + 1])) for n in range(steps)]
    adams = {name: JointAdam([nets[name]], RATE) for name in ("noise_network", "value", "critic")}

    def step(rows: Rows, noise: Noise) -> None:
        value, q, target = (nets[name] for name in ("value", "critic", "target_critic"))
        adams["noise_network"].rate = falling(taken[0])
        adams["noise_network"].step(denoising(nets["noise_network"], products, rows, noise))
        nets["average_noise_network"].follow(nets["noise_network"], c.average_rate)
        with torch.no_grad():
            goal = target(rows.s, rows.a).squeeze(-1).min(0).values
        u = goal - value(rows.s).squeeze(-1)
        adams["value"].step((rows.weight * torch.where(u < 0, 1 - c.expectile, c.expectile) * u**2).mean())
        with torch.no_grad():
            y = rows.r + rows.reach * value(rows.following).squeeze(-1)  # the new value
        adams["critic"].step((rows.weight * (q(rows.s, rows.a).squeeze(-1) - y) ** 2).mean(1).sum())
        target.follow(q, c.target_rate)
        taken[0] += 1

    return step


def plain_awr(agent: Agent, nets: dict[str, Any]) -> Step:
    c = agent.config
    adams = {name: JointAdam([nets[name]], RATE) for name in ("value", "velocity")}

    def step(rows: Rows, noise: Noise) -> None:
        adams["value"].step(((rows.g - nets["value"](rows.s).squeeze(-1)) ** 2).mean())
        with torch.no_grad():
            a = rows.g - nets["value"](rows.s).squeeze(-1)
            a = (a - a.mean()) / (((a - a.mean()) ** 2).mean().sqrt() + 1e-6)
            weight = (c.inverse_temperature * a).exp().clamp(max=c.weight_limit)
        adams["velocity"].step(cloning(nets["velocity"], rows, noise, weight))

    return step


CASES: dict[str, tuple[type[Agent], Callable[[Agent, dict[str, Plain]], Step], dict[str, Any]]] = {
    "flow_bc": (FlowBC, plain_flow_bc, {}),
    "flow_bc of chunks": (FlowBC, plain_flow_bc, {"chunk": 3, "average_rate": 0.3}),
    "fql": (FQL, plain_fql, {"chunk": 1}),
    "fql with a normalised minimum": (FQL, plain_fql, {"chunk": 2, "aggregate": "min", "normalize_q": True}),
    "fql with norms in its actors": (FQL, plain_fql, {"chunk": 1, "layer_norm_actor": True}),
    "qc_fql": (QCFQL, plain_fql, {"chunk": 3}),
    "qc": (QC, plain_qc, {"chunk": 3, "samples": 4}),
    "qc with the minimum": (QC, plain_qc, {"chunk": 1, "samples": 5, "aggregate": "min"}),
    "ifql": (IFQL, plain_ifql, {"chunk": 2, "samples": 3}),
    "ifql with norms in its flow": (IFQL, plain_ifql, {"samples": 3, "layer_norm_actor": True}),
    "qc with norms in its flow": (QC, plain_qc, {"chunk": 2, "samples": 4, "layer_norm_actor": True}),
    "qam_f with norms in its actors": (
        QAMF,
        plain_qam,
        {"critics": 3, "max_gradient_norm": 0.3, "alpha": 2.0, "layer_norm_actor": True},
    ),
    "qam": (QAM, plain_qam, {"critics": 3, "max_gradient_norm": 0.3}),
    "qam of chunks": (QAM, plain_qam, {"critics": 4, "chunk": 2, "max_gradient_norm": 0.3, "inverse_temperature": 1.5}),
    "qam_f": (QAMF, plain_qam, {"critics": 3, "max_gradient_norm": 0.3, "alpha": 2.0, "chunk": 2}),
    "qam_e": (QAME, plain_qam, {"critics": 3, "max_gradient_norm": 0.3, "edit_scale": 0.4, "chunk": 2}),
    "diffusion_bc": (DiffusionBC, plain_diffusion_bc, {"chunk": 2, "diffusion_steps": 4, "average_rate": 0.2}),
    "idql": (IDQL, plain_idql, {"chunk": 2, "width": 4, "blocks": 1, "dropout": 0.0, "diffusion_steps": 3}),
    "awr_flow": (AWRFlow, plain_awr, {"chunk": 2, "weight_limit": 2.0, "hidden": (12, 9)}),
    "rebrac as in CORL": (ReBRAC, plain_rebrac, {}),
    "rebrac with layer norms in its actor": (ReBRAC, plain_rebrac, {"layer_norm_actor": True}),
    "rebrac as in FQL's code": (ReBRAC, plain_rebrac, {"preset": "fql", "critics": 2}),
    "rebrac as in FQL's code with norms in its actor": (
        ReBRAC,
        plain_rebrac,
        {"preset": "fql", "layer_norm_actor": True},
    ),
    "rebrac of chunks": (
        ReBRAC,
        plain_rebrac,
        {"preset": "fql", "chunk": 2, "critics": 4, "aggregate": "mean", "deviations": 0.5},
    ),
}


@pytest.mark.parametrize("kind", [AWRFlow, RAFTFlow])
def test_returns_without_a_discount_are_refused_since_they_would_all_be_0(kind: type[AWRFlow]) -> None:
    with refused("discount", "range"):
        kind.configure(discount=1.0)


def networks(agent: Agent) -> dict[str, nn.Module]:
    """Attribute -> network."""
    return {name: module for name, module in agent.named_children() if any(True for _ in module.parameters())}


def of_the_authors(kind: type[Agent], options: dict[str, Any], name: str) -> tuple[str, bool]:
    """Activation, and whether layer norms follow it, of a network in the authors' codes.

    FQL's backbone (FQL, QC, QAM and their variants) has GELU in its tanh form, JAX's default, and layer norms in
    critics and values, in actors only where asked for; ReBRAC's own code has ReLU, IDQL's ReLU and no norms. The value
    of weighted cloning is ours.
    """
    if kind is IDQL or (kind is AWRFlow and name == "value"):
        return "relu", False
    relu = kind is ReBRAC and options.get("preset") != "fql"
    critical = name in {"critic", "target_critic", "value"}
    return "relu" if relu else "gelu_tanh", critical or options.get("layer_norm_actor", False)


def copied(module: nn.Module, activation: str, after: bool) -> Plain | Whole:
    """An MLP written out where the network is one, or the network itself."""
    inner = [m for m in module.modules() if isinstance(m, MLP)]
    count = sum(p.numel() for p in module.parameters())
    alone = len(inner) == 1 and sum(p.numel() for p in inner[0].parameters()) == count
    return Plain(inner[0], activation, after) if alone else Whole(module)


@pytest.mark.parametrize("case", CASES)
def test_full_updates_equal_the_second_implementation(case: str) -> None:
    kind, reference, options = CASES[case]
    steps = {"flow_steps": 3} if hasattr(kind.Config, "flow_steps") else {}
    agent = kind(spec(), **{"hidden": (5, 4), "learning_rate": RATE, **steps, **options}).double()
    with torch.no_grad():  # targets unlike their networks, and no bias at 0
        for module in networks(agent).values():
            for mlp in (m for m in module.modules() if isinstance(m, MLP)):
                for bias in mlp.biases:
                    bias.normal_(std=0.4)
    c = agent.config
    nets: dict[str, Any] = {
        name: copied(module, *of_the_authors(kind, options, name)) for name, module in networks(agent).items()
    }
    batches = windows(4, 2 * c.chunk if kind is ReBRAC else c.chunk)
    feed = iter(batches)
    learner = Learner(
        [agent],
        [0],
        Uniform(lambda indices: next(feed), 1000),
        batch_size=ROWS,
        planned_steps=PLANNED,
        dtype=torch.float64,
    )
    start = {name: [p.detach().clone() for p in module.parameters()] for name, module in networks(agent).items()}
    step = reference(agent, nets)
    for number, batch in enumerate(batches):
        noise = {name: value[0] for name, value in learner.stream.at(number).items()}
        learner.run(1)
        step(Rows(batch, c.chunk, getattr(c, "discount", 1.0)), noise)
        for name, module in networks(agent).items():
            for own, other in zip(module.parameters(), nets[name].tensors, strict=True):
                # Adam divides a gradient by its own size, and so its rounding too
                assert relative(own.detach(), other.detach()) < 1e-7, f"{name} after step {number + 1}"
    for name, module in networks(agent).items():
        for own, before in zip(module.parameters(), start[name], strict=True):
            assert relative(own.detach(), before) > 1e-6, f"{name} was not trained"
