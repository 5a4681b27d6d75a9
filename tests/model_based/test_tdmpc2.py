"""TD-MPC2: losses and an update against a second implementation, its discount, its loop, and that it learns."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import plain_tdmpc2 as plain
import pytest
import torch
from online_problems import RICCATI, Regulator, spec
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Batch, Uniform
from surefoot.core.policy.policy import Policy
from surefoot.envs import make_vec
from surefoot.evaluation import evaluate
from surefoot.model_based import TDMPC2
from surefoot.model_based.base.alarm import Alarm
from surefoot.online import spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.world_models.latent.latent import discount_of

SIZES: dict[str, Any] = {
    "latent_dim": 8, "hidden": (9, 6), "encoder_hidden": (7,), "group": 4, "bins": 13, "limit": 3.0, "critics": 3,
    "horizon": 2, "samples": 12, "prior_samples": 3, "elites": 4, "iterations": 2, "dropout": 0.3,
}  # fmt: skip
SPEC = Spec(3, 2, (-1.0, -2.0), (1.0, 2.0))
ROWS = 6


def agent(seed: int = 0, **options: Any) -> TDMPC2:
    """In float64, its weights larger than they begin, so that nothing is hidden by zeros."""
    made = TDMPC2(SPEC, **{**SIZES, **options}).fresh(seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def windows(seed: int = 0) -> Batch:
    """Windows of two steps, some of them cut after the first, in one of which an episode has terminated."""
    generator = torch.Generator().manual_seed(100 + seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    batch = {
        "observations": normal(ROWS, 2, 3), "next_observations": normal(ROWS, 2, 3),
        "actions": normal(ROWS, 2, 2).tanh(), "rewards": 3 * normal(ROWS, 2),
        "terminations": torch.zeros(ROWS, 2, dtype=torch.float64), "mask": torch.ones(ROWS, 2, dtype=torch.float64),
    }  # fmt: skip
    batch["mask"][1, 1] = batch["mask"][4, 1] = 0
    batch["terminations"][1, 0] = 1
    return batch


def learner(agents: Sequence[TDMPC2], seeds: Sequence[int] = (0,), **options: Any) -> Learner:
    """On the same windows at every step, each seed on its own."""
    batches = [windows(seed) for seed in seeds]
    several = options.get("stacked", len(seeds) > 1)
    one = {k: torch.stack([b[k] for b in batches]) if several else v for k, v in batches[0].items()}
    dtype = options.pop("dtype", torch.float64)
    ready = {key: value.to(dtype) for key, value in one.items()}
    return Learner(agents, list(seeds), Uniform(lambda indices: ready, ROWS), batch_size=ROWS, dtype=dtype, **options)


def noise_of(trained: Learner, step: int = 0) -> dict[str, Tensor]:
    return {name: value[0].clone() for name, value in trained.stream.at(step).items()}


def copied(made: TDMPC2) -> dict[str, Tensor]:
    found = {name: value.detach().clone().requires_grad_() for name, value in made.named_parameters()}
    return found


@pytest.mark.parametrize("terminates", [False, True])
def test_losses_equal_the_second_implementation(terminates: bool) -> None:
    made = agent(terminates=terminates)
    made.q_range.fill_(2.5)
    weights, batch = copied(made), windows()
    noise = noise_of(learner([agent(terminates=terminates)]))
    found, metrics = made.model_loss(batch, noise)
    assert float(found.detach()) == pytest.approx(
        float(plain.model_loss(weights, batch, noise, made.config, made.discount).detach()), rel=1e-10
    )
    assert ("termination_loss" in metrics) == terminates
    own, metrics = made.prior_loss(batch, noise)
    expected, first = plain.prior_loss(weights, batch, noise, made.config, 2.5)
    assert float(own.detach()) == pytest.approx(float(expected.detach()), rel=1e-10)
    torch.testing.assert_close(metrics["q"][:, 0].detach(), first)


@pytest.mark.parametrize("options", [{}, {"max_gradient_norm": 0.01, "terminates": True, "dropout": 0.0}])
def test_updates_equal_the_second_implementation(options: dict[str, Any]) -> None:
    weights, q_range = copied(agent(**options)), 1.0
    trained = learner([agent(**options)])
    made, noise = trained.agent, noise_of(trained)
    trained.run(1)
    q_range = plain.one_update(weights, windows(), noise, made.config, made.discount, q_range)
    found = trained.agents_parameters(0)
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value.detach(), rtol=1e-9, atol=1e-9, msg=name)
    assert float(found["q_range"]) == pytest.approx(q_range, abs=1e-9)


def test_stacked_seeds_equal_each_seed_alone() -> None:
    seeds = [3, 0]
    together = learner([agent(seed) for seed in seeds], seeds)
    report = together.run(5)
    assert together.stacked
    for position, seed in enumerate(seeds):
        alone = learner([agent(seed)], [seed])
        own = alone.run(5)
        for name, value in alone.agents_parameters(0).items():
            torch.testing.assert_close(together.agents_parameters(position)[name], value, rtol=1e-9, atol=1e-9)
        assert {n: v[position] for n, v in report.items()} == pytest.approx({n: v for n, (v,) in own.items()}, rel=1e-8)


def test_a_tape_gives_what_eager_steps_give() -> None:
    found = []
    for kernels in (False, True):
        trained = learner([agent().float()], dtype=torch.float32, kernels=kernels)
        trained.run(3)
        assert not kernels or trained.capture.how == "eager" or not trained.eager_because()
        found.append(trained.agents_parameters(0))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=2e-4, atol=2e-5)


def test_the_consistency_loss_is_nothing_where_the_model_is_the_worlds() -> None:
    """s' = s + a, encoded as it is: dynamics that do the same are never wrong, whatever the windows."""
    made = TDMPC2(Spec(2, 2, (-1.0, -1.0), (1.0, 1.0)), **{**SIZES, "latent_dim": 2, "group": 2}).fresh(0).double()

    class Identity(torch.nn.Module):
        def forward(self, observations: Tensor) -> Tensor:
            return observations

    class Adding(torch.nn.Module):
        def forward(self, pairs: Tensor) -> Tensor:
            return pairs[..., :2] + pairs[..., 2:]

    made.representation, made.model.dynamics = Identity(), Adding()  # type: ignore[assignment]
    batch = windows()
    states = [batch["observations"][:, 0, :2]]
    for time in range(2):
        states.append(states[-1] + batch["actions"][:, time])
    batch |= {"observations": torch.stack(states[:2], 1), "next_observations": torch.stack(states[1:], 1)}
    noise = noise_of(learner([agent()]))
    noise["keep"] = torch.ones_like(noise["keep"])
    assert float(made.model_loss(batch, noise)[1]["consistency"]) == pytest.approx(0.0, abs=1e-20)
    batch["next_observations"][0, 1] += 1.0
    assert float(made.model_loss(batch, noise)[1]["consistency"]) > 0.01


def test_what_lies_behind_an_episodes_end_does_not_count() -> None:
    noise, batch = noise_of(learner([agent()])), windows()
    losses = [float(loss(batch, noise)[0].detach()) for loss in (agent().model_loss, agent().prior_loss)]
    for name in ("next_observations", "rewards", "actions", "terminations"):
        batch[name] = batch[name].clone()
        batch[name][1, 1] = batch[name][4, 1] = 0.7
    after = [float(loss(batch, noise)[0].detach()) for loss in (agent().model_loss, agent().prior_loss)]
    assert after[0] == pytest.approx(losses[0], rel=1e-12)


@pytest.mark.parametrize(
    ("length", "discount"), [(25, 0.95), (100, 0.95), (200, 0.975), (500, 0.99), (1000, 0.995), (5000, 0.995)]
)
def test_the_discount_follows_from_the_episodes_length(length: int, discount: float) -> None:
    assert discount_of(length) == pytest.approx(discount, abs=1e-12)
    assert TDMPC2(SPEC, episode_length=length, **SIZES).discount == pytest.approx(discount)
    assert TDMPC2(SPEC, episode_length=length, discount=0.7, **SIZES).discount == 0.7


@pytest.mark.parametrize(("size", "iterations"), [(19, 6), (20, 8)])
def test_many_actions_are_searched_for_longer(size: int, iterations: int) -> None:
    options = {name: value for name, value in SIZES.items() if name != "iterations"}
    made = TDMPC2(Spec(3, size, (-1.0,) * size, (1.0,) * size), **options)
    assert made.actor.options["iterations"] == iterations


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "tdmpc2.horizon is 0"),
        ({"dropout": 1.0}, "tdmpc2.dropout is 1.0"),
        ({"std_range": (2.0, 0.1)}, "tdmpc2.std_range"),
        ({"value_weight": -1.0}, "tdmpc2.value_weight"),
        ({"offline_fraction": 0.5}, "tdmpc2.offline_fraction"),
        ({"episode_length": 0}, "tdmpc2.episode_length"),
        ({"step_decay": 0.0}, "tdmpc2.step_decay"),
        ({"critics": 1}, "critics is 1"),
        ({"iterations": 0}, "iterations 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"encoder_factor": -1.0}, "tdmpc2.encoder_factor"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TDMPC2(SPEC, **{**SIZES, **options})


# -- in the loop -----------------------------------------------------------------------------------------------


def loop(seeds: Sequence[int] = (0,), env: str = "native/pendulum", **options: Any) -> OffPolicyLoop:
    given = {"num_envs": 2, "initial_steps": 40, **SIZES, **options}
    vector = make_vec(env, len(seeds) * given["num_envs"])
    agents = [TDMPC2(spec_of(vector), **given).fresh(seed) for seed in seeds]
    return OffPolicyLoop(agents, seeds, vector, planned_steps=400, batch_size=16, kernels=len(seeds) == 1)


def test_the_random_steps_are_learned_from_at_once_and_then_step_by_step() -> None:
    config = TDMPC2(SPEC, **SIZES, initial_steps=40).config
    assert [config.training_steps(step) for step in (0, 39, 40, 41)] == [0, 0, 40, 41]
    config = TDMPC2(SPEC, **SIZES, initial_steps=40, pretrain=False, updates_per_step=0.5).config
    assert [config.training_steps(step) for step in (39, 40, 42)] == [0, 0, 1]


def test_plans_are_remembered_and_begin_anew_with_an_episode() -> None:
    made = loop(initial_steps=380, num_envs=1)
    made.run(380)
    assert not made.memory["plan"].any()
    made.run(10)
    assert made.memory["plan"][..., 0, :].all()
    assert not made.memory["plan"][..., -1, :].any()
    made.run(10)  # the second episode's end
    assert not made.memory["plan"].any()


def test_values_are_compared_with_what_the_rewards_met_allow_and_nothing_else_is_watched() -> None:
    made = loop()
    told = {name: values[0] for name, values in made.run(60).items()}
    alarm = Alarm(made.learner.agent.config)
    alarm.observe_outcome(60, told)
    assert alarm.watched == ["value_excess", "value_growth"]
    assert told["lowest_reward"] < told["highest_reward"] == 0
    assert float(made.learner.buffers["lowest_reward"][0]) == pytest.approx(told["lowest_reward"])
    assert told["value_excess"] == pytest.approx(told["q"] / -told["lowest_reward"] * (1 - 0.99), rel=1e-3)


def test_what_is_not_learned_of_an_environment_is_said() -> None:
    def notes(env_id: str | None, **options: Any) -> list[str]:
        known = spec_of(make_vec(env_id or "native/pendulum", 1))
        return TDMPC2(dataclasses.replace(known, environment=env_id), **{**SIZES, **options}).notes(None)

    assert notes(None) == notes("native/pendulum", episode_length=200) == []
    assert notes("native/pendulum") == [
        "the discount, 0.99, is that of episodes of 500 steps, and those of native/pendulum have 200: "
        "algo.episode_length=200 is for them"
    ]
    assert notes("native/pendulum", discount=0.99) == []
    (ends,) = notes("native/cartpole-balance", episode_length=500)
    assert "algo.terminates=true" in ends
    assert notes("native/cartpole-balance", episode_length=500, terminates=True) == []


def test_a_killed_run_goes_on_bit_for_bit() -> None:
    whole = loop()
    whole.run(60)
    state, step = {name: value.clone() for name, value in whole.state(0).items()}, whole.step
    assert state["loop/memory/plan"].any()
    whole.run(20)
    other = loop()
    assert other.restore([state], step) is None
    other.run(20)
    for name, value in whole.state(0).items():
        assert torch.equal(value, other.state(0)[name]), name


def test_seeds_that_act_together_act_as_each_alone() -> None:
    both, alone = loop((4, 7)), loop((7,))
    both.run(50)
    alone.run(50)
    torch.testing.assert_close(both.memory["plan"][1], alone.memory["plan"][0], rtol=1e-3, atol=1e-3)


def test_a_policy_is_saved_evaluated_in_a_batch_and_acts_alone(tmp_path: pathlib.Path) -> None:
    made = TDMPC2(spec_of(make_vec("native/cartpole-balance", 1)), **SIZES).fresh(0)
    policy = made.policy()
    assert policy.has_memory
    assert policy.always_samples
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy")
    one, other = (evaluate([p], "native/cartpole-balance", 4, num_envs=4)[0] for p in (policy, loaded))
    assert one.returns.tolist() == other.returns.tolist()
    observation = torch.zeros(policy.observation_dim).numpy()
    loaded.reset(3)
    first = [float(loaded.select_action(observation)[0]) for _ in range(3)]
    loaded.reset(3)
    assert first == [float(loaded.select_action(observation)[0]) for _ in range(3)]


def test_images_and_choices_are_refused() -> None:
    with pytest.raises(ConfigError, match="tdmpc2 learns from one vector"):
        TDMPC2(spec_of(make_vec("native/pendulum-pixels", 1)), **SIZES)
    with pytest.raises(ConfigError, match="tdmpc2 learns continuous actions"):
        TDMPC2(Spec(3, 2, (0.0, 0.0), (1.0, 1.0), True), **SIZES)


@pytest.mark.slow
def test_a_file_that_plans_without_surefoot_gives_the_same_actions(tmp_path: pathlib.Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = agent(std_range=(0.1, 0.5), iterations=1).float().policy()
    policy.export(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    generator = torch.Generator().manual_seed(0)
    observations, noise = (torch.randn(5, n, generator=generator) for n in (3, policy.noise_dim))
    plan = torch.rand(5, 2, 2, generator=generator) - 0.5
    actions, memory = policy.act(observations, {**policy.begin(5), "plan": plan}, noise)
    given = {
        "observations": observations,
        "noise": noise,
        "ended": torch.zeros(5, dtype=torch.bool),
        "memory.plan": plan,
    }
    found = session.run(None, {name: value.numpy() for name, value in given.items()})
    torch.testing.assert_close(torch.from_numpy(found[0]), actions, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(found[1]), memory["plan"], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_prior_and_plans_find_the_regulators_gain() -> None:
    """Of a linear-quadratic problem, Riccati's: see `online_problems.Regulator`."""
    env = Regulator(8)
    made = TDMPC2(
        spec(env), num_envs=8, initial_steps=256, updates_per_step=0.25, pretrain=False, latent_dim=16, hidden=(32, 32),
        encoder_hidden=(32,), group=4, critics=2, bins=41, limit=5.0, samples=32, prior_samples=8, elites=8,
        iterations=3, discount=0.95, learning_rate=3e-3, target_rate=0.05, encoder_factor=1.0, dropout=0.0, horizon=2,
        entropy_weight=1e-3,
    ).fresh(0)  # fmt: skip
    trained = OffPolicyLoop([made], [0], env, planned_steps=2400, batch_size=64, kernels=True)
    states, generator, gains = torch.linspace(-1, 1, 41)[:, None], torch.Generator().manual_seed(0), []
    trained.run(1400)
    for _ in range(5):
        trained.run(200)
        with torch.no_grad():
            own = made.prior.act(made.representation(states))
            drawn = torch.randn(3 * 41, made.actor.noise_dim, generator=generator)
            planned = made.actor.act(states.repeat(3, 1), drawn).view(3, 41, 1).mean(0)
        gains.append([float((2 * a * states).sum() / states.square().sum()) for a in (own, planned)])
    assert torch.tensor(gains).mean(0).tolist() == pytest.approx([RICCATI, RICCATI], rel=0.15), gains
