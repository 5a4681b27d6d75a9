"""Recurrent PPO: what its blocks remember, its loss against torch's own cells, and a cue that must be kept in mind."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from on_policy_problems import QUICK, Recall, loop
from online_problems import Constant, Scripted
from refusals import refused
from torch import Tensor

from surefoot.core.base.errors import Code, ConfigError, ExportError
from surefoot.core.policy.policy import Policy
from surefoot.envs import make_vec
from surefoot.envs.adapters import adapt
from surefoot.envs.episodes import run_episodes
from surefoot.online import PPO, RecurrentPPO
from surefoot.online.loops.on_policy import OnPolicyLoop

FORMS: list[dict[str, Any]] = [
    {"memory": "gru"},
    {"memory": "lstm", "critic_memory": "shared"},
    {"memory": "gru", "critic_memory": "none", "sequence": None},
    {"exploration": "state_dependent", "hold_steps": 4},
]


class Wanders(Scripted):
    """Two numbers that wander, three actions, and an end by chance: about every seventh step."""

    observation_dim, action_dim, limit = 2, 3, 9

    def follow(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        states = states + 0.3 * np.stack([source.normal(size=2) for source in self.sources])
        ends = np.array([source.random() < 0.1 for source in self.sources])
        return states, states[:, 0] + actions[:, 0], ends


def block_of(made: OnPolicyLoop) -> dict[str, Tensor]:
    """The second block of a loop, its columns in the store."""
    made.run(64)
    block = made.blocks.fill(1)
    made._write(block)
    return block


# -- blocks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["native/pendulum", "Pendulum-v1"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_ratio_of_a_blocks_first_minibatch_is_one(form: dict[str, Any], env_id: str) -> None:
    made = loop("recurrent_ppo", env_id, kernels=True, **form)
    block_of(made)
    made.minibatches.begin(made.learner.step, 7)
    batch = made.store.gather(made.minibatches.rows(made.learner.step)[0])
    with torch.no_grad():
        _, metrics = made.agent.policy_loss(batch, {})  # type: ignore[attr-defined]
        values = made.agent.evaluate_value(batch)
    assert float(metrics["ratio_max"]) == pytest.approx(1, abs=1e-5)
    assert abs(float(metrics["kl_k1"])) < 1e-5
    torch.testing.assert_close(values, batch["values"], rtol=1e-4, atol=1e-5)


def test_what_is_remembered_goes_on_over_blocks_and_begins_anew_with_an_episode() -> None:
    made = loop("recurrent_ppo", Wanders(4))
    first, second = block_of(made), made.blocks.fill(2)
    agent: Any = made.agent
    begins = torch.cat([first["begins"], second["begins"]], 1)[0]
    assert 2 < float(begins.sum()) < begins.numel() / 2
    ended = (first["terminations"] | first["truncations"])[0]
    assert torch.equal(begins[1:17], ended.float())
    seen = torch.cat([first["observations"], second["observations"]], 1)[0].transpose(0, 1)
    with torch.no_grad():
        states = agent.unit.unrolled(seen, first["memory/actor"][0, 0], begins.T)
    held = torch.cat([first["memory/actor"], second["memory/actor"]], 1)[0, :, :, :6]
    torch.testing.assert_close(held[1:], states.transpose(0, 1)[:-1] * (1 - begins[1:]).unsqueeze(-1))


def test_an_inserted_row_is_followed_by_a_memory_that_begins() -> None:
    import gymnasium

    env = adapt(gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="sync"))
    assert env.inserts_rows
    block = block_of(loop("recurrent_ppo", env, horizon=64, minibatches=4))
    mask, begins = block["mask"][0], block["begins"][0]
    assert bool((mask == 0).any())
    assert bool((begins[1:][mask[:-1] == 0] == 1).all())
    assert not bool(block["memory/actor"][0][begins == 1].any())


def test_a_minibatch_holds_sequences_of_one_environment_in_the_order_of_time() -> None:
    made = loop("recurrent_ppo", Constant(4))
    made.minibatches.begin(0, 0)
    rows = torch.cat([made.minibatches.rows(step)[0] for step in range(2)])
    assert torch.equal(rows.sort().values, torch.arange(64))
    sequences = rows.view(8, 8)
    steps, envs = sequences // 4, sequences % 4
    assert bool((envs == envs[:, :1]).all())
    assert bool((steps.diff(dim=1) == 1).all())
    assert bool((steps[:, 0] % 8 == 0).all())


# -- the loss ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_loss_and_its_gradient_are_those_of_a_loop_over_torchs_cells(kind: str) -> None:
    made = loop("recurrent_ppo", Wanders(4), kernels=False, memory=kind, entropy_coefficient=0.02, minibatches=1)
    block = block_of(made)
    agent: Any = made.agent
    made.minibatches.begin(made.learner.step, 7)
    rows = made.minibatches.rows(made.learner.step)[0]
    batch = {name: value.clone() for name, value in made.store.gather(rows).items()}
    batch["behaviour_log_prob"] += torch.linspace(-0.4, 0.4, len(rows))  # so that some ratios are cut
    cells = [torch.nn.GRUCell(2, 6) if kind == "gru" else torch.nn.LSTMCell(2, 6) for _ in range(2)]
    for cell, own in zip(cells, (agent.actor, agent.value.memory), strict=True):
        cell.load_state_dict({
            "weight_ih": own.of_observation.weight, "bias_ih": own.of_observation.bias,
            "weight_hh": own.of_state.weight, "bias_hh": own.of_state.bias,
        })  # fmt: skip
    ratios, values = torch.zeros(64), torch.zeros(64)
    entropy = torch.zeros(())
    for place, row in enumerate(rows.tolist()):  # each step by itself: from its sequence's first, or its episode's
        time, env = divmod(row, 4)
        start = time // 8 * 8
        read = []
        for cell, name in zip(cells, ("actor", "critic"), strict=True):
            state: Any = block[f"memory/{name}"][0, start, env].unsqueeze(0).chunk(2 if kind == "lstm" else 1, -1)
            for t in range(start, time + 1):
                if bool(block["begins"][0, t, env]):
                    state = tuple(torch.zeros_like(part) for part in state)
                after = cell(block["observations"][0, t, env].unsqueeze(0), state if kind == "lstm" else state[0])
                state = after if kind == "lstm" else (after,)
            read.append(state[0])
        mean, log_std = agent.actor.inner(read[0])
        normal = torch.distributions.Normal(mean[0], log_std.exp())
        log_prob = normal.log_prob(block["actions"][0, time, env]).sum()
        ratios[place] = torch.exp(log_prob - batch["behaviour_log_prob"][place])
        values[place] = agent.value.head(read[1])[0]
        entropy = normal.entropy().sum()
    a = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    policy = torch.max(-a * ratios, -a * ratios.clamp(0.8, 1.2)).mean()
    near = batch["values"] + (values - batch["values"]).clamp(-0.2, 0.2)
    critic = 0.5 * torch.max((values - batch["returns"]) ** 2, (near - batch["returns"]) ** 2).mean()
    expected = policy - 0.02 * entropy + 0.5 * critic
    assert 0.1 < float(((ratios - 1).abs() > 0.2).float().mean()) < 0.9
    for parameter in agent.parameters():
        parameter.requires_grad_(True)
    found, _ = agent.loss(batch, {})
    torch.testing.assert_close(found, expected)
    own = [agent.actor.of_state.weight, agent.value.memory.of_observation.weight]
    ours = torch.autograd.grad(found, own)
    # the independent graph differentiates torch's cells, whose weights are copies
    theirs = torch.autograd.grad(expected, [cells[0].weight_hh, cells[1].weight_ih])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert all(float(one.abs().max()) > 1e-5 for one in ours)


def test_a_shared_memory_is_not_trained_by_the_critic() -> None:
    made = loop("recurrent_ppo", Wanders(4), kernels=False, critic_memory="shared")
    block_of(made)
    agent: Any = made.agent
    for parameter in agent.parameters():
        parameter.requires_grad_(True)
    loss, _ = agent.critic_loss(made.store.gather(torch.arange(8) * 4), {})
    found = torch.autograd.grad(loss, [agent.actor.of_state.weight, *agent.value.parameters()], allow_unused=True)
    assert found[0] is None
    assert float(found[1].abs().max()) > 0


# -- what it can learn -------------------------------------------------------------------------------------


def recalled(algorithm: str, sign: float, monkeypatch: pytest.MonkeyPatch, **options: Any) -> float:
    """Share of the last episodes that took the way that the cue had shown."""
    made = loop(
        algorithm, Recall(32), planned=60_000, num_envs=32, horizon=16, epochs=8, hidden=(16,), learning_rate=3e-3,
        schedule="constant", normalize_observations=False, normalize_rewards=False, **options,
    )  # fmt: skip
    columns = made.agent.columns
    monkeypatch.setattr(
        made.agent, "columns", lambda block: {**(c := columns(block)), "advantages": sign * c["advantages"]}
    )
    made.run(14_000)
    return made.run(4_000)["episode_return"][0]


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_cue_is_kept_in_mind(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"memory": memory, "memory_width": 16, "minibatches": 4, "sequence": 16}
    assert recalled("recurrent_ppo", 1.0, monkeypatch, **options) > 0.9


def test_without_a_memory_half_of_the_ways_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recalled("ppo", 1.0, monkeypatch, minibatches=4) == pytest.approx(0.5, abs=0.1)


def test_a_flipped_sign_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"memory": "gru", "memory_width": 16, "minibatches": 4, "sequence": 16}
    assert recalled("recurrent_ppo", -1.0, monkeypatch, **options) < 0.3


# -- what leaves, and what continues -------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["native/pendulum", "CartPole-v1"])
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_policy_acts_from_its_file_as_it_did_in_training(memory: str, env_id: str, tmp_path: pathlib.Path) -> None:
    made = loop("recurrent_ppo", env_id, memory=memory)
    block = made.blocks.fill(0)
    policy = made.learner.extract(0).policy()
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy.safetensors")
    agent: Any = made.agent
    scale, mean = made.learner.buffers["normalizer.scale"][0], made.learner.buffers["normalizer.mean"][0]
    for row in range(2):
        first = int(block["begins"][0, :, row].nonzero()[0])
        loaded.reset()
        state = torch.zeros(1, agent.unit.state_width)
        for time in range(first, 16):
            if time > first and bool(block["begins"][0, time, row]):
                break
            seen = block["observations"][0, time, row]
            action = loaded.select_action((seen * scale + mean).numpy())
            with torch.no_grad():
                state = agent.unit.cell(seen.unsqueeze(0), state)
                own = agent.distribution.act(agent.unit.output(state))[0]
            if policy.discrete:
                assert int(action) == int(own.argmax())
            else:
                np.testing.assert_allclose(action, (own.clamp(-1, 1) * agent.action_high).numpy(), atol=1e-4)
    assert loaded.has_memory
    found = run_episodes(loaded, env_id, np.arange(3), steps=20)
    again = run_episodes(policy, env_id, np.arange(3), steps=20)
    np.testing.assert_array_equal(found.returns, again.returns)


def test_a_file_for_elsewhere_names_its_memory(tmp_path: pathlib.Path) -> None:
    policy = loop("recurrent_ppo", "native/pendulum").learner.extract(0).policy()
    with pytest.raises(ExportError):
        policy.export(tmp_path / "policy.hpp")
    policy.export(tmp_path / "policy.onnx")
    import onnxruntime

    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    assert {given.name for given in session.get_inputs()} == {"observations", "memory.state", "ended"}
    memory, steps = np.zeros((1, 12), np.float32), np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    policy.reset()
    for time, observation in enumerate(steps):
        given = {"observations": observation[None], "memory.state": memory, "ended": np.array([time == 0])}
        action, memory = session.run(["actions", "memory.state.next"], given)
        np.testing.assert_allclose(action[0], policy.select_action(observation), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("env_id", ["native/pendulum", "CartPole-v1"])
def test_seeds_together_equal_each_alone(env_id: str) -> None:
    together = loop("recurrent_ppo", env_id, (3, 8))
    together.run(128)
    for position, seed in enumerate((3, 8)):
        alone = loop("recurrent_ppo", env_id, (seed,))
        alone.run(128)
        for name, value in alone.learner.agents_parameters(0).items():
            torch.testing.assert_close(
                together.learner.agents_parameters(position)[name], value, rtol=2e-3, atol=2e-5, msg=name
            )


def test_an_adaptive_rate_reads_the_divergence_of_what_was_acted() -> None:
    made = loop("recurrent_ppo", Wanders(4), schedule="adaptive", target_kl=0.01)
    block_of(made)
    made.minibatches.begin(made.learner.step, 9)
    with torch.no_grad():
        batch = made.store.gather(made.minibatches.rows(made.learner.step)[0])
        _, metrics = made.agent.policy_loss(batch, {})  # type: ignore[attr-defined]
    assert abs(float(metrics["kl"])) < 1e-5


def test_where_the_environment_has_no_state_the_memory_begins_anew_with_its_episodes() -> None:
    made = loop("recurrent_ppo", Wanders(4))
    made.run(64)
    again = loop("recurrent_ppo", Wanders(4))
    lost = again.restore([made.state(0)], 64)
    assert lost is not None
    assert "new episode" in lost
    assert not bool(again.blocks.memory["actor"].any())
    assert bool((again.blocks.begins == 1).all())


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": "rnn"}, ("memory", "choice")),
        ({"critic_memory": "both"}, ("critic_memory", "choice")),
        ({"memory_width": 0}, ("memory_width", "range")),
        ({"sequence": 7}, ("sequence", "conflict")),
        ({"minibatches": 16}, ("minibatches", "conflict")),
        ({"chunk": 2}, ("chunk", "conflict")),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, Any], words: tuple[str, Code]) -> None:
    with refused(*words):
        RecurrentPPO.configure(**{**QUICK["recurrent_ppo"], **options})


@pytest.mark.parametrize("option", ["memory", "memory_width"])
def test_ppo_without_a_memory_names_the_one_that_has_it(option: str) -> None:
    with pytest.raises(ConfigError, match="train recurrent_ppo"):
        PPO.configure(**{option: "lstm"})


def test_a_penalty_on_the_jacobian_of_one_observation_is_refused() -> None:
    with pytest.raises(ConfigError, match="depends on the steps before too"):
        loop("recurrent_ppo", make_vec("native/pendulum", 4), jacobian_penalty=0.1)
