"""On-policy algorithms against hand-worked numbers, each other, and problems whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from on_policy_problems import Bandit, agents, loop
from online_problems import (
    Climb,
    Constant,
    EndsEverywhere,
    FollowsIntoTheNextEpisode,
    LimitUntold,
    Regulator,
    Scripted,
    StaysWhereItWas,
    assert_value,
    climbs_value,
    mistaken,
)
from torch import Tensor, nn

from surefoot.core.engine.agent import Agent
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.networks import MLP
from surefoot.envs import make_vec
from surefoot.online.base.natural_gradient import conjugate_gradient, natural_step
from surefoot.online.loops.on_policy import OnPolicyLoop
from surefoot.online.reinforce import block_returns
from surefoot.online.trpo import TRPOConfig

ROWS = 6


def batch(discrete: bool = False, actions: int = 2) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    chosen = (
        nn.functional.one_hot(torch.arange(ROWS) % actions, actions).double() if discrete else normal(ROWS, actions)
    )
    return {
        "observations": normal(ROWS, 3),
        "actions": chosen,
        "advantages": normal(ROWS) * 2 + 1,
        "returns": normal(ROWS) * 3,
        "values": normal(ROWS),
        "behaviour_log_prob": normal(ROWS).abs() * -0.2 - 2,
        "divergence_weight": torch.full((ROWS,), 2.0, dtype=torch.float64),
    }


def agent(algorithm: str, **options: Any) -> Any:
    class Three(Constant):
        observation_dim, action_dim = 3, 2

    made: Any = agents(algorithm, Three(4), [0], **options)[0].double()
    with torch.no_grad():
        for network in (made.actor.mlp, made.value.mlp):
            for bias in network.biases:
                bias.normal_(std=0.5)
        made.actor.log_std.copy_(torch.tensor([0.3, -0.4]))
    return made


def layers(mlp: MLP) -> nn.Sequential:
    parts: list[nn.Module] = []
    for weight, bias in zip(mlp.weights, mlp.biases, strict=True):
        linear = nn.Linear(weight.shape[-1], weight.shape[-2]).double()
        linear.load_state_dict({"weight": weight, "bias": bias})
        parts += [linear, nn.Tanh()]
    return nn.Sequential(*parts[:-1])


@pytest.mark.parametrize("exploration", ["gaussian", "state_dependent"])
def test_two_updates_of_ppo_equal_a_second_implementation(exploration: str) -> None:
    made = agent("ppo", entropy_coefficient=0.02, learning_rate=1e-2, max_gradient_norm=0.3, schedule="constant",
                 exploration=exploration)  # fmt: skip
    rows = batch()
    actor, value = layers(made.actor.mlp), layers(made.value.mlp)
    log_std = nn.Parameter(made.actor.log_std.detach().clone())
    parameters = [*actor.parameters(), log_std, *value.parameters()]
    adam = torch.optim.Adam(parameters, lr=1e-2, eps=1e-5)
    learner = Learner([made], [0], Uniform(lambda indices: rows, 100), batch_size=ROWS, dtype=torch.float64)
    for _ in range(2):
        std = log_std.exp()
        if exploration == "state_dependent":
            with torch.no_grad():
                features = actor[:-1](rows["observations"])
            std = torch.sqrt(features**2 @ std**2 + 1e-6)
        normal = torch.distributions.Normal(actor(rows["observations"]), std)
        rho = torch.exp(normal.log_prob(rows["actions"]).sum(1) - rows["behaviour_log_prob"])
        a = (rows["advantages"] - rows["advantages"].mean()) / (rows["advantages"].std() + 1e-8)
        policy = torch.max(-a * rho, -a * torch.clamp(rho, 0.8, 1.2)).mean()
        v = value(rows["observations"]).squeeze(1)
        near = rows["values"] + torch.clamp(v - rows["values"], -0.2, 0.2)
        critic = 0.5 * torch.max((v - rows["returns"]) ** 2, (near - rows["returns"]) ** 2).mean()
        loss = policy - 0.02 * normal.entropy().sum(1).mean() + 0.5 * critic
        adam.zero_grad()
        loss.backward()
        assert float(nn.utils.clip_grad_norm_(parameters, 0.3)) > 0.3
        adam.step()
        found = learner.run(1)
        assert found["loss"][0] == pytest.approx(float(loss), rel=1e-10)
        assert found["clip_fraction"][0] == pytest.approx(float(((rho < 0.8) | (rho > 1.2)).double().mean()))
    for mlp, network in ((made.actor.mlp, actor), (made.value.mlp, value)):
        for weight, linear in zip(mlp.weights, [m for m in network if isinstance(m, nn.Linear)], strict=True):
            torch.testing.assert_close(weight.detach(), linear.weight.detach(), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(made.actor.log_std.detach(), log_std.detach(), rtol=1e-7, atol=1e-9)


def test_golden_terms_of_ppo_go_through_the_agent() -> None:
    """Ratios 1.5, 1.2, 0.5 and 1 with advantages 1, -1, -0.5 and 2 give a loss of -0.4."""
    made = agent("ppo", advantage_scope="none")
    rows = {name: value[:4] for name, value in batch().items()}
    new = torch.tensor([0.3, 0.6, 0.2, 0.5], dtype=torch.float64)
    behaviour = torch.tensor([0.2, 0.5, 0.4, 0.5], dtype=torch.float64)
    with torch.no_grad():
        present = made.actor.log_density(rows["observations"], rows["actions"])
    rows["behaviour_log_prob"] = present - new.log() + behaviour.log()
    rows["advantages"] = torch.tensor([1.0, -1.0, -0.5, 2.0], dtype=torch.float64)
    loss, metrics = made.policy_loss(rows, {})
    assert float(loss) == pytest.approx(-0.4, abs=1e-8)
    assert float(metrics["kl_k1"]) == pytest.approx(0.02634013, abs=1e-8)
    assert float(metrics["kl_k3"]) == pytest.approx(0.07634013, abs=1e-8)


def gradient(made: Any, loss: Callable[..., Any], rows: dict[str, Tensor]) -> Tensor:
    for parameter in made.parameters():
        parameter.requires_grad_(True)
    found = torch.autograd.grad(loss(rows, {})[0], list(made.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([g.reshape(-1) for g in found])


def test_ppo_without_what_makes_it_ppo_has_the_gradient_of_a2c() -> None:
    options = {"clip": 1e6, "value_clip": None, "advantage_scope": "none", "value_coefficient": 1.0}
    ppo, a2c = agent("ppo", **options), agent("a2c")
    a2c.load_state_dict(ppo.state_dict())
    rows = batch()
    with torch.no_grad():
        rows["behaviour_log_prob"] = ppo.actor.log_density(rows["observations"], rows["actions"])
    torch.testing.assert_close(gradient(ppo, ppo.loss, rows), gradient(a2c, a2c.loss, rows), rtol=1e-10, atol=1e-12)


def test_mdpo_begins_with_the_gradient_of_an_unclipped_ratio_whatever_the_divergence_weighs() -> None:
    mdpo, ppo = agent("mdpo"), agent("ppo", clip=1e6, advantage_scope="none")
    ppo.load_state_dict(mdpo.state_dict())
    rows = batch()
    with torch.no_grad():
        outputs = mdpo.actor(rows["observations"])
        rows["behaviour"] = mdpo.actor.to_rows(outputs)
        rows["behaviour_log_prob"] = mdpo.actor.density_of(outputs, rows["actions"])
    at_old, unclipped = gradient(mdpo, mdpo.policy_loss, rows), gradient(ppo, ppo.policy_loss, rows)
    torch.testing.assert_close(at_old, unclipped, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        mdpo.actor.log_std.add_(0.5)
    pulled = gradient(mdpo, mdpo.policy_loss, rows)
    free = gradient(mdpo, mdpo.policy_loss, {**rows, "divergence_weight": torch.zeros(ROWS).double()})
    assert float((pulled - free).norm()) > 0.1  # away from it, the divergence pulls
    ppo.load_state_dict(mdpo.state_dict())
    torch.testing.assert_close(free, gradient(ppo, ppo.policy_loss, rows), rtol=1e-10, atol=1e-12)  # t -> infinity


def test_conjugate_gradients_solve_in_as_many_steps_as_there_are_unknowns() -> None:
    root = torch.randn(6, 6, dtype=torch.float64)
    matrix, target = root @ root.T + torch.eye(6).double(), torch.randn(6, dtype=torch.float64)
    found = conjugate_gradient(lambda v: matrix @ v, target, 6, 0.0)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, target), rtol=1e-8, atol=1e-9)
    assert torch.equal(conjugate_gradient(lambda v: matrix @ v, torch.zeros(6).double(), 6), torch.zeros(6).double())


def test_a_natural_step_goes_as_far_as_a_quadratic_divergence_lets_it() -> None:
    root = torch.randn(4, 4, dtype=torch.float64)
    fisher, slope = root @ root.T + torch.eye(4).double(), torch.randn(4, dtype=torch.float64)
    start, c = torch.randn(4, dtype=torch.float64), TRPOConfig(damping=0.0, max_kl=0.02)

    def divergence(x: Tensor) -> Tensor:  # a little less than quadratic, so that rounding does not decide
        quadratic = 0.5 * (x - start) @ fisher @ (x - start)
        return quadratic - 1e-6 * quadratic.square()

    found, metrics = natural_step(lambda x: slope @ (x - start), divergence, start, c)
    direction = torch.linalg.solve(fisher, slope)
    expected = start + direction * torch.sqrt(2 * 0.02 / (slope @ direction))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    assert float(metrics["kl"]) == pytest.approx(0.02, rel=1e-6)


@pytest.mark.parametrize("bonus", [0.0, 0.1])
def test_where_no_action_is_better_a_natural_step_climbs_the_entropy_or_stays(bonus: float) -> None:
    made = loop("trpo", Regulator(4), entropy_coefficient=bonus)
    columns = made.agent.columns(made.blocks.fill(0))
    batch = {name: column[0].flatten(0, 1) for name, column in columns.items()}
    batch["advantages"].zero_()
    before = made.agent.actor.log_std.detach().clone()
    changed, _ = made.agent.policy_step(batch, {})
    after = changed["actor.log_std"]
    assert bool((after > before + 0.01).all()) if bonus else torch.equal(after, before)


def test_a_natural_step_that_gains_nothing_is_not_taken() -> None:
    start = torch.zeros(3, dtype=torch.float64)

    def gain(x: Tensor) -> Tensor:  # rises at the start, and falls at once
        return x.sum() - 1e6 * x.square().sum()

    found, metrics = natural_step(gain, lambda x: 0.5 * x.square().sum(), start, TRPOConfig(backtracks=2))
    assert torch.equal(found, start)
    assert float(metrics["step_length"]) == 0


def test_returns_that_are_cut_go_on_with_their_own_mean() -> None:
    rewards, no = torch.ones(3, 1, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.bool)
    found = block_returns({"rewards": rewards, "terminations": no, "truncations": no}, 0.9)
    torch.testing.assert_close(found, torch.full_like(rewards, 10.0))  # 1 for ever
    ends = torch.tensor([[False], [False], [True]])
    found = block_returns({"rewards": rewards, "terminations": ends, "truncations": no}, 0.9)
    torch.testing.assert_close(found, torch.tensor([[2.71], [1.9], [1.0]], dtype=torch.float64))


# -- problems with a known answer --------------------------------------------------------------------------


VALUES: dict[str, Any] = {
    "num_envs": 16, "hidden": (16, 16), "normalize_observations": False, "normalize_rewards": False,
    "max_gradient_norm": 10.0,
}  # fmt: skip


def learned_value(made: OnPolicyLoop, at: list[float], steps: int) -> float:
    """The mean value of observations, averaged over the last of the blocks: it keeps moving a little with them."""
    made.run(steps)
    found = []
    for _ in range(8):
        made.run(steps // 50)
        with torch.no_grad():
            found.append(float(made.agent.value(torch.tensor(at)[:, None]).mean()))
    return float(np.mean(found))


@pytest.mark.parametrize(("env", "right"), [(Constant, True), (mistaken(EndsEverywhere, Constant), False)])
def test_a_time_limit_does_not_lower_the_value_of_what_goes_on_for_ever(env: type[Scripted], right: bool) -> None:
    """Reward 1, limit 20, discount 0.95: 1 / (1 - 0.95) = 20, and 12.8 at most where the limit is an end."""
    options = {**VALUES, "horizon": 64, "minibatches": 8, "epochs": 5, "learning_rate": 5e-3, "value_clip": None}
    made = loop("ppo", env(16), planned=20_000, discount=0.95, **options)
    assert_value(learned_value(made, [-1.0, -0.5, 0.0, 0.5, 1.0], 17_000), 20, right)


MISTAKES = [EndsEverywhere, StaysWhereItWas, FollowsIntoTheNextEpisode, LimitUntold]


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [("a2c", Climb), ("ppo", Climb), *(("ppo", mistaken(mistake, Climb)) for mistake in MISTAKES)],
)
def test_values_reach_past_a_time_limit_and_wrong_ways_to_treat_it_are_seen(
    algorithm: str, env: type[Scripted]
) -> None:
    """But for a sum of errors that continues over the limit from a right V(final): the values that it ends at are
    right, and GAE's golden numbers see it."""
    own = {"ppo": {"horizon": 8, "minibatches": 2, "epochs": 10, "learning_rate": 5e-3, "value_clip": None},
           "a2c": {"horizon": 3, "learning_rate": 1e-2}}  # fmt: skip
    made = loop(algorithm, env(16), planned=24_000, discount=0.9, **VALUES, **own[algorithm])
    found = learned_value(made, [0.0], 12_000 if algorithm == "ppo" else 20_000)
    assert_value(found, climbs_value(0.9), env is Climb)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "reinforce", "mdpo", "trpo"])
def test_the_best_arm_of_a_bandit_is_found(algorithm: str) -> None:
    options: dict[str, Any] = {"num_envs": 32, "horizon": 4, "hidden": (8,), "normalize_observations": False}
    if algorithm != "trpo":
        options["learning_rate"] = 1e-2
    made = loop(algorithm, Bandit(32), planned=200 * 128, **options)
    made.run(150 * 128)
    with torch.no_grad():
        outputs: Any = made.agent.actor(torch.linspace(-1, 1, 9)[:, None])
    assert float(outputs.exp()[:, Bandit.best].min()) > 0.95


@pytest.mark.parametrize(("exploration", "sign"), [
    ("gaussian", 1.0), ("state_dependent", 1.0), ("state_dependent", -1.0),
])  # fmt: skip
def test_ppo_finds_the_gain_of_the_linear_quadratic_regulator(
    exploration: str, sign: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Riccati at discount 0.95: u = -1.34427 x, and the action is half of u."""
    made = loop(
        "ppo", Regulator(64), planned=80_000, num_envs=64, horizon=32, minibatches=8, epochs=8, discount=0.95,
        learning_rate=3e-3, hidden=(32, 32), normalize_observations=False, initial_log_std=-1.0,
        exploration=exploration, hold_steps=None if exploration == "gaussian" else 2,
    )  # fmt: skip
    columns = made.agent.columns
    monkeypatch.setattr(
        made.agent, "columns", lambda block: {**(c := columns(block)), "advantages": sign * c["advantages"]}
    )
    made.run(80_000 if sign > 0 else 20_000)
    x = torch.linspace(-0.6, 0.6, 25)[:, None]
    with torch.no_grad():
        u = 2 * made.agent.act(x)
    slope = float((x * u).sum() / (x * x).sum())
    assert slope == pytest.approx(-1.34427, rel=0.1) if sign > 0 else slope > 0


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["right", "flipped"])
def test_ppo_learns_cart_pole_and_a_flipped_sign_would_be_seen(sign: float, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loop("ppo", make_vec("CartPole-v1", 8), planned=100_000, preset="zoo-cartpole", num_envs=8, horizon=32,
                hidden=(64, 64), epochs=20, minibatches=1)  # fmt: skip
    columns = made.agent.columns
    monkeypatch.setattr(
        made.agent, "columns", lambda block: {**(c := columns(block)), "advantages": sign * c["advantages"]}
    )
    made.run(6_000)
    reached = made.run(2_000)["episode_return"][0]
    assert reached > 60 if sign > 0 else reached < 25


@pytest.mark.parametrize("algorithm", ["a2c", "reinforce", "mdpo", "trpo"])
def test_the_others_learn_cart_pole_too(algorithm: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "a2c": {"num_envs": 16, "horizon": 16, "learning_rate": 5e-3},
        "reinforce": {"num_envs": 16, "horizon": 64, "learning_rate": 1e-2},
        "mdpo": {
            "num_envs": 8,
            "horizon": 64,
            "epochs": 5,
            "minibatches": 8,
            "policy_steps": 10,
            "learning_rate": 3e-3,
        },
        "trpo": {"num_envs": 8, "horizon": 64, "epochs": 5, "minibatches": 8},
    }
    made = loop(algorithm, make_vec("CartPole-v1", options[algorithm]["num_envs"]), planned=20_000,
                hidden=(32, 32), **options[algorithm])  # fmt: skip
    made.run(14_000)
    assert made.run(4_000)["episode_return"][0] > 60


def test_policies_of_ppo_come_back_from_their_files(tmp_path: Any) -> None:
    held = {"exploration": "state_dependent", "hold_steps": 4}
    for env_id, options in (("Pendulum-v1", {"observation_limit": 2.0}), ("CartPole-v1", {}), ("Pendulum-v1", held)):
        made = loop("ppo", env_id, **options)
        made.run(64)
        policy = made.learner.extract(0).policy()
        policy.save(tmp_path / env_id)
        again = type(policy).load(tmp_path / env_id)
        observations = 50 * torch.randn(40, policy.observation_dim)
        assert torch.equal(again(observations), policy(observations))
        noise = torch.randn(40, policy.action_dim)
        assert torch.equal(again(observations, noise), policy(observations, noise))
        assert again.discrete == (env_id == "CartPole-v1")
        assert isinstance(again.select_action(np.zeros(policy.observation_dim)), np.ndarray | np.generic)


def test_samples_of_a_discrete_policy_have_its_probabilities() -> None:
    made: Agent = loop("ppo", Bandit(4)).agent
    with torch.no_grad():
        made.actor.mlp.biases[-1].copy_(torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5]))
        observations = torch.zeros(40_000, 1)
        shares = made.actor.act(observations, torch.randn(40_000, 5)).mean(0)
        expected = made.actor(observations[:1])[0].exp()  # type: ignore[operator]
    torch.testing.assert_close(shares, expected, rtol=0, atol=0.01)
