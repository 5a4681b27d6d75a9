"""DSRL and DSRL-NA: what is stored and played, how decisions and steps are counted, learning, resuming."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from flow_problems import TwoModes, clone_two_modes, flow_loop
from plain_layers import layers
from refusals import refused
from test_off_policy_updates import Numbered, SecondSAC, assert_same, batches, descend
from torch import Tensor, nn

from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.actors.steered import SteeredActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import Stream
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.policy.policy import Policy
from surefoot.envs import make_vec
from surefoot.evaluation import evaluate
from surefoot.online import DSRL, DSRLNA, spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop

SMALL: dict[str, Any] = {"hidden": (8, 6), "velocity_hidden": (16, 16), "chunk": 3, "initial_steps": 8, "flow_steps": 2}

PROBLEM = Spec(3, 2, (-1.0, -1.0), (1.0, 1.0))
ROWS, STEPS = 5, 4


def dsrl_loop(
    env: Any = "native/cartpole-balance", seeds: tuple[int, ...] = (0,), kind: Any = DSRL, **options: Any
) -> OffPolicyLoop:
    """Two environments a seed, two updates a decision."""
    chosen = {**SMALL, "num_envs": 2, "updates_per_step": 2.0, **options}
    kernels, planned = chosen.pop("kernels", len(seeds) == 1), chosen.pop("planned", 3000)
    env = make_vec(env, len(seeds) * chosen["num_envs"]) if isinstance(env, str) else env
    agents = [kind(spec_of(env), **chosen).fresh(seed) for seed in seeds]
    return OffPolicyLoop(agents, seeds, env, planned_steps=planned, batch_size=16, kernels=kernels)


def test_choices_are_stored_and_the_flow_s_chunks_are_played() -> None:
    made = dsrl_loop()
    agent: Any = made.agent
    played: list[torch.Tensor] = []
    act = made.experience.acting.act

    def watched(actions: torch.Tensor) -> Any:
        played.append(actions.clone())
        return act(actions)

    made.experience.acting.act = watched  # type: ignore[method-assign]
    made.run(120)
    buffer = made.experience.buffer
    stored, seen = buffer["actions"][: len(buffer)], buffer["observations"][: len(buffer)]
    assert stored.shape[1] == agent.decision_dim == 3
    with torch.no_grad():
        expected = agent.base.flow(seen, 1.5 * stored)
    torch.testing.assert_close(torch.cat(played), expected, rtol=1e-5, atol=1e-6)
    assert float(stored[:8].abs().max()) <= 1  # at first normal noise, cut at the reach


def test_the_first_choices_are_normal_noise_cut_at_the_reach_and_data_are_refused() -> None:
    agent: Any = dsrl_loop().agent
    uniform = 2 * (torch.arange(100_000) + 0.5) / 100_000 - 1
    drawn = 1.5 * agent.first_actions(uniform)
    normal = torch.distributions.Normal(0.0, 1.0)
    assert float(drawn.max()) == -float(drawn.min()) == 1.5
    assert float((drawn < 0.5).float().mean()) == pytest.approx(float(normal.cdf(torch.tensor(0.5))), abs=1e-4)
    assert DSRL.requires.data == "refused"
    with refused("offline_fraction", "conflict"):
        DSRL.configure(offline_fraction=0.5)
    with refused("reach", "range"):  # its own name, not its ancestor's
        DSRLNA.configure(reach=-1.0)


def test_steps_are_those_of_the_environment_and_updates_follow_decisions() -> None:
    made = dsrl_loop()
    made.run(300)
    assert made.decisions == len(made.experience.buffer)
    assert 300 <= made.step < 300 + 6
    assert made.step < 3 * made.decisions  # poles fell inside chunks
    assert made.learner.step == 2 * (made.decisions - 8)
    lengths = made.experience.episodes._ended[1] + made.experience.episodes._running[1].sum()
    assert float(lengths) == 0 + float(made.experience.episodes._running[1].sum())  # taken by run
    assert int(made.experience.taken) == made.step


@pytest.mark.parametrize(
    ("env_id", "kind"), [("native/cartpole-balance", DSRL), ("native/pendulum", DSRL), ("native/pendulum", DSRLNA)]
)
def test_a_killed_run_goes_on_bit_for_bit(env_id: str, kind: Any) -> None:
    whole = dsrl_loop(env_id, kind=kind)
    whole.run(150)
    state, step = {name: value.clone() for name, value in whole.state(0).items()}, whole.step
    whole.run(150)
    other = dsrl_loop(env_id, kind=kind)
    assert other.restore([state], step) is None
    other.run(150)
    assert (other.step, other.decisions) == (whole.step, whole.decisions)
    for name, value in whole.state(0).items():
        assert torch.equal(value, other.state(0)[name]), name


@pytest.mark.parametrize("kind", [DSRL, DSRLNA])
def test_stacked_seeds_are_single_seeds(kind: Any) -> None:
    both = dsrl_loop("native/pendulum", (3, 5), kind)
    both.run(90)
    for position, seed in enumerate((3, 5)):
        alone = dsrl_loop("native/pendulum", (seed,), kind, kernels=False)
        alone.run(90)
        mine, theirs = both.learner.agents_parameters(position), alone.learner.agents_parameters(0)
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("kind", [DSRL, DSRLNA])
def test_the_policy_that_leaves_steers_the_flow_and_the_flow_has_not_moved(tmp_path: Any, kind: Any) -> None:
    source = flow_loop("reinflow", chunk=3, flow_steps=2).agent
    made = dsrl_loop("native/pendulum", kind=kind)
    agent: Any = made.agent
    assert agent.load_from(source) == ["base"]
    before = {name: value.clone() for name, value in agent.base.state_dict().items()}
    made.run(150)
    assert all(torch.equal(value, before[name]) for name, value in agent.base.state_dict().items())
    policy = agent.policy()
    assert isinstance(policy.actor, ChunkActor)
    assert isinstance(policy.actor.inner, SteeredActor)
    policy.save(tmp_path / "policy.safetensors")
    again = Policy.load(tmp_path / "policy.safetensors")
    observations = torch.randn(4, 3)
    torch.testing.assert_close(again.actor.act(observations), policy.actor.act(observations))
    assert evaluate([policy], "native/pendulum", 2, seed=0)[0].lengths.tolist() == [200, 200]


@pytest.mark.parametrize("kind", [DSRL, DSRLNA])
def test_steering_finds_the_better_of_two_cloned_modes(kind: Any) -> None:
    made = dsrl_loop(TwoModes(8), kind=kind, num_envs=8, chunk=1, flow_steps=4, velocity_hidden=(64, 64),
                     hidden=(32, 32), initial_steps=200, updates_per_step=0.5, temperature=0.05,
                     learn_temperature=False, actor_learning_rate=1e-3, critic_learning_rate=1e-3)  # fmt: skip
    agent: Any = made.agent
    clone_two_modes(agent.base.network, 800)
    made.run(2500)
    with torch.no_grad():
        action = float(agent.policy().actor.act(torch.zeros(1, 1)))
        samples = agent.policy().actor.act(torch.zeros(500, 1), torch.randn(500, 1))
    assert action == pytest.approx(0.5, abs=0.2)
    assert float((samples > 0.2).float().mean()) > 0.7


def test_the_chunks_that_were_played_are_stored() -> None:
    made = dsrl_loop(kind=DSRLNA)
    played: list[Tensor] = []
    act = made.experience.acting.act

    def watched(actions: Tensor) -> Any:
        played.append(actions.clone())
        return act(actions)

    made.experience.acting.act = watched  # type: ignore[method-assign]
    made.run(120)
    buffer = made.experience.buffer
    assert torch.equal(torch.cat(played), buffer["actions"][: len(buffer)])
    with pytest.raises(ConfigError, match=r"dsrl_na\.noise_critic_every is 0, must be >= 1"):
        DSRLNA.configure(noise_critic_every=0)


class SecondDSRLNA(SecondSAC):
    """SAC's second implementation, whose next actions go through the flow and whose actor sees critics of noise."""

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.noise_critics: list[nn.Module] = [layers(agent.noise_critic.mlp, i) for i in range(2)]
        self.noise_adam = torch.optim.Adam([p for q in self.noise_critics for p in q.parameters()], lr=3e-4)
        self.velocity = copy.deepcopy(agent.base.network).double()

    def flow(self, observations: Tensor, start: Tensor) -> Tensor:
        x = start
        for k in range(2):
            x = x + 0.5 * self.velocity(observations, x, x.new_full((len(x),), k / 2))
        return x.clamp(-1, 1)

    def step(self, batch: dict[str, Tensor], noise: dict[str, Tensor]) -> None:
        c, seen, following = self.c, batch["observations"], batch["next_observations"]
        with torch.no_grad():
            choice, density = self.draw(following, noise["next_action"])
            q = self.values(self.targets, following, self.flow(following, 1.5 * choice)).min(0).values
            y = batch["rewards"] + c.discount * (1 - batch["terminations"]) * (q - self.alpha() * density)
        errors = [nn.functional.mse_loss(q, y) for q in self.values(self.critics, seen, batch["actions"])]
        descend(self.critic_adam, 0.5 * sum(errors))  # type: ignore[arg-type]
        with torch.no_grad():
            for target, source in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), source.parameters(), strict=True):
                    old.mul_(1 - c.target_rate).add_(c.target_rate * new)
        alpha = self.alpha().detach()
        choice, density = self.draw(seen, noise["action"])
        value = self.values(self.noise_critics, seen, choice).min(0).values
        measured = density.detach().mean()
        descend(self.actor_adam, (alpha * density - value).mean())
        descend(self.rho_adam, -self.rho * (measured + 0.0))
        self.taken += 1
        if self.taken % 2 == 0:
            with torch.no_grad():
                told = self.values(self.critics, seen, self.flow(seen, noise["noise"]))
            found = self.values(self.noise_critics, seen, noise["noise"] / 1.5)
            descend(self.noise_adam, 0.5 * (found - told).square().mean(1).sum())


def test_full_updates_equal_the_second_implementation() -> None:
    agent: Any = DSRLNA(PROBLEM, hidden=(7, 6), velocity_hidden=(6, 5), flow_steps=2).fresh(2)
    agent.batch_size = ROWS
    for name, value in agent.named_parameters():
        if name.startswith("target_critic"):
            value.data.add_(0.1)
    given = batches(STEPS, ROWS)
    learner = Learner([agent], [0], Numbered(given), batch_size=ROWS, dtype=torch.float64)
    second = SecondDSRLNA(agent)
    noises = {name: noise for update in agent.updates() for name, noise in update.noise.items()}
    stream = Stream([0], ROWS, noises, torch.device("cpu"), torch.float64)
    for step in range(STEPS):
        learner.run(1)
        second.step(given[step], {name: value[0] for name, value in stream.at(step).items()})
        assert_same(agent, second)
        for member, other in enumerate(second.noise_critics):
            mlp = agent.noise_critic.mlp
            mine = [p[member] for pair in zip(mlp.weights, mlp.biases, strict=True) for p in pair]
            for value, expected in zip(mine, other.parameters(), strict=True):
                torch.testing.assert_close(value.detach(), expected.detach(), rtol=1e-9, atol=1e-12)
