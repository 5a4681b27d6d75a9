"""What algorithms of flows and chunks learn on problems whose answer is known; none passes with a loss's sign flipped.

A bandit of two modes: whatever the state, the data's actions lie near -0.6 and near 0.6, equally often, and the second
kind earns 1, the first 0. Every step is terminal. A mean of the two, at 0, is nowhere in the data.
"""

from __future__ import annotations

import pathlib
import types
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from torch import Tensor

from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.nn.unet import ChunkUNetNoise
from surefoot.core.policy.policy import Policy
from surefoot.data.store import Store
from surefoot.offline import (
    ALGORITHMS,
    FQL,
    IDQL,
    IFQL,
    QAM,
    QAME,
    QAMF,
    QC,
    AWRFlow,
    DiffusionBC,
    FlowBC,
    RAFTFlow,
    ReBRAC,
)

SPEC = Spec(2, 1, (-1.0,), (1.0,))


def two_modes() -> Store:
    source = torch.Generator().manual_seed(3)
    states = torch.rand(4000, 2, generator=source) * 2 - 1
    side = torch.randint(0, 2, (4000, 1), generator=source) * 2.0 - 1
    actions = 0.6 * side + 0.05 * torch.randn(4000, 1, generator=source)
    return Store.pack(
        {
            "observations": states,
            "actions": actions.clamp(-1, 1),
            "rewards": (side[:, 0] + 1) / 2,
            "terminations": torch.ones(4000),
            "next_observations": states,
            "returns_to_go": (side[:, 0] + 1) / 2,
        }
    )


def signs() -> Store:
    """800 episodes of five steps without a state: their actions are all near +1/2, or all near -1/2."""
    source = torch.Generator().manual_seed(3)
    side = (torch.randint(0, 2, (800, 1), generator=source) - 0.5).expand(-1, 5).reshape(-1, 1)
    last = (torch.arange(4000) % 5 == 4).float()
    return Store.pack(
        {
            "observations": torch.zeros(4000, 2),
            "actions": side + 0.02 * torch.randn(4000, 1, generator=source),
            "rewards": last * (side[:, 0] > 0),
            "terminations": last,
            "next_observations": torch.zeros(4000, 2),
        }
    )


def trained(kind: type[Agent], store: Store, steps: int, episode: int = 1, **options: Any) -> Agent:
    """An agent that learned from rows that lie in episodes of so many steps."""
    agent = kind(SPEC, **{"hidden": (32, 32), "learning_rate": 3e-3, **options}).fresh(0)
    known = np.ones(len(store), bool)
    episodes = types.SimpleNamespace(
        valid=known, transitions=known, attributes={}, episode_ids=np.arange(len(store)) // episode
    )
    learner = Learner(
        [agent], [0], dict(agent.sources(Stores(episodes, store))), batch_size=64, planned_steps=steps, kernels=True
    )
    learner.run(steps)
    return agent


def acted(agent: Agent, rows: int = 500, stretch: float = 1.0) -> Tensor:
    """(rows, A or C) what it does at random states, or at the one state of `signs`."""
    source = torch.Generator().manual_seed(4)
    states = stretch * (torch.rand(rows, 2, generator=source) * 2 - 1)
    head = getattr(agent.actor, "inner", agent.actor)
    noise = torch.randn(rows, head.noise_dim, generator=source)
    with torch.no_grad():
        return head.act(states, noise)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"times": "beta", "network": "embedded", "hidden": (32, 32, 32)},
        {"preset": "shortcut", "chunk": 1, "hidden": (32, 32, 32)},
        {"preset": "one_step", "hidden": (32, 32, 32)},
    ],
    ids=["rectified", "embedded", "shortcut", "mean_flow"],
)
def test_flow_cloning_keeps_both_modes(options: dict[str, Any]) -> None:
    agent = trained(
        FlowBC, two_modes(), 400 if options.get("preset") == "one_step" else 600, average_rate=0.02, **options
    )
    actions = acted(agent).squeeze(1)
    near = (actions.abs() - 0.6).abs() < 0.2
    assert near.float().mean() > 0.6  # a mean would have none
    assert 0.35 < (actions > 0).float().mean() < 0.65


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FQL, {"alpha": 0.2}),
        (FQL, {"alpha": 0.2, "normalize_q": True, "aggregate": "min"}),
        (QAMF, {"alpha": 0.2, "critics": 2, "flow_steps": 4}),
        (IFQL, {"target_rate": 0.05, "samples": 8}),
        (QC, {"chunk": 1, "samples": 8}),
        (IDQL, {"target_rate": 0.05, "samples": 8, "width": 32, "blocks": 1, "dropout": 0.0, "average_rate": 0.02}),
    ],
    ids=["fql", "fql normalised", "qam_f", "ifql", "qc", "idql"],
)
def test_the_mode_that_earns_more_is_chosen(kind: type[Agent], options: dict[str, Any]) -> None:
    actions = acted(trained(kind, two_modes(), 500, **options)).squeeze(1)
    assert (actions > 0.3).float().mean() > 0.85
    assert actions.median().item() == pytest.approx(0.6, abs=0.2)


def test_fql_stays_at_the_flows_actions_where_they_weigh_most() -> None:
    actions = acted(trained(FQL, two_modes(), 500, alpha=1000.0)).squeeze(1)
    assert 0.3 < (actions > 0).float().mean() < 0.7
    assert (actions.abs() > 0.3).float().mean() > 0.5


def test_rebrac_moves_to_the_mode_that_earns_more_and_its_actors_penalty_holds_it_back() -> None:
    free, held = (acted(trained(ReBRAC, two_modes(), 500, actor_penalty=penalty)) for penalty in (0.05, 100.0))
    assert (free > 0.2).float().mean() > 0.9
    assert held.abs().mean() < 0.2  # a deterministic clone is the mean of both


def test_chunks_keep_five_steps_together_and_single_steps_do_not() -> None:
    def success(agent: Agent, chunk: int) -> float:
        steps = acted(agent, 400, stretch=0.0)
        if chunk == 1:  # each step is drawn anew: five independent signs
            steps = steps[: 80 * 5].reshape(80, 5)
        return float(((steps > 0).all(1) | (steps < 0).all(1)).float().mean())

    together = trained(FlowBC, signs(), 500, 5, chunk=5, average_rate=0.02)
    alone = trained(FlowBC, signs(), 500, 5, chunk=1, average_rate=0.02)
    assert success(together, 5) > 0.85  # .89 to .96 over seeds
    assert success(alone, 1) < 0.2  # 2 / 2^5 = .0625


@pytest.mark.parametrize("kind", [QC, IFQL])
def test_critics_of_chunks_choose_the_rewarded_chunk(kind: type[Agent]) -> None:
    agent = trained(kind, signs(), 400, 5, chunk=5, samples=8)
    assert (acted(agent, 200, stretch=0.0) > 0).all(1).float().mean() > 0.9


@pytest.mark.parametrize("options", [{}, {"noise_schedule": "vp", "sampler_steps": 5}], ids=["ddpm", "ddim"])
def test_diffusion_cloning_keeps_both_modes(options: dict[str, Any]) -> None:
    sizes = {"hidden": (64, 64), "diffusion_steps": 15}
    agent = trained(DiffusionBC, two_modes(), 1200, average_rate=0.02, **sizes, **options)
    actions = acted(agent).squeeze(1)
    assert ((actions.abs() - 0.6).abs() < 0.2).float().mean() > 0.6
    assert 0.35 < (actions > 0).float().mean() < 0.65


def test_weighted_cloning_draws_the_datas_density_times_the_weights() -> None:
    """Advantages are +-1 deviation: the better mode is e^b / (e^b + e^-b) of the flow's density, .731 at b = 1/2."""
    actions = acted(trained(AWRFlow, two_modes(), 600, inverse_temperature=0.5), 2000).squeeze(1)
    assert (actions > 0).float().mean().item() == pytest.approx(0.731, abs=0.07)


def test_ranked_cloning_keeps_the_best_share_alone() -> None:
    actions = acted(trained(RAFTFlow, two_modes(), 500, share=0.25)).squeeze(1)
    assert (actions > 0.3).float().mean() > 0.9


def test_qam_tilts_the_flow_towards_the_mode_that_earns_more() -> None:
    """The tilted distribution at beta = 3 has e^3 / (1 + e^3) = .95 of its weight there."""
    agent = trained(QAM, two_modes(), 700, critics=2, inverse_temperature=3.0, flow_steps=6, target_rate=0.05)
    actions = acted(agent).squeeze(1)
    assert (actions > 0).float().mean() > 0.7
    assert actions.median().item() == pytest.approx(0.6, abs=0.25)


@pytest.mark.parametrize(("kind", "expectile"), [(IFQL, 0.9), (IDQL, 0.7)])
def test_values_are_the_expectile_of_what_the_two_modes_earn(kind: type[Agent], expectile: float) -> None:
    """Of 0 and 1, equally likely, the expectile tau is tau: tau (1 - v) = (1 - tau) v."""
    agent = trained(kind, two_modes(), 400, expectile=expectile, target_rate=0.1)
    with torch.no_grad():
        assert agent.value(torch.rand(200, 2) - 0.5).mean().item() == pytest.approx(expectile, abs=0.1)  # type: ignore[operator]


def test_what_is_behind_an_episodes_end_does_not_weigh_mean_flow() -> None:
    agent = FlowBC(Spec(2, 1, (-1.0,), (1.0,)), objective="mean_flow", network="shortcut", hidden=(8, 8, 8), chunk=4)
    generator = torch.Generator().manual_seed(0)
    rows = {"observations": torch.randn(3, 2, generator=generator), "actions": torch.randn(3, 4, generator=generator)}
    mask = torch.tensor([[1.0, 0, 0, 0]]).expand(3, 4)
    noise = {"start": torch.randn(3, 4, generator=generator), "stretch": torch.zeros(3, 3)}  # of no length
    far = torch.where(mask > 0, rows["actions"], rows["actions"] + 100)
    own = agent.velocity.forward

    def blind(observations: Tensor, x: Tensor, time: Tensor, size: Tensor | None = None) -> Tensor:
        return own(observations, x * mask[: len(x)], time, size)

    agent.velocity.forward = blind  # type: ignore[method-assign]
    first, told = agent.mean_flow_loss({**rows, "mask": mask}, noise)
    second, again = agent.mean_flow_loss({**rows, "actions": far, "mask": mask}, noise)
    assert torch.allclose(told["weight"], again["weight"])
    assert torch.allclose(first, second)


@pytest.mark.parametrize("kind", ["flow_bc", "awr_flow"])
def test_a_u_of_convolutions_can_be_cloned_with(kind: str) -> None:
    agent: Any = ALGORITHMS[kind](Spec(3, 2, (-1.0,) * 2, (1.0,) * 2), network="unet", chunk=4)
    assert agent.velocity.kind == "unet"
    assert agent.actor.act(torch.zeros(2, 3), torch.zeros(2, 8)).shape == (2, 2)


@pytest.mark.parametrize(("widths", "published"), [((64, 128, 256), 4_889_282), ((256, 512, 1024), 64_873_346)])
def test_the_u_of_noise_has_the_published_number_of_parameters(widths: tuple[int, ...], published: int) -> None:
    """Of Diffusion Policy's network for 2 numbers an action, 132 seen and a step of 128."""
    with torch.device("meta"):
        network = ChunkUNetNoise(132, 32, 16, widths[0], tuple(width // widths[0] for width in widths), 128)
    assert sum(p.numel() for p in network.parameters()) == published


def test_diffusion_clones_chunks_with_a_u_whose_lengths_are_hidden(tmp_path: pathlib.Path) -> None:
    problem = Spec(3, 2, (-1.0,) * 2, (1.0,) * 2)
    agent = DiffusionBC(problem, network="unet", chunk=4, hidden=(16, 32), diffusion_steps=3)
    assert agent.noise_network.kind == "unet"
    policy = agent.policy()
    policy.save(tmp_path / "policy")
    again, noise = Policy.load(tmp_path / "policy"), torch.randn(5, policy.noise_dim)
    first, second = (one.act(torch.ones(5, 3), one.begin(5), noise)[0] for one in (policy, again))
    assert first.shape == (5, 2)
    assert torch.equal(first, second)
    with refused("hidden", "conflict"):
        DiffusionBC.configure(network="unet", hidden=(16, 24))


def test_qam_es_edits_move_the_flows_actions_up_the_critics_by_their_range() -> None:
    """Actions near 0 earn what they are; at an inverse temperature of 0 the flow stays a clone: the edit is left."""
    store = two_modes()
    source = torch.Generator().manual_seed(5)
    actions = 0.3 * torch.randn(4000, 1, generator=source).clamp(-2, 2)
    store["actions"][:] = actions
    store["rewards"][:] = actions[:, 0]
    options = {"critics": 2, "flow_steps": 4, "inverse_temperature": 0.0, "edit_scale": 0.3, "temperature": 0.01}
    agent = trained(QAME, store, 400, target_rate=0.05, **options)
    states, noise = torch.rand(300, 2) * 2 - 1, torch.randn(300, 1)
    with torch.no_grad():
        moved = agent.act(states, noise) - agent.head.act(states, noise)  # type: ignore[attr-defined]
    assert 0.15 < moved.mean() <= 0.3
    assert moved.abs().max() <= 0.3 + 1e-6
