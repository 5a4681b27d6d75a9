"""People who take over: what is stored, where, and what batches are made of; spellings of HIL-SERL and of LeRobot."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from online_problems import Counting, loop, parameters

from surefoot.core.base.errors import EnvironmentMismatchError, SimulatorError
from surefoot.core.engine.sources import MAIN
from surefoot.data.dataset import Dataset
from surefoot.envs.adapters.gym_in import adapt
from surefoot.envs.side_by_side import PausingVectorEnv
from surefoot.online import HIL, PPO, spec_of
from surefoot.online.loops.on_policy import OnPolicyLoop

PERSONS = 0.25
"""What the person commands."""


class Helped(Counting):
    """A person acts at some steps of the run, the same in all rows but those of `alone`."""

    def __init__(self, num_envs: int = 1, at: tuple[int, ...] = (3, 4, 9), lerobot: bool = False) -> None:
        super().__init__(num_envs)
        self.at, self.lerobot, self.alone = at, lerobot, np.zeros(num_envs, bool)
        self.reported = np.full((num_envs, 1), PERSONS)

    def step(self, actions: Any) -> Any:
        *numbers, info = super().step(actions)
        helped = np.full(self.num_envs, self.steps - 1 in self.at) & ~self.alone
        if self.lerobot:
            info |= {"is_intervention": helped, "teleop_action": self.reported.copy()}
        elif helped.any():
            info |= {"intervene_action": self.reported.copy(), "_intervene_action": helped}
        return *numbers, info

    def get_state(self) -> dict[str, Any]:
        return {"states": self.states, "elapsed": self.elapsed, "episode": self.episode, "steps": np.array(self.steps)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.states, self.elapsed, self.episode = (state[k].copy() for k in ("states", "elapsed", "episode"))
        self.steps = int(state["steps"])


def demonstrations(rows: int = 20, intervened: np.ndarray | None = None) -> Dataset:
    """Recognisable by observations from 100 on."""
    observations = 100 + np.arange(rows, dtype=np.float32)[:, None]
    ends = np.zeros(rows, bool)
    ends[9::10] = True
    return Dataset(
        name="shown",
        observations=observations,
        actions=np.full((rows, 1), 0.5, np.float32),
        rewards=np.ones(rows, np.float32),
        next_observations=observations + 1,
        terminations=np.zeros(rows, bool),
        truncations=ends,
        episode_ids=np.arange(rows) // 10,
        valid=np.ones(rows, bool),
        extras={} if intervened is None else {"intervened": intervened},
    )


def made(env: Any, shown: Dataset | None = None, **options: Any) -> Any:
    defaults = {"initial_steps": 2, "critic_steps": 1, "batch_size": 8, "planned_steps": 60, "choices": 0}
    if shown is not None:
        defaults["dataset"] = HIL(spec_of(env), choices=options.get("choices", 0)).prepare(shown)
    return loop("hil", env, **{**defaults, **options})


def drawn(of: Any, step: int = 0) -> dict[str, torch.Tensor]:
    source = of.learner.sources[MAIN]
    batch: dict[str, torch.Tensor] = source.gather(source.rows(step)[0])
    return batch


@pytest.mark.parametrize("lerobot", [False, True])
def test_the_executed_action_is_stored_and_the_row_is_in_both_buffers(lerobot: bool) -> None:
    trained = made(Helped(lerobot=lerobot), initial_steps=10)
    found = trained.run(10)
    replay, kept = trained.experience.buffer, trained.experience.corrections
    assert (len(replay), len(kept)) == (10, 3)
    actions = replay["actions"][:10, 0]
    assert torch.equal(actions[[3, 4, 9]], torch.full((3,), PERSONS))
    assert bool((actions[[0, 1, 2, 5, 6, 7, 8]] != PERSONS).all())
    for column in ("observations", "actions", "rewards", "next_observations", "terminations"):
        assert torch.equal(kept[column][:3], replay[column][[3, 4, 9]]), column
    assert found["intervened_steps"] == [3.0]


def test_half_of_a_batch_is_what_people_did_and_all_is_replayed_while_they_did_nothing() -> None:
    alone = made(Helped(at=()), initial_steps=10)
    alone.run(10)
    rows = alone.learner.sources[MAIN].rows(0)
    assert bool((rows < alone.experience.buffer.capacity).all())
    assert rows.shape == (1, 8)
    helped = made(Helped(), initial_steps=10)
    helped.run(10)
    places = helped.learner.sources[MAIN].rows(0)[0]
    capacity = helped.experience.buffer.capacity
    assert ((places >= capacity) & (places < 2 * capacity)).tolist() == [True, False] * 4
    assert torch.equal(drawn(helped)["actions"][::2, 0], torch.full((4,), PERSONS))
    assert set((torch.cat([helped.learner.sources[MAIN].rows(s)[0] for s in range(30)]) - capacity).tolist()) >= {
        0,
        1,
        2,
    }


def test_demonstrations_and_corrections_are_equally_likely_and_fill_the_same_half() -> None:
    shown = made(Helped(at=()), demonstrations(), initial_steps=10)
    shown.run(10)
    assert (drawn(shown)["observations"][:, 0] >= 100).tolist() == [True, False] * 4
    both = made(Helped(at=tuple(range(10))), demonstrations(), initial_steps=10)
    both.run(10)  # 10 corrections beside 20 demonstrations
    seen = torch.cat([drawn(both, step)["observations"][::2, 0] for step in range(1000)])
    share = float((seen < 100).double().mean())
    assert abs(share - 1 / 3) < 4 * np.sqrt(2 / 9 / 4000)  # four standard errors
    assert len(seen.unique()) == 25  # counts 0 to 4 of the corrections, and each demonstration


def test_of_data_that_say_where_a_person_acted_those_rows_alone_are_demonstrations() -> None:
    flags = np.zeros(20, bool)
    flags[[2, 13]] = True
    trained = made(Helped(at=()), demonstrations(intervened=flags), initial_steps=10)
    trained.run(10)
    seen = torch.cat([drawn(trained, step)["observations"][::2, 0] for step in range(30)])
    assert sorted(seen.unique().tolist()) == [102.0, 113.0]
    agent = HIL(spec_of(Helped()))
    assert agent.notes(demonstrations(intervened=flags)) == [
        "shown: a person acted in 2 of 20 rows; these are demonstrations"
    ]
    assert agent.notes(demonstrations()) == []


def test_each_seed_has_its_own_corrections() -> None:
    env = Helped(2, at=(1, 2))
    env.alone[0] = True
    trained = made(env, seeds=(0, 1), initial_steps=10, kernels=False)
    found = trained.run(10)
    assert found["intervened_steps"] == [0.0, 2.0]
    rows, capacity = trained.learner.sources[MAIN].rows(0), trained.experience.buffer.capacity
    assert bool((rows[0] < capacity).all())
    assert (rows[1] >= capacity).tolist() == [True, False] * 4
    assert bool((trained.experience.corrections.valid[rows[1, ::2] - capacity]).all())


def test_a_killed_run_with_corrections_goes_on_bit_for_bit() -> None:
    def fresh() -> Any:
        return made(Helped(at=(3, 4, 9, 22, 31)), demonstrations(), initial_steps=5, planned_steps=50)

    whole, resumed = fresh(), fresh()
    whole.run(20)
    saved = [whole.state(0)]
    assert len(saved[0]["corrections/ends"]) == 3
    assert resumed.restore(saved, 20) is None
    np.testing.assert_equal(resumed.run(20), whole.run(20))
    assert torch.equal(parameters(whole), parameters(resumed))
    for name, value in whole.state(0).items():
        assert torch.equal(value, resumed.state(0)[name]), name
    assert resumed.experience.intervened.tolist() == [5]


def test_agents_without_a_second_buffer_store_the_executed_action_too() -> None:
    trained = loop("sac", Helped(), initial_steps=20)
    trained.run(10)
    assert trained.experience.corrections is None
    assert torch.equal(trained.experience.buffer["actions"][[3, 4, 9], 0], torch.full((3,), PERSONS))


def test_an_action_beyond_the_bounds_counts_as_the_bound_and_units_are_the_environments() -> None:
    env = Helped(at=(0, 1))
    env.single_action_space = Box(np.float32([0.0]), np.float32([4.0]))
    env.reported[:] = 3.0
    trained = loop("sac", env, initial_steps=20)
    trained.run(1)
    env.reported[:] = 9.0
    trained.run(1)
    assert trained.experience.buffer["actions"][:2, 0].tolist() == [0.5, 1.0]


class Single(gymnasium.Env[Any, Any]):
    """One environment of two actions that tells of a person in its info."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(-1, 1, (2,), np.float32)

    def __init__(self, infos: list[dict[str, Any]]) -> None:
        self.infos = list(infos)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, len(self.infos) == 1, False, self.infos.pop(0)


@pytest.mark.parametrize("side_by_side", [True, False])
def test_single_environments_tell_of_it_also_with_their_last_step(side_by_side: bool) -> None:
    person = {"intervene_action": np.array([0.5, -0.5])}
    env = Single([{}, person, {}, person])
    vector = adapt(PausingVectorEnv([lambda: env])) if side_by_side else adapt(env)
    trained = loop("sac", vector, initial_steps=20)
    trained.run(4)
    helped = (trained.experience.buffer["actions"][:4] == torch.tensor([0.5, -0.5])).all(1)
    assert helped.tolist() == [False, True, False, True]


def test_mistakes_of_the_environment_are_named() -> None:
    for infos, words in (
        ([{"is_intervention": True}], r"info\['teleop_action'\] is missing"),
        ([{"intervene_action": np.array([0.5, np.nan])}], "must be an action of Box.*finite"),
    ):
        with pytest.raises(EnvironmentMismatchError, match=words):
            loop("sac", adapt(PausingVectorEnv([lambda infos=infos: Single([*infos, {}])])), initial_steps=20).run(1)
    wide = Single([{"intervene_action": np.zeros(3)}, {}])
    with pytest.raises(SimulatorError, match=r"info\['intervene_action'\] = .* of shape \(2,\)"):
        loop("sac", adapt(PausingVectorEnv([lambda: wide])), initial_steps=20).run(1)


def test_who_learns_from_densities_of_own_actions_or_decides_on_chunks_refuses_a_person() -> None:
    env = Helped()
    agent = PPO(spec_of(env), num_envs=1, horizon=8, minibatches=1, hidden=(8,)).fresh(0)
    with pytest.raises(EnvironmentMismatchError, match=r"a person took over at step 4, .*densities of its own actions"):
        OnPolicyLoop([agent], [0], env, planned_steps=100).run(8)
