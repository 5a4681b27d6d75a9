"""Tensors and JSON in one safetensors file that carries its own checksum: written whole, refused when damaged."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from surefoot.core.errors import CheckpointError
from surefoot.core.files import written_aside


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of the tensors, and `text`."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        total.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def save(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write tensors and JSON-able `meta` to a safetensors file, aside and renamed.

    Raises:
        SurefootError: the disk is full or the folder can't be written.
    """
    text = json.dumps(dict(meta), sort_keys=True)
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with written_aside(path) as temporary:
        try:
            save_file(own, str(temporary), {"surefoot": text, "sha256": digest(own, text)})
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else 0, str(error)) from error


def load(path: str | os.PathLike[str], kind: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote.

    Args:
        path: the file.
        kind: where given, `meta["kind"]` must be this.

    Raises:
        CheckpointError: the file is missing, damaged, not ours, or of another kind.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError) as error:
        raise CheckpointError(
            f"{path}: damaged or not a safetensors file ({error}); restore it from a copy or resume from an "
            "earlier checkpoint"
        ) from error
    text = header.get("surefoot")
    if text is None or "sha256" not in header:
        raise CheckpointError(f"{path}: a safetensors file, but not written by surefoot")
    if digest(tensors, text) != header["sha256"]:
        raise CheckpointError(
            f"{path}: its checksum does not fit its contents, so it is damaged; restore it from a copy"
        )
    meta = json.loads(text)
    if kind is not None and meta.get("kind") != kind:
        raise CheckpointError(f"{path}: holds a {meta.get('kind')!r}, where a {kind!r} is needed")
    return tensors, meta
