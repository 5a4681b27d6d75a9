"""Tensors and JSON in one safetensors file that carries its own checksum: written whole, refused when damaged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from surefoot.core.base.errors import CheckpointError, SurefootError
from surefoot.core.base.files import open_regular, why, written_aside
from surefoot.core.base.memory import ADVICE, enough_memory, short_of_memory
from surefoot.core.base.schema import MOST_BYTES, Plain, Table, check, parse, refuse_large, shown

VERSIONS: dict[str, int] = {}
"""Kind of file -> version of what it holds, for kinds that have had more than the first: raised with every change that
earlier versions would read wrongly."""
MOST_TENSORS = 100_000


def format_of(kind: str) -> str:
    """What files of a kind call their format: `surefoot-policy-1`."""
    return f"surefoot-{kind.replace(' ', '-')}-{VERSIONS.get(kind, 1)}"


def check_format(path: object, found: object, expected: str, error: type[SurefootError] = CheckpointError) -> None:
    """Refuse a file of another format or version than the one that this version of surefoot reads.

    Raises:
        SurefootError: of the kind `error`; names both.
    """
    if found != expected:
        raise error(
            f"{path}: is written as {shown(found)}, and this version of surefoot reads {expected!r}; read it with the "
            "version that wrote it, or write it again"
        )


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of the tensors, and `text`."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        total.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def save(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write tensors and JSON-able `meta` to a safetensors file, aside and renamed, with the version of `meta["kind"]`.

    Raises:
        SurefootError: the disk is full or the folder can't be written.
    """
    save_together([(path, tensors, meta)])


def save_together(files: Iterable[tuple[str | os.PathLike[str], Mapping[str, Tensor], Mapping[str, Any]]]) -> None:
    """Write files of one moment, each as `save` does: the first is renamed when all of them are on the disk.

    Raises:
        SurefootError: as `save`; all files are as they were, unless renaming itself failed.
    """
    with contextlib.ExitStack() as renamed:
        for path, tensors, meta in files:
            text = json.dumps(dict(meta))  # in their order: a policy reads arrays in that of its keys
            own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
            temporary = renamed.enter_context(written_aside(path))
            try:
                written = format_of(str(meta.get("kind")))
                header = {"surefoot": text, "format": written, "sha256": digest(own, f"{written}\n{text}")}
                save_file(own, str(temporary), header)
            except SafetensorError as error:
                number = re.search(r"os error (\d+)", str(error))
                raise OSError(int(number[1]) if number else 0, str(error)) from error
            with open(temporary, "rb+") as file:
                _order_header(file)
                os.fsync(file.fileno())  # now, for a disk may turn out to be full as late as this


def _order_header(file: BinaryIO) -> None:
    """Sort what a safetensors file says of itself, written in any order, so that equal contents are equal bytes."""
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
    if len(text) == size:  # else as it was written, which is as good
        file.seek(8)
        file.write(text)
        file.flush()


def load(path: str | os.PathLike[str], kind: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote.

    Args:
        path: the file.
        kind: where given, `meta["kind"]` must be this.

    Raises:
        CheckpointError: the file is missing, damaged, not ours, or of another kind or version.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    with enough_memory(path, CheckpointError):
        return _checked(path, *_read(path), kind)


def _checked(
    path: pathlib.Path, header: dict[str, str], tensors: dict[str, Tensor], kind: str | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and meta of a file that is ours, whole and of the kind; `load` says what is raised."""
    text, written = header.get("surefoot"), header.get("format")
    if text is None or "sha256" not in header:
        raise CheckpointError(f"{path}: a safetensors file, but not written by surefoot")
    if digest(tensors, text if written is None else f"{written}\n{text}") != header["sha256"]:
        raise CheckpointError(
            f"{path}: its checksum does not fit its contents, so it is damaged; restore it from a copy"
        )
    meta: dict[str, Any] = check(parse(text, path), Table(Plain()), path)
    if kind is not None and meta.get("kind") != kind:
        raise CheckpointError(f"{path}: holds a {meta.get('kind')!r}, where a {kind!r} is needed")
    if written is not None:  # files of before the version was written are of version 1
        check_format(path, written, format_of(str(meta.get("kind"))))
    return tensors, meta


def _read(path: pathlib.Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What the header says and the tensors, both of one file: safetensors opens the path twice, and another process may
    put a new file there in between, so this begins again until the same file is there before and after."""
    while True:
        before, failure = _identity(path), None
        try:
            _check_header(path)
            with safe_open(str(path), framework="pt") as file:
                header, names = file.metadata() or {}, list(file.keys())
                if len(names) > MOST_TENSORS:
                    raise ValueError(f"{len(names)} tensors, more than {MOST_TENSORS}")
                tensors = {name: file.get_tensor(name) for name in names}
        except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
            failure = error
        if _identity(path) != before:
            continue
        if failure is None:
            return header, tensors
        if short_of_memory(failure):
            raise CheckpointError(f"{path}: the memory is not enough to read it; {ADVICE}") from failure
        raise CheckpointError(
            f"{path}: damaged or not a safetensors file ({failure}); restore it from a copy or resume from an "
            "earlier checkpoint"
        ) from failure


def _identity(path: pathlib.Path) -> tuple[int, ...]:
    """What tells the file that is there now from one that takes its place; empty where there is none."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _check_header(path: pathlib.Path) -> None:
    """Refuse a header that would take more memory than any that we write: safetensors parses it whole."""
    try:
        with open_regular(path) as file:
            size = int.from_bytes(file.read(8), "little")
            header = file.read(min(size, MOST_BYTES + 1))
    except OSError as error:
        raise CheckpointError(f"{path}: can't be read ({why(error)})") from error
    refuse_large(header, path)


def check_tensors(
    path: object, tensors: Mapping[str, Tensor], prefix: str = "", locked: Sequence[bool] | None = None
) -> None:
    """Refuse numbers that nothing can be computed with, in those tensors whose names begin with `prefix`.

    Args:
        path: of the file, for messages.
        tensors: by name.
        prefix: of those that are checked.
        locked: which actions have one value only, so that `action_low` equals `action_high`; None: not known.

    Raises:
        CheckpointError: a tensor has NaN or infinity in it, a `normalizer.scale` is not above 0, or an `action_low` is
            not below its `action_high` where it is not locked; names the tensor and the place.
    """
    chosen = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    for name, value in chosen.items():
        if value.is_floating_point() or value.is_complex():
            _refuse_any(~value.isfinite(), path, f"{prefix}{name}", value, "finite")
        if name.split(".")[-2:] == ["normalizer", "scale"]:
            _refuse_any(~(value > 0), path, f"{prefix}{name}", value, "above 0")
        high = chosen.get(f"{name.removesuffix('action_low')}action_high") if name.endswith("action_low") else None
        if high is not None and high.shape == value.shape:
            allowed = value == high
            if locked is not None and len(locked) == len(value):
                allowed &= torch.tensor(locked, device=value.device)
            _refuse_any(~((value < high) | allowed), path, f"{prefix}{name}", value, "below action_high")


def _refuse_any(wrong: Tensor, path: object, name: str, value: Tensor, needed: str) -> None:
    if bool(wrong.any()):
        at = int(wrong.reshape(-1).nonzero()[0])
        place = [int(index) for index in torch.unravel_index(torch.tensor(at), value.shape or (1,))]
        raise CheckpointError(
            f"{path}: the tensor {name!r} holds {value.reshape(-1)[at].item():g} at {place} ({int(wrong.sum())} such "
            f"values of {math.prod(value.shape)}), must be {needed}; restore it from a copy or train it again"
        )
