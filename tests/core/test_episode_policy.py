from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import torch

from surefoot.core.episode_policy import WINDOW, EpisodePolicy
from surefoot.core.errors import ConfigError
from surefoot.core.normalizer import Normalizer
from surefoot.core.policy import Policy
from surefoot.core.transformer import DecisionTransformerActor, time_features


def policy(context: int = 3) -> EpisodePolicy:
    torch.manual_seed(4)
    actor = DecisionTransformerActor(2, 1, context, width=8, layers=2, heads=2)
    actor.target_return.fill_(9.0)
    actor.target_cost.fill_(2.0)
    actor.action_head.weight.data *= 0.3  # far from the bounds, where actions are cut
    normalizer = Normalizer(2)
    normalizer.fit(torch.randn(50, 2) * 3 + 1)
    made = Policy.of(actor, normalizer, torch.tensor([-2.0]), torch.tensor([4.0]))
    assert isinstance(made, EpisodePolicy)
    return made


def play(made: EpisodePolicy, observations: torch.Tensor) -> list[torch.Tensor]:
    """Actions at (T, B, 2) observations, each step earning .5 and costing .1."""
    made.reset()
    made.begin(observations.shape[1])
    actions = []
    for rows in observations:
        actions.append(made.act(rows))
        count = len(rows)
        made.after_step(torch.full((count,), 0.5), torch.full((count,), 0.1), torch.zeros(count, dtype=torch.bool))
    return actions


def test_actions_depend_on_the_past_and_only_on_the_last_k_steps() -> None:
    made, observations = policy(), torch.randn(6, 4, 2)
    actions = play(made, observations)
    changed = observations.clone()
    changed[0, 0] += 5.0
    others = play(made, changed)
    assert not torch.equal(actions[1][0], others[1][0])
    torch.testing.assert_close(torch.stack(actions)[:, 1:], torch.stack(others)[:, 1:])  # rows don't meet
    with torch.no_grad():  # the first step is out of the window of the fourth, but its action's echo is not
        assert not torch.equal(actions[0][0], others[0][0])


def test_the_present_action_and_padding_are_not_read() -> None:
    made = policy()
    window = {name: torch.randn(5, 3, *({"observations": (2,), "past_actions": (1,)}.get(name, ()))) for name in WINDOW}
    window["mask"] = torch.tensor([[0.0, 1.0, 1.0]]).expand(5, 3).clone()
    expected = made(*window.values())
    other = {name: value.clone() for name, value in window.items()}
    other["past_actions"][:, -1] = 3.0
    for name in WINDOW[:5]:
        other[name][:, 0] = 7.0
    torch.testing.assert_close(made(*other.values()), expected)
    other["past_actions"][:, 1] += 1.0
    assert not torch.allclose(made(*other.values()), expected)


def test_a_row_that_ended_begins_anew_and_the_others_go_on() -> None:
    made, observations = policy(), torch.randn(2, 2)
    made.begin(2)
    first = made.act(observations)
    made.after_step(torch.ones(2), torch.ones(2), torch.tensor([True, False]))
    second = made.act(observations)
    assert torch.equal(second[0], first[0])
    assert not torch.equal(second[1], first[1])


def test_what_is_earned_and_spent_is_subtracted_from_what_it_is_asked_for() -> None:
    made = policy()
    made.reset()
    made.select_action(np.zeros(2))
    made.observe(1.5, 0.5)
    made.select_action(np.zeros(2))
    made.observe(1.0, 5.0)
    made.select_action(np.zeros(2))
    assert made._window is not None
    assert made._window["returns_to_go"].tolist() == [[9.0, 7.5, 6.5]]
    assert made._window["costs_to_go"].tolist() == [[2.0, 1.5, 0.0]]  # there is no less than nothing to spend
    assert made._window["timesteps"].tolist() == [[0.0, 1.0, 2.0]]


def test_it_must_hear_what_its_actions_brought() -> None:
    made = policy()
    made.select_action(np.zeros(2))
    with pytest.raises(ConfigError, match="call after_step or observe"):
        made.select_action(np.zeros(2))
    made.begin(3)
    with pytest.raises(ConfigError, match="remembers 3 episodes and was given 2"):
        made.act(torch.zeros(2, 2))


def test_step_numbers_of_a_thousand_are_told_apart() -> None:
    features = time_features(torch.arange(1001.0))
    assert features.shape == (1001, 16)
    near = (features[1:] - features[:-1]).norm(dim=1).min()
    assert near > 0.5
    assert torch.cdist(features, features).fill_diagonal_(9).min() > 0.05


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_one_step_is_exported_with_the_window_as_its_inputs(ending: str, tmp_path: pathlib.Path) -> None:
    made, path = policy(), tmp_path / f"policy.{ending}"
    made.export(path)
    window = made.example(5)
    window["mask"][:, 0] = 0
    window["observations"] = torch.randn(5, 3, 2)
    expected = made(*window.values())
    if ending == "pt2":
        found = torch.export.load(path).module()(*window.values())
    else:
        onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
        facts = {item.key: json.loads(item.value) for item in onnx.load(path).metadata_props}
        assert (facts["surefoot.target_return"], facts["surefoot.context"]) == (9.0, 3)
        session = onnxruntime.InferenceSession(path)
        assert [item.name for item in session.get_inputs()] == list(WINDOW)
        found = torch.from_numpy(session.run(None, {name: value.numpy() for name, value in window.items()})[0])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_native_systems_step_it_and_tell_it_what_its_actions_brought() -> None:
    from surefoot.envs.episodes import episode_seeds, run_episodes
    from surefoot.envs.vector import make_vec

    env = make_vec("native/double-integrator", 1)
    sizes = (env.single_observation_space.shape[0], env.single_action_space.shape[0])  # type: ignore[index]
    low, high = (torch.tensor(bound) for bound in (env.single_action_space.low, env.single_action_space.high))  # type: ignore[attr-defined]
    env.close()
    torch.manual_seed(0)
    actor = DecisionTransformerActor(*sizes, 3, 8, 1, 2)
    actor.target_return.fill_(-3.0)
    made = Policy.of(actor, Normalizer(sizes[0]), low, high)
    heard: list[torch.Tensor] = []
    after = made.after_step  # type: ignore[attr-defined]
    made.after_step = lambda rewards, costs, ended: (heard.append(rewards), after(rewards, costs, ended))  # type: ignore[attr-defined]
    found = run_episodes(made, "native/double-integrator", episode_seeds(0, 0, 4), steps=6)
    np.testing.assert_allclose(torch.stack(heard).sum(0).numpy(), found.returns, rtol=1e-5)
    again = run_episodes(made, "native/double-integrator", episode_seeds(0, 0, 4), steps=6)
    np.testing.assert_array_equal(found.returns, again.returns)
