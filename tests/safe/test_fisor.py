"""FISOR's equations by numbers, each slip easily made in them, and a whole update by a second implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fisor_rows import Rows, agent, rows_of
from torch import Tensor

from surefoot.core.actors.diffusion import DiffusionActor
from surefoot.core.losses.value_learning import expectile_loss
from surefoot.safe.fisor import FISOR, feasibility_weights, feasible_target


def drawn(made: FISOR, count: int, seed: int = 2, dtype: torch.dtype = torch.float32) -> Rows:
    """Noise for an update of the actor."""
    source = np.random.default_rng(seed)
    noises = made.updates()[0].noise
    return {name: torch.from_numpy(kind.draw(source, (count,))).to(dtype) for name, kind in noises.items()}


# -- the equations by numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tau", "least"), [(0.5, 0.5), (0.7, 0.395644), (0.9, 0.25), (0.95, 0.186605), (0.99, 0.091325)]
)
def test_the_reverse_expectile_of_uniform_numbers_goes_to_their_minimum(tau: float, least: float) -> None:
    samples = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    assert least == pytest.approx(math.sqrt(1 - tau) / (math.sqrt(1 - tau) + math.sqrt(tau)), abs=1e-6)

    def slope(value: float, expectile: float) -> float:
        v = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        return float(torch.autograd.grad(expectile_loss(samples - v, expectile).mean(), v)[0])

    assert slope(least, 1 - tau) == pytest.approx(0, abs=1e-5)  # what FISOR's feasible value minimises
    assert slope(1 - least, tau) == pytest.approx(0, abs=1e-5)  # and its reward value
    if tau > 0.5:
        assert abs(slope(least, tau)) > 0.1  # the other direction is elsewhere


@pytest.mark.parametrize(
    ("signals", "values"), [((-1, -1, 25), (24.4826, 24.74, 25)), ((-1, -1, 1), (0.9602, 0.98, 1))]
)
def test_the_backup_of_a_violation_ahead(signals: tuple[float, ...], values: tuple[float, ...]) -> None:
    following, found = torch.zeros(1), []
    for turn, h in enumerate(reversed(signals)):  # the last step is terminal
        terminal = torch.tensor([1.0 if turn == 0 else 0.0])
        following = feasible_target(torch.tensor([float(h)]), terminal, following, 0.99)
        found.append(float(following))
    assert found[::-1] == pytest.approx(values, abs=5e-5)


@pytest.mark.parametrize(("violation", "last"), [(25.0, 324), (1.0, 68)])
def test_how_far_ahead_a_violation_shows(violation: float, last: int) -> None:
    value, going, step = torch.tensor([violation], dtype=torch.float64), torch.zeros(1), 0
    while float(value) > 0:
        value, step = feasible_target(torch.full((1,), -1.0).double(), going, value, 0.99), step + 1
    assert step == last + 1


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99, 1.0])
def test_a_signal_that_stays_is_its_own_value(discount: float) -> None:
    h = torch.tensor([-1.0, 0.3])
    torch.testing.assert_close(feasible_target(h, torch.zeros(2), h, discount), h)


def test_the_backup_is_a_contraction_monotone_and_never_below_the_signal() -> None:
    going = torch.zeros(1000).double()
    for seed in range(20):
        source = torch.Generator().manual_seed(seed)
        h, one, other = (torch.randn(1000, generator=source).double() for _ in range(3))
        first, second = (feasible_target(h, going, v, 0.9) for v in (one, other))
        assert (first - second).abs().max() <= 0.9 * (one - other).abs().max() + 1e-12
        assert (first >= h - 1e-12).all()
        assert (feasible_target(h, going, torch.maximum(one, other), 0.9) >= torch.maximum(first, second) - 1e-12).all()
        assert (feasible_target(h + 1, going, one, 0.9) >= first).all()
        above = h.max() + 1 + one.abs()
        raised = feasible_target(h, going, above + 2, 0.9) - feasible_target(h, going, above, 0.9)
        torch.testing.assert_close(raised, torch.full((1000,), 1.8).double())  # equality is attained


def test_a_terminal_step_is_worth_its_signal_whatever_follows() -> None:
    h, following = torch.tensor([-1.0, 2.0]), torch.tensor([7.0, 7.0])
    ends = torch.ones(2)
    assert feasible_target(h, ends, following, 0.9).tolist() == [-1.0, 2.0]
    slipped = (1 - 0.9) * h + 0.9 * torch.maximum(h, (1 - ends) * following)  # the mask on the next value alone
    assert slipped.tolist() != [-1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "q", "advantage", "weight"),
    [
        (-1.0, 0.1, 0.0, 0.0),
        (-1.0, -1.0, 0.0, 1.0),
        (-1.0, -1.0, 10.0, 100.0),
        (1.0, 1.0, 0.0, 1.0),
        (1.0, 0.0, 0.0, math.exp(5)),
        (1.0, -1.0, 0.0, 150.0),
        (0.0, -1.0, 0.5, math.exp(1.5)),  # V_h = 0 is feasible
        (-1.0, 0.0, 0.5, math.exp(1.5)),  # and Q_h = 0 allowed
        (1.0, 2.0, 9.0, math.exp(-5)),  # no reward counts in an infeasible state
    ],
)
def test_weights_by_the_signs_of_the_feasible_values(value: float, q: float, advantage: float, weight: float) -> None:
    found = feasibility_weights(*(torch.tensor([x]) for x in (value, q, advantage)))
    assert float(found) == pytest.approx(weight, rel=1e-6)


def test_the_floor_of_the_metadrive_branch_keeps_every_infeasible_row() -> None:
    value, q = torch.tensor([1.0, -1.0]), torch.tensor([2.0, 1.0])
    found = feasibility_weights(value, q, torch.zeros(2), cost_limits=(1.0, 150.0))
    assert found.tolist() == [1.0, 0.0]  # the floor is of infeasible states only
    assert float(feasibility_weights(value, q, torch.zeros(2))[0]) == pytest.approx(math.exp(-5))


# -- slips that are easily made ----------------------------------------------------------------------------------------


def test_slip_1_the_feasible_value_weighs_negative_residuals_more() -> None:
    made, rows = agent(), rows_of(200)
    rows = made.annotate(rows)
    value = made.feasible_value_network(rows["observations"])
    u = rows["target_q_h"] - value
    loss, _ = made.feasible_value_loss(rows, {})
    assert float(loss) == pytest.approx(float((torch.where(u < 0, 0.9, 0.1) * u**2).mean()), rel=1e-5)
    slipped = float((torch.where(u > 0, 0.9, 0.1) * u**2).mean())
    assert abs(slipped / float(loss) - 1) > 0.1
    reward, _ = made.value_loss(rows, {})
    v = rows["target_q"] - made.value(rows["observations"])
    assert float(reward) == pytest.approx(float((torch.where(v > 0, 0.9, 0.1) * v**2).mean()), rel=1e-5)


def test_slip_2_the_larger_constraint_critic_counts_and_the_smaller_reward_critic() -> None:
    made, rows = agent(), rows_of(200)
    pairs, found = rows["observation_actions"], made.annotate(rows)
    reward, constraint = made.target_critic(pairs), made.target_feasible_critic(pairs)
    assert torch.equal(found["target_q"], torch.minimum(*reward))
    assert torch.equal(found["target_q_h"], torch.maximum(*constraint))
    assert (reward[0] - reward[1]).abs().min() > 0
    assert not torch.equal(found["target_q_h"], torch.minimum(*constraint))


@pytest.mark.parametrize("choice", ["feasible", "best"])
def test_the_choice_is_a_feasible_action_or_else_the_safest(choice: str) -> None:
    made, seen = agent(choice=choice, samples=6), torch.randn(200, 3)
    noise = torch.randn(200, made.actor.noise_dim)
    with torch.no_grad():  # so that about half of the actions are feasible
        made.target_feasible_critic.mlp.weights[-1].mul_(20)
        made.reserve.fill_(0.1)
        taken = made.actor.act(seen, noise)
        each = noise.unflatten(-1, (6, -1))
        alone = DiffusionActor(made.average_noise_network, made.schedule, 2)
        drawn = torch.stack([alone.act(seen, each[:, sample]) for sample in range(6)], 1)
        pairs = torch.cat([seen.unsqueeze(1).expand(-1, 6, -1), drawn], -1)
        values = made.target_feasible_critic(pairs.flatten(0, 1)).amax(0).view(200, 6)
        returns = made.target_critic(pairs.flatten(0, 1)).amin(0).view(200, 6)
    kinds = set()
    for row in range(200):
        feasible = [sample for sample in range(6) if values[row, sample] <= -0.1]
        liked = feasible[:1] if choice == "feasible" else sorted(feasible, key=lambda sample: -returns[row, sample])
        sample = liked[0] if liked else int(values[row].argmin())
        kinds.add((bool(feasible), sample == int(values[row].argmin())))
        torch.testing.assert_close(taken[row], drawn[row, sample])
    assert {(True, False), (False, True)} <= kinds  # both cases came up, and the chosen one is not always the safest
    assert ((values > -0.1) & (values <= 0)).any()  # and the reserve made a difference


def test_slip_3_target_critics_stand_in_weights_value_losses_and_choice() -> None:
    made, rows, noise = agent(), rows_of(50), drawn(agent(), 50)
    seen, numbers = rows["observations"], torch.randn(50, made.actor.noise_dim)

    def told() -> list[Tensor]:
        annotated = made.annotate(rows)
        losses = [loss(annotated, noise)[0] for loss in (made.actor_loss, made.value_loss, made.feasible_value_loss)]
        return [torch.stack(losses).detach(), made.actor.act(seen, numbers).detach()]

    before = told()
    with torch.no_grad():
        for parameter in (*made.critic.parameters(), *made.feasible_critic.parameters()):
            parameter.normal_()
    assert all(torch.equal(now, then) for now, then in zip(told(), before, strict=True))
    with torch.no_grad():
        for parameter in (*made.target_critic.parameters(), *made.target_feasible_critic.parameters()):
            parameter.normal_()
    assert not any(torch.equal(now, then) for now, then in zip(told(), before, strict=True))


def test_slip_4_errors_are_summed_over_dimensions_then_weighted_then_averaged() -> None:
    made, rows, noise = agent(), rows_of(40), drawn(agent(), 40)
    rows = made.annotate(rows)
    loss, metrics = made.actor_loss(rows, noise)
    steps = made.schedule.step_of(noise["step"].squeeze(-1))
    predicted = made.noise_network(
        made.schedule.noisy(rows["actions"], noise["noise"], steps), rows["observations"], steps
    )
    by_hand = 0.0
    for row in range(40):  # also slip 11: a row at a time, nothing is broadcast by accident
        error = sum(float(predicted[row, d] - noise["noise"][row, d]) ** 2 for d in range(2))
        by_hand += float(metrics["weight"][row]) * error / 40
    assert metrics["weight"].shape == (40,)
    assert float(loss) == pytest.approx(by_hand, rel=1e-5)
    errors = (predicted - noise["noise"]).square()
    assert float((metrics["weight"] * errors.mean(-1)).mean()) == pytest.approx(by_hand / 2, rel=1e-5)  # the slip
    assert abs(float(metrics["weight"].mean() * errors.sum(-1).mean()) / by_hand - 1) > 0.01  # another


def test_slips_5_and_6_the_averaged_network_acts_without_dropout() -> None:
    made = agent(network="residual", dropout=0.5)
    seen, numbers = torch.randn(20, 3), torch.randn(20, made.actor.noise_dim)
    policy = made.policy()
    first = policy(seen, numbers)
    assert torch.equal(policy(seen, numbers), first)
    actor = policy.actor
    assert isinstance(actor, DiffusionActor)
    for (name, own), (_, average) in zip(
        actor.network.named_parameters(), made.average_noise_network.named_parameters(), strict=True
    ):
        assert torch.equal(own, average), name
    with torch.no_grad():
        for parameter in made.noise_network.parameters():
            parameter.normal_()
    assert torch.equal(made.policy()(seen, numbers), first)
    masked = made.average_noise_network(torch.ones(1, 2), seen[:1], torch.zeros(1), torch.zeros(1, 16))
    assert not torch.equal(masked, made.average_noise_network(torch.ones(1, 2), seen[:1], torch.zeros(1)))


def test_slip_11_losses_of_the_critics_are_those_of_a_loop_over_rows() -> None:
    made, rows = agent(), rows_of(30)
    c = made.config
    reward, constraint = (loss(rows, {})[0] for loss in (made.critic_loss, made.feasible_critic_loss))
    sums = [0.0, 0.0]
    for row in range(30):
        one = {name: value[row : row + 1] for name, value in rows.items()}
        r, h, d = (float(one[name]) for name in ("rewards", "signals", "terminations"))
        v = float(made.value(one["next_observations"]))
        v_h = float(made.feasible_value_network(one["next_observations"]))
        y = r + c.discount * (1 - d) * v
        y_h = h if d else (1 - c.discount) * h + c.discount * max(h, v_h)
        sums[0] += sum((float(q) - y) ** 2 for q in made.critic(one["observation_actions"]).flatten())
        sums[1] += sum((float(q) - y_h) ** 2 for q in made.feasible_critic(one["observation_actions"]).flatten())
    assert float(reward) == pytest.approx(sums[0] / 60, rel=1e-5)
    assert float(constraint) == pytest.approx(sums[1] / 60, rel=1e-5)
