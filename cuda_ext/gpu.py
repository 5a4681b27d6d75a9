"""`Batch` on a GPU: what the native module's `Batch` does, by rollout.cuh and with tensors in the GPU's memory.

One launch on torch's current stream rolls all environments out; no array is copied to or from the host, nothing waits.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import pathlib
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from surefoot.cuda_ext.cubin import ENTRIES, GpuError, MissingPackageError, NoDeviceError, Unit, compiler, cubin
from surefoot.cuda_ext.launch import THREADS, Layout, Limits, packed_values, plan, unit_of
from surefoot.cuda_ext.policy import BEFORE_SQUASH
from surefoot.cuda_ext.rollout_arrays import GIVEN, POLICY, SUMS

SCALARS = ("envs", "group", "horizon", "limit", "many", "shared", "noisy")
INPUTS = {
    "matrices": torch.float32,
    "low": torch.float32,
    "high": torch.float32,
    "seeds": torch.int64,
    "parameters": torch.float32,
    "given": torch.float32,
    "weights": torch.float32,
}
KEPT = {"states": torch.float32, "episodes": torch.int32, "elapsed": torch.int32}
RECORDS = {
    "last_observations": torch.float32,
    "record_observations": torch.float32,
    "record_actions": torch.float32,
    "record_rewards": torch.float32,
    "record_next_observations": torch.float32,
    "record_costs": torch.float32,
    "record_margins": torch.float32,
    "record_terminated": torch.uint8,
    "record_truncated": torch.uint8,
    "record_diverged": torch.uint8,
}
ARRAYS = {**INPUTS, **KEPT, **SUMS, **RECORDS}
ARGUMENTS = (*SCALARS, *ARRAYS)
"""Of the kernel surefoot_rollout, in its order."""
RESET = "envs shared mask matrices seeds parameters episodes states last_observations"
RESET_ARGUMENTS = tuple(RESET.split())
"""Of the kernel surefoot_reset."""


# ---- the driver ----


class Driver(Protocol):
    """What `Batch` needs of CUDA; tests put an emulation in its place."""

    device_type: str
    """Of the tensors."""

    def limits(self) -> Limits:
        """Of the device."""

    def load(self, unit: Unit, limits: Limits, shared_bytes: int) -> tuple[Any, ...]:
        """The unit's kernels, as `cubin.ENTRIES` names them."""

    def launch(
        self, kernel: Any, blocks: int, shared_bytes: int, arguments: Sequence[Any], threads: int = THREADS
    ) -> None:
        """On the current stream: ints are pointers, ctypes values themselves."""


def require_device() -> None:
    """Raise NoDeviceError where torch sees no GPU."""
    if not torch.cuda.is_available():
        built = "this torch is a CPU build" if torch.version.cuda is None else "torch sees no CUDA device"
        raise NoDeviceError(f"there is no GPU to roll out on: {built}; use device='cpu'")


def is_gpu(device: torch.device) -> bool:
    """Whether these kernels are for such a device."""
    return device.type == CudaDriver.device_type


def usable() -> bool:
    """Whether the packages are there that compile the kernels; a warning says so where they are not."""
    try:
        compiler()
    except MissingPackageError as error:
        warnings.warn(f"{error}. Until then the GPU runs the slower torch twin", stacklevel=2)
        return False
    return True


class CudaDriver:
    """CUDA through cuda-core, on torch's current stream of `device`; `driver_of` keeps one for each device.

    Raises:
        NoDeviceError: torch sees no GPU.
        MissingPackageError: the extra is not installed.
    """

    device_type = "cuda"

    def __init__(self, device: torch.device) -> None:
        require_device()
        compiler()
        self._core: Any = importlib.import_module("cuda.core")
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._entered = threading.local()
        with torch.cuda.device(self._index):
            torch.cuda.current_stream().synchronize()  # torch makes the context, which cuda-core then shares
            self._enter()
        found = self._core.Device(self._index)
        properties = found.properties
        self._limits = Limits(
            f"sm_{found.arch}",
            properties.max_shared_memory_per_block_optin,
            properties.max_shared_memory_per_multiprocessor,
            properties.multiprocessor_count,
        )

    def _enter(self) -> None:
        """Make the context current in this thread: each has its own, and needs it set once."""
        if not getattr(self._entered, "done", False):
            self._core.Device(self._index).set_current()
            self._entered.done = True

    def limits(self) -> Limits:
        """Of the device."""
        return self._limits

    def load(self, unit: Unit, limits: Limits, shared_bytes: int) -> tuple[Any, ...]:
        """Compile (or find) the unit and load it; kernels stay loaded for the life of the process."""
        with _lock, torch.cuda.device(self._index):
            self._enter()
            return self._load(unit, limits, shared_bytes)

    def _load(self, unit: Unit, limits: Limits, shared_bytes: int) -> tuple[Any, ...]:
        key = (unit, limits, shared_bytes, self._index)
        if key not in _loaded:
            code = cubin(unit, limits.architecture)
            try:
                module = self._core.ObjectCode.from_cubin(code)
                kernels = tuple(module.get_kernel(name) for name in ENTRIES[unit.work])
            except Exception as error:  # cuda-core's own classes, which change from release to release
                raise GpuError(
                    f"the CUDA driver refused the kernel for {limits.architecture} ({error}); "
                    "update a driver that is older than CUDA 13"
                ) from error
            if shared_bytes > 48 * 1024:  # more must be asked for
                self._allow_shared(kernels[0], shared_bytes)
            _loaded[key] = kernels
        return _loaded[key]

    def _allow_shared(self, kernel: Any, shared_bytes: int) -> None:
        driver: Any = importlib.import_module("cuda.bindings.driver")
        name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(name, shared_bytes, kernel.handle, self._index)
        if int(status) != 0:
            raise GpuError(f"the CUDA driver refused {shared_bytes} bytes of shared memory to a block: {status.name}")

    def launch(
        self, kernel: Any, blocks: int, shared_bytes: int, arguments: Sequence[Any], threads: int = THREADS
    ) -> None:
        """Without waiting for the result."""
        config = self._core.LaunchConfig(grid=blocks, block=threads, shmem_size=shared_bytes)
        with torch.cuda.device(self._index):
            self._enter()
            stream = self._core.Stream.from_handle(torch.cuda.current_stream().cuda_stream)
            self._core.launch(stream, config, kernel, *arguments)


_loaded: dict[Any, tuple[Any, ...]] = {}
_drivers: dict[int, CudaDriver] = {}
_lock = threading.RLock()


def driver_of(device: torch.device) -> CudaDriver:
    """The driver of a device, made at the first call: to make one waits for all that the device has to do.

    Raises:
        NoDeviceError: torch sees no GPU.
        MissingPackageError: the extra is not installed.
    """
    index = device.index
    if index is None:
        require_device()
        index = torch.cuda.current_device()
    with _lock:
        if index not in _drivers:
            _drivers[index] = CudaDriver(torch.device("cuda", index))
        return _drivers[index]


# ---- the batch ----


class Batch:
    """Environments, the arrays they work on, and how far to roll them out: as `_surefoot_native.Batch`, on the GPU.

    `system` is the name of one of ours, or the header of a user's.
    `arrays` holds contiguous tensors on one device, which are kept and worked on in place: those of `SUMS` and `KEPT`,
    `low`, `high`, `seeds` and `parameters` always, `policy` (`NativePolicy.packed`, of each of `policies` one after
    another, which have as many environments each) or `given` by the source, others where wanted.

    Raises:
        ValueError: an array is missing or has another type, size or device; a policy that does not fit.
        GpuError: no device, a missing package, or a failed compilation.
    """

    def __init__(
        self,
        system: str | pathlib.Path,
        sizes: Sequence[int],
        envs: int,
        horizon: int,
        limit: int,
        many: bool,
        noisy: bool,
        source: int,
        header: Sequence[int],
        arrays: Mapping[str, Tensor],
        policies: int = 1,
        driver: Driver | None = None,
    ) -> None:
        if min(envs, horizon, limit, policies) < 1:
            raise ValueError("envs, horizon, limit and policies must be 1 or more")
        if envs % policies:
            raise ValueError(f"{envs} environments can't be shared evenly among {policies} policies")
        self._driver = driver_of(arrays["seeds"].device) if driver is None else driver
        self._envs, self._policies = envs, policies
        self._arrays = dict(arrays)
        layout = self._weights(header, sizes) if source == POLICY else None
        shared = self._arrays["parameters"].numel() == sizes[3] and envs != 1
        self._check(sizes, horizon, source, shared)
        limits = self._driver.limits()
        self._plan = plan(limits, envs, layout)
        unit = unit_of(system, sizes, source, header, self._plan, layout)
        self._kernels = self._driver.load(unit, limits, self._plan.shared_bytes)
        numbers = (envs, envs // policies, horizon, limit, int(many), int(shared), int(noisy and sizes[5] > 0))
        self._scalars = {name: ctypes.c_int32(value) for name, value in zip(SCALARS, numbers, strict=True)}

    def run(self, threads: int = 0, fresh: bool = False) -> None:
        """Roll out once, from the states onwards or, `fresh`, from such as episodes begin in.

        `threads` is for the native module.
        """
        if fresh:
            self.reset()
        if self._layout_index is not None:  # the policy may have learned since
            packed, weights = self._arrays["policy"].view(self._policies, -1), self._arrays["weights"]
            torch.index_select(packed, 1, self._layout_index, out=weights)
        blocks = self._policies * self._plan.blocks(self._envs // self._policies)
        self._launch(0, ARGUMENTS, blocks, self._plan.shared_bytes)

    def reset(self, mask: Tensor | None = None, threads: int = 0) -> None:
        """Begin the episodes that `mask` (envs,) uint8 chooses, all by default."""
        if mask is not None:
            self._take("mask", mask, torch.uint8, self._envs)
        self._launch(1, RESET_ARGUMENTS, math.ceil(self._envs / THREADS), 0, mask)

    def _launch(self, kernel: int, names: Sequence[str], blocks: int, shared: int, mask: Tensor | None = None) -> None:
        arrays = self._arrays if mask is None else {**self._arrays, "mask": mask}
        pointers = {name: array.data_ptr() for name, array in arrays.items()}
        values = [self._scalars[name] if name in self._scalars else pointers.get(name, 0) for name in names]
        self._driver.launch(self._kernels[kernel], blocks, shared, values)

    def _weights(self, header: Sequence[int], sizes: Sequence[int]) -> Layout:
        """Room for the weights in the kernel's order."""
        widths = list(header[5:])
        if not header or len(widths) != header[0] + 1 or header[0] < 1:
            raise ValueError("a policy must have 1 to 16 layers")
        outputs = sizes[1] * (2 if header[4] == BEFORE_SQUASH else 1)
        if (widths[0], widths[-1]) != (sizes[2], outputs):
            raise ValueError("the policy's widths do not fit the system")
        if "policy" not in self._arrays:
            raise ValueError("the array policy is missing")
        values = self._arrays["policy"]
        self._take("policy", values, torch.float32, self._policies * packed_values(header))
        layout = Layout.of(header)
        self._layout_index = Layout.index_on(values.device, header)
        self._arrays["weights"] = values.new_empty(self._policies, len(layout.index))
        return layout

    _layout_index: Tensor | None = None

    def _check(self, sizes: Sequence[int], horizon: int, source: int, shared: bool) -> None:
        states, actions, observations, parameters = sizes[:4]
        rows, steps = self._envs, self._envs * horizon
        counts = dict.fromkeys(SUMS, rows) | {"episodes": rows, "elapsed": rows, "seeds": rows}
        counts |= {"states": rows * states, "low": actions, "high": actions}
        counts["parameters"] = parameters if shared else rows * parameters
        needed = set(counts)
        if source == GIVEN:
            needed.add("given")
        counts |= {"given": steps * actions, "last_observations": rows * observations}
        widths = {"observations": observations, "next_observations": observations, "actions": actions}
        for name in RECORDS:
            if name.startswith("record_"):
                counts[name] = steps * widths.get(name.removeprefix("record_"), 1)
        for name in ARRAYS:
            if name in self._arrays:
                self._take(name, self._arrays[name], ARRAYS[name], counts.get(name))
            elif name in needed:
                raise ValueError(f"the array {name} is missing")

    def _take(self, name: str, array: Tensor, dtype: torch.dtype, count: int | None) -> None:
        if array.dtype != dtype or not array.is_contiguous():
            raise ValueError(f"the array {name} has another type, or is not contiguous")
        if array.device.type != self._driver.device_type:
            raise ValueError(f"the array {name} is on {array.device}, must be on {self._driver.device_type}")
        if count is not None and array.numel() != count:
            raise ValueError(f"the array {name} has {array.numel()} values, must have {count}")
