"""The action-Jacobian penalty of algorithms that act: on blocks, from replay, and of a meta-policy."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from on_policy_problems import QUICK
from on_policy_problems import loop as on_policy
from online_problems import Regulator
from online_problems import loop as off_policy

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.smoothness import penalised, squared_jacobian
from surefoot.core.nn.native import native
from surefoot.online import ALGORITHMS
from surefoot.online.loops.on_policy import OnPolicyLoop

BY_LOSS = [name for name in QUICK if name not in ("trpo", "recurrent_ppo")]
"""On-policy algorithms whose policy is stepped by the gradient of a loss, and is one of the present observation."""


def ppo(env: Any, weight: float, **options: Any) -> OnPolicyLoop:
    return on_policy("ppo", env, jacobian_penalty=weight, learning_rate=3e-3, schedule="constant", **options)


def norm(trained: Any) -> float:
    """Mean squared Jacobian of the first seed's policy over [-1, 1]."""
    agent = trained.learner.extract(0)
    return squared_jacobian(agent.act, torch.linspace(-1, 1, 21).unsqueeze(1)).mean().item()


def test_ppo_with_a_penalty_has_the_smaller_jacobian() -> None:
    norms = []
    for weight in (0.0, 1.0):
        trained = ppo(Regulator(4), weight)
        found = trained.run(8000)
        assert ("jacobian" in found) == (weight > 0)
        norms.append(norm(trained))
    assert norms[0] > 2 * norms[1]


@pytest.mark.parametrize("name", BY_LOSS)
def test_every_on_policy_loss_takes_the_penalty_and_tells_it(name: str) -> None:
    found = on_policy(name, Regulator(4), jacobian_penalty=0.1).run(128)
    assert found["jacobian"][0] > 0


@pytest.mark.parametrize("name", ["sac", "td3", "mdpo_off"])
def test_off_policy_actors_take_the_penalty_and_tell_it(name: str) -> None:
    smooth, rough = (
        off_policy(name, Regulator(2), jacobian_penalty=weight, initial_steps=100) for weight in (1.0, 0.0)
    )
    assert smooth.run(250)["jacobian"][0] > 0
    rough.run(250)
    assert norm(smooth) < norm(rough)


@pytest.mark.skipif(native.library() is None, reason="no native module")
@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_the_steps_are_still_repeated_from_a_tape(name: str) -> None:
    own: dict[str, Any] = {"kernels": True, "jacobian_penalty": 0.1}
    loops: dict[str, Any] = {"sac": partial(off_policy, initial_steps=100), "ppo": on_policy}
    trained = loops[name](name, Regulator(4), **own)
    trained.run(200)
    assert trained.learner.step > 0
    assert trained.learner.capture.how == "tape"
    assert trained.learner.eager_because() == {}


def test_the_inner_policy_of_moorl_is_penalised_which_its_losses_train() -> None:
    agent: Any = ALGORITHMS["moorl"](Spec(2, 1, (-1.0,), (1.0,)), hidden=(8, 8))
    update = next(u for u in penalised(agent, agent.updates(), 1.0) if u.name == "actor_loss")
    batch = {name: torch.randn(4, 2) for name in ("observations", "next_observations")} | {"actions": torch.rand(4, 1)}
    penalty = update.loss(batch, {"action": torch.randn(4, 1), "jacobian": torch.randn(4, 2)})[1]["jacobian"]
    own = torch.autograd.grad(penalty, list(agent.actor.parameters()))
    assert any(gradient.any() for gradient in own)


@pytest.mark.parametrize(
    ("name", "choices", "why"),
    [("trpo", False, "natural gradient"), ("ppo", True, "discrete actions"), ("hnpg", False, "natural gradient")],
)
def test_policies_that_it_can_not_reach_are_refused(name: str, choices: bool, why: str) -> None:
    agent = ALGORITHMS[name](Spec.of_choices(2, 2) if choices else Spec(2, 1, (-1.0,), (1.0,)))
    with pytest.raises(ConfigError, match=f"jacobian_penalty: {name} can't have one, .*{why}"):
        penalised(agent, agent.updates(), 0.1)
