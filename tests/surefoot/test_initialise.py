"""What a run takes over from the one that it starts from, weights and what they mean."""

from __future__ import annotations

import dataclasses
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from surefoot import streaming
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.files import read_json
from surefoot.core.base.spec import Array
from surefoot.core.engine.agent import Agent, Spec
from surefoot.data import Dataset
from surefoot.data.prepare import prepare_without_data
from surefoot.offline import BC, CQL
from surefoot.online import MOORL, PPO, SAC, TD3
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.embedded import generate
from surefoot.runs.plan import Plan
from surefoot.runs.run import Run, load_state
from surefoot.runs.start import train
from surefoot.runs.warm_start import advice, initialise_from, moments_from, take_moments

SPEC = Spec(3, 2, (-2.0, -1.0), (2.0, 1.0))
SMALL: dict[str, Any] = {"hidden": (8, 8)}


def equal(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start an agent from another as if that were a run's."""

    def from_agent(agent: Agent, source: Agent) -> list[str]:
        monkeypatch.setattr("surefoot.runs.warm_start.load_agent", lambda run, seed: source)
        return initialise_from(agent, Run(pathlib.Path("before"), Plan(source.name, {})), 0)

    return from_agent


def test_what_follows_a_network_starts_equal_to_it_where_the_source_has_none(start: Any) -> None:
    policy = BC(SPEC, **SMALL).fresh(1)
    agent: Agent = TD3(SPEC, **SMALL)
    assert "actor" in start(agent, policy)
    assert equal(agent.actor, policy.actor)
    assert equal(agent.target_actor, policy.actor)
    mirror = ALGORITHMS["mdpo_off"](SPEC, **SMALL).fresh(2)
    agent = SAC(SPEC, **SMALL)
    assert "critic" in start(agent, mirror)
    assert equal(agent.target_critic, mirror.critic)


def test_an_agent_that_joins_the_same_vectors_in_another_order_is_no_start(start: Any) -> None:
    parts = {"state": Array((3,)), "goal": Array((2,))}
    turned = {key: parts[key] for key in reversed(parts)}
    before, after = (BC(Spec(arrays, 1, (-1.0,), (1.0,)), **SMALL) for arrays in (parts, turned))
    assert "actor" in start(BC(before.spec, **SMALL), before)
    with pytest.raises(ConfigError, match=r"observes state \(3,\) and goal .* this problem goal \(2,\) and state"):
        start(after, before)


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - set(streaming.ALGORITHMS)))
def test_what_follows_a_network_is_equal_to_it_from_the_beginning(algorithm: str) -> None:
    agent = ALGORITHMS[algorithm](SPEC if ALGORITHMS[algorithm].requires.continuous else Spec.of_choices(3, 2))
    for follower, leader in agent.copies().items():
        assert equal(getattr(agent, follower), getattr(agent, leader)), follower


def rewards_of(agent: Agent, dataset: Dataset) -> list[float]:
    """The first rewards of a dataset as an agent learns from them."""
    return [float(reward) for reward in agent.prepare(dataset).rewards[:3]]


@pytest.mark.parametrize(("own", "shift"), [("none", 0.0), ("minus_one", -1.0)])
def test_new_critics_learn_of_rewards_as_this_run_asks(start: Any, own: str, shift: float) -> None:
    data = generate("native/pendulum-mixed", transitions=400)
    raw = [float(reward) for reward in data.rewards[:3]]
    source = ALGORITHMS["fql"](Spec.of(data), **SMALL, rewards="return_range")
    scaled = rewards_of(source, data)
    assert scaled != pytest.approx(raw)
    agent = ALGORITHMS["qam"](Spec.of(data), **SMALL, rewards=own)
    assert not any("critic" in name for name in start(agent, source))
    assert rewards_of(agent, data) == pytest.approx([reward + shift for reward in raw])
    same = ALGORITHMS["fql_online"](Spec.of(data), **SMALL, rewards=own)
    assert "critic" in start(same, source)
    assert rewards_of(same, data) == pytest.approx(scaled)


@pytest.mark.parametrize(("critics", "shift"), [(2, 0.0), (10, -1.0)])
def test_an_agent_that_acts_reads_rewards_as_its_critics_do(start: Any, critics: int, shift: float) -> None:
    data = generate("native/pendulum-mixed", transitions=400)
    source = ALGORITHMS["sac_n"](Spec.of(data), **SMALL, rewards="minus_one", critics=10)
    source.prepare(data)
    agent = ALGORITHMS["redq"](Spec.of(data), **SMALL, critics=critics)
    assert ("critic" in start(agent, source)) == (shift != 0)
    prepare_without_data(agent)
    assert (float(agent.reward_scale), float(agent.reward_shift)) == (1.0, shift)


def test_targets_that_the_source_has_are_taken_as_they_are(start: Any) -> None:
    source = SAC(SPEC, **SMALL).fresh(1)
    with torch.no_grad():
        next(source.target_critic.parameters()).add_(1.0)
    agent = SAC(SPEC, **SMALL)
    start(agent, source)
    assert equal(agent.target_critic, source.target_critic)
    assert not equal(agent.target_critic, agent.critic)


def test_meta_parameters_start_where_the_inner_ones_do(start: Any) -> None:
    source = SAC(SPEC, **SMALL).fresh(1)
    agent = MOORL(SPEC, **SMALL)
    start(agent, source)
    observations = torch.randn(5, 3)
    assert torch.equal(agent.act(observations), source.act(observations))
    assert equal(agent.meta_critic, source.critic)


def test_the_temperature_is_the_same_in_another_form(start: Any) -> None:
    source = CQL(SPEC, **SMALL)
    source.temperature.set(0.3)
    agent = SAC(SPEC, **SMALL)
    assert source.temperature.form != agent.temperature.form
    assert "temperature" in start(agent, source)
    assert agent.temperature().item() == pytest.approx(0.3)


def test_numbers_that_would_mean_another_function_are_refused(start: Any) -> None:
    with pytest.raises(ConfigError, match=r"does not fit ppo as configured \(actor\..* differs\).*activations"):
        start(PPO(SPEC, **SMALL, activation="tanh"), PPO(SPEC, **SMALL, activation="relu"))


@pytest.mark.parametrize("algorithm", ["iql", "iql_online"])
def test_an_encoder_of_another_kind_is_refused_and_one_of_the_same_comes_along(start: Any, algorithm: str) -> None:
    seen = Spec({"image": Array((40, 40), "uint8")}, 1, (-1.0,), (1.0,))
    source = ALGORITHMS["iql"](seen, encoder="small", **SMALL).fresh(1)
    agent = ALGORITHMS[algorithm](seen, encoder="small", **SMALL)
    assert "encoder" in start(agent, source)
    assert agent.encoder is not None
    assert source.encoder is not None
    assert equal(agent.encoder, source.encoder)
    with pytest.raises(ConfigError, match=rf"does not fit {algorithm} as configured \(encoder\..* differs\)"):
        start(ALGORITHMS[algorithm](seen, encoder="nature", **SMALL), source)


@pytest.mark.parametrize("algorithm", ["mbrcsl", "mbpo"])
def test_how_far_a_run_had_come_does_not_come_along(algorithm: str, start: Any) -> None:
    small = {"model_hidden": (8,), "model_decays": ()}
    source, agent = (ALGORITHMS[algorithm](SPEC, **small).fresh(seed) for seed in (1, 2))
    assert agent.warm_start.counters
    for name in agent.warm_start.counters:
        getattr(source, name).fill_(103)
    start(agent, source)
    assert all(int(getattr(agent, name)) == 0 for name in agent.warm_start.counters)
    assert equal(agent.model, source.model)


def test_a_planner_starts_from_no_model_of_normalised_observations(start: Any) -> None:
    small = {"model_hidden": (8,), "model_decays": (), "model_members": 3, "model_elites": 2}
    source = ALGORITHMS["mopo"](SPEC, **small).fresh(1)
    assert "model" in start(ALGORITHMS["pets"](SPEC, **small), source)
    source.normalizer.mean.fill_(2.0)
    with pytest.raises(ConfigError, match=r"mopo run normalised observations, and pets .*normalization=none"):
        start(ALGORITHMS["pets"](SPEC, **small), source)


def test_actions_of_another_range_are_refused(start: Any) -> None:
    agent = SAC(Spec(3, 2, (-1.0, -1.0), (1.0, 1.0)), **SMALL)
    there = r"from \[-2.0, -1.0\] to \[2.0, 1.0\] there and from \[-1.0, -1.0\] to \[1.0, 1.0\] here"
    with pytest.raises(ConfigError, match=there):
        start(agent, SAC(SPEC, **SMALL))


def test_one_environment_has_two_names(tmp_path: pathlib.Path) -> None:
    returns, behaviour = '{"mean": 50, "low": 45, "high": 55}', '{"mean": 100, "low": 95, "high": 105}'
    (tmp_path / "summary.json").write_text(
        f'{{"returns": {returns}, "behaviour": {behaviour}, "environment": "surefoot/Pendulum-v0"}}', encoding="utf-8"
    )
    plan = Plan("sac", {}, None, "native/pendulum")
    (text,) = advice(Run(tmp_path, plan), plan)
    assert "warning" in text


@pytest.mark.parametrize(("algorithm", "kept"), [("wsrl", True), ("sac", False)])
def test_optimisers_go_on_where_the_algorithm_says_so(tmp_path: pathlib.Path, algorithm: str, kept: bool) -> None:
    data, where = generate("native/pendulum", 0, 400, "medium"), "native/pendulum"
    plan = Plan("cql", {**vars(CQL.configure(sampled_actions=2, **SMALL))}, "<memory>", where, steps=20, episodes=1)
    before = train(plan, tmp_path / "cql", dataset=data)
    config = vars(ALGORITHMS[algorithm].configure(initial_steps=50, initial_actions="policy", **SMALL))
    same = dataclasses.replace(plan, algorithm=algorithm, config={**config}, dataset=None, init=str(before.folder))
    said: list[dict[str, Any]] = []
    one_step = dataclasses.replace(same, steps=51)
    after = train(one_step, tmp_path / "online", listener=said.append)
    first, last = load_state(before, 0), load_state(after, 0)
    for network, steps in {"actor": 1, "critic": same.config.get("critic_steps", 1), "temperature": 1}.items():
        stem = next(name.removesuffix("/count") for name in last if name.endswith(f"/{network}/count"))
        assert last[f"{stem}/count"] == (20 if kept else 0) + steps
        if kept:
            assert bool((last[f"{stem}/second"] >= 0.99 * first[f"{stem}/second"]).all())  # each step keeps 0.999
    notes = [line["text"] for line in said if line["kind"] == "note"]
    (init,) = [text for text in notes if text.startswith("init: ")]
    assert ("Adam continues in actor, critic, temperature" in init) == kept
    assert read_json(after.folder / "config.json")["notes"] == notes  # for those who read the run later


FINE_TUNED = {
    "wsrl": "cql",
    "iql_online": "iql",
    "calql_online": "calql",
    "famo2o_online": "famo2o",
    "famo2o_cql_online": "famo2o_cql",
}


def moments_of(agent: Agent, count: float = 7.0) -> dict[str, torch.Tensor]:
    """As in a checkpoint, but with sizes of 1."""
    stems = [f"adam/{update.name}/{name}" for update in agent.updates() for name in update.trains]
    return {f"{stem}/{part}": torch.tensor(count) for stem in stems for part in ("first", "second", "count")}


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What comes along to an agent from a run of an algorithm with these options."""

    def of(agent: Agent, algorithm: str, **options: Any) -> dict[str, torch.Tensor]:
        source = ALGORITHMS[algorithm](SPEC, **options)
        plan = Plan(algorithm, vars(source.config))
        state = {**moments_of(source), "agent/x": None}
        monkeypatch.setattr("surefoot.runs.warm_start.load_state", lambda run, seed: state)
        monkeypatch.setattr(Run, "spec", SPEC)
        return moments_from(agent, Run(pathlib.Path("before"), plan), 0)

    return of


@pytest.mark.parametrize(("algorithm", "parent"), sorted(FINE_TUNED.items()))
def test_every_moment_of_the_offline_algorithm_has_its_place(algorithm: str, parent: str, moments: Any) -> None:
    agent = ALGORITHMS[algorithm](SPEC)
    assert set(moments(agent, parent)) == set(moments_of(agent))
    assert set(moments(agent, algorithm)) == set(moments_of(agent))


def test_moments_of_another_loss_or_another_form_stay_behind(moments: Any) -> None:
    assert moments(ALGORITHMS["wsrl"](SPEC), "redq") == {}
    assert moments(ALGORITHMS["sac"](SPEC), "sac") == {}
    logarithmic = ALGORITHMS["wsrl"](SPEC, temperature_form="log")
    assert {name.split("/")[2] for name in moments(logarithmic, "cql")} == {"actor", "critic"}


def test_seeds_that_have_taken_unequal_steps_do_not_go_on_together(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = ALGORITHMS["wsrl"](SPEC, **SMALL)
    counts = {0: 5.0, 1: 6.0}
    found = "surefoot.runs.warm_start.moments_from"
    monkeypatch.setattr(found, lambda agent, run, seed: moments_of(agent, counts[seed]))
    learner: Any = SimpleNamespace(agent=agent, seeds=[0, 1])
    with pytest.raises(CheckpointError, match="before: its seeds have not taken equally many steps: resume it"):
        take_moments(learner, Run(pathlib.Path("before"), Plan("cql", {})))


def test_the_scale_of_rewards_goes_on_where_the_critic_came_from(tmp_path: pathlib.Path) -> None:
    small: dict[str, Any] = {"num_envs": 4, "horizon": 16, "epochs": 1, "minibatches": 2, "hidden": (8,)}
    few: dict[str, Any] = {"steps": 128, "seeds": (0,), "episodes": 1, "evaluate_episodes": 1}
    said: list[str] = []

    def run(name: str, init: str | None = None, **changed: Any) -> float:
        config = dataclasses.asdict(PPO.configure(**small, **changed))
        start = None if init is None else str(tmp_path / init)
        plan = Plan("ppo", config, environment="native/pendulum", init=start, **few)
        said.clear()
        done = train(plan, tmp_path / name, listener=lambda event: said.append(event.get("text", "")))
        return float(load_state(done, 0)["rewards/count"])

    first = run("first")
    assert first == 64  # two blocks, of which one is for the statistics of observations
    assert run("second", "first") == first + 128
    assert any("so does the scale of rewards" in text for text in said)
    assert run("raw", "first", normalize_rewards=False) == 0
    assert not any("scale of rewards" in text for text in said)
