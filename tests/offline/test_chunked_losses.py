"""Losses of the algorithms of chunks and flows against numbers by hand, with networks that say what they are given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from problems import spec
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Agent
from surefoot.core.losses.flow import flow_matching_loss, interpolate
from surefoot.offline import FQL, IDQL, IFQL, QC, AWRFlow, DiffusionBC, FlowBC, RAFTFlow, ReBRAC


class Told(nn.Module):
    """Gives one tensor whatever it is asked, and remembers what it was asked."""

    def __init__(self, value: list[Any]) -> None:
        super().__init__()
        self.value = torch.tensor(value, dtype=torch.float64)

    def forward(self, *asked: Tensor) -> Tensor:
        self.asked = asked
        return self.value


def told(agent: Agent, **values: list[Any]) -> Agent:
    for name, value in values.items():
        setattr(agent, name, Told(value))
    return agent


def rows(**columns: Any) -> dict[str, Tensor]:
    """Two rows of decisions with two numbers an action."""
    made = {
        "observations": [[0.0] * 3] * 2,
        "next_observations": [[1.0] * 3] * 2,
        "observation_actions": [[0.0] * 5] * 2,
        "rewards": [1.0, -0.5],
        "reach": [0.99, 0.0],
        "valid": [1.0, 1.0],
        "mask": [[1.0, 1.0]] * 2,
        "next_mask": [[1.0, 1.0]] * 2,
        **columns,
    }
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in made.items()}


def numbers(**noise: list[Any]) -> dict[str, Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in noise.items()}


def loss(agent: Agent, name: str, batch: dict[str, Tensor], **noise: list[Any]) -> float:
    return float(getattr(agent, name)(batch, numbers(**noise))[0])


def exactly(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def small(kind: type[Agent], **options: Any) -> Agent:
    return kind(spec(), hidden=(4,), **options).double()


NEXT = {"target_noise": [[2.0, -1.0], [-4.0, 0.5]]}
REBRAC = {
    "target_actor": [[0.9, -0.3], [-0.2, 0.1]],
    "target_critic": [[3.0, 2.0], [2.5, 4.0]],
    "critic": [[3.0, 2.0], [4.0, 1.0]],
}


@pytest.mark.parametrize(("over", "expected"), [("mean", 0.2526912425), ("sum", 0.505382485)])
def test_rebracs_critic_loss_by_hand(over: str, expected: float) -> None:
    agent = told(small(ReBRAC, critic_penalty=0.1, critic_loss=over), **REBRAC)
    batch = rows(reach=[0.99, 0.99], next_actions=[[0.5, -0.1], [-0.4, 0.0]])
    assert loss(agent, "critic_loss", batch, **NEXT) == exactly(expected)
    asked = agent.target_critic.asked[0][:, 3:]
    torch.testing.assert_close(asked, torch.tensor([[1.0, -0.5], [-0.7, 0.2]], dtype=torch.float64))


def test_rebrac_takes_nothing_off_where_a_time_limit_hides_the_next_action() -> None:
    agent = told(small(ReBRAC, critic_penalty=0.1), **REBRAC)
    known = rows(reach=[0.99, 0.99], next_actions=[[0.5, -0.1], [9.0, 9.0]], next_mask=[[1.0, 1.0], [0.0, 0.0]])
    second = -0.5 + 0.99 * 2
    expected = ((3.43441 - 3) ** 2 + (second - 2) ** 2 + (3.43441 - 4) ** 2 + (second - 1) ** 2) / 2
    assert loss(agent, "critic_loss", known, **NEXT) == exactly(expected)


def test_rebracs_actor_loss_by_hand() -> None:
    agent = told(small(ReBRAC, actor_penalty=0.05), actor=[[0.2, 0.4], [-0.1, 0.0]], critic=[[2.0, 0.0], [2.5, -1.0]])
    batch = rows(actions=[[0.1, 0.1], [0.1, -0.2]])
    assert loss(agent, "actor_loss", batch) == exactly(0.05 * 0.09 - 2 / 3 * 0.5)
    assert loss(agent, "actor_loss", batch) == exactly(-0.328833333333)


def test_rebracs_two_codes_order_their_updates_differently() -> None:
    corl, fql = (small(ReBRAC, preset=preset).updates() for preset in ("corl", "fql"))
    assert not corl[1].simultaneous
    assert corl[1].target_updates == {"target_critic": ("critic", 0.005)}  # of the new critics
    assert corl[1].pre_step_targets == {"target_actor": ("actor", 0.005)}  # of the old actor
    assert fql[1].simultaneous
    assert set(fql[1].pre_step_targets) == {"target_critic", "target_actor"}


def test_flow_matching_on_two_actions_by_hand() -> None:
    start = torch.tensor([[-0.4, 0.6], [1.0, -0.2]], dtype=torch.float64)
    actions = torch.tensor([[0.3, -0.1], [-0.5, 0.8]], dtype=torch.float64)
    predicted = torch.tensor([[0.5, -1.0], [0.2, 0.3]], dtype=torch.float64)
    _, velocity = interpolate(start, actions, torch.tensor([0.3, 0.6], dtype=torch.float64))
    assert float(flow_matching_loss(predicted, velocity)) == exactly(0.8775)
    agent = told(small(FQL), velocity=predicted.tolist())
    drawn = {"start": start.tolist(), "time": [[0.3], [0.6]]}
    assert loss(agent, "flow_loss", rows(actions=actions.tolist()), **drawn) == exactly(0.8775)
    masked = rows(actions=actions.tolist(), mask=[[1.0, 1.0], [0.0, 0.0]])
    assert loss(agent, "flow_loss", masked, **drawn) == exactly((0.04 + 0.09) / 4)


def distilling(**options: Any) -> Agent:
    """FQL whose flow stands still, so that it ends where the noise begins; the distance to it is .0575."""
    agent = small(FQL, alpha=10.0, **options)
    return told(agent, student=[[0.2, -0.5], [1.3, 0.4]], critic=[[1.0, -3.0], [2.0, -1.0]], velocity=[[0.0, 0.0]] * 2)


@pytest.mark.parametrize(("normalize", "q_loss"), [(False, 0.25), (True, 0.142857142857142857)])
def test_fqls_actor_loss_by_hand(normalize: bool, q_loss: float) -> None:
    agent, z = distilling(normalize_q=normalize), [[0.1, -0.7], [1.0, 0.1]]
    assert loss(agent, "actor_loss", rows(), policy=z) == exactly(10 * 0.0575 + q_loss)
    asked = agent.critic.asked[0][:, 3:]  # critics see the action clipped, the distance does not
    assert asked.tolist() == [[0.2, -0.5], [1.0, 0.4]]


def test_the_flow_that_fql_distils_is_clipped() -> None:
    agent = distilling()
    assert loss(agent, "actor_loss", rows(), policy=[[0.1, -0.7], [5.0, 0.1]]) == exactly(10 * 0.0575 + 0.25)


@pytest.mark.parametrize(("aggregate", "expected"), [("mean", 0.6065625), ("min", 0.3702)])
def test_fqls_critic_loss_by_hand(aggregate: str, expected: float) -> None:
    agent = told(
        small(FQL, aggregate=aggregate),
        student=[[0.2, -0.5], [1.3, 0.4]],
        target_critic=[[2.0, 4.0], [3.0, 1.0]],
        critic=[[2.5, 0.5], [3.0, -1.0]],
    )
    assert loss(agent, "critic_loss", rows(), next=[[0.0, 0.0]] * 2) == exactly(expected)
    assert agent.target_critic.asked[0][:, 3:].tolist() == [[0.2, -0.5], [1.0, 0.4]]


def test_rows_that_a_time_limit_cut_have_no_part_in_the_critics_loss_but_count_in_its_mean() -> None:
    agent = told(
        small(FQL), student=[[0.0, 0.0]] * 2, target_critic=[[2.0, 4.0], [3.0, 1.0]], critic=[[2.5, 0.5], [3.0, -1.0]]
    )
    cut = loss(agent, "critic_loss", rows(valid=[1.0, 0.0]), next=[[0.0, 0.0]] * 2)
    assert cut == exactly(((3.475 - 2.5) ** 2 + (3.475 - 3) ** 2) / 4)


def test_ifqls_value_loss_is_the_expectile_of_the_lower_critic() -> None:
    agent = told(small(IFQL, expectile=0.9), value=[1.0, 2.0], target_critic=[[3.0, 0.0], [2.0, 4.0]])
    assert loss(agent, "value_loss", rows()) == exactly((0.9 * 1 + 0.1 * 4) / 2)


def test_ifqls_critics_see_the_value_and_are_summed() -> None:
    agent = told(small(IFQL), value=[3.0, 5.0], critic=[[2.5, 0.5], [3.0, -1.0]])
    y = [1 + 0.99 * 3, -0.5]
    expected = ((y[0] - 2.5) ** 2 + (y[1] - 0.5) ** 2 + (y[0] - 3) ** 2 + (y[1] + 1) ** 2) / 2
    assert loss(agent, "critic_loss", rows()) == exactly(expected)


class OfAction(nn.Module):
    """Critics that value an action's first number a: slope_i * a."""

    def __init__(self, *slopes: float) -> None:
        super().__init__()
        self.slopes = torch.tensor(slopes, dtype=torch.float64)

    def forward(self, pairs: Tensor) -> Tensor:
        return self.slopes.unsqueeze(1) * pairs[:, 3]


def test_qc_chooses_by_the_present_critics_and_values_by_the_averaged_ones() -> None:
    agent = small(QC, samples=3, chunk=1, aggregate="mean")
    agent.velocity = Standing()
    agent.critic, agent.target_critic = OfAction(-1.0, 0.5), OfAction(1.0, 3.0)
    # Candidates of row 0 begin at .8, -.6, .1: the critics' mean is -a / 4 and likes -.6, whose averaged value is -1.2.
    draws = [[0.8, 0.0, -0.6, 0.0, 0.1, 0.0], [0.3, 0.0, 0.3, 0.0, 0.3, 0.0]]
    batch = rows(observation_actions=[[0.0] * 5] * 2)
    assert loss(agent, "critic_loss", batch, next=draws) == exactly(((1 - 0.99 * 1.2) ** 2 + 0.25) / 2)


class Standing(nn.Module):
    """A flow that stands still."""

    sized = False

    def forward(self, observations: Tensor, x: Tensor, *rest: Any) -> Tensor:
        return torch.zeros_like(x)


@pytest.mark.parametrize("kind", [QC, IFQL])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_best_of_n_is_each_rows_own(kind: type[Agent], count: int) -> None:
    """A batch of exactly N rows is where the official IFQL sampler silently takes another row's action."""
    agent = small(kind, samples=2, chunk=1)
    agent.velocity, agent.critic = Standing(), OfAction(1.0, 1.0)
    draws = torch.tensor([[0.1, 7, 0.3, 8], [0.9, 9, 0.4, 9], [-0.5, 9, -0.2, 6.0]], dtype=torch.float64)
    acted = agent.act(torch.zeros(3, 3, dtype=torch.float64)[:count], draws[:count])
    assert acted[:, 0].tolist() == [0.3, 0.9, -0.2][:count]


def test_the_best_of_n_has_the_expected_highest_normal_number() -> None:
    """Base N(0, 1), value a: 1.029375 of four, 2.069669 of 32; the flow's limit is out of the way by a scale of 1/8."""
    source = torch.Generator().manual_seed(0)
    for samples, expected in ((4, 1.029375), (32, 2.069669)):
        agent = small(QC, samples=samples, chunk=1)
        agent.velocity, agent.critic = Standing(), OfAction(1.0, 1.0)
        draws = torch.randn(20_000, samples * 2, generator=source, dtype=torch.float64) / 8
        best = 8 * agent.act(torch.zeros(20_000, 3, dtype=torch.float64), draws)[:, 0]
        assert best.mean().item() == pytest.approx(expected, abs=5 * best.std().item() / 20_000**0.5)


def test_idqls_losses_are_summed_over_numbers_and_critics() -> None:
    agent = small(IDQL, width=4, blocks=0, dropout=0.0, diffusion_steps=1, expectile=0.7)
    told(agent, value=[1.0, 2.0], critic=[[2.5, 0.5], [3.0, -1.0]], noise_network=[[0.5, 0.0], [0.0, 1.0]])
    batch = rows(actions=[[0.0, 0.0]] * 2, target_q=[3.0, 0.0])
    drawn = {"step": [[0.0], [0.0]], "noise": [[0.0, 0.5], [1.0, 1.0]]}
    assert loss(agent, "noise_loss", batch, **drawn) == exactly((0.25 + 0.25 + 1) / 2)
    assert loss(agent, "value_loss", batch) == exactly((0.7 * 4 + 0.3 * 4) / 2)
    y = [1 + 0.99 * 1, -0.5]
    expected = ((y[0] - 2.5) ** 2 + (y[1] - 0.5) ** 2 + (y[0] - 3) ** 2 + (y[1] + 1) ** 2) / 2
    assert loss(agent, "critic_loss", batch) == exactly(expected)


def test_weights_of_advantages_are_those_by_hand() -> None:
    advantages = torch.tensor([1.0, 3.0, 5.0, 7.0], dtype=torch.float64)  # mean 4, deviation sqrt 5
    soft = small(AWRFlow, inverse_temperature=2.0, weight_limit=4.0).weights(advantages)
    expected = [min(torch.tensor(2 * (a - 4) / 5**0.5).exp().item(), 4) for a in (1, 3, 5, 7)]
    assert soft.tolist() == pytest.approx(expected, rel=1e-5)
    assert small(RAFTFlow, share=0.5).weights(advantages).tolist() == [0, 0, 1, 1]
    assert small(RAFTFlow, share=0.2, rest=0.1).weights(advantages).tolist() == pytest.approx([0.1, 0.1, 0.1, 1])


def test_weighted_cloning_by_hand() -> None:
    agent = told(small(RAFTFlow, share=0.5), velocity=[[0.5, -1.0], [0.2, 0.3]], value=[1.0, 2.0])
    drawn = {"start": [[-0.4, 0.6], [1.0, -0.2]], "time": [[0.3], [0.6]]}
    batch = rows(actions=[[0.3, -0.1], [-0.5, 0.8]], returns=[2.0, 2.5])
    assert loss(agent, "value_loss", batch) == exactly((1 + 0.25) / 2)
    assert loss(agent, "flow_loss", batch, **drawn) == exactly((0.2**2 + 0.3**2) / 4)  # of the better row alone


def test_diffusion_clonings_loss_is_summed_over_numbers_in_the_data() -> None:
    agent = told(small(DiffusionBC, diffusion_steps=2), noise_network=[[0.5, 0.0], [0.0, 1.0]])
    drawn = {"step": [[0.0], [0.9]], "noise": [[0.0, 0.5], [1.0, 1.0]]}
    batch = rows(actions=[[0.0, 0.0]] * 2, mask=[[1.0, 1.0], [0.0, 1.0]])
    assert loss(agent, "noise_loss", batch, **drawn) == exactly((0.25 + 0.25) / 2)


def test_a_shortcut_model_acts_by_steps_whose_size_it_learned() -> None:
    for steps in (1, 2, 64):
        assert FlowBC.configure(preset="shortcut", flow_steps=steps).flow_steps == steps
    with pytest.raises(ConfigError, match=r"flow_bc\.flow_steps is 10, must be one of \(1, 2, 4"):
        FlowBC.configure(preset="shortcut", flow_steps=10)
    assert FlowBC.configure(flow_steps=10).flow_steps == 10
