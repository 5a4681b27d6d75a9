"""Pictures count as bytes in every format, whatever they compress to; what the memory can't hold is refused unread."""

from __future__ import annotations

import io
import json
import os
import pathlib
from typing import Any

import h5py
import numpy as np
import pytest
from make_files import random_walk
from test_formats import made

from surefoot.core.base import unpacking
from surefoot.core.base.errors import DataError
from surefoot.data import load, save
from surefoot.data.dataset import Dataset
from surefoot.data.formats import bags, columns, hdf5, pictures

MIB = 1 << 20
VIDEO = "the extra video is not installed"
PARQUET = "the extra parquet is not installed"


class Memory:
    """A machine with so much of it free."""

    def __init__(self, available: int) -> None:
        self.available = available

    def virtual_memory(self) -> Memory:
        return self


def seen(tmp_path: pathlib.Path, side: int, rows: int = 300) -> Dataset:
    """Uniform pictures, side by side as a simulator draws them: a thousandth of their size once compressed."""
    data = made(tmp_path)
    frames = np.zeros((rows, side, side, 3), np.uint8)
    nothing = np.zeros((rows, 0), np.float32)
    extras = {"observations/camera": frames, "next_observations/camera": frames}
    return data.replace(observations=nothing, next_observations=nothing, extras=extras)


@pytest.mark.parametrize("ending", [".hdf5", ".npz", ".parquet"])
def test_uniform_pictures_of_more_than_64_times_their_file_are_read_as_bytes(
    ending: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason=PARQUET)
    data, path = seen(tmp_path, 120), tmp_path / f"a{ending}"
    save(data, path)
    monkeypatch.setattr(unpacking, "ALWAYS", MIB)
    assert 64 * path.stat().st_size < 2 * 300 * 120 * 120 * 3
    found = load(path)
    assert found.extras["observations/camera"].dtype == np.uint8
    assert found.extras["observations/camera"].shape == (300, 120, 120, 3)


@pytest.mark.parametrize("ending", [".hdf5", ".npz", ".parquet"])
def test_pictures_that_are_more_than_the_free_memory_allows_are_refused(
    ending: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason=PARQUET)
    path = tmp_path / f"a{ending}"
    save(seen(tmp_path, 40), path)
    once = 300 * 40 * 40 * 3
    monkeypatch.setattr(unpacking, "psutil", Memory(int(once / 0.4)))  # the numbers beside them are too much
    sentence = rf"a\{ending}: its pictures and numbers unpack to 14\d{{5}} bytes, more than the {once} .*free memory"
    with pytest.raises(DataError, match=sentence):
        load(path)
    monkeypatch.setattr(unpacking, "psutil", Memory(int(once / 0.4) + MIB))
    assert len(load(path)) == 300


def test_a_limit_that_the_variable_sets_holds_for_pictures_too(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(seen(tmp_path, 40), tmp_path / "a.hdf5")
    monkeypatch.setenv(unpacking.VARIABLE, "1")
    with pytest.raises(DataError, match=rf"more than the {MIB} .*raise {unpacking.VARIABLE} where it is set"):
        load(tmp_path / "a.hdf5")


LARGE = (1, 4_800, 4_700, 3)
"""One picture of 67.7 MB, 0.6 MB above the 64 MiB that one may have."""


@pytest.mark.parametrize("ending", [".hdf5", ".npz", ".parquet"])
def test_a_picture_above_64_mib_is_refused_by_its_shape(ending: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"a{ending}"
    arrays: dict[str, Any] = {"actions": np.zeros((1, 1)), "rewards": np.zeros(1), "terminals": [False]}
    arrays |= {"timeouts": [True], "observations/camera": np.zeros(LARGE, np.uint8)}
    if ending == ".hdf5":
        with h5py.File(path, "w") as file:
            for key, value in arrays.items():
                file.create_dataset(key, data=value, compression="gzip")
    elif ending == ".npz":
        np.savez_compressed(path, **arrays)
    else:
        parquet = pytest.importorskip("pyarrow.parquet", reason=PARQUET)
        from surefoot.data.formats.parquet import arrow_table

        held = {key: np.asarray(value) for key, value in arrays.items()}
        parquet.write_table(arrow_table(held, {}), path)
    with pytest.raises(
        DataError, match=r"'observations/camera' has pictures of shape .*6768\d+ bytes each, .*67108864"
    ):
        load(path)


def test_whole_numbers_that_become_float32_still_count_as_such(tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for key, value in random_walk().items():
            file[key] = value
        del file["observations"]
        file.create_dataset("observations", data=np.zeros((300, 300_000), np.uint8), compression="gzip")
    with pytest.raises(DataError, match=r"unpacks to 3600\d+ bytes"):
        load(tmp_path / "a.hdf5")


@pytest.mark.parametrize("ending", [".hdf5", ".npz"])
def test_an_extra_of_bytes_counts_as_the_bytes_that_it_stays(ending: str, tmp_path: pathlib.Path) -> None:
    data = made(tmp_path)
    data = data.replace(extras={"map": np.zeros((300, 300_000), np.uint8)})  # 86 MiB, and 343 as float32
    save(data, tmp_path / f"a{ending}")
    found = load(tmp_path / f"a{ending}").extras["map"]
    assert (found.dtype, found.shape) == (np.uint8, (300, 300_000))


def test_reading_hdf5_has_more_time_the_more_it_unpacks_to(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(seen(tmp_path, 40), tmp_path / "a.hdf5")
    given: list[float] = []
    started = hdf5._started

    def noted(seconds: float, stop: Any) -> Any:
        given.append(seconds)
        return started(seconds, stop)

    monkeypatch.setattr(hdf5, "_started", noted)
    load(tmp_path / "a.hdf5")
    assert given[0] == pytest.approx(60 + (tmp_path / "a.hdf5").stat().st_size / 2e6)
    assert 0.072 < given[1] - given[0] < 0.08  # 1.44 MB of pictures and some numbers at 20 MB/s


def png(height: int, width: int) -> bytes:
    from PIL import Image

    made_of = io.BytesIO()
    Image.new("RGB", (width, height)).save(made_of, "PNG")
    return made_of.getvalue()


def test_a_png_that_says_that_it_is_above_64_mib_is_refused_before_it_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from PIL import Image

    content = png(4_800, 4_700)
    assert len(content) < 300_000
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(DataError, match=r"a: 'top' has pictures of shape \(4800, 4700, 3\), 6768\d+ bytes each"):
        pictures.decoded("a: 'top'", content)


def test_a_raw_picture_of_a_message_above_64_mib_is_refused_by_what_the_message_says() -> None:
    class Message:
        encoding, height, width, step, data = "mono8", 4_800, 4_700, 4_700, b""

    with pytest.raises(DataError, match=r"a\.mcap: '/camera' has pictures of shape \(4800, 4700, 3\)"):
        bags._picture(pathlib.Path("a.mcap"), "/camera", Message(), None)


def test_pictures_of_messages_count_as_pictures_and_repeat_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from surefoot.data.formats.mapping import LogMapping

    monkeypatch.setattr(unpacking, "ALWAYS", 4 * MIB)
    picture = np.zeros((40, 40, 3), np.uint8)
    told = bags.Track(list(range(0, 20_000, 2)), [np.zeros(1)] * 10_000)
    tracks = {"/camera": bags.Track([0], [picture]), "/u.x": told}
    mapping = LogMapping("m.yaml", actions=("/u.x",), images={"top": "/camera"})
    monkeypatch.setattr(unpacking, "psutil", Memory(100 * MIB))
    sentence = r"a step for each message of '/u\.x': its pictures and numbers unpack to 48640000 bytes"
    with pytest.raises(DataError, match=sentence):
        bags._sampled(pathlib.Path("log"), tracks, mapping, list(tracks))
    monkeypatch.setattr(unpacking, "psutil", Memory(200 * MIB))
    found = bags._sampled(pathlib.Path("log"), tracks, mapping, list(tracks))
    assert found["/camera"].shape == (10_000, 40, 40, 3)


def filmed(folder: pathlib.Path, rows: int, height: int, width: int) -> pathlib.Path:
    """A LeRobot folder of one episode with a video as LeRobot's recorder encodes them; the folder's mapping."""
    av = pytest.importorskip("av", reason=VIDEO)
    parquet = pytest.importorskip("pyarrow.parquet", reason=PARQUET)
    import pyarrow as pa

    ends = np.arange(1, rows + 1) == rows
    whole = made(folder.parent)
    data = whole.select_rows(np.arange(rows)).replace(
        truncations=ends, terminations=np.zeros(rows, bool), episode_ids=np.zeros(rows, np.int64)
    )
    save(data, folder, layout="lerobot")
    info = json.loads((folder / "meta/info.json").read_text())
    names = ["height", "width", "channels"]
    info["features"]["observation.images.top"] = {"dtype": "video", "shape": [height, width, 3], "names": names}
    (folder / "meta/info.json").write_text(json.dumps(info))
    episodes = folder / "meta/episodes/chunk-000/file-000.parquet"
    table = parquet.read_table(episodes)
    for key, value in (("chunk_index", 0), ("file_index", 0), ("from_timestamp", 0.0)):
        table = table.append_column(f"videos/observation.images.top/{key}", pa.array([value]))
    parquet.write_table(table, episodes)
    video = folder / "videos/observation.images.top/chunk-000/file-000.mp4"
    video.parent.mkdir(parents=True)
    encoded(av, video, rows, height, width, int(info["fps"]))
    mapping = folder.parent / "m.yaml"
    mapping.write_text("observations: observation.state\nimages: {top: observation.images.top}\nactions: action\n")
    return mapping


def encoded(av: Any, path: pathlib.Path, rows: int, height: int, width: int, fps: int, kind: str | None = None) -> None:
    """A video in which a bright column wanders over grey, by H.264 with LeRobot's settings."""
    if "libx264" not in av.codecs_available:
        pytest.skip("this av has no encoder of H.264")
    with av.open(str(path), "w", format=kind) as file:
        stream = file.add_stream("libx264", rate=fps)
        stream.height, stream.width, stream.pix_fmt, stream.options = height, width, "yuv420p", {"g": "2", "crf": "30"}
        for k in range(rows):
            picture = np.full((height, width, 3), 90, np.uint8)
            picture[:, 8 * k % width : 8 * k % width + 8] = 250
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        file.mux(stream.encode())


def test_a_video_that_is_hundreds_of_times_smaller_than_its_pictures_is_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = filmed(tmp_path / "a", 250, 96, 128)
    monkeypatch.setattr(unpacking, "ALWAYS", MIB)
    inside = sum(file.stat().st_size for file in (tmp_path / "a").rglob("*") if file.is_file())
    size = 2 * 250 * 96 * 128 * 3
    assert 64 * inside < size
    found = load(tmp_path / "a", mapping=mapping).extras["observations/top"]
    assert found.shape == (250, 96, 128, 3)
    assert np.argmax(found[:, 0, :, 0].astype(int), 1).tolist() == pytest.approx(
        [8 * k % 128 for k in range(250)], abs=8
    )
    monkeypatch.setattr(unpacking, "psutil", Memory(size))
    with pytest.raises(DataError, match=rf"a, 'observation\.images\.top': .*unpack to {size // 2} bytes, .*image_size"):
        load(tmp_path / "a", mapping=mapping)


@pytest.mark.parametrize("drift", [0.0, 0.13, -0.1])
def test_a_videos_pictures_are_counted_where_it_has_one_for_each_time(drift: float, tmp_path: pathlib.Path) -> None:
    av = pytest.importorskip("av", reason=VIDEO)
    encoded(av, tmp_path / "a.mp4", 12, 64, 96, 10)
    times = (np.arange(12) / 10 + drift).tolist()
    found = np.stack(list(pictures.frames(tmp_path / "a.mp4", times, 0.05)))
    assert np.argmax(found[:, 0, :, 0].astype(int), 1).tolist() == pytest.approx([8 * k % 96 for k in range(12)], abs=7)


def test_some_of_a_videos_pictures_are_those_shown_at_their_times(tmp_path: pathlib.Path) -> None:
    av = pytest.importorskip("av", reason=VIDEO)
    encoded(av, tmp_path / "a.mp4", 12, 64, 96, 10)
    found = np.stack(list(pictures.frames(tmp_path / "a.mp4", [0.2, 0.5, 0.6], 0.05)))
    assert np.argmax(found[:, 0, :, 0].astype(int), 1).tolist() == pytest.approx([16, 40, 48], abs=7)
    with pytest.raises(DataError, match=r"has no picture at 0\.560 s"):
        list(pictures.frames(tmp_path / "a.mp4", [0.2, 0.56], 0.03))


def test_a_video_that_is_one_picture_short_repeats_its_last_with_a_warning_and_two_short_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    """Clocks of robots run a little past the end of what was filmed."""
    av = pytest.importorskip("av", reason=VIDEO)
    encoded(av, tmp_path / "a.mp4", 6, 64, 96, 10)
    with pytest.warns(UserWarning, match=r"a\.mp4: ends at 0\.500 s, one picture before 0\.600 s"):
        found = list(pictures.frames(tmp_path / "a.mp4", (np.arange(7) / 10).tolist(), 0.05))
    assert len(found) == 7
    np.testing.assert_array_equal(found[6], found[5])
    with pytest.raises(DataError, match=r"has no picture at 0\.600 s"):
        list(pictures.frames(tmp_path / "a.mp4", (np.arange(8) / 10).tolist(), 0.05))


def test_a_video_of_pictures_above_64_mib_is_refused(tmp_path: pathlib.Path) -> None:
    av = pytest.importorskip("av", reason=VIDEO)
    encoded(av, tmp_path / "a.mp4", 1, 4_800, 4_704, 10)
    with pytest.raises(DataError, match=r"a\.mp4 has pictures of shape \(4800, 4704, 3\), 677\d+ bytes each"):
        next(pictures.frames(tmp_path / "a.mp4", [0.0], 0.05))


def test_a_video_whose_pictures_are_not_as_large_as_its_head_says_is_refused(tmp_path: pathlib.Path) -> None:
    av = pytest.importorskip("av", reason=VIDEO)
    for name, size in (("small", 64), ("large", 4_800)):
        encoded(av, tmp_path / name, 2, size, size - 16, 10, "h264")
    small, large = ((tmp_path / name).read_bytes() for name in ("small", "large"))
    encoded(av, tmp_path / "other", 2, 128, 128, 10, "h264")
    (tmp_path / "a.mp4").write_bytes(small + (tmp_path / "other").read_bytes())
    with pytest.raises(DataError, match=r"a\.mp4: says that its pictures are 64 x 48 and holds one of 128 x 128"):
        list(pictures.frames(tmp_path / "a.mp4", [1e9], 0.05))
    (tmp_path / "b.mp4").write_bytes(small + large)  # the decoder refuses it before it takes memory
    with pytest.raises(DataError, match=r"b\.mp4: .*pictures of more than 22369621 pixels"):
        list(pictures.frames(tmp_path / "b.mp4", [1e9], 0.05))


def test_a_video_is_a_file_and_no_list_of_others(tmp_path: pathlib.Path) -> None:
    av = pytest.importorskip("av", reason=VIDEO)
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "endless.mp4").symlink_to("/dev/zero")
    for name in ("pipe.mp4", "endless.mp4", "gone.mp4"):
        with pytest.raises(DataError, match=rf"{name}: is no file"):
            next(pictures.frames(tmp_path / name, [0.0], 0.05))
    encoded(av, tmp_path / "elsewhere.mp4", 2, 64, 48, 10)
    assert next(pictures.frames(tmp_path / "elsewhere.mp4", [0.0], 0.05)).shape == (64, 48, 3)
    (tmp_path / "list.mp4").write_text("ffconcat version 1.0\nfile elsewhere.mp4\n")
    playlist = ("#EXTM3U", "#EXT-X-TARGETDURATION:1", "#EXTINF:1,", "elsewhere.mp4", "#EXT-X-ENDLIST", "")
    (tmp_path / "stream.mp4").write_text("\n".join(playlist))
    for name in ("list.mp4", "stream.mp4"):
        with pytest.raises(DataError, match=rf"{name}: is a damaged video"):
            next(pictures.frames(tmp_path / name, [0.0], 0.05))


def test_pictures_in_parquet_are_decoded_a_few_at_a_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow", reason=PARQUET)
    data = seen(tmp_path, 40)
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (300, 40, 40, 3), np.uint8)
    data = data.replace(extras={key: noise for key in data.extras})
    save(data, tmp_path / "a.parquet")
    found: list[int] = []
    original = columns.arrow_array

    def noted(path: object, name: str, values: Any, *rest: bool) -> Any:
        if name == "observations/camera":
            found.append(len(values))
        return original(path, name, values, *rest)

    monkeypatch.setattr(columns, "AT_ONCE", 10 * 40 * 40 * 3)
    monkeypatch.setattr(columns, "arrow_array", noted)
    back = load(tmp_path / "a.parquet")
    np.testing.assert_array_equal(back.extras["observations/camera"], data.extras["observations/camera"])
    assert max(found) == 10 * 40 * 40 * 3
    assert found.count(10) == 30
