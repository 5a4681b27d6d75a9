"""DPPO: ratios, discounts and clips of denoising steps, which steps learn, what leaves, and how a run continues."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from flow_problems import SMALL, TwoModes, share_above

from surefoot.core.actors.denoising_chain import DenoisingActor
from surefoot.core.actors.diffusion import Schedule, denoising_loss
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.losses.policy_gradient import stage_weights
from surefoot.core.nn.noise_networks import NoiseNetwork
from surefoot.envs import make_vec
from surefoot.evaluation import evaluate
from surefoot.online import DPPO, spec_of
from surefoot.online.dppo import clip_table, one_of
from surefoot.online.loops.on_policy import OnPolicyLoop

FIVE = Schedule.cosine(5).alphas
TINY = {name: value for name, value in SMALL.items() if name != "velocity_hidden"} | {"noise_hidden": (16, 16)}


def dppo_loop(env: Any = "native/pendulum", seeds: tuple[int, ...] = (0,), **options: Any) -> OnPolicyLoop:
    """A loop of a small agent."""
    chosen = {**TINY, "alphas": FIVE, "trained_steps": 3, **options}
    kernels, planned = chosen.pop("kernels", len(seeds) == 1), chosen.pop("planned", 4096)
    env = make_vec(env, len(seeds) * chosen["num_envs"]) if isinstance(env, str) else env
    made = [DPPO(spec_of(env), **chosen).fresh(seed) for seed in seeds]
    return OnPolicyLoop(made, list(seeds), env, planned_steps=planned, kernels=kernels)


def test_golden_discounts_and_clip_ranges() -> None:
    assert stage_weights(10, 0.99).tolist() == pytest.approx([0.99**k for k in range(9, -1, -1)])
    ranges = clip_table(10, 0.001, 0.01, 3.0)
    assert ranges[0] == pytest.approx(0.001)
    assert ranges[9] == pytest.approx(0.01)
    assert ranges[3] == pytest.approx(0.001 + 0.009 * math.expm1(1) / math.expm1(3))
    assert clip_table(1, 0.001, 0.01, 3.0) == [0.01]  # a single step is the last one; 0 / 0 in the official code


def test_a_step_of_each_chain_is_found_in_a_table() -> None:
    table = torch.arange(24.0).view(3, 4, 2)
    assert one_of(table, torch.tensor([0.0, 3.0, 1.0])).tolist() == [[0, 1], [14, 15], [18, 19]]


@pytest.mark.parametrize("steps", [1, 2, 4, 10])
@pytest.mark.parametrize("options", [{}, {"ratio_normalization": "joint"}], ids=["mean", "joint"])
def test_the_ratio_is_one_before_the_first_update(steps: int, options: dict[str, Any]) -> None:
    made = dppo_loop(alphas=Schedule.cosine(10).alphas, trained_steps=steps, **options)
    block = made.blocks.fill(0)
    made._write(block)
    batch = made.store.gather(torch.arange(16))
    for place in range(steps):
        noise = {"step": torch.full((16, 1), (place + 0.5) / steps)}
        with torch.no_grad():
            _, metrics = made.agent.policy_loss(batch, noise)  # type: ignore[attr-defined]
        assert float(metrics["ratio_max"]) == pytest.approx(1, abs=2e-5)
        assert abs(float(metrics["kl_k1"])) < 1e-6
        assert float(metrics["clip_fraction"]) == 0


def test_the_loss_of_a_step_is_ppo_s_with_its_discount_and_clip_against_a_second_implementation() -> None:
    made = dppo_loop(denoising_discount=0.5, first_clip=0.02, clip=0.1)
    agent: Any = made.agent
    block = made.blocks.fill(0)
    made._write(block)
    batch = dict(made.store.gather(torch.arange(16)))
    batch["advantages"] = torch.randn(16)
    with torch.no_grad():
        agent.actor.network.mlp.biases[-1].add_(0.05)
        place = torch.arange(16) % 3
        found, _ = agent.policy_loss(batch, {"step": (place[:, None] + 0.5) / 3})
        expected = torch.zeros(16)
        standard = (batch["advantages"] - batch["advantages"].mean()) / batch["advantages"].std()
        for row in range(16):
            k, chain = int(place[row]), batch["kept/chain"][row : row + 1]
            mean, log_std = agent.actor.transition(batch["observations"][row : row + 1], chain[:, k], k)
            density = torch.distributions.Normal(mean, log_std.exp().expand(mean.shape)).log_prob(chain[:, k + 1])
            ratio = torch.exp(density.mean() - batch["behaviour_log_prob"][row, k])
            advantage = 0.5 ** (2 - k) * standard[row]
            clip = 0.02 + 0.08 * math.expm1(1.5 * k) / math.expm1(3)
            expected[row] = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip))
    assert float(found) == pytest.approx(float(expected.mean()), rel=1e-3, abs=1e-6)


def test_the_regulariser_is_minus_the_log_density_of_steps_that_the_clone_takes() -> None:
    """Against torch's normal distributions; and alone, with advantages of 0, it brings the policy back to the clone."""
    made = dppo_loop(clone_coefficient=0.5)
    agent: Any = made.agent
    made._write(made.blocks.fill(0))
    batch = dict(made.store.gather(torch.arange(16)))
    batch["advantages"] = torch.zeros(16)
    noise = {"step": torch.full((16, 1), 0.5), "clone": torch.randn(16, agent.actor.held_dim)}
    with torch.no_grad():
        agent.actor.network.mlp.biases[-1].add_(0.3)
        found, metrics = agent.policy_loss(batch, noise)
        _, kept = agent.reference.sample(batch["observations"], noise["clone"])
        terms = []
        for k in range(3):
            mean, log_std = agent.actor.transition(batch["observations"], kept["chain"][:, k], k)
            density = torch.distributions.Normal(mean, log_std.exp().expand(mean.shape))
            terms.append(density.log_prob(kept["chain"][:, k + 1]).mean(-1))
        expected = torch.stack(terms).mean()
    assert float(metrics["clone_log_prob"].mean()) == pytest.approx(float(expected), rel=1e-4)
    assert float(found) == pytest.approx(-0.5 * float(expected), rel=1e-4)
    away = [float(expected)]
    optimizer = torch.optim.Adam(agent.actor.network.requires_grad_(True).parameters(), 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        loss, metrics = agent.policy_loss(batch, noise)
        loss.backward()
        optimizer.step()
        away.append(float(metrics["clone_log_prob"].detach().mean()))
    assert away[-1] > away[0] + 0.1
    assert all(p.grad is None for p in agent.reference.parameters())


def test_only_the_last_steps_learn_and_the_clone_takes_the_others() -> None:
    made = dppo_loop(learning_rate=1e-2)
    actor: Any = made.agent.actor
    frozen = {name: value.clone() for name, value in actor.frozen.state_dict().items()}
    live = {name: value.clone() for name, value in actor.network.state_dict().items()}
    made.run(192)
    assert all(torch.equal(value, frozen[name]) for name, value in actor.frozen.state_dict().items())
    assert any(not torch.equal(value, live[name]) for name, value in actor.network.state_dict().items())
    block = made.blocks.fill(9)
    assert block["kept/chain"].shape[3:] == (4, 3)  # three steps that learn: four places


@pytest.mark.parametrize("options", [{}, {"implicit": 3, "clone_coefficient": 0.1}], ids=["ddpm", "ddim"])
def test_stacked_seeds_are_single_seeds(options: dict[str, Any]) -> None:
    both = dppo_loop(seeds=(3, 5), learning_rate=1e-3, **options)
    both.run(192)
    for position, seed in enumerate((3, 5)):
        alone = dppo_loop(seeds=(seed,), kernels=False, learning_rate=1e-3, **options)
        alone.run(192)
        mine, theirs = both.learner.agents_parameters(position), alone.learner.agents_parameters(0)
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=2e-3, atol=5e-5)


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    whole = dppo_loop("native/cartpole-balance", critic_warmup=1)
    whole.run(200)
    state, step = {name: value.clone() for name, value in whole.state(0).items()}, whole.step
    whole.run(200)
    other = dppo_loop("native/cartpole-balance", critic_warmup=1)
    assert other.restore([state], step) is None
    other.run(200)
    for name, value in whole.state(0).items():
        assert torch.equal(value, other.state(0)[name]), name


def test_the_policy_that_leaves_plays_chunks_of_the_diffusion() -> None:
    policy = dppo_loop().agent.policy()
    assert isinstance(policy.actor, ChunkActor)
    assert isinstance(policy.actor.inner, DenoisingActor)
    assert evaluate([policy], "native/pendulum", 2, seed=0)[0].lengths.tolist() == [200, 200]


def clone_two_modes(network: NoiseNetwork, schedule: Schedule, steps: int = 1500) -> dict[str, torch.Tensor]:
    """Weights that denoise actions of deviation .05 around .5 and -.5."""
    import copy

    torch.manual_seed(0)
    own = copy.deepcopy(network).requires_grad_(True)
    optimizer = torch.optim.Adam(own.parameters(), 2e-3)
    for _ in range(steps):
        sign = 2.0 * (torch.rand(256, 1) < 0.5).float() - 1
        noise, step = torch.randn(256, 1), schedule.step_of(torch.rand(256))
        noisy = schedule.noisy(0.5 * sign + 0.05 * torch.randn(256, 1), noise, step)
        optimizer.zero_grad()
        denoising_loss(own(noisy, torch.zeros(256, 1), step), noise).backward()
        optimizer.step()
    return own.state_dict()


def test_a_clone_of_two_modes_moves_to_the_better() -> None:
    made = dppo_loop(TwoModes(64), num_envs=64, horizon=8, epochs=8, minibatches=4, chunk=1, trained_steps=5,
                     noise_hidden=(64, 64), normalize_rewards=False, normalize_observations=False, clip=0.1,
                     first_clip=0.1, learning_rate=1e-3, value_learning_rate=1e-2, planned=30_000)  # fmt: skip
    actor: Any = made.agent.actor
    actor.network.load_state_dict(clone_two_modes(actor.network, actor.schedule))
    better, worse = share_above(made.agent.policy())
    assert min(better, worse) > 0.2, (better, worse)
    made.run(30_000)
    better, worse = share_above(made.agent.policy())
    assert better > 0.8, (better, worse)
