"""What a CUDA graph forbids, caught without one: training steps on torch's meta device, operation by operation.

The meta device stands in for a GPU: it is no CPU, so the engine takes the branches that it takes on a GPU; and its
tensors hold no numbers, so nothing can be read back. A step costs milliseconds, whatever the sizes.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from surefoot.core.engine.agent import Agent
from surefoot.core.engine.capture import Due
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Source

META = torch.device("meta")
_READS = """
    _assert_async _local_scalar_dense _unique _unique2 allclose bincount equal histc is_nonzero masked_select nonzero
    nonzero_static unique_consecutive unique_dim unique_dim_consecutive
"""
_SOLVES = """
    _linalg_check_errors _linalg_eigh _linalg_eigvals _linalg_solve_ex _linalg_svd cholesky geqrf linalg_cholesky_ex
    linalg_eig linalg_inv_ex linalg_ldl_factor_ex linalg_lstsq linalg_lu_factor_ex linalg_qr
"""
_RANDOM = """
    bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial native_dropout normal normal_ poisson
    rand rand_like randint randint_like randn randn_like random_ randperm rrelu_with_noise uniform uniform_
"""
READS = frozenset(_READS.split())
"""Operations whose result, or its shape, the host waits for."""
SOLVES = frozenset(_SOLVES.split())
"""Linear algebra by libraries that allocate, or wait for whether a matrix was singular."""
RANDOM = frozenset(_RANDOM.split())
"""Operations that draw from torch's global generator: noise is the engine's, by seed and step."""
INDEXES = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"})
FUSED = frozenset({"_fused_adam_", "_fused_adamw_"})
MAKERS = frozenset(
    {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.frombuffer, Tensor.new_tensor}
)
"""What makes a tensor of numbers of the host: on a GPU a copy from memory that is not pinned."""

REPEATS = frozenset({torch.repeat_interleave, Tensor.repeat_interleave})


class CaptureError(AssertionError):
    """A training step does what no CUDA graph can capture; the traceback ends at the line that does it."""


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


class _Python(TorchFunctionMode):
    """What only python's calls show: host numbers that become tensors of the device, and what meta tensors refuse.

    It sees the calls that losses make, not those that hooks make in the backward pass.
    """

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in MAKERS and not (func is not Tensor.new_tensor and args and isinstance(args[0], Tensor)):
            raise CaptureError(f"{func.__name__} makes a tensor of the host's numbers: a copy that a capture forbids")
        if func in (Tensor.__getitem__, Tensor.__setitem__) and args[0].device.type != "cpu":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, (list, range, np.ndarray)) for part in index):
                raise CaptureError("a tensor is indexed by numbers of the host: a copy that a capture forbids")
        if func in REPEATS and "output_size" not in (kwargs or {}) and len(_tensors((args, kwargs))) > 1:
            raise CaptureError(f"{func.__name__} by a tensor: the host waits for how long the result is")
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """Every operation, those of `vmap` and of the backward pass included.

    A number of python's may come as a () tensor on the processor, as `vmap` makes one of it. A kernel takes it as an
    argument: nothing is copied. Such numbers are known by where they come from, an operation of no tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._numbers: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        given = _tensors((args, kwargs))
        if name in RANDOM:
            raise CaptureError(f"{name} draws global random numbers: let the update name its noise")
        if given and META in {kwargs.get("device"), *(tensor.device for tensor in given)}:
            self.count += 1
            self._check(name, given, args, kwargs)
        if name in FUSED:  # which torch has no meta form of
            return None
        found = func(*args, **kwargs)
        if all(id(tensor) in self._numbers for tensor in given):
            self._numbers |= {id(number): number for number in _tensors(found) if number.dim() == 0}
        return found

    def _check(self, name: str, given: Sequence[Tensor], args: Any, kwargs: Mapping[str, Any]) -> None:
        if name in READS or (name == "_to_copy" and getattr(kwargs.get("device"), "type", "meta") == "cpu"):
            raise CaptureError(f"{name}: the host waits for numbers of the device")
        if name in INDEXES and any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1])):
            raise CaptureError(f"{name} by a mask: the host waits for how many rows it chooses; use torch.where")
        if name in SOLVES:
            raise CaptureError(f"{name}: linear algebra that allocates or waits")
        copies = name in ("_to_copy", "copy_")
        strangers = [
            tuple(tensor.shape)
            for tensor in given
            if tensor.device != META and (copies or id(tensor) not in self._numbers)
        ]
        if strangers:
            raise CaptureError(f"{name} is given a tensor of the processor, of shape {strangers[0]}")
        rate = kwargs.get("lr")
        if name in FUSED and not (isinstance(rate, Tensor) and rate.dtype == torch.float32):
            raise CaptureError(f"{name} is given the learning rate as {rate!r}: a graph would repeat the first one")


class CaptureGuard:
    """Raises a CaptureError where an operation on the meta device could not be captured; `count` says how many ran."""

    def __init__(self) -> None:
        self._python, self._operations = _Python(), _Operations()

    @property
    def count(self) -> int:
        """Operations so far that were given a tensor of the device."""
        return self._operations.count

    def __enter__(self) -> CaptureGuard:
        self._python.__enter__()
        self._operations.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._operations.__exit__(*error)
        self._python.__exit__(*error)


# ---- training steps of a Learner ----


class _ToMeta(TorchFunctionMode):
    """Copies that `copy.deepcopy` makes of tensors are on the meta device."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().to(META))
        return func(*args, **(kwargs or {}))


def _copied(function: Any) -> Any:
    """A function that reads copies of what it holds, which `copy.deepcopy` leaves as it is."""
    if not isinstance(function, types.FunctionType):
        return copy.deepcopy(function)
    cells = tuple(types.CellType(_copied(cell.cell_contents)) for cell in function.__closure__ or ())
    return types.FunctionType(function.__code__, function.__globals__, None, function.__defaults__, cells)


class _Bound:
    """A source that is bound already: its tables are copied, and another binding would make them anew."""

    def __init__(self, source: Source) -> None:
        self.gather, self.rows = _copied(source.gather), source.rows

    def bind(self, seeds: Sequence[int], rows: int, device: torch.device) -> None:
        """Leave it."""


def on_meta(trained: Learner, agents: Sequence[Agent]) -> Learner:
    """A Learner as `trained`, stacked, with parameters and rows on the meta device.

    What sources gather from is copied with all tensors that it holds. Of the agents goes what `nn.Module.to` moves, as
    to a GPU: a plain tensor that an agent holds as an attribute stays behind, and a loss that reads it is caught.
    """
    with _ToMeta():
        sources: dict[str, Source] = {name: _Bound(source) for name, source in trained.sources.items()}
    found = Learner(
        copy.deepcopy(list(agents)),
        trained.seeds,
        sources,
        batch_size=trained.batch_size,
        planned_steps=trained.planned_steps,
        device=META,
        dtype=trained.dtype,
        stacked=True,
    )
    for own, given in zip(found.optimizers, trained.optimizers, strict=True):
        if given.active is not None:
            own.by_seed()
    return found


def captured_parts(learner: Learner) -> Iterator[Due]:
    """Updates that are taken one after another, as at a step at which every one of them is due."""
    for group in learner._groups:
        part: list[int] = []
        for entry in [*group, None]:
            if isinstance(entry, int):
                part.append(entry)
            elif part:
                yield tuple(part)
                part = []


def check_captured(trained: Learner, agents: Sequence[Agent]) -> int:
    """Take every update of a stacked Learner once under the guard.

    Args:
        trained: a Learner on a CPU whose sources have rows; which rows and what noise are drawn on the host, also for a
            GPU, and come from it.
        agents: those that it was given.

    Returns:
        How many updates were taken.

    Raises:
        CaptureError: one can't be captured.
    """
    shadow, step, updates = on_meta(trained, agents), trained.step, 0
    noise = {name: value.to(META) for name, value in trained.stream.at(step).items()}
    for due in captured_parts(shadow):
        names = {name for index in due for name in shadow.updates[index].sources}
        rows = {name: trained.sources[name].rows(step).to(META) for name in names}
        with CaptureGuard() as guard:
            shadow.capture.step(rows, noise, due)
        if guard.count == 0:
            raise CaptureError(f"the guard saw no operation of {[shadow.updates[index].name for index in due]}")
        updates += len(due)
    return updates


def check_acting_captured(trained: Learner, agents: Sequence[Agent], rows: int = 2) -> None:
    """Let a stacked Learner's agents act in `rows` rows under the guard, as loops do by a captured call.

    Raises:
        CaptureError: it can't be captured.
    """
    shadow, agent = on_meta(trained, agents), trained.agent
    method = "sample" if hasattr(agent, "sample") else "explore"
    shape = (len(trained.seeds), rows)
    observations = torch.zeros(*shape, agent.spec.vector_dim, device=META)
    noise = torch.zeros(*shape, agent.explore_dim, device=META)  # type: ignore[arg-type]
    with CaptureGuard() as guard:
        shadow.apply(method, observations, noise)
    if guard.count == 0:
        raise CaptureError(f"the guard saw no operation of {method}")
