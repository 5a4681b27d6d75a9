"""A received policy, checked before it acts: its description, its tensors, and that one is the other's."""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from surefoot.core.base import checkpoint
from surefoot.core.base.checkpoint import check_format, check_tensors
from surefoot.core.base.errors import CheckpointError
from surefoot.core.base.files import beside, read_json
from surefoot.core.base.schema import Flag, FlagOr, Kind, Many, Maybe, Number, Record, Table, Text, check, shown
from surefoot.core.base.spec import ARRAY
from surefoot.core.nn.activations import ACTIVATIONS
from surefoot.core.nn.image_encoders import NAMES
from surefoot.core.nn.pictures import RANGES
from surefoot.core.policy.mean_pictures import SIDE
from surefoot.core.policy.policy_module import FORMAT, PolicyModule

P = TypeVar("P", bound=PolicyModule)

WAIT = 0.5
"""Seconds in which another process that saves a policy again must have written its second file."""
WIDEST, MOST_LAYERS, LONGEST = 1 << 20, 64, 10_000
_WIDTHS = Many(Number(1, WIDEST, whole=True), 1, MOST_LAYERS)
_RANGE = Many(Number(), 2, 2)
_NORM = FlagOr(Text(among=("after",)))
_SIZE, _COUNT, _AMOUNT = Number(1, WIDEST, whole=True), Number(1, LONGEST, whole=True), Number(0)
OPTIONS: dict[str, Kind] = {
    "hidden": _WIDTHS,
    "activation": Text(among=tuple(ACTIVATIONS)),
    "layer_norm": _NORM,
    "norm_epsilon": Number(1e-12, 1),
    "unit_features": Flag(),
    "log_std_range": _RANGE,
    "coefficients": _RANGE,
    "observation_limit": Number(0),
    "decoder_hidden": _WIDTHS,
    "perturbation_hidden": _WIDTHS,
    "perturbation": _AMOUNT,
    "latent_dim": _SIZE,
    "latent_limit": _AMOUNT,
    "context": _COUNT,
    "width": _SIZE,
    "passed": Number(0, WIDEST, whole=True),
    "layers": Number(1, MOST_LAYERS, whole=True),
    "heads": _COUNT,
    "noise_hidden": _WIDTHS,
    "frequencies": _SIZE,
    "blocks": Number(0, MOST_LAYERS, whole=True),
    "time_hidden": _SIZE,
    "velocity_hidden": _WIDTHS,
    "velocity_activation": Text(among=tuple(ACTIVATIONS)),
    "velocity_layer_norm": _NORM,
    "time_embedding": _SIZE,
    "unet_width": _SIZE,
    "unet_factors": _WIDTHS,
    "condition_hidden": Many(Number(1, WIDEST, whole=True), 0, MOST_LAYERS),
    "steps": _COUNT,
    "clip_each": Flag(),
    "aggregate": Text(among=("min", "mean")),
    "deviations": Number(),
    "noise": Text(among=("const", "learn", "learn_decay")),
    "explorer_hidden": _WIDTHS,
    "timed": Flag(),
    "trained": Maybe(_COUNT),
    "taken": Maybe(_COUNT),
    "implicit": _COUNT,
    "low": _AMOUNT,
    "high": _AMOUNT,
    "amount": _AMOUNT,
    "floor": _AMOUNT,
    "noise_limit": Maybe(_AMOUNT),
    "clip_last": Flag(),
    "noise_activation": Text(among=tuple(ACTIVATIONS)),
    "alphas": Many(Number(0, 1), 1, LONGEST),
    "samples": _COUNT,
    "reserve": _AMOUNT,
    "critic_hidden": _WIDTHS,
    "critic_members": _COUNT,
    "critic_layer_norm": _NORM,
    "critic_activation": Text(among=tuple(ACTIVATIONS)),
    "critic_norm_epsilon": Number(1e-12, 1),
    "reward_critic_hidden": _WIDTHS,
    "reward_critic_members": _COUNT,
    "reward_critic_layer_norm": _NORM,
    "reward_critic_activation": Text(among=tuple(ACTIVATIONS)),
    "reward_critic_norm_epsilon": Number(1e-12, 1),
    "target_return": Number(),
    "target_cost": Number(),
    "length": _COUNT,
    "repeats": Flag(),
    "chunk": _COUNT,
    "choices": Number(2, 255, whole=True),
    "hold_steps": _COUNT,
    "decision_steps": _COUNT,
    "deterministic": _SIZE,
    "recurrent_hidden": _SIZE,
    "units": _SIZE,
    "count": Number(1, MOST_LAYERS, whole=True),
    "groups": _COUNT,
    "classes": _COUNT,
    "states": Text(among=("categorical", "gaussian")),
    "embeds": Flag(),
    "encoder_hidden": _WIDTHS,
    "group": _SIZE,
    "bins": _COUNT,
    "limit": _AMOUNT,
    "critics": _COUNT,
    "terminates": Flag(),
    "horizon": _COUNT,
    "prior_samples": Number(0, LONGEST, whole=True),
    "elites": _COUNT,
    "iterations": _COUNT,
    "temperature": _AMOUNT,
    "std_range": _RANGE,
    "discount": Number(0, 1),
    "members": _COUNT,
    "asked": _COUNT,
    "model_hidden": _WIDTHS,
    "costs": Flag(),
    "elite_share": Number(0, 1),
    "momentum": Number(0, 1),
    "futures": _COUNT,
    "law": Text(among=("quantile", "uniform")),
    "propagation": Text(among=("tsinf", "ts1")),
    "risk": Text(100),
    "cost_limit": Maybe(Number(0)),
    "termination": Text(among=("auto", "none")),
    "reward_function": Text(among=("auto", "learned")),
    "environment": Maybe(Text(200)),
    "encoder": Text(among=NAMES),
    "encoder_features": _SIZE,
    "pixels": Text(among=RANGES),
    "crop": Number(0, 1),
    "encoder_share": Flag(),
    "encoder_maps": Flag(),
    "maps": Many(_SIZE, 0, LONGEST),
    "feed_forward": _SIZE,
    "style_layers": Number(1, MOST_LAYERS, whole=True),
    "decoder_layers": Number(1, MOST_LAYERS, whole=True),
    "observations": Table(ARRAY),
}
"""What the options of our own heads are; those of others' heads are theirs to check."""
OPTIONS["base_dim"] = _SIZE
OPTIONS["inner"] = Record({"actor": Text(200)}, OPTIONS, others=True)  # a head within a head
OPTIONS["base"] = OPTIONS["inner"]
OPTIONS["residual"] = Record({}, OPTIONS, others=True)
_BOUNDS, _NUMBERS = Many(Number(), 1), Many(Text(), 1, WIDEST)
_PICTURE = Many(Many(Many(Number(0, 255, whole=True), SIDE, SIDE), SIDE, SIDE), 1, LONGEST)
POLICY = Record(
    {
        "format": Text(),
        "actor": Text(200),
        "observation_dim": _SIZE,
        "action_dim": _SIZE,
        "action_low": _BOUNDS,
        "action_high": _BOUNDS,
    },
    {**OPTIONS, "observation_names": _NUMBERS, "action_names": _NUMBERS, "mean_pictures": Table(_PICTURE)},
    others=True,
)


def read_pair(stem: pathlib.Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and description of a policy's two files, which agree.

    Another process may be saving the policy again, one file after the other: it is given `WAIT` seconds.

    Raises:
        CheckpointError: a file is missing or damaged, or one is not the other's.
    """
    deadline = time.monotonic() + WAIT
    while True:
        tensors, meta = checkpoint.load(beside(stem, ".safetensors"), kind="policy")
        described = read_json(beside(stem, ".json"))
        if described == {key: value for key, value in meta.items() if key != "kind"}:
            return tensors, described  # the arrays that it reads in their order, which `meta` of older files has lost
        if time.monotonic() > deadline:
            raise CheckpointError(f"{stem}.json does not describe {stem}.safetensors; restore the pair from a copy")
        time.sleep(0.02)


def load_checked(path: object, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], build: Callable[[], P]) -> P:
    """The policy of these tensors and this description.

    Args:
        path: the file that both come from.
        tensors: by name.
        meta: the description.
        build: makes the policy that `meta` describes, with other weights.

    Raises:
        CheckpointError: another version; a value of the wrong type or out of range; a tensor that is not finite, or of
            another shape or type than described; an option that the head doesn't have, or reads otherwise.
    """
    check_format(path, meta.get("format"), FORMAT)
    check(dict(meta), POLICY, path)
    check_tensors(path, tensors, locked=[low == high for low, high in zip(meta["action_low"], meta["action_high"])])
    with torch.device("meta"):  # shapes without memory: a description of a few bytes can ask for any amount
        described = build().state_dict()
    for name in sorted({*described, *tensors}):
        one, other = (f"{v.dtype} of {tuple(v.shape)}" if (v := of.get(name)) is not None else "missing"
                      for of in (tensors, described))  # fmt: skip
        if one != other:
            raise CheckpointError(
                f"{path}: the tensor {name!r} is {one}, and {other} by its description; restore the pair from a copy"
            )
    policy = build()
    policy.load_state_dict(dict(tensors))
    read = policy.description()
    for key, value in meta.items():
        if key != "kind" and (key not in read or not _same(read[key], value)):
            known = f"reads it as {shown(read[key])}" if key in read else "knows no such option"
            raise CheckpointError(
                f"{path}: its {key} is {shown(value)}, and a {meta['actor']!r} policy {known}; it would act otherwise "
                "than the policy that was saved"
            )
    return policy


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, numbers up to the rounding of float32."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12)
    return bool(one == other)
