"""What can be done to a sound file of each format that surefoot reads, for `fuzz_files.py`."""

from __future__ import annotations

import json
import math
import os
import pathlib
import random
from typing import Any

import h5py
import numpy as np
import torch
import yaml

from surefoot.core.base import checkpoint
from surefoot.core.base.errors import printable
from surefoot.data.formats.on_disk import header_digest

CANARY = "surefoot_fuzz_canary"
"""Module that damaged files name; that it is imported shows that code of a file ran."""
Path = pathlib.Path


def bytes_damaged(path: Path, rng: random.Random) -> str:
    """Bits flipped, the end missing, a block of zeros, or an enormous number, often near the beginning or the end."""
    if rng.random() < 0.05:
        return replaced_by_no_file(path, rng)
    content = bytearray(path.read_bytes())
    how = rng.choice(["flip", "flip", "cut", "zero", "huge", "insert"])
    reach = rng.choice([len(content), min(len(content), 4096)])
    start = rng.randrange(max(1, reach)) if rng.random() < 0.8 else max(0, len(content) - 1 - rng.randrange(200))
    if how == "flip":
        for _ in range(rng.choice([1, 1, 2, 8, 64])):
            content[rng.randrange(reach)] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del content[start:]
    elif how == "zero":
        size = min(len(content) - start, rng.choice([8, 64, 512]))
        content[start : start + size] = bytes(size)
    elif how == "huge":
        content[start : start + 8] = rng.choice([2**63 - 1, 2**40, 2**31 - 1, 2**64 - 1]).to_bytes(8, "little")
    else:
        content[start:start] = rng.randbytes(rng.choice([1, 8, 300]))
    path.write_bytes(content)
    return f"bytes: {how} at {start}"


def replaced_by_no_file(path: Path, rng: random.Random) -> str:
    """A pipe that no one writes to, a device without an end, or a folder, in a file's place."""
    path.unlink()
    what = rng.choice(["pipe", "device", "folder"])
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return f"a {what} in its place"


def odd_value(rng: random.Random, old: Any) -> Any:
    """Something else than a value of JSON: of another type, enormous, not a number, deep, or hostile text."""
    deep: Any = 1
    for _ in range(rng.choice([3, 40, 900])):
        deep = [deep]
    odd: list[Any] = [
        None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, 0.5, math.nan, math.inf, -math.inf, "", "x",
        "\x1b]0;a\x07\x1b[2J",
        "\u202e", "\ud800", "a" * 30_000, f"{CANARY}:Agent", f"{CANARY}:Env-v0", [], {}, [[]], [None], {"a": {}}, deep,
        [1] * 20_000, "../../../etc/passwd", "sinus", "surefoot-policy-9", {"__reduce__": [CANARY]},
    ]  # fmt: skip
    if isinstance(old, int | float) and not isinstance(old, bool):
        odd += [str(old), [old], -old, old * 1e9 if rng.random() < 0.5 else 10**12, old + 0.5]
    if isinstance(old, list) and old:
        odd += [old[:-1], [*old, old[0]], [*old[:-1], None], [str(old[0])], old * 500]
    return rng.choice(odd)


def distorted(value: Any, rng: random.Random) -> tuple[Any, str]:
    """A JSON value with one place changed, removed or added; which."""
    places: list[tuple[Any, Any]] = []

    def collect(one: Any) -> None:
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, inner in list(items)[:200]:
            places.append((one, key))
            collect(inner)

    value = json.loads(json.dumps(value))
    if rng.random() < 0.03 or not isinstance(value, dict | list):
        return odd_value(rng, value), "the whole value"
    collect(value)
    if not places:
        return odd_value(rng, value), "the whole value"
    parent, key = rng.choice(places)
    how = rng.choice(["set", "set", "set", "set", "remove", "add"])
    if how == "remove":
        del parent[key]
    elif how == "add" and isinstance(parent, dict):
        parent[rng.choice(["odd", "\x1b[31m", "format", "version", "__class__", "a" * 300])] = odd_value(rng, 1)
    else:
        parent[key] = odd_value(rng, parent[key])
    return value, f"{how} {key!r}"


def json_text(value: Any) -> str:
    return json.dumps(value)


def json_damaged(path: Path, rng: random.Random) -> str:
    """A JSON file with another value somewhere, or damaged bytes."""
    if rng.random() < 0.2:
        return bytes_damaged(path, rng)
    if rng.random() < 0.05:
        path.write_text(deeper(path.read_text(), rng))
        return "JSON: deeper than python reads"
    value, what = distorted(json.loads(path.read_text()), rng)
    path.write_text(json_text(value))
    return f"JSON: {what}"


def deeper(text: str, rng: random.Random) -> str:
    """A JSON text with lists in lists, or a number of thousands of digits, in the place of some value."""
    places = [at for at, letter in enumerate(text) if letter in ":,["] or [0]
    at = rng.choice(places) + 1
    return text[:at] + rng.choice(["[" * 100_000, "[" * 100_000 + "]" * 100_000, "1" * 5_000]) + text[at:]


def header_damaged(path: Path, rng: random.Random) -> str:
    """The header of a store on disk with another value somewhere, mostly under a checksum that fits."""
    if rng.random() < 0.2:
        return bytes_damaged(path, rng)
    value, what = distorted(json.loads(path.read_text()), rng)
    if isinstance(value, dict) and rng.random() < 0.8:
        value["sha256"], what = header_digest(value), f"{what}, resealed"
    path.write_text(json_text(value))
    return f"JSON: {what}"


def lines_damaged(path: Path, rng: random.Random) -> str:
    """A file of JSON lines with another value in one of them."""
    if rng.random() < 0.2:
        return bytes_damaged(path, rng)
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    if rng.random() < 0.1:
        lines[at], what = deeper(lines[at], rng), "deeper than python reads"
    else:
        value, what = distorted(json.loads(lines[at]), rng)
        lines[at] = json_text(value)
    path.write_text("\n".join(lines) + "\n")
    return f"line {at}: {what}"


def tensors_distorted(tensors: dict[str, torch.Tensor], rng: random.Random) -> tuple[dict[str, torch.Tensor], str]:
    """One tensor that is not finite, zero, of another shape or type, missing, doubled or enormous."""
    name = rng.choice(sorted(tensors))
    value = tensors[name].clone()
    how = rng.choice(["nan", "inf", "zero", "negative", "shape", "dtype", "missing", "more", "huge"])
    if how in ("nan", "inf", "huge") and value.numel() and value.is_floating_point():
        filler = {"nan": math.nan, "inf": rng.choice([math.inf, -math.inf]), "huge": 3e38}[how]
        value.reshape(-1)[rng.randrange(value.numel())] = filler
    elif how == "zero":
        value = torch.zeros_like(value)
    elif how == "negative" and value.dtype != torch.bool:
        value = -value
    elif how == "shape":
        value = rng.choice([value.reshape(-1)[:-1], value.unsqueeze(0), value.reshape(-1), torch.zeros(0)])
    elif how == "dtype":
        value = value.to(rng.choice([torch.int64, torch.float64, torch.uint8, torch.bool]))
    changed = {**tensors, name: value}
    if how == "missing":
        del changed[name]
    elif how == "more":
        changed[rng.choice(["odd", "agent/odd", "../x", "\x1b[2J"])] = value
    return changed, f"tensor {name}: {how}"


def saved_damaged(path: Path, rng: random.Random) -> str:
    """A checksummed file: damaged bytes, or another value or tensor under a checksum that fits."""
    if rng.random() < 0.3:
        return bytes_damaged(path, rng)
    tensors, meta = checkpoint.load(path)
    if rng.random() < 0.65:
        meta, what = distorted(meta, rng)
    else:
        tensors, what = tensors_distorted(tensors, rng)
    if rng.random() < 0.05 and isinstance(meta, dict):
        meta["kind"], what = rng.choice(["policy", "checkpoint", "dataset", "odd", "streaming agent"]), "another kind"
    forge(path, tensors, meta, rng)
    beside = path.with_suffix(".json")
    if beside.is_file() and isinstance(meta, dict):
        beside.write_text(json_text({key: one for key, one in meta.items() if key != "kind"}))
    return what


def forge(path: Path, tensors: dict[str, torch.Tensor], meta: Any, rng: random.Random) -> None:
    """Write what `checkpoint.save` would, also where `meta` is nothing that it would write; seldom another version."""
    from safetensors.torch import save_file

    kind = meta.get("kind") if isinstance(meta, dict) else "odd"
    written = f"surefoot-{str(kind).replace(' ', '-')}-{9 if rng.random() < 0.05 else 1}"
    written, text = printable(written).encode("ascii", "replace").decode(), json_text(meta)
    own = {name: value.contiguous().clone() for name, value in tensors.items()}
    header = {"surefoot": text, "format": written, "sha256": checkpoint.digest(own, f"{written}\n{text}")}
    save_file(own, str(path), header)


def column_distorted(value: np.ndarray, rng: random.Random) -> tuple[Any, str]:
    """A column that is not finite, of another length, shape or type, or python objects."""
    how = rng.choice(["nan", "inf", "huge", "short", "shape", "text", "object", "complex", "int", "empty", "scalar"])
    value = np.array(value)
    if how in ("nan", "inf", "huge") and value.size:
        value = value.astype(np.float64)
        value.reshape(-1)[rng.randrange(value.size)] = {"nan": np.nan, "inf": np.inf, "huge": 1e300}[how]
    if how == "short" and value.ndim:
        value = value[: rng.randrange(len(value) + 1)]
    elif how == "shape":
        value = value.reshape(rng.choice([(1, -1), (-1, 1, 1), (-1,)]))
    elif how in ("text", "object", "complex", "int"):
        kinds = {"text": "U8", "object": object, "complex": complex, "int": np.int8}
        value = value.astype(kinds[how]) if how != "text" else np.full(value.shape, "x")
    elif how in ("empty", "scalar"):
        value = np.zeros(() if how == "scalar" else (0, *value.shape[1:]))
    return value, how


def npz_damaged(path: Path, rng: random.Random) -> str:
    """An archive with damaged bytes, another column, other attributes, a bomb, a pickle or lying headers."""
    if rng.random() < 0.3:
        return bytes_damaged(path, rng)
    with np.load(path, allow_pickle=False) as held:
        arrays: dict[str, Any] = dict(held)
    texts = [key for key, value in arrays.items() if value.dtype.kind == "U"]
    how = rng.random()
    if how < 0.45 and texts:
        key = rng.choice(texts)
        value, what = distorted(json.loads(str(arrays[key])), rng)
        text = json_text(value)
        arrays[key] = np.array(text.encode("utf-8", "replace").decode("utf-8"))
    elif how < 0.5:
        key, what = rng.choice(sorted(arrays)), "bomb"
        arrays[key] = np.zeros(rng.choice([80 << 20, 200 << 20]), np.float32 if rng.random() < 0.5 else np.int8)
    elif how < 0.55:
        key, what = rng.choice([*sorted(arrays), "extras/odd", "odd"]), "pickle"
        arrays[key] = np.array([Canary()], dtype=object)
    elif how < 0.65:
        key, what = rng.choice(["margins", "extras/odd", "extras/margins", "\x1b[2J", "terminations"]), "added"
        arrays[key], extra = column_distorted(arrays[sorted(arrays)[0]], rng)
        what = f"added, {extra}"
    elif how < 0.7:
        key, what = rng.choice(sorted(arrays)), "missing"
        del arrays[key]
    else:
        key = rng.choice(sorted(set(arrays) - set(texts)))
        arrays[key], what = column_distorted(arrays[key], rng)
    (np.savez_compressed if rng.random() < 0.7 or what == "bomb" else np.savez)(path, **arrays)
    return f"{key}: {what}"


def hdf5_damaged(path: Path, rng: random.Random) -> str:
    """An HDF5 file with damaged bytes, another column or attribute, or one that unpacks to far more."""
    if rng.random() < 0.4:
        return bytes_damaged(path, rng)
    with h5py.File(path, "r+") as file:
        keys = sorted(key for key in file if isinstance(file[key], h5py.Dataset))
        key, how = rng.choice(keys), rng.random()
        if how < 0.3:
            name = rng.choice(["env_id", "max_episode_steps", "surefoot_version", "corruptions", "odd\x1b[2J"])
            odd = odd_value(rng, 1)
            kept = isinstance(odd, str | float | bool) and odd != "\ud800" and len(str(odd)) < 20_000
            file.attrs[name] = odd if kept else json.dumps(odd)[:20_000]
            return f"attribute {name!r}: {str(odd)[:40]!r}"
        old = file[key][()]
        if how < 0.35:
            del file[key]
            file.create_dataset(key, shape=(rng.choice([80 << 20, 1 << 40]),), dtype="f4", chunks=True, compression=1)
            return f"{key}: declares far more"
        del file[key]
        if how < 0.4:
            file[key] = h5py.ExternalLink("/etc/passwd", "/x") if rng.random() < 0.5 else h5py.SoftLink("/nowhere")
            return f"{key}: a link"
        value, what = column_distorted(old, rng)
        if value.dtype.kind in "UO":
            value = np.full(value.shape, b"x")
        if rng.random() < 0.3:
            key = rng.choice(["margins", "extras/odd", "next_observations", "timeouts"])
            key = key if key not in file else "odd"
        file[key] = value
    return f"{key}: {what}"


def parquet_damaged(path: Path, rng: random.Random) -> str:
    """A Parquet file with damaged bytes, another column, other attributes, or text where numbers belong."""
    import pyarrow as pa
    from pyarrow import parquet

    if rng.random() < 0.4:
        return bytes_damaged(path, rng)
    table = parquet.read_table(path)
    key, how = rng.choice(table.column_names), rng.random()
    if how < 0.3:
        text = rng.choice(["[" * 60_000, "1" * 5_000, json_text(odd_value(rng, 1)), '{"env_id": "\\u001b[2J"}'])
        written = text.encode("utf-8", "replace")
        name = rng.choice(sorted(table.schema.metadata or {b"surefoot": b""}))
        parquet.write_table(table.replace_schema_metadata({name: written}), path)
        return f"attribute {name!r}: {text[:40]!r}"
    values = table.column(key).to_pylist()
    row = rng.randrange(len(values))
    odd = {"none": None, "nan": math.nan, "huge": 1e300, "short": [], "deep": [[1.0]], "text": "x\x1b[2J"}
    what = rng.choice([*odd, "missing", "name", "all text", "dates", "bomb"])
    others = {name: table.column(name) for name in table.column_names if name != key}
    if what in odd:
        values[row] = odd[what]
        others[key] = pa.array(values)
    elif what == "name":
        others[rng.choice(["odd", "\x1b[2J", "extras/odd", "observation_0", "a" * 3_000])] = table.column(key)
    elif what == "all text":
        others[key] = pa.array(["1"] * len(values))
    elif what == "dates":
        others[key] = pa.array([10**9] * len(values), pa.timestamp("ns"))
    elif what == "bomb":
        few = pa.array([0.0] * 5_000_000)
        others = {name: few for name in table.column_names}
    parquet.write_table(pa.table(others), path)
    return f"{key}: {what}"


def csv_damaged(path: Path, rng: random.Random) -> str:
    """Damaged bytes, or another cell or heading."""
    if rng.random() < 0.4:
        return bytes_damaged(path, rng)
    lines = path.read_text().splitlines()
    row = rng.randrange(len(lines)) if rng.random() < 0.7 else 0
    cells = lines[row].split(",")
    at = rng.randrange(len(cells))
    cells[at] = rng.choice(
        ["nan", "inf", "", "x", "1e400", "\x1b[2J", "1" * 5000, "-", "0x1", "True", cells[0], "\u202e"]
    )
    lines[row] = ",".join(cells if rng.random() < 0.8 else cells[:-1])
    path.write_text("\n".join(lines))
    return f"row {row}, cell {at}"


def yaml_damaged(path: Path, rng: random.Random) -> str:
    """A file of settings with damaged bytes, another value, or what YAML has beside values."""
    text = path.read_text()
    how = rng.random()
    if how < 0.2:
        return bytes_damaged(path, rng)
    if how < 0.5:
        value, what = distorted(yaml.safe_load(text), rng)
        path.write_text(yaml.safe_dump(value) if rng.random() < 0.5 else json_text(value))
        return f"YAML: {what}"
    levels = rng.choice([2, 9, 30])
    grown = "".join(f"g{k}: &g{k} [{', '.join(['x'] if k == 0 else [f'*g{k - 1}'] * 9)}]\n" for k in range(levels))
    deep, digits = rng.choice([31, 40, 2_000, 100_000]), rng.choice([30, 101, 5_000, 200_000])
    added = {
        "references": grown,
        "self-reference": "odd: &odd [*odd]\n",
        "merged self-reference": "odd: &odd\n  <<: *odd\n",
        "tag": f"odd: !!python/object/apply:{CANARY}.x []\n",
        "tag of a type": f"odd: !!{rng.choice(['int', 'float', 'bool', 'binary', 'set', 'omap', 'timestamp'])} ''\n",
        "deep list": "odd: " + "[" * deep + "1" + "]" * deep + "\n",
        "deep mapping": "odd: " + "{a: " * deep + "1" + "}" * deep + "\n",
        "long number": "odd: " + rng.choice(["1", "0x1", "1.", "1:1"]) + "1" * digits + "\n",
        "base 60": "odd: " + "1:" * digits + "1\n",
        "control character": f"odd: {rng.choice([chr(0), chr(27) + '[2J', chr(0x202E), chr(0x85)])}\n",
        "escaped control character": 'odd: "\\0\\e[2J"\n',
        "key": rng.choice(["1: 2\n", "[1]: 2\n", "null: 1\n", "? {a: 1}\n: 2\n", "true: 1\n"]),
        "twice": text,
        "large": "# " + "x" * rng.choice([300_000, 5_000_000]) + "\n",
        "long name": "x" * rng.choice([300_000, 5_000_000]) + ": 1\n",
        "long value": "algo: " + "x" * rng.choice([100_000, 5_000_000]) + "\n",
        "second document": "---\na: 1\n",
    }
    what = rng.choice(sorted(added))
    path.write_text(text + added[what] if rng.random() < 0.5 else added[what] + text)
    return f"YAML: {what}"


def logs_damaged(path: Path, rng: random.Random) -> str:
    """A mapping whose files are others, or none, or that is damaged as any file of settings."""
    if rng.random() < 0.4:
        return yaml_damaged(path, rng)
    outside = ["/dev/zero", "/dev/full", "/dev", "/", "..", ".", "/*/*/*/*", "/**", "*", "~", "a" * 300]
    odd = rng.choice([*outside, "pipe", "endless", "link.csv", "\\0", "[", "*/*", "log.csv/", "nothing*", "**/**/**"])
    if odd in ("pipe", "endless", "link.csv"):
        place = path.with_name(odd)
        place.unlink(missing_ok=True)
        os.mkfifo(place) if odd == "pipe" else place.symlink_to("/dev/zero" if odd == "endless" else "/dev/stdin")
    value = yaml.safe_load(path.read_text()) | {"files": rng.choice([[odd], ["log.csv", odd], odd])}
    value |= {"rate": rng.choice([1e300, 1e-9, 10])} if rng.random() < 0.1 else {}
    path.write_text(yaml.safe_dump(value))
    return f"files: {odd!r}"


SCHEMAS = (
    b"float64 x\n",
    b"\x1b]0;a\x07\x1b[2J",
    b"float64 x\x1b[2J\n",
    b"odd\x1b/A x\n",
    b"uint64 data\n",
    b"string encoding\n",
)
NAMES = ("log", "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage", "odd\x1b[2J/msg/A", "/", "")


def recording_damaged(path: Path, rng: random.Random) -> str:
    """A recording with damaged bytes, or written with odd schemas, names, times, encodings or messages."""
    from mcap.writer import Writer

    if rng.random() < 0.3:
        return bytes_damaged(path, rng)
    topics = {"/o": b'{"x": 1.0}', "/a": b'{"u": 0.5}'}
    place, at = rng.choice(sorted(topics)), rng.randrange(5)
    name, text, encoding = rng.choice(NAMES), rng.choice(SCHEMAS), rng.choice(["json", "json", "cdr", "\x1b[2J"])
    numbers = [b"1" * rng.choice([20, 400, 5_000]), b"1e400", b"NaN", b"-Infinity", b'"x"', b"[1, [2]]", b"[]", b"{}"]
    deep = b"[" * 40_000
    data = rng.choice(
        [b'{"x": ' + rng.choice([*numbers, deep]) + b', "u": 1}', b"\0\1\0\0" + rng.randbytes(20), b"", deep]
    )
    time = rng.choice([0, 1, 2**62, 2**63, 2**64 - 1])
    what = rng.choice(["schema", "message", "time", "topic", "compression"])
    with open(path, "wb") as file:
        writer = Writer(file)
        writer.start()
        sound = writer.register_schema("log", "jsonschema", b"{}")
        odd = writer.register_schema(name, rng.choice(["ros2msg", "ros2msg", "jsonschema", "\x1b"]), text)
        channels = {}
        for topic in topics:
            here = topic == place
            called = "\x1b[2J" if what == "topic" and here else topic
            schema, kind = (odd, encoding) if what == "schema" and here else (sound, "json")
            channels[topic] = writer.register_channel(called, kind, schema)
        for k in range(5):
            for topic, sound_data in topics.items():
                here = topic == place and k == at
                content = data if here and what in ("message", "schema") else sound_data
                moment = time if here and what == "time" else k * 10**9
                writer.add_message(channels[topic], moment, content, moment)
        writer.finish()
    return f"{what} of {place}: {name!r}, {encoding!r}, {time}"


class Canary:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, (CANARY,)
