"""CQL and Cal-QL: full updates against a plain second implementation, identities, and what they learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from plain_layers import layers
from problems import agents, learner, random_store, relative, spec
from torch import Tensor, nn

from surefoot.core import native
from surefoot.core.agent import Agent, Spec
from surefoot.core.errors import ConfigError
from surefoot.core.learner import Learner
from surefoot.core.networks import MLP
from surefoot.core.sources import Uniform
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import returns_to_go
from surefoot.data.store import Store
from surefoot.offline import CQL, CalQL

ROWS = 5
Rows = dict[str, Tensor]


def batches(count: int) -> list[Rows]:
    source = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    made = []
    for _ in range(count):
        observations, actions = normal(ROWS, 3), normal(ROWS, 2).tanh()
        made.append(
            {
                "observations": observations,
                "actions": actions,
                "rewards": 3 * normal(ROWS),
                "terminations": torch.tensor([0, 1, 0, 0, 1.0], dtype=torch.float64),
                "next_observations": normal(ROWS, 3),
                "observation_actions": torch.cat([observations, actions], -1),
                "returns_to_go": normal(ROWS),
            }
        )
    return made


def prepared(kind: type[CQL], **options: Any) -> CQL:
    """A small agent in float64, far from dead units and from saturated actions."""
    torch.manual_seed(2)
    agent = kind(spec(), **{"hidden": (4,), "critic_hidden": (5,), "sampled_actions": 3, **options}).double()
    with torch.no_grad():
        for mlp in (m for m in agent.modules() if isinstance(m, MLP)):
            for bias in mlp.biases:
                bias.normal_(std=0.3)
        agent.actor.mlp.weights[-1].mul_(0.3)
    return agent


def trained(agent: Agent, rows: list[Rows]) -> Learner:
    """A Learner that is handed these batches one after the other."""
    feed = iter(rows)
    return Learner(
        [agent], [0], Uniform(lambda _: next(feed), 1000), batch_size=ROWS, planned_steps=8, dtype=torch.float64
    )


class Plain:
    """CQL and Cal-QL with one network, one action and one loss at a time."""

    def __init__(self, agent: CQL) -> None:
        self.c = c = agent.config
        self.calibrated = isinstance(agent, CalQL)
        self.actor = layers(agent.actor.mlp)
        self.critics = [layers(agent.critic.mlp, i) for i in range(c.critics)]
        self.targets = [layers(agent.target_critic.mlp, i) for i in range(c.critics)]
        self.rho = nn.Parameter(agent.temperature.rho.detach().clone())
        assert float(self.rho.detach()) == pytest.approx(math.log(math.e - 1), rel=1e-6)  # softplus of it is 1
        self.weight_rho = nn.Parameter(torch.zeros((), dtype=torch.float64))
        if c.learn_cql_weight:
            self.weight_rho = nn.Parameter(agent.cql_weight.rho.detach().clone())
        critic_parameters = [p for q in self.critics for p in q.parameters()]
        if c.learn_cql_weight:
            critic_parameters.append(self.weight_rho)
        self.adams = [
            torch.optim.Adam(critic_parameters, lr=3e-4),
            torch.optim.Adam(self.actor.parameters(), lr=1e-4),
            torch.optim.Adam([self.rho], lr=1e-4),
        ]

    def draw(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        out = self.actor(observations)
        u = out[:, :2] + out[:, 2:].exp() * noise
        normal = torch.distributions.Normal(out[:, :2], out[:, 2:].exp()).log_prob(u).sum(1)
        return torch.tanh(u), normal - torch.log(1 - torch.tanh(u) ** 2).sum(1)

    @staticmethod
    def q(critic: nn.Module, observations: Tensor, actions: Tensor) -> Tensor:
        return critic(torch.cat([observations, actions], 1)).squeeze(1)

    def members(self, noise: Rows) -> list[int]:
        c = self.c
        if c.subset == c.critics:
            return list(range(c.critics))
        draws = noise["subset"][0]
        if c.subset_replacement:
            return sorted({int(x * c.critics) for x in draws[: c.subset].tolist()})
        return sorted(draws.argsort()[: c.subset].tolist())

    def critic_loss(self, rows: Rows, noise: Rows) -> Tensor:
        c, s, following = self.c, rows["observations"], rows["next_observations"]
        members = self.members(noise)
        with torch.no_grad():
            candidates = []
            for k in range(c.sampled_actions if c.max_target_backup else 1):
                action, _ = self.draw(following, noise["next_action"][:, 2 * k : 2 * k + 2])
                candidates.append(torch.stack([self.q(self.targets[i], following, action) for i in members]).amin(0))
            best = torch.stack(candidates).amax(0)
            y = rows["rewards"] + c.discount * (1 - rows["terminations"]) * best
            sampled = []
            for k in range(c.sampled_actions):
                part = slice(2 * k, 2 * k + 2)
                uniform = 2 * noise["uniform_action"][:, part] - 1
                sampled.append((uniform, torch.full((ROWS,), math.log(0.25), dtype=torch.float64), False))
                sampled.append((*self.draw(s, noise["policy_action"][:, part]), True))
                sampled.append((*self.draw(following, noise["next_policy_action"][:, part]), True))
        data = [self.q(critic, s, rows["actions"]) for critic in self.critics]
        td = sum(((q - y) ** 2).mean() for q in data) / c.critics
        gaps = []
        for i in members:
            entries = []
            for action, density, of_policy in sampled:
                q = self.q(self.critics[i], s, action)
                if of_policy and self.calibrated:
                    q = torch.max(q, rows["returns_to_go"])
                entries.append(q - density if c.importance_sampling else q)
            if not c.importance_sampling:
                entries = [entry - c.cql_temperature * math.log(len(entries) + 1) for entry in [*entries, data[i]]]
            lse = c.cql_temperature * torch.logsumexp(torch.stack(entries) / c.cql_temperature, 0)
            gaps.append((lse - data[i]).mean())
        gap = sum(gaps) / len(gaps)
        if not c.learn_cql_weight:
            return td + c.cql_weight * gap
        weight = nn.functional.softplus(self.weight_rho)
        return td + weight.detach() * (gap - c.cql_gap) - weight * (gap.detach() - c.cql_gap)

    def step(self, rows: Rows, noise: Rows) -> None:
        alpha = nn.functional.softplus(self.rho)
        action, density = self.draw(rows["observations"], noise["action"])
        q = torch.stack([self.q(critic, rows["observations"], action) for critic in self.critics]).amin(0)
        _, next_density = self.draw(rows["next_observations"], noise["action"])
        losses = [
            self.critic_loss(rows, noise),
            (alpha.detach() * density - q).mean(),
            alpha * (-next_density.detach().mean() + 2),
        ]
        self.descend(losses)

    def descend(self, losses: list[Tensor]) -> None:
        for adam, loss in zip(self.adams, losses, strict=True):  # all gradients are those at the old parameters
            own = adam.param_groups[0]["params"]
            for parameter, gradient in zip(own, torch.autograd.grad(loss, own, retain_graph=True), strict=True):
                parameter.grad = gradient
        for adam in self.adams:
            adam.step()
        with torch.no_grad():
            for target, source in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), source.parameters(), strict=True):
                    old.copy_(0.995 * old + 0.005 * new)


def pairs(agent: CQL, plain: Plain) -> list[tuple[str, Tensor, Tensor]]:
    found = [("temperature", agent.temperature.rho.detach(), plain.rho.detach())]
    if agent.config.learn_cql_weight:
        found.append(("cql_weight", agent.cql_weight.rho.detach(), plain.weight_rho.detach()))
    for name, networks in (("actor", [plain.actor]), ("critic", plain.critics), ("target_critic", plain.targets)):
        mlp = getattr(agent, name).mlp
        linears = [[m for m in n if isinstance(m, nn.Linear)] for n in networks]
        for layer in range(len(mlp.weights)):
            for part, own in (("weight", mlp.weights[layer]), ("bias", mlp.biases[layer])):
                expected = torch.stack([getattr(line[layer], part) for line in linears]).detach()
                found.append((f"{name}.{layer}.{part}", own.detach(), expected.reshape(own.shape)))
    return found


@pytest.mark.parametrize("kind", [CQL, CalQL])
def test_layer_norms_add_to_the_variance_what_flaxs_do(kind: type[CQL]) -> None:
    agent = prepared(kind, layer_norm_actor=True, layer_norm_critic=True)
    pairs = 1e-3 * torch.randn(ROWS, 5, dtype=torch.float64)
    with torch.no_grad():
        for mlp in (agent.actor.mlp, agent.critic.mlp):
            mlp.biases[0].mul_(1e-3)  # variances near the epsilon, so that it matters which
        critics = agent.critic(pairs)
        for member in range(2):
            flaxs, torchs = (layers(agent.critic.mlp, member, epsilon)(pairs)[:, 0] for epsilon in (1e-6, 1e-5))
            torch.testing.assert_close(critics[member], flaxs, rtol=1e-12, atol=1e-12)
            assert (critics[member] - torchs).abs().max() > 1e-3
        means = layers(agent.actor.mlp, epsilon=1e-6)(pairs[:, :3])
        torch.testing.assert_close(agent.actor.mlp(pairs[:, :3]), means, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (CQL, {}),
        (CQL, {"critics": 3, "learn_cql_weight": True, "cql_weight": 1.0, "max_target_backup": False}),
        (CalQL, {"cql_temperature": 0.7}),
        (CalQL, {"critics": 4, "subset": 2, "subset_replacement": True, "importance_sampling": False}),
    ],
)
def test_full_updates_equal_the_second_implementation(kind: type[CQL], options: dict[str, Any]) -> None:
    agent, rows = prepared(kind, **options), batches(3)
    plain, trains = Plain(agent), trained(agent, rows)
    start = {name: value.clone() for name, value, _ in pairs(agent, plain)}
    for step in range(3):
        noise = {name: value[0] for name, value in trains.stream.at(step).items()}
        expected = float(plain.critic_loss(rows[step], noise).detach())
        assert trains.run(1)["critic_loss"][0] == pytest.approx(expected, rel=1e-10)
        plain.step(rows[step], noise)
        for name, value, wanted in pairs(agent, plain):
            assert relative(value, wanted) < 1e-9, f"{name} after step {step + 1}"
    for name, value, _ in pairs(agent, plain):
        assert relative(value, start[name]) > (1e-7 if "target" in name else 1e-5), f"{name} was not trained"


# -- identities --------------------------------------------------------------------------------------------


def losses(agent: CQL, rows: Rows) -> dict[str, float]:
    return {name: value[0] for name, value in trained(agent, [rows]).run(1).items()}


def test_calql_with_returns_of_minus_infinity_is_cql_and_with_high_ones_is_not() -> None:
    rows = batches(1)[0]
    bottom = {**rows, "returns_to_go": torch.full((ROWS,), -math.inf, dtype=torch.float64)}
    plain, low, high = (losses(prepared(kind), r) for kind, r in ((CQL, rows), (CalQL, bottom), (CalQL, rows)))
    assert plain == low
    assert high["cql_gap"] > plain["cql_gap"]


@pytest.mark.parametrize("wanted", [-50.0, 50.0])
def test_the_learned_weight_rises_only_while_the_gap_is_above_its_target(wanted: float) -> None:
    agent = prepared(CQL, learn_cql_weight=True, cql_gap=wanted)
    before = float(agent.cql_weight().detach())
    losses(agent, batches(1)[0])
    assert (float(agent.cql_weight().detach()) > before) == (wanted < 0)


@pytest.mark.parametrize("wanted", [-50.0, 50.0])
def test_the_temperature_falls_only_while_the_entropy_is_above_its_target(wanted: float) -> None:
    agent = prepared(CQL, target_entropy=wanted)
    before = float(agent.temperature().detach())
    losses(agent, batches(1)[0])
    assert (float(agent.temperature().detach()) < before) == (wanted < 0)


def test_the_subset_is_drawn_anew_and_with_replacement_only_where_asked() -> None:
    sizes = {}
    for replacement in (False, True):
        agent = prepared(CQL, critics=4, subset_replacement=replacement)
        trains = trained(agent, batches(1))
        plain = Plain(agent)
        drawn = [plain.members({"subset": trains.stream.at(step)["subset"][0]}) for step in range(60)]
        sizes[replacement] = {len(members) for members in drawn}
        assert set().union(*drawn) == {0, 1, 2, 3}
    assert sizes == {False: {2}, True: {1, 2}}


# -- returns-to-go -----------------------------------------------------------------------------------------


def episodes(rewards: list[list[float]], terminated: list[bool]) -> Dataset:
    lengths = [len(r) for r in rewards]
    ends = np.cumsum(lengths) - 1
    count = sum(lengths)
    flags = np.zeros((2, count), dtype=bool)
    flags[0, ends], flags[1, ends] = terminated, np.logical_not(terminated)
    return Dataset(
        name="made",
        observations=np.zeros((count, 3), np.float32),
        actions=np.zeros((count, 2), np.float32),
        rewards=np.concatenate(rewards).astype(np.float32),
        terminations=flags[0],
        truncations=flags[1],
        next_observations=np.zeros((count, 3), np.float32),
        episode_ids=np.repeat(np.arange(len(rewards)), lengths),
        valid=np.ones(count, bool),
    )


def test_returns_to_go_are_those_worked_out_by_hand_and_stop_at_episodes() -> None:
    data = episodes([[1, 2, 4], [8], [-5, -5]], [True, False, False])
    assert returns_to_go(data, 0.5).tolist() == [3, 4, 4, 8, -7.5, -5]
    assert returns_to_go(data, 0.5, failure_reward=-5.0).tolist() == [3, 4, 4, 8, -10, -10]
    with pytest.raises(ConfigError, match="infinite return"):
        returns_to_go(data, 1.0, failure_reward=-5.0)


def test_preparing_scales_rewards_first_and_an_episode_of_failures_is_worth_failing_forever() -> None:
    data = episodes([[0, 0, 1], [0, 0]], [True, False])
    agent = CalQL(spec(), preset="wsrl-antmaze", discount=0.99, hidden=(4,))
    ready = agent.prepare(data)
    assert ready.rewards.tolist() == [-5, -5, 5, -5, -5]
    assert ready.extras["returns_to_go"] == pytest.approx([-5 + 0.99 * (-5 + 0.99 * 5), -0.05, 5, -500, -500])
    assert float(agent.reward_scale) == 10
    assert float(agent.reward_shift) == -5


# -- what they learn ---------------------------------------------------------------------------------------

BANDIT = Spec(2, 1, (-1.0,), (1.0,))


def bandit(lowest: float, highest: float, slope: float) -> Store:
    """2,000 plays with actions in a range; reward slope * a, or -(a - 1/2)^2 without a slope."""
    source = torch.Generator().manual_seed(3)
    states = torch.rand(2000, 2, generator=source) * 2 - 1
    actions = lowest + (highest - lowest) * torch.rand(2000, 1, generator=source)
    rewards = slope * actions[:, 0] if slope else -(actions[:, 0] - 0.5).square()
    return Store.pack(
        {
            "observations": states,
            "actions": actions,
            "rewards": rewards,
            "terminations": torch.ones(2000),
            "next_observations": states,
            "returns_to_go": rewards,
        }
    )


def played(kind: type[CQL], store: Store, **options: Any) -> tuple[CQL, Tensor]:
    """The agent after 500 steps, and its actions at 200 states."""
    rates = {"actor_learning_rate": 3e-3, "critic_learning_rate": 3e-3, "temperature_learning_rate": 3e-2}
    options = {"hidden": (32, 32), "sampled_actions": 4, "target_entropy": -3.0, **rates, **options}
    agent = kind(BANDIT, **options).fresh(0)
    trains = Learner([agent], [0], Uniform(store), batch_size=64, kernels=True)
    trains.run(500)
    with torch.no_grad():
        return agent, agent.act(torch.rand(200, 2, generator=torch.Generator().manual_seed(4)) * 2 - 1).squeeze(1)


@pytest.mark.parametrize("kind", [CQL, CalQL])
def test_the_policy_finds_the_best_action_of_data_that_covers_all(kind: type[CQL]) -> None:
    _, actions = played(kind, bandit(-1, 1, 0.0), cql_weight=0.1)
    assert actions.mean().item() == pytest.approx(0.5, abs=0.15)


def test_conservatism_keeps_the_policy_at_the_datas_actions_and_their_values_highest() -> None:
    """Rewards rise towards 1 but the data ends at 0: without the conservative term the critic's line leads beyond."""
    store = bandit(-1, 0, 1.0)
    _, greedy = played(CQL, store, cql_weight=0.0)
    agent, careful = played(CQL, store, cql_weight=5.0)
    assert greedy.mean().item() > 0.7
    assert careful.mean().item() < 0.3
    states = torch.zeros(2, 2)
    with torch.no_grad():
        inside, outside = agent.critic(torch.cat([states, torch.tensor([[-0.3], [0.9]])], 1)).mean(0).tolist()
    assert inside > outside + 0.5


def test_calql_pushes_values_down_less_far_than_cql() -> None:
    store = bandit(-1, 0, 1.0)
    states = torch.rand(100, 2, generator=torch.Generator().manual_seed(5)) * 2 - 1
    values = {}
    for kind in (CQL, CalQL):
        agent, _ = played(kind, store, cql_weight=5.0)
        with torch.no_grad():
            draws, _ = agent.actor.draw(states, torch.randn(20, 100, 1, generator=torch.Generator().manual_seed(6)))
            pairs = torch.cat([states.expand(20, -1, -1), draws], -1).flatten(0, 1)
            values[kind.name] = agent.critic(pairs).mean().item()
    assert values["calql"] > values["cql"] + 0.1


# -- engine and bad input ----------------------------------------------------------------------------------


@pytest.mark.skipif(native.library() is None, reason="tapes are run by the native module, which was not built")
@pytest.mark.parametrize("variant", ["cql", "calql", "cql-learned", "calql-kitchen", "cql-norm"])
def test_training_steps_run_from_a_tape(variant: str) -> None:
    trains = learner(agents(variant, [3]), [3], random_store(), kernels=True)
    trains.run(3)
    assert trains.eager_because() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subset": 3}, r"cql\.subset is 3, must be in 1 to 2 critics"),
        ({"sampled_actions": 0}, r"cql\.sampled_actions"),
        ({"cql_weight": -1.0}, r"cql\.cql_weight"),
        ({"cql_weight": 0.0, "learn_cql_weight": True}, "> 0 to be learned"),
        ({"cql_temperature": 0.0}, r"cql\.cql_temperature"),
        ({"reward_scale": 0.0}, r"cql\.reward_scale"),
        ({"preset": "walker"}, "cql has no preset 'walker'"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CQL.configure(**options)
    with pytest.raises(ConfigError, match=r"calql\.discount is 1\.0, must be below 1"):
        CalQL.configure(failure_reward=-5.0, discount=1.0)
