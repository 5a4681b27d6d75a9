"""A rollout on a GPU without one: what a launch hands to the kernel."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest
import torch
from test_gpu_emulated import arrays_of, policy_of
from torch import Tensor
from torch._subclasses import FakeTensorMode

from surefoot.cuda_ext import gpu, gpu_plan, launch
from surefoot.cuda_ext.operation import _native, constants_on, sizes_of
from surefoot.cuda_ext.plan import PlanSettings
from surefoot.cuda_ext.rollout_arrays import POLICY, RANDOM
from surefoot.cuda_ext.system import System
from surefoot.envs.systems import system


def batch_with(
    s: System, arrays: dict[str, Tensor], hidden: tuple[int, ...] | None, envs: int, driver: gpu.Driver | None = None
) -> gpu.Batch:
    policy = None if hidden is None else policy_of(s, hidden)
    if policy is not None:
        arrays["policy"] = policy.packed()
    header = [] if policy is None else policy.header
    source = RANDOM if policy is None else POLICY
    return gpu.Batch(s.name, sizes_of(s), envs, 10, 200, False, False, source, header, arrays, driver=driver)


def test_a_launch_hands_cuda_core_pointers_sizes_and_the_current_stream(fake: Any) -> None:
    s = system("cartpole_balance")
    envs = 40_000
    arrays = arrays_of(s, envs, 10, ("rewards",), None)
    batch = batch_with(s, arrays, (64, 64), envs)
    batch.reset(torch.ones(envs, dtype=torch.uint8))
    batch.run()
    (reset, rolled) = fake.launched
    assert reset[:1] == (("stream", 77),)
    assert (reset[2], reset[1].grid, reset[1].block, reset[1].shmem_size) == ("surefoot_reset", 313, 128, 0)
    assert (rolled[2], rolled[1].grid, rolled[1].block) == ("surefoot_rollout", 313, 128)
    assert rolled[1].shmem_size == 4 * 4752 + 4 * 64 * 128
    values = dict(zip(gpu.ARGUMENTS, rolled[3], strict=True))
    assert [values[name].value for name in gpu.SCALARS] == [envs, envs, 10, 200, 0, 1, 0]
    assert values["states"] == arrays["states"].data_ptr()
    assert values["record_rewards"] == arrays["record_rewards"].data_ptr()
    assert values["record_actions"] == values["given"] == values["matrices"] == 0
    assert fake.asked == [
        ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", rolled[1].shmem_size, "surefoot_rollout", 0)
    ]
    assert fake.loaded[0][:4] == b"\x7fELF"
    batch_with(s, arrays, (64, 64), envs)
    assert len(fake.loaded) == 1, "a kernel is loaded once"


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Headers of the policies whose weights were laid out."""
    found: list[list[int]] = []
    unpacked = launch.NativePolicy.unpacked

    def counted(values: Tensor, header: Any) -> Any:
        found.append(list(header))
        return unpacked(values, header)

    monkeypatch.setattr(launch.NativePolicy, "unpacked", staticmethod(counted))
    launch._layout.cache_clear()
    launch._index_on.cache_clear()
    return found


def test_a_second_rollout_makes_no_driver_waits_for_nothing_and_lays_no_weights_out(
    fake: Any, layouts: list[list[int]]
) -> None:
    s = system("pendulum")
    first = batch_with(s, arrays_of(s, 7, 10, (), None), (16,), 7)
    assert (fake.waited, len(layouts)) == (1, 1)
    again = [batch_with(s, arrays_of(s, envs, 10, (), None), (16,), envs) for envs in (7, 9)]
    assert (fake.waited, len(layouts)) == (1, 1)
    assert {id(batch._driver) for batch in (first, *again)} == {id(first._driver)}
    assert again[0]._layout_index is first._layout_index
    batch_with(s, arrays_of(s, 7, 10, (), None), (24,), 7)  # another shape of policy
    assert (fake.waited, len(layouts)) == (1, 2)


def test_a_second_plan_makes_no_driver_and_waits_for_nothing(fake: Any) -> None:
    s = system("pendulum")

    def plan_once() -> None:
        rows = torch.zeros(2, 7, 1)
        settings, draws = PlanSettings((8,), 0.5, temperature=1.0), torch.zeros(2, 2, dtype=torch.int64)
        states, elites = torch.zeros(2, len(s.states)), torch.zeros(2, 0, 7, 1)
        gpu_plan.plan_on_gpu(s, s.default_parameters()[None], settings, draws, states, rows, rows.clone(), elites)

    plan_once()
    kept = constants_on(s, torch.device("cpu"))
    plan_once()
    batch_with(s, arrays_of(s, 7, 10, (), None), None, 7).run()  # rollouts have the same driver
    assert fake.waited == 1
    assert len(gpu._drivers) == 1
    assert constants_on(s, torch.device("cpu")) is kept
    assert [launched[2] for launched in fake.launched] == ["surefoot_plan"] * 2 + ["surefoot_rollout"]


def test_threads_share_a_driver_and_each_makes_its_context_current_once(fake: Any) -> None:
    s, drivers, ids = system("pendulum"), [], []

    def roll_out() -> None:
        for _ in range(2):
            batch = batch_with(s, arrays_of(s, 7, 10, (), None), None, 7)
            batch.run()
            drivers.append(batch._driver)
        ids.append(threading.get_ident())

    threads = [threading.Thread(target=roll_out) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(driver) for driver in drivers}) == 1
    assert fake.waited == 1
    assert len(fake.launched) == 6
    assert sorted(fake.entered) == sorted(ids)
    assert len(fake.loaded) == 1


def test_cuda_core_packs_the_arguments_as_the_kernel_reads_them(fake: Any) -> None:
    handler = pytest.importorskip("cuda.core._kernel_arg_handler", reason="cuda-core has moved its packing")
    s = system("pendulum")
    batch_with(s, arrays_of(s, 7, 10, (), None), None, 7).run()
    arguments = fake.launched[0][3]
    holder = handler.ParamHolder(arguments)
    pointers = (ctypes.c_void_p * len(arguments)).from_address(holder.ptr)
    for place, argument in zip(pointers, arguments):
        if isinstance(argument, int):
            assert ctypes.c_uint64.from_address(place).value == argument
        else:
            assert ctypes.c_int32.from_address(place).value == argument.value


def test_the_kernels_weights_follow_the_policy_tensor(fake: Any) -> None:
    s = system("pendulum")
    arrays = arrays_of(s, 7, 10, (), None)
    batch = batch_with(s, arrays, (16,), 7)
    batch.run()
    first = batch._arrays["weights"].clone()
    arrays["policy"].mul_(2)
    batch.run()
    assert torch.equal(batch._arrays["weights"], 2 * first)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"states": torch.zeros(6)}, "the array states has 6 values, must have 14"),
        ({"states": torch.zeros(7, 2, dtype=torch.float64)}, "the array states has another type"),
        ({"seeds": torch.zeros(7, dtype=torch.int32)}, "the array seeds has another type"),
        ({"states": torch.zeros(2, 7).t()}, "not contiguous"),
        ({"states": torch.zeros(7, 2, device="meta")}, "the array states is on meta, must be on cpu"),
        ({"returns": None}, "the array returns is missing"),
        ({"policy": torch.zeros(5)}, "the array policy has 5 values, must have"),
    ],
)
def test_arrays_that_do_not_fit_are_named(change: dict[str, Tensor | None], words: str, fake: Any) -> None:
    s = system("pendulum")
    policy = policy_of(s, (16,))
    arrays = arrays_of(s, 7, 10, (), None) | {"policy": policy.packed()} | change
    given = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(ValueError, match=words):
        gpu.Batch(s.name, sizes_of(s), 7, 10, 200, False, False, POLICY, policy.header, given)


def test_a_policy_for_another_system_is_refused(fake: Any) -> None:
    s, policy = system("pendulum"), policy_of(system("cartpole_balance"), (16,))
    arrays = arrays_of(s, 7, 10, (), None) | {"policy": policy.packed()}
    with pytest.raises(ValueError, match="the policy's widths do not fit the system"):
        gpu.Batch(s.name, sizes_of(s), 7, 10, 200, False, False, POLICY, policy.header, arrays)


def test_rollout_hands_the_kernel_arrays_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}

    class Recorded:
        def __init__(self, *arguments: Any) -> None:
            made["arguments"], made["calls"] = arguments, []

        def run(self, threads: int, fresh: bool) -> None:
            made["calls"].append(("run", fresh))

    monkeypatch.setattr(gpu, "Batch", Recorded)
    s = system("linear_quadratic")
    with FakeTensorMode():  # tensors that say they are on a GPU, and hold nothing
        seeds = torch.zeros(6, dtype=torch.int64, device="cuda")
        parameters = torch.zeros(6, len(s.parameters), device="cuda")
        policy = torch.zeros(9, device="cuda")
        monkeypatch.setattr("surefoot.cuda_ext.operation.is_noisy", lambda *_: True)
        given = (s, seeds, parameters, None, None, None, None, policy, [1], [10, 99], True, [0, 4], 0)
        returned = _native(*given)
    name, sizes, envs, horizon, limit, many, noisy, source, header, arrays = made["arguments"]
    assert (name, sizes, envs, horizon, limit) == (s.name, sizes_of(s), 6, 10, 99)
    assert (many, noisy, source, header) == (True, True, POLICY, [1])
    assert {array.device.type for array in arrays.values()} == {"cuda"}
    wanted = {*gpu.SUMS, *gpu.KEPT, "seeds", "parameters", "low", "high", "matrices", "policy"}
    assert set(arrays) == wanted | {"record_observations", "record_terminated"}
    assert all(array.dtype == gpu.ARRAYS[key] for key, array in arrays.items() if key in gpu.ARRAYS)
    assert made["calls"] == [("run", True)]
    assert len(returned) == len(gpu.SUMS) + 3 + 2
