"""Small agents that are written against the contracts alone: no loop and no Learner is subclassed."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch
from chain_ppo import ChainActor, ChainPPO
from chunked_td3bc import ChunkedTD3BC
from mbpo_shape import IMAGINED, MBPO, REAL

from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Stores
from surefoot.core.policy.policy import Policy
from surefoot.data.sources import Added
from surefoot.data.store import store_from_dataset
from surefoot.envs import make_vec
from surefoot.evaluation import evaluate
from surefoot.online import spec_of
from surefoot.online.loops.loop import make_loop
from surefoot.runs.embedded import generate

HERE = pathlib.Path(__file__).parent
SMALL = {"num_envs": 4, "horizon": 64, "epochs": 4, "minibatches": 4, "hidden": (32, 32)}


@pytest.mark.parametrize("name", ["chain_ppo", "mbpo_shape", "chunked_td3bc"])
def test_each_agent_is_under_150_lines_and_subclasses_no_loop(name: str) -> None:
    text = (HERE / f"{name}.py").read_text()
    assert text.count("\n") < 150
    assert "Loop)" not in text
    assert "Learner)" not in text


@pytest.mark.parametrize("steps", [1, 2, 4, 10])
def test_the_ratio_of_a_chain_is_one_at_the_first_minibatch(steps: int) -> None:
    env = make_vec("native/pendulum", 4)
    loop = make_loop([ChainPPO(spec_of(env), steps=steps, **SMALL).fresh(0)], [0], env, planned_steps=1000)
    loop.run(256)  # a block, learned from
    block = loop.blocks.fill(1)  # type: ignore[attr-defined]
    assert block["kept/chain"].shape == (1, 64, 4, steps + 1, 1)
    assert torch.equal(block["kept/chain"][..., -1, :], block["actions"])
    loop._write(block)  # type: ignore[attr-defined]
    batch = loop.store.gather(torch.arange(64))  # type: ignore[attr-defined]
    with torch.no_grad():
        _, metrics = loop.learner.agent.policy_loss(batch, {})  # type: ignore[operator]
    assert float(metrics["ratio_max"]) == pytest.approx(1, abs=1e-6)


def test_a_chain_of_two_steps_has_a_density_that_integrates_to_one() -> None:
    actor = ChainActor(1, 1, steps=2, sigma=0.5).double()
    grid = torch.linspace(-6, 6, 401, dtype=torch.float64)
    width = float(grid[1] - grid[0])
    start = torch.full((401 * 401, 1), 0.3, dtype=torch.float64)
    middle, last = (place.reshape(-1, 1) for place in torch.meshgrid(grid, grid, indexing="ij"))
    chain = torch.stack([start, middle, last], 1)
    seen = torch.full_like(start, -0.7)
    with torch.no_grad():
        density = actor.evaluate(seen, last, {"chain": chain}).log_density.exp()
    assert float(density.sum() * width**2) == pytest.approx(1, abs=1e-6)


def test_a_chain_learns_by_ppo_and_leaves_as_a_file(tmp_path: pathlib.Path) -> None:
    env = make_vec("native/linear-quadratic", 16)
    options = {**SMALL, "num_envs": 16, "horizon": 32, "learning_rate": 3e-3, "schedule": "constant", "discount": 0.9}
    agent = ChainPPO(spec_of(env), steps=2, **options).fresh(0)
    before = evaluate([agent.policy()], "native/linear-quadratic", 20)[0].returns.mean()
    loop = make_loop([agent], [0], env, planned_steps=30_000)
    loop.run(30_000)
    policy = loop.learner.extract(0).policy()
    policy.save(tmp_path / "chain")
    again = Policy.load(tmp_path / "chain")
    after = evaluate([again], "native/linear-quadratic", 20)[0].returns.mean()
    assert after > before + 0.3 * abs(before)


def test_rows_are_imagined_and_mixed_in_one_ordered_list() -> None:
    env = make_vec("native/pendulum", 2)
    agent = MBPO(spec_of(env), num_envs=2, initial_steps=200, hidden=(32, 32)).fresh(0)
    loop = make_loop([agent], [0], env, planned_steps=2000, batch_size=64)
    early = loop.run(260)
    late = loop.run(600)
    learner = loop.learner
    assert [entry.name for entry in learner.order] == [
        "model_loss", "imagine", "critic_loss", "actor_loss", "temperature_loss"
    ]  # fmt: skip
    assert late["rows"] == [32.0]  # 16 real ones and 16 imagined
    assert late["model_loss"][0] < 0.5 * early["model_loss"][0]
    imagined = learner.sources[IMAGINED]
    assert isinstance(imagined, Added)
    assert imagined.added == 64 * learner.step
    rows = imagined.gather(imagined.rows(learner.step)[0])
    real = learner.sources[REAL].gather(learner.sources[REAL].rows(learner.step)[0])
    assert bool((rows["terminations"] == 0).all())
    assert float((rows["next_observations"] - rows["observations"]).abs().mean()) > 0
    kinds = {tuple(row) for row in real["observations"].tolist()}
    assert not kinds & {tuple(row) for row in rows["next_observations"].tolist()}


def test_seeds_imagine_rows_of_their_own() -> None:
    def run(seeds: tuple[int, ...]) -> list[torch.Tensor]:
        env = make_vec("native/pendulum", len(seeds))
        agents = [MBPO(spec_of(env), initial_steps=100, hidden=(16, 16)).fresh(seed) for seed in seeds]
        loop = make_loop(agents, seeds, env, planned_steps=1000, batch_size=64)
        loop.run(140)
        return [
            torch.cat([v.reshape(-1) for v in loop.learner.agents_parameters(position).values()])
            for position in range(len(seeds))
        ]

    together = run((3, 8))
    torch.testing.assert_close(together[1], run((8,))[0], rtol=1e-3, atol=2e-3)


def test_chunks_are_learned_from_windows_and_played_from_a_queue() -> None:
    dataset = generate("native/pendulum", 0, 4000)
    dataset = dataset.replace(actions=np.tanh(dataset.observations[:, :1]))  # something to clone
    agent = ChunkedTD3BC(dataset, hidden=(32, 32), clone_weight=10.0).fresh(0)
    ready = agent.prepare(dataset)
    sources = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns)))
    learner = Learner([agent], [0], sources, batch_size=64)
    first, last = learner.run(20), learner.run(400)
    assert last["clone"][0] < 0.5 * first["clone"][0]
    batch = agent.annotate(sources[MAIN].gather(sources[MAIN].rows(3)[0]))
    for row in range(64):  # by hand: rewards up to the episode's end, and no further
        steps = int(batch["mask"][row].sum())
        rewards = batch["rewards"][row, :steps].double().numpy()
        assert float(batch["reward"][row]) == pytest.approx(float(rewards @ 0.9 ** np.arange(steps)), rel=1e-5)
        ended = float(batch["terminations"][row, steps - 1])
        assert float(batch["reach"][row]) == pytest.approx(0.9**steps * (1 - ended), rel=1e-5)
    policy = learner.extract(0).policy()
    with torch.no_grad():
        plan = policy.actor.plan(policy.normalizer(torch.from_numpy(dataset.observations[:1])))[0]  # type: ignore[operator]
    policy.reset()
    played = [policy.select_action(dataset.observations[step]) for step in range(6)]
    np.testing.assert_allclose(np.stack(played[:5]), plan.clamp(-1, 1).numpy(), atol=1e-5)
    assert not np.allclose(played[5], played[0])  # planned anew, from another observation


def test_rows_that_a_rule_added_are_part_of_a_checkpoint() -> None:
    columns = {"observations": (2,), "rewards": ()}

    def added(rows: int) -> Added:
        source = Added(5, columns, "imagined")
        source.bind([0, 1], 3, torch.device("cpu"))
        if rows:
            values = torch.arange(2.0 * rows).reshape(2, rows)
            source.add({"observations": torch.stack([values, -values], -1), "rewards": values})
        return source

    full, empty = added(7), added(0)
    for position in (0, 1):
        for name, value in empty.rows_added(position).items():
            value.copy_(full.rows_added(position)[name])
    assert empty.added == 7
    drawn = empty.gather(empty.rows(4))
    assert torch.equal(drawn["rewards"], full.gather(full.rows(4))["rewards"])
    assert torch.equal(drawn["observations"][..., 0], drawn["rewards"])
