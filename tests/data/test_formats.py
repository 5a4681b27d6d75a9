"""What is written comes back bit for bit, and each format refuses its own kinds of damage."""

from __future__ import annotations

import io
import os
import pathlib
import subprocess
import sys
import zipfile

import h5py
import numpy as np
import pytest
from make_files import random_walk, three_episodes, without, write_hdf5

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data import Dataset, convert, info, load, save, verify

COLUMNS = (
    "observations",
    "actions",
    "rewards",
    "next_observations",
    "terminations",
    "truncations",
    "episode_ids",
    "valid",
    "costs",
)


def made(tmp_path: pathlib.Path, **attributes: object) -> Dataset:
    """300 rows with costs, without next observations, so that some rows are not valid."""
    arrays = random_walk() | {"costs": (np.arange(300) % 7 == 0).astype(np.float32)}
    return load(write_hdf5(tmp_path / "source.hdf5", arrays, env_id="Hopper-v5", source="drawn", **attributes))


def assert_same(first: Dataset, second: Dataset) -> None:
    for key in COLUMNS:
        np.testing.assert_array_equal(getattr(first, key), getattr(second, key), err_msg=key)


@pytest.mark.parametrize("suffix", [".hdf5", ".h5", ".npz", ".csv"])
def test_every_column_comes_back_bit_for_bit(tmp_path: pathlib.Path, suffix: str) -> None:
    data = made(tmp_path)
    assert not data.transitions.all()
    save(data, tmp_path / f"a{suffix}")
    assert_same(load(tmp_path / f"a{suffix}"), data)


@pytest.mark.parametrize("suffix", [".hdf5", ".npz"])
def test_attributes_and_extras_come_back(tmp_path: pathlib.Path, suffix: str) -> None:
    long = "p" * 100_000  # HDF5's old attributes end at 64 kB
    data = made(tmp_path).replace(
        extras={"returns_to_go": np.arange(300, dtype=np.float32)}, attributes={"policies": long, "seed": 7}
    )
    save(data, tmp_path / f"a{suffix}")
    back = load(tmp_path / f"a{suffix}")
    assert (back.env_id, back.attributes["policies"], back.attributes["seed"]) == ("Hopper-v5", long, 7)
    np.testing.assert_array_equal(back.extras["returns_to_go"], np.arange(300))


def write_flat(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> pathlib.Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return path
    return write_hdf5(path, arrays)


@pytest.mark.parametrize("suffix", [".hdf5", ".npz"])
@pytest.mark.parametrize("view", ["corrected", "d4rl"])
def test_a_column_of_margins_is_read_and_checked_as_rewards_are(tmp_path: pathlib.Path, suffix: str, view: str) -> None:
    margins = np.linspace(-1, 1, 300)
    path = write_flat(tmp_path / f"a{suffix}", random_walk() | {"margins": margins[:, None]})
    found = load(path, view=view)
    kept = margins if view == "corrected" else margins[np.arange(300) % 100 != 49][:-1]
    np.testing.assert_array_equal(found.extras["margins"], kept.astype(np.float32))
    save(found, tmp_path / f"b{suffix}")
    np.testing.assert_array_equal(load(tmp_path / f"b{suffix}").extras["margins"], found.extras["margins"])


@pytest.mark.parametrize("suffix", [".hdf5", ".npz"])
def test_margins_that_are_no_numbers_or_there_twice_are_refused(tmp_path: pathlib.Path, suffix: str) -> None:
    margins = np.linspace(-1, 1, 300)
    broken = write_flat(tmp_path / f"a{suffix}", random_walk() | {"margins": np.where(margins > 0.9, np.nan, margins)})
    with pytest.raises(DataError, match="'margins' holds nan in row 285"):
        load(broken)
    short = write_flat(tmp_path / f"b{suffix}", random_walk() | {"margins": margins[:7]})
    with pytest.raises(DataError, match="'margins' has 7 rows"):
        load(short)
    twice = write_flat(tmp_path / f"c{suffix}", random_walk() | {"margins": margins, "extras/margins": margins})
    with pytest.raises(DataError, match="holds both 'margins' and 'extras/margins'; keep one"):
        load(twice)


def test_format_is_told_by_content_not_by_suffix(tmp_path: pathlib.Path) -> None:
    data = made(tmp_path)
    for suffix in (".hdf5", ".npz", ".csv"):
        save(data, tmp_path / f"a{suffix}")
        os.replace(tmp_path / f"a{suffix}", tmp_path / "data.bin")
        assert len(load(tmp_path / "data.bin")) == 300


def test_our_hdf5_is_plain_d4rl_to_others(tmp_path: pathlib.Path) -> None:
    save(made(tmp_path), tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert file["observations"].shape == (300, 3)
        assert file["terminals"].dtype == bool
        assert file["timeouts"][49]
        assert not file["terminals"][49]
        assert file.attrs["env_id"] == "Hopper-v5"


def test_our_hdf5_changed_by_one_bit_anywhere_is_refused(tmp_path: pathlib.Path) -> None:
    save(made(tmp_path), tmp_path / "a.hdf5")
    whole = (tmp_path / "a.hdf5").read_bytes()
    for place in np.linspace(0, len(whole) - 1, 12).astype(int):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        (tmp_path / "b.hdf5").write_bytes(damaged)
        with pytest.raises(DataError, match=r"b\.hdf5.*checksum"):
            load(tmp_path / "b.hdf5")


def test_our_hdf5_edited_by_others_is_refused(tmp_path: pathlib.Path) -> None:
    save(made(tmp_path), tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["rewards"][0] = 1e6
    with pytest.raises(DataError, match=r"checksum"):
        load(tmp_path / "a.hdf5")


def test_a_full_disk_leaves_nothing_and_is_one_sentence(tmp_path: pathlib.Path) -> None:
    write_hdf5(tmp_path / "source.hdf5", random_walk(20_000))
    program = (  # a limit on the size of files fails writes as a full disk does
        "import resource; from surefoot.data import load, save; from surefoot.core.base.errors import DataError\n"
        f"data = load({str(tmp_path / 'source.hdf5')!r})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "for suffix in ('.hdf5', '.npz', '.csv'):\n"
        f"    try: save(data, {str(tmp_path / 'out')!r} + suffix)\n"
        "    except DataError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    sentences = run.stdout.splitlines()
    for suffix, sentence in zip((".hdf5", ".npz", ".csv"), sentences, strict=True):
        assert f"out{suffix}" in sentence
        assert "free some space" in sentence
    assert [item.name for item in tmp_path.iterdir()] == ["source.hdf5"]


def test_saving_replaces_a_file_only_when_complete(tmp_path: pathlib.Path) -> None:
    data = made(tmp_path)
    target = tmp_path / "a.hdf5"
    save(data, target)
    before = target.read_bytes()
    broken = data.replace(rewards=np.full(300, np.nan, np.float32))
    with pytest.raises(DataError, match=r"rewards"):
        save(broken, target)
    assert target.read_bytes() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.hdf5", "source.hdf5"]


def test_convert_goes_by_the_suffix_and_never_overwrites(tmp_path: pathlib.Path) -> None:
    data = made(tmp_path)
    convert(tmp_path / "source.hdf5", tmp_path / "b.npz")
    convert(tmp_path / "b.npz", tmp_path / "c.csv")
    convert(tmp_path / "c.csv", tmp_path / "d.hdf5")
    assert_same(load(tmp_path / "d.hdf5"), data)
    with pytest.raises(ConfigError, match=r"exists already"):
        convert(tmp_path / "b.npz", tmp_path / "d.hdf5")
    with pytest.raises(ConfigError, match=r"did you mean '.hdf5'"):
        convert(tmp_path / "b.npz", tmp_path / "d.hdf")


# -- CSV
# -----------------------------------------------------------------------------------------------------------


def csv_text(**changes: str) -> str:
    lines = ["observation_1,observation_0,action_0,reward,termination,episode"]
    lines += ["10,1,0.5,1,0,3", "20,2,0.5,2,0,3", "30,3,0.5,3,0,9", "40,4,0.5,4,1,9"]
    return "\n".join(changes.get(f"line_{i}", line) for i, line in enumerate(lines)) + "\n"


def test_csv_columns_come_in_any_order_and_episodes_end_where_their_number_changes(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "a.csv").write_text(csv_text(line_4="40,4,0.5,4,True,9"))
    data = load(tmp_path / "a.csv")
    assert data.observations.tolist() == [[1, 10], [2, 20], [3, 30], [4, 40]]
    assert data.episode_returns.tolist() == [3, 7]
    assert data.truncations.tolist() == [False, True, False, False]
    assert data.terminations.tolist() == [False, False, False, True]
    assert data.transitions.tolist() == [True, False, True, True]


def test_a_csv_column_margin_is_read(tmp_path: pathlib.Path) -> None:
    lines = csv_text().splitlines()
    (tmp_path / "a.csv").write_text("\n".join([f"{lines[0]},margin", *(f"{line},-0.5" for line in lines[1:])]))
    assert load(tmp_path / "a.csv").extras["margins"].tolist() == [-0.5] * 4


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"line_2": "nan,2,0.5,2,0,3"}, "nan in row 1 of column 'observation_1'"),
        ({"line_3": "30,3,inf,3,0,9"}, "inf in row 2 of column 'action_0'"),
        ({"line_3": "30,3,left,3,0,9"}, "row 2 of column 'action_0' holds 'left'"),
        ({"line_3": "30,3,,3,0,9"}, "row 2 of column 'action_0' is empty"),
        ({"line_3": "30,3,0.5,3,0"}, "row 2 has 5 cells and those before it 6"),
        ({"line_3": "30,3,0.5,3,0.5,9"}, "'terminals' holds 0.5 in row 2"),
        (
            {"line_0": "observation_1,observation_0,action_0,rewad,termination,episode"},
            "'rewad' is unknown: did you mean 'reward'",
        ),
        (
            {"line_0": "observation_2,observation_0,action_0,reward,termination,episode"},
            "'observation_1' is missing",
        ),
        ({"line_0": "observation_0,observation_0,action_0,reward,termination,episode"}, "more than once"),
    ],
)
def test_csv_refusals_name_row_and_column(tmp_path: pathlib.Path, changes: dict[str, str], sentence: str) -> None:
    (tmp_path / "a.csv").write_text(csv_text(**changes))
    with pytest.raises(DataError, match=sentence):
        load(tmp_path / "a.csv")


def test_a_csv_without_rows_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text(csv_text().splitlines()[0] + "\n")
    with pytest.raises(DataError, match=r"is empty"):
        load(tmp_path / "a.csv")


# -- NPZ
# -----------------------------------------------------------------------------------------------------------


def test_npz_with_the_names_of_dataset_loads(tmp_path: pathlib.Path) -> None:
    arrays = three_episodes()
    arrays["terminations"], arrays["truncations"] = arrays.pop("terminals"), arrays.pop("timeouts")
    np.savez(tmp_path / "a.npz", **arrays)
    assert load(tmp_path / "a.npz").episode_returns.tolist() == [6, 22, 17]


def test_npz_with_python_objects_is_refused_and_never_unpickled(tmp_path: pathlib.Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    np.savez(tmp_path / "a.npz", **(random_walk() | {"rewards": np.array([Trap()], dtype=object)}))
    with pytest.raises(DataError, match=r"python objects"):
        load(tmp_path / "a.npz")
    assert not (tmp_path / "sprung").exists()


def test_npz_that_declares_more_than_it_holds_is_refused_unread(tmp_path: pathlib.Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**13,)})
    np.savez(tmp_path / "a.npz", **without(random_walk(), "rewards"))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("rewards.npy", header.getvalue())
    with pytest.raises(DataError, match=r"'rewards' says that it has shape"):
        load(tmp_path / "a.npz")


def test_npz_damage_is_refused(tmp_path: pathlib.Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **random_walk())
    whole = bytearray((tmp_path / "a.npz").read_bytes())
    whole[len(whole) // 3] ^= 1
    (tmp_path / "b.npz").write_bytes(whole)
    with pytest.raises(DataError, match=r"damaged NPZ"):
        load(tmp_path / "b.npz")
    (tmp_path / "c.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"damaged NPZ"):
        load(tmp_path / "c.npz")


# -- verify and info
# -----------------------------------------------------------------------------------------------


def test_verify_compares_the_known_sha256(tmp_path: pathlib.Path) -> None:
    import hashlib

    path = write_hdf5(tmp_path / "a.hdf5", random_walk())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert verify(path, digest).ok
    assert verify(path).known_sha256 is None
    wrong = verify(path, "0" * 64)
    assert not wrong.ok
    assert digest in wrong.problems[0]
    (tmp_path / "a.hdf5.sha256").write_text(f"{digest}  a.hdf5\n")
    assert verify(path).ok
    with h5py.File(path, "a") as file:
        file["rewards"][0] = 2.0
    assert not verify(path).ok
    with pytest.raises(ConfigError, match=r"no such file"):
        verify(tmp_path / "missing.hdf5")


def test_verify_lists_what_is_wrong_with_the_content(tmp_path: pathlib.Path) -> None:
    arrays = random_walk()
    arrays["rewards"][5] = np.nan
    found = verify(write_hdf5(tmp_path / "a.hdf5", arrays))
    assert (found.ok, found.transitions) == (False, None)
    assert "'rewards' holds nan in row 5" in found.problems[0]


def test_verify_remarks_on_observations_that_look_like_a_flattened_picture(tmp_path: pathlib.Path) -> None:
    arrays, generator = random_walk(), np.random.default_rng(0)
    rows = len(arrays["rewards"])
    arrays["observations"] = generator.integers(0, 256, (rows, 768)).astype(np.float32)
    found = verify(write_hdf5(tmp_path / "a.hdf5", arrays))
    assert found.ok
    assert "768 whole numbers from 0 to 255, as of a flattened picture" in found.remarks[0]
    arrays["observations"][0, 0] = 0.5
    assert verify(write_hdf5(tmp_path / "b.hdf5", arrays)).remarks == []


def test_info_counts_by_hand(tmp_path: pathlib.Path) -> None:
    facts = info(load(write_hdf5(tmp_path / "a.hdf5", three_episodes(), env_id="Hopper-v5", licence="MIT")))
    assert (facts["transitions"], facts["episodes"], facts["length_min"], facts["length_max"]) == (9, 3, 2, 4)
    assert (facts["return_mean"], facts["return_min"], facts["return_max"]) == (15, 6, 22)
    assert facts["normalized_mean"] == pytest.approx(100 * (15 + 20.272305) / (3234.3 + 20.272305))
    assert (facts["terminated_episodes"], facts["truncated_episodes"], facts["licence"]) == (1, 2, "MIT")


def test_blank_lines_of_a_csv_file_are_passed_over(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.csv").write_text("observation_0,action_0\n\n0,0.5\n\n1,0.25\n\n")
    np.testing.assert_array_equal(load(tmp_path / "a.csv").actions[:, 0], [0.5, 0.25])


def test_attributes_of_numpys_types_are_written_as_the_numbers_that_they_are(tmp_path: pathlib.Path) -> None:
    data = load(write_hdf5(tmp_path / "a.hdf5", three_episodes()))
    given = {"seed": np.int64(7), "scale": np.float32(0.5), "seen": np.bool(True), "odd": {1, 2}}
    save(data.replace(attributes=given), tmp_path / "b.hdf5")
    found = load(tmp_path / "b.hdf5").attributes
    assert (found["seed"], found["scale"], found["seen"], found["odd"]) == (7, 0.5, True, '"{1, 2}"')
