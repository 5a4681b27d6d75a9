"""Full updates against a second implementation: torch's layers and optimisers, one network and one loss at a time.

Both start from equal weights and see equal batches and noise, in float64; several steps are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safe_problems import agents, relative
from torch import Tensor, nn

from surefoot.core.engine.agent import Agent
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.networks import MLP

ROWS, G = 6, 0.99
Rows = dict[str, Tensor]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def batches(count: int) -> list[Rows]:
    source = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    made = []
    for _ in range(count):
        observations, actions = normal(ROWS, 3), torch.tanh(normal(ROWS, 2))
        made.append(
            {
                "observations": observations,
                "actions": actions,
                "rewards": normal(ROWS) * 3,
                "costs": (normal(ROWS) > 0).double() * 2,
                "terminations": torch.tensor([0, 1, 0, 0, 1, 0], dtype=torch.float64),
                "next_observations": normal(ROWS, 3),
                "initial_observations": normal(ROWS, 3),
                "observation_actions": torch.cat([observations, actions], -1),
            }
        )
    return made


def net(mlp: MLP, member: int | None = None) -> nn.Sequential:
    parts: list[nn.Module] = []
    for weight, bias in zip(mlp.weights, mlp.biases, strict=True):
        linear = nn.Linear(weight.shape[-1], weight.shape[-2]).double()
        chosen = (weight, bias) if member is None else (weight[member], bias[member])
        linear.load_state_dict({"weight": chosen[0], "bias": chosen[1]})
        parts += [linear, ACTIVATIONS[mlp.activation]()]
    return nn.Sequential(*parts[:-1])


class Plain:
    """Networks and optimisers by name, from an agent's; a subclass writes `step`."""

    networks: tuple[str, ...]
    threshold = 0.4

    def __init__(self, agent: Agent) -> None:
        self.c = agent.config
        self.nets: dict[str, list[nn.Sequential]] = {}
        for path in self.networks:
            mlp = agent.get_submodule(path)
            assert isinstance(mlp, MLP)
            members = range(mlp.members) if mlp.members is not None else [None]
            self.nets[path] = [net(mlp, member) for member in members]
        self.adams: dict[tuple[str, ...], torch.optim.Optimizer] = {}
        self.begin(agent)

    def begin(self, agent: Agent) -> None:
        """More than networks."""

    def descend(self, loss: Tensor, rate: float, *paths: str, more: tuple[Tensor, ...] = ()) -> None:
        if paths not in self.adams:
            parameters = [p for path in paths for n in self.nets[path] for p in n.parameters()]
            self.adams[paths] = torch.optim.Adam([*parameters, *more], lr=rate)
        adam = self.adams[paths]
        for network in (n for group in self.nets.values() for n in group):
            network.zero_grad()
        adam.zero_grad()
        loss.backward()
        adam.step()

    def average(self, target: str, source: str) -> None:
        with torch.no_grad():
            for old_net, new_net in zip(self.nets[target], self.nets[source], strict=True):
                for old, new in zip(old_net.parameters(), new_net.parameters(), strict=True):
                    old.mul_(0.995).add_(0.005 * new)

    def q(self, path: str, s: Tensor, a: Tensor) -> list[Tensor]:
        return [n(torch.cat([s, a], -1)).squeeze(-1) for n in self.nets[path]]

    def vae_step(self, rows: Rows, noise: Tensor) -> None:
        (encoder,), (decoder,) = self.nets["vae.encoder"], self.nets["vae.decoder"]
        mean, log_std = encoder(rows["observation_actions"]).split(4, -1)
        std = log_std.clamp(-4, 15).exp()
        code = torch.distributions.Normal(mean, std)
        recon = torch.tanh(decoder(torch.cat([rows["observations"], mean + std * noise], -1)))
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(std))
        kl = torch.distributions.kl_divergence(code, prior).mean()
        loss = nn.functional.mse_loss(recon, rows["actions"]) + 0.5 * kl
        self.descend(loss, self.c.learning_rate, "vae.encoder", "vae.decoder")

    def gaussian(self, path: str, s: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.nets[path][0](s).split(2, -1)
        return mean, log_std.clamp(-5, 2).exp()

    def critics_step(self, rows: Rows, reward_values: Tensor, cost_values: Tensor) -> None:
        """Both critics towards given (B,) values of the next state."""
        alive = 1 - rows["terminations"]
        y, yc = rows["rewards"] + G * alive * reward_values, rows["costs"] + G * alive * cost_values
        s, a = rows["observations"], rows["actions"]
        loss = sum(((q - y) ** 2).mean() for q in self.q("critic.mlp", s, a))
        loss = loss + sum(((q - yc) ** 2).mean() for q in self.q("cost_critic.mlp", s, a))
        self.descend(loss, self.c.learning_rate, "critic.mlp", "cost_critic.mlp")
        self.average("target_critic.mlp", "critic.mlp")
        self.average("target_cost_critic.mlp", "cost_critic.mlp")

    def soft_clipped(self, path: str, s: Tensor, a: Tensor, careful: bool) -> Tensor:
        """.75 of the lower and .25 of the higher; the other way about where costs are met with care."""
        first, second = self.q(path, s, a)
        low, high = torch.min(first, second), torch.max(first, second)
        return 0.75 * high + 0.25 * low if careful else 0.75 * low + 0.25 * high

    def control(self, cost: Tensor) -> float:
        """OSRL's PID, by its own words: error over critic values."""
        error = float(cost.detach()) - self.threshold
        self.integral = max(self.integral + error, 0.0)
        p, i, d = self.c.gains
        value = p * max(error, 0) + i * self.integral + d * max(error - self.previous, 0)
        self.previous = error
        return max(value, 0.0)


class PlainBCQ(Plain):
    networks = (
        "vae.encoder", "vae.decoder", "critic.mlp", "cost_critic.mlp", "target_critic.mlp", "target_cost_critic.mlp",
        "perturbation.mlp", "target_perturbation.mlp",
    )  # fmt: skip
    integral = previous = 0.0
    threshold = -1.0  # below what its critics say, so that the multiplier works

    def act(self, path: str, s: Tensor, z: Tensor) -> Tensor:
        a = torch.tanh(self.nets["vae.decoder"][0](torch.cat([s, z.clamp(-0.5, 0.5)], -1)))
        return (a + 0.05 * torch.tanh(self.nets[path][0](torch.cat([s, a], -1)))).clamp(-1, 1)

    def step(self, rows: Rows, noise: Rows) -> None:
        careful = self.c.careful_costs
        self.vae_step(rows, noise["encoded"])
        s2, best, dear = rows["next_observations"], [], []
        with torch.no_grad():
            for z in noise["next_latent"].split(4, -1):
                a2 = self.act("target_perturbation.mlp", s2, z)
                best.append(self.soft_clipped("target_critic.mlp", s2, a2, careful=False))
                dear.append(self.soft_clipped("target_cost_critic.mlp", s2, a2, careful=careful))
        self.critics_step(rows, torch.stack(best).max(0).values, torch.stack(dear).mean(0))
        s = rows["observations"]
        a = self.act("perturbation.mlp", s, noise["latent"])
        q = torch.min(*self.q("critic.mlp", s, a))
        qc = (torch.max if careful else torch.min)(*self.q("cost_critic.mlp", s, a))
        weight = self.control(qc.mean())
        self.descend(-q.mean() + weight * (qc.mean() - self.threshold), self.c.learning_rate, "perturbation.mlp")
        self.average("target_perturbation.mlp", "perturbation.mlp")


class PlainBEAR(Plain):
    networks = (
        "vae.encoder", "vae.decoder", "critic.mlp", "cost_critic.mlp", "target_critic.mlp", "target_cost_critic.mlp",
        "actor.mlp", "target_actor.mlp",
    )  # fmt: skip
    integral = previous = 0.0

    def begin(self, agent: Agent) -> None:
        self.rho = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def step(self, rows: Rows, noise: Rows) -> None:
        self.vae_step(rows, noise["encoded"])
        s, s2, best, dear = rows["observations"], rows["next_observations"], [], []
        with torch.no_grad():
            mean, std = self.gaussian("target_actor.mlp", s2)
            for e in noise["next_action"].split(2, -1):
                a2 = torch.tanh(mean + std * e)
                best.append(self.soft_clipped("target_critic.mlp", s2, a2, careful=False))
                dear.append(self.soft_clipped("target_cost_critic.mlp", s2, a2, careful=True))
        self.critics_step(rows, torch.stack(best).max(0).values, torch.stack(dear).mean(0))
        mean, std = self.gaussian("actor.mlp", s)
        own = [mean + std * e for e in noise["action"].split(2, -1)]
        with torch.no_grad():
            decoder = self.nets["vae.decoder"][0]
            theirs = [decoder(torch.cat([s, z.clamp(-0.5, 0.5)], -1)) for z in noise["latent"].split(4, -1)]

        def k(xs: list[Tensor], ys: list[Tensor]) -> Tensor:
            return sum(torch.exp(-((x - y) ** 2).sum(-1) / 100.0) for x in xs for y in ys) / (len(xs) * len(ys))

        mmd = torch.sqrt(k(own, own) + k(theirs, theirs) - 2 * k(own, theirs) + 1e-6).mean()
        a = torch.tanh(own[0])
        q, qc = torch.min(*self.q("critic.mlp", s, a)), torch.max(*self.q("cost_critic.mlp", s, a))
        weight = self.control(qc.mean())
        alpha = self.rho.detach().exp()
        loss = -q.mean() + alpha * (mmd - 0.05) + weight * (qc.mean() - self.threshold)
        loss = loss - self.rho * alpha * (mmd.detach() - 0.05)
        self.descend(loss, self.c.actor_learning_rate, "actor.mlp", more=(self.rho,))
        self.average("target_actor.mlp", "actor.mlp")


class PlainCPQ(Plain):
    networks = (
        "vae.encoder", "vae.decoder", "critic.mlp", "cost_critic.mlp", "target_critic.mlp", "target_cost_critic.mlp",
        "actor.mlp",
    )  # fmt: skip

    def begin(self, agent: Agent) -> None:
        self.rho = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def step(self, rows: Rows, noise: Rows) -> None:
        self.vae_step(rows, noise["encoded"])
        s, a, s2, alive = rows["observations"], rows["actions"], rows["next_observations"], 1 - rows["terminations"]
        with torch.no_grad():
            mean, std = self.gaussian("actor.mlp", s2)
            a2 = torch.tanh(mean + std * noise["next_action"])
            yc = rows["costs"] + G * alive * torch.max(*self.q("target_cost_critic.mlp", s2, a2))
            mean, std = self.gaussian("actor.mlp", s)
            drawn = torch.cat([torch.tanh(mean + std * e) for e in noise["action"].split(2, -1)])
            repeated = torch.cat([s] * 3)
            m, log_std = self.nets["vae.encoder"][0](torch.cat([repeated, drawn], -1)).split(4, -1)
            log_std = log_std.clamp(-4, 15)
            kl = (0.5 * (m**2 + torch.exp(2 * log_std) - 1) - log_std).sum(-1)
            odd = kl >= torch.quantile(kl, 0.75)
        penalised = "cost_critic.mlp" if self.c.penalty_gradient else "target_cost_critic.mlp"
        values = self.q(penalised, repeated[odd], drawn[odd])
        mean_odd = sum(v.mean() for v in values) / 2
        if not self.c.penalty_gradient:
            mean_odd = mean_odd.detach()
        alpha = self.rho.detach().exp()
        td = sum(((q - yc) ** 2).mean() for q in self.q("cost_critic.mlp", s, a))
        short = 1.5 * self.threshold - mean_odd
        loss = td + alpha * short - self.rho * alpha * short.detach()
        self.descend(loss, self.c.learning_rate, "cost_critic.mlp", more=(self.rho,))
        self.average("target_cost_critic.mlp", "cost_critic.mlp")
        with torch.no_grad():
            fine = (torch.max(*self.q("target_cost_critic.mlp", s2, a2)) <= self.threshold).double()
            y = rows["rewards"] + G * alive * fine * torch.min(*self.q("target_critic.mlp", s2, a2))
        loss = sum(((q - y) ** 2).mean() for q in self.q("critic.mlp", s, a))
        self.descend(loss, self.c.learning_rate, "critic.mlp")
        self.average("target_critic.mlp", "critic.mlp")
        mean, std = self.gaussian("actor.mlp", s)
        own = torch.tanh(mean + std * noise["own_action"])
        fine = (torch.max(*self.q("cost_critic.mlp", s, own)) <= self.threshold).double()
        self.descend(-(fine * torch.min(*self.q("critic.mlp", s, own))).mean(), self.c.actor_learning_rate, "actor.mlp")


class PlainCOptiDICE(Plain):
    networks = ("nu.mlp", "chi.mlp", "actor.mlp")

    def begin(self, agent: Agent) -> None:
        self.rho, self.sigma = (
            nn.Parameter(part.rho.detach().clone())
            for part in (agent.multiplier, agent.tau)  # type: ignore[union-attr]
        )
        self.adam_rho = torch.optim.Adam([self.rho], lr=1e-4)
        self.adam_sigma = torch.optim.Adam([self.sigma], lr=1e-4)

    def step(self, rows: Rows, noise: Rows) -> None:
        def v(name: str, key: str) -> Tensor:
            return self.nets[name][0](rows[key]).squeeze(-1)

        alive, c, alpha = 1 - rows["terminations"], rows["costs"], 0.5
        weight, tau = nn.functional.softplus(self.rho), nn.functional.softplus(self.sigma)
        e = rows["rewards"] - weight.detach() * c + G * alive * v("nu.mlp", "next_observations")
        e = e - v("nu.mlp", "observations")
        w = torch.stack([x.exp() if x < 0 else x + 1 for x in e / alpha])
        f = torch.stack([x * x.log() - x + 1 if x < 1 else (x - 1) ** 2 / 2 for x in w])
        nu_loss = (1 - G) * v("nu.mlp", "initial_observations").mean() + (w * e - alpha * f).mean()
        flow = c + G * alive * v("chi.mlp", "next_observations") - v("chi.mlp", "observations")
        ell = (1 - G) * v("chi.mlp", "initial_observations") + w.detach() * flow
        p = ROWS * torch.softmax(ell.detach() / tau.detach(), 0)
        log_p = torch.log_softmax(ell.detach() / tau.detach(), 0) + torch.log(torch.tensor(float(ROWS)))
        chi_loss, tau_loss = (p * ell).mean(), tau * (0.01 - (p * log_p).mean())
        weight_loss = weight * ((1 - G) * self.threshold - (p * w.detach() * c).mean())
        mean, std = self.gaussian("actor.mlp", rows["observations"])
        squashed = torch.distributions.TransformedDistribution(
            torch.distributions.Independent(torch.distributions.Normal(mean, std), 1),
            [torch.distributions.transforms.TanhTransform()],
        )
        density = squashed.log_prob(rows["actions"].clamp(-1 + 1e-4, 1 - 1e-4))
        actor_loss = -(w.detach() * density).mean()
        self.descend(nu_loss, 1e-4, "nu.mlp")
        self.descend(chi_loss, 1e-4, "chi.mlp")
        self.descend(actor_loss, 1e-4, "actor.mlp")
        for adam, loss in ((self.adam_rho, weight_loss), (self.adam_sigma, tau_loss)):
            adam.zero_grad()
            loss.backward()
            adam.step()


class PlainBC(Plain):
    networks = ("actor.mlp",)

    def step(self, rows: Rows, noise: Rows) -> None:
        error = torch.tanh(self.nets["actor.mlp"][0](rows["observations"])) - rows["actions"]
        self.descend((error**2).mean(), 1e-3, "actor.mlp")


CASES: dict[str, type[Plain]] = {
    "bcq_lag": PlainBCQ,
    "bcq_lag-bold": PlainBCQ,
    "bear_lag": PlainBEAR,
    "cpq": PlainCPQ,
    "cpq-slip": PlainCPQ,
    "coptidice": PlainCOptiDICE,
    "bc_safe": PlainBC,
}


@pytest.mark.parametrize("variant", CASES)
def test_full_updates_equal_the_second_implementation(variant: str) -> None:
    (agent,) = agents(variant, [3])
    agent.double()
    with torch.no_grad():  # targets unlike their critics, and no dead units
        for mlp in (m for m in agent.modules() if isinstance(m, MLP)):
            for bias in mlp.biases:
                bias.normal_(std=0.3)
        if "cost_threshold" in dict(agent.named_buffers()):
            agent.cost_threshold.fill_(CASES[variant].threshold)
    rows = batches(4)
    feed = iter(rows)
    learner = Learner([agent], [0], Uniform(lambda _: next(feed), 1000), batch_size=ROWS, dtype=torch.float64)
    plain: Any = CASES[variant](agent)
    start = copy.deepcopy(agent)
    for step in range(4):
        noise = {name: value[0] for name, value in learner.stream.at(step).items()}
        learner.run(1)
        plain.step(rows[step], noise)
        for path, nets in plain.nets.items():
            mlp = agent.get_submodule(path)
            for layer, weight in enumerate(mlp.weights):
                linears = [[m for m in n if isinstance(m, nn.Linear)][layer] for n in nets]
                for ours, part in ((weight, "weight"), (mlp.biases[layer], "bias")):
                    expected = torch.stack([getattr(linear, part).detach() for linear in linears])
                    assert relative(ours, expected.reshape(ours.shape)) < 1e-9, f"{path}.{layer} after step {step + 1}"
    for path in plain.nets:
        ours, before = agent.get_submodule(path).weights[0], start.get_submodule(path).weights[0]
        assert relative(ours, before) > 1e-6, f"{path} was not trained"
    if hasattr(plain, "integral"):
        assert plain.integral > 0
        assert float(agent.multiplier()) > 0
