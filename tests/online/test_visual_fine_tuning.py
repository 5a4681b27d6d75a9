"""Fine-tuning clones that see: encoder and network come along, a block's view is drawn once, frozen features stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Array, Spec
from surefoot.core.engine.agent import Agent
from surefoot.core.nn.encoders import Encoder
from surefoot.envs.acting import spec_of
from surefoot.envs.pixels import PixelVectorEnv
from surefoot.offline.diffusion_bc import DiffusionBC
from surefoot.offline.flow_bc import FlowBC
from surefoot.online.base.pretrained import take_encoder
from surefoot.online.dppo import DPPO
from surefoot.online.dsrl import DSRL
from surefoot.online.fpo import FPO
from surefoot.online.loops.loop import make_loop
from surefoot.online.ppo import PPO
from surefoot.online.reinflow import ReinFlow
from surefoot.online.rlcm import RLCM

CLONE: dict[str, Any] = {"encoder": "small", "encoder_features": 6, "hidden": (8,), "chunk": 2}
BLOCK: dict[str, Any] = {"horizon": 4, "num_envs": 2, "minibatches": 1, "epochs": 1}
FLOWS = [ReinFlow, RLCM, FPO]


def environment(rows: int = 2) -> PixelVectorEnv:
    return PixelVectorEnv("native/pendulum", rows, velocities=True, frames=1)


def started(kind: type[Agent], clone: Agent, **options: Any) -> Agent:
    """An agent that starts from a clone, as a run with init= does."""
    settled = kind.inherit_options({**vars(kind.Config()), **options}, clone)
    agent = kind(clone.environment_spec, **{**options, **settled}).fresh(0)
    assert agent.load_from(clone) is not None
    assert take_encoder(agent, clone) == ["encoder"]
    return agent


def clone_of(kind: type[Agent], **options: Any) -> Agent:
    steps = {"flow_steps": 2} if kind is FlowBC else {"diffusion_steps": 4, "sampler_steps": 2}
    return kind(spec_of(environment()), **{**CLONE, **steps, **options}).fresh(3)


def trained(agent: Agent, steps: int, **options: Any) -> Any:
    loop = make_loop([agent], [0], environment(), planned_steps=100, batch_size=8, **options)
    loop.run(steps)
    return loop


@pytest.mark.parametrize("kind", [*FLOWS, DPPO], ids=lambda kind: kind.name)
@pytest.mark.parametrize("trains", [True, False])
def test_a_clone_that_sees_is_fine_tuned_and_its_encoder_moves_only_if_asked(kind: type[Agent], trains: bool) -> None:
    clone = clone_of(DiffusionBC if kind is DPPO else FlowBC)
    agent = started(kind, clone, encoder_trains=trains, **BLOCK)
    assert clone.acting_encoder is not None
    before = {name: value.clone() for name, value in clone.acting_encoder.state_dict().items()}
    loop = trained(agent, 3 * 16)
    after = {n: v for n, v in loop.learner.agents_parameters(0).items() if n.startswith("encoder.")}
    moved = any(not torch.equal(value, before[name.removeprefix("encoder.")]) for name, value in after.items())
    assert moved is trains
    assert ("observations" in loop.store.keys) is not trains
    policy = loop.learner.extract(0).policy()
    assert policy.encoder is not None


@pytest.mark.parametrize("kind", [ReinFlow, DPPO, PPO], ids=lambda kind: kind.name)
def test_a_blocks_view_is_drawn_once_so_that_the_first_ratio_is_one(kind: type[Agent]) -> None:
    options: dict[str, Any] = {**BLOCK, "shift": 4, "crop": 0.9, "encoder_trains": True, "learning_rate": 0.01}
    options["target_kl"] = None
    if kind is PPO:
        agent: Agent = PPO(spec_of(environment()), encoder="small", encoder_features=6, hidden=(8,), **options).fresh(0)
    else:
        agent = started(kind, clone_of(DiffusionBC if kind is DPPO else FlowBC, crop=0.9), **options)
    loop = make_loop([agent], [0], environment(), planned_steps=100, batch_size=8)
    block = loop.blocks.fill(0)
    seen = block["observations"].clone()
    block |= loop._noise() | ({"moving": torch.ones_like(block["rewards"])} if agent.warm_up_blocks else {})  # type: ignore[attr-defined]
    block |= {"progress": torch.zeros_like(block["rewards"])} if agent.anneals else {}  # type: ignore[attr-defined]
    block |= loop._view(block)
    assert not torch.allclose(block["observations"], seen)
    loop._write(block)
    loop.minibatches.begin(0, 0)
    loop.learner.run(1)
    assert float(loop.learner.metric("kl_k3")) == pytest.approx(0, abs=1e-8)
    loop.minibatches.begin(loop.learner.step, 1)
    loop.learner.run(1)
    assert float(loop.learner.metric("kl_k3")) > 1e-7


def test_dsrl_chooses_noise_by_the_clones_features_and_leaves_them() -> None:
    clone = clone_of(FlowBC)
    agent = started(DSRL, clone, num_envs=2, initial_steps=4, updates_per_step=1.0, hidden=(8,))
    assert clone.acting_encoder is not None
    before = {name: value.clone() for name, value in clone.acting_encoder.state_dict().items()}
    loop = trained(agent, 12)
    after = loop.learner.agents_parameters(0)
    assert all(torch.equal(after[f"encoder.{name}"], value) for name, value in before.items())
    assert torch.equal(after["base.network.mlp.weights.0"], clone.average_velocity.state_dict()["mlp.weights.0"])
    with pytest.raises(ConfigError, match=r"dsrl.encoder_trains is True, must be false"):
        DSRL(clone.environment_spec, encoder_trains=True)


def test_fine_tuned_policies_begin_as_the_clone() -> None:
    clone = clone_of(FlowBC)
    with torch.no_grad():
        for value in clone.average_encoder.parameters():
            value.add_(0.01)
    agent = started(ReinFlow, clone, **BLOCK)
    spec = clone.environment_spec.observations
    given = {
        key: torch.randint(0, 256, (3, *array.shape), dtype=torch.uint8) if array.image else torch.randn(3, 1)
        for key, array in spec.items()
    }
    policies = [one.policy() for one in (clone, agent)]
    noise = torch.randn(3, policies[0].noise_dim)
    found = [policy(given, noise) for policy in policies]
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("kind", [FlowBC, DiffusionBC], ids=lambda kind: kind.name)
def test_a_decision_encodes_its_pictures_once_however_many_steps_it_takes(
    kind: type[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    whole = Encoder.forward

    def counting(self: Encoder, observations: Any) -> Any:
        calls.append(1)
        return whole(self, observations)

    monkeypatch.setattr(Encoder, "forward", counting)
    policy = clone_of(kind, **({"flow_steps": 4} if kind is FlowBC else {"sampler_steps": 4})).policy()
    given = {
        key: torch.zeros(1, *array.shape, dtype=torch.uint8 if array.image else torch.float32)
        for key, array in policy.arrays.items()
    }
    action = policy(given, torch.zeros(1, policy.noise_dim))
    assert len(calls) == 1
    head: Any = policy.actor
    again = head.plan(policy.read(given), torch.zeros(1, policy.noise_dim))[:, 0]
    torch.testing.assert_close(action, again * 1.0 if float(policy.action_high[0]) == 1 else action)


def test_a_clone_with_a_history_or_another_encoder_is_refused() -> None:
    for kind, clone in ((ReinFlow, clone_of(FlowBC, history=2)), (DPPO, clone_of(DiffusionBC, history=2))):
        with pytest.raises(ConfigError, match=r"_bc was trained with history=2: clone with algo.history=1"):
            kind.inherit_options(vars(kind.Config()), clone)
    clone = clone_of(FlowBC)
    agent = ReinFlow(clone.environment_spec, **{**CLONE, "encoder_features": 7, "flow_steps": 2})
    with pytest.raises(ConfigError, match=r"leave algo.encoder and its options out"):
        take_encoder(agent, clone)


def test_options_of_the_encoder_follow_the_clone_unless_they_are_given() -> None:
    spec = Spec({"image": Array((64, 64, 3), "uint8")}, 1, (-1.0,), (1.0,))
    clone = FlowBC(spec, encoder="d4pg", crop=0.9, pixels="half", **{k: v for k, v in CLONE.items() if k != "encoder"})
    found = ReinFlow.inherit_options({}, clone)
    assert (found["encoder"], found["crop"], found["pixels"]) == ("d4pg", 0.9, "half")
    assert "encoder" not in ReinFlow.inherit_options({"encoder": "small"}, clone)
