"""Runs of the Learner: what is refused, divergence, resuming, pieces, and what a state must hold."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from learner_rows import Y, drawn_rows
from toy_agents import ADAM, PUSH, SPEC, Toy, learner, toy

from surefoot.core.base.errors import CheckpointError, ConfigError, DivergenceError
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update
from surefoot.core.engine.learner import Learner


@pytest.mark.parametrize(
    "wrong",
    [
        {"trains": ("a", "nobody")},
        {"trains": ("a",), "target_updates": {"nobody": ("a", 0.1)}},
        {"trains": ("a",), "target_updates": {"target": ("nobody", 0.1)}},
    ],
)
def test_an_update_naming_an_unknown_network_is_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=r"a_loss: no network 'nobody'; there are \['a', 'b', 'target'\]"):
        learner([toy(lambda s: [Update(s.a_loss, **wrong)])], Y)


def test_agents_and_seeds_must_go_together() -> None:
    agent = toy(lambda s: [Update(s.a_loss, ("a",), ADAM)])
    with pytest.raises(ConfigError, match="2 agents stacked on a CPU train at a third to a half of the rate"):
        learner([agent, agent.fresh(1)], Y, seeds=[0, 1], kernels=True)
    with pytest.raises(ConfigError, match="1 agents and 2 seeds"):
        learner([agent], Y, seeds=[0, 1])
    with pytest.raises(ConfigError, match="don't go together"):
        learner([agent, agent.fresh(1)], Y, seeds=[0, 1], stacked=False)
    with pytest.raises(ConfigError, match="no row"):
        learner([agent], Y[:0])


def bad_rows() -> torch.Tensor:
    rows = torch.ones(400, dtype=torch.float64)
    rows[7] = torch.nan
    return rows


@pytest.mark.parametrize("log_length", [1, 5, 1024])
@pytest.mark.parametrize("seeds", [[5], [2, 5, 3]])
def test_divergence_names_loss_step_and_seed(seeds: list[int], log_length: int) -> None:
    rows = bad_rows()
    drawn = drawn_rows(seeds, 400, 4)
    hits = ((drawn.rows(step) == 7).any(1) for step in range(10_000))
    step, hit = next((number, row) for number, row in enumerate(hits, start=1) if row.any())
    seed = seeds[int(hit.nonzero()[0])]

    def plan(s: Toy) -> list[Update]:
        return [Update(s.b_loss, ("b",), ADAM), Update(s.a_loss, ("a",), ADAM)]

    kind = type(toy(plan))
    from toy_agents import SPEC

    trained = learner([kind(SPEC) for _ in seeds], rows, seeds=seeds, log_length=log_length)
    with pytest.raises(DivergenceError, match=rf"toy: a_loss became nan at step {step} \(seed {seed}\)"):
        trained.run(step + 50)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_run_resumed_anywhere_equals_one_that_never_stopped_bit_for_bit(stacked: bool) -> None:
    def plan(s: Toy) -> list[Update]:
        cosine = Adam(0.1, schedule="cosine", max_gradient_norm=1.0)
        return [
            Update(s.noisy_loss, ("a",), cosine, noise=PUSH, repeat=2),
            Update(s.b_loss, ("b",), ADAM, every=3, target_updates={"target": ("b", 0.1)}),
        ]

    rows = torch.linspace(-3, 3, 64, dtype=torch.float64)
    agent = toy(plan)
    kind, seeds = type(agent), [0, 4] if stacked else [4]

    def new() -> Learner:
        return learner([kind(agent.spec) for _ in seeds], rows, seeds=seeds, stacked=stacked, planned_steps=70)

    whole = new()
    whole.run(70)
    for stop in (1, 31, 32, 33, 50):
        before = new()
        before.run(stop)
        states = [{name: v.clone() for name, v in before.state(i).items()} for i in range(len(seeds))]
        after = new()
        after.restore(states, before.step)
        after.run(70 - stop)
        for position in range(len(seeds)):
            one, other = whole.state(position), after.state(position)
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)


def test_repeats_rows_delays_and_targets_are_the_same_stacked_as_alone() -> None:
    def plan(s: Toy) -> list[Update]:
        return [
            Update(s.noisy_loss, ("a",), Adam(0.1, schedule="cosine"), noise=PUSH, rows=3, repeat=3),
            Update(s.b_loss, ("b",), ADAM, simultaneous=True, every=2, target_updates={"target": ("b", 0.1)}),
            Update(s.a_loss, ("a",), ADAM, rows=5),
        ]

    rows = torch.linspace(-3, 3, 64, dtype=torch.float64)
    agent, seeds = toy(plan), [4, 1, 8]
    kind = type(agent)
    stacked = learner([kind(agent.spec) for _ in seeds], rows, seeds=seeds, planned_steps=20)
    report = stacked.run(20)
    for position, seed in enumerate(seeds):
        alone = learner([kind(agent.spec)], rows, seeds=[seed], planned_steps=20)
        assert {n: v for n, (v,) in alone.run(20).items()} == pytest.approx({n: v[position] for n, v in report.items()})
        for name, network in alone.networks.items():
            torch.testing.assert_close(stacked.networks[name].value[position], network.value[0], rtol=1e-9, atol=1e-12)


def test_a_state_with_other_tensors_or_shapes_is_refused_and_changes_nothing() -> None:
    plan = lambda s: [Update(s.a_loss, ("a",), ADAM)]  # noqa: E731
    trained = learner([toy(plan)], Y)
    trained.run(3)
    state = {name: value.clone() for name, value in trained.state(0).items()}
    missing = {name: value for name, value in state.items() if name != "agent/a.x"}
    wrong_shape = {**state, "agent/b.x": torch.zeros(2)}
    extra = {**state, "agent/c.x": torch.zeros(1)}
    for damaged in (missing, wrong_shape, extra):
        with pytest.raises(CheckpointError, match="does not fit toy as configured"):
            trained.restore([damaged], 1)
        assert trained.step == 3
        assert all(torch.equal(value, state[name]) for name, value in trained.state(0).items())


def test_extract_gives_an_agent_apart_from_the_learners_storage() -> None:
    plan = lambda s: [Update(s.a_loss, ("a",), ADAM)]  # noqa: E731
    agent = toy(plan)
    kind = type(agent)
    trained = learner([agent, kind(agent.spec)], Y, seeds=[0, 1])
    trained.run(2)
    taken = trained.extract(1)
    before = taken.a.x.item()
    assert before == trained.networks["a"].value[1].item()
    trained.run(2)
    assert taken.a.x.item() == before != trained.networks["a"].value[1].item()


def test_garbage_collection_is_as_it_was_after_a_run() -> None:
    import gc

    trained = learner([toy(lambda s: [Update(s.a_loss, ("a",), ADAM)])], Y)
    trained.run(1)
    assert gc.isenabled()
    gc.disable()
    try:
        trained.run(1)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_updates_that_read_one_name_as_different_noise_are_refused() -> None:
    wide = {"push": Noise("normal", 2)}
    with pytest.raises(ConfigError, match=r"toy: steep_loss reads 'push' as .*width=2.*give one of them another name"):
        learner(
            [toy(lambda s: [Update(s.noisy_loss, ("a",), ADAM, noise=PUSH),
                            Update(s.steep_loss, ("b",), ADAM, noise=wide)])], Y
        )  # fmt: skip


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor can't count subnormals as 0")
@pytest.mark.parametrize("outside", [False, True])
def test_subnormals_are_zero_within_a_step_and_as_before_around_it(outside: bool) -> None:
    def flushed() -> bool:
        return float(torch.full((), 1e-39) * 1) == 0

    class Asks(Toy):
        def a_loss(self, batch: Batch, noise: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Metrics]:
            within.append(flushed())
            return super().a_loss(batch, noise)

    within: list[bool] = []
    before: list[bool] = []
    Asks.plan = staticmethod(lambda s: [Update(s.a_loss, ("a",), ADAM)])
    trained = learner([Asks(SPEC)], Y)
    torch.set_flush_denormal(outside)
    try:
        trained.run(3, lambda: before.append(flushed()))
        after = flushed()
    finally:
        torch.set_flush_denormal(False)
    assert (within, before, after) == ([True] * 3, [outside] * 3, outside)


def test_running_in_pieces_equals_running_at_once() -> None:
    rows = torch.linspace(-3, 3, 64, dtype=torch.float64)
    plan = lambda s: [Update(s.a_loss, ("a",), ADAM)]  # noqa: E731
    one, many = learner([toy(plan)], rows), learner([toy(plan)], rows, log_length=3)
    one.run(50)
    for part in (1, 2, 7, 40):
        many.run(part)
    assert torch.equal(one.networks["a"].value, many.networks["a"].value)


def test_an_agent_names_unknown_options_and_presets() -> None:
    plan = lambda s: [Update(s.a_loss, ("a",), ADAM)]  # noqa: E731
    with pytest.raises(ConfigError, match="toy has no option 'strat'; did you mean 'start'"):
        toy(plan, strat=2.0)
    with pytest.raises(ConfigError, match="no preset 'fast'"):
        toy(plan, preset="fast")
    assert dataclasses.asdict(toy(plan, start=3.0).config) == {"start": 3.0}


def test_a_state_is_needed_for_each_seed_and_a_bad_one_leaves_all_seeds_as_they_were() -> None:
    agent = toy(lambda s: [Update(s.a_loss, ("a",), ADAM)])
    kind = type(agent)
    trained = learner([agent, kind(agent.spec)], Y, seeds=[0, 1])
    good = {name: value.clone() for name, value in trained.state(0).items()}
    trained.run(3)
    before = trained.networks["a"].value.clone()
    with pytest.raises(CheckpointError, match="1 states for 2 seeds"):
        trained.restore([good], 0)
    with pytest.raises(CheckpointError, match="does not fit"):
        trained.restore([good, {**good, "agent/a.x": torch.zeros(3)}], 0)
    assert torch.equal(trained.networks["a"].value, before)


def test_a_network_trained_twice_together_and_a_loss_used_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"steep_loss: \['a'\] is trained twice together"):
        learner([toy(lambda s: [Update(s.a_loss, ("a",)), Update(s.steep_loss, ("a", "b"), simultaneous=True)])], Y)
    with pytest.raises(ConfigError, match="two updates have the same loss"):
        learner([toy(lambda s: [Update(s.a_loss, ("a",)), Update(s.a_loss, ("a",), every=2)])], Y)
