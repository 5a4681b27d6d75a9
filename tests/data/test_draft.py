"""Drafts of mappings: what a column means by its name, and what is left to the user."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from make_files import three_episodes
from test_mapping import LOG

from surefoot.data import from_arrays, load, logs, save
from surefoot.data.formats import mapping as mappings


def test_a_draft_guesses_by_names_and_is_a_mapping_that_loads(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "draft.yaml").write_text(logs.draft(tmp_path / "log.csv", tmp_path))
    found = mappings.read_mapping(tmp_path / "draft.yaml")
    assert (found.observations, found.actions, found.time, found.episode) == (("q", "dq"), ("torque",), "time", "trial")
    assert load(tmp_path / "draft.yaml").episode_lengths.tolist() == [2, 2]


def test_a_draft_takes_no_end_and_no_reward_for_an_observation(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log.csv").write_text("t,q,tau,r,done\n0,1,0.5,1,0\n1,1,0.5,1,1\n")
    text = logs.draft(tmp_path / "log.csv", tmp_path)
    assert "# done is an end: name it as termination" in text
    (tmp_path / "draft.yaml").write_text(text)
    found = mappings.read_mapping(tmp_path / "draft.yaml")
    assert (found.observations, found.actions, found.reward, found.time) == (("q",), ("tau",), "r", "t")
    assert found.termination is None


def test_a_draft_takes_no_number_of_a_row_and_no_score_for_an_observation(tmp_path: pathlib.Path) -> None:
    rows = [f"{k},{k % 3},{k + 1},0.5,{k},{k}.5" for k in range(6)]
    (tmp_path / "log.csv").write_text("\n".join([",observation_0,tick,torque,score,timestamp", *rows]) + "\n")
    text = logs.draft(tmp_path / "log.csv", tmp_path)
    for line in ("'' is left out: it numbers the rows", "tick is left out: it numbers the rows"):
        assert f"# {line}" in text
    assert "# score is left out: it may be a reward" in text
    (tmp_path / "draft.yaml").write_text(text)
    found = mappings.read_mapping(tmp_path / "draft.yaml")
    assert (found.observations, found.actions, found.time) == (("observation_0",), ("torque",), "timestamp")
    (tmp_path / "log.csv").write_text("t,timestamp,q,reward,reward_ctrl,u\n" + "0,0,1,1,1,1\n" * 6)
    text = logs.draft(tmp_path / "log.csv", tmp_path)
    assert ("observations: [q]\nactions: [u]\n" in text, "# reward_ctrl is left" in text) == (True, True)
    assert "# timestamp is left out: it may be a reward, a label or a clock, or mean what another column does" in text


def test_a_draft_reads_names_with_spaces_and_units_and_takes_no_imu_for_an_action(tmp_path: pathlib.Path) -> None:
    names = ["Run ID", "Time [s]", "stamp_ms", "imu_acc_x", "gpu temp (C)", "joint β", "u_0", "Motor cmd", "Reward (m)"]
    rows = "\n".join(f"{k // 2},{k}.5,{k}.7,1,2,3,4,5,6" for k in range(6))
    (tmp_path / "log.csv").write_text(f"{','.join(names)}\n{rows}\n", encoding="utf-8")
    text = logs.draft(tmp_path / "log.csv", tmp_path)
    assert "# stamp_ms is left out: it may be a reward, a label or a clock" in text
    (tmp_path / "draft.yaml").write_text(text, encoding="utf-8")
    found = mappings.read_mapping(tmp_path / "draft.yaml")
    assert (found.observations, found.actions) == (("imu_acc_x", "gpu temp (C)", "joint β"), ("u_0", "Motor cmd"))
    assert (found.episode, found.time, found.reward) == ("Run ID", "Time [s]", "Reward (m)")
    assert load(tmp_path / "draft.yaml").episode_lengths.tolist() == [2, 2, 2]


def test_a_draft_takes_no_margin_and_no_density_for_an_observation_or_an_action(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log.csv").write_text("q,u,margin,action_log_prob,is_expert\n1,2,3,4,0\n1,2,3,4,1\n")
    text = logs.draft(tmp_path / "log.csv", tmp_path)
    assert "observations: [q]\nactions: [u]\n" in text
    for name in ("margin", "action_log_prob", "is_expert"):
        assert f"# {name} is left out: it is not measured by the controller; name it under extras" in text


def test_a_draft_knows_the_short_names_of_archives(tmp_path: pathlib.Path) -> None:
    obs = np.zeros((6, 2))
    np.savez(tmp_path / "log.npz", obs=obs, acts=obs, rews=np.zeros(6), dones=np.zeros(6), next_obs=obs)
    text = logs.draft(tmp_path / "log.npz", tmp_path)
    assert "observations: [obs]\nactions: [acts]\n" in text
    assert ("reward: rews\n" in text, "next_observations: next_obs\n" in text) == (True, True)
    (tmp_path / "draft.yaml").write_text(text)
    assert load(tmp_path / "draft.yaml").action_dim == 2


def drafted(folder: pathlib.Path, *names: str) -> tuple[str, mappings.LogMapping]:
    """The draft of a log of such columns, and what it says as a mapping."""
    (folder / "log.csv").write_text(",".join(names) + "\n" + ("1," * len(names))[:-1] + "\n")
    text = logs.draft(folder / "log.csv", folder)
    (folder / "draft.yaml").write_text(text)
    return text, mappings.read_mapping(folder / "draft.yaml")


@pytest.mark.parametrize(
    ("observations", "following"),
    [
        (("x", "y"), ("next_y", "next_x")),
        (("obs_0", "obs_1"), ("obs_next_1", "obs_next_0")),
        (("state.q", "state.dq"), ("next.state.dq", "next.state.q")),
        (("jointPos", "jointVel"), ("nextJointVel", "nextJointPos")),
        (("q [rad]", "dq"), ("next dq", "next q [rad]")),
    ],
)
def test_a_draft_names_what_followed_in_the_order_of_the_observations(
    tmp_path: pathlib.Path, observations: tuple[str, ...], following: tuple[str, ...]
) -> None:
    text, found = drafted(tmp_path, *observations, *following, "u", "next_u", "next_reward", "next_done")
    assert (found.observations, found.next_observations) == (observations, following[::-1])
    assert (found.actions, found.reward) == (("u",), "next_reward")
    assert "# next_u is left out: by its name it is of the next step" in text
    assert "# next_done is an end" in text


def test_a_draft_takes_no_column_of_the_next_or_the_last_step_for_an_observation(tmp_path: pathlib.Path) -> None:
    others = ("next_x", "next_waypoint", "next_reward_sum", "prev_x", "previous_action", "last_action", "valid")
    text, found = drafted(tmp_path, "x", "y", "terminal_voltage", "u", *others, "is_terminal", "episode_end")
    assert (found.observations, found.actions) == (("x", "y", "terminal_voltage"), ("u",))
    assert (found.next_observations, found.termination) == ((), None)  # nothing says what y became
    assert all(f"# {name} is left out: " in text for name in others)
    assert all(f"# {name} is an end: " in text for name in ("is_terminal", "episode_end"))


@pytest.mark.parametrize("name", ["a.csv", "a.npz", "a.hdf5", "a.parquet", "a"])
def test_a_draft_of_our_own_files_is_a_mapping_of_the_same_data(tmp_path: pathlib.Path, name: str) -> None:
    if name in ("a", "a.parquet"):
        pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    arrays = three_episodes()
    for key in ("observations", "next_observations"):
        arrays[key] += 0.5  # else the first number would count the rows
    data = from_arrays(**arrays, **{"extras/weight": np.arange(9.0)})
    save(data, tmp_path / name, layout="lerobot" if name == "a" else None)
    (tmp_path / "m.yaml").write_text(logs.draft(tmp_path / name, tmp_path))
    found = load(tmp_path / "m.yaml")
    for key in ("observations", "actions", "rewards", "next_observations"):
        np.testing.assert_array_equal(getattr(found, key), getattr(data, key))


def test_a_draft_takes_no_success_for_an_end_since_it_may_hold_in_many_rows(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log.csv").write_text("t,q,tau,trial,success\n0,1,0.5,0,1\n1,1,0.5,0,1\n")
    text = logs.draft(tmp_path / "log.csv", tmp_path)
    assert "# success is an end: name it as termination" in text
    (tmp_path / "draft.yaml").write_text(text)
    found = mappings.read_mapping(tmp_path / "draft.yaml")
    assert (found.termination, found.observations) == (None, ("q",))
