"""The catalogue's facts against the published ones."""

from __future__ import annotations

import pytest

from surefoot.data import CATALOGUE, gymnasium_id, normalized_score, reference_scores
from surefoot.data.catalogue import has_unit_actions


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("hopper-medium-v2", "gym_mujoco_v2/hopper_medium-v2.hdf5"),
        ("ant-full-replay-v1", "gym_mujoco_v1/ant_full_replay-v1.hdf5"),
        ("walker2d-medium-replay-v0", "gym_mujoco/walker_mixed.hdf5"),
        ("hopper-medium-replay-v0", "gym_mujoco/hopper_mixed.hdf5"),
        ("maze2d-umaze-v1", "maze2d/maze2d-umaze-sparse-v1.hdf5"),
        ("maze2d-umaze-v0", "maze2d/maze2d-umaze-sparse.hdf5"),
        ("maze2d-open-dense-v0", "maze2d/maze2d-open-dense.hdf5"),
        ("maze2d-eval-large-dense-v1", "maze2d/maze2d-eval-large-dense-v1.hdf5"),
        (
            "antmaze-umaze-v2",
            "ant_maze_v2/Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5",
        ),
        (
            "antmaze-umaze-diverse-v0",
            "ant_maze_new/Ant_maze_u-maze_noisy_multistart_True_multigoal_True_sparse.hdf5",
        ),
        (
            "antmaze-medium-play-v2",
            "ant_maze_v2/Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5",
        ),
        (
            "antmaze-large-diverse-v2",
            "ant_maze_v2/Ant_maze_hardest-maze_noisy_multistart_True_multigoal_True_sparse_fixed.hdf5",
        ),
        ("kitchen-partial-v0", "kitchen/kitchen_microwave_kettle_light_slider-v0.hdf5"),
        ("kitchen-complete-v0", "kitchen/mini_kitchen_microwave_kettle_light_slider-v0.hdf5"),
        ("pen-human-v0", "hand_dapg/pen-v0_demos_clipped.hdf5"),
        ("door-cloned-v0", "hand_dapg/door-demos-v0-bc-combined.hdf5"),
        ("relocate-expert-v1", "hand_dapg_v1/relocate-expert-v1.hdf5"),
        ("bullet-walker2d-medium-replay-v0", "bullet/bullet-walker2d_medium_replay.hdf5"),
        ("flow-merge-controller-v0", "flow/flow-merge-v0-idm.hdf5"),
    ],
)
def test_d4rl_ids_name_the_published_files(name: str, file: str) -> None:
    assert CATALOGUE[f"d4rl/{name}"].file == file


def test_every_entry_has_a_reference_and_a_file_of_its_own() -> None:
    assert all(entry.reference[0] < entry.reference[1] for entry in CATALOGUE.values())
    assert len({entry.file for entry in CATALOGUE.values()}) == len(CATALOGUE)


def test_the_root_of_the_downloads_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_D4RL_URL", "http://mirror/x/")
    assert CATALOGUE["d4rl/hopper-medium-v2"].url == "http://mirror/x/gym_mujoco_v2/hopper_medium-v2.hdf5"


@pytest.mark.parametrize(
    ("name", "returns", "score"),
    [
        ("d4rl/halfcheetah-medium-v2", 5000, 42.53),
        ("Hopper-v5", 3234.3, 100.0),
        ("Hopper-v2", 3234.3, 100.0),
        ("AdroitHandRelocate-v1", 0, 0.1515),
        ("relocate-human-v1", 0, 0.1515),
        ("Walker2d-v4", 1.629008, 0.0),
        ("antmaze-large-play-v2", 0.5, 50.0),
        ("kitchen-mixed-v0", 3, 75.0),
        ("neorl2:DMSD", 494.45, 56.64),
        ("neorl2:SafetyHalfCheetah", 1769.31, 73.56),
    ],
)
def test_normalised_scores_are_the_published_ones(name: str, returns: float, score: float) -> None:
    reference = reference_scores(name)
    assert reference is not None
    assert normalized_score(returns, reference) == pytest.approx(score, abs=0.005)


@pytest.mark.parametrize(
    "name",
    ["Pendulum-v1", "CartPole-v1", "PointMaze_Medium-v3", "Humanoid-v5", "hopper", "AdroitHandDoorSparse-v1"],
)
def test_environments_without_published_references_have_none(name: str) -> None:
    assert reference_scores(name) is None


@pytest.mark.parametrize(
    ("text", "env_id"),
    [
        ("Hopper-v5", "Hopper-v5"),
        ("Hopper-v4", "Hopper-v4"),
        ("Walker2d-v2", "Walker2d-v5"),
        ("hopper-medium-v2", "Hopper-v5"),
        ("Pendulum-v0 (Pendulum-v1 in gymnasium)", "Pendulum-v1"),
        ("door-v0 (mj_envs) = door-human of D4RL; AdroitHandDoor-v1 has the same", "AdroitHandDoor-v1"),
        ("neorl2 DMSD", "neorl2:DMSD"),
        ("my_robot:Arm-v3", "my_robot:Arm-v3"),
        ("surefoot/Quadrotor-v0", "surefoot/Quadrotor-v0"),
        ("PointMaze_Medium-v3", "PointMaze_Medium-v3"),
        ("a robot in our lab", None),
    ],
)
def test_what_files_say_of_their_environment_becomes_an_id_that_runs(text: str, env_id: str | None) -> None:
    assert gymnasium_id(text) == env_id


def test_unit_bounds_are_true_of_the_environments() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("gymnasium.envs.mujoco", reason="needs gymnasium[mujoco]", exc_type=ImportError)
    for env_id in ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5", "Pendulum-v1", "Humanoid-v5"):
        env = gymnasium.make(env_id)
        unit = bool((env.action_space.low == -1).all() and (env.action_space.high == 1).all())
        env.close()
        assert has_unit_actions(env_id) == unit


def test_measures_of_the_embedded_datasets_are_those_of_the_datasets() -> None:
    from surefoot.data.catalogue import NATIVE_MEASURES
    from surefoot.evaluation.dataset_map import mapped
    from surefoot.runs.embedded import embedded, generate

    assert NATIVE_MEASURES.keys() == embedded().keys()
    names = [name for name in embedded() if name.startswith("native/pendulum-")]
    for row in mapped([generate(name) for name in names]):
        known = NATIVE_MEASURES[row["dataset"]]
        # behaviours step through the platform's own sine and cosine, which may move a row over an edge
        assert (row["saco_of"], row["limits_of"]) == (known["saco_of"], known["limits_of"])
        for measure in ("tq", "saco", "projected_coverage"):
            assert row[measure] == pytest.approx(known[measure], abs=2e-3), (row["dataset"], measure)
