"""Residual policies: what is added, stored and valued, how it comes into use, what it learns, and how it continues."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from refusals import refused

from surefoot.core.actors.heads import TanhGaussianActor
from surefoot.core.actors.residual_actor import ResidualActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.policy.policy import Policy
from surefoot.envs import make_vec
from surefoot.envs.adapters import adapt
from surefoot.offline import ACT, BC, FlowBC
from surefoot.online import SAC, Residual, ResidualPPO, spec_of
from surefoot.online.base.pretrained import take_encoder
from surefoot.online.loops.off_policy import OffPolicyLoop

PROBLEM = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))
SMALL: dict[str, Any] = {"hidden": (8, 6), "initial_steps": 8, "progress": 0, "updates_per_step": 1.0}


def started(source: Any, spec: Spec, **options: Any) -> Any:
    """A residual of an agent's policy, as `warm_start` makes one."""
    config = {**SMALL, **options}
    agent = Residual(
        spec, **{**config, **Residual.inherit_options({**{"chunk": None, "base": None}, **config}, source)}
    )
    agent.load_from(source)
    take_encoder(agent, source)
    agent.normalizer.load_state_dict(source.normalizer.state_dict())
    return agent


def loop(env_id: str = "native/pendulum", seeds: tuple[int, ...] = (0,), kind: Any = None, **options: Any) -> Any:
    """Two environments a seed, after a flow of chunks of three, or another clone."""
    env = make_vec(env_id, 2 * len(seeds))
    spec = spec_of(env)
    source = (kind or FlowBC)(spec, **({"chunk": 3, "flow_steps": 2, "hidden": (8, 8)} if kind is None else {}))
    agents = []
    for seed in seeds:
        torch.manual_seed(seed)
        agents.append(started(source.fresh(9), spec, num_envs=2, **options))
    return OffPolicyLoop(agents, seeds, env, planned_steps=3000, batch_size=16, kernels=False)


class Says(TanhGaussianActor):
    """A head whose mean action is the same everywhere."""

    def __init__(self, value: float) -> None:
        super().__init__(1, 1, (4,))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            self.mlp.biases[-1].view(-1)[0] = float(np.arctanh(value))


@pytest.mark.parametrize(("base", "change", "expected"), [(0.95, 1.0, 1.0), (0.95, 0.0, 0.95), (-0.5, -1.0, -0.6)])
def test_the_sum_is_clipped(base: float, change: float, expected: float) -> None:
    head = ResidualActor(Says(base), TanhGaussianActor(2, 1, (4,)), 1, 0.1, 1)
    found = head.corrected(head.based(torch.zeros(1, 1), None), torch.tensor([[change]]))
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_what_is_played_is_stored_clipped_and_valued() -> None:
    """With a large scale many sums leave the bounds; the buffer and the environment get the same numbers."""
    made = loop(scale=3.0)
    played: list[torch.Tensor] = []
    act = made.experience.acting.act

    def watched(actions: torch.Tensor) -> Any:
        played.append(actions.clone())
        return act(actions)

    made.experience.acting.act = watched
    made.run(90)
    buffer = made.experience.buffer
    stored = buffer["actions"][: len(buffer)]
    assert torch.equal(torch.cat(played), stored)
    assert float(stored.abs().max()) == 1.0
    agent = made.agent
    batch = {
        "observations": torch.randn(5, 3),
        "actions": stored[:5],
        "observation_actions": torch.cat([torch.randn(5, 3), stored[:5]], -1),
        "next_observations": torch.randn(5, 3),
        "rewards": torch.arange(5.0),
        "terminations": torch.tensor([0.0, 1, 0, 0, 0]),
    }
    noise = {"next_action": torch.randn(5, 3), "base": torch.randn(5, agent.base_noise_dim)}
    following, base = batch["next_observations"], agent.base.act(batch["next_observations"], noise["base"])
    change, log_density = agent.actor.draw(torch.cat([following, base], -1), noise["next_action"])
    total = torch.maximum(torch.minimum(base + 3.0 * change, torch.ones(())), -torch.ones(()))
    value = agent.target_critic(torch.cat([following, total], -1)).amin(0) - agent.temperature() * log_density
    expected = batch["rewards"] + 0.97 * (1 - batch["terminations"]) * value
    torch.testing.assert_close(agent.targets(batch, noise), expected.detach())


def test_a_quarter_of_the_way_a_quarter_of_the_decisions_are_changed_and_at_the_end_all() -> None:
    agent = started(BC(PROBLEM, hidden=(8, 8)).fresh(0), PROBLEM, progress=30_000)
    drawn = torch.special.ndtri((torch.arange(100_000) + 0.5) / 100_000)
    for decisions, share in ((0, 0.0), (7_500, 0.25), (30_000, 1.0), (90_000, 1.0)):
        agent.decisions.fill_(decisions)
        assert float(agent.used(drawn).float().mean()) == pytest.approx(share, abs=1e-4)
    always = started(BC(PROBLEM, hidden=(8, 8)).fresh(0), PROBLEM, progress=0)
    assert bool(always.used(drawn).all())


def test_the_loop_counts_decisions_and_leaves_the_base_alone_at_first() -> None:
    made = loop(progress=1_000_000, scale=1.0)
    agent = made.agent
    seen, noise = made._seen()[0], torch.randn(2, agent.explore_dim)
    expected = agent.base.act(seen, noise[:, : agent.base_noise_dim])
    noise[:, -1] = 0.0  # a draw at one half: far above t / H
    torch.testing.assert_close(agent.explore(seen, noise), expected, rtol=0, atol=0)
    before = {name: value.clone() for name, value in agent.base.state_dict().items()}
    made.run(60)
    assert float(made.learner.buffers["decisions"].flatten()[0]) == made.decisions > 0
    assert all(torch.equal(value, before[name]) for name, value in made.agent.base.state_dict().items())


@pytest.mark.parametrize("kind", [BC, FlowBC])
def test_with_scale_0_it_is_the_base_bit_for_bit(kind: Any) -> None:
    options = {"chunk": 3} if kind is FlowBC else {}
    source = kind(PROBLEM, hidden=(8, 8), **options).fresh(3)
    agent = started(source, PROBLEM, scale=0.0)
    base, mine = source.policy(), agent.policy()
    observations = torch.randn(7, 4, 3)
    memories = base.begin(4, 5), mine.begin(4, 5)
    for seen in observations:
        one, first = base.act(seen, memories[0])
        two, second = mine.act(seen, memories[1])
        assert torch.equal(one, two)
        memories = first, second
    noise = torch.randn(4, agent.explore_dim)
    given = noise[:, : agent.base_noise_dim] if agent.base_noise_dim else None
    head = source.policy().actor
    inner = getattr(head, "inner", head)
    assert torch.equal(agent.explore(seen, noise), inner.act(seen, given))


@pytest.mark.parametrize("kind", [None, BC])
def test_a_killed_run_goes_on_bit_for_bit(kind: Any) -> None:
    whole = loop(kind=kind, progress=50)
    whole.run(120)
    state, step = {name: value.clone() for name, value in whole.state(0).items()}, whole.step
    whole.run(90)
    other = loop(kind=kind, progress=50)
    assert other.restore([state], step) is None
    other.run(90)
    for name, value in whole.state(0).items():
        assert torch.equal(value, other.state(0)[name]), name


def test_stacked_seeds_are_single_seeds() -> None:
    both = loop(seeds=(3, 5))
    both.run(60)
    alone = loop(seeds=(3,))
    alone.run(60)
    mine, theirs = both.learner.agents_parameters(0), alone.learner.agents_parameters(0)
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=2e-3, atol=2e-5)


def test_the_policy_s_file_holds_both_parts(tmp_path: pathlib.Path) -> None:
    source = FlowBC(PROBLEM, hidden=(8, 8), chunk=3).fresh(0)
    agent = started(source, PROBLEM, scale=0.3)
    policy = agent.policy()
    policy.save(tmp_path / "policy.safetensors")
    again = Policy.load(tmp_path / "policy.safetensors")
    observations, noise = torch.randn(4, 3), torch.randn(4, policy.noise_dim)
    assert torch.equal(
        again.act(observations, again.begin(4), noise)[0], policy.act(observations, policy.begin(4), noise)[0]
    )
    described = json.loads((tmp_path / "policy.json").read_text())
    assert described["inner"]["base"]["actor"] == "flow"
    assert described["inner"]["scale"] == 0.3


def test_only_the_actions_that_a_base_plays_of_a_plan_are_changed() -> None:
    source = FlowBC(PROBLEM, hidden=(8, 8), chunk=4).fresh(0)
    agent = started(source, PROBLEM, chunk=2)
    assert (agent.decision_dim, agent.base_dim) == (4, 8)
    noise = torch.randn(5, agent.explore_dim)
    observations = torch.randn(5, 3)
    whole = agent.base.act(observations, noise[:, :8])
    assert torch.equal(agent.head().based(observations, noise[:, :8]), whole[:, :4])
    with pytest.raises(ConfigError, match=r"residual\.chunk is 9, and the base plans 4"):
        started(source, PROBLEM, chunk=9)


def test_what_it_can_t_correct_is_named() -> None:
    with pytest.raises(ConfigError, match="more than the present observation"):
        started(BC(PROBLEM, hidden=(8, 8), history=2).fresh(0), PROBLEM)
    with pytest.raises(ConfigError, match=r"residual\.scale is -1"):
        Residual.configure(scale=-1.0)
    with pytest.raises(ConfigError, match=r"residual\.base is no description"):
        Residual(PROBLEM, base="{}")
    agent = started(SAC(PROBLEM, hidden=(8, 8)).fresh(0), PROBLEM)
    with pytest.raises(ConfigError, match=r"leave algo\.base out"):
        agent.load_from(FlowBC(PROBLEM, hidden=(8, 8)).fresh(0))


def test_a_base_that_sees_keeps_its_encoder_and_nothing_trains_it() -> None:
    env = make_vec("native/pendulum-camera", 2)
    spec = spec_of(env)
    source = BC(spec, hidden=(8, 8), encoder="small", encoder_features=6).fresh(4)
    agent = started(source, spec, num_envs=2, hidden=(8,), image_range=[])  # as a plan of a file has it
    assert agent.config.encoder == "small"
    before = {name: value.clone() for name, value in source.encoder.state_dict().items()}
    made = OffPolicyLoop([agent], [0], env, planned_steps=100, batch_size=8, kernels=False)
    critic = [value.clone() for value in agent.critic.parameters()]
    made.run(30)
    assert all(torch.equal(value, before[name]) for name, value in agent.encoder.state_dict().items())
    assert not all(map(torch.equal, critic, agent.critic.parameters()))


def test_a_residual_sees_as_the_clone_s_average_does() -> None:
    """Its crop, range and shared trunk too; ACT's maps are no features; the encoder is not trained, whoever asks."""
    spec = spec_of(make_vec("native/pendulum-camera", 2))
    source: Any = FlowBC(spec, hidden=(8, 8), encoder="small", encoder_features=6, crop=0.9, pixels="unit").fresh(4)
    with torch.no_grad():
        next(source.average_encoder.parameters()).add_(0.1)
    agent = started(source, spec, num_envs=2, hidden=(8,))
    assert agent.encoder.description() == source.encoder.description()
    theirs = source.average_encoder.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in agent.encoder.state_dict().items())
    sizes = {"width": 8, "heads": 2, "feed_forward": 8, "style_layers": 1, "layers": 1, "chunk": 2}
    with pytest.raises(ConfigError, match="reads their maps: start from a clone by bc"):
        started(ACT(spec, **sizes, encoder="small"), spec)
    with refused("encoder_trains", "conflict"):
        Residual.configure(encoder_trains=True)
    with refused("encoder_trains", "conflict"):
        ResidualPPO.configure(encoder_trains=True)


class Reach(gymnasium.Env[Any, Any]):
    """One step: the reward is -(a - s / 2)^2."""

    observation_space, action_space = Box(-1, 1, (1,), np.float32), Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.seen, -float((action[0] - self.seen[0] / 2) ** 2), True, False, {}


def test_it_learns_what_a_half_good_base_is_off_by() -> None:
    """The base says s/2 + 0.3: its return is -0.09; a change of at most 0.5 brings it near 0."""
    env = adapt(gymnasium.vector.SyncVectorEnv([Reach] * 4, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP))
    spec = spec_of(env)
    source = BC(spec, hidden=(32,)).fresh(0)
    seen = torch.linspace(-1, 1, 64).unsqueeze(1)
    optimizer = torch.optim.Adam(source.actor.parameters(), 1e-2)
    for _ in range(400):
        loss = (source.actor.act(seen) - seen / 2 - 0.3).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    agent = started(
        source, spec, num_envs=4, hidden=(32, 32), scale=0.5, progress=500, initial_steps=200, temperature=0.01,
        updates_per_step=0.5, actor_learning_rate=3e-3, critic_learning_rate=3e-3, learn_temperature=False,
    )  # fmt: skip

    def error(policy: Any) -> float:
        return float((policy.act(seen, policy.begin(len(seen)))[0] - seen / 2).square().mean())

    assert error(source.policy()) == pytest.approx(0.09, rel=0.1)
    OffPolicyLoop([agent], [0], env, planned_steps=2_000, batch_size=64, kernels=False).run(2_000)
    assert error(agent.policy()) < 0.01
