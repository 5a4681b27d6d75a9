"""Runs that act: evaluation leaves them alone, and WSRL takes up what a run from data has learned."""

from __future__ import annotations

import pathlib

import pytest
import torch
from small_runs import STILL, metrics, small_dataset
from test_training import FAST, same, weights

from surefoot import fit
from surefoot.core.base.counter import CounterGenerator
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import STEPS_PER_BLOCK
from surefoot.core.engine.agent import Spec
from surefoot.offline import CQL
from surefoot.online import PPO, SAC, WSRL, FQLOnline, QCOnline
from surefoot.runs.run import load_agent

PENDULUM = Spec(3, 1, (-2.0,), (2.0,))
pytestmark = pytest.mark.usefixtures("in_process")
SMALL = {"hidden": (8, 8), "num_envs": 2}


@pytest.mark.parametrize(
    "agent",
    [
        SAC(PENDULUM, initial_steps=40, updates_per_step=0.25, **SMALL),
        PPO(PENDULUM, horizon=32, minibatches=2, epochs=2, **SMALL),
    ],
    ids=["sac", "ppo"],
)
def test_how_often_it_is_evaluated_changes_no_bit_of_a_run(agent: SAC | PPO, tmp_path: pathlib.Path) -> None:
    often, once = (
        fit(agent, env="native/pendulum", steps=256, seeds=1, evaluate_every=every, out=tmp_path / str(every),
            progress=False, **FAST)
        for every in (32, 256)
    )  # fmt: skip
    evaluations = [sum(line["kind"] == "eval" for line in metrics(run)) for run in (often, once)]
    assert evaluations[0] > evaluations[1] == 1
    assert same(weights(often, 0), weights(once, 0))
    assert often.summary["per_seed_returns"] == once.summary["per_seed_returns"]


def test_wsrl_starts_with_all_that_cql_learned_and_first_acts_by_its_policy(tmp_path: pathlib.Path) -> None:
    data = small_dataset()
    cql = CQL(data, hidden=(8, 8), normalization="observations")
    source_run = fit(cql, data, steps=20, seeds=1, out=tmp_path / "cql", progress=False, **FAST)
    wsrl = WSRL(PENDULUM, hidden=(8, 8), initial_steps=64, target_rate=0.0, **STILL)
    run = fit(
        wsrl, env="native/pendulum", steps=65, seeds=[4], init=str(source_run.folder), out=tmp_path / "wsrl",
        progress=False, **FAST,
    )  # fmt: skip
    source, found, fresh = load_agent(source_run), load_agent(run).state_dict(), wsrl.fresh(4).state_dict()
    for part in ("actor", "normalizer", "critic", "target_critic", "temperature"):
        given = {name: value for name, value in source.state_dict().items() if name.split(".")[0] == part}
        assert not same(given, {name: fresh[name] for name in given})
        assert same(given, {name: found[name] for name in given})

    stored = weights(run, 4)
    observations, actions = (stored[f"replay/columns.{name}"][:64] for name in ("observations", "actions"))
    streams = [CounterGenerator([4], "acting", block, torch.device("cpu")) for block in range(2)]
    drawn = source.act(observations, torch.cat([one.standard_normal((STEPS_PER_BLOCK, 1))[0] for one in streams]))
    torch.testing.assert_close(actions, drawn)
    raw = observations * source.normalizer.scale + source.normalizer.mean
    torch.testing.assert_close(raw[:, :2].square().sum(1), torch.ones(64))  # a cosine and a sine


@pytest.mark.parametrize("kind", [FQLOnline, QCOnline])
def test_without_data_rewards_are_lowered_by_one_where_asked_and_what_needs_data_is_refused(
    kind: type[FQLOnline] | type[QCOnline], tmp_path: pathlib.Path
) -> None:
    small = {"hidden": (8, 8), "flow_steps": 2, "initial_steps": 40, "num_envs": 2}

    def stored(rewards: str) -> torch.Tensor:
        run = fit(
            kind(PENDULUM, rewards=rewards, **small), env="native/pendulum", steps=60, seeds=[4],
            out=tmp_path / rewards, progress=False, **FAST,
        )  # fmt: skip
        return weights(run, 4)["replay/columns.rewards"][:40]

    plain = stored("none")
    assert plain.any(), "rewards of 0 show nothing"
    torch.testing.assert_close(stored("minus_one"), plain - 1)
    for name, value in (("rewards", "return_range"), ("normalization", "observations")):
        with pytest.raises(ConfigError, match=rf"{name}={value} is found from data, and there are none"):
            fit(
                kind(PENDULUM, **{name: value}, **small), env="native/pendulum", steps=60, seeds=1,
                out=tmp_path / name, progress=False, **FAST,
            )  # fmt: skip
