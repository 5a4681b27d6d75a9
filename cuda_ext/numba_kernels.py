"""The loop of numba_loop.py as kernels for CUDA: one environment a thread, its scratch in the thread's local memory."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32

from surefoot.cuda_ext.numba_loop import loops, scratch_sizes


def kernels(system: Any, width: int) -> tuple[Any, Any]:
    """The rollout and the reset as kernels, one environment a thread, for a policy whose widest layer is `width`."""
    roll, reset = loops(system, 1)
    one, two, three, four, five, six, seven, eight = scratch_sizes(system.sizes, width, 1)

    @cuda.jit
    def roll_kernel(  # type: ignore[no-untyped-def]
        numbers, header, weights, low, high, seeds, parameters, given, states, episodes, elapsed, floats, counts,
        last_observations, floats_recorded, flags_recorded,
    ):  # fmt: skip
        first: Any = cuda.grid(1)  # type: ignore[call-arg]
        if first < numbers[0]:
            s, a, o = cuda.local.array(one, float32), cuda.local.array(two, float32), cuda.local.array(three, float32)
            p, z, c = cuda.local.array(four, float32), cuda.local.array(five, float32), cuda.local.array(six, float32)
            x, y = cuda.local.array(seven, float32), cuda.local.array(eight, float32)
            roll(
                first, numbers, (s, a, o, p, z, c, x, y), header, weights, low, high, seeds, parameters, given, states,
                episodes, elapsed, floats, counts, last_observations, floats_recorded, flags_recorded,
            )  # fmt: skip

    @cuda.jit
    def reset_kernel(numbers, mask, seeds, parameters, states, episodes, last_observations):  # type: ignore[no-untyped-def]
        first: Any = cuda.grid(1)  # type: ignore[call-arg]
        if first < numbers[0]:
            s, a, o = cuda.local.array(one, float32), cuda.local.array(two, float32), cuda.local.array(three, float32)
            p, z, c = cuda.local.array(four, float32), cuda.local.array(five, float32), cuda.local.array(six, float32)
            reset(
                first, numbers, (s, a, o, p, z, c, s, s), mask, seeds, parameters, states, episodes, last_observations
            )

    return roll_kernel, reset_kernel
