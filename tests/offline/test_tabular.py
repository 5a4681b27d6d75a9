"""A three-state MDP whose IQL fixed points are known.

(0, a0) -> 1, r 0; (0, a1) -> end, r 1; (1, a0) -> 2 or 0 with probability 1/2, r 0; (1, a1) -> end, r .5;
(2, a0) -> end, r 2; (2, a1) would give 100 and is not in the data. The behaviour takes a0 with probability .2 in
state 0 and .3 in state 1; the discount is .9.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.losses.value_learning import expectile_loss
from surefoot.data.store import Store
from surefoot.offline import IQL

DISCOUNT = 0.9
KNOWN = {
    0.5: (0.9343, 0.7461, 2.0),
    0.7: (0.9835, 0.9213, 2.0),
    0.9: (1.0512, 1.1933, 2.0),
    0.99: (1.3062, 1.4650, 2.0),
    0.999: (1.3554, 1.5076, 2.0),
}
OPTIMUM = (1.36134, 1.51261, 2.0)


def fixed_point(expectile: float) -> list[float]:
    """V by alternating exact Q backups with Newton's method on `expectile_loss` over the data's actions."""
    share = torch.tensor([[0.2, 0.8], [0.3, 0.7], [1.0, 0.0]], dtype=torch.float64)
    value = torch.zeros(3, dtype=torch.float64)
    for _ in range(250):
        v0, v1, v2 = value.tolist()
        q = torch.tensor(
            [[DISCOUNT * v1, 1.0], [DISCOUNT * (0.5 * v2 + 0.5 * v0), 0.5], [2.0, 100.0]], dtype=torch.float64
        )

        def loss(v: Tensor, q: Tensor = q) -> Tensor:
            return (share * expectile_loss(q - v.unsqueeze(1), expectile)).sum()

        for _ in range(4):
            slope = torch.autograd.functional.jacobian(loss, value)
            curve = torch.autograd.functional.hessian(loss, value).diagonal()
            value = value - slope / curve
    return value.tolist()


@pytest.mark.parametrize("expectile", [0.5, 0.7, 0.9, 0.99])
def test_the_tables_fixed_points_follow_from_the_expectile_loss(expectile: float) -> None:
    assert fixed_point(expectile) == pytest.approx(KNOWN[expectile], abs=6e-5)


def test_fixed_points_rise_with_the_expectile_to_the_in_sample_optimum_and_never_see_the_absent_action() -> None:
    assert all(
        low <= high for one, other in zip(KNOWN.values(), [*list(KNOWN.values())[1:], OPTIMUM], strict=True)
        for low, high in zip(one, other, strict=True)
    )  # fmt: skip
    assert fixed_point(0.999) == pytest.approx(KNOWN[0.999], abs=6e-5)
    near = fixed_point(0.99999)
    assert near == pytest.approx(OPTIMUM, abs=1e-3)
    assert near[2] == pytest.approx(2.0, abs=1e-9)


def transitions() -> Store:
    """300 rows in the behaviour's proportions, states one-hot, actions one-hot in [-1, 1]."""
    states, actions = torch.eye(3), {"a0": torch.tensor([1.0, -1.0]), "a1": torch.tensor([-1.0, 1.0])}
    plan = [  # state, action, reward, next state or None, rows
        (0, "a0", 0.0, 1, 20),
        (0, "a1", 1.0, None, 80),
        (1, "a0", 0.0, 2, 15),
        (1, "a0", 0.0, 0, 15),
        (1, "a1", 0.5, None, 70),
        (2, "a0", 2.0, None, 100),
    ]
    rows = [row[:4] for row in plan for _ in range(row[4])]
    return Store.pack(
        {
            "observations": torch.stack([states[s] for s, *_ in rows]),
            "actions": torch.stack([actions[a] for _, a, *_ in rows]),
            "rewards": torch.tensor([r for _, _, r, _ in rows]),
            "terminations": torch.tensor([float(n is None) for *_, n in rows]),
            "next_observations": torch.stack([torch.zeros(3) if n is None else states[n] for *_, n in rows]),
        }
    )


@pytest.mark.parametrize("expectile", [0.7, 0.9])
def test_the_trained_value_network_lands_on_the_fixed_point(expectile: float) -> None:
    config = {"expectile": expectile, "discount": DISCOUNT, "learning_rate": 1e-3, "hidden": (32, 32)}
    agent = IQL(Spec(3, 2, (-1.0, -1.0), (1.0, 1.0)), **config).fresh(0)
    store = transitions()
    learner = Learner([agent], [0], Uniform(store), batch_size=64, planned_steps=10_000, kernels=True)
    learner.run(4_000)
    found = []
    for _ in range(30):  # the mean over the last steps: a single one carries the noise of its batch
        learner.run(50)
        with torch.no_grad():
            found.append(agent.value(torch.eye(3)))
    value = torch.stack(found).mean(0)
    assert value.tolist() == pytest.approx(KNOWN[expectile], abs=0.03)
    with torch.no_grad():
        q = agent.critic(torch.cat([torch.eye(3), torch.tensor([[1.0, -1.0]] * 3)], 1)).mean(0)
    assert q[1].item() == pytest.approx(DISCOUNT * (value[2] + value[0]).item() / 2, abs=0.1)  # a mean, not a maximum
    assert (q[0].item() > 1) == (expectile == 0.9)  # the greedy action at state 0 flips between the two
