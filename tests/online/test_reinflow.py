"""ReinFlow: its ratio, its losses against a second implementation, what it learns, and what leaves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from flow_problems import TwoModes, clone_two_modes, flow_loop, share_above

from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.actors.flow_chains import ReinFlowActor
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.policy_gradient.ratios import limited_log_ratio
from surefoot.core.policy.policy import Policy
from surefoot.evaluation import evaluate
from surefoot.online import ReinFlow

TRANSITIONS: list[dict[str, Any]] = [
    {},
    {"ratio_normalization": "joint"},
    {"transition": "flow_sde", "flow_steps": 2},
    {"transition": "consistency"},
]


@pytest.mark.parametrize("options", TRANSITIONS, ids=["mean", "joint", "sde", "consistency"])
@pytest.mark.parametrize("steps", [1, 2, 4, 10])
def test_the_ratio_is_one_before_the_first_update(options: dict[str, Any], steps: int) -> None:
    if options.get("transition") == "flow_sde":
        steps = max(2, steps)
    made = flow_loop("reinflow", flow_steps=steps, **{name: v for name, v in options.items() if name != "flow_steps"})
    block = made.blocks.fill(0)
    block |= {name: torch.ones_like(block["rewards"]) for name in ("progress", "moving")}
    made._write(block)
    batch = made.store.gather(torch.arange(16))  # other rows at once than when the columns were made
    with torch.no_grad():
        _, metrics = made.agent.policy_loss(batch, {})  # type: ignore[attr-defined]
    joint = options.get("ratio_normalization") == "joint"  # then of all numbers of a chain, in float32
    assert float(metrics["ratio_max"]) == pytest.approx(1, abs=1e-4 if joint else 1e-6)
    assert abs(float(metrics["kl_k1"])) < (1e-6 * made.agent.numbers if joint else 1e-6)  # type: ignore[attr-defined]
    assert float(metrics["clip_fraction"]) == 0


def test_one_step_of_a_constant_velocity_is_ppo_with_a_diagonal_gaussian() -> None:
    made = flow_loop("reinflow", flow_steps=1, noise="const", noise_low=0.3, noise_high=0.3, chunk=2, clip=0.2,
                     ratio_normalization="joint", entropy_coefficient=0.1, critic_warmup=0)  # fmt: skip
    agent: Any = made.agent.double()
    with torch.no_grad():
        for weight in agent.actor.network.mlp.weights:
            weight.zero_()
    velocity = agent.actor.network.mlp.biases[-1]
    generator = torch.Generator().manual_seed(0)
    start, draw = (0.5 * torch.randn(32, 2, dtype=torch.float64, generator=generator) for _ in range(2))
    advantages = torch.randn(32, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        velocity.copy_(torch.tensor([0.2, -0.1]))
        old = (start + velocity.flatten()).clamp(-1, 1)
        place = (old + 0.3 * draw).clamp(-1, 1)
    batch = {"observations": torch.zeros(32, 3, dtype=torch.float64), "actions": place,
             "kept/chain": torch.stack([start, place], 1), "advantages": advantages}  # fmt: skip
    batch["behaviour_log_prob"] = agent.evaluate(batch).log_density.detach() / agent.numbers
    with torch.no_grad():
        velocity.add_(torch.tensor([0.05, 0.15]))
    velocity.requires_grad_(True)
    loss, _ = agent.policy_loss(batch, {})
    (gradient,) = torch.autograd.grad(loss, velocity)

    moved = velocity.detach().clone().requires_grad_(True)  # an independent PPO of N(clip(x0 + v), .3)
    mean = (start + moved.flatten()).clamp(-1, 1)
    ratio = torch.exp((((place - old) / 0.3).square() - ((place - mean) / 0.3).square()).sum(-1) / 2)
    standard = (advantages - advantages.mean()) / advantages.std()
    surrogate = torch.maximum(-standard * ratio, -standard * ratio.clamp(0.8, 1.2)).mean()
    entropy = (
        2 * 0.5 * math.log(2 * math.pi * math.e) + 2 * (math.log(0.3) + 0.5 * math.log(2 * math.pi * math.e))
    ) / 4
    expected = surrogate - 0.1 * entropy
    (wanted,) = torch.autograd.grad(expected, moved)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-9)
    torch.testing.assert_close(gradient, wanted, rtol=1e-7, atol=1e-10)


def test_log_densities_that_are_cut_have_no_gradient_and_are_counted() -> None:
    log_prob = torch.tensor([0.5, 1.2, -3.0], requires_grad=True)
    logs, cut = limited_log_ratio(log_prob, torch.tensor([0.4, 1.3, 0.2]), 1.0)
    logs.sum().backward()
    assert logs.tolist() == pytest.approx([0.1, 0.0, -1.2])
    assert cut.tolist() == [0, 1, 1]
    assert log_prob.grad.tolist() == [1, 0, 0]  # type: ignore[union-attr]
    assert limited_log_ratio(log_prob, torch.zeros(3), None)[0].tolist() == pytest.approx([0.5, 1.2, -3.0])
    made = flow_loop("reinflow", noise="const", noise_low=0.02, noise_high=0.02, log_prob_limit=1.0, critic_warmup=0)
    before = {name: value.clone() for name, value in made.learner.agents_parameters(0).items()}
    found = made.run(96)
    assert found["cut"] == [1.0]  # deviations of .02 have log-densities above 1: the official setting learns nothing
    after = made.learner.agents_parameters(0)
    moved = [float((after[n] - v).abs().max()) for n, v in before.items() if n.startswith("actor.network")]
    assert max(moved) == 0


def test_in_warm_up_blocks_only_the_critic_moves_and_then_adam_begins() -> None:
    made = flow_loop("reinflow", critic_warmup=2)
    before = {name: value.clone() for name, value in made.learner.agents_parameters(0).items()}
    made.run(2 * 96)
    now = made.learner.agents_parameters(0)
    assert all(torch.equal(now[name], value) for name, value in before.items() if name.startswith("actor."))
    assert any(not torch.equal(now[name], value) for name, value in before.items() if name.startswith("value."))
    state = made.state(0)
    assert [float(v) for n, v in state.items() if n.startswith("adam/policy_loss") and n.endswith("count")] == [0]
    assert made.step == 192
    made.run(96)
    now = made.learner.agents_parameters(0)
    assert any(not torch.equal(now[name], value) for name, value in before.items() if name.startswith("actor."))


def test_noise_shrinks_over_the_run_where_it_is_asked_for() -> None:
    made = flow_loop("reinflow", planned=960, noise="learn_decay", noise_low=0.1, noise_high=0.2)
    found = [made.run(96)["noise_high"][0] for _ in range(10)]
    assert found[:4] == pytest.approx([0.2] * 4)
    assert found[4] > found[6] > found[9] > 0.17
    assert float(made.learner.agents_parameters(0)["actor.ceiling"]) == pytest.approx(found[-1])


@pytest.mark.parametrize("options", [{}, {"transition": "consistency"}, {"clone_coefficient": 0.5}])
def test_stacked_seeds_are_single_seeds(options: dict[str, Any]) -> None:
    both = flow_loop("reinflow", seeds=(3, 5), critic_warmup=1, learning_rate=1e-3, **options)
    both.run(192)
    for position, seed in enumerate((3, 5)):
        alone = flow_loop("reinflow", seeds=(seed,), kernels=False, critic_warmup=1, learning_rate=1e-3, **options)
        alone.run(192)
        mine, theirs = both.learner.agents_parameters(position), alone.learner.agents_parameters(0)
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=2e-3, atol=2e-5)


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    options: dict[str, Any] = {"env": "native/cartpole-balance", "noise": "learn_decay", "critic_warmup": 3}
    whole = flow_loop("reinflow", **options)
    whole.run(200)
    state, step = {name: value.clone() for name, value in whole.state(0).items()}, whole.step
    whole.run(400)
    other = flow_loop("reinflow", **options)
    assert other.restore([state], step) is None
    other.run(400)
    assert other.step == whole.step
    for name, value in whole.state(0).items():
        assert torch.equal(value, other.state(0)[name]), name


def test_the_policy_that_leaves_is_the_flow_without_what_explores(tmp_path: Any) -> None:
    made = flow_loop("reinflow")
    policy = made.agent.policy()
    assert isinstance(policy.actor, ChunkActor)
    assert isinstance(policy.actor.inner, FlowActor)
    assert not [name for name, _ in policy.named_parameters() if "explorer" in name]
    policy.save(tmp_path / "policy.safetensors")
    again = Policy.load(tmp_path / "policy.safetensors")
    observations, noise = torch.randn(5, 3), torch.randn(5, 3)
    torch.testing.assert_close(again.actor.act(observations, noise), policy.actor.act(observations, noise))
    assert evaluate([policy], "native/pendulum", 2, seed=0)[0].lengths.tolist() == [200, 200]


def test_a_run_s_policy_settles_what_the_config_leaves_open_and_its_velocity_is_taken() -> None:
    source = flow_loop("reinflow", chunk=2, flow_steps=5, network="embedded", velocity_hidden=(16, 16, 16)).agent
    settled = ReinFlow.inherit_options(ReinFlow.configure().__dict__, source)
    assert (settled["chunk"], settled["flow_steps"], settled["network"]) == (2, 5, "embedded")
    assert list(settled["velocity_hidden"]) == [16, 16, 16]
    kind: Any = __import__("surefoot.online", fromlist=["FPO"]).FPO
    agent = kind(source.spec, **{**settled, "velocity_hidden": (16, 16, 16), "condition_hidden": ()})
    assert agent.load_from(source) == ["actor"]
    for name, value in agent.actor.network.state_dict().items():
        assert torch.equal(value, source.actor.network.state_dict()[name])
    other = kind(source.spec, **{**settled, "chunk": 3, "velocity_hidden": (16, 16, 16), "condition_hidden": ()})
    with pytest.raises(ConfigError, match=r"fpo\.chunk is 3, and reinflow was trained with 2: leave it out"):
        other.load_from(source)


def test_a_clone_of_two_modes_keeps_both_and_reinflow_moves_to_the_better() -> None:
    made = flow_loop("reinflow", TwoModes(64), num_envs=64, horizon=8, epochs=4, minibatches=4, chunk=1, flow_steps=4,
                     velocity_hidden=(64, 64), normalize_rewards=False, normalize_observations=False, clip=0.02,
                     learning_rate=1e-3, value_learning_rate=1e-2, entropy_coefficient=0.0, planned=30_000)  # fmt: skip
    assert isinstance(made.agent.actor, ReinFlowActor)
    clone_two_modes(made.agent.actor.network)
    better, worse = share_above(made.agent.policy())
    assert 0.35 < better < 0.65
    assert 0.35 < worse < 0.65
    made.run(30_000)
    better, worse = share_above(made.agent.policy())
    assert better > 0.85, (better, worse)


@pytest.mark.parametrize("algorithm", ["reinflow", "rlcm"])
@pytest.mark.parametrize("transition", ["reinflow", "flow_sde", "consistency"])
def test_the_distance_from_the_clone_is_that_of_the_actions_that_leave(algorithm: str, transition: str) -> None:
    agent: Any = flow_loop(algorithm, transition=transition, flow_steps=4, clone_coefficient=0.5).agent
    head, observations = agent.actor, torch.randn(32, agent.spec.observation_dim)
    start = torch.randn(32, head.noise_dim)
    assert agent.updates()[0].noise["start"].width == head.noise_dim
    assert not agent.clone_distance(observations, start).any(), "it begins as the clone"
    before = agent.actor.act(observations, start).detach()
    with torch.no_grad():
        for parameter in head.network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    after = agent.leaving_actor().act(observations, start).detach()
    assert (after - before).abs().max() > 0.01, "nothing has changed, so this compares nothing"
    expected = (after - before).square().mean(-1)
    torch.testing.assert_close(agent.clone_distance(observations, start).detach(), expected, rtol=1e-4, atol=1e-6)


def test_a_run_that_kept_no_clone_is_no_start_for_one_that_stays_near_it() -> None:
    source = flow_loop("reinflow").agent
    near = flow_loop("reinflow", clone_coefficient=0.1).agent
    with pytest.raises(ConfigError, match=r"keeps no clone to stay near: start from the clone's run"):
        near.load_from(source)
    assert near.load_from(near) is None


def test_settings_out_of_range_are_named() -> None:
    wrong: list[dict[str, Any]] = [{"transition": "ddpm"}, {"noise_low": 0.5}, {"clip": 0.0}]
    for options in wrong:
        with pytest.raises(ConfigError, match=rf"reinflow\.{next(iter(options))} is"):
            ReinFlow.configure(**options)
