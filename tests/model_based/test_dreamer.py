"""DreamerV3: losses and an update against a second implementation, its loop on vectors and images; that it learns."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import plain_dreamer as plain
import pytest
import torch
from online_problems import RICCATI, Regulator, spec
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Batch, Uniform
from surefoot.core.policy.policy import Policy
from surefoot.envs import make_vec
from surefoot.evaluation import evaluate
from surefoot.model_based import Dreamer
from surefoot.online import spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.world_models.recurrent.recurrent import window_of

SIZES: dict[str, Any] = {
    "deterministic": 6, "blocks": 2, "recurrent_hidden": 5, "units": 7, "count": 1, "groups": 2, "classes": 3,
    "windows": 3, "length": 3, "imagined": 3, "depth": 2, "encoder": "small", "encoder_features": 6,
    "warm_up": 0, "learning_rate": 0.01,
}  # fmt: skip
SPEC = Spec(3, 2, (-1.0, -2.0), (1.0, 2.0))
ROWS = 3


def agent(seed: int = 0, **options: Any) -> Dreamer:
    """In float64, its weights larger than they begin, so that nothing is hidden by zeros."""
    made = Dreamer(SPEC, **{**SIZES, **options}).fresh(seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def windows(seed: int = 0) -> Batch:
    """Windows of three steps: one whole, one cut by a limit after two, one terminated after one."""
    generator = torch.Generator().manual_seed(50 + seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    seen = 2 * normal(ROWS, 4, 3)
    batch = {
        "observations": seen[:, :-1], "next_observations": seen[:, 1:], "actions": normal(ROWS, 3, 2).tanh(),
        "rewards": 3 * normal(ROWS, 3), "terminations": torch.zeros(ROWS, 3, dtype=torch.float64),
        "mask": torch.ones(ROWS, 3, dtype=torch.float64),
    }  # fmt: skip
    batch["mask"][1, 2] = batch["mask"][2, 1] = batch["mask"][2, 2] = 0
    batch["terminations"][2, 0] = 1
    return batch


def learner(agents: Sequence[Dreamer], seeds: Sequence[int] = (0,), **options: Any) -> Learner:
    """On the same windows at every step, each seed on its own."""
    batches, dtype = [windows(seed) for seed in seeds], options.pop("dtype", torch.float64)
    one = {k: torch.stack([b[k] for b in batches]) if len(seeds) > 1 else v for k, v in batches[0].items()}
    ready = {key: value.to(dtype) for key, value in one.items()}
    return Learner(agents, list(seeds), Uniform(lambda indices: ready, ROWS), dtype=dtype, **options)


def noise_of(trained: Learner) -> dict[str, Tensor]:
    return {name: value[0].clone() for name, value in trained.stream.at(0).items()}


def copied(made: Dreamer) -> dict[str, Tensor]:
    found = {name: value.detach().clone().requires_grad_() for name, value in made.named_parameters()}
    return {**found, "critic.bins": made.critic.bins}


@pytest.mark.parametrize(
    "options", [{}, {"states": "gaussian", "free_nats": 0.0}, {"dynamics_weight": 0.5, "slow_weight": 0.0}]
)
def test_the_loss_equals_the_second_implementation(options: dict[str, Any]) -> None:
    made, noise = agent(**options), noise_of(learner([agent(**options)]))
    made.r_range.fill_(3.0)
    found, metrics = made.loss(windows(), noise)
    expected, spread = plain.loss(copied(made), windows(), noise, made.config, 3.0)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-8)
    assert float(metrics["r_range"]) == pytest.approx(float(spread), rel=1e-8)


def test_what_is_imagined_from_padding_is_not_in_the_range_of_returns() -> None:
    made, noise = agent(), noise_of(learner([agent()]))
    before = made.loss(windows(), noise)[1]["r_range"]
    drawn = noise["imagined"].unflatten(-1, (4, -1))
    drawn[2, 2:] += 3  # the last two of four states of the third window are padding
    assert torch.equal(made.loss(windows(), noise)[1]["r_range"], before)
    drawn[2, 1] += 3
    assert not torch.equal(made.loss(windows(), noise)[1]["r_range"], before)


@pytest.mark.parametrize("options", [{}, {"states": "gaussian", "clip": 1e-3, "epsilon": 1e-3, "blocks": 3}])
def test_an_update_equals_the_second_implementation(options: dict[str, Any]) -> None:
    weights, trained = copied(agent(**options)), learner([agent(**options)])
    noise = noise_of(trained)
    trained.run(1)
    spread = plain.one_update(weights, windows(), noise, trained.agent.config)
    found = trained.agents_parameters(0)
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value.detach(), rtol=1e-7, atol=1e-8, msg=name)
    assert float(found["r_range"]) == pytest.approx(spread, rel=1e-7)


def test_stacked_seeds_equal_each_seed_alone() -> None:
    seeds = [3, 0]
    together = learner([agent(seed) for seed in seeds], seeds)
    together.run(3)
    for position, seed in enumerate(seeds):
        alone = learner([agent(seed)], [seed])
        alone.run(3)
        for name, value in alone.agents_parameters(0).items():
            torch.testing.assert_close(together.agents_parameters(position)[name], value, rtol=1e-8, atol=1e-8)


def test_a_tape_gives_what_eager_steps_give() -> None:
    found = []
    for kernels in (False, True):
        trained = learner([agent().float()], dtype=torch.float32, kernels=kernels)
        trained.run(2)
        assert not trained.eager_because() or not kernels
        found.append(trained.agents_parameters(0))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-3, atol=1e-4)


def test_what_lies_behind_an_episodes_end_changes_no_loss() -> None:
    made, noise, batch = agent(), noise_of(learner([agent()])), windows()
    before = made.loss(batch, noise)
    for name in ("next_observations", "rewards", "actions", "terminations"):
        batch[name] = batch[name].clone()
        batch[name][1, 2] = 0.3
        batch[name][2, 1:] = 0.3
    assert float(made.loss(batch, noise)[0].detach()) == pytest.approx(float(before[0].detach()), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "dreamer.length is 0"),
        ({"trace": 1.5}, "dreamer.trace is 1.5"),
        ({"slow_weight": -1.0}, "dreamer.slow_weight is -1.0"),
        ({"states": "discrete"}, "states are 'discrete'"),
        ({"classes": 1}, "2 groups of 1"),
        ({"blocks": 4}, "a deterministic state of 6 has no 4 blocks"),
        ({"offline_fraction": 0.5}, "dreamer.offline_fraction"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Dreamer(SPEC, **{**SIZES, **options})


# -- in the loop -----------------------------------------------------------------------------------------------


def loop(env: str, seeds: Sequence[int] = (0,), **options: Any) -> OffPolicyLoop:
    given = {"num_envs": 2, "initial_steps": 20, "free_nats": 0.0, **SIZES, **options}
    vector = make_vec(env, len(seeds) * given["num_envs"])
    agents = [Dreamer(spec_of(vector), **given).fresh(seed) for seed in seeds]
    return OffPolicyLoop(agents, seeds, vector, planned_steps=200, kernels=len(seeds) == 1)


KINDS = pytest.mark.parametrize("env", ["native/pendulum", "native/pendulum-pixels", "native/pendulum-camera"])


@KINDS
def test_vectors_images_and_both_are_learned_from_and_a_killed_run_goes_on_bit_for_bit(env: str) -> None:
    whole = loop(env)
    before = {name: value.clone() for name, value in whole.learner.agents_parameters(0).items()}
    whole.run(40)
    state, step = {name: value.clone() for name, value in whole.state(0).items()}, whole.step
    assert state["loop/memory/state"].any()
    whole.run(12)
    other = loop(env)
    assert other.restore([state], step) is None
    other.run(12)
    for name, value in whole.state(0).items():
        assert torch.equal(value, other.state(0)[name]), name
    still = {n for n, v in whole.learner.agents_parameters(0).items() if torch.equal(v, before[n])}
    assert all("bins" in name or name.startswith(("normalizer", "action_", "reward_s")) for name in still), still


def test_windows_gather_pictures_at_the_steps_that_are_read_and_train_as_whole_ones() -> None:
    """A window of L steps shows L + 1 pictures, not 2 L."""
    ours, whole = (loop("native/pendulum-camera", windows=8) for _ in range(2))
    source = whole.learner.sources[MAIN]
    source.at_first = ""  # type: ignore[attr-defined]
    for trained in (ours, whole):
        trained.run(30)
    rows = torch.arange(10)
    batch, wide = ours.learner.sources[MAIN].gather(rows), source.gather(rows)
    assert batch["observations/image"].shape[:2] == batch["observations/velocity"].shape[:2] == (10, 1)
    assert wide["observations/image"].shape[:2] == batch["next_observations/image"].shape[:2] == (10, SIZES["length"])
    keys: Any = ours.agent.keys
    for name, value in window_of(wide, keys).observed.items():
        assert torch.equal(window_of(batch, keys).observed[name], value), name
    for name, value in whole.learner.agents_parameters(0).items():
        assert torch.equal(ours.learner.agents_parameters(0)[name], value), name


@KINDS
def test_policies_are_saved_and_evaluated_in_batches(env: str, tmp_path: pathlib.Path) -> None:
    policy = Dreamer(spec_of(make_vec(env, 1)), **SIZES).fresh(0).policy()
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy")
    one, other = (evaluate([p], env, 2, num_envs=2)[0] for p in (policy, loaded))
    assert one.returns.tolist() == other.returns.tolist()
    assert policy.has_memory
    assert not policy.always_samples


def test_the_memory_is_the_state_that_windows_find() -> None:
    """Acting step by step without noise gives the states of `RSSM.observe`, and an end begins anew."""
    made = agent(states="gaussian").requires_grad_(False)
    head, batch = made.actor, windows()
    observed, before, first, _ = window_of(batch, made.keys)
    wanted = made.model.rssm.observe(made.model.embed(observed["observations"]), before, first, None).joint
    memory = head.begin(ROWS)
    for time in range(4):
        _, memory = head.step(observed["observations"][:, time], memory)
        torch.testing.assert_close(memory["state"], wanted[:, time])
        if time < 3:
            memory = head.executed(memory, batch["actions"][:, time])
    ended = torch.tensor([True, False, True])
    after = head.observe_outcome(memory, torch.zeros(3), torch.zeros(3), ended)
    assert after["state"].any(1).tolist() == [False, True, False]
    assert after["last_action"].any(1).tolist() == [False, True, False]


@pytest.mark.slow
def test_it_finds_the_regulators_gain_in_imagination() -> None:
    """Of a linear-quadratic problem, Riccati's: see `online_problems.Regulator`."""
    env = Regulator(8)
    made = Dreamer(
        spec(env), num_envs=8, initial_steps=256, updates_per_step=0.1, deterministic=32, recurrent_hidden=32,
        units=32, count=1, groups=4, classes=8, windows=16, length=5, imagined=5, discount=0.95, learning_rate=1e-3,
        warm_up=0,
    ).fresh(0)  # fmt: skip
    trained = OffPolicyLoop([made], [0], env, planned_steps=6000, kernels=True)
    states, gains = torch.linspace(-1, 1, 41)[:, None], []
    trained.run(4000)
    for _ in range(4):
        trained.run(500)
        with torch.no_grad():
            gains.append(float((2 * made.actor.act(states) * states).sum() / states.square().sum()))
    assert sum(gains) / 4 == pytest.approx(RICCATI, rel=0.3), gains
