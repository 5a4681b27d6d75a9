"""Stores on disk: what is packed is what `load` gives, kills and full disks leave none, damage is refused by name."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.base.spec import Spec
from surefoot.core.engine.sources import Stores
from surefoot.core.nn import normalizer
from surefoot.data import Dataset, building, convert, derived, files, load, pack, save, verify
from surefoot.data.derived import Derived, computed, content_digest
from surefoot.data.formats import on_disk
from surefoot.data.store import Store, store_from_dataset
from surefoot.runs.plan import agent_class

ROWS, LENGTH = 3000, 50
BLOCK = 60_000  # of bytes: about 300 rows


@pytest.fixture(autouse=True)
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache"))


def arrays(rows: int = ROWS, seed: int = 0, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    ends = np.arange(rows) % LENGTH == LENGTH - 1
    return {
        "observations": rng.normal(size=(rows, 5)).astype(np.float32),
        "actions": rng.uniform(-1.01, 1.01, (rows, 2)),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": ends & (np.arange(rows) % (2 * LENGTH) == LENGTH - 1),
        "timeouts": ends & (np.arange(rows) % (2 * LENGTH) != LENGTH - 1),
        **more,
    }


def written(path: pathlib.Path, held: dict[str, Any], attributes: dict[str, Any] | None = None) -> pathlib.Path:
    if path.suffix == ".npz":
        np.savez(path, **held, **({} if attributes is None else {"attributes": np.array(json.dumps(attributes))}))
        return path
    with h5py.File(path, "w") as file:
        for key, value in held.items():
            file[key] = value
        file.attrs.update(attributes or {})
    return path


def same(one: Dataset, other: Dataset) -> None:
    for field in dataclasses.fields(Dataset):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            assert a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, field.name)
    assert set(one.extras) == set(other.extras)
    for key, value in one.extras.items():
        assert value.dtype == other.extras[key].dtype
        np.testing.assert_array_equal(value, other.extras[key])
    assert (one.env_id, dict(one.warnings), dict(one.attributes)) == (
        other.env_id, dict(other.warnings), dict(other.attributes),
    )  # fmt: skip


@pytest.fixture(params=["raw.hdf5", "final.hdf5", "own.hdf5", "own.parquet", "own.npz", "own.csv"])
def file(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    path, held = tmp_path / request.param, arrays()
    if path.stem == "raw":
        return written(path, held, {"env_id": "HalfCheetah-v5"})
    if path.stem == "final":
        del held["timeouts"]
        final = np.random.default_rng(1).normal(size=(ROWS // LENGTH, 5))
        more = {"costs": np.ones(ROWS), "extras/speed": np.arange(ROWS, dtype=np.float64) / 3}
        more |= {"extras/mode": np.arange(ROWS, dtype=np.int32) % 3, "infos/final_observations": final}
        return written(path, {**held, **more}, {"max_episode_steps": LENGTH})
    convert(written(tmp_path / "first.npz", held), path)
    return path


def test_a_store_is_what_load_gives_of_the_file(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    told: list[str] = []
    done: list[tuple[int, int]] = []
    made = pack([file], tmp_path / "s", block_bytes=BLOCK, tell=told.append, progress=lambda *d: done.append(d))
    found = load(tmp_path / "s")
    same(load(file), found)
    assert (made.rows, made.episodes, made.sha256) == (ROWS, ROWS // LENGTH, found.sha256)
    assert done[-1] == (ROWS, ROWS)
    assert ("whole" in told[0]) == (file.suffix in (".npz", ".csv"))
    assert [rows for rows, _ in done] == [1000, 2000, 3000]  # blocks have at least 1,000 rows
    assert isinstance(found.observations, np.memmap)
    assert not found.observations.flags.writeable
    assert os.listdir(tmp_path / "s").count("store.json") == 1
    assert not (tmp_path / ".s.building").exists()


def test_several_files_stand_one_after_another(tmp_path: pathlib.Path) -> None:
    first = written(tmp_path / "a.npz", arrays(seed=1))
    second = written(tmp_path / "b.npz", arrays(seed=2))
    pack([first, second], tmp_path / "s")
    found, a, b = load(tmp_path / "s"), load(first), load(second)
    np.testing.assert_array_equal(found.observations, np.concatenate([a.observations, b.observations]))
    np.testing.assert_array_equal(found.episode_ids, np.arange(2 * ROWS) // LENGTH)
    again = tmp_path / "again"
    pack([tmp_path / "s", first], again)  # a store is a source too
    assert len(load(again)) == 3 * ROWS


def test_files_that_do_not_fit_together_are_refused(tmp_path: pathlib.Path) -> None:
    first = written(tmp_path / "a.npz", arrays())
    wide = written(tmp_path / "wide.npz", arrays(observations=np.zeros((ROWS, 6), np.float32)))
    costs = written(tmp_path / "costs.npz", arrays(costs=np.ones(ROWS)))
    other = written(tmp_path / "other.npz", arrays(), {"env_id": "Hopper-v5"})
    for second, why in (
        (wide, r"wide\.npz: 'observations' is float32 of shape \[6\], and float32 of shape \[5\] in what came before"),
        (costs, r"costs\.npz: the column 'costs' is not in all"),
        (other, r"other\.npz: is of Hopper-v5, and what came before of None"),
    ):
        with pytest.raises(DataError, match=why):
            pack([first, second], tmp_path / "s")
        assert not (tmp_path / "s").exists()
        shutil.rmtree(tmp_path / ".s.building")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ({"observations": np.full((ROWS, 5), np.nan)}, "'observations' holds nan in row 0"),
        ({"rewards": np.zeros(ROWS - 1)}, "'rewards' has 2999 rows"),
        ({"terminals": np.full(ROWS, 2.0)}, "'terminals' holds 2.0"),
    ],
)
def test_a_bad_file_is_refused_as_load_refuses_it_and_leaves_nothing(
    spoil: dict[str, Any], why: str, tmp_path: pathlib.Path
) -> None:
    path = written(tmp_path / "bad.hdf5", arrays(**spoil))
    with pytest.raises(DataError, match=f"bad.hdf5: {why}"):
        pack([path], tmp_path / "s")
    assert sorted(os.listdir(tmp_path)) == ["bad.hdf5"]


def test_a_build_that_is_killed_goes_on_where_it_was(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "a.npz", arrays())

    def killed(done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:  # pragma: no cover
        pack([path], tmp_path / "s", block_bytes=BLOCK, progress=killed)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert not (tmp_path / "s").exists()
    with open(tmp_path / ".s.building" / "0.bin", "ab") as half:
        half.write(b"half a block")
    told: list[str] = []
    done: list[int] = []
    pack([path], tmp_path / "s", block_bytes=BLOCK, tell=told.append, progress=lambda rows, _: done.append(rows))
    assert any("1,000 rows are there already" in text for text in told)
    assert done == [2000, 3000]
    same(load(path), load(tmp_path / "s"))


def test_a_build_of_a_file_that_has_changed_begins_anew(tmp_path: pathlib.Path) -> None:
    path, rows = written(tmp_path / "a.npz", arrays()), list[int]()

    def stopped(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack([path], tmp_path / "s", progress=stopped, block_bytes=BLOCK)
    path.unlink()
    written(path, arrays(seed=5))
    pack([path], tmp_path / "s", block_bytes=BLOCK, progress=lambda done, total: rows.append(done))
    assert rows[0] == 1000
    same(load(path), load(tmp_path / "s"))


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.npz", arrays())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(building.shutil, "disk_usage", lambda place: usage._replace(free=building.SPARE + 1000))
    with pytest.raises(DataError, match=r"3,000 rows take 0\.00 GB, .* are free: free some space"):
        pack([path], tmp_path / "s")
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.fixture
def full_disk() -> Iterator[Callable[[int], None]]:
    """Files can't grow beyond so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most if most else soft, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_leaves_no_store_and_the_same_call_goes_on(
    tmp_path: pathlib.Path, full_disk: Callable[[int], None]
) -> None:
    path = written(tmp_path / "a.npz", arrays())
    original = load(path)
    first = original.select_rows(np.arange(2000))
    second = original.select_rows(np.arange(2000, ROWS))
    with building.Building(tmp_path / "s", ["parts"]) as made:
        made.append(first)
        full_disk(50_000)
        with pytest.raises(DataError, match=r"the disk is full.*; 2,000 rows are kept in .*the same command continues"):
            made.append(second)
        full_disk(0)
    assert not (tmp_path / "s").exists()
    with building.Building(tmp_path / "s", ["parts"]) as made:
        assert made.rows == 2000
        made.append(second)
        made.finish([])
    np.testing.assert_array_equal(load(tmp_path / "s").observations, original.observations)


def test_two_processes_do_not_build_one_store_and_one_that_exists_is_left_alone(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "a.npz", arrays())
    with building.Building(tmp_path / "s", []), pytest.raises(ConfigError, match="another process is building it"):
        pack([path], tmp_path / "s")
    pack([path], tmp_path / "s")
    with pytest.raises(ConfigError, match="exists already"):
        pack([path], tmp_path / "s")


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    pack([written(tmp_path / "a.npz", arrays())], tmp_path / "big.store")
    return tmp_path / "big.store"


def rewritten(folder: pathlib.Path, **changes: Any) -> None:
    """Its header with changes, and a SHA-256 that fits them: a hostile store, not a damaged one."""
    header = json.loads((folder / "store.json").read_text()) | changes
    header["sha256"] = on_disk.header_digest(header)
    (folder / "store.json").write_text(json.dumps(header))


def column(folder: pathlib.Path, name: str) -> tuple[int, list[dict[str, Any]]]:
    columns = json.loads((folder / "store.json").read_text())["columns"]
    return next(k for k, one in enumerate(columns) if one["name"] == name), columns


def truncated(folder: pathlib.Path) -> None:
    os.truncate(folder / "3.bin", 100)


def altered(folder: pathlib.Path) -> None:
    with open(folder / "3.bin", "rb+") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))


def missing(folder: pathlib.Path) -> None:
    (folder / "3.bin").unlink()


def linked(folder: pathlib.Path) -> None:
    (folder / "3.bin").rename(folder / "elsewhere")
    (folder / "3.bin").symlink_to(folder / "elsewhere")


def linked_header(folder: pathlib.Path) -> None:
    (folder / "store.json").rename(folder / "elsewhere")
    (folder / "store.json").symlink_to(folder / "elsewhere")


def other_header(folder: pathlib.Path) -> None:
    text = (folder / "store.json").read_text()
    (folder / "store.json").write_text(text.replace(f'"rows": {ROWS}', f'"rows": {ROWS - 1}'))


def enormous(folder: pathlib.Path) -> None:
    rewritten(folder, rows=2**47)


def many_sizes(folder: pathlib.Path) -> None:
    number, columns = column(folder, "actions")
    columns[number]["shape"] = [2**31, 2**31, 2**31, 2**31, 2**31]
    rewritten(folder, columns=columns)


def of_objects(folder: pathlib.Path) -> None:
    number, columns = column(folder, "actions")
    columns[number]["dtype"] = "object"
    rewritten(folder, columns=columns)


def path_for_a_name(folder: pathlib.Path) -> None:
    number, columns = column(folder, "actions")
    columns[number]["name"] = "../../etc/passwd"
    rewritten(folder, columns=columns)


def twice(folder: pathlib.Path) -> None:
    _, columns = column(folder, "actions")
    rewritten(folder, columns=[*columns, columns[0]])


def without_rewards(folder: pathlib.Path) -> None:
    number, columns = column(folder, "rewards")
    rewritten(folder, columns=[*columns[:number], *columns[number + 1 :]])


def newer(folder: pathlib.Path) -> None:
    rewritten(folder, format=3)


def holding(name: str, value: Any, dtype: str) -> Callable[[pathlib.Path], None]:
    """What puts a value into a column and gives it a SHA-256 that fits."""

    def spoil(folder: pathlib.Path) -> None:
        number, columns = column(folder, name)
        path = folder / f"{number}.bin"
        held = np.fromfile(path, dtype)
        held[7] = value
        held.tofile(path)
        columns[number]["sha256"] = files.sha256_of(path)
        rewritten(folder, columns=columns)

    return spoil


SPOILED: dict[str, tuple[Callable[[pathlib.Path], None], str]] = {
    "truncated": (truncated, r"big\.store/3\.bin: the column 'next_observations' can't be read: .*100 bytes"),
    "altered": (altered, r"big\.store/3\.bin: the column 'next_observations' does not fit its checksum"),
    "missing": (missing, r"big\.store/3\.bin: the column 'next_observations' can't be read"),
    "linked": (linked, r"big\.store/3\.bin.*symbolic link"),
    "linked header": (linked_header, r"big\.store/store\.json: is a symbolic link"),
    "other header": (other_header, r"store\.json: its checksum does not fit"),
    "enormous": (enormous, r"big\.store/0\.bin: .*must have"),
    "many sizes": (many_sizes, r"big\.store/1\.bin: .*must have"),
    "objects": (of_objects, r"store\.json: columns\[1\]\.dtype is 'object', must be one of"),
    "path": (path_for_a_name, r"store\.json: has columns twice, or of names that are not known"),
    "twice": (twice, r"store\.json: has columns twice"),
    "no rewards": (without_rewards, r"store\.json: has no column 'rewards'"),
    "newer": (newer, r"store\.json: format is 3, and this version of surefoot reads up to 2"),
    "nan": (holding("rewards", np.nan, "<f4"), r"'rewards' holds nan in row 7"),
    "no flag": (holding("terminations", 7, "u1"), r"'terminations' holds bytes that are neither 0 nor 1"),
    "episodes": (holding("episode_ids", 70, "<i8"), r"'episode_ids' must be"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_damaged_or_hostile_store_is_refused_by_name(how: str, store: pathlib.Path) -> None:
    load(store)
    spoil, why = SPOILED[how]
    spoil(store)
    with pytest.raises(DataError, match=why):
        load(store)
    assert not verify(store).ok


def test_what_was_found_good_is_not_read_again_but_by_verify(
    store: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = 1_700_000_000 * 10**9
    for path in store.glob("*.bin"):
        os.utime(path, ns=(old, old))
    load(store)
    monkeypatch.setattr(on_disk, "sha256_of", lambda path: pytest.fail("read again"))
    load(store)
    monkeypatch.undo()
    altered(store)
    os.utime(store / "3.bin", ns=(old, old))
    assert "3.bin" in verify(store).problems[0]


def test_views_and_limits_are_those_that_it_was_built_with(store: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="view=d4rl to `surefoot datasets pack`"):
        load(store, view="d4rl")


# -- what is made of it ----------------------------------------------------------------------------------


def test_what_is_computed_in_files_is_what_is_computed_in_memory_and_is_made_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "BLOCK", 7)
    values = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    asked: list[slice] = []

    def doubled(rows: slice) -> Any:
        asked.append(rows)
        return values[rows] * 2

    for _ in range(2):  # the second by another object, as another process has
        found = computed(Derived(tmp_path / "p"), ["doubled"], [values], values.shape, np.float32, doubled)
        np.testing.assert_array_equal(found, values * 2)
    assert sum(rows.stop - rows.start for rows in asked) == 100
    path = next((tmp_path / "p").glob("*.bin"))
    with open(path, "rb+") as file:
        file.write(b"x")
    found = computed(Derived(tmp_path / "p"), ["doubled"], [values], values.shape, np.float32, doubled)
    np.testing.assert_array_equal(found, values * 2)  # it was changed, so it was made again
    other = computed(Derived(tmp_path / "p"), ["halved"], [values], values.shape, np.float32, lambda r: values[r] / 2)
    np.testing.assert_array_equal(other, values / 2)
    more = values.copy()
    more[50] += 1
    assert content_digest(more) != content_digest(values)


def test_prepared_rows_that_the_disk_can_not_hold_are_refused(
    tmp_path: pathlib.Path, full_disk: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.zeros((1000, 30), np.float32)
    full_disk(20_000)
    with pytest.raises(DataError, match=r"prepared rows can't be kept there: the disk is full"):
        computed(Derived(tmp_path), ["same"], [values], values.shape, np.float32, lambda rows: values[rows])
    full_disk(0)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(derived.shutil, "disk_usage", lambda place: usage._replace(free=1000))
    with pytest.raises(DataError, match=r"prepared rows \(same\) take 0\.00 GB, and the disk has 0\.00 GB free"):
        computed(Derived(tmp_path), ["same"], [values], values.shape, np.float32, lambda rows: values[rows])


def test_statistics_of_many_rows_are_those_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(3, 2, (1000, 4)).astype(np.float32))
    whole, parts = normalizer.Normalizer(4), normalizer.Normalizer(4)
    whole.fit(values)
    monkeypatch.setattr(normalizer, "FIT_ROWS", 64)
    parts.fit(values[:300], values[300:])
    np.testing.assert_array_equal(parts.mean, whole.mean)
    np.testing.assert_array_equal(parts.scale, whole.scale)
    exact = values.double().numpy()
    np.testing.assert_allclose(parts.mean, exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(parts.scale, exact.std(0) + 1e-3, rtol=1e-6)


ALGORITHMS: dict[str, dict[str, Any]] = {
    "iql": {"rewards": "return_range"},
    "td3bc": {"normalization": "quantile"},
    "riql": {"normalization": "stacked"},
    "bc": {},
    "rebrac": {},
    "dt": {"context": 5},
    "qc": {},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_batches_from_disk_are_those_from_memory_to_the_bit(
    name: str, store: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows, chunks and rows without a known next one too: half of the episodes have none."""
    monkeypatch.setattr(derived, "BLOCK", 999)
    kind = agent_class(name)
    batches = []
    for data in (load(store.with_name("a.npz")), load(store)):
        agent = kind(Spec.of(data, -np.ones(2), np.ones(2)), **ALGORITHMS[name]).fresh(0)
        ready = agent.prepare(data)
        made = store_from_dataset(ready, agent.required_columns)
        source = next(iter(agent.sources(Stores(ready, made)).values()))
        source.bind([0], 64, torch.device("cpu"))
        batches.append(source.gather(source.rows(3)))
    assert batches[0].keys() == batches[1].keys()
    for key, value in batches[0].items():
        assert torch.equal(value, batches[1][key]), key


def test_gathered_rows_lie_in_a_mapped_file_and_whole_columns_are_not_copied(store: pathlib.Path) -> None:
    data = load(store)
    pictures = np.zeros((ROWS, 2, 2), np.uint8)
    assert data.derived is not None
    made = Store.mapped({"rewards": data.rewards, "picture": pictures}, data.derived, np.arange(ROWS))
    assert np.shares_memory(made.groups["picture"].numpy(), pictures)
    assert made["rewards"].shape == (ROWS,)
    files = {path.stat().st_size for path in (store / "prepared").glob("*.bin")}
    assert files == {ROWS * 64}  # a row has a whole cache line


def test_selected_episodes_are_those_of_memory(store: pathlib.Path) -> None:
    some = np.array([0, 3, 4, 11])
    mine, others = load(store).select_episodes(some), load(store.with_name("a.npz")).select_episodes(some)
    same(mine, others)
    save(mine, store.with_name("some.npz"))
    same(load(store.with_name("some.npz")), others.replace(attributes=load(store.with_name("some.npz")).attributes))
