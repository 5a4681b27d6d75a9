"""VDN and QMIX: the two-step game, what a sum can fit, monotony, ends, masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_off_policy_updates import Numbered

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import MASK, Array, Team
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.nn.mixing import MonotoneMixing
from surefoot.envs.acting import spec_of
from surefoot.envs.agents import RowView
from surefoot.envs.team_tasks.two_step import GAMES
from surefoot.envs.training import make_training
from surefoot.evaluation import evaluate
from surefoot.online import DQN, MAPPO, QMIX, VDN
from surefoot.online.loops.loop import make_loop

TWO_STEP: dict[str, Any] = {
    "num_envs": 16,
    "first_epsilon": 1.0,
    "last_epsilon": 1.0,  # as in the paper: all choices are explored, and only values decide
    "initial_steps": 400,
    "updates_per_step": 0.1,
    "learning_rate": 5e-3,
    "target_every": 20,
    "hidden": (32,),
}


def two_step(kind: Any, teams: int = 8) -> Any:
    return make_training("team:two-step", teams, view=RowView(kind.teams.reads_state, kind.teams.ends_together))


@pytest.mark.parametrize(("kind", "best"), [(QMIX, 8.0), (VDN, 7.0)])
def test_qmix_finds_the_better_game_and_a_sum_can_not(kind: Any, best: float) -> None:
    env = two_step(kind)
    agent = kind(spec_of(env), **TWO_STEP).fresh(0)
    loop = make_loop([agent], [0], env, planned_steps=4_000, batch_size=32)
    loop.run(4_000)
    policy = loop.learner.extract(0).policy()
    assert policy.observation_dim == 5  # the state of the game and the agent's number
    assert evaluate([policy], "team:two-step", episodes=1)[0].returns.tolist() == [best]


def joint(rows: list[list[float]], rewards: np.ndarray, state: bool = False) -> dict[str, torch.Tensor]:
    """Every pair of choices of two agents once, in an episode of one step; rewards (2, 2)."""
    pairs = [(i, j) for i in range(2) for j in range(2)]
    seen = torch.tensor([rows] * 4, dtype=torch.float64)
    return {
        "observations": seen,
        "next_observations": seen + 100.0,
        "actions": torch.eye(2, dtype=torch.float64)[torch.tensor(pairs)],
        "rewards": torch.tensor([[rewards[i, j]] * 2 for i, j in pairs], dtype=torch.float64),
        "terminations": torch.ones(4, 2, dtype=torch.float64),
    }


def fitted(kind: Any, state_dim: int, game: np.ndarray, steps: int = 700) -> np.ndarray:
    """(2, 2) what a team's value comes to be where every pair of choices is met equally often."""
    spec = Spec(3 + state_dim, 2, (0.0, 0.0), (1.0, 1.0), discrete=True, team=Team(("a", "b"), state_dim))
    rows = [[1.0, 1, 0, *[1.0] * state_dim], [1.0, 0, 1, *[1.0] * state_dim]]
    batch = joint(rows, game)
    agent = kind(spec, hidden=(16,), learning_rate=1e-2, error="squared", max_gradient_norm=None).fresh(1)
    learner = Learner([agent], [0], Numbered([batch] * steps), batch_size=4, dtype=torch.float64)
    learner.run(steps)
    agent = learner.extract(0).double()
    with torch.no_grad():
        chosen = (agent.critic(agent.own(batch["observations"])) * batch["actions"]).sum(-1)
        return agent.mix(chosen, batch["observations"], agent.mixings[0]).view(2, 2).numpy()  # type: ignore[no-any-return]


def test_a_sum_fits_the_second_game_by_least_squares() -> None:
    """Of ((0, 1), (1, 8)): the rows' and columns' means less the mean, by hand ((-1.5, 2.5), (2.5, 6.5))."""
    np.testing.assert_allclose(fitted(VDN, 0, GAMES[1]), [[-1.5, 2.5], [2.5, 6.5]], atol=0.02)


def test_a_monotone_mixture_fits_it_whole() -> None:
    np.testing.assert_allclose(fitted(QMIX, 1, GAMES[1]), GAMES[1], atol=0.1)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.lists(st.floats(-50, 50), min_size=3, max_size=3),
    st.integers(0, 2),
    st.floats(0.001, 50),
)
def test_the_mixed_value_never_falls_where_one_rises(seed: int, values: list[float], which: int, by: float) -> None:
    torch.manual_seed(seed)
    mixing = MonotoneMixing(3, 4, 8, 16).double()
    state, low = torch.randn(4, dtype=torch.float64) * 3, torch.tensor(values, dtype=torch.float64)
    high = low.clone()
    high[which] += by
    with torch.no_grad():
        assert float(mixing(high, state)) >= float(mixing(low, state)) - 1e-9


def test_the_mixing_network_is_the_papers_formula() -> None:
    torch.manual_seed(1)
    mixing = MonotoneMixing(2, 3, 4, 5).double()
    q, state = torch.randn(6, 2, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    with torch.no_grad():
        for row in range(6):
            s = state[row]
            first = mixing.first(s).reshape(2, 4).abs()
            hidden = torch.nn.functional.elu(q[row] @ first + mixing.first_bias(s))
            expected = hidden @ mixing.second(s).abs() + mixing.last_bias(s)[0]
            torch.testing.assert_close(mixing(q, state)[row], expected)


def test_values_behind_an_episodes_end_count_nowhere_and_those_behind_its_first_step_do() -> None:
    """JaxMARL's recurrent VDN and QMIX store the flag of the step before, and so bootstrap at the end, from the next
    episode's first state, and not at the first step."""
    env = two_step(VDN, teams=1)
    agent = VDN(spec_of(env), **{**TWO_STEP, "num_envs": 2, "initial_steps": 1000}).fresh(0)
    loop: Any = make_loop([agent], [0], env, planned_steps=100, batch_size=4)
    loop.run(40)
    source = loop.learner.sources["batch"]
    batch = source.gather(torch.arange(0, 40, 2))
    second = batch["observations"][:, 0, 0] == 0  # the game's own state, behind the first choice
    assert second.tolist() == [False, True] * 10
    assert batch["terminations"].tolist() == [[0.0, 0.0], [1.0, 1.0]] * 10
    assert torch.equal(batch["next_observations"][second], batch["observations"][second])  # not the next episode's
    with torch.no_grad():
        targets = agent.targets(batch)
        after = agent.target_critic(batch["next_observations"]).amax(-1)
        best = agent.critic(batch["next_observations"]).argmax(-1, keepdim=True)
        after = agent.target_critic(batch["next_observations"]).gather(-1, best).squeeze(-1)
    expected = torch.where(second, batch["rewards"][:, 0], 0.99 * after.sum(-1))
    torch.testing.assert_close(targets, expected)


def test_joint_rows_are_the_agents_of_one_team_in_one_step() -> None:
    env = two_step(QMIX, teams=3)
    agent = QMIX(spec_of(env), **{**TWO_STEP, "num_envs": 6}).fresh(0)
    loop: Any = make_loop([agent, agent.fresh(1)], [0, 1], two_step(QMIX, teams=6), planned_steps=600, batch_size=50)
    loop.run(120)
    source = loop.learner.sources["batch"]
    rows = source.rows(3)
    assert rows.shape == (2, 50)
    assert (rows % 2 == 0).all()
    assert ((rows % 12 < 6) == torch.tensor([[True], [False]])).all()  # each seed's own teams
    batch = source.gather(rows)
    assert batch["observations"].shape == (2, 50, 2, 8)
    assert (batch["observations"][..., 3:5] == torch.eye(2)).all()
    assert (batch["observations"][..., 0, 5:] == batch["observations"][..., 1, 5:]).all()


@pytest.mark.parametrize("kind", [VDN, QMIX])
def test_targets_choose_among_allowed_actions(kind: Any) -> None:
    state = 2 if kind is QMIX else 0
    arrays = {"observation": Array((3 + state,)), MASK: Array((3,))}
    spec = Spec(arrays, 3, (0.0,) * 3, (1.0,) * 3, discrete=True, team=Team(("a", "b"), state))
    agent = kind(spec, hidden=(8,)).fresh(3)
    seen = torch.randn(5, 2, 3 + state + 3)
    seen[..., -3:] = torch.tensor([1.0, 0.0, 0.0])
    batch = {"next_observations": seen, "rewards": torch.zeros(5, 2), "terminations": torch.zeros(5, 2)}
    with torch.no_grad():
        first = agent.target_critic(agent.own(seen))[..., 0]
        expected = 0.99 * agent.mix(first, seen, agent.mixings[1])
        torch.testing.assert_close(agent.targets(batch), expected)
        explored = agent.explore(seen.flatten(0, 1), torch.randn(10, agent.explore_dim))
    assert (explored.argmax(-1) == 0).all()
    given = {"observation": torch.randn(4, 3), MASK: torch.tensor([[0.0, 1.0, 0.0]] * 4)}
    assert (agent.policy().act(given, {})[0] == 1).all()


def test_with_one_agent_vdn_is_dqn() -> None:
    spec = Spec.of_choices(3, 4)
    one, usual = VDN(spec, hidden=(7,)).fresh(2), DQN(spec, hidden=(7,)).fresh(2)
    source = torch.Generator().manual_seed(1)
    batch = {
        "observations": torch.randn(9, 3, generator=source),
        "next_observations": torch.randn(9, 3, generator=source),
        "actions": torch.eye(4)[torch.randint(0, 4, (9,), generator=source)],
        "rewards": torch.randn(9, generator=source),
        "terminations": (torch.rand(9, generator=source) < 0.3).float(),
    }
    alone = {name: value.unsqueeze(1) for name, value in batch.items()}
    torch.testing.assert_close(one.critic_loss(alone, {})[0], usual.critic_loss(batch, {})[0])


def test_options_of_single_rows_are_refused() -> None:
    for option, value in (("n_step", 3), ("hindsight", 4)):
        with pytest.raises(ConfigError, match=f"vdn.{option} is {value}"):
            VDN(Spec.of_choices(3, 2), **{option: value})


SMALL: dict[type, dict[str, Any]] = {
    QMIX: {**TWO_STEP, "num_envs": 8, "initial_steps": 40, "hidden": (6,), "mixing_hidden": 5},
    VDN: {**TWO_STEP, "num_envs": 8, "initial_steps": 40, "hidden": (6,)},
    MAPPO: {"num_envs": 8, "horizon": 8, "minibatches": 2, "hidden": (6,)},
}


def of_spread(kind: Any, seeds: tuple[int, ...]) -> Any:
    options = {**SMALL[kind], "num_envs": 6}
    view = RowView(kind.teams.reads_state, kind.teams.ends_together)
    env = make_training("team:spread", 2 * len(seeds), view=view)
    agents = [kind(spec_of(env), **options).fresh(seed) for seed in seeds]
    return make_loop(agents, list(seeds), env, planned_steps=960, batch_size=8)


def weights(loop: Any, position: int = 0) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in loop.learner.extract(position).state_dict().items()}


@pytest.mark.parametrize("kind", [QMIX, VDN, MAPPO])
def test_training_continues_bit_for_bit_and_seeds_together_are_seeds_alone(kind: Any) -> None:
    whole, other = of_spread(kind, (3,)), of_spread(kind, (3,))
    for loop in (whole, other):
        loop.run(192)
    again = of_spread(kind, (3,))
    assert again.restore([other.state(0)], 192) is None
    for loop in (whole, again):
        loop.run(192)
    expected = weights(whole)
    for name, value in weights(again).items():
        assert torch.equal(value, expected[name]), name
    together = of_spread(kind, (5, 3))
    together.run(384)
    for name, value in weights(together, 1).items():
        torch.testing.assert_close(value, expected[name], rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("kind", [QMIX, MAPPO])
def test_agents_with_masks_that_leave_are_trained_until_their_team_is_done(kind: Any) -> None:
    view = RowView(kind.teams.reads_state, kind.teams.ends_together)
    env = make_training("pettingzoo:teams_in_parallel?leaves=true&may_leave=true&choices=2", 2, view=view)
    agent = kind(spec_of(env), **{**SMALL[kind], "num_envs": 4}).fresh(1)
    loop = make_loop([agent], [1], env, planned_steps=128, batch_size=8)
    found = loop.run(128)
    assert found["episode_length"] == [4.0]  # of the team, not the 2 steps of the agent that leaves
    policy = loop.learner.extract(0).policy()
    second = {"observation": torch.tensor([[0.5, 2.0, 0.0, 1.0]]), MASK: torch.tensor([[1.0, 0.0, 0.0]])}
    assert policy.act(second, {})[0].tolist() == [0]
