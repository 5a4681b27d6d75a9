"""Recordings of messages, MCAP files and ROS 2 bags of them, sampled into steps at a mapping's rate.

A column is a field of a topic's messages, `/joint_states.position` or `/joint_states.position[2]`. A step k stands at
time t_k: observations are what the last message by then stated, and actions, rewards and flags what the last message
before t_(k+1) stated, since a command that answers an observation comes after it. A column may be both, as where
one topic tells all: each is sampled by its own rule. Without a `rate` there is a step for
each message of the first action's topic, whose own content is the action; the last one lasts as long as
the median of the others. Steps begin when every topic has spoken.
Messages are of ROS 2 (cdr) or JSON; what they mean stands in the file, so no ROS is needed.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.core.base.errors import DataError, MissingExtraError
from surefoot.core.base.library_output import held_output
from surefoot.core.base.schema import DEEPEST, parse, shown
from surefoot.core.base.unpacking import Unpacked, check_picture, too_much, unpack_limit
from surefoot.data.formats import pictures
from surefoot.data.formats.chosen import split
from surefoot.data.formats.columns import LATER, Table

if TYPE_CHECKING:
    from surefoot.data.formats.mapping import LogMapping

Array = np.ndarray[Any, Any]

SIGNATURE = b"\x89MCAP0\r\n"
PICTURES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
ENCODINGS = {"rgb8": 3, "bgr8": 3, "mono8": 1, "rgba8": 4, "bgra8": 4, "8UC1": 1, "8UC3": 3}
"""Of raw pictures -> their channels."""


LATEST = 2**62
"""Nanoseconds of a message's time must be below it, so that differences and sums fit 64 bits."""


@dataclasses.dataclass
class Track:
    """What one column's messages held: times in nanoseconds, and values."""

    times: list[int] = dataclasses.field(default_factory=list)
    values: list[Any] = dataclasses.field(default_factory=list)


def is_recording(path: pathlib.Path) -> bool:
    """Whether a path is an MCAP file, or the folder of a ROS 2 bag."""
    if path.is_dir():
        return ((path / "metadata.yaml").is_file() and any(path.glob("*.mcap"))) or any(path.glob("*.db3"))
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE


def table(path: pathlib.Path, mapping: LogMapping | None = None) -> Table:
    """The fields of a recording's messages; without a mapping only their names can be read.

    Raises:
        DataError: it is damaged, or of a storage or encoding that is not read.
        MissingExtraError: the packages that read it are not installed.
    """
    files = _files(path)
    for file in files:
        _check_chunks(file)
    with held_output(path):
        names = _names(files)

    def read(wanted: Sequence[str], text: str | None) -> dict[str, Array]:
        if mapping is None:
            raise DataError(f"{path}: messages become steps only by a mapping (docs/own_data.md)")
        size = sum(file.stat().st_size for file in files)
        with held_output(path):
            tracks = _tracks(path, files, wanted, mapping.image_size, size)
        return _sampled(path, tracks, mapping, wanted, size)

    return Table(path, names, read, sampled=True)


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    if not path.is_dir():
        return [path]
    if any(path.glob("*.db3")):
        raise DataError(
            f"{path}: is a ROS 2 bag in SQLite, which does not say what its messages mean; store it as MCAP: "
            "ros2 bag convert, or record with `-s mcap`"
        )
    return sorted(filter(pathlib.Path.is_file, path.glob("*.mcap")), key=lambda file: (len(file.name), file.name))


def _packages(path: pathlib.Path) -> tuple[Any, Any]:
    """The reader of MCAP and the decoder of ROS 2 messages."""
    try:
        from mcap.reader import make_reader
        from mcap_ros2.decoder import DecoderFactory
    except ImportError as error:
        raise MissingExtraError(str(error.name or "mcap"), "ros", f"reading {path.name}") from error
    return make_reader, DecoderFactory


def _check_chunks(path: pathlib.Path) -> None:
    """Refuse chunks that unpack to more than files may, or than they say, before the reader unpacks them."""
    _packages(path)
    import lz4.frame
    import zstandard
    from mcap.records import Chunk
    from mcap.stream_reader import StreamReader

    size = path.stat().st_size
    limit = unpack_limit(size)
    try:
        with open(path, "rb") as file:
            for record in StreamReader(file, emit_chunks=True, record_size_limit=size).records:
                if not isinstance(record, Chunk):
                    continue
                given = found = record.uncompressed_size
                if (
                    given <= limit and record.compression == "zstd"
                ):  # without a size in its head it ends at what is reported
                    found = zstandard.frame_content_size(record.data)
                elif given <= limit and record.compression == "lz4":
                    found = len(lz4.frame.LZ4FrameDecompressor().decompress(record.data, max_length=given + 1))
                if max(given, found) > limit:
                    raise DataError(f"{path}: a chunk of messages {too_much(max(given, found), limit)}")
                if found > given:
                    raise DataError(
                        f"{path}: is a damaged recording (a chunk of more than the {given} bytes that it says)"
                    )
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: is a damaged recording ({type(error).__name__}: {error})") from error


def _messages(path: pathlib.Path, topics: set[str] | None) -> Iterator[tuple[str, str, int, Callable[[], Any]]]:
    """(topic, type, time in ns, the message decoded when it is asked for) in the order of time."""
    make_reader, factory = _packages(path)
    decoders: dict[int, Callable[[bytes], Any]] = {}
    ros = factory()
    try:
        with open(path, "rb") as file:
            reader = make_reader(file, validate_crcs=True)
            for schema, channel, message in reader.iter_messages(topics=None if topics is None else sorted(topics)):
                if channel.id not in decoders:
                    decoders[channel.id] = _decoder(path, ros, schema, channel)
                if message.log_time >= LATEST:
                    raise DataError(
                        f"{path}: a message of {channel.topic} says that it is of {message.log_time} ns after 1970, "
                        "beyond the year 2116; the recording is damaged"
                    )
                kind = "" if schema is None else schema.name
                decode, data = decoders[channel.id], message.data
                yield channel.topic, kind, message.log_time, functools.partial(decode, data)
    except DataError:
        raise
    except Exception as error:  # mcap raises its own kinds, struct.error, and those of lz4 and zstandard
        raise DataError(
            f"{path}: is a damaged recording ({type(error).__name__}: {error}); `mcap recover` may help"
        ) from error


def _decoder(path: pathlib.Path, ros: Any, schema: Any, channel: Any) -> Callable[[bytes], Any]:
    if channel.message_encoding == "json":
        return lambda data: parse(data, f"{path}, {channel.topic}", DataError)
    found = ros.decoder_for(channel.message_encoding, schema)
    if found is None:
        raise DataError(
            f"{path}: messages of {channel.topic} are encoded as {channel.message_encoding!r}; "
            "ROS 2's cdr and json are read"
        )
    return found


def _names(files: Sequence[pathlib.Path]) -> dict[str, str]:
    """Each topic's fields, from its first message."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    for path in files:
        make_reader, _ = _packages(path)
        try:
            with open(path, "rb") as file:
                summary = make_reader(file).get_summary()
        except Exception as error:
            raise DataError(f"{path}: is a damaged recording ({type(error).__name__}: {error})") from error
        topics = None if summary is None else {one.topic for one in summary.channels.values()}
        for topic, kind, _, message in _messages(path, None):
            if topic in seen:
                continue
            seen.add(topic)
            if kind in PICTURES:
                found[topic] = f"pictures ({kind})"
            else:
                found |= {f"{topic}{place}": what for place, what in _fields(_decoded(path, topic, message))}
            if topics is not None and seen >= topics:
                break
    if not found:
        raise DataError(f"{files[0] if files else 'the bag'}: holds no message: it is damaged, or empty")
    return found


def _fields(message: Any, place: str = "", depth: int = DEEPEST) -> Iterator[tuple[str, str]]:
    """(`.field.inner`, what it is) of the numbers in a message, as far as `depth` levels down."""
    if depth == 0:
        return
    if isinstance(message, bool | int | float):
        yield place, "a number"
    elif isinstance(message, list | tuple | np.ndarray | bytes | memoryview):
        held = list(message[:1])
        if not held or isinstance(held[0], bool | int | float):
            yield place, f"{len(message)} numbers"
    else:
        for name, value in _parts(message):
            yield from _fields(value, f"{place}.{name}", depth - 1)


def _parts(message: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(message, Mapping):
        yield from message.items()
    elif hasattr(message, "__slots__"):
        yield from ((name, getattr(message, name)) for name in message.__slots__ if not name.startswith("_"))
    elif hasattr(message, "__dict__"):
        yield from ((name, value) for name, value in vars(message).items() if not name.startswith("_"))


def _tracks(
    path: pathlib.Path,
    files: Sequence[pathlib.Path],
    wanted: Sequence[str],
    size: pictures.Size | None,
    file_bytes: int,
) -> dict[str, Track]:
    """What the messages held of each wanted column, in files of so many bytes."""
    places: dict[str, list[tuple[str, list[str]]]] = {}
    for name in wanted:
        rest = name.partition(".")[2]
        places.setdefault(_topic(name), []).append((name, rest.split(".") if rest else []))
    tracks = {name: Track() for name in wanted}
    unpacked = Unpacked(path, file_bytes, DataError)
    for file in files:
        for topic, kind, time, message in _messages(file, set(places)):
            decoded = _decoded(file, topic, message)
            for name, fields in places[topic]:
                value = (
                    _picture(file, topic, decoded, size) if kind in PICTURES else _value(file, name, decoded, fields)
                )
                _count(unpacked, name, value)
                tracks[name].times.append(time)
                tracks[name].values.append(value)
    return tracks


def _count(unpacked: Unpacked, name: str, value: Array, times: int = 1) -> None:
    """Count what a message held, `times` over, with what python needs to hold it."""
    if value.dtype == np.uint8:  # numbers are float64
        unpacked.add_pictures(name, value.shape, times * (value.nbytes + 64))
    else:
        unpacked.add_numbers(times * (value.nbytes + 64))


def _decoded(path: pathlib.Path, topic: str, message: Callable[[], Any]) -> Any:
    try:
        return message()
    except DataError:
        raise
    except Exception as error:  # the decoders raise struct.error, UnicodeDecodeError, JSONDecodeError and more
        raise DataError(
            f"{path}: a message of {topic} can't be decoded ({type(error).__name__}: {error}); the recording is damaged"
        ) from error


def _value(path: pathlib.Path, name: str, message: Any, fields: Sequence[str]) -> Array:
    for field in fields:
        found = message.get(field) if isinstance(message, Mapping) else getattr(message, field, None)
        if found is None:
            raise DataError(f"{path}: a message of {_topic(name)} holds no {field!r}, which {name!r} names")
        message = found
    try:
        array = np.asarray(message, np.float64)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # texts, objects, lists of several lengths
        raise DataError(f"{path}: {name!r} is {shown(message)} in a message, must be a number or a list") from error
    if array.ndim > 1:
        raise DataError(f"{path}: {name!r} is {array.shape}, must be a number or a list of them")
    return array


def _picture(path: pathlib.Path, topic: str, message: Any, size: pictures.Size | None) -> Array:
    """(H, W, 3) of a message of `sensor_msgs`."""
    raw = hasattr(message, "encoding")
    try:
        content = memoryview(message.data).cast("B").tobytes()
        height, width, step = (int(getattr(message, name)) if raw else 1 for name in ("height", "width", "step"))
        if raw and not min(height, width) > 0:
            raise ValueError(f"{height} x {width}")
    except (AttributeError, TypeError, ValueError, OverflowError) as error:  # what the schema calls a picture is none
        raise DataError(f"{path}: a message of {topic} is no picture ({type(error).__name__}: {error})") from error
    if not raw:
        return pictures.decoded(f"{path}, {topic}", content, size)
    if not isinstance(message.encoding, str) or message.encoding not in ENCODINGS:
        odd = shown(message.encoding)
        raise DataError(f"{path}: pictures of {topic} are {odd}; {', '.join(ENCODINGS)} are read")
    channels = ENCODINGS[message.encoding]
    check_picture(f"{path}: {topic!r}", (height, width, pictures.COLORS), DataError)
    rows = np.frombuffer(content, np.uint8)
    if step < width * channels or len(rows) < height * step:
        raise DataError(f"{path}: a picture of {topic} has fewer bytes than {height} x {width} need")
    cells = rows[: height * step].reshape(height, step)[:, : width * channels]
    picture = cells.reshape(height, width, channels)
    if message.encoding.startswith("bgr"):
        picture = picture[..., [2, 1, 0]]
    return pictures.scaled(np.ascontiguousarray(np.repeat(picture, 3, -1) if channels == 1 else picture[..., :3]), size)


def _sampled(
    path: pathlib.Path, tracks: Mapping[str, Track], mapping: LogMapping, wanted: Sequence[str], file_bytes: int = 0
) -> dict[str, Array]:
    """Each column at each step; all together take what `core.base.unpacking.Unpacked` lets files of so many bytes.

    One that is an observation and an action or a reward too is sampled as both, as the latter under `LATER` + its name.
    """
    for name, track in tracks.items():
        if not track.times:
            raise DataError(f"{path}: no message of {name!r}")
    before = {split(name)[0] for name in mapping.known_before}
    both = before & {split(name)[0] for name in mapping.said_after}
    samples = [(name, name, name in before) for name in wanted]
    samples += [(LATER + name, name, False) for name in wanted if name in both]
    times = {name: np.maximum.accumulate(np.asarray(track.times, np.int64)) for name, track in tracks.items()}
    leader = split(mapping.actions[0])[0]
    clock = times[leader]
    if mapping.rate is None:
        ticks, own, last = clock, np.arange(len(clock)), _ends_of_steps(clock)
        spoken = np.logical_and.reduce([(ticks if name in before else last) >= at[0] for name, at in times.items()])
        ticks, own, last = ticks[spoken], own[spoken], last[spoken]
        _check_samples(f"{path}, at a step for each message of {leader!r}", len(ticks), samples, tracks, file_bytes)
    else:
        period = 1e9 / mapping.rate
        if period < 1:
            raise DataError(f"{mapping.path}: 'rate' is {mapping.rate:g}, more than a step a nanosecond")
        wait = int(period) - 1  # how long after a step its last message may come
        begin = max(int(column[0]) - (0 if name in before else wait) for name, column in times.items())
        count = max(0, int((int(clock[-1]) - begin) / period) + 1)
        _check_samples(f"{path}, at {mapping.rate:g} steps a second", count, samples, tracks, file_bytes)
        ticks = begin + (np.arange(count) * period).astype(np.int64)
        own, last = None, ticks + wait
    if not len(ticks):
        raise DataError(f"{path}: no step: {leader!r} ends before every topic has spoken")
    found: dict[str, Array] = {}
    for key, name, observed in samples:
        if own is not None and not observed and _topic(name) == _topic(leader):
            places = own  # the message itself, also where two came at one time
        else:
            places = np.searchsorted(times[name], ticks if observed else last, side="right") - 1
        found[key] = _stacked(path, name, [tracks[name].values[place] for place in places])
        if mapping.gap is not None and observed:
            silent = ticks - times[name][places] > mapping.gap * 1e9
            if silent.any():
                raise DataError(
                    f"{path}: {name!r} is silent for more than {mapping.gap:g} s (gap) at {int(silent.sum())} "
                    f"steps, the first at {(ticks[silent][0] - ticks[0]) / 1e9:.2f} s; cut the recording there"
                )
    return found


def _check_samples(
    name: str, steps: int, samples: Sequence[tuple[str, str, bool]], tracks: Mapping[str, Track], file_bytes: int
) -> None:
    """Refuse more steps than memory allows: what a message held stands in each step until the next one."""
    unpacked = Unpacked(name, file_bytes, DataError)
    for _, column, _ in samples:
        _count(unpacked, column, tracks[column].values[0], steps)


def _ends_of_steps(clock: Array) -> Array:
    """(N,) the last nanosecond of each step that begins with a message: before the next one, or its own moment."""
    usual = int(np.median(np.diff(clock))) if len(clock) > 1 else 0
    return np.maximum(np.append(clock[1:], clock[-1] + usual) - 1, clock)


def _topic(name: str) -> str:
    return name.partition(".")[0]


def _stacked(path: pathlib.Path, name: str, values: list[Array]) -> Array:
    if values[0].size == 0:
        raise DataError(f"{path}: messages of {name!r} hold no number")
    if len({value.shape for value in values}) > 1:
        raise DataError(f"{path}: messages of {name!r} have {sorted({value.shape for value in values})} numbers")
    return np.stack(values)
