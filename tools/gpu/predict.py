"""What the checks are expected to find on an H100, written down before: predicted.json, and the table of docs/gpu.md.

    python tools/gpu/predict.py           # count anew and write both
    python tools/gpu/predict.py --show iql 16

Rates of Learners are counted: a training step runs on torch's meta device, and each operation there is a kernel with
its floating-point operations and bytes: an elementwise function that is one kernel on a GPU
(`core.base.pointwise`) is one here. A step's time is the sum over its kernels of the largest of LEAST, operations
over PEAK and bytes over BANDWIDTH, or the host's time where that is longer: python, and the launches of what draws rows
and noise, a block of steps at a time.
All other figures are estimates: from published figures of the machine, from arithmetic on instructions
(docs/gpu.md), or from how the same code compares with JAX on a processor.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from typing import Any

import torch
from learners import made
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from surefoot.core.base.random import STEPS_PER_BLOCK
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Drawn

HERE = pathlib.Path(__file__).resolve().parent
PREDICTED, PAGE = HERE / "predicted.json", HERE.parents[1] / "docs" / "gpu.md"
FIRST, LAST = "<!-- predictions -->", "<!-- end of predictions -->"
"""Lines of the page between which the table stands."""
LEAST, PEAK, BANDWIDTH = 2.2e-6, 0.6 * 67e12, 2.6e12
"""Of an H100: seconds of a small kernel inside a graph, float32 operations and bytes a second that are reached."""
EAGER = 27e-6
"""Seconds of the host for an operation under `vmap`, without a graph."""
PYTHON, STEP, LAUNCH = 70e-6, 10e-6, 4.5e-6
"""Seconds of the host: of a graph's python, of each step's in it, and of a kernel that it launches by itself without
`vmap`."""
PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm"})
FREE = frozenset(
    {
        "detach",
        "empty",
        "new_empty",
        "empty_like",
        "empty_strided",
        "lift_fresh",
        "alias",
        "_reshape_alias",
        "_unsafe_view",
    }
)
"""Operations that start no kernel."""
COUNTED: dict[str, tuple[int, ...]] = {
    "iql": (1, 4, 16, 64),
    "sac": (1, 16, 64),
    "fql": (1, 16, 64),
    "tdmpc2": (1, 4, 16),
    "dynamics": (1, 16),
}
RUNS: dict[str, tuple[str, int]] = {"puzzle/rate": ("rebrac", 1)}
"""Row of a whole run -> the Learner that it trains, by which it is counted, and of how many seeds."""
STEPS = 4
"""Training steps that are counted: every update of these agents is due within them."""
ESTIMATES: dict[str, tuple[float, str]] = {
    "facts/copy": (3.0, "TB/s"),
    "facts/product 8192^3 float32": (50, "TFLOP/s"),
    "facts/product 8192^3 tf32": (400, "TFLOP/s"),
    "facts/product 8192^3 bfloat16": (798, "TFLOP/s"),
    "facts/bmm 16 x 256^3 float32": (25, "TFLOP/s"),
    "facts/a small kernel inside a graph": (2.2, "us"),
    "facts/a small kernel, eager": (4.5, "us"),
    **{f"rollouts/{name} 4096: kernel": (1e9, "steps/s") for name in ("cartpole_balance", "pendulum")},
    **{f"rollouts/{name} 65536: kernel": (2e9, "steps/s") for name in ("cartpole_balance", "pendulum")},
    **{f"rollouts/{name} 1048576: kernel": (2e9, "steps/s") for name in ("cartpole_balance", "pendulum")},
    "rollouts/quadrotor_3d 4096: kernel": (7e8, "steps/s"),
    "rollouts/quadrotor_3d 65536: kernel": (1.3e9, "steps/s"),
    "rollouts/quadrotor_3d 1048576: kernel": (1.3e9, "steps/s"),
    "jax/cart-pole 4096 default": (9e7, "steps/s"),
    "jax/cart-pole 65536 default": (5e8, "steps/s"),
    "jax/cart-pole 1048576 default": (1.7e9, "steps/s"),
    "ppo/16384 x 32": (6e6, "samples/s"),
    "ppo/2048 x 64": (2.5e6, "samples/s"),
    "planners/cartpole-balance 1": (1500, "plans/s"),
    "planners/cartpole-balance 64": (90_000, "plans/s"),
    "planners/cartpole-balance 1024": (900_000, "plans/s"),
    "planners/cartpole-balance 8192": (1_200_000, "plans/s"),
    "planners/cartpole-swingup 1": (1500, "plans/s"),
    "planners/cartpole-swingup 64": (80_000, "plans/s"),
    "planners/cartpole-swingup 1024": (600_000, "plans/s"),
    "planners/cartpole-swingup 8192": (800_000, "plans/s"),
    "jax/iql x1 highest": (3500, "updates/s"),
    "jax/iql x4 highest": (3000, "updates/s"),
    "jax/iql x16 highest": (1500, "updates/s"),
    "jax/iql x64 highest": (450, "updates/s"),
    "jax/iql x1 default": (4000, "updates/s"),
    "jax/iql x4 default": (3500, "updates/s"),
    "jax/iql x16 default": (2200, "updates/s"),
    "jax/iql x64 default": (800, "updates/s"),
    "compiled/iql x1: graph": (3500, "updates/s"),
    "compiled/iql x16: graph": (1700, "updates/s"),
}


class Kernels(TorchDispatchMode):
    """Counts what the operations of a block would be on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0
        self.operations = self.bytes = self.seconds = 0.0

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, which computes nothing on the meta device, and count it."""
        name = func.overloadpacket.__name__
        if name.startswith("_fused_adam"):  # torch has no meta form of it: four tensors read, three of them written
            self._add(0.0, 1.75 * sum(_size(tensor) for tensor in _tensors(args[:4])))
            return None
        found = func(*args, **(kwargs or {}))
        first = next(iter(func._schema.returns), None)
        is_view = first is not None and first.alias_info is not None and not first.alias_info.is_write
        made_here = _tensors(found)
        if is_view or name in FREE or not made_here or made_here[0].device.type == "cpu":
            return found
        given, operations = _tensors((args, kwargs)), 0.0
        if name in PRODUCTS:
            left = [tensor for tensor in given if tensor.dim() >= 2][-2]
            operations = 2.0 * made_here[0].numel() * left.shape[-1]
        self._add(operations, sum(_size(tensor) for tensor in [*given, *made_here]))
        return found

    def _add(self, operations: float, size: float) -> None:
        self.kernels += 1
        self.operations += operations
        self.bytes += size
        self.seconds += max(LEAST, operations / PEAK, size / BANDWIDTH)


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _size(tensor: Tensor) -> int:
    """Bytes that it holds: of an expanded tensor those that are there."""
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step as it is counted, on average."""

    kernels: float
    operations: float
    bytes: float
    gpu_seconds: float
    host_seconds: float

    @property
    def graph_rate(self) -> float:
        """Steps a second by a CUDA graph: the GPU's, or the host's where that is slower."""
        return 1 / max(self.gpu_seconds, self.host_seconds)

    @property
    def eager_rate(self) -> float:
        """Steps a second where the host starts each kernel by itself."""
        return 1 / max(self.gpu_seconds, EAGER * self.kernels)


def counted(name: str, seeds: int) -> Step:
    """The training step of a Learner of check.py, on the meta device."""
    learner, count = made(name, seeds, "meta", 1000), Kernels()
    capture: Any = learner.capture
    step = capture.step

    def watched(*given: Any) -> Any:
        with count:
            return step(*given)

    capture.step = watched
    for _ in range(STEPS):
        learner._advance(0)
    draws = _draws(learner)
    host = PYTHON / learner.steps_per_graph + STEP + LAUNCH * draws.kernels / STEPS_PER_BLOCK
    seconds = count.seconds / STEPS + draws.seconds / STEPS_PER_BLOCK
    return Step(count.kernels / STEPS, count.operations / STEPS, count.bytes / STEPS, seconds, host)


def _draws(learner: Learner) -> Kernels:
    """What draws the noise and the rows of a block of training steps."""
    with Kernels() as found:
        learner.stream.at(STEPS_PER_BLOCK)
        for source in learner.sources.values():
            if isinstance(source, Drawn):
                source.rows(STEPS_PER_BLOCK)
    return found


def predictions() -> dict[str, dict[str, Any]]:
    """Name of a row -> its value, unit, and whether it is counted or an estimate."""
    found = {name: {"value": value, "unit": unit, "how": "estimate"} for name, (value, unit) in ESTIMATES.items()}
    for name, counts in COUNTED.items():
        for seeds in counts:
            step = counted(name, seeds)
            rates = {"graph": step.graph_rate} | ({"eager": step.eager_rate} if seeds in (1, 16) else {})
            for how, rate in rates.items():
                value = float(f"{rate:.4g}")
                found[f"learners/{name} x{seeds}: {how}"] = {"value": value, "unit": "updates/s", "how": "counted"}
    for row, (name, seeds) in RUNS.items():
        value = float(f"{counted(name, seeds).graph_rate:.4g}")
        found[row] = {"value": value, "unit": "updates/s", "how": "counted"}
    return found


def predicted_values() -> dict[str, float]:
    """Name of a row -> its predicted value, from predicted.json."""
    return {name: row["value"] for name, row in json.loads(PREDICTED.read_text()).items()}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Markdown of all predictions."""
    lines = ["| row of check.py | predicted | unit | how |", "|---|---|---|---|"]
    lines += [f"| {name} | {row['value']:,.4g} | {row['unit']} | {row['how']} |" for name, row in rows.items()]
    return "\n".join(line.replace(",", "") if "e+" in line else line for line in lines)


def with_table(page: str, rows: dict[str, dict[str, Any]]) -> str:
    """The page with the table between its two lines."""
    before, rest = page.split(FIRST)
    after = rest.split(LAST)[1]
    return f"{before}{FIRST}\n{table(rows)}\n{LAST}{after}"


def main() -> int:
    """Write predictions and page, or show one Learner's step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", nargs=2, metavar=("LEARNER", "SEEDS"), help="count one step and show it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.show:
        print(json.dumps(dataclasses.asdict(counted(given.show[0], int(given.show[1]))), indent=1))
        return 0
    rows = predictions()
    PREDICTED.write_text(json.dumps(rows, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
