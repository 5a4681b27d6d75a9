"""Fine-tuning starts from the run of a clone: what its policy settles, what comes along, and what is refused."""

from __future__ import annotations

import dataclasses
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from surefoot.core.actors.flow_actor import FlowActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.policy.policy import Policy
from surefoot.online.base.pretrained import chosen_of
from surefoot.runs.algorithms import ALGORITHMS
from surefoot.runs.plan import Plan
from surefoot.runs.run import Run
from surefoot.runs.warm_start import initialise_from, settled, start_notes

SPEC = Spec(3, 2, (-2.0, -1.0), (2.0, 1.0))
FLOW = ALGORITHMS["flow_bc"]
CLONE: dict[str, Any] = {"chunk": 4, "flow_steps": 5, "hidden": (16, 16)}
FINE_TUNED = ["reinflow", "rlcm", "fpo", "dsrl", "dsrl_na"]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Settle a plan of an algorithm by a source agent, build its agent, and start it."""

    def from_agent(algorithm: str, source: Agent, spec: Spec = SPEC, **options: Any) -> tuple[Any, list[str], Plan]:
        monkeypatch.setattr("surefoot.runs.warm_start.load_agent", lambda run, seed: source)
        opened = SimpleNamespace(open=lambda path: SimpleNamespace(agent=lambda: source))
        monkeypatch.setattr("surefoot.runs.warm_start.Run", opened)
        config = dataclasses.asdict(ALGORITHMS[algorithm].configure(**options))
        plan = settled(Plan(algorithm=algorithm, config=config, environment="native/pendulum", init="before"))
        agent = plan.agent(spec)
        return agent, initialise_from(agent, Run(pathlib.Path("before"), Plan(source.name, {})), 0), plan

    return from_agent


@pytest.mark.parametrize("algorithm", FINE_TUNED)
def test_the_clone_s_policy_settles_the_sizes_and_gives_the_velocity_that_acts(algorithm: str, begin: Any) -> None:
    source: Any = FLOW(SPEC, **CLONE).fresh(1)
    source.normalizer.mean.add_(0.5)
    with torch.no_grad():
        next(source.velocity.parameters()).add_(1.0)  # not the average, which acts
    agent, taken, plan = begin(algorithm, source)
    assert len(taken) == 1
    assert (plan.config["chunk"], plan.config["flow_steps"], plan.config["network"]) == (4, 5, "mlp")
    assert agent.decision_dim == 8
    assert agent.normalizer.fixed
    assert torch.equal(agent.normalizer.mean, source.normalizer.mean)
    head = agent.base if algorithm.startswith("dsrl") else agent.actor
    for name, value in head.network.state_dict().items():
        assert torch.equal(value, source.average_velocity.state_dict()[name]), name
    assert Plan.from_json(plan.to_json()).agent(SPEC).decision_dim == 8  # what is resumed knows it too


@pytest.mark.parametrize(("algorithm", "options"), [
    ("reinflow", {}), ("reinflow", {"transition": "flow_sde"}), ("rlcm", {"transition": "reinflow"}),
    ("rlcm", {"preset": "pi_rl"}), ("fpo", {}),
])  # fmt: skip
@pytest.mark.parametrize("clips", [False, True])
def test_the_policy_before_the_first_update_is_the_clone_s(
    algorithm: str, options: dict[str, Any], clips: bool, begin: Any, tmp_path: pathlib.Path
) -> None:
    """Of noise of full size, where places leave [-1, 1], from clones that clip each step and from those that don't."""
    source: Any = FLOW(SPEC, **CLONE).fresh(1)
    network = source.average_velocity
    if clips:
        source = ALGORITHMS["fpo"](SPEC, chunk=4, flow_steps=5, velocity_hidden=(16, 16), clip_each=True).fresh(1)
        network = source.actor.network
    with torch.no_grad():
        for weights in network.parameters():
            weights.mul_(2.0)
    agent, _, plan = begin(algorithm, source, **options)
    assert plan.config["clip_each"] is clips
    observations, noise = torch.randn(200, 3), torch.randn(200, 8)
    then = source.policy().actor.inner.flow(observations, noise)
    torch.testing.assert_close(agent.policy().actor.inner.flow(observations, noise), then, rtol=0, atol=2e-6)
    other = FlowActor(network, 8, 5, clip_each=not clips).flow(observations, noise)
    assert float((other - then).abs().max().detach()) > 0.1, "clipping changes nothing here, so this compares nothing"
    agent.policy().save(tmp_path / "policy")
    left: Any = Policy.load(tmp_path / "policy").actor
    torch.testing.assert_close(left.inner.flow(observations, noise), then, rtol=0, atol=2e-6)


def test_jumps_of_consistency_are_clipped_whatever_the_clone_does(begin: Any) -> None:
    agent, _, plan = begin("rlcm", FLOW(SPEC, **CLONE).fresh(1))
    assert plan.config["clip_each"] is None
    assert agent.actor.clip_each
    with pytest.raises(ConfigError, match=r"rlcm\.clip_each is False, must be null: jumps of consistency"):
        ALGORITHMS["rlcm"].configure(clip_each=False)


def test_without_a_clone_reinflow_clips_each_step_as_officially() -> None:
    """So do runs that are older than the option."""
    for given, clips in ((None, True), (True, True), (False, False)):
        assert ALGORITHMS["reinflow"](SPEC, clip_each=given).actor.clip_each is clips
    assert ALGORITHMS["rlcm"](SPEC, preset="pi_rl").actor.clip_each is False


@pytest.mark.parametrize("algorithm", ["fpo", "dsrl", "dsrl_na"])
def test_a_flow_that_is_clipped_on_its_way_stays_so(algorithm: str, begin: Any) -> None:
    source = ALGORITHMS["reinflow"](SPEC, chunk=2, velocity_hidden=(16, 16)).fresh(3)
    with torch.no_grad():
        for weights in source.actor.network.parameters():
            weights.mul_(4.0)  # places far outside of [-1, 1]
    agent, _, plan = begin(algorithm, source)
    head = agent.base if algorithm.startswith("dsrl") else agent.actor
    observations, noise = torch.randn(6, 3), torch.randn(6, 4)
    then = source.policy().actor.inner.flow(observations, noise)
    torch.testing.assert_close(head.flow(observations, noise), then)
    assert plan.config["clip_each"] is True
    assert not torch.allclose(FlowActor(head.network, 4, head.steps).flow(observations, noise), then)
    assert begin(algorithm, FLOW(SPEC, **CLONE).fresh(1))[2].config["clip_each"] is False


def test_how_many_draws_a_policy_chooses_from() -> None:
    chosen = ALGORITHMS["qc"](SPEC, chunk=2, samples=8, hidden=(8, 8)).fresh(1)
    assert chosen_of(chosen) == 8
    assert chosen_of(FLOW(SPEC, **CLONE).fresh(1)) == 1
    assert chosen_of(ALGORITHMS["bc"](SPEC, hidden=(8, 8))) == 1


def test_other_chunks_actions_and_policies_are_refused_in_one_sentence(begin: Any) -> None:
    source = FLOW(SPEC, **CLONE).fresh(1)
    with pytest.raises(ConfigError, match=r"reinflow\.chunk is 3, and flow_bc was trained with 4: leave it out"):
        begin("reinflow", source, chunk=3)
    with pytest.raises(ConfigError, match="actions reach from"):
        begin("fpo", source, Spec(3, 2, (-1.0, -1.0), (1.0, 1.0)))
    with pytest.raises(ConfigError, match="fine-tunes a flow, and the policy of bc is a"):
        begin("dsrl", ALGORITHMS["bc"](SPEC, hidden=(8, 8)))
    with pytest.raises(ConfigError, match="dppo fine-tunes a diffusion, and the policy of flow_bc is a flow one"):
        begin("dppo", source)
    with pytest.raises(ConfigError, match=r"leave algo\.network and its sizes out"):
        begin("reinflow", source, velocity_hidden=(8, 8))


@pytest.mark.parametrize(("algorithm", "options", "networks"), [
    ("reinflow", {"velocity_hidden": (16, 16), "flow_steps": 3}, ["actor", "value"]),
    ("reinflow", {"velocity_hidden": (16, 16), "transition": "consistency"}, ["actor", "value"]),
    ("rlcm", {"velocity_hidden": (16, 16), "flow_steps": 3}, ["actor", "value"]),
    ("rlcm", {"preset": "pi_rl", "velocity_hidden": (16, 16)}, ["actor", "value"]),
    ("dppo", {"noise_hidden": (16, 16), "alphas": (0.9, 0.8, 0.5)}, ["actor", "value"]),
    ("dppo", {"noise_hidden": (16, 16), "implicit": 5}, ["actor", "value"]),
    ("fpo", {"velocity_hidden": (16, 16), "clip_each": True}, ["actor", "value"]),
    ("dsrl", {"velocity_hidden": (16, 16), "flow_steps": 3}, ["actor", "base", "critic", "target_critic"]),
    ("dsrl_na", {"velocity_hidden": (16, 16)}, ["actor", "base", "critic", "noise_critic", "target_critic"]),
])  # fmt: skip
def test_a_run_of_the_same_algorithm_gives_everything(
    algorithm: str, options: dict[str, Any], networks: list[str], begin: Any
) -> None:
    """Whatever it acts by: a consistency chain and DPPO's denoising chain are no flow and no diffusion."""
    source = ALGORITHMS[algorithm](SPEC, chunk=2, **options).fresh(3)
    again = {name: value for name, value in options.items() if name in ("preset", "transition")}
    agent, taken, _ = begin(algorithm, source, **again)
    assert set(networks) <= set(taken)
    for name, value in source.state_dict().items():
        assert torch.equal(agent.state_dict()[name], value), name
    observations, noise = torch.randn(6, 3), torch.randn(6, agent.policy().actor.noise_dim)
    now, then = (of.policy().actor.act(observations, noise) for of in (agent, source))
    assert torch.equal(now, then)


def test_another_transition_than_the_run_before_is_refused(begin: Any) -> None:
    source = ALGORITHMS["reinflow"](SPEC, transition="consistency", velocity_hidden=(16, 16)).fresh(3)
    with pytest.raises(ConfigError, match="a consistency actor is no reinflow one"):
        begin("reinflow", source)


@pytest.mark.parametrize("algorithm", ["reinflow", "rlcm"])
def test_noise_begins_as_it_is_chosen_and_not_as_the_run_before_ended(algorithm: str, begin: Any) -> None:
    options: dict[str, Any] = {"transition": "reinflow", "chunk": 2, "velocity_hidden": (16, 16)}
    source = ALGORITHMS[algorithm](SPEC, noise="learn_decay", **options).fresh(3)
    source.actor.ceiling.fill_(0.1)
    agent, taken, _ = begin(algorithm, source, transition="reinflow", noise_high=0.3)
    assert float(agent.actor.ceiling) == pytest.approx(0.3)
    assert taken == ["actor", "value"]
    for name, value in source.actor.network.state_dict().items():
        assert torch.equal(agent.actor.network.state_dict()[name], value), name


@pytest.mark.parametrize("options", [
    {}, {"diffusion_steps": 20, "sampler_steps": 5},
    {"diffusion_steps": 20, "sampler_steps": 5, "network": "unet", "hidden": (16, 32), "chunk": 4},
], ids=["ddpm", "ddim", "unet"])  # fmt: skip
def test_dppo_starts_from_a_diffusion_s_schedule_and_average(options: dict[str, Any], begin: Any) -> None:
    source: Any = ALGORITHMS["diffusion_bc"](SPEC, **{"chunk": 3, "hidden": (16, 16), **options}).fresh(1)
    agent, taken, plan = begin("dppo", source)
    assert taken == ["actor"]
    assert plan.config["chunk"] == source.config.chunk
    assert agent.actor.schedule == source.noise_schedule
    assert agent.actor.taken == options.get("sampler_steps")
    assert agent.actor.steps == options.get("sampler_steps", 10)
    for name, value in source.average_noise_network.state_dict().items():
        assert torch.equal(agent.actor.network.state_dict()[name], value), name
        if agent.actor.frozen is not None:
            assert torch.equal(agent.actor.frozen.state_dict()[name], value), name
    if options:  # DDIM without noise but the first is the same function
        observations, noise = torch.randn(6, 3), torch.randn(6, 2 * source.config.chunk)
        now, then = (of.policy().actor.inner.act(observations, noise) for of in (agent, source))
        torch.testing.assert_close(now, then, rtol=1e-4, atol=1e-5)


def test_fine_tuning_without_a_clone_is_said() -> None:
    for algorithm in (*FINE_TUNED, "dppo", "ppo"):
        plan = Plan(algorithm, {}, environment="native/pendulum")
        said = start_notes(ALGORITHMS[algorithm](SPEC), plan)
        assert [text.partition(":")[0] for text in said] == ([] if algorithm == "ppo" else ["no init="]), algorithm


def test_a_limit_that_clips_nothing_is_said() -> None:
    """Such as the preset's, where raw observations are learned from: they are of no known size."""
    plan = Plan("ppo", {}, environment="native/pendulum")
    for options, words in (({}, []), ({"normalize_observations": False}, ["ppo.observation_limit clips normalised"])):
        agent = ALGORITHMS["ppo"](SPEC, preset="cleanrl", **options)
        assert [text[: len("ppo.observation_limit clips normalised")] for text in start_notes(agent, plan)] == words
