"""SRL: SAC where a sequence has one action, a linear system's gradient by hand, actions before, and its policy."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from online_problems import Counting, Regulator, loop, parameters, spec
from refusals import refused
from torch import Tensor, nn

from surefoot.core.actors.sequence_actor import SequenceActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.export import export
from surefoot.core.policy.policy import Policy
from surefoot.data.collect import TransitionBuffer
from surefoot.envs.native import NativeVectorEnv
from surefoot.evaluation.frequency import deciding_every
from surefoot.online import SAC, SRL
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.loops.replay import ReplayWithPrevious

PROBLEM = Spec(observations=3, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
SMALL: dict[str, Any] = {"width": 8, "model_hidden": (6,), "initial_steps": 20}


def batch_of(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    batch = {"observations": normal(rows, 3), "actions": normal(rows, 2).tanh(), "next_observations": normal(rows, 3),
             "rewards": normal(rows), "terminations": torch.tensor([0.0, 1.0] * (rows // 2), dtype=torch.float64),
             "previous_actions": normal(rows, 2).tanh()}  # fmt: skip
    return batch | {"observation_actions": torch.cat([batch["observations"], batch["actions"]], -1)}


def test_a_sequence_of_one_action_that_reads_none_is_sac() -> None:
    same: dict[str, Any] = {"hidden": (8,), "critic_loss_over": "sum", "temperature": 0.3}
    sac: Any = SAC(PROBLEM, **same).fresh(1).double()
    srl: Any = SRL(PROBLEM, sequence=1, width=8, **same).fresh(2).double()
    with torch.no_grad():
        srl.actor.mlp.weights[0].copy_(sac.actor.mlp.weights[0])
        srl.actor.mlp.biases[0].copy_(sac.actor.mlp.biases[0])
        srl.actor.mlp.weights[1].copy_(torch.eye(8))
        srl.actor.mlp.biases[1].zero_()
        srl.actor.unit.of_observation.weight.zero_()  # what was done is not read
        srl.actor.unit.of_state.bias[8:16] = 1e3  # the gate that keeps the state is open
        for head, weight, bias in zip(
            (srl.actor.mean, srl.actor.log_std),
            sac.actor.mlp.weights[1].view(2, 2, 8),
            sac.actor.mlp.biases[1].view(2, 2),
            strict=True,
        ):
            head.weight.copy_(weight)
            head.bias.copy_(bias)
    for name in ("critic", "target_critic", "temperature"):
        getattr(srl, name).load_state_dict(getattr(sac, name).state_dict())
    generator = torch.Generator().manual_seed(0)
    batch = batch_of(6, generator)
    draws = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    for loss, noise in (("critic_loss", "next_action"), ("actor_loss", "action"), ("temperature_loss", "action")):
        mine, theirs = (
            getattr(agent, loss)(batch, {name: draws})[0]
            for agent, name in ((srl, {"action": "actions"}.get(noise, noise)), (sac, noise))
        )
        assert float(mine.detach()) == pytest.approx(float(theirs.detach()), abs=1e-12)
        for agent, value in ((srl, mine), (sac, theirs)):
            agent.zero_grad()
            value.backward()
        for part in ("actor", "critic"):
            gradients = [getattr(a, part).mlp.weights[0].grad for a in (srl, sac)]
            if gradients[1] is not None:
                assert torch.allclose(*gradients, atol=1e-12)


class Quadratic(nn.Module):
    """Q(s, a) = -(s + a)^2 of two critics."""

    def forward(self, pairs: Tensor) -> Tensor:
        return -pairs.sum(-1).square().expand(2, *pairs.shape[:-1])


class Adds(nn.Module):
    """s' = s + a."""

    def forward(self, pairs: Tensor) -> Tensor:
        return pairs.sum(-1, keepdim=True)


@pytest.mark.parametrize("through_model", [False, True])
def test_the_gradient_on_a_linear_system_is_that_by_hand(through_model: bool) -> None:
    problem = Spec(observations=1, action_dim=1, action_low=(-1.0,), action_high=(1.0,))
    agent: Any = SRL(problem, sequence=3, width=2, temperature=0.5).fresh(0).double()
    agent.critic, agent.target_model = Quadratic(), Adds()
    for value in agent.actor.parameters():
        nn.init.zeros_(value)
    with torch.no_grad():
        agent.actor.mean.bias.fill_(0.4)  # each action is tanh(0.4), whatever was before
        agent.actor.log_std.bias.fill_(-1.0)
    s = torch.tensor([[0.3], [-0.2]], dtype=torch.float64)
    batch = {"observations": s, "previous_actions": torch.zeros_like(s)}
    loss, _ = agent.actor_loss(batch, {"actions": torch.zeros(2, 3, dtype=torch.float64)})
    loss.backward()
    a, found = np.tanh(0.4), []
    for start in (0.3, -0.2):
        total = 0.0
        for p in range(3):
            reached = start + (p + 1) * a  # s_p + a_p
            slope = (p + 1) if through_model else 1  # of it with respect to each action, all moved by the bias
            total += 2 * reached * slope * (1 - a * a)
            total += 0.5 * 2 * a  # of -log(1 - a^2) with respect to the mean
        found.append(total)
    assert (float(agent.actor.mean.bias.grad) == pytest.approx(np.mean(found), abs=1e-7)) != through_model
    assert float(agent.actor.log_std.bias.grad) == pytest.approx(-0.5 * 3, abs=1e-7)


def test_a_density_is_that_of_each_action_after_those_before() -> None:
    actor = SequenceActor(3, 2, 4, width=5).double()
    generator = torch.Generator().manual_seed(1)
    s, before = (torch.randn(2, n, generator=generator, dtype=torch.float64) for n in (3, 2))
    noise = torch.randn(2, 4, 2, generator=generator, dtype=torch.float64)
    actions, densities = actor.draw(s, before.tanh(), noise)
    cell = nn.GRUCell(2, 5).double()
    cell.weight_ih, cell.bias_ih = actor.unit.of_observation.weight, actor.unit.of_observation.bias
    cell.weight_hh, cell.bias_hh = actor.unit.of_state.weight, actor.unit.of_state.bias
    first, second = actor.mlp.weights
    state = (s @ first.squeeze().T + actor.mlp.biases[0]).relu() @ second.squeeze().T + actor.mlp.biases[1]
    previous = before.tanh()
    for p in range(4):
        state = cell(previous, state)
        normal = torch.distributions.Normal(actor.mean(state), actor.log_std(state).clamp(-20, 2).exp())
        squashed = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform())
        previous = torch.tanh(normal.mean + normal.stddev * noise[:, p])
        assert torch.allclose(actions[:, p], previous)
        assert torch.allclose(densities[:, p], squashed.log_prob(previous).sum(-1), atol=1e-6)


def test_it_plays_a_sequence_and_reads_the_action_that_was_carried_out() -> None:
    actor = SequenceActor(3, 2, 3, width=8)
    seen = torch.randn(8, 2, 3)
    memory = actor.begin(2)
    planned = actor.sequence(seen[0], torch.zeros(2, 2))
    for step in range(3):
        actions, memory = actor.step(seen[step], memory)
        assert torch.equal(actions, planned[:, step])
        memory = actor.executed(memory, actions)
    other = torch.full((2, 2), 0.25)  # a filter's
    again, _ = actor.step(seen[3], actor.executed(memory, other))
    assert torch.equal(again, actor.sequence(seen[3], other)[:, 0])
    assert not torch.equal(again, actor.sequence(seen[3], planned[:, 2])[:, 0])
    longer = actor.playing(5)
    assert torch.allclose(longer.sequence(seen[0], torch.zeros(2, 2))[:, :3], planned)
    ended = actor.observe_outcome(memory, torch.zeros(2), torch.zeros(2), torch.tensor([True, False]))
    assert ended["previous"][0].tolist() == [0, 0]
    assert torch.equal(ended["previous"][1], memory["previous"][1])
    with pytest.raises(ConfigError):
        actor.playing(0)


def test_its_policy_is_saved_and_read_and_decides_at_any_frequency(tmp_path: pathlib.Path) -> None:
    policy = Policy(SequenceActor(3, 1, 4, width=8), Normalizer(3), torch.tensor([-2.0]), torch.tensor([2.0]))
    policy.save(tmp_path / "policy")
    again = Policy.load(tmp_path / "policy")
    for one in (again, deciding_every(again, 6)):
        memory, expected = one.begin(2), policy.begin(2)
        assert memory["queue"].shape[1] == (4 if one is again else 6)
        seen = torch.randn(5, 2, 3)
        for step in range(4):
            actions, memory = one.act(seen[step], memory)
            wanted, expected = policy.act(seen[step], expected)
            assert torch.allclose(actions, wanted, atol=1e-6)
    every, memory = deciding_every(again, 1), deciding_every(again, 1).begin(1)
    first, memory = every.act(torch.zeros(1, 3), memory)
    second, _ = every.act(torch.ones(1, 3), memory)
    head: Any = every.actor
    assert torch.allclose(second / 2, head.sequence(torch.ones(1, 3), first / 2)[:, 0], atol=1e-6)


@pytest.mark.slow
def test_an_exported_policy_plays_the_same_actions(tmp_path: pathlib.Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx: pip install 'surefoot[onnx]'")
    policy = Policy(SequenceActor(3, 1, 3, width=8), Normalizer(3), torch.tensor([-2.0]), torch.tensor([2.0]))
    export(policy, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    memory, seen = policy.begin(2), torch.randn(7, 2, 3)
    given = {f"memory.{name}": value.numpy() for name, value in memory.items()}
    for step in range(7):
        actions, memory = policy.act(seen[step], memory)
        over = torch.tensor([step == 4, False])
        memory = policy.observe_outcome(memory, torch.zeros(2), torch.zeros(2), over)
        inputs = {**given, "observations": seen[step].numpy(), "ended": np.array([step == 5, False])}
        found = dict(zip(names, session.run(None, inputs), strict=True))
        given = {name.removesuffix(".next"): value for name, value in found.items() if name.endswith(".next")}
        assert np.allclose(found["actions"], actions.detach().numpy(), atol=1e-6)


def test_rows_know_the_action_before_them_also_where_the_buffer_began_anew() -> None:
    shapes = {"observations": (1,), "actions": (1,), "rewards": (), "terminations": (), "next_observations": (1,)}
    buffer = TransitionBuffer(12, shapes, torch.device("cpu"), 2, {})
    source = ReplayWithPrevious(buffer)
    source.bind([0], 4, torch.device("cpu"))
    zeros = torch.zeros(2)
    for step in range(9):  # of two environments; the first one's episode ends at step 5
        actions = torch.tensor([[step + 1.0], [-step - 1.0]])
        ends = torch.tensor([step == 5, False])
        buffer.add({"observations": actions, "actions": actions, "rewards": zeros, "terminations": ends,
                    "truncations": zeros.bool(), "next_observations": actions})  # fmt: skip
    found = source.gather(torch.arange(12).view(1, 12))
    held = found["actions"][0, :, 0]
    before = found["previous_actions"][0, :, 0]
    assert sorted(held.tolist()) == [*range(-9, -3), *range(4, 10)]
    for action, previous in zip(held.tolist(), before.tolist(), strict=True):
        oldest, first = abs(action) == 4, action == 7
        assert previous == (0 if oldest or first else action - np.sign(action))


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    def fresh() -> OffPolicyLoop:
        env = NativeVectorEnv("native/pendulum", 2, max_episode_steps=37)
        return loop("srl", env, sequence=3, batch_size=8, **SMALL)

    whole = fresh()
    whole.run(62)
    saved = {name: value.clone() for name, value in whole.state(0).items()}
    last = whole.run(30)
    resumed = fresh()
    assert resumed.restore([saved], 62) is None
    np.testing.assert_equal(resumed.run(30), last)
    for name, value in whole.state(0).items():
        assert torch.equal(value, resumed.state(0)[name]), name


def test_stacked_seeds_equal_each_alone() -> None:
    options: dict[str, Any] = {"sequence": 3, "batch_size": 16, **SMALL}
    together = loop("srl", Regulator(4), seeds=(1, 2), **options)
    together.run(30)
    for position, seed in enumerate((1, 2)):
        alone = loop("srl", Regulator(2), seeds=(seed,), **options)
        alone.run(30)
        torch.testing.assert_close(parameters(alone), parameters(together, position), rtol=1e-4, atol=3e-5)


def test_the_model_learns_what_follows_and_its_copy_follows_it() -> None:
    trained = loop("srl", Counting(), sequence=2, batch_size=32, model_learning_rate=3e-2, target_rate=0.1, **SMALL)
    trained.run(200)
    agent: Any = trained.learner.extract(0)
    pairs = torch.tensor([[1.0, 0.3], [3.0, -0.5]])
    for model in (agent.model, agent.target_model):
        assert torch.allclose(model(pairs)[:, 0], torch.tensor([2.0, 4.0]), atol=0.3)


def test_what_it_is_not_for_is_refused() -> None:
    with refused("offline_fraction", "conflict"):
        SRL.configure(offline_fraction=0.5)
    with refused("sequence", "range"):
        SRL.configure(sequence=0)
    assert SRL(spec(Counting()), sequence=4, play=2).actor.length == 2
