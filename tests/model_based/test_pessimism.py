"""What MOPO, MOBILE, COMBO, MOReL and RAMBO add to their base, against second implementations in float64."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from plane import plane_data
from refusals import refused
from torch import Tensor

from surefoot.core.base.errors import Code
from surefoot.core.engine.agent import Agent
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Stores
from surefoot.data.store import store_from_dataset
from surefoot.model_based import ALGORITHMS
from surefoot.model_based.combo import COMBO
from surefoot.model_based.imagined_sac import ImaginedSAC
from surefoot.model_based.mobile import MOBILE
from surefoot.model_based.mopo import MOPO
from surefoot.model_based.morel import MOReL
from surefoot.model_based.rambo import RAMBO
from surefoot.world_models.dynamics import Outcome

SMALL = {
    "model_updates": 4, "rollouts": 20, "rollout_length": 3, "imagine_every": 5, "hidden": (8, 6),
    "model_hidden": (7, 5), "model_decays": (), "model_members": 4, "model_elites": 3, "model_rows": 16,
}  # fmt: skip


def agent_of(kind: type[Agent], **options: object) -> Agent:
    found = kind(plane_data(120), **{**SMALL, **options}).fresh(3)
    found.prepare(plane_data(120))
    return found.double()


def trained(kind: type[Agent], steps: int, dtype: torch.dtype = torch.float32, **options: object) -> Learner:
    data = plane_data(120)
    agent = kind(data, **{**SMALL, **options}).fresh(3)
    ready = agent.prepare(data)
    store = store_from_dataset(ready, agent.required_columns, dtype=dtype)
    sources = agent.sources(Stores(ready, store))
    found = Learner([agent], [3], sources, batch_size=20, planned_steps=50, dtype=dtype)
    found.run(steps)
    return found


def rows(count: int = 20, seed: int = 0) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    found = {
        "observations": normal(count, 2),
        "actions": normal(count, 2).tanh(),
        "rewards": normal(count),
        "terminations": (normal(count) > 1).double(),
        "next_observations": normal(count, 2),
    }
    return {**found, "observation_actions": torch.cat([found["observations"], found["actions"]], -1)}


def noise_of(agent: ImaginedSAC, count: int = 20) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(5)
    found = {}
    for name, kind in agent.critic_noise().items():
        draw = torch.rand if kind.kind == "uniform" else torch.randn
        found[name] = draw(count, kind.width, generator=source, dtype=torch.float64)
    return found


@pytest.mark.parametrize("kind", [MOPO, MOBILE])
def test_without_a_penalty_it_is_its_base_bit_for_bit(kind: type[ImaginedSAC]) -> None:
    ours, base = trained(kind, 23, penalty=0.0).state(0), trained(ImaginedSAC, 23).state(0)
    assert ours.keys() == base.keys()
    assert all(torch.equal(value, base[name]) for name, value in ours.items())
    with_one = trained(kind, 23, penalty=1.0).state(0)
    assert not torch.equal(with_one["agent/critic.mlp.weights.0"], base["agent/critic.mlp.weights.0"])


def test_mobile_on_real_rows_alone_is_sac_with_two_critics_plus_its_clamp() -> None:
    ours = trained(MOBILE, 12, real_ratio=1.0, penalty=2.0)
    base = trained(ImaginedSAC, 12, real_ratio=1.0)
    for name, value in base.agents_parameters(0).items():
        assert torch.equal(ours.agents_parameters(0)[name], value), name
    agent, batch = agent_of(MOBILE, real_ratio=1.0, clamp_targets=True), rows()
    noise = noise_of(agent)  # type: ignore[arg-type]
    plain = agent_of(ImaginedSAC, real_ratio=1.0).targets(batch, noise)  # type: ignore[operator]
    assert bool((plain < 0).any())
    torch.testing.assert_close(agent.targets(batch, noise), plain.clamp(min=0))  # type: ignore[operator]


@pytest.mark.parametrize("measure", ["aleatoric", "pairwise", "std"])
def test_mopos_penalty_is_that_of_a_second_implementation(measure: str) -> None:
    agent = agent_of(MOPO, penalty=1.7, uncertainty=measure)
    assert isinstance(agent, MOPO)
    units = torch.tensor([3.0, 0.5], dtype=torch.float64)  # of the data, where states are normalised
    agent.normalizer.scale.copy_(units)
    batch = rows()
    states, actions = batch["observations"], batch["actions"]
    outcome = Outcome(batch["next_observations"], batch["rewards"], batch["rewards"] * 0, batch["rewards"] > 9)
    found = agent.judge(states, actions, outcome)
    wanted = []
    with torch.no_grad():
        for row in range(20):
            inputs = (batch["observation_actions"][row] - agent.model.input_mean) / agent.model.input_scale
            means, stds = [], []
            for member in range(4):
                value = inputs
                weights, biases = list(agent.model.network.weights), list(agent.model.network.biases)
                for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                    value = weight[member] @ value + bias[member]
                    value = value * torch.sigmoid(value) if layer < len(weights) - 1 else value
                high, low = agent.model.max_log_variance, agent.model.min_log_variance
                log_variance = high - torch.log1p(torch.exp(high - value[3:]))
                log_variance = low + torch.log1p(torch.exp(log_variance - low))
                means.append(value[:2] * units)
                stds.append(torch.exp(0.5 * log_variance) * torch.cat([units, units.new_ones(1)]))
            centre = torch.stack(means).mean(0)
            u = {
                "aleatoric": max(float(std.norm()) for std in stds),
                "pairwise": max(float((mean - centre).norm()) for mean in means),
                "std": math.sqrt(float(torch.stack([(m - centre).square() for m in means]).mean(0).mean())),
            }[measure]
            wanted.append(float(batch["rewards"][row]) - 1.7 * u)
    assert found.rewards.tolist() == pytest.approx(wanted, rel=1e-9)
    assert torch.equal(found.states, outcome.states)


def test_mobiles_targets_are_those_of_a_second_implementation() -> None:
    """Row by row, elite by elite, sample by sample; the first rows are the data's and not penalised."""
    agent = agent_of(MOBILE, penalty=0.8, samples=4, real_ratio=0.25)
    assert isinstance(agent, MOBILE)
    agent.model.elites.copy_(torch.tensor([2, 0, 3]))
    batch, count = rows(), 3 * 4
    noise = noise_of(agent)
    with torch.no_grad():
        found = agent.targets(batch, noise)
        wanted = []
        alpha = float(agent.temperature())
        for row in range(20):
            following = batch["next_observations"][row : row + 1]
            action, density = agent.actor.draw(following, noise["next_action"][row : row + 1])
            value = float(agent.target_critic(torch.cat([following, action], -1)).min())
            target = float(batch["rewards"][row])
            target += 0.99 * (1 - float(batch["terminations"][row])) * (value - alpha * float(density))
            if row >= 5:
                place = row - 5
                to_state = noise["member_state"][place].view(count, 3)
                to_action = noise["member_action"][place].view(count, 2)
                means = []
                for position, member in enumerate((2, 0, 3)):
                    state, act = batch["observations"][row : row + 1], batch["actions"][row : row + 1]
                    one = agent.model.predict(state, act, torch.tensor([member]))
                    values = []
                    for sample in range(4):
                        drawn = 4 * position + sample
                        there = state + one.mean[:, :2] + one.std[:, :2] * to_state[drawn, :2]
                        mean, log_std = agent.actor(there)
                        chosen = torch.tanh(mean + log_std.exp() * to_action[drawn])
                        values.append(float(agent.target_critic(torch.cat([there, chosen], -1)).min()))
                    means.append(sum(values) / 4)
                centre = sum(means) / 3
                target -= 0.8 * math.sqrt(sum((mean - centre) ** 2 for mean in means) / 2)
            wanted.append(target)
    assert found.tolist() == pytest.approx(wanted, rel=1e-9)


def test_one_update_of_mobile_equals_a_second_implementation_in_float64() -> None:
    """Critics, then actor and temperature together, each by a plain first step of Adam."""
    learner = trained(MOBILE, 4, torch.float64, penalty=0.8, samples=2)
    agent = agent_of(MOBILE, penalty=0.8, samples=2)
    assert isinstance(agent, MOBILE)
    agent.load_state_dict({name: value.clone() for name, value in learner.agents_parameters(0).items()})
    learner.run(1)
    batch = learner.sources[MAIN].gather(learner.sources[MAIN].rows(4)[0])
    noise = {name: value[0] for name, value in learner.stream.at(4).items()}

    def first_step(parameters: list[Tensor], loss: Tensor, rate: float) -> None:
        with torch.enable_grad():
            found = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, found, strict=True):
                parameter -= rate * gradient / (gradient.abs() + 1e-8)

    target = agent.targets(batch, noise)
    q = agent.critic(torch.cat([batch["observations"], batch["actions"]], -1))
    first_step(list(agent.critic.parameters()), (q - target).square().mean(1).sum(), 3e-4)
    action, density = agent.actor.draw(batch["observations"], noise["action"])
    value = agent.critic(torch.cat([batch["observations"], action], -1)).min(0).values
    rho = agent.temperature.rho
    to_actor = (rho.exp().detach() * density - value).mean()
    to_temperature = -(rho * (density.detach() - 2.0)).mean()
    first_step([rho], to_temperature, 1e-4)
    first_step(list(agent.actor.parameters()), to_actor, 1e-4)
    found = learner.agents_parameters(0)
    for name, wanted in agent.named_parameters():
        if name.startswith(("critic", "actor", "temperature")):
            torch.testing.assert_close(found[name], wanted.detach(), rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("pushed_on", ["mixed", "imagined"])
def test_combos_loss_is_that_of_a_second_implementation(pushed_on: str) -> None:
    agent = agent_of(COMBO, sampled_actions=3, cql_weight=1.3, cql_temperature=0.7, pushed_on=pushed_on)
    assert isinstance(agent, COMBO)
    batch = rows()
    noise = noise_of(agent)
    with torch.no_grad():
        loss, metrics = agent.critic_loss(batch, noise)
        states, following = batch["observations"], batch["next_observations"]
        action, _ = agent.actor.draw(following, noise["next_action"])
        value = agent.target_critic(torch.cat([following, action], -1)).min(0).values
        target = batch["rewards"] + 0.99 * (1 - batch["terminations"]) * value  # no entropy
        data = agent.critic(batch["observation_actions"])
        wanted = float((data - target).square().mean(1).sum())
        first = 10 if pushed_on == "imagined" else 0
        gap = []
        for critic in range(2):
            pushed = []
            for row in range(first, 20):
                terms = []
                for draw in range(3):
                    part = slice(2 * draw, 2 * draw + 2)
                    uniform = 2 * noise["uniform_action"][row, part] - 1
                    own, own_density = agent.actor.draw(states[row : row + 1], noise["policy_action"][row, part][None])
                    later, later_density = agent.actor.draw(
                        following[row : row + 1], noise["next_policy_action"][row, part][None]
                    )
                    for chosen, density in (
                        (uniform[None], -2 * math.log(2)), (own, float(own_density)), (later, float(later_density))
                    ):  # fmt: skip
                        q = agent.critic(torch.cat([states[row : row + 1], chosen], -1))[critic]
                        terms.append((float(q) - density) / 0.7)
                pushed.append(0.7 * float(torch.tensor(terms, dtype=torch.float64).logsumexp(0)))
            gap.append(sum(pushed) / len(pushed) - float(data[critic, :10].mean()))
    assert metrics["cql_gap"].tolist() == pytest.approx(gap, rel=1e-9)
    assert float(loss) == pytest.approx(wanted + 1.3 * sum(gap), rel=1e-9)


def test_morel_ends_rollouts_at_the_worst_where_members_disagree_more_than_on_the_data() -> None:
    agent = agent_of(MOReL)
    assert isinstance(agent, MOReL)
    batch = rows()
    means = agent.model.predict_elites(batch["observations"], batch["actions"]).mean[..., :2].detach()
    apart = torch.stack([(means[i] - means[j]).norm(dim=-1) for i in range(3) for j in range(i)]).amax(0).detach()
    changed, _ = agent.measure(batch, {})
    assert float(changed["threshold"].detach()) == pytest.approx(float(apart.max()) / 3)
    agent.threshold.copy_(apart.median())
    outcome = Outcome(batch["next_observations"], batch["rewards"], batch["rewards"] * 0, batch["rewards"] > 9)
    found = agent.judge(batch["observations"], batch["actions"], outcome)
    beyond = apart > apart.median()
    assert torch.equal(found.ended, beyond)
    assert found.rewards[beyond].tolist() == [0.0] * int(beyond.sum())  # the plane's rewards are all above 0
    assert torch.equal(found.rewards[~beyond], batch["rewards"][~beyond])
    own = agent_of(MOReL, halt_reward=-7.0)
    own.threshold.fill_(-1.0)
    assert set(own.judge(batch["observations"], batch["actions"], outcome).rewards.tolist()) == {-7.0}  # type: ignore[operator]


@pytest.mark.parametrize(("reward", "halt"), [(1.0, 0.0), (-1.0, -100.0)])
def test_a_halt_of_morel_is_never_better_than_to_go_on(reward: float, halt: float) -> None:
    """Of data of one reward: a value of 100 where the task pays 1 for every step would be the best there is."""
    data = dataclasses.replace(plane_data(120), rewards=np.full(120, reward, np.float32))
    agent = MOReL(data, **SMALL).fresh(3)
    agent.prepare(data)
    agent.threshold.fill_(-1.0)
    batch = {name: value.float() for name, value in rows().items()}
    outcome = Outcome(batch["next_observations"], batch["rewards"], batch["rewards"] * 0, batch["rewards"] > 9)
    found = agent.judge(batch["observations"], batch["actions"], outcome).rewards
    assert found.tolist() == pytest.approx([halt] * 20)


def test_rambos_adversary_is_that_of_a_second_implementation() -> None:
    agent = agent_of(RAMBO, adversary_weight=0.6)
    assert isinstance(agent, RAMBO)
    batch = rows(16)
    model = {name: rows(16, 9)[name].unsqueeze(1).expand(-1, 4, *rows(16, 9)[name].shape[1:]) for name in rows()}
    source = torch.Generator().manual_seed(1)
    noise = {
        "adversary": torch.randn(32, 7, generator=source, dtype=torch.float64),
        "adversary_member": torch.rand(32, 1, generator=source, dtype=torch.float64),
    }
    loss, metrics = agent.adversary_loss({"model": model, MAIN: batch}, noise)
    with torch.no_grad():
        fitted = agent.model.loss(model)[0]
        better, likelihoods = [], []
        for row in range(16):
            state = batch["observations"][row : row + 1]
            action = agent.actor.act(state, noise["adversary"][row : row + 1, :2])
            member = agent.model.elites[int(3 * noise["adversary_member"][row, 0])]
            one = agent.model.predict(state, action, member.view(1))
            drawn = one.mean + one.std * noise["adversary"][row, 4:]
            there, reward = state + drawn[:, :2], float(drawn[0, 2])
            value = agent.target_critic(
                torch.cat([there, agent.actor.act(there, noise["adversary"][row : row + 1, 2:4])], -1)
            )
            expected = agent.target_critic(torch.cat([state, action], -1))
            better.append(reward + 0.99 * float(value.min()) - float(expected.min()))
            densities = []
            for elite in agent.model.elites:
                each = agent.model.predict(state, action, elite.view(1))
                normal = torch.distributions.Normal(each.mean, each.std)
                densities.append(float(normal.log_prob(drawn).sum().exp()))
            likelihoods.append(math.log(sum(densities) / 3))
        advantage = torch.tensor(better, dtype=torch.float64)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        pull = float((torch.tensor(likelihoods, dtype=torch.float64) * advantage).mean())
    assert float(metrics["adversary"]) == pytest.approx(pull, rel=1e-8)
    assert float(loss) == pytest.approx(float(fitted) + 0.6 * pull, rel=1e-8)


@pytest.mark.parametrize("kind", [ImaginedSAC, MOPO, MOBILE, COMBO, MOReL, RAMBO])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(kind: type[ImaginedSAC]) -> None:
    whole = trained(kind, 17)
    before, after = trained(kind, 9), trained(kind, 0)
    after.restore([{name: value.clone() for name, value in before.state(0).items()}], 9)
    after.run(8)
    expected = whole.state(0)
    assert all(torch.equal(value, expected[name]) for name, value in after.state(0).items())


@pytest.mark.parametrize("kind", [ImaginedSAC, MOPO, MOBILE, COMBO, MOReL, RAMBO])
def test_seeds_stacked_equal_each_alone_in_float64(kind: type[ImaginedSAC]) -> None:
    data, seeds = plane_data(120), [3, 8]
    agents = [kind(data, **SMALL).fresh(seed) for seed in seeds]
    ready = [agent.prepare(data) for agent in agents][-1]
    store = store_from_dataset(ready, agents[0].required_columns, dtype=torch.float64)
    sources = agents[0].sources(Stores(ready, store))
    together = Learner(agents, seeds, sources, batch_size=20, planned_steps=50, dtype=torch.float64)
    together.run(12)
    alone = trained(kind, 12, torch.float64).agents_parameters(0)
    for name, value in together.agents_parameters(0).items():
        torch.testing.assert_close(value, alone[name], rtol=1e-8, atol=1e-10, msg=name)


def test_a_model_that_comes_from_a_run_reads_observations_as_they_are() -> None:
    plain = MOPO(plane_data(50), **SMALL)
    plain.model.fitted.fill_(True)
    plain.model.input_mean.fill_(7.0)
    plain.prepare(plane_data(50))
    assert set(plain.model.input_mean.tolist()) == {7.0}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mopo", {"penalty": -1.0}, ("penalty", "range")),
        ("mopo", {"uncertainty": "none"}, ("uncertainty", "choice")),
        ("mobile", {"samples": 0}, ("samples", "range")),
        ("mobile", {"model_elites": 1}, ("model_elites", "conflict")),
        ("combo", {"real_ratio": 1.0}, ("real_ratio", "range")),
        ("combo", {"pushed_on": "all"}, ("pushed_on", "choice")),
        ("morel", {"threshold_divisor": 0.0}, ("threshold_divisor", "range")),
        ("rambo", {"adversary_every": 0}, ("adversary_every", "range")),
        ("imagined_sac", {"real_ratio": 1.5}, ("real_ratio", "range")),
        ("ravl", {"reward_range": (1.0, 0.0)}, ("reward_range", "conflict")),
        ("mopo", {"reward_range": (1.0,)}, ("reward_range", "length")),
        ("imagined_sac", {"rollout_length": 0}, ("rollout_length", "range")),
        ("imagined_sac", {"alarm_patience": 0}, ("alarm_patience", "range")),
    ],
)
def test_options_out_of_range_are_refused_by_name(
    name: str, options: dict[str, object], message: tuple[str, Code]
) -> None:
    with refused(*message):
        ALGORITHMS[name].configure(**options)
