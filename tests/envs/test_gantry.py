"""The gantry's task: what it promises, its expert, its person, and its pictures."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from surefoot.core.base.errors import ConfigError
from surefoot.envs import make_vec
from surefoot.envs.gantry import Expert, Gantry
from surefoot.envs.gantry.camera import Pictures
from surefoot.envs.gantry.person import Habits, Person
from surefoot.envs.gantry.task import CAMERA_SHIFT
from surefoot.envs.names import GANTRY, STATE, gantry_ids, gymnasium_id, short_name

pytest.importorskip("mujoco")
VARIANTS = list(GANTRY)


@pytest.fixture(scope="module")
def draws() -> None:
    """Skip where nothing draws."""
    try:
        env = make_vec("gantry-pick", 1)
    except Exception as error:
        pytest.skip(f"this machine draws no pictures: {error}")
    env.close()


def solved_by_expert(name: str, episodes: int, noise: float) -> tuple[int, list[int]]:
    env = make_vec(name, episodes)
    env.reset(seed=5)
    expert = Expert(env.gantry, episodes, noise, np.random.default_rng(1))
    solved, lengths = np.zeros(episodes, bool), np.zeros(episodes, int)
    while env.active.any():
        lengths += env.active
        _, rewards, terminations, truncations, info = env.step(expert.actions(env.sim))
        assert (rewards == terminations).all()
        solved |= np.asarray(info["success"]) & terminations
        env.active &= ~(terminations | truncations)
    env.close()
    return int(solved.sum()), lengths.tolist()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_expert_solves_each_variant(name: str) -> None:
    count, lengths = solved_by_expert(name + STATE, 8, 0.15)
    assert count == 8
    assert max(lengths) < GANTRY[name][2]


def test_what_does_nothing_solves_nothing_and_is_cut_off_after_80_steps() -> None:
    env = make_vec("gantry-pick-state", 2)
    env.reset(seed=0)
    for step in range(80):
        _, rewards, terminations, truncations, _ = env.step(np.zeros((2, 4), np.float32))
        assert not rewards.any()
        assert not terminations.any()
        assert truncations.all() == (step == 79)
    env.close()


def test_an_action_of_one_moves_a_set_point_by_20_mm_and_its_sign_moves_the_fingers() -> None:
    env = make_vec("gantry-pick-state", 1)
    first, _ = env.reset(seed=0)
    tip = first[0, :3]
    after, *_ = env.step(np.array([[1, -0.5, 0, -1]], np.float32))
    moved = after[0, :3] + after[0, 3:6] - tip
    assert moved == pytest.approx([0.02, -0.01, 0], abs=1e-6)
    assert after[0, 10] == pytest.approx(0.03)  # driven shut in one step
    opened, *_ = env.step(np.array([[0, 0, 0, 1]], np.float32))
    assert opened[0, 10] == pytest.approx(0)
    env.close()


def test_names_say_what_each_number_of_the_state_is() -> None:
    for name, (_, variant, _) in GANTRY.items():
        env = make_vec(name + STATE, 1)
        assert env.single_observation_space.shape == (len(Gantry(variant=variant).names),)
        env.close()
    env = make_vec("gantry-pick-insert-state", 1)
    seen, _ = env.reset(seed=1)
    assert env.gantry.names[-3:] == ("socket x", "socket y", "socket z")
    assert seen[0, -3:-1] == pytest.approx(env.sim.mocap_pos[0, 0, :2])
    assert np.abs(seen[0, -3:-1] - seen[0, 11:13]).max() >= 0.09
    env.close()


def test_a_state_goes_on_to_the_same_bits(draws: None) -> None:
    """Pictures, the camera's place and what the person counts included, across the end of episodes."""
    env, other = (make_vec("gantry-pick-shift", 2, person=True, size=16) for _ in range(2))
    generator = np.random.default_rng(0)
    env.reset(seed=3)
    other.reset(seed=9)
    for _ in range(40):
        env.step(generator.uniform(-1, 1, (2, 4)).astype(np.float32))
    other.set_state(env.get_state())
    for _ in range(60):
        actions = generator.uniform(-1, 1, (2, 4)).astype(np.float32)
        one, two = env.step(actions), other.step(actions)
        for key in one[0]:
            assert (one[0][key] == two[0][key]).all()
        assert (one[1] == two[1]).all()
        assert (one[4]["is_intervention"] == two[4]["is_intervention"]).all()
    env.close()
    other.close()


def test_a_row_depends_on_its_own_seed_alone(draws: None) -> None:
    many, lone = make_vec("gantry-pick-two-cubes", 3, size=16), make_vec("gantry-pick-two-cubes", 1, size=16)
    some, _ = many.reset(seed=[4, 5, 6])
    same, _ = lone.reset(seed=[6])
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 3, 4)).astype(np.float32)
    for row in actions:
        some, *_ = many.step(row)
        same, *_ = lone.step(row[2:])
    assert all((some[key][2] == same[key][0]).all() for key in some)
    many.close()
    lone.close()


def test_pictures_show_the_cube_where_it_is_and_final_ones_are_those_of_the_end(draws: None) -> None:
    env = make_vec("gantry-pick", 1)
    columns = []
    for place in (-0.1, 0.1):
        env.reset(seed=0)
        env.sim.qpos[0, 5:7] = place, 0.0
        seen, *_ = env.step(np.zeros((1, 4), np.float32))
        picture = seen["front"][0].astype(int)
        red = (picture[..., 0] > 2 * picture[..., 1]) & (picture[..., 0] > 100)
        assert red.sum() >= 9
        columns.append(np.nonzero(red)[1].mean())
        assert picture[:4].mean() < 60 < 150 < picture[-4:].mean()  # upright: the dark room above, the table below
    assert columns[0] < 32 < columns[1]
    expert = Expert(env.gantry, 1)
    env.reset(seed=0)
    ended = False
    while not ended:
        seen, _, terminations, truncations, info = env.step(expert.actions(env.sim))
        ended = bool(terminations[0] | truncations[0])
    assert info["final_obs"]["state"][0, 2] > 0.09  # lifted
    assert seen["state"][0, 2] == pytest.approx(0.18)  # at home again
    assert (info["final_obs"]["wrist"] != seen["wrist"]).any()
    env.close()


def test_only_shift_moves_the_camera_and_by_two_centimeters_at_most(draws: None) -> None:
    still, moved = make_vec("gantry-pick", 2, size=16), make_vec("gantry-pick-shift", 2, size=16)
    for env in (still, moved):
        env.reset(seed=0)
    assert not still.get_state()["camera_shift"].any()
    shift = moved.get_state()["camera_shift"]
    assert (shift[0] != shift[1]).all()
    assert np.abs(shift).max() <= CAMERA_SHIFT
    still.close()
    moved.close()


def test_a_person_takes_over_after_its_patience_and_gives_back_after_its_hold() -> None:
    env = make_vec("gantry-pick-state", 1, person=Habits(tolerance=0.5, patience=3, stalled=50, hold=4))
    env.reset(seed=0)
    up = np.array([[0, 0, 1, 1]], np.float32)  # never the expert's
    taken, executed = [], []
    for _ in range(11):
        *_, info = env.step(up)
        taken.append(bool(info["is_intervention"][0]))
        executed.append(info["intervene_action"][0].copy())
    assert taken == [False, False] + [True] * 4 + [False, False] + [True] * 3
    assert (executed[0] == up[0]).all()
    assert executed[2][2] < 0  # down
    env.close()


def test_a_person_leaves_the_expert_alone_and_helps_what_stands_still() -> None:
    env = make_vec("gantry-pick-state", 2, person=True)
    env.reset(seed=0)
    expert = Expert(env.gantry, 2)
    for _ in range(25):
        actions = expert.actions(env.sim)
        actions[1, :3] = 0  # the second row's gantry stands still, the fingers as the expert's
        *_, info = env.step(actions)
        assert not info["is_intervention"][0]
    assert env.person is not None
    env.close()
    task = Gantry()
    person = Person(task, 2)
    person.set_state(person.get_state())


def test_one_environment_for_gymnasium_renders_and_passes_its_checker(draws: None) -> None:
    env = gymnasium.make("surefoot:surefoot/GantryPickInsert-v0", render_mode="rgb_array", size=16)
    env.reset(seed=0)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.render().shape == (320, 320, 3)
    assert env.render().std() > 10
    env.close()


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match=r"variant 'side'.*sides"):
        Gantry(variant="side")
    with pytest.raises(ConfigError, match="person='yes'"):
        make_vec("gantry-pick-state", 1, person="yes")
    with pytest.raises(ConfigError, match="tolerance is 3"):
        Habits(tolerance=3)
    with pytest.raises(ConfigError, match="noise needs a generator"):
        Expert(Gantry(), 1, 0.1)
    with pytest.raises(ConfigError, match="size is 4000"):
        make_vec("gantry-pick", 1, size=4000)


def test_both_forms_of_a_name_mean_the_same() -> None:
    for name, gym_id in gantry_ids().items():
        assert gymnasium_id(name) == gym_id
        assert short_name(gym_id) == name
    assert gymnasium_id("gantry-pick?size=32") == "surefoot/GantryPick-v0?size=32"


def test_two_sizes_draw_side_by_side(draws: None) -> None:
    env = make_vec("gantry-pick", 1, size=16)
    env.reset(seed=0)
    other = Pictures(env.model, 24)
    other.begin()
    other.place()
    picture = np.zeros((24, 24, 3), np.uint8)
    other.draw(0, picture)
    seen, *_ = env.step(np.zeros((1, 4), np.float32))
    assert picture.std() > 10
    assert seen["front"].shape == (1, 16, 16, 3)
    other.close()
    other.close()
    env.close()
