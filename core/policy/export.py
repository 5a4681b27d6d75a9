"""Policies as files that run without surefoot: ONNX and `torch.export`."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.actors.memory import DRAWS, Memory
from surefoot.core.base.errors import ExportError, MissingExtraError, SurefootError
from surefoot.core.base.files import written_aside
from surefoot.core.base.spec import VECTOR
from surefoot.core.policy import cpp
from surefoot.core.policy.policy_module import PolicyModule

LONGEST = 300
"""Characters of torch's own words in an `ExportError`."""


def export(policy: PolicyModule, path: str | os.PathLike[str], *, sampling: bool = False) -> None:
    """Write a policy as ONNX (.onnx), a `torch.export` program (.pt2) or a C++ header (.hpp); see `Policy.export`."""
    path = pathlib.Path(path)
    if path.suffix == ".hpp" and not sampling:
        return cpp.export(policy, path)
    if path.suffix not in {".onnx", ".pt2"}:
        raise ExportError(f"{path}: can export to .onnx, .pt2 or, without sampling, .hpp, not {path.suffix!r}")
    if sampling and policy.noise_dim == 0:
        raise ExportError("this policy is deterministic: it has no sampling form; export it without sampling")
    inputs = example(policy, sampling)
    names = list(inputs.get("memory", ()))
    module: nn.Module = _OneStep(policy).eval() if names else policy.eval()
    batch = torch.export.Dim("batch", min=1)
    shapes = {name: {k: {0: batch} for k in v} if isinstance(v, dict) else {0: batch} for name, v in inputs.items()}
    with written_aside(path) as aside, _as_export_error(path), _without_registration_notes():
        if path.suffix == ".pt2":
            whole = io.BytesIO()  # torch's own file writer ends the process when the disk is full
            arguments, named = _arguments(inputs)
            torch.export.save(torch.export.export(module, arguments, named, dynamic_shapes=shapes), whole)
            aside.write_bytes(whole.getvalue())
        else:
            aside.write_bytes(_onnx(policy, module, inputs, shapes, names))


def example(policy: PolicyModule, sampling: bool = False) -> dict[str, Any]:
    """Inputs of an exported file by name, of 2 rows; `memory` is a dict of them."""
    arrays = {key: torch.zeros(2, *a.shape, dtype=getattr(torch, a.dtype)) for key, a in policy.arrays.items()}
    inputs: dict[str, Any] = {"observations": arrays if policy.encoder is not None else arrays[VECTOR]}
    if policy.has_memory:
        memory = {name: value for name, value in policy.begin(2).items() if name != DRAWS}
        inputs |= {"memory": memory, "ended": torch.zeros(2, dtype=torch.bool)}
        if policy.needs_outcomes:
            inputs |= {"rewards": torch.zeros(2), "costs": torch.zeros(2)}
    if sampling or policy.always_samples:
        inputs["noise"] = torch.zeros(2, policy.noise_dim)
    return inputs


def _arguments(inputs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By position, or by name where a memory makes some optional, or observations are several."""
    named = "memory" in inputs or isinstance(inputs["observations"], dict)
    return ((), inputs) if named else (tuple(inputs.values()), {})


class _OneStep(nn.Module):
    """A policy's step as a function: the outcome of the step before enters the memory, then the observation."""

    def __init__(self, policy: PolicyModule) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self,
        observations: Any,
        memory: Memory,
        ended: Tensor,
        rewards: Tensor | None = None,
        costs: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """Actions and the new memory, in the order of the given one."""
        nothing = ended.float() * 0 if rewards is None or costs is None else rewards
        heard = self.policy.observe_outcome(memory, nothing, nothing if costs is None else costs, ended)
        actions, following = self.policy.step(observations, heard, noise)
        return actions, {name: following[name] for name in memory}


def _onnx(
    policy: PolicyModule, module: nn.Module, inputs: dict[str, Any], shapes: dict[str, Any], names: list[str]
) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(str(error.name), "onnx", "exporting to ONNX") from error
    named = {name: [f"memory.{key}" for key in names] if name == "memory" else [name] for name in inputs}
    if policy.encoder is not None:
        named["observations"] = list(policy.arrays)
    order = list(itertools.chain(*named.values()))
    if twice := {name for name in order if order.count(name) > 1}:
        raise ExportError(
            f"the observations' array {min(twice)!r} has the name of another input of an ONNX file: give it another in "
            "the environment, or export to .pt2"
        )
    arguments, keywords = _arguments(inputs)
    program = torch.onnx.export(
        module,
        arguments,
        kwargs=keywords,
        input_names=order,
        output_names=["actions", *(f"memory.{key}.next" for key in names)],
        dynamic_shapes=shapes,
        dynamo=True,
        verbose=False,
    )
    if program is None:
        raise ExportError("torch.onnx.export gave no model for this policy")
    model = program.model_proto
    fixed = [given.name for given in model.graph.input if not given.type.tensor_type.shape.dim[0].dim_param]
    if fixed:  # where torch can't leave the batch size free, it falls back to a fixed one in silence
        raise ExportError(
            f"the file would take exactly 2 rows of {fixed[0]}: the policy's code turns their number into a python "
            "number, as len(tensor) does; let it read tensor.shape[0]"
        )
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
        cause: BaseException = error  # torch wraps it, in advice of many lines for its own developers
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reported = " ".join(str(cause).split())[:LONGEST]
        raise ExportError(f"{path}: torch could not export this policy ({type(cause).__name__}: {reported})") from error


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
