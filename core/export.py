"""Policies as files that run without surefoot: ONNX and `torch.export`."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.errors import ExportError, MissingExtraError, SurefootError
from surefoot.core.files import written_aside
from surefoot.core.policy import Policy


def export(policy: Policy, path: str | os.PathLike[str], *, sampling: bool = False) -> None:
    """Write a policy as ONNX (.onnx) or as a `torch.export` program (.pt2); see `Policy.export`."""
    path = pathlib.Path(path)
    if path.suffix not in {".onnx", ".pt2"}:
        raise ExportError(f"{path}: can export to .onnx or .pt2, not {path.suffix!r}")
    if sampling and policy.noise_dim == 0:
        raise ExportError("this policy is deterministic: it has no sampling form; export it without sampling")
    inputs = policy.example()
    if sampling or policy.always_samples:
        inputs["noise"] = torch.zeros(2, policy.noise_dim)
    batch = torch.export.Dim("batch", min=1)
    shapes = {name: {0: batch} for name in inputs}
    policy = policy.eval()
    with written_aside(path) as aside, _as_export_error(path), _without_registration_notes():
        if path.suffix == ".pt2":
            whole = io.BytesIO()  # torch's own file writer ends the process when the disk is full
            torch.export.save(torch.export.export(policy, tuple(inputs.values()), dynamic_shapes=shapes), whole)
            aside.write_bytes(whole.getvalue())
        else:
            aside.write_bytes(_onnx(policy, inputs, shapes))


def _onnx(policy: Policy, inputs: Mapping[str, Tensor], shapes: dict[str, Any]) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(str(error.name), "onnx", "exporting to ONNX") from error
    program = torch.onnx.export(
        policy,
        tuple(inputs.values()),
        input_names=list(inputs),
        output_names=["actions"],
        dynamic_shapes=shapes,
        dynamo=True,
        verbose=False,
    )
    if program is None:
        raise ExportError("torch.onnx.export gave no model for this policy")
    model = program.model_proto
    for key, value in policy.description().items():
        model.metadata_props.add(key=f"surefoot.{key}", value=json.dumps(value))
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


@contextlib.contextmanager
def _as_export_error(path: pathlib.Path) -> Iterator[None]:
    """Whatever torch's exporters raise, of which there are many kinds, becomes an `ExportError`."""
    try:
        yield
    except (SurefootError, OSError):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise ExportError(f"{path}: torch could not export this policy ({type(error).__name__}: {lines[0]})") from error


@contextlib.contextmanager
def _without_registration_notes() -> Iterator[None]:
    """Keep torch from saying that torchvision, which no policy needs, is not installed."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
