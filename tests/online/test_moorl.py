"""MOORL: Reptile's step, one source an iteration, and plain SAC as its limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hybrid_problems import hybrid_loop, parameters, regulated
from refusals import refused

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import Code
from surefoot.core.engine.agent import Rule, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN
from surefoot.envs.native import NativeVectorEnv
from surefoot.online import MOORL, SAC
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.runs.embedded import generate

META = {"meta_actor": "actor", "meta_critic": "critic"}


def moorl(**options: Any) -> OffPolicyLoop:
    return hybrid_loop("moorl", **options)


def flat(trained: OffPolicyLoop, name: str) -> torch.Tensor:
    return trained.learner.networks[name].value.clone()


def test_with_one_inner_step_and_a_rate_of_one_it_is_sac_on_one_source_at_a_time() -> None:
    trained = moorl(inner_steps=1, meta_rate=1.0, updates_per_step=1.0)
    trained.run(60)
    # SAC by itself, on what the rows say now: the buffer has grown since, so both learn once more, from the same rows.
    sac = SAC(trained.agent.spec, hidden=(16, 16)).fresh(0)
    sac.batch_size = 16
    loaded = {n: v for n, v in trained.learner.agents_parameters(0).items() if not n.startswith("meta_")}
    sac.load_state_dict({name: value.clone() for name, value in loaded.items()})
    alone = Learner([sac], [0], trained.learner.sources, batch_size=16)
    state = {n: v.clone() for n, v in trained.learner.state(0).items() if "meta_" not in n}
    alone.restore([state], trained.learner.step)
    alone.run(5)
    trained.learner.run(5)
    for name, value in alone.agents_parameters(0).items():
        assert torch.equal(value, trained.learner.agents_parameters(0)[name]), name
    for meta, inner in META.items():
        assert torch.equal(flat(trained, meta), flat(trained, inner))


def test_the_meta_parameters_go_part_of_the_way_after_each_iteration_and_the_next_begins_there() -> None:
    trained = moorl(inner_steps=3, meta_rate=0.25, updates_per_step=3.0)
    trained.run(30)
    (rule,) = (entry for entry in trained.learner.order if isinstance(entry, Rule))
    assert rule.every == 3
    for _ in range(2):
        before = {name: flat(trained, name) for name in META}
        for meta, inner in META.items():
            assert torch.equal(flat(trained, inner), before[meta])
        trained.learner.run(2)
        for meta in META:  # in the middle of an iteration nothing moves
            assert torch.equal(flat(trained, meta), before[meta])
        saved = {name: network.value.clone() for name, network in trained.learner.networks.items()}
        trained.learner.run(1)
        for meta, inner in META.items():
            assert torch.equal(flat(trained, inner), flat(trained, meta))
            assert not torch.equal(flat(trained, meta), saved[meta])
            reached = before[meta] + (flat(trained, meta) - before[meta]) / 0.25  # where the three steps led
            assert float((reached - saved[inner]).abs().max()) < 2e-3  # one step of Adam from where two led


@pytest.mark.parametrize(
    ("inner_steps", "options"),
    [(5, {"num_envs": 4, "updates_per_step": 5.0}), (1, {"updates_per_step": 5.0}), (3, {"updates_per_step": 5.0})],
)
def test_an_iteration_has_its_length_however_often_the_loop_acts(inner_steps: int, options: dict[str, Any]) -> None:
    trained = moorl(inner_steps=inner_steps, **options)
    act, moved, before = trained._act_until_due, [], [flat(trained, "meta_actor")]

    def watched() -> None:
        act()
        after = flat(trained, "meta_actor")
        if not torch.equal(after, before[0]):
            moved.append(trained.learner.step)
        before[0] = after

    trained._act_until_due = watched  # type: ignore[method-assign]
    trained.run(28)
    assert moved == list(range(inner_steps, trained.learner.step, inner_steps))
    assert len(moved) > 5


def sources(trained: OffPolicyLoop, steps: int) -> np.ndarray:
    """(steps, S) bool: whether a step's rows are all the data's; they must be all or none."""
    found = []
    for step in range(steps):
        of_data = trained.learner.sources[MAIN].rows(step) < 300
        assert bool((of_data.all(1) | ~of_data.any(1)).all())
        found.append(of_data[:, 0].numpy())
    return np.array(found)


def test_an_iteration_learns_from_one_source_drawn_for_each_seed() -> None:
    trained = moorl(seeds=(3, 4), inner_steps=2, data_probability=0.3, updates_per_step=2.0)
    trained.run(22)
    found = sources(trained, 400)
    assert np.array_equal(found[::2], found[1::2])
    assert not np.array_equal(found[:, 0], found[:, 1])
    assert found.mean() == pytest.approx(0.3, abs=0.1)
    streams = [CounterGenerator([4], "task", block, torch.device("cpu")) for block in range(7)]
    expected = torch.cat([one.random(32)[0] < 0.3 for one in streams])[:200].numpy()
    assert np.array_equal(found[::2, 1], expected)
    by_turns_trained = moorl(selector="alternate", inner_steps=3)
    by_turns_trained.run(22)
    by_turns = sources(by_turns_trained, 12)[:, 0]
    assert by_turns.tolist() == [*[True] * 3, *[False] * 3] * 2


def test_rows_are_what_their_numbers_say() -> None:
    trained = moorl(selector="alternate", inner_steps=1, updates_per_step=1.0)
    trained.run(40)
    data = trained.agent.prepare(regulated())
    for step, column in ((2, data.observations), (3, trained.experience.buffer["observations"].numpy())):
        rows = trained.learner.sources[MAIN].rows(step)[0]
        batch = trained.learner.sources[MAIN].gather(rows)
        places = rows.numpy() - (0 if step == 2 else len(data))
        np.testing.assert_array_equal(batch["observations"].numpy(), column[places])
        assert batch["observation_actions"].shape == (16, 2)


def test_the_meta_policy_acts_and_is_what_the_run_gives() -> None:
    trained = moorl(inner_steps=4, updates_per_step=4.0)
    trained.run(30)
    trained.learner.run(2)  # the inner policy has moved on
    agent, observations = trained.agent, torch.linspace(-1, 1, 5).unsqueeze(1)
    meta, inner = agent.meta_actor.act(observations), agent.actor.act(observations)
    assert not torch.equal(meta, inner)
    assert torch.equal(agent.act(observations), meta)
    assert torch.equal(agent.explore(observations, torch.zeros(5, 1)), meta)
    torch.testing.assert_close(trained.learner.extract(0).policy()(observations), 4 * meta / 4)


def test_in_what_portions_it_runs_changes_nothing() -> None:
    whole, parted = (moorl(inner_steps=1, updates_per_step=0.5) for _ in range(2))
    whole.run(60)
    for portion in (25, 1, 7, 27):
        parted.run(portion)
    torch.testing.assert_close(parameters(whole), parameters(parted), rtol=0, atol=0)


def test_stacked_seeds_equal_each_alone() -> None:
    together = moorl(seeds=(1, 2), inner_steps=2, updates_per_step=2.0)
    together.run(30)
    for position, seed in enumerate((1, 2)):
        alone = moorl(seeds=(seed,), inner_steps=2, updates_per_step=2.0)
        alone.run(30)
        # Adam makes a difference in the last bit of a tiny gradient up to twice the learning rate a step.
        torch.testing.assert_close(parameters(alone), parameters(together, position), rtol=1e-3, atol=2e-3)


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    def fresh() -> OffPolicyLoop:
        env = NativeVectorEnv("native/pendulum", 1)
        data = generate("native/pendulum", 0, 400)
        return moorl(env=env, data=data, kernels=True, inner_steps=3, updates_per_step=2.0)

    whole, resumed = fresh(), fresh()
    whole.run(40)  # 40 training steps: in the middle of an iteration
    saved = {n: v.clone() for n, v in whole.state(0).items()}
    assert resumed.restore([saved], 40) is None
    np.testing.assert_equal(resumed.run(15), whole.run(15))
    for name, value in whole.state(0).items():
        assert torch.equal(value, resumed.state(0)[name]), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner_steps": 0}, ("inner_steps", "range")),
        ({"meta_rate": 0.0}, ("meta_rate", "range")),
        ({"selector": "both"}, ("selector", "choice")),
        ({"data_probability": 1.5}, ("data_probability", "range")),
        ({"offline_fraction": 0.5}, ("offline_fraction", "conflict")),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: tuple[str, Code]) -> None:
    with refused(*message):
        MOORL(Spec.of(regulated()), **options)
