"""The engine's promises for the offline safe algorithms: stacked or alone, kernels or plain, stopped or not."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch
from safe_problems import VARIANTS, agents, learner, random_dataset, relative

from surefoot.core.policy.policy import Policy
from surefoot.safe import CPQ, BEARLag

SEEDS = [3, 0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_stacked_seeds_equal_each_seed_alone_in_float64_and_every_network_moves(variant: str) -> None:
    together = learner(agents(variant, SEEDS), SEEDS, dtype=torch.float64)
    start = {name: network.value.clone() for name, network in together.networks.items()}
    report = together.run(20)
    for name, network in together.networks.items():
        assert not torch.equal(network.value, start[name]), name
    for position, seed in enumerate(SEEDS):
        alone = learner(agents(variant, [seed]), [seed], dtype=torch.float64)
        own = alone.run(20)
        expected = alone.state(0)
        for name, value in together.state(position).items():
            assert relative(value, expected[name]) < 1e-8, name
        assert {name: values[position] for name, values in report.items()} == pytest.approx(
            {name: value for name, (value,) in own.items()}, rel=1e-8, abs=1e-10
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels_and_tapes_equal_plain_pytorch_in_float32(variant: str) -> None:
    fast = learner(agents(variant, [3]), [3], kernels=True)
    plain = learner(agents(variant, [3]), [3])
    for _ in range(3):
        own, other = fast.run(1), plain.run(1)
        assert own == {name: pytest.approx(value, rel=2e-3, abs=2e-4) for name, value in other.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(variant: str) -> None:
    whole, before, after = (learner(agents(variant, [3]), [3], kernels=True) for _ in range(3))
    whole.run(40)
    before.run(33)
    after.restore([{name: value.clone() for name, value in before.state(0).items()}], 33)
    after.run(7)
    expected = whole.state(0)
    assert all(torch.equal(value, expected[name]) for name, value in after.state(0).items())


@pytest.mark.parametrize("variant", VARIANTS)
def test_policies_are_read_back_as_they_were_written(variant: str, tmp_path: pathlib.Path) -> None:
    trained = learner(agents(variant, [3]), [3])
    trained.run(3)
    agent = trained.extract(0)
    policy = agent.policy()
    policy.save(tmp_path / "policy")
    again = Policy.load(tmp_path / "policy")
    assert type(again) is type(policy)
    observations = torch.randn(5, 3)
    expected = policy(observations)
    torch.testing.assert_close(again(observations), expected, rtol=0, atol=0)
    own = agent.act(agent.normalizer(observations)).clamp(-1, 1)
    torch.testing.assert_close(expected, own)
    if policy.noise_dim:
        noise = torch.randn(5, policy.noise_dim)
        for each in (policy, again):
            each.reset()
        drawn = policy(observations, noise)
        assert torch.equal(again(observations, noise), drawn)
        assert not torch.equal(drawn, expected)


@pytest.mark.parametrize("variant", ["bc_safe", "bcq_lag", "bear_lag", "cpq", "coptidice"])
def test_exported_policies_take_any_number_of_rows(variant: str, tmp_path: pathlib.Path) -> None:
    policy = agents(variant, [3])[0].policy()
    policy.export(tmp_path / "policy.pt2")
    program = torch.export.load(tmp_path / "policy.pt2").module()
    for rows in (1, 7):
        observations = torch.randn(rows, 3)
        torch.testing.assert_close(program(observations), policy(observations), rtol=1e-5, atol=1e-6)


def test_a_policy_of_two_networks_is_exported_as_onnx_for_any_number_of_rows(tmp_path: pathlib.Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    policy = agents("bcq_lag", [3])[0].policy()
    policy.export(tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    for rows in (1, 7):
        observations = torch.randn(rows, 3)
        (given,) = session.run(None, {"observations": observations.numpy()})
        assert np.allclose(given, policy(observations).numpy(), atol=1e-5)


@pytest.mark.parametrize(("kind", "actor"), [(BEARLag, 1e-3), (CPQ, 1e-4)])
def test_rates_are_those_of_osrls_settings(kind: type[BEARLag | CPQ], actor: float) -> None:
    config = kind.configure()  # examples/configs of liuzuxin/OSRL at 03a4586
    assert (config.actor_learning_rate, config.learning_rate) == (actor, 1e-3)


@pytest.mark.parametrize("variant", ["bcq_lag", "bear_lag"])
@pytest.mark.parametrize("gains", [(-1.0, 0.003, 0.001), (0.1, float("inf"), 0.001), (0.1, 0.003)])
def test_gains_that_can_not_hold_a_limit_are_refused(variant: str, gains: tuple[float, ...]) -> None:
    from surefoot.core.base.errors import ConfigError

    with pytest.raises(ConfigError, match=rf"{variant}.gains.*must (be >= 0|be a finite number|have 3)"):
        agents(variant, [0], gains=gains)


@pytest.mark.parametrize("variant", ["bcq_lag", "bear_lag", "cpq", "coptidice", "cdt"])
def test_data_without_costs_or_with_negative_ones_is_refused(variant: str) -> None:
    from surefoot.core.base.errors import DataError

    data, (agent,) = random_dataset(), agents(variant, [0])
    with pytest.raises(DataError, match="has no costs"):
        agent.prepare(data.replace(costs=None))
    assert data.costs is not None
    costs = data.costs.copy()
    costs[7] = -1.0
    with pytest.raises(DataError, match=r"costs\[7\] is -1"):
        agent.prepare(data.replace(costs=costs))


@pytest.mark.parametrize("variant", ["bcq_lag", "bear_lag", "cpq", "coptidice", "cdt", "bc_safe"])
def test_costs_that_teach_nothing_are_said_before_training(variant: str) -> None:
    data, (agent,) = random_dataset(), agents(variant, [0])
    clean = data.replace(costs=np.zeros(len(data), np.float32))
    agent.prepare(clean)
    assert any("costs are zero" in note for note in agent.notes(clean))
    assert not any("costs are zero" in note for note in agent.notes(data))


@pytest.mark.parametrize("variant", VARIANTS)
def test_episodes_held_out_are_judged_by_each_loss_windows_included(variant: str) -> None:
    from surefoot.runs.trainers.offline import validation_losses

    (agent,) = agents(variant, [0])
    agent.prepare(random_dataset())
    found = validation_losses(agent, random_dataset(episodes=4, seed=1))
    assert found.keys() == {update.name for update in agent.updates()}
    assert all(np.isfinite(value) for value in found.values())


@pytest.mark.parametrize("variant", ["bcq_lag", "bear_lag", "cpq", "coptidice", "cdt"])
def test_what_is_told_before_training_is_what_training_then_does(variant: str) -> None:
    data, (told, made) = random_dataset(), agents(variant, [0, 0])
    found = told.notes(data)  # of an agent that has not prepared anything, as a run tells it
    made.prepare(data)
    assert found == made.notes(data)
    if variant == "cdt":
        returns, costs = data.episode_returns, data.episode_costs
        assert costs is not None
        best = float(returns[costs <= 40].max())
        assert f"a target return of {best:.1f} and a target cost of 40" in found[-1]
        assert float(made.actor.target_return) == pytest.approx(best)
    else:
        threshold = 4 * (1 - 0.99**20) / (0.01 * 20)  # episodes have 20 steps
        assert found[-1].endswith(f"is a discounted cost of {threshold:.4g} a state")
        assert float(made.cost_threshold) == pytest.approx(threshold)


@pytest.mark.parametrize("variant", ["bcq_lag", "bear_lag", "cpq", "coptidice", "cdt"])
def test_a_limit_holds_also_where_networks_and_the_scale_of_rewards_came_from_another_run(variant: str) -> None:
    data, (made, fresh) = random_dataset(), agents(variant, [0, 0], cost_limit=45.0 if variant == "cdt" else 2.0)
    (before,) = agents(variant, [0])
    before.prepare(data)
    made.load_state_dict(before.state_dict())
    made.normalizer.fixed = made.rewards_fixed = True  # as `init=` leaves it
    made.prepare(data)
    fresh.prepare(data)
    names = ("target_return", "target_cost") if variant == "cdt" else ("cost_threshold",)
    held = made.actor if variant == "cdt" else made
    wanted = fresh.actor if variant == "cdt" else fresh
    for name in names:
        assert torch.equal(getattr(held, name), getattr(wanted, name))
    if variant == "cdt":  # what the transformer reads costs in came with it
        assert torch.equal(made.actor.cost_scale, before.actor.cost_scale)
    made.goals_fixed = True  # of episodes held out
    made.prepare(random_dataset(steps=7))
    assert torch.equal(getattr(held, names[0]), getattr(wanted, names[0]))
