"""Minari datasets through the minari package, with a private store."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from make_files import random_walk, three_episodes, write_hdf5

from surefoot.core.base.errors import ConfigError, DataError, MissingExtraError, SurefootError
from surefoot.data import convert, load, not_held
from surefoot.data.dataset import WITHOUT

minari = pytest.importorskip("minari")
pytest.importorskip("gymnasium")
from gymnasium import spaces  # noqa: E402


@pytest.fixture(autouse=True)
def _private_store(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def create(
    name: str, episodes: list[dict[str, Any]], observation_space: Any, action_space: Any, env: Any = None
) -> None:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    buffers = [EpisodeBuffer(infos=episode.pop("infos", {}), **episode) for episode in episodes]
    minari.create_dataset_from_buffers(
        dataset_id=name,
        buffer=buffers,
        env=env,
        observation_space=observation_space,
        action_space=action_space,
    )


def steps(count: int, terminated: bool) -> dict[str, Any]:
    ends = np.arange(count) == count - 1
    return {
        "actions": np.linspace(-1, 1, count, dtype=np.float32)[:, None],
        "rewards": np.arange(count, dtype=np.float64),
        "terminations": ends & terminated,
        "truncations": ends & (not terminated),
    }


@pytest.mark.filterwarnings("ignore")
def test_episodes_become_rows_with_the_observation_after_the_last_step() -> None:
    episodes = [
        {
            "observations": np.array([[0], [1], [2]], np.float32),
            **steps(2, False),
            "infos": {"cost": np.array([9.0, 0, 1])},
        },
        {
            "observations": np.array([[5], [6], [7], [8]], np.float32),
            **steps(3, True),
            "infos": {"cost": np.array([9.0, 1, 0, 1])},
        },
    ]
    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    create("test/plain-v0", episodes, box, spaces.Box(-1, 1, (1,), np.float32))
    data = load("minari/test/plain-v0")
    assert data.observations[:, 0].tolist() == [0, 1, 5, 6, 7]
    assert data.next_observations[:, 0].tolist() == [1, 2, 6, 7, 8]
    assert data.truncations.tolist() == [False, True, False, False, False]
    assert data.terminations.tolist() == [False, False, False, False, True]
    assert data.costs is not None
    assert data.costs.tolist() == [0, 1, 1, 0, 1]
    assert data.transitions.all()
    assert data.sha256 is not None


@pytest.mark.filterwarnings("ignore")
def test_goal_observations_are_concatenated_in_the_stated_order(tmp_path: pathlib.Path) -> None:
    observations = {
        "achieved_goal": np.full((3, 2), 1, np.float64),
        "desired_goal": np.full((3, 2), 2, np.float64),
        "observation": np.full((3, 1), 3, np.float64),
    }
    box = spaces.Dict({key: spaces.Box(-np.inf, np.inf, value.shape[1:]) for key, value in observations.items()})
    create(
        "test/goal-v0",
        [{"observations": observations, **steps(2, False)}],
        box,
        spaces.Box(-1, 1, (1,), np.float32),
    )
    data = load("minari/test/goal-v0")
    assert data.observations[0].tolist() == [3, 1, 1, 2, 2]
    assert data.attributes["observation_keys"] == "observation,achieved_goal,desired_goal"
    assert len(load(tmp_path / "minari" / "test" / "goal-v0")) == 2  # the folder is the same dataset


@pytest.mark.filterwarnings("ignore")
def test_discrete_actions_are_one_hot_rows_and_come_back_as_choices() -> None:
    episode = {"observations": np.zeros((3, 1), np.float32), **steps(2, False), "actions": np.array([3, 1])}
    create("test/discrete-v0", [episode], spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(4, start=1))
    for name in ("minari/test/discrete-v0", "minari/test/discrete-v1"):
        data = load(name) if name.endswith("0") else convert("minari/test/discrete-v0", name) and load(name)
        assert (data.choices, data.action_range) == (4, None)
        assert data.actions.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]


@pytest.mark.filterwarnings("ignore")
def test_what_is_neither_box_nor_discrete_is_refused() -> None:
    episode = {"observations": np.zeros((3, 1), np.float32), **steps(2, False), "actions": np.zeros((2, 2), int)}
    create("test/many-v0", [episode], spaces.Box(-1, 1, (1,), np.float32), spaces.MultiDiscrete([2, 3]))
    with pytest.raises(DataError, match=r"has actions MultiDiscrete.*Box\) and Discrete"):
        load("minari/test/many-v0")


@pytest.mark.filterwarnings("ignore")
def test_images_alone_and_in_dictionaries_keep_their_pixels_and_what_followed() -> None:
    pixels = np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)
    box = spaces.Box(-1, 1, (1,), np.float32)
    create("test/image-v0", [{"observations": pixels, **steps(2, False)}], spaces.Box(0, 255, (8, 8, 3), np.uint8), box)
    data = load("minari/test/image-v0")
    np.testing.assert_array_equal(data.extras["observations/image"], pixels[:-1])
    np.testing.assert_array_equal(data.extras["next_observations/image"], pixels[1:])
    inside = spaces.Dict(
        camera=spaces.Dict(top=spaces.Box(0, 255, (8, 8, 3), np.uint8)),
        q=spaces.Box(-9, 9, (2,)),
        mode=spaces.Discrete(3),
    )
    parts = {"camera": {"top": pixels}, "q": np.arange(6, dtype=np.float32).reshape(3, 2), "mode": np.array([0, 2, 1])}
    create("test/dict-v0", [{"observations": parts, **steps(2, True)}], inside, box)
    data = load("minari/test/dict-v0")
    assert {key: array.shape for key, array in data.arrays.items()} == {
        "camera_top": (8, 8, 3),
        "q": (2,),
        "mode": (1,),
    }
    np.testing.assert_array_equal(data.extras["observations/camera_top"], pixels[:-1])
    assert data.extras["next_observations/q"].tolist() == [[2, 3], [4, 5]]
    assert data.extras["observations/mode"].tolist() == [[0], [2]]


@pytest.mark.filterwarnings("ignore")
def test_tuples_are_one_vector_in_their_order() -> None:
    box = spaces.Box(-9, 9, (1,), np.float32)
    parts = (np.array([[1.0], [2.0], [3.0]], np.float32), np.array([[4.0], [5.0], [6.0]], np.float32))
    create("test/tuple-v0", [{"observations": parts, **steps(2, False)}], spaces.Tuple((box, box)), box)
    assert load("minari/test/tuple-v0").observations.tolist() == [[1, 4], [2, 5]]


@pytest.mark.filterwarnings("ignore")
def test_a_converted_dataset_comes_back_bit_for_bit(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes() | {"costs": np.arange(9) % 2}
    source = write_hdf5(tmp_path / "a.hdf5", arrays, env_id="Pendulum-v1")
    data = convert(source, "minari/test/made-v0")
    back = load("minari/test/made-v0")
    for key in (
        "observations",
        "actions",
        "rewards",
        "next_observations",
        "terminations",
        "truncations",
        "episode_ids",
        "costs",
    ):
        np.testing.assert_array_equal(getattr(back, key), getattr(data, key), err_msg=key)
    assert back.env_id == "Pendulum-v1"
    with pytest.raises(DataError, match=r"exists already"):
        convert(source, "minari/test/made-v0")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", WITHOUT)
def test_data_without_rewards_are_read_back_without_any(tmp_path: pathlib.Path, what: str) -> None:
    arrays = three_episodes() | {"rewards": np.zeros(9)}
    source = write_hdf5(tmp_path / "a.hdf5", arrays, rewards=what)
    assert not convert(source, "minari/test/none-v0").has_rewards
    back = load("minari/test/none-v0")
    assert (back.has_rewards, back.attributes["rewards"]) == (False, what)
    assert "rewards" not in not_held(load(source), "minari/test/none-v0")


def test_dynamics_that_minari_cannot_hold_are_refused(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes()
    arrays["next_observations"][4] += 1
    with pytest.raises(DataError, match=r"row 4's next observation is not the next row's"):
        convert(write_hdf5(tmp_path / "a.hdf5", arrays), "minari/test/torn-v0")


@pytest.mark.parametrize("name", ["bad id", "noversion", "../up-v0", ""])
def test_malformed_ids_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no Minari id"):
        load(f"minari/{name}")


def test_a_remote_id_that_cannot_be_fetched_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str) -> None:
        raise ConnectionError("no route to host\nlong trace")

    monkeypatch.setattr(minari, "download_dataset", unreachable)
    with pytest.raises(SurefootError, match=r"not local and could not be fetched: no route to host; "):
        load("minari/D4RL/door/human-v2")

    def no_hub(name: str) -> None:
        raise ImportError("huggingface_hub is not installed")

    monkeypatch.setattr(minari, "download_dataset", no_hub)
    with pytest.raises(MissingExtraError, match=r"huggingface_hub"):
        load("minari/D4RL/door/human-v2")


@pytest.mark.filterwarnings("ignore")
def test_damaged_folders_are_refused(tmp_path: pathlib.Path) -> None:
    convert(
        write_hdf5(tmp_path / "a.hdf5", random_walk() | {"next_observations": np.zeros((300, 3))} | _chained()),
        "minari/test/d-v0",
    )
    inside = tmp_path / "minari" / "test" / "d-v0" / "data" / "main_data.hdf5"
    inside.write_bytes(inside.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"d-v0"):
        load("minari/test/d-v0")


def test_what_a_folder_says_of_itself_is_text_that_a_terminal_can_hold_and_executes_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces_of = spaces.Box(-9, 9, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32)
    create("test/odd-v0", [steps(4, True) | {"observations": np.zeros((5, 2), np.float32)}], *spaces_of)
    told = tmp_path / "minari" / "test" / "odd-v0" / "data" / "metadata.json"
    (tmp_path / "trap_of_minari.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    named = {"id": "trap_of_minari:T-v0", "entry_point": "trap_of_minari:T", "additional_wrappers": []}
    odd = {"algorithm_name": "a\x1b[2J", "env_spec": json.dumps(named)}
    told.write_text(json.dumps(json.loads(told.read_text()) | odd))
    data = load("minari/test/odd-v0")
    assert data.attributes["algorithm_name"] == "a\\x1b[2J"
    assert data.env_id == "trap_of_minari:T-v0"  # for which who trains asks for trust
    assert not (tmp_path / "executed").exists()


def _chained() -> dict[str, Any]:
    observations = random_walk()["observations"]
    return {"next_observations": np.concatenate([observations[1:], observations[-1:]])}


def test_the_range_of_actions_is_that_of_the_space_and_is_written_again() -> None:
    create("range/one-v0", [steps(4, True) | {"observations": np.zeros((5, 2), np.float32)}],
           spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Box(-2, 3, (1,), np.float32))  # fmt: skip
    data = load("minari/range/one-v0")
    low, high = data.action_range or ((), ())
    assert (list(low), list(high)) == ([-2.0], [3.0])
    convert("minari/range/one-v0", "minari/range/two-v0")
    low, high = load("minari/range/two-v0").action_range or ((), ())
    assert (list(low), list(high)) == ([-2.0], [3.0])
