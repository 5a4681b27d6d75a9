"""What PyTorch codes that are paired with ours share: their networks by our names, and the random numbers of `handed`.

An `Official` says where a trainer of theirs has what ours has. A layer of theirs is a `Linear`, one whose weights lie
side by side for all critics (EDAC's `VectorizedLinear`), or several whose outputs stand beside each other (`mu` and
`log_sigma`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import handed
import numpy as np
import paired_peer
import torch
from paired_peer import Arrays
from torch import Tensor, nn

torch.set_num_threads(1)
BATCH = ("observations", "actions", "rewards", "next_observations", "terminations")
"""Columns in the order in which CORL's trainers take them."""


@dataclasses.dataclass(frozen=True)
class Official:
    """Where one trainer has its parts; a path is attributes with dots between them."""

    networks: dict[str, tuple[str, ...]]
    """Our network -> theirs; several are the members of an ensemble. `vae:e1,mean+log_std` names layers of `vae`."""
    optimizers: dict[str, str]
    """Our network -> the optimiser that moves it."""
    singles: dict[str, str] = dataclasses.field(default_factory=dict)
    """Our parameter that is no layer -> theirs."""
    losses: dict[str, str] = dataclasses.field(default_factory=dict)
    """Their name -> ours."""
    columns: tuple[str, ...] = BATCH


def parameter(network: str, part: str, layer: int) -> str:
    """Our name; a network with a dot in its name is an MLP itself, others have one."""
    return f"{network}.{part}.{layer}" if "." in network else f"{network}.mlp.{part}.{layer}"


def at(whole: Any, path: str) -> Any:
    """The part that a path leads to."""
    for name in path.split("."):
        whole = whole[int(name)] if name.isdigit() else getattr(whole, name)
    return whole


def layers(module: nn.Module) -> list[list[Any]]:
    """Layers in their order, each a list of those whose outputs stand beside each other."""
    found: list[list[Any]] = []
    heads: list[Any] = []
    for name, part in module.named_modules():
        if not isinstance(getattr(part, "weight", None), Tensor) or part.weight.dim() < 2:
            continue
        if name.split(".")[-1] in {"mu", "log_sigma", "mu_layer", "log_std_layer"}:
            heads.append(part)
        else:
            found.append([part])
    return [*found, heads] if heads else found


def read_layer(layer: list[Any]) -> tuple[Tensor, Tensor]:
    """Weights (..., out, in) and biases (..., out) as ours are, of one layer."""
    weights = [part.weight.transpose(1, 2) if part.weight.dim() == 3 else part.weight for part in layer]
    biases = [part.bias[:, 0] if part.weight.dim() == 3 else part.bias for part in layer]
    return torch.cat(weights, -2), torch.cat(biases, -1)


@torch.no_grad()
def write_layer(layer: list[Any], weights: Tensor, biases: Tensor) -> None:
    """The other way round."""
    widths = [part.bias.shape[-1] for part in layer]
    for part, weight, bias in zip(layer, weights.split(widths, -2), biases.split(widths, -1), strict=True):
        if part.weight.dim() == 3:
            part.weight.copy_(weight.transpose(1, 2))
            part.bias.copy_(bias[:, None])
        else:
            part.weight.copy_(weight)
            part.bias.copy_(bias)


class TorchPeer:
    """Networks, rates and losses of `self.trainer` as `self.official` describes it."""

    official: Official
    trainer: Any
    step: int

    def members(self, ours: str) -> list[list[list[Any]]]:
        """Layers of each network behind one of ours."""
        found = []
        for path in self.official.networks[ours]:
            whole, _, names = path.partition(":")
            part = at(self.trainer, whole)
            reported = [[getattr(part, name) for name in layer.split("+")] for layer in names.split(",") if layer]
            found.append(reported or layers(part))
        return found

    def networks(self) -> Arrays:
        """Layers and single parameters by our names."""
        found: Arrays = {}
        for ours, paths in self.official.networks.items():
            for number, layer in enumerate(zip(*self.members(ours), strict=True)):
                weights, biases = zip(*(read_layer(one) for one in layer), strict=True)
                several = len(paths) > 1
                for name, values in (("weights", weights), ("biases", biases)):
                    value = torch.stack(values) if several else values[0]
                    found[parameter(ours, name, number)] = value.detach().numpy().copy()
        for ours, path in self.official.singles.items():
            found[ours] = at(self.trainer, path).detach().numpy().copy().squeeze()
        return found

    @torch.no_grad()
    def take(self, networks: Arrays) -> None:
        """The other way round."""
        for ours, paths in self.official.networks.items():
            for number, layer in enumerate(zip(*self.members(ours), strict=True)):
                given = [
                    torch.from_numpy(np.ascontiguousarray(networks[parameter(ours, name, number)]))
                    for name in ("weights", "biases")
                ]
                for index, one in enumerate(layer):
                    write_layer(one, *((value[index] if len(paths) > 1 else value) for value in given))
        for ours, path in self.official.singles.items():
            part = at(self.trainer, path)
            part.copy_(torch.from_numpy(np.ascontiguousarray(networks[ours])).reshape(part.shape))

    def tensors(self, batch: Arrays) -> list[Tensor]:
        """Columns as their trainers take them: numbers a row as (B, 1)."""
        found = [torch.from_numpy(np.ascontiguousarray(batch[name], np.float32)) for name in self.official.columns]
        return [value[:, None] if value.dim() == 1 else value for value in found]

    def train(self, batch: Arrays) -> dict[str, Any]:
        """Their losses by their names, of one training step."""
        step: Callable[[list[Tensor]], dict[str, Any]] = getattr(self.trainer, "train", None) or self.trainer.update
        return step(self.tensors(batch))

    def update(self, batch: Arrays) -> dict[str, float]:
        """One training step of theirs; numbers of `handed` are those of this step."""
        found = self.train(batch)
        self.step += 1
        names = {name: self.official.losses.get(name, name) for name in found}
        return {names[name]: float(value) for name, value in found.items() if names[name].endswith("_loss")}

    def rates(self) -> dict[str, float]:
        """What their optimisers have for the next step."""
        return {
            ours: float(at(self.trainer, path).param_groups[0]["lr"]) for ours, path in self.official.optimizers.items()
        }

    def hand_numbers(self) -> None:
        """From now on what torch draws for them is what `handed` has for the training step."""

        def normal(shape: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(handed.shaped("normal", self.step, tuple(shape))))

        def uniform(shape: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(handed.shaped("uniform", self.step, tuple(shape))))

        def uniform_(value: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
            return value.copy_(low + (high - low) * uniform(value.shape))

        def randn(*shape: Any, **_: Any) -> Tensor:
            return normal(shape[0] if isinstance(shape[0], tuple | list | torch.Size) else shape)

        torch.distributions.normal._standard_normal = lambda shape, dtype, device: normal(shape)  # type: ignore
        torch.normal = lambda mean, deviation, **_: mean + deviation * normal(mean.shape)  # type: ignore
        torch.randn_like = lambda value, **_: normal(value.shape)  # type: ignore
        torch.rand_like = lambda value, **_: uniform(value.shape)  # type: ignore
        torch.randn = randn  # type: ignore
        torch.Tensor.uniform_ = uniform_  # type: ignore


def d4rl_rows(buffer: Any) -> Arrays:
    """Columns of one of their replay buffers."""
    columns = [getattr(buffer, name).numpy() for name in ("_states", "_actions", "_rewards", "_next_states", "_dones")]
    return {
        "observations": columns[0],
        "actions": columns[1],
        "rewards": columns[2].reshape(-1),
        "next_observations": columns[3],
        "terminations": columns[4].reshape(-1),
    }


def kept_rows(data: Arrays) -> Arrays:
    """What D4RL's loader leaves of a file, termination as a number."""
    kept = paired_peer.without_cut_steps(data)
    kept["terminals"] = kept["terminals"].astype(np.float32)
    return kept
