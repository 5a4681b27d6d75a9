"""A streaming agent as one checksummed file: its buffers, and what must agree before they are taken again."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from typing import Any, TypeVar

import torch

from surefoot.core.base import checkpoint
from surefoot.core.base.counter import NAME
from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.options import record_of
from surefoot.core.base.schema import Flag, Many, Maybe, Number, Plain, Record, Table, Text, check
from surefoot.core.base.spec import PROBLEM
from surefoot.core.engine.agent import Spec
from surefoot.streaming.streams import Streams, hidden_of, why_not

A = TypeVar("A", bound=Streams)

KIND = "streaming agent"
SAVED = Record(
    {
        "kind": Text(),
        "algorithm": Text(),
        "problem": PROBLEM,
        "config": Table(Plain()),
        "seeds": Many(Number(0, whole=True), 1),
        "dtype": Text(among=("float32", "float64")),
        "native": Flag(),
        "planned_steps": Maybe(Number(0, whole=True)),
    },
    {"overruns": Number(0, whole=True), "random_numbers": Text()},
)


def save(agent: Streams, path: str | os.PathLike[str]) -> None:
    """Write an agent's buffers and description."""
    tensors = {name: getattr(agent, name) for name in agent.stream_buffers}
    checkpoint.save(path, tensors, {"kind": KIND, "random_numbers": NAME, **_description(agent)})


def load(agent: Streams, path: str | os.PathLike[str]) -> None:
    """Take buffers into an agent that has the same description."""
    tensors, meta = _read(path)
    own = _description(agent)
    for key in ("algorithm", "problem", "config", "seeds", "dtype"):
        if meta.get(key) != own[key]:
            raise CheckpointError(
                f"{path}: its {key} is {meta.get(key)!r}, and this agent's {own[key]!r}; make the agent alike, or take "
                f"the file as it is by {type(agent).__name__}.open(path)"
            )
    if meta["native"] != agent.native:
        ways = ("plain torch", "the native kernel")
        warnings.warn(
            f"{path}: it ran in {ways[meta['native']]} and continues in {ways[agent.native]}: the same up to rounding",
            RuntimeWarning,
            stacklevel=3,
        )
    _take(agent, tensors, meta, path)


def open_as(kind: type[A], path: str | os.PathLike[str], **options: Any) -> A:
    """A new agent that continues from a file."""
    for option in options:
        if option not in ("native", "budget_us"):
            raise ConfigError(
                f"{kind.name}.open takes native and budget_us, not {option!r}: problem, settings, seeds and dtype come "
                "from the file"
            )
    tensors, meta = _read(path)
    if meta["algorithm"] != kind.name:
        raise CheckpointError(f"{path}: holds a {meta['algorithm']} agent, not {kind.name}")
    check(meta["config"], record_of(kind.Config), f"{path}, config")
    config = {key: tuple(v) if isinstance(v, list) else v for key, v in meta["config"].items()}
    settings = {"seeds": meta["seeds"], "dtype": getattr(torch, meta["dtype"]), "native": meta["native"], **options}
    try:
        problem, configured = Spec.from_json(meta["problem"]), kind.configure(**config)
    except (ConfigError, CheckpointError) as error:
        raise error.inside(path, CheckpointError) from error
    missing = why_not(len(hidden_of(configured, problem)))
    if meta["native"] and "native" not in options and missing:
        raise ConfigError(
            f"{path}: it ran in the native kernel, and {missing}: {kind.__name__}.open(path, native=False) continues "
            "in plain torch, the same up to rounding"
        )
    try:
        agent = kind(problem, configured, **settings)
    except (ConfigError, CheckpointError) as error:
        raise error.inside(path, CheckpointError) from error
    _take(agent, tensors, meta, path)
    return agent


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors, meta = checkpoint.load(path, KIND)
    check(meta, SAVED, path)
    if meta.get("random_numbers") != NAME:
        warnings.warn(
            f"{path}: was written by surefoot 0.2; what it learned continues, and explores by other random numbers "
            "than there",
            RuntimeWarning,
            stacklevel=4,
        )
    learned = {name: value for name, value in tensors.items() if not name.startswith("out_")}
    checkpoint.check_tensors(path, learned)  # what the last sample gave, finite or not, says nothing of the weights
    return tensors, meta


def _description(agent: Streams) -> dict[str, Any]:
    value = {
        "algorithm": agent.name,
        "problem": agent.spec.to_json(),
        "config": dataclasses.asdict(agent.config),
        "seeds": list(agent.seeds),
        "dtype": str(agent.dtype).removeprefix("torch."),
        "native": agent.native,
        "planned_steps": agent.planned_steps,
        "overruns": agent.overruns,
    }
    return json.loads(json.dumps(value))  # tuples as the lists that they are read back as


def _take(agent: Streams, tensors: dict[str, torch.Tensor], meta: dict[str, Any], path: Any) -> None:
    if set(tensors) != set(agent.stream_buffers):
        odd = sorted(set(tensors) ^ set(agent.stream_buffers))
        raise CheckpointError(f"{path}: written by another version of surefoot: {', '.join(odd)} differ")
    for name, value in tensors.items():
        buffer = getattr(agent, name)
        if buffer.shape != value.shape or buffer.dtype != value.dtype:
            raise CheckpointError(
                f"{path}: {name} has shape {tuple(value.shape)}, where {tuple(buffer.shape)} is needed"
            )
    for name, value in tensors.items():
        getattr(agent, name).copy_(value)
    agent.planned_steps, agent.overruns = meta["planned_steps"], meta.get("overruns", 0)
    agent.out_td.zero_()  # a TD error of before, finite or not, says nothing of these weights
