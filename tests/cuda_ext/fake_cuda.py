"""CUDA without a driver: what is loaded, launched and waited for is kept, and nothing is computed."""

from __future__ import annotations

import contextlib
import threading
import types
from typing import Any

import pytest
import torch
from emulation import H200

from surefoot.cuda_ext import gpu


class FakeCuda(types.ModuleType):
    """cuda.core without a driver: keeps what it is asked to load and launch."""

    def __init__(self) -> None:
        super().__init__("cuda.core")
        self.loaded: list[bytes] = []
        self.waited = 0
        self.entered: list[int] = []
        """Threads that made the context theirs."""
        self.launched: list[tuple[Any, ...]] = []
        self.LaunchConfig = types.SimpleNamespace
        self.Stream = types.SimpleNamespace(from_handle=lambda handle: ("stream", handle))
        self.ObjectCode = types.SimpleNamespace(from_cubin=self._load)

    def Device(self, index: int) -> Any:
        properties = types.SimpleNamespace(
            max_shared_memory_per_block_optin=H200.shared_per_block,
            max_shared_memory_per_multiprocessor=H200.shared_per_multiprocessor,
            multiprocessor_count=H200.multiprocessors,
        )
        return types.SimpleNamespace(arch="90", properties=properties, set_current=self._enter)

    def _enter(self) -> None:
        self.entered.append(threading.get_ident())

    def wait(self) -> None:
        self.waited += 1

    def _load(self, code: bytes) -> Any:
        self.loaded.append(code)
        return types.SimpleNamespace(get_kernel=lambda name: types.SimpleNamespace(handle=name))

    def launch(self, stream: Any, config: Any, kernel: Any, *arguments: Any) -> None:
        self.launched.append((stream, config, kernel.handle, arguments))


def installed(monkeypatch: pytest.MonkeyPatch, device_type: str = "cpu") -> FakeCuda:
    """In place of the driver, as if there were a GPU: tensors of `device_type` stand in for those of one."""
    import cuda.core
    from cuda.bindings import driver

    fake = FakeCuda()
    asked = []

    def set_attribute(name: Any, value: int, kernel: Any, device: int) -> tuple[Any]:
        asked.append((name.name, value, kernel, device))
        return (driver.CUresult.CUDA_SUCCESS,)

    fake.asked = asked  # type: ignore[attr-defined]
    for name in ("Device", "LaunchConfig", "Stream", "ObjectCode", "launch"):
        monkeypatch.setattr(cuda.core, name, getattr(fake, name))
    monkeypatch.setattr(driver, "cuKernelSetAttribute", set_attribute)
    stream = types.SimpleNamespace(cuda_stream=77, synchronize=fake.wait)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(gpu, "_loaded", {})
    monkeypatch.setattr(gpu, "_drivers", {})
    monkeypatch.setattr(gpu.CudaDriver, "device_type", device_type)
    return fake
