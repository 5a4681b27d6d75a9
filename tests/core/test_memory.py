"""A policy with a memory acts the same in a batch, alone, step by step, after a break, and as a file."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunk_actors import BlendedChunkActor, EnsembledChunkActor
from surefoot.core.actors.heads import DeterministicActor, GaussianActor, StateDependentActor
from surefoot.core.actors.memory import DRAWS
from surefoot.core.actors.memory_actors import ChunkActor, GRUActor, HeldNoiseActor, HistoryActor
from surefoot.core.actors.return_actor import ReturnActor
from surefoot.core.actors.transformer_actor import DecisionTransformerActor
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.safe.filters.filtered import FilteredPolicy

STEPS, ROWS = 24, 3


def transformer() -> Actor:
    made = DecisionTransformerActor(3, 2, 4, width=8, layers=1, heads=2)
    made.target_return.fill_(6.0)
    return made


HEADS: dict[str, Callable[[], Actor]] = {
    "transformer": transformer,
    "history": lambda: HistoryActor(GaussianActor(12, 2, (16,)), 3, 4),
    "history of returns": lambda: HistoryActor(ReturnActor(6, 2, (16,)), 3, 2),
    "gru": lambda: GRUActor(DeterministicActor(8, 2, (16,)), 3, 8),
    "chunk": lambda: ChunkActor(DeterministicActor(3, 10, (16,)), 5, 2),
    "history of chunks": lambda: HistoryActor(ChunkActor(DeterministicActor(6, 6, (16,)), 3, 2), 3, 2),
    "receding chunk": lambda: ChunkActor(DeterministicActor(3, 10, (16,)), 5, 2, 2),
    "ensembled chunk": lambda: EnsembledChunkActor(DeterministicActor(3, 10, (16,)), 5, 2, decay=0.3),
    "ensembled chunk of two": lambda: EnsembledChunkActor(DeterministicActor(3, 10, (16,)), 5, 2, 2, -0.3),
    "blended chunk": lambda: BlendedChunkActor(DeterministicActor(3, 10, (16,)), 5, 2, 3, 2, "cosine"),
    "history of blended chunks": lambda: HistoryActor(
        BlendedChunkActor(DeterministicActor(6, 10, (16,)), 5, 2, 2, 1), 3, 2
    ),
    "held noise": lambda: HeldNoiseActor(StateDependentActor(3, 2, (8,)), 4),
}
FILES = [name for name in HEADS if name not in ("held noise", "receding chunk", "ensembled chunk of two")]
"""That are exported, beside one that reads noise."""


class Brake(torch.nn.Module):
    """A filter that halves first actions above the middle of their range."""

    margin = 0.0

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        changed = actions[:, 0] > 0.0
        halved = torch.cat([actions[:, :1] / 2, actions[:, 1:]], 1)
        return halved, changed, torch.zeros_like(changed)


def policy(kind: str) -> Policy:
    torch.manual_seed(1)
    normalizer = Normalizer(3)
    normalizer.mean.copy_(torch.tensor([1.0, -20.0, 300.0]))
    normalizer.scale.copy_(torch.tensor([0.5, 3.0, 100.0]))
    actor = HEADS[kind]()
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.mul_(1 if kind == "transformer" else 2)  # actions that differ clearly
    return Policy.of(actor, normalizer, torch.tensor([-2.0, -10.0]), torch.tensor([2.0, 10.0]))


@functools.cache
def episodes() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Observations, rewards, costs, ends of STEPS steps of ROWS rows, whose episodes are of unequal lengths."""
    draw = torch.Generator().manual_seed(3)
    observations = torch.randn(STEPS, ROWS, 3, generator=draw) * torch.tensor([0.5, 3.0, 100.0])
    rewards, costs = torch.rand(2, STEPS, ROWS, generator=draw)
    ended = torch.zeros(STEPS, ROWS, dtype=torch.bool)
    ended[6, 0] = ended[10, 1] = ended[17, 0] = ended[21, 1] = True
    return observations + torch.tensor([1.0, -20.0, 300.0]), rewards, costs, ended


def numbers(made: Policy | FilteredPolicy) -> list[Tensor | None]:
    """Noise of each step, where the policy reads some."""
    if not made.always_samples:
        return [None] * STEPS
    draw = torch.Generator().manual_seed(5)
    return list(torch.randn(STEPS, ROWS, made.noise_dim, generator=draw).unbind())


def batched(made: Policy | FilteredPolicy, columns: slice = slice(None)) -> Tensor:
    """(STEPS, rows, 2) actions of a batch of the rows `columns`."""
    observations, rewards, costs, ended = (values[:, columns] for values in episodes())
    memory, actions = made.begin(observations.shape[1]), []
    for time, noise in enumerate(numbers(made)):
        chosen, memory = made.act(observations[time], memory, None if noise is None else noise[columns])
        memory = made.observe_outcome(memory, rewards[time], costs[time], ended[time])
        actions.append(chosen)
    return torch.stack(actions)


def wrapped(kind: str, filtered: bool) -> Policy | FilteredPolicy:
    return FilteredPolicy(policy(kind), Brake(), None) if filtered else policy(kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_a_row_of_a_batch_acts_as_it_does_alone(kind: str, filtered: bool) -> None:
    made = wrapped(kind, filtered)
    together = batched(made)
    for row in range(ROWS):
        alone = batched(made, slice(row, row + 1))
        torch.testing.assert_close(alone, together[:, row : row + 1], rtol=0, atol=1e-5)
    assert (together[1:] - together[:-1]).abs().max() > 0.1
    if filtered:
        assert 0 < made.changed < made.actions  # type: ignore[operator]


@pytest.mark.parametrize("kind", HEADS)
def test_a_row_that_ended_begins_anew(kind: str) -> None:
    made = policy(kind)
    memory, first = made.begin(2), made.begin(2)
    rows, noise = torch.ones(2, 3), torch.zeros(2, made.noise_dim)
    _, memory = made.act(rows, memory, noise)
    given = {name: value.clone() for name, value in memory.items()}
    heard = made.observe_outcome(memory, torch.ones(2), torch.ones(2), torch.tensor([True, False]))
    for name in set(first) - {DRAWS}:
        assert torch.equal(heard[name][0], first[name][0]), name
    assert any(not torch.equal(heard[name][1], first[name][1]) for name in first)
    assert all(torch.equal(memory[name], value) for name, value in given.items())  # what was given is not changed


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_select_action_does_what_a_batch_does_and_goes_on_after_a_break(
    kind: str, filtered: bool, tmp_path: pathlib.Path
) -> None:
    made = wrapped(kind, filtered)
    observations, rewards, costs, _ = (values[:, 0] for values in episodes())
    memory, expected = made.begin(1, seed=7), []
    for time in range(STEPS):
        chosen, memory = made.act(observations[time : time + 1], memory)
        memory = made.observe_outcome(
            memory, *(values[time : time + 1] for values in (rewards, costs, torch.zeros(STEPS) > 0))
        )
        expected.append(chosen[0])
    made.reset(7)
    found = []
    for time in range(STEPS):
        if time == 13:  # another process continues
            (made if isinstance(made, Policy) else made.policy).save(tmp_path / "policy")
            save_file(made.state(), tmp_path / "memory.safetensors")
            again = Policy.load(tmp_path / "policy")
            made = FilteredPolicy(again, Brake(), None) if filtered else again  # type: ignore[arg-type]
            made.restore(load_file(tmp_path / "memory.safetensors"))
        found.append(torch.from_numpy(made.select_action(observations[time].numpy())))
        made.observe(float(rewards[time]), float(costs[time]))
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=0, atol=1e-6)


def test_a_break_keeps_that_an_outcome_is_due() -> None:
    made, again = policy("transformer"), policy("transformer")
    made.select_action(np.zeros(3))
    again.restore(made.state())
    with pytest.raises(ConfigError, match="observe"):
        again.select_action(np.zeros(3))


def test_the_memory_of_another_policy_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"remembers \['past'\], and was given \['state'\]"):
        policy("history").restore(policy("gru").state())
    with pytest.raises(CheckpointError, match=r"past is torch.float32 of shape \(1, 1, 3\)"):
        policy("history").restore({"past": torch.zeros(1, 1, 3)})


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        *((kind, "onnx") for kind in (*FILES, "filtered transformer", "held noise")),
        *((kind, "pt2") for kind in ("transformer", "history of blended chunks", "held noise")),  # onnx is made of it
    ],
)
def test_a_file_takes_the_memory_and_gives_the_next(kind: str, ending: str, tmp_path: pathlib.Path) -> None:
    made = wrapped(kind.removeprefix("filtered "), kind.startswith("filtered"))
    path = tmp_path / f"policy.{ending}"
    made.export(path)
    observations, rewards, costs, ended = episodes()
    expected, noises = batched(made), numbers(made)
    begins = torch.cat([torch.ones(1, ROWS, dtype=torch.bool), ended[:-1]])
    before = [torch.cat([torch.zeros(1, ROWS), values[:-1]]) for values in (rewards, costs)]

    def inputs(time: int) -> dict[str, Tensor]:
        given = {"observations": observations[time], "ended": begins[time]}
        if made.needs_outcomes:
            given |= {"rewards": before[0][time], "costs": before[1][time]}
        noise = noises[time]
        return given if noise is None else {**given, "noise": noise}

    found = []
    if ending == "pt2":
        program = torch.export.load(path).module()
        memory = {n: torch.zeros_like(value) for n, value in made.begin(ROWS).items() if n != DRAWS}
        for time in range(STEPS):
            actions, memory = program(memory=memory, **inputs(time))
            found.append(actions)
    else:
        pytest.importorskip("onnx")
        session = pytest.importorskip("onnxruntime").InferenceSession(path)
        kept = {
            item.name: np.zeros((ROWS, *item.shape[1:]), np.float32)
            for item in session.get_inputs()
            if item.name.startswith("memory.")
        }
        assert [item.name for item in session.get_outputs()] == ["actions", *(f"{name}.next" for name in kept)]
        for time in range(STEPS):
            actions, *following = session.run(None, {**{n: v.numpy() for n, v in inputs(time).items()}, **kept})
            kept = dict(zip(kept, following, strict=True))
            found.append(torch.from_numpy(actions))
    torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=1e-5)


def test_a_history_of_the_last_observations_is_what_training_reads() -> None:
    made = policy("history").actor
    assert isinstance(made, HistoryActor)
    steps, memory = torch.randn(7, 5, 3), made.begin(5)
    for time in range(7):
        action, memory = made.step(steps[time], memory)
        there = torch.tensor([[float(time - 3 + k >= 0) for k in range(4)]]).expand(5, 4)
        window = torch.stack([steps[max(0, time - 3 + k)] for k in range(4)], 1)
        mean, _ = made(window, there)
        torch.testing.assert_close(action, mean.clamp(-1, 1))


def test_a_recurrent_state_is_that_of_torchs_cell() -> None:
    made = policy("gru").actor
    assert isinstance(made, GRUActor)
    theirs, steps = torch.nn.GRUCell(3, 8), torch.randn(5, 6, 3)
    theirs.load_state_dict({
        "weight_ih": made.of_observation.weight, "bias_ih": made.of_observation.bias,
        "weight_hh": made.of_state.weight, "bias_hh": made.of_state.bias,
    })  # fmt: skip
    state = torch.zeros(5, 8)
    for time in range(6):
        state = theirs(steps[:, time], state)
        torch.testing.assert_close(made.states(steps)[:, time], state)
    padded = torch.cat([torch.randn(5, 2, 3), steps], 1)
    there = torch.cat([torch.zeros(5, 2), torch.ones(5, 6)], 1)
    torch.testing.assert_close(made.states(padded, there)[:, 2:], made.states(steps))


def test_a_chunk_is_played_to_its_end_and_then_planned_anew() -> None:
    made = policy("chunk").actor
    assert isinstance(made, ChunkActor)
    steps, memory = torch.randn(10, 2, 3), made.begin(2)
    for time in range(10):
        action, memory = made.step(steps[time], memory)
        torch.testing.assert_close(action, made.plan(steps[time // 5 * 5])[:, time % 5])


def test_noise_is_held_for_its_steps_and_drawn_anew_in_a_new_episode() -> None:
    made = policy("held noise").actor
    assert isinstance(made, HeldNoiseActor)
    memory, draws, held = made.begin(2), torch.randn(8, 2, made.noise_dim), []
    for time in range(8):
        _, memory = made.step(torch.zeros(2, 3), memory, draws[time])
        held.append(memory["noise"])
        memory = made.observe_outcome(memory, torch.zeros(2), torch.zeros(2), torch.tensor([time == 1, False]))
    assert [next(k for k in range(8) if torch.equal(h[0], draws[k, 0])) for h in held] == [0, 0, 2, 2, 2, 2, 6, 6]
    assert [next(k for k in range(8) if torch.equal(h[1], draws[k, 1])) for h in held] == [0, 0, 0, 0, 4, 4, 4, 4]


def test_a_log_density_is_the_inner_heads_of_what_it_reads() -> None:
    steps, actions, noise = torch.randn(5, 4, 3), torch.rand(5, 2), torch.randn(5, 4)
    history = HistoryActor(GaussianActor(12, 2, (8,)), 3, 4)
    torch.testing.assert_close(
        history.log_density(steps, actions),
        history.inner.log_density(steps.flatten(1), actions),  # type: ignore[operator]
    )
    recurrent = GRUActor(GaussianActor(6, 2, (8,)), 3, 6)
    state = recurrent.states(steps)[:, -1]
    torch.testing.assert_close(
        recurrent.log_density(steps, actions),
        recurrent.inner.log_density(state, actions),  # type: ignore[operator]
    )
    chunk = ChunkActor(GaussianActor(3, 4, (8,)), 2, 2)
    found = chunk.log_density(steps[:, 0], chunk.plan(steps[:, 0]))  # at the mean
    assert (found > chunk.log_density(steps[:, 0], chunk.plan(steps[:, 0]) + noise.view(5, 2, 2))).all()


def test_sizes_out_of_range_and_one_memory_twice_are_refused() -> None:
    inner = DeterministicActor(3, 2, (8,))
    with pytest.raises(ConfigError, match="length is 1"):
        HistoryActor(inner, 3, 1)
    with pytest.raises(ConfigError, match="chunk is 0"):
        ChunkActor(inner, 0, 2)
    with pytest.raises(ConfigError, match="hold_steps is 0"):
        HeldNoiseActor(StateDependentActor(3, 2, (8,)), 0)
    with pytest.raises(ConfigError, match=r"both history and the head within it remember \['past'\]"):
        HistoryActor(HistoryActor(DeterministicActor(12, 2, (8,)), 6, 2), 3, 2)
