"""Recordings of messages become steps: what was known at each, and what was commanded after."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

from surefoot.core.base.errors import DataError
from surefoot.core.base.library_output import held_output
from surefoot.data import load
from surefoot.data.formats import bags
from surefoot.data.formats.columns import Table
from surefoot.data.formats.mapping import LogMapping, arrays_of

MCAP = "the extra ros (mcap, mcap-ros2-support) is not installed"
MAPPING = "observations: [/joints.position, '/joints.velocity[0]']\nactions: /command.data\nrate: 10\n"
SECOND = 10**9
JOINTS = (
    "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n"
    + "=" * 80
    + "\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"
    + "=" * 80
    + "\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
)
IMAGE = (
    "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
    "uint8[] data\n" + JOINTS.split("\n", 5)[5]
)


def recorded(path: pathlib.Path, pictures: bool = False, joints_from: float = 0.0) -> pathlib.Path:
    """Joints at 50 Hz whose position is the time, commands at 10 Hz that are the time of the tick that they answer."""
    writer_module = pytest.importorskip("mcap_ros2.writer", reason=MCAP)
    with open(path, "wb") as file:
        writer = writer_module.Writer(file)
        joints = writer.register_msgdef("sensor_msgs/msg/JointState", JOINTS)
        number = writer.register_msgdef("std_msgs/msg/Float64", "float64 data\n")
        picture = writer.register_msgdef("sensor_msgs/msg/Image", IMAGE)

        def write(topic: str, schema: Any, message: Any, seconds: float) -> None:
            time = round(seconds * SECOND)
            writer.write_message(topic=topic, schema=schema, message=message, log_time=time, publish_time=time)

        header = {"stamp": {"sec": 0, "nanosec": 0}, "frame_id": ""}
        for k in range(50):
            t = k / 50
            if t >= joints_from:
                values = {"position": [t, 2 * t], "velocity": [-t, 7.0], "effort": [], "name": []}
                write("/joints", joints, {"header": header, **values}, t)
            if pictures and k % 5 == 0:
                data = np.full((4, 2, 3), [k, 100, 200], np.uint8).tobytes()
                facts = {"height": 4, "width": 2, "encoding": "bgr8", "is_bigendian": 0, "step": 6}
                write("/camera", picture, {"header": header, **facts, "data": data}, t)
            if k % 5 == 0:
                write("/command", number, {"data": t}, t + 0.03)  # 30 ms after what it answers
        writer.finish()
    return path


def test_steps_hold_what_was_known_and_what_was_commanded_before_the_next(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.yaml").write_text("files: a.mcap\n" + MAPPING)
    recorded(tmp_path / "a.mcap")
    data = load(tmp_path / "m.yaml")
    ticks = data.actions[:, 0]
    np.testing.assert_allclose(ticks, np.arange(10) / 10, atol=1e-6)
    np.testing.assert_allclose(data.observations, np.stack([ticks, 2 * ticks, -ticks], 1), atol=1e-6)
    assert data.episode_lengths.tolist() == [10]
    assert not data.has_rewards


def test_names_with_a_star_are_those_of_observations_and_of_actions_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.yaml").write_text(MAPPING)
    text = "observations: ['/joints.pos*', '/joints.vel*[0]']\nactions: /comm*\nrate: 10\n"
    (tmp_path / "star.yaml").write_text(text)
    plain, found = (load(recorded(tmp_path / "a.mcap"), mapping=tmp_path / name) for name in ("m.yaml", "star.yaml"))
    np.testing.assert_array_equal(found.observations, plain.observations)
    np.testing.assert_array_equal(found.actions, plain.actions)


def test_without_a_rate_there_is_a_step_for_each_command(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.yaml").write_text(MAPPING.replace("rate: 10\n", ""))
    data = load(recorded(tmp_path / "a.mcap", joints_from=0.25), mapping=tmp_path / "m.yaml")
    np.testing.assert_allclose(data.actions[:, 0], np.arange(3, 10) / 10, atol=1e-6)  # after the joints have spoken
    np.testing.assert_allclose(data.observations[:, 0], np.arange(3, 10) / 10 + 0.02, atol=1e-6)


@pytest.mark.parametrize("offset", [0, 37, 74, 111])  # a float64 tells such times only 256 ns apart
def test_steps_begin_with_the_first_command_where_observations_are_there_long_before(offset: int) -> None:
    start = 1_700_000_000 * SECOND + offset
    sensed = bags.Track([start + k * SECOND // 100 for k in range(300)], [np.array([float(k)]) for k in range(300)])
    told = bags.Track([start + SECOND + k * SECOND // 10 for k in range(20)], [np.array([k / 10]) for k in range(20)])
    paid = bags.Track([start + SECOND // 2], [np.array([1.0])])
    mapping = LogMapping("m.yaml", actions=("/u.x",), observations=("/o.x",), reward="/r.x", rate=10.0)
    tracks = {"/o.x": sensed, "/u.x": told, "/r.x": paid}
    found = bags._sampled(pathlib.Path("log"), tracks, mapping, list(tracks))
    np.testing.assert_array_equal(found["/u.x"][:, 0], np.arange(20) / 10)  # each command, at the step before it
    np.testing.assert_array_equal(found["/o.x"][:, 0], 90 + 10 * np.arange(20))
    late = {**tracks, "/r.x": bags.Track([start + 2 * SECOND], [np.array([1.0])])}  # and when a reward is known
    found = bags._sampled(pathlib.Path("log"), late, mapping, list(late))
    np.testing.assert_array_equal(found["/u.x"][:, 0], np.arange(10, 20) / 10)


def test_without_a_rate_a_reward_is_that_of_the_command_before_it_and_not_of_the_next() -> None:
    second = [np.array([float(k)]) for k in range(4)]
    tracks = {
        "/o.x": bags.Track([10, 110, 210, 310], second),
        "/u.x": bags.Track([20, 120, 220, 320], second),
        "/u.gain": bags.Track([20, 120, 220, 320], second),
        "/grip.x": bags.Track([21, 121, 221, 321], second),  # commanded right after
        "/r.x": bags.Track([90, 190, 290, 390], second),  # what the k-th command has earned
        "/done.x": bags.Track([95, 195, 295, 1000], second),  # and the last word, long after the last step
    }
    mapping = LogMapping(
        "m.yaml",
        actions=("/u.x", "/grip.x"),
        observations=("/o.x",),
        reward="/r.x",
        cost="/u.gain",
        termination="/done.x",
    )
    found = bags._sampled(pathlib.Path("log"), tracks, mapping, list(tracks))
    for name in ("/o.x", "/u.x", "/u.gain", "/grip.x", "/r.x"):
        assert found[name][:, 0].tolist() == [0, 1, 2, 3], name
    assert found["/done.x"][:, 0].tolist() == [0, 1, 2, 2]
    late = {**tracks, "/r.x": bags.Track([290, 390], second[2:])}  # steps begin with the first that is rewarded
    found = bags._sampled(pathlib.Path("log"), late, mapping, list(late))
    assert [found[name][:, 0].tolist() for name in ("/o.x", "/u.x", "/r.x")] == [[2, 3]] * 3
    at_once = {**tracks, "/u.x": bags.Track([20, 120, 120, 320], second)}  # two commands at one time are two steps
    found = bags._sampled(pathlib.Path("log"), at_once, mapping, ["/u.x", "/r.x"])
    assert found["/u.x"][:, 0].tolist() == [0, 1, 2, 3]
    assert found["/r.x"][:, 0].tolist() == [0, 0, 2, 3]


def test_a_recording_whose_clock_leaps_is_refused_before_its_steps_take_all_memory() -> None:
    track = bags.Track([0, 1_700_000_000 * SECOND], [np.zeros(1), np.zeros(1)])  # a clock that was set after the start
    mapping = LogMapping("m.yaml", actions=("/u.x",), observations=("/o.x",), rate=100.0)
    with pytest.raises(DataError, match=r"log, at 100 steps a second: unpacks to .* bytes, more than the 268435456"):
        bags._sampled(pathlib.Path("log"), {"/o.x": track, "/u.x": track}, mapping, ["/o.x", "/u.x"], 10**6)


def test_pictures_are_put_the_right_way_round_and_scaled(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.yaml").write_text(MAPPING + "images: {top: /camera}\nimage_size: [2, 2]\n")
    data = load(recorded(tmp_path / "a.mcap", pictures=True), mapping=tmp_path / "m.yaml")
    pictures = data.extras["observations/top"]
    assert pictures.shape == (10, 2, 2, 3)
    np.testing.assert_array_equal(pictures[4, 0, 0], [200, 100, 20])


def test_messages_of_json_are_read(tmp_path: pathlib.Path) -> None:
    writing = pytest.importorskip("mcap.writer", reason=MCAP)
    with open(tmp_path / "a.mcap", "wb") as file:
        writer = writing.Writer(file)
        writer.start()
        schema = writer.register_schema(name="log", encoding="jsonschema", data=b"{}")
        channel = writer.register_channel(topic="/log", message_encoding="json", schema_id=schema)
        for k in range(5):
            text = json.dumps({"pose": {"xy": [k, k + 1]}, "u": 0.5 * k}).encode()
            writer.add_message(channel, log_time=k * SECOND, publish_time=k * SECOND, data=text)
        writer.finish()
    (tmp_path / "m.yaml").write_text("observations: /log.pose.xy\nactions: /log.u\n")
    data = load(tmp_path / "a.mcap", mapping=tmp_path / "m.yaml")
    np.testing.assert_array_equal(data.observations, [[k, k + 1] for k in range(5)])
    np.testing.assert_array_equal(data.actions[:, 0], np.arange(5) / 2)


def packed(path: pathlib.Path) -> pathlib.Path:
    """Messages of JSON at 100 Hz, every number of which is the count of messages before."""
    writing = pytest.importorskip("mcap.writer", reason=MCAP)
    with open(path, "wb") as file:
        writer = writing.Writer(file)
        writer.start()
        schema = writer.register_schema(name="log", encoding="jsonschema", data=b"{}")
        channel = writer.register_channel(topic="/log", message_encoding="json", schema_id=schema)
        for k in range(200):
            text = json.dumps({"data": [k] * 5, "u": k, "r": k, "c": k, "e": k}).encode()
            writer.add_message(channel, log_time=k * SECOND // 100, publish_time=0, data=text)
        writer.finish()
    return path


@pytest.mark.parametrize(
    "rest",
    [
        "actions: /log.u\nreward: /log.r\ncost: /log.c\nextras: {expert: /log.e}\n",
        "actions: /log.data[1]\nreward: /log.data[2]\ncost: /log.data[3]\nextras: {expert: '/log.data[4]'}\n",
        "actions: /log.data[0]\nreward: /log.data[0]\ncost: /log.data[0]\nextras: {expert: '/log.data[0]'}\n",
    ],
)
def test_what_shares_a_column_with_an_observation_is_still_what_was_said_before_the_next_step(
    tmp_path: pathlib.Path, rest: str
) -> None:
    (tmp_path / "m.yaml").write_text(f"observations: '/log.data[0]'\n{rest}rate: 10\n")
    data = load(packed(tmp_path / "a.mcap"), mapping=tmp_path / "m.yaml")
    known, said = 10 * np.arange(len(data)), 10 * np.arange(len(data)) + 9  # the last of ten messages
    np.testing.assert_array_equal(data.observations[:, 0], known)
    for found in (data.actions[:, 0], data.rewards, data.costs, data.extras["expert"]):
        np.testing.assert_array_equal(found, said)


def test_flags_that_share_a_column_with_an_observation_end_the_step_before_the_next_one(tmp_path: pathlib.Path) -> None:
    tracks = {"/o.x": bags.Track([0, 5, 10, 15], [np.array([one, 0.5]) for one in (0.0, 1.0, 0.0, 0.0)])}
    mapping = LogMapping("m.yaml", ("/o.x[1]",), ("/o.x[1]",), termination="/o.x[0]", rate=1e8)  # a step each 10 ns
    table = Table(tmp_path, {"/o.x": ""}, lambda *_: bags._sampled(tmp_path, tracks, mapping, ["/o.x"]), sampled=True)
    assert arrays_of(mapping, table)["terminals"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("mapping", "sentence"),
    [
        (MAPPING.replace("position", "positions"), r"no column '/joints.positions'.*did you mean '/joints.position'"),
        (MAPPING.replace("10", "33") + "gap: 0.001\n", r"'/joints.position' is silent for more than 0.001 s"),
        (MAPPING.replace("/joints.velocity[0]", "/joints.velocity[5]"), r"'/joints.velocity\[5\]' is beyond column"),
        (MAPPING.replace("/command.data", "/joints.effort"), r"'/joints.effort' hold no number"),
    ],
)
def test_a_mapping_that_does_not_fit_the_messages_is_refused(
    tmp_path: pathlib.Path, mapping: str, sentence: str
) -> None:
    (tmp_path / "m.yaml").write_text(mapping)
    with pytest.raises(DataError, match=sentence):
        load(recorded(tmp_path / "a.mcap"), mapping=tmp_path / "m.yaml")


def test_a_recording_needs_no_time_and_no_rate_to_be_refused_for_silence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.yaml").write_text(MAPPING.replace("rate: 10", "gap: 0.001"))
    with pytest.raises(DataError, match=r"is silent for more than 0.001 s"):
        load(recorded(tmp_path / "a.mcap"), mapping=tmp_path / "m.yaml")


def test_a_damaged_recording_and_one_without_a_mapping_are_refused(tmp_path: pathlib.Path) -> None:
    recorded(tmp_path / "a.mcap")
    with pytest.raises(DataError, match=r"a.mcap: is a recording of messages, which needs a mapping"):
        load(tmp_path / "a.mcap")
    (tmp_path / "m.yaml").write_text(MAPPING)
    content = (tmp_path / "a.mcap").read_bytes()
    for damaged in (content[:700], content[:200] + bytes(400) + content[600:]):
        (tmp_path / "b.mcap").write_bytes(damaged)
        with pytest.raises(DataError, match=r"b.mcap: (is a damaged recording|holds no message: it is damaged)"):
            load(tmp_path / "b.mcap", mapping=tmp_path / "m.yaml")


def test_a_bag_in_sqlite_is_refused_with_what_to_do(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bag").mkdir()
    (tmp_path / "bag" / "bag_0.db3").write_bytes(b"SQLite format 3\0")
    (tmp_path / "m.yaml").write_text(MAPPING)
    with pytest.raises(DataError, match=r"is a ROS 2 bag in SQLite.*ros2 bag convert"):
        load(tmp_path / "bag", mapping=tmp_path / "m.yaml")


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("said", [1 << 10, 1 << 40])
def test_a_chunk_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(
    compression: str, said: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcap", reason=MCAP)
    import lz4.frame
    import zstandard
    from mcap import stream_reader
    from mcap.data_stream import RecordBuilder
    from mcap.records import Chunk, DataEnd, Footer, Header

    pack = zstandard.compress if compression == "zstd" else lz4.frame.compress
    records = RecordBuilder()
    Header(profile="", library="").write(records)
    Chunk(compression, pack(bytes(1 << 24)), 0, 0, 0, said).write(records)
    DataEnd(0).write(records)
    Footer(0, 0, 0).write(records)
    path = tmp_path / "bomb.mcap"
    path.write_bytes(bags.SIGNATURE + records.end() + bags.SIGNATURE)

    def unpacked(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was unpacked")

    monkeypatch.setattr(stream_reader, "get_chunk_data_stream", unpacked)
    with pytest.raises(DataError, match="more than the 1024 bytes" if said == 1 << 10 else "SUREFOOT_MAX_UNPACKED_MB"):
        bags.table(path)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (b'{"x": 3', r"a\.mcap, /o: not readable as JSON"),
        (b'{"y": 3}', r"a message of /o holds no 'x', which '/o.x' names"),
        (b'{"x": null}', r"a message of /o holds no 'x'"),
        (b"3", r"a message of /o holds no 'x'"),
        (b'{"x": "up"}', r"'/o.x' is 'up' in a message, must be a number or a list"),
        (b'{"x": [1, [2]]}', r"'/o.x' is \[1, \[2\]\] in a message"),
        (b'{"x": {"z": 1}}', r"'/o.x' is \{'z': 1\} in a message"),
        (b'{"x": ' + b"9" * 400 + b"}", r"'/o.x' is 9+\.\.\.9+ in a message, must be a number"),
        (b'{"x": ' + b"9" * 5_000 + b"}", r"a\.mcap, /o: not readable as JSON \(Exceeds the limit"),
        (b'{"x": ' + b"[" * 300 + b"1" + b"]" * 300 + b"}", r"'/o.x' is \[\[\[.*in a message"),
        (b'{"x": ' + b"[" * 30_000 + b"}", r"a\.mcap, /o: not readable as JSON"),
    ],
)
@pytest.mark.parametrize("place", [0, 2])
def test_a_message_unlike_the_others_is_refused_in_a_sentence(
    tmp_path: pathlib.Path, said: bytes, sentence: str, place: int
) -> None:
    writing = pytest.importorskip("mcap.writer", reason=MCAP)
    with open(tmp_path / "a.mcap", "wb") as file:
        writer = writing.Writer(file)
        writer.start()
        schema = writer.register_schema(name="log", encoding="jsonschema", data=b"{}")
        topics = [writer.register_channel(topic=one, message_encoding="json", schema_id=schema) for one in ("/o", "/a")]
        for k in range(4):
            for channel, text in zip(topics, (said if k == place else b'{"x": 1}', b'{"u": 0.5}'), strict=True):
                writer.add_message(channel, log_time=k * SECOND, publish_time=k * SECOND, data=text)
        writer.finish()
    (tmp_path / "m.yaml").write_text("observations: /o.x\nactions: /a.u\n")
    with pytest.raises(DataError, match=sentence if place else r"has no column '/o.x'|not readable as|in a message"):
        load(tmp_path / "a.mcap", mapping=tmp_path / "m.yaml")


def logged(path: pathlib.Path, schema: str, text: bytes, data: bytes, time: int = 0, encoding: str = "cdr") -> None:
    """Two messages of each of two topics; what /o is of, and what it and its second message say, is given."""
    writing = pytest.importorskip("mcap.writer", reason=MCAP)
    with open(path, "wb") as file:
        writer = writing.Writer(file)
        writer.start()
        odd = writer.register_schema(name=schema, encoding="ros2msg", data=text)
        plain = writer.register_schema(name="log", encoding="jsonschema", data=b"{}")
        channels = [(writer.register_channel("/o", encoding, odd), data)]
        channels.append((writer.register_channel("/a", "json", plain), b'{"u": 0.5}'))
        for k in range(2):
            for channel, content in channels:
                writer.add_message(channel, log_time=k * max(1, time), publish_time=0, data=content)
        writer.finish()


@pytest.mark.parametrize(
    "text", [b"\x1b]0;owned\x07\x1b[2J", b"float64 x\x1b[2J\n", b"\x1b[2J 3 4\n", b"odd\x1b[2J/A x\n"]
)
def test_what_a_library_prints_of_a_schema_does_not_reach_the_terminal(
    tmp_path: pathlib.Path, text: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    logged(tmp_path / "a.mcap", "odd\x1b[2J/msg/Type", text, b"\0\1\0\0" + bytes(8))
    (tmp_path / "m.yaml").write_text("observations: /o.x\nactions: /a.u\n")
    with pytest.raises(DataError) as caught:
        load(tmp_path / "a.mcap", mapping=tmp_path / "m.yaml")
    assert "\x1b" not in str(caught.value) + "".join(capfd.readouterr())


def printing(*texts: str, fails: bool = False) -> None:
    """A library that prints, and perhaps fails then."""
    with held_output("a.mcap"):
        for text in texts:
            print(text)
            print(text, file=sys.stderr)
        if fails:
            raise DataError("the reason")


def test_what_a_library_prints_while_it_reads_is_a_warning_without_escape_sequences(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.warns(UserWarning, match=r"^a\.mcap: a library that reads it printed: b\\x1b\[2J b\\x1b\[2J c c$"):
        printing("b\x1b[2J", "c\n")
    with pytest.warns(UserWarning, match=r"^a\.mcap: .* printed: a{300} a{199}\.\.\.$"):
        printing(*["a" * 300] * 10_000)
    with pytest.raises(DataError, match=r"^the reason$"):
        printing("b", fails=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("time", [2**62, 2**64 - 1])
def test_times_beyond_64_bits_are_refused(tmp_path: pathlib.Path, time: int) -> None:
    logged(tmp_path / "a.mcap", "log", b"{}", b'{"x": 1}', time, "json")
    (tmp_path / "m.yaml").write_text("observations: /o.x\nactions: /a.u\n")
    with pytest.raises(DataError, match=rf"a\.mcap: a message of /[oa] says that it is of {time} ns after 1970"):
        load(tmp_path / "a.mcap", mapping=tmp_path / "m.yaml")


def test_a_rate_of_more_than_a_step_a_nanosecond_is_refused(tmp_path: pathlib.Path) -> None:
    logged(tmp_path / "a.mcap", "log", b"{}", b'{"x": 1}', SECOND, "json")
    (tmp_path / "m.yaml").write_text("observations: /o.x\nactions: /a.u\nrate: 1e300\n")
    with pytest.raises(DataError, match=r"m\.yaml: 'rate' is 1e\+300, more than a step a nanosecond"):
        load(tmp_path / "a.mcap", mapping=tmp_path / "m.yaml")
    (tmp_path / "m.yaml").write_text("observations: /o.x\nactions: /a.u\nrate: 1e9\n")
    with pytest.raises(DataError, match=r"a\.mcap, at 1e\+09 steps a second: unpacks to \d+ bytes"):
        load(tmp_path / "a.mcap", mapping=tmp_path / "m.yaml")


@pytest.mark.parametrize(
    ("schema", "text", "data", "encoding"),
    [
        ("sensor_msgs/msg/Image", b"{}", b'{"data": 1000000000000}', "json"),
        ("sensor_msgs/msg/CompressedImage", b"uint64 data\n", b"\0\1\0\0" + (10**12).to_bytes(8, "little"), "cdr"),
        ("sensor_msgs/msg/Image", b"uint64 encoding\nuint8[2] data\n", bytes([0, 1]) + bytes(12), "cdr"),
    ],
)
def test_what_only_calls_itself_a_picture_is_refused(
    tmp_path: pathlib.Path, schema: str, text: bytes, data: bytes, encoding: str
) -> None:
    logged(tmp_path / "a.mcap", schema, text, data, SECOND, encoding)
    (tmp_path / "m.yaml").write_text("images: /o\nactions: /a.u\n")
    with pytest.raises(DataError, match=r"a\.mcap: a message of /o is no picture"):
        load(tmp_path / "a.mcap", mapping=tmp_path / "m.yaml")
