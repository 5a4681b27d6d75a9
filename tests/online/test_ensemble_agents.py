"""REDQ, RLPD and WSRL: identities between them, presets, and what each draws its batches from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ensemble_rows import rows_of
from online_problems import Constant, Counting, Regulator, loop, parameters, spec
from plain_layers import layers
from refusals import refused

from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Uniform
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.store import Store
from surefoot.envs.vector import make_vec
from surefoot.offline import CQL
from surefoot.online import ALGORITHMS, REDQ, RLPD, SAC, WSRL, IQLOnline
from surefoot.online.loops.off_policy import OffPolicyLoop

SMALL: dict[str, Any] = {"hidden": (16, 16), "initial_steps": 20}


def dataset(rows: int = 200) -> Dataset:
    """Transitions of an environment of one number, recognisable by observations above 100."""
    source = np.random.default_rng(3)
    observations = 100 + source.uniform(0, 1, (rows, 1)).astype(np.float32)
    ends = np.zeros(rows, bool)
    ends[9::10] = True
    return Dataset(
        name="made",
        observations=observations,
        actions=source.uniform(-1, 1, (rows, 1)).astype(np.float32),
        rewards=source.normal(size=rows).astype(np.float32),
        next_observations=observations + 1,
        terminations=np.zeros(rows, bool),
        truncations=ends,
        episode_ids=np.arange(rows) // 10,
        valid=np.ones(rows, bool),
    )


def trained(agent: Any, steps: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    store = Store.pack(rows_of(50), dtype=dtype)
    agent.batch_size = 8
    learner = Learner([agent], [4], Uniform(store), batch_size=8, dtype=dtype)
    learner.run(steps)
    return torch.cat([v.reshape(-1) for v in learner.agents_parameters(0).values()])


def test_redq_of_two_critics_and_one_step_is_sac() -> None:
    problem = Spec(3, 1, (-1.0,), (1.0,))
    same: dict[str, Any] = {"hidden": (8, 8), "critics": 2, "critic_steps": 1, "initialization": "torch"}
    sac = SAC(problem, hidden=(8, 8), critic_loss_over="sum").fresh(1)
    redq = REDQ(problem, **same, actor_value="min").fresh(1)
    mean = REDQ(problem, **same).fresh(1)
    first, second, third = trained(sac, 20), trained(redq, 20), trained(mean, 20)
    assert torch.equal(first, second)
    assert not torch.allclose(first, third)  # up to the actor's mean


def test_wsrl_that_keeps_the_data_is_its_rlpd_baseline() -> None:
    found = []
    for algorithm, preset in (("wsrl", "wsrl-locomotion"), ("rlpd", "wsrl")):
        kind = ALGORITHMS[algorithm]
        agent = kind(spec(Counting()), preset=preset, offline_fraction=0.5, **SMALL).fresh(0)
        made = OffPolicyLoop(
            [agent], [0], Counting(), planned_steps=100, batch_size=8, dataset=agent.prepare(dataset())
        )
        made.run(30)
        assert made.learner.step == 10
        found.append(parameters(made))
    assert torch.equal(*found)


# -- presets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "preset", "expected", "rest"),
    [
        ("wsrl", "repository", (10, 2, True, "min", "mean", False, -3.0, True, True, 4, "all", "softplus"),
         (5000, "policy", 1e-4, 3e-4, 1e-4, 0.0, (256, 256))),
        ("rlpd", "locomotion", (10, 2, False, "mean", "mean", True, -1.5, False, True, 20, "last", "exp"),
         (5000, "uniform", 3e-4, 3e-4, 3e-4, 0.5, (256, 256))),
        ("rlpd", "antmaze", (10, 1, False, "mean", "mean", False, -1.5, False, True, 20, "last", "exp"),
         (5000, "uniform", 3e-4, 3e-4, 3e-4, 0.5, (256, 256, 256))),
        ("rlpd", "adroit", (10, 2, False, "mean", "mean", False, -1.5, False, True, 20, "last", "exp"),
         (5000, "uniform", 3e-4, 3e-4, 3e-4, 0.5, (256, 256, 256))),
        ("rlpd", "wsrl", (10, 2, False, "min", "mean", False, -3.0, True, True, 4, "all", "softplus"),
         (5000, "policy", 1e-4, 3e-4, 1e-4, 0.5, (256, 256))),
        ("redq", "hopper", (10, 2, False, "mean", "sum", True, -1.0, False, False, 20, "last", "log"),
         (5000, "uniform", 3e-4, 3e-4, 3e-4, 0.0, (256, 256))),
    ],
)  # fmt: skip
def test_presets_differ_as_table_1_7_says(
    algorithm: str, preset: str, expected: tuple[Any, ...], rest: tuple[Any, ...]
) -> None:
    agent: Any = ALGORITHMS[algorithm](Spec(4, 3, (-1.0,) * 3, (1.0,) * 3), preset=preset)
    c = agent.config
    replaced = getattr(c, "subset_replacement", False)
    found = (c.critics, c.subset, replaced, c.actor_value, c.critic_loss_over, c.entropy_backup,
             agent.target_entropy, c.layer_norm_actor, c.layer_norm_critic, c.critic_steps, c.actor_rows,
             c.temperature_form)  # fmt: skip
    assert found == expected
    rates = (c.actor_learning_rate, c.critic_learning_rate, c.temperature_learning_rate)
    assert (c.initial_steps, c.initial_actions, *rates, c.offline_fraction, c.hidden) == rest
    assert agent.batch_size == 256  # of each critic step


def test_layer_norms_of_rlpd_and_wsrl_add_flaxs_epsilon_to_the_variance() -> None:
    """As its own layers of torch with 1e-6, the default of flax's, where torch's is 1e-5; a CQL run fits WSRL's."""
    for kind, epsilon in ((RLPD, 1e-6), (WSRL, 1e-6), (REDQ, 1e-5)):
        agent = kind(spec(Constant()), layer_norm_actor=True, layer_norm_critic=True, hidden=(8, 6)).double()
        inputs = 1e-3 * torch.randn(5, 2, dtype=torch.float64)
        with torch.no_grad():
            for mlp in (agent.actor.mlp, agent.critic.mlp):
                mlp.biases[0].zero_()
            expected = layers(agent.critic.mlp, 1, epsilon)(inputs)[:, 0]
            torch.testing.assert_close(agent.critic(inputs)[1], expected, rtol=1e-12, atol=1e-12)
            expected = layers(agent.actor.mlp, epsilon=epsilon)(inputs[:, :1])
            torch.testing.assert_close(agent.actor.mlp(inputs[:, :1]), expected, rtol=1e-12, atol=1e-12)
    assert WSRL.configure().layer_norm_epsilon == CQL.configure().layer_norm_epsilon == 1e-6


def test_redqs_target_entropies_are_mbpos() -> None:
    found = {name: REDQ.configure(preset=name).target_entropy for name in REDQ.PRESETS if name != "paper"}
    assert found == {"hopper": -1, "halfcheetah": -3, "walker2d": -3, "ant": -4, "humanoid": -2}


def test_what_a_setting_cannot_be_is_named() -> None:
    with refused("subset", "conflict"):
        WSRL.configure(subset=1.5, subset_replacement=True)
    with refused("subset", "type"):
        CQL.configure(subset=1.5)
    with refused("discount", "type"):
        SAC.configure(discount="high")
    with refused("critics", "type"):
        REDQ.configure(critics=True)
    with refused("entropy_backup", "type"):
        REDQ.configure(entropy_backup=1)
    with refused("hidden", "type"):
        SAC.configure(hidden=256)
    with refused("critic_hidden", "type"):
        REDQ.configure(critic_hidden=256)
    with refused("initial_actions", "conflict"):
        WSRL.configure(initial_actions="uniform")


@pytest.mark.parametrize("algorithm", [name for name, kind in ALGORITHMS.items() if hasattr(kind, "batch_size")])
def test_every_preset_builds_and_names_what_it_inherits(algorithm: str) -> None:
    kind = ALGORITHMS[algorithm]
    for preset in kind.PRESETS:
        problem = Spec.of_choices(1, 3) if kind.requires.discrete else spec(Constant())
        agent = kind(problem, preset=preset, hidden=(4,))
        own = {name.split(".")[0] for name in agent.state_dict()}
        assert set(kind.warm_start.networks) - {"encoder"} <= own  # which problems of one vector have not


def test_the_actor_of_several_critic_steps_sees_the_last_rows_or_all() -> None:
    sizes = []
    for rows in ("last", "all"):
        agent = REDQ(spec(Constant()), hidden=(4,), critic_steps=4, actor_rows=rows)
        batch = {"observations": torch.arange(32.0)[:, None], "next_observations": torch.zeros(32, 1)}
        seen = agent.actors_rows(batch["observations"])
        sizes.append((len(seen), float(seen[0])))
        _, metrics = agent.actor_loss(batch, {"action": torch.zeros(32, 1)})
        assert len(metrics["entropy"]) == len(seen)
    assert sizes == [(8, 24.0), (32, 0.0)]


def test_targets_move_after_every_critic_step() -> None:
    agent = REDQ(Spec(3, 1, (-1.0,), (1.0,)), hidden=(4,), critics=2, critic_steps=5, critic_learning_rate=0.0).fresh(0)
    with torch.no_grad():
        for target in agent.target_critic.parameters():
            target.zero_()
    wanted = [p.detach().double().clone() for p in agent.critic.parameters()]
    trained(agent, 2)
    for target, online in zip(agent.target_critic.parameters(), wanted, strict=True):
        torch.testing.assert_close(target.detach(), (1 - (1 - 0.005) ** 10) * online)  # identity 14


# -- WSRL and RLPD in their loops -------------------------------------------------------------------------------


def test_wsrl_warms_up_with_its_frozen_stochastic_policy_and_takes_no_update_before() -> None:
    made = loop("wsrl", Counting(), initial_steps=60, batch_size=8)
    before = parameters(made).clone()
    made.run(60)
    assert torch.equal(before, parameters(made))
    assert made.learner.step == 0
    buffer = made.experience.buffer
    actions = buffer["actions"][:60]
    agent = made.agent
    noise = torch.from_numpy(np.stack([_acting(step) for step in range(60)]))
    with torch.no_grad():
        expected = agent.act(buffer["observations"][:60], noise)
    torch.testing.assert_close(actions, expected, rtol=1e-5, atol=1e-6)
    made.run(5)
    assert made.learner.step == 5
    assert not torch.equal(before, parameters(made))


def _acting(step: int) -> np.ndarray:
    block, offset = divmod(step, 32)
    source = CounterGenerator([0], "acting", block, torch.device("cpu"))
    numbers: np.ndarray = source.standard_normal((32, 1, 1))[0, offset, 0].numpy()
    return numbers


def test_half_of_every_slice_of_a_batch_is_the_datasets() -> None:
    agent = RLPD(spec(Counting()), hidden=(4,), critics=2, critic_steps=3, initial_steps=20).fresh(0)
    made = OffPolicyLoop([agent], [0], Counting(), planned_steps=100, batch_size=8, dataset=agent.prepare(dataset()))
    made.run(25)
    learner = made.learner
    for step in range(5):
        indices = learner.sources[MAIN].rows(step)
        batch = learner.sources[MAIN].gather(indices[0])
        from_data = batch["observations"][:, 0] > 50
        assert from_data.tolist() == [True, False] * 12
        torch.testing.assert_close(batch["observation_actions"][:, :1], batch["observations"])
        source: Any = learner.sources[MAIN]
        again = source.gather(indices[0], source.workspace(24))
        for key, value in batch.items():
            assert torch.equal(value, again[key]), key
    seen = torch.cat([learner.sources[MAIN].rows(step)[0, ::2] for step in range(200)])
    assert set(seen.tolist()) == set(range(200))


def test_a_dataset_that_is_not_kept_and_one_that_is_missing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"wsrl keeps no offline data: leave dataset= out, or set algo.offline_fract"):
        loop("wsrl", Counting(), dataset=dataset(), **SMALL)
    with pytest.raises(ConfigError, match=r"rlpd draws 0.5 of each batch from a dataset: give dataset="):
        loop("rlpd", Counting(), **SMALL)


def test_rlpd_on_antmaze_shifts_the_rewards_of_both_sources() -> None:
    agent = RLPD(spec(Counting()), preset="antmaze", critics=2, critic_steps=1, initial_steps=5).fresh(0)
    made = OffPolicyLoop([agent], [0], Counting(), planned_steps=50, batch_size=4, dataset=agent.prepare(dataset()))
    made.run(5)
    np.testing.assert_allclose(made.experience.buffer["rewards"][:5], [9, 19, 29, 39, 49])


def test_iql_goes_on_online_with_the_same_losses() -> None:
    options = {"actor_schedule": "constant", "rewards": "none", "hidden": (8, 8)}
    agent = IQLOnline(spec(Counting()), initial_steps=20, **options).fresh(0)
    made = OffPolicyLoop([agent], [0], Counting(), planned_steps=100, batch_size=8, dataset=agent.prepare(dataset()))
    result = made.run(50)
    assert made.learner.step == 30
    assert {"value_loss", "critic_loss", "gaussian_actor_loss", "episode_return"} <= set(result)
    with pytest.raises(ConfigError, match=r"iql_online\.actor is 'deterministic', must be gaussian, in the iql run"):
        IQLOnline.configure(actor="deterministic")


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("sac", {}),
        ("td3", {}),
        ("redq", {"critics": 4, "critic_steps": 3}),
        ("droq", {"critic_steps": 3}),
        ("wsrl", {"critics": 3}),
        ("rlpd", {}),
    ],
)
def test_a_training_step_runs_from_the_tape(algorithm: str, options: dict[str, Any]) -> None:
    if algorithm == "rlpd":
        options = {"critics": 3, "critic_steps": 2, "dataset": dataset()}
    made = loop(algorithm, Counting(), kernels=True, batch_size=8, **{**SMALL, **options})
    if made.learner.slots is None:
        pytest.skip("no native module")
    made.run(30)
    assert made.learner.eager_because() == {}


def test_a_policy_with_layer_norm_is_saved_and_read(tmp_path: Any) -> None:
    agent = WSRL(spec(Constant()), preset="wsrl-locomotion", hidden=(8, 8)).fresh(0)
    policy = agent.policy()
    policy.save(tmp_path / "policy")
    observations = torch.randn(5, 1)
    assert torch.equal(Policy.load(tmp_path / "policy")(observations), policy(observations))


def test_the_temperature_falls_where_the_entropy_is_above_its_target_whatever_its_form() -> None:
    for form in ("log", "exp", "softplus"):
        agent = SAC(spec(Constant()), hidden=(4,), temperature_form=form, temperature=0.7)
        assert float(agent.temperature().detach()) == pytest.approx(0.7)
        batch = {"observations": torch.randn(64, 1)}
        noise = {"action": torch.randn(64, 1)}
        _, density = agent.actor.draw(batch["observations"], noise["action"])
        entropy = -float(density.detach().mean())
        for target, sign in ((entropy - 1, 1), (entropy + 1, -1)):
            agent.config = type(agent.config)(hidden=(4,), temperature_form=form, target_entropy=target)
            loss, _ = agent.temperature_loss(batch, noise)
            (gradient,) = torch.autograd.grad(loss, agent.temperature.rho)
            assert float(gradient) * sign > 0  # a positive gradient lowers rho, and with it alpha


def test_make_vec_environments_can_be_given_as_they_are() -> None:
    made = loop("sac", make_vec("Pendulum-v1", 2), initial_steps=190, batch_size=8)
    result = made.run(402)  # an end within: gymnasium gives final observations as objects
    assert result["episode_length"] == [200.0]
    buffer = made.experience.buffer
    radius = buffer["next_observations"][: len(buffer), :2].norm(dim=1)
    torch.testing.assert_close(radius, torch.ones_like(radius))
    assert not buffer["terminations"][: len(buffer)].any()
    regulated = loop("td3", Regulator(), initial_steps=5, batch_size=4)
    assert np.isfinite(regulated.run(40)["critic_loss"]).all()


def test_rlpd_begins_with_glorot_s_weights_and_mean_and_deviation_are_layers_of_their_own() -> None:
    agent = RLPD(Spec(3, 2, (-1.0,) * 2, (1.0,) * 2), hidden=(256, 256)).fresh(0)
    for network, width in ((agent.actor.mlp, 3), (agent.critic.mlp, 5)):
        bounds = [(6 / (width + 256)) ** 0.5, (6 / 512) ** 0.5]  # sqrt(6 / (inputs + outputs))
        for weight, bound in zip(network.weights, bounds, strict=False):
            assert 0.98 * bound < float(weight.abs().max()) <= bound
        assert all(bool((bias == 0).all()) for bias in network.biases)
    last = agent.actor.mlp.weights[-1]
    for head in last.chunk(2):  # two outputs each; of one layer of four the bound is smaller by 0.4 %
        assert (6 / 260) ** 0.5 < float(head.abs().max()) <= (6 / 258) ** 0.5
