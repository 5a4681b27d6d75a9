"""PETS: its search is the planner's, its statistics by hand, its loop, its file, and that it learns."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from online_problems import Regulator, spec

from surefoot.core.actors.memory import DRAWS
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Rule, Spec, is_due
from surefoot.core.policy.policy import Policy
from surefoot.envs import make_vec
from surefoot.evaluation import evaluate
from surefoot.model_based import PETS
from surefoot.model_based.base.alarm import Alarm
from surefoot.online import spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.world_models.ensemble.planner import EnsemblePlanner
from surefoot.world_models.futures import Objective
from surefoot.world_models.planners import CEM
from surefoot.world_models.planners.base import PLAN

SMALL: dict[str, Any] = {
    "model_hidden": (9, 8), "model_decays": (), "model_members": 3, "model_elites": 2, "horizon": 4, "samples": 20,
    "iterations": 2, "futures": 4, "model_rows": 16, "measure_every": 10, "model_holdout_limit": 16,
}  # fmt: skip


def loop(seeds: Sequence[int] = (0,), **options: Any) -> OffPolicyLoop:
    given = {"num_envs": 2, "initial_steps": 40, "updates_per_step": 1.0, **SMALL, **options}
    vector = make_vec("native/pendulum", len(seeds) * given["num_envs"])
    agents = [PETS(spec_of(vector), **given).fresh(seed) for seed in seeds]
    return OffPolicyLoop(agents, seeds, vector, planned_steps=400, batch_size=16, kernels=len(seeds) == 1)


def test_what_is_done_is_the_first_action_of_cem_in_the_elites() -> None:
    made = PETS(Spec(3, 2, (-1.0, -2.0), (1.0, 2.0)), **SMALL, risk="cvar:0.5", propagation="ts1").fresh(0)
    observations = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    noise = torch.tensor([[-3.0], [-0.3], [0.0], [0.7], [9.0]])  # the last is as large as numbers get
    actions, memory = made.actor.step(observations, made.begin(5), noise)
    seeds = (torch.distributions.Normal(0, 1).cdf(noise[:, 0].double()) * 2**32).long().clamp(max=2**32 - 1)
    given = {PLAN: torch.zeros(5, 4, 2), DRAWS: torch.stack([seeds, 0 * seeds], 1)}
    objective = Objective(4, propagation="ts1", risk=made.actor.objective.risk)
    plan, after = CEM(4, 20, 2, 0.1, 0.1, sampling="truncated").plan(made.model, observations, given, objective)
    assert torch.equal(actions, plan[:, 0])
    assert torch.equal(memory[PLAN], after[PLAN])
    assert torch.equal(made.explore_on(observations, made.begin(5), noise)[0], actions)


def test_statistics_are_those_of_inputs_and_changes() -> None:
    made = PETS(Spec(1, 1, (-1.0,), (1.0,)), **SMALL).fresh(0)
    batch = {
        "observations": torch.tensor([[1.0], [3.0]]), "actions": torch.tensor([[0.5], [0.5]]),
        "rewards": torch.tensor([2.0, 6.0]), "next_observations": torch.tensor([[2.0], [8.0]]),
    }  # fmt: skip
    found, _ = made.statistics(batch, {})
    assert found["model.input_mean"].tolist() == [2.0, 0.5]
    assert found["model.input_scale"].tolist() == [1.0, 1.0]  # what does not vary is not scaled
    assert found["model.target_mean"].tolist() == [3.0, 4.0]
    assert found["model.target_scale"].tolist() == [2.0, 2.0]


def test_statistics_found_anew_leave_what_the_model_predicts() -> None:
    made = PETS(Spec(1, 1, (-1.0,), (1.0,)), **SMALL).fresh(0).double()
    draw = torch.Generator().manual_seed(0)

    def batch(scale: float) -> dict[str, torch.Tensor]:
        columns = {"observations": 1, "actions": 1, "next_observations": 1, "rewards": 0}
        size = {name: (40, 1) if width else (40,) for name, width in columns.items()}
        return {n: scale * torch.randn(s, generator=draw, dtype=torch.float64) + scale for n, s in size.items()}

    def taken(step: int, rows: dict[str, torch.Tensor]) -> None:
        for rule in made.updates():
            if isinstance(rule, Rule) and rule.change is not None and is_due(rule, step):
                made.load_state_dict({**made.state_dict(), **rule.change(rows, {})[0]})

    asked = torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None]
    taken(1, batch(1.0))
    mean, before = made.model.input_mean.clone(), made.model.predict_all(asked, 0 * asked)
    taken(SMALL["measure_every"], batch(30.0))
    assert not torch.allclose(made.model.input_mean, mean, rtol=1), "they are other statistics"
    after = made.model.predict_all(asked, 0 * asked)
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(after.std, before.std, rtol=1e-9, atol=1e-9)


def test_plans_are_remembered_and_a_killed_run_goes_on_bit_for_bit() -> None:
    whole = loop()
    whole.run(60)
    state, step = {name: value.clone() for name, value in whole.state(0).items()}, whole.step
    assert state["loop/memory/plan"].any()
    assert whole.learner.buffers["model.input_scale"].ne(1).any()
    whole.run(20)
    other = loop()
    assert other.restore([state], step) is None
    other.run(20)
    for name, value in whole.state(0).items():
        assert torch.equal(value, other.state(0)[name]), name


def test_the_alarm_hears_how_well_the_newest_rows_are_predicted() -> None:
    made = loop()
    told = {name: values[0] for name, values in made.run(80).items()}
    alarm = Alarm(made.learner.agent.config)
    alarm.observe_outcome(80, told)
    assert alarm.watched == ["calibration_drift"]
    assert float(made.learner.buffers["held"][0]) == pytest.approx(told["model_held"])


def test_seeds_that_act_together_act_as_each_alone() -> None:
    both, alone = loop((4, 7)), loop((7,))
    both.run(50)
    alone.run(50)
    torch.testing.assert_close(both.memory["plan"][1], alone.memory["plan"][0], rtol=1e-3, atol=1e-3)


def test_a_policy_is_saved_and_its_file_holds_no_code(tmp_path: pathlib.Path) -> None:
    problem = spec_of(make_vec("native/cartpole-balance", 1))
    policy = PETS(problem, **SMALL).fresh(0).policy()
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy")
    one, other = (evaluate([p], "native/cartpole-balance", 2, num_envs=2)[0] for p in (policy, loaded))
    assert (one.returns == other.returns).all()
    own = {
        "termination": "surefoot.world_models.known.terminations:never",
        "reward_function": "surefoot.world_models.known.rewards:ones",
    }
    for option, word in own.items():
        with pytest.raises(ConfigError, match=f"{option}=.* is code, which no policy file holds"):
            PETS(problem, **{**SMALL, option: word})  # not at its end, when a run's policy is saved
    notes = PETS(dataclasses.replace(problem, environment="Mine-v0"), **SMALL).notes(None)
    assert [note for note in notes if "is not known: " in note] == notes != []
    assert not any("module:function" in note for note in notes)
    options = {**policy.actor.description(), "termination": "os:system"}
    with pytest.raises(ConfigError, match="termination=os:system is code"):
        EnsemblePlanner.from_description(4, 1, options)


def test_it_plans_by_the_tasks_own_reward_also_from_a_file(tmp_path: pathlib.Path) -> None:
    problem = dataclasses.replace(
        spec_of(make_vec("native/double-integrator", 1)), environment="native/double-integrator"
    )
    known, learned = PETS(problem, **SMALL).fresh(0), PETS(problem, **SMALL, reward_function="learned").fresh(0)
    assert not known.notes(None)
    policy = known.policy()
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy")
    state = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    noise = torch.zeros(6, 1)
    wanted = known.actor.step(state, known.actor.begin(6), noise)[0]
    assert not torch.equal(wanted, learned.actor.step(state, learned.actor.begin(6), noise)[0])
    actor = loaded.actor
    assert torch.equal(wanted, actor.step(state, actor.begin(6), noise)[0])


def test_settings_out_of_range_are_named() -> None:
    for options, said in (
        ({"horizon": 0}, "horizon is 0"),
        ({"risk": "median"}, "no risk measure"),
        ({"risk": "worst", "futures": 1}, "of 1 future, which is the mean outcome"),
        ({"futures": 2, "model_elites": 3}, "futures is 2.* each of the 3 elites has a particle"),
        ({"offline_fraction": 0.5}, "learns from what it meets alone"),
        ({"measure_every": 0}, "measure_every"),
    ):
        with pytest.raises(ConfigError, match=said):
            PETS(Spec(1, 1, (-1.0,), (1.0,)), **{**SMALL, **options})


def gain(steps: int) -> float:
    """Of the first of `steps` actions of x' = 0.9 x + 0.5 u at cost x^2 + 0.1 u^2, by Riccati's recursion."""
    value, found = 0.0, 0.0
    for _ in range(steps):
        found = -0.9 * 0.5 * value / (0.1 + 0.25 * value)
        value = 1 + 0.1 * found**2 + value * (0.9 + 0.5 * found) ** 2
    return found


@pytest.mark.slow
def test_it_learns_the_regulators_gain() -> None:
    env = Regulator(4)
    made = PETS(
        spec(env), num_envs=4, initial_steps=200, updates_per_step=4.0, model_hidden=(32, 32), model_decays=(),
        model_members=3, model_elites=3, model_rows=128, horizon=4, samples=100, iterations=3, futures=3,
        measure_every=200,
    ).fresh(0)  # fmt: skip
    trained = OffPolicyLoop([made], [0], env, planned_steps=500, batch_size=64, kernels=True)
    trained.run(500)
    states = torch.linspace(-1, 1, 21)[:, None]
    planned = made.actor.act(states, torch.linspace(-2, 2, 21)[:, None])
    assert float((2 * planned * states).sum() / states.square().sum()) == pytest.approx(gain(4), rel=0.15)
