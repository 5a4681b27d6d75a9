"""Weights of a pretrained ResNet-18 from a file, batch norms folded: a scale and a shift of each channel."""

from __future__ import annotations

import os
import pathlib
import pickle
import zipfile
from collections.abc import Mapping

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.unpacking import too_much, unpack_limit
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.resnet import Folded

EPSILON = 1e-5
"""Of the batch norms."""
PREFIXES = ("", "convnet.", "module.convnet.", "backbone.", "resnet.")
"""What may stand before the names in a file, as R3M's has `convnet.`."""
FIRST = "conv1.weight"
"""The name that shows which of them does."""


def folded(weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Scale w / sqrt(var + 1e-5) and shift b - mean scale of a batch norm in evaluation, (C,) each."""
    scale = weight / (variance + EPSILON).sqrt()
    return scale, bias - mean * scale


def load_encoder(encoder: Encoder, path: str | os.PathLike[str]) -> None:
    """Take the weights of a file into every trunk of an encoder of images, of kind `resnet18_folded`.

    Args:
        encoder: whose trunks are written.
        path: .safetensors, or .pth of tensors alone, with torchvision's names (conv1, bn1, layer1.0.conv1, ...).

    Raises:
        ConfigError: images have other channels than the file's first convolution.
        CheckpointError: there is no such file, it can't be read, unpacks to far more than its size, or has not the
            tensors of a ResNet-18.
    """
    tensors = _tensors(pathlib.Path(path))
    prefix = next((one for one in PREFIXES if one + FIRST in tensors), None)
    if prefix is None:
        raise CheckpointError(f"{path}: has no tensor {FIRST!r}: needs a ResNet-18 with torchvision's names")
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    trunks = [one.convolutions for one in encoder.images.values()] if encoder.trunk is None else [encoder.trunk]
    for trunk in trunks:
        assert isinstance(trunk, nn.Module)
        _fill(trunk, own, path)


def _tensors(path: pathlib.Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file of weights")
    if path.suffix != ".safetensors":
        _check_unpacked(path)
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, OSError, EOFError, KeyError) as error:
        words = "give .safetensors, or a .pth that holds tensors alone (torch.save of a state_dict)"
        raise CheckpointError(f"{path}: can't be read as weights ({type(error).__name__}); {words}") from error
    except Exception as error:  # what safetensors raises is its own
        raise CheckpointError(f"{path}: can't be read as weights ({type(error).__name__})") from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise CheckpointError(f"{path}: holds something else than named tensors: save a state_dict")
    return found


def _check_unpacked(path: pathlib.Path) -> None:
    """Refuse an archive that would unpack to far more than its size: torch reads compressed ones too."""
    try:
        with zipfile.ZipFile(path) as archive:
            needed = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError):  # of torch's older format, which has no compression, or damaged
        return
    limit = unpack_limit(path.stat().st_size)
    if needed > limit:
        raise CheckpointError(f"{path}: {too_much(needed, limit)}")


@torch.no_grad()
def _fill(trunk: nn.Module, tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    wanted: dict[str, Tensor] = {}
    for name, module in trunk.named_modules():
        if isinstance(module, nn.Conv2d):
            wanted[f"{name}.weight"] = module.weight
        elif isinstance(module, Folded):
            for part in ("weight", "bias", "running_mean", "running_var"):
                wanted[f"{name}.{part}"] = module.scale.flatten()
    for name, there in wanted.items():
        value = tensors.get(name)
        if value is None or value.shape != there.shape:
            shape = "missing" if value is None else tuple(value.shape)
            if name == FIRST and value is not None and value.shape[2:] == there.shape[2:]:
                raise ConfigError(
                    f"{path}: reads images of {value.shape[1]} channels, and these have {there.shape[1]}: give the "
                    "camera's present image alone, in color"
                )
            raise CheckpointError(f"{path}: {name} is {shape}, must be {tuple(there.shape)}: needs a ResNet-18")
        if value.layout != torch.strided or value.device.type != "cpu" or not value.is_floating_point():
            raise CheckpointError(
                f"{path}: {name} is {value.dtype} ({value.layout}, {value.device}), must be plain floating-point "
                "numbers: save a state_dict"
            )
        if not bool(value.float().isfinite().all()):
            raise CheckpointError(f"{path}: {name} is not finite; fetch the file again")
    for name, module in trunk.named_modules():
        if isinstance(module, nn.Conv2d):
            module.weight.copy_(tensors[f"{name}.weight"].float())
        elif isinstance(module, Folded):
            parts = [tensors[f"{name}.{part}"].float() for part in ("weight", "bias", "running_mean", "running_var")]
            for held, value in zip((module.scale, module.shift), folded(*parts), strict=True):
                held.copy_(value.view(-1, 1, 1))
