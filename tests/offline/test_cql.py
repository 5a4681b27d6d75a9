"""CQL and Cal-QL: full updates against a plain second implementation, identities, and what they learn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cql_losses import ROWS, Plain, Rows, losses, pairs, trained
from plain_layers import layers
from problems import relative, spec
from refusals import refused
from torch import Tensor

from surefoot.core.nn.networks import MLP
from surefoot.offline import CQL, CalQL


def batches(count: int) -> list[Rows]:
    source = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    made = []
    for _ in range(count):
        observations, actions = normal(ROWS, 3), normal(ROWS, 2).tanh()
        made.append(
            {
                "observations": observations,
                "actions": actions,
                "rewards": 3 * normal(ROWS),
                "terminations": torch.tensor([0, 1, 0, 0, 1.0], dtype=torch.float64),
                "next_observations": normal(ROWS, 3),
                "observation_actions": torch.cat([observations, actions], -1),
                "returns_to_go": normal(ROWS),
            }
        )
    return made


def prepared(kind: type[CQL], **options: Any) -> CQL:
    """A small agent in float64, far from dead units and from saturated actions."""
    torch.manual_seed(2)
    agent = kind(spec(), **{"hidden": (4,), "critic_hidden": (5,), "sampled_actions": 3, **options}).double()
    with torch.no_grad():
        for mlp in (m for m in agent.modules() if isinstance(m, MLP)):
            for bias in mlp.biases:
                bias.normal_(std=0.3)
        agent.actor.mlp.weights[-1].mul_(0.3)
    return agent


@pytest.mark.parametrize("kind", [CQL, CalQL])
def test_layer_norms_add_to_the_variance_what_flaxs_do(kind: type[CQL]) -> None:
    agent = prepared(kind, layer_norm_actor=True, layer_norm_critic=True)
    pairs = 1e-3 * torch.randn(ROWS, 5, dtype=torch.float64)
    with torch.no_grad():
        for mlp in (agent.actor.mlp, agent.critic.mlp):
            mlp.biases[0].mul_(1e-3)  # variances near the epsilon, so that it matters which
        critics = agent.critic(pairs)
        for member in range(2):
            flaxs, torchs = (layers(agent.critic.mlp, member, epsilon)(pairs)[:, 0] for epsilon in (1e-6, 1e-5))
            torch.testing.assert_close(critics[member], flaxs, rtol=1e-12, atol=1e-12)
            assert (critics[member] - torchs).abs().max() > 1e-3
        means = layers(agent.actor.mlp, epsilon=1e-6)(pairs[:, :3])
        torch.testing.assert_close(agent.actor.mlp(pairs[:, :3]), means, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (CQL, {}),
        (CQL, {"critics": 3, "learn_cql_weight": True, "cql_weight": 1.0, "max_target_backup": False}),
        (CalQL, {"cql_temperature": 0.7}),
        (CQL, {"gap_low": 0.5, "gap_high": 3.0}),
        (CQL, {"gap_high": 2.0, "learn_cql_weight": True}),
        (CalQL, {"critics": 4, "subset": 2, "subset_replacement": True, "importance_sampling": False}),
    ],
)
def test_full_updates_equal_the_second_implementation(kind: type[CQL], options: dict[str, Any]) -> None:
    agent, rows = prepared(kind, **options), batches(3)
    plain, trains = Plain(agent), trained(agent, rows)
    start = {name: value.clone() for name, value, _ in pairs(agent, plain)}
    for step in range(3):
        noise = {name: value[0] for name, value in trains.stream.at(step).items()}
        expected = float(plain.critic_loss(rows[step], noise).detach())
        assert trains.run(1)["critic_loss"][0] == pytest.approx(expected, rel=1e-10)
        plain.step(rows[step], noise)
        for name, value, wanted in pairs(agent, plain):
            assert relative(value, wanted) < 1e-9, f"{name} after step {step + 1}"
    for name, value, _ in pairs(agent, plain):
        assert relative(value, start[name]) > (1e-7 if "target" in name else 1e-5), f"{name} was not trained"


def test_calql_with_returns_of_minus_infinity_is_cql_and_with_high_ones_is_not() -> None:
    rows = batches(1)[0]
    bottom = {**rows, "returns_to_go": torch.full((ROWS,), -math.inf, dtype=torch.float64)}
    plain, low, high = (losses(prepared(kind), r) for kind, r in ((CQL, rows), (CalQL, bottom), (CalQL, rows)))
    assert plain == low
    assert high["cql_gap"] > plain["cql_gap"]


def test_rows_whose_gap_is_clipped_train_no_critic() -> None:
    agent, rows = prepared(CQL, gap_low=200.0, gap_high=300.0), batches(1)[0]
    assert losses(agent, rows)["cql_gap"] == 200
    low, plain = prepared(CQL, gap_low=200.0), prepared(CQL, cql_weight=0.0)
    for other in (low, plain):
        losses(other, rows)
    torch.testing.assert_close(low.critic.mlp.weights[0], plain.critic.mlp.weights[0])


def test_an_empty_range_of_the_gap_is_refused() -> None:
    with refused("gap_low", "conflict"):
        prepared(CQL, gap_low=2.0, gap_high=1.0)


@pytest.mark.parametrize("wanted", [-50.0, 50.0])
def test_the_learned_weight_rises_only_while_the_gap_is_above_its_target(wanted: float) -> None:
    agent = prepared(CQL, learn_cql_weight=True, cql_gap=wanted)
    before = float(agent.cql_weight().detach())
    losses(agent, batches(1)[0])
    assert (float(agent.cql_weight().detach()) > before) == (wanted < 0)


@pytest.mark.parametrize("wanted", [-50.0, 50.0])
def test_the_temperature_falls_only_while_the_entropy_is_above_its_target(wanted: float) -> None:
    agent = prepared(CQL, target_entropy=wanted)
    before = float(agent.temperature().detach())
    losses(agent, batches(1)[0])
    assert (float(agent.temperature().detach()) < before) == (wanted < 0)


def test_the_subset_is_drawn_anew_and_with_replacement_only_where_asked() -> None:
    sizes = {}
    for replacement in (False, True):
        agent = prepared(CQL, critics=4, subset_replacement=replacement)
        trains = trained(agent, batches(1))
        plain = Plain(agent)
        drawn = [plain.members({"subset": trains.stream.at(step)["subset"][0]}) for step in range(60)]
        sizes[replacement] = {len(members) for members in drawn}
        assert set().union(*drawn) == {0, 1, 2, 3}
    assert sizes == {False: {2}, True: {1, 2}}
