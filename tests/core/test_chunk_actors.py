"""Chunks that overlap: averages and cross-fades against numbers worked out by hand."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pytest
import torch
from capture_guard import CaptureGuard
from torch import Tensor, nn

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.chunk_actors import BlendedChunkActor, EnsembledChunkActor
from surefoot.core.actors.heads import DeterministicActor, GaussianActor
from surefoot.core.actors.memory_actors import ChunkActor, HistoryActor
from surefoot.core.actors.overlap import fade_weights
from surefoot.core.base.errors import ConfigError
from surefoot.core.execution.inference import PolicyPlanner, Request
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.chunk_playing import chunk_of, played
from surefoot.core.policy.policy import Policy


class Counting(Actor):
    """Plans 10 t + j for step j of the chunk that begins where the observation is t; nothing else."""

    kind = "test_counting"
    noise_dim = 0

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.chunk = chunk
        self.register_parameter("ten", nn.Parameter(torch.tensor(10.0)))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.ten * observations + torch.arange(float(self.chunk))

    def description(self) -> dict[str, Any]:
        return {"steps": self.chunk}

    @classmethod
    def from_description(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        return cls(options["steps"])


class Coin(Counting):
    """Plans C times the sign of a random number: two ways of acting, either of which is right."""

    kind = "test_coin"
    noise_dim = 1
    always_samples = True

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        assert noise is not None
        return noise.sign().expand(-1, self.chunk)


def steps(head: ChunkActor, count: int, first: float = 0.0) -> list[float]:
    memory, found = head.begin(1), []
    for time in range(count):
        action, memory = head.step(torch.tensor([[first + time]]), memory)
        found.append(float(action))
    return found


def test_an_ensemble_is_the_weighted_average_of_all_chunks_that_reach_a_step() -> None:
    head = EnsembledChunkActor(Counting(3), 3, 1, decay=math.log(2))
    # predictions, oldest first, of weights 1, 1/2, 1/4: [0], [1, 10], [2, 11, 20], [12, 21, 30], [22, 31, 40]
    wanted = [0, (1 + 5) / 1.5, (2 + 5.5 + 5) / 1.75, (12 + 10.5 + 7.5) / 1.75, (22 + 15.5 + 10) / 1.75]
    assert steps(head, 5) == pytest.approx(wanted, rel=1e-6)


def test_a_negative_decay_prefers_newer_chunks_and_a_decay_of_zero_none() -> None:
    newer = EnsembledChunkActor(Counting(3), 3, 1, decay=-math.log(2))
    assert steps(newer, 3) == pytest.approx([0, (1 + 20) / 3, (2 + 22 + 80) / 7], rel=1e-6)
    assert steps(EnsembledChunkActor(Counting(3), 3, 1, decay=0.0), 3) == pytest.approx([0, 5.5, 11], rel=1e-6)


def test_an_ensemble_that_plans_every_other_step_has_fewer_predictions() -> None:
    head = EnsembledChunkActor(Counting(4), 4, 1, execute=2, decay=math.log(2))
    # planned at 0, 2, 4: [0], [1], [2, 20], [3, 21], [22, 40], [23, 41]
    wanted = [0, 1, (2 + 10) / 1.5, (3 + 10.5) / 1.5, (22 + 20) / 1.5, (23 + 20.5) / 1.5]
    assert steps(head, 6) == pytest.approx(wanted, rel=1e-6)


def test_weights_of_a_fade_rise_in_equal_steps_or_along_a_cosine() -> None:
    assert fade_weights(0) == ()
    assert fade_weights(4) == pytest.approx((0.2, 0.4, 0.6, 0.8))
    assert fade_weights(3, "cosine") == pytest.approx(((1 - math.sqrt(0.5)) / 2, 0.5, (1 + math.sqrt(0.5)) / 2))


def test_a_blend_fades_from_what_the_older_chunk_has_for_the_same_steps() -> None:
    head = BlendedChunkActor(Counting(5), 5, 1, execute=3, fade_ticks=2)
    # at 0: 0 1 2 3 4; at 3: 30 31 32 33 34; at 6: 60 61 ...; shares of the newer one 1/3 and 2/3
    wanted = [0, 1, 2, (2 * 3 + 30) / 3, (4 + 2 * 31) / 3, 32, (2 * 33 + 60) / 3, (34 + 2 * 61) / 3]
    assert steps(head, 8) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("ticks", [0, 2])
def test_a_blend_copies_no_number_from_the_host(ticks: int) -> None:
    head = BlendedChunkActor(Counting(5), 5, 1, execute=3, fade_ticks=ticks)
    memory = {name: value.to("meta") for name, value in head.begin(2).items()}
    planned = torch.empty(2, 5, 1, device="meta")
    with CaptureGuard():
        assert head.joined(memory, planned)["queue"].shape == (2, 5, 1)


def test_a_receding_horizon_plays_the_first_actions_of_each_chunk() -> None:
    assert steps(ChunkActor(Counting(5), 5, 1, 2), 6) == [0, 1, 20, 21, 40, 41]


def test_rows_that_end_at_other_steps_are_averaged_each_by_itself() -> None:
    head = EnsembledChunkActor(Counting(3), 3, 1, decay=math.log(2))
    memory, found = head.begin(2), []
    for time in range(5):
        local = torch.tensor([[float(time)], [float(time) if time < 2 else time - 2.0]])
        action, memory = head.step(local, memory)
        memory = head.observe_outcome(memory, torch.zeros(2), torch.zeros(2), torch.tensor([False, time == 1]))
        found.append(action[:, 0].tolist())
    wanted = steps(head, 5)
    assert [row[0] for row in found] == pytest.approx(wanted)
    assert [row[1] for row in found] == pytest.approx([*wanted[:2], *wanted[:3]])


def test_a_chunk_keeps_to_one_of_two_ways_where_an_ensemble_mixes_them() -> None:
    draws = torch.randn(400, 5, 1, generator=torch.Generator().manual_seed(0))

    def coherent(head: ChunkActor) -> float:
        memory, signs = head.begin(400), []
        for time in range(5):
            action, memory = head.step(torch.zeros(400, 1), memory, draws[:, time])
            signs.append(action[:, 0])
        return float((torch.stack(signs).sum(0).abs() == 5).float().mean())

    assert coherent(ChunkActor(Coin(5), 5, 1)) == 1
    assert coherent(ChunkActor(Coin(5), 5, 1, 1)) == pytest.approx(1 / 16, abs=0.04)  # 2 / 2^5
    assert coherent(EnsembledChunkActor(Coin(5), 5, 1)) == pytest.approx(1 / 16, abs=0.04)


def policy(head: Actor, width: int = 1) -> Policy:
    return Policy.of(head, Normalizer(width), torch.tensor([-100.0]), torch.tensor([100.0]))


def test_a_policy_can_play_its_chunks_otherwise_and_its_file_keeps_that(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    trained = policy(ChunkActor(DeterministicActor(1, 5, (8,)), 5, 1))
    for way, options in (
        ("chunk", {"execute": 2}),
        ("ensemble", {"decay": 0.5}),
        ("ensemble", {"decay": 0.5, "execute": 2}),
        ("blend", {"execute": 3, "fade_ticks": 2, "fade": "cosine"}),
    ):
        made = played(trained, way, **options)
        made.save(tmp_path / way)
        again = Policy.load(tmp_path / way)
        assert type(again.actor) is type(made.actor)
        for time in range(9):
            observation = torch.tensor([float(time % 4)]).numpy()
            assert made.select_action(observation) == again.select_action(observation)
        assert again.actor.description() == made.actor.description()
    assert isinstance(trained.actor, ChunkActor)
    assert trained.actor.execute == 5  # what was given is not changed


def test_chunks_within_a_history_can_be_played_otherwise_too() -> None:
    trained = policy(HistoryActor(ChunkActor(DeterministicActor(3, 5, (8,)), 5, 1), 1, 3))
    made = played(trained, "ensemble")
    assert isinstance(made.actor, HistoryActor)
    assert isinstance(chunk_of(made), EnsembledChunkActor)
    assert type(chunk_of(trained)) is ChunkActor


def test_a_sampled_policy_samples_and_names_stay_however_its_chunks_are_played() -> None:
    torch.manual_seed(0)
    trained = policy(ChunkActor(GaussianActor(1, 5, (8,)), 5, 1)).named(["q"], ["u"])
    sampled, seen = trained.sampled(), np.zeros(1, np.float32)
    for way, options in (("chunk", {"execute": 2}), ("ensemble", {}), ("blend", {"execute": 2, "fade_ticks": 2})):
        assert not played(trained, way, **options).always_samples
        made, found = played(sampled, way, **options), []
        for seed in (0, 1, 0):
            made.reset(seed)
            found.append(made.select_action(seen).tolist())
        assert found[0] == found[2] != found[1]
        assert made.names == {"observation_names": ["q"], "action_names": ["u"]}
    planner = PolicyPlanner(sampled)
    plans = [planner.plan(Request(0, planner.see(seen), draw, np.zeros((0, 1)), 0)) for draw in (0, 1, 0)]
    np.testing.assert_array_equal(plans[0], plans[2])
    assert np.abs(plans[0] - plans[1]).max() > 1
    sampled.reset(0)
    assert plans[0][0] == sampled.select_action(seen)  # the noise is the policy's own
    mean = PolicyPlanner(trained)
    np.testing.assert_array_equal(*(mean.plan(Request(0, mean.see(seen), d, np.zeros((0, 1)), 0)) for d in (0, 1)))


def test_options_that_no_chunk_can_have_are_refused() -> None:
    inner, trained = Counting(5), policy(ChunkActor(Counting(5), 5, 1))
    with pytest.raises(ConfigError, match="execute is 6; of a chunk of 5 actions, 1 to 5"):
        ChunkActor(inner, 5, 1, 6)
    with pytest.raises(ConfigError, match="execute is 3 and fade_ticks 3: a chunk of 5 actions ends before"):
        BlendedChunkActor(inner, 5, 1, 3, 3)
    with pytest.raises(ConfigError, match="decay is nan"):
        EnsembledChunkActor(inner, 5, 1, decay=math.nan)
    with pytest.raises(ConfigError, match=r"decay is -20.0 for chunks of 5 .* at most 80"):
        EnsembledChunkActor(inner, 5, 1, decay=-20.0)
    with pytest.raises(ConfigError, match=r"fade is 'cosin'; did you mean 'cosine'"):
        fade_weights(2, "cosin")
    with pytest.raises(ConfigError, match="fade_ticks is -1"):
        fade_weights(-1)
    with pytest.raises(ConfigError, match="no way of playing chunks is called 'ensembl'"):
        played(trained, "ensembl")
    with pytest.raises(ConfigError, match=r"'blend': .*execut"):
        played(trained, "blend")
    with pytest.raises(ConfigError, match="plans one action at a time"):
        played(policy(DeterministicActor(1, 1, (8,))), "chunk")
