"""Processes that share each batch learn what one process learns from all of it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.share import Share

SCRIPT = pathlib.Path(__file__).with_name("shared_learning.py")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """What two processes learned, of each kind and dtype: one start of torchrun for all."""
    folder = tmp_path_factory.mktemp("shared")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    variables = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, str(SCRIPT), str(folder)], capture_output=True, text=True, env=variables, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize("kind", ["iql", "ppo"])
def test_two_processes_learn_what_one_learns_from_the_whole_batch(
    kind: str, dtype: str, limit: float, shared: pathlib.Path
) -> None:
    from shared_learning import learned

    two, one = load_file(shared / f"{kind}-{dtype}.safetensors"), learned(kind, getattr(torch, dtype), None)
    moved = learned(kind, getattr(torch, dtype), _Half())
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= limit
    assert max(float((one[name] - moved[name]).abs().max()) for name in one) > 1e-3, "half the rows are not enough"


class _Half(Share):
    """One that learns from its share alone."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def average(self, tensors: object) -> None:
        pass


def test_what_can_not_be_shared_is_said() -> None:
    from shared_learning import BATCH

    from surefoot.core.engine.agent import Spec
    from surefoot.offline import TD3BC
    from surefoot.offline.iql import IQL, IQLConfig

    iql = IQL(Spec(3, 1, (-1.0,), (1.0,)), IQLConfig(hidden=(8,)))
    assert Share(1, 4).check(iql, BATCH) == BATCH // 4
    assert Share(1, 4).part(8) == slice(2, 4)
    with pytest.raises(ConfigError, match="batches of 64 rows can't be shared equally among 3"):
        Share(0, 3).check(iql, BATCH)
    with pytest.raises(ConfigError, match="td3bc: its losses are not means over the rows"):
        Share(0, 2).check(TD3BC(Spec(3, 1, (-1.0,), (1.0,))), BATCH)
    with pytest.raises(ConfigError, match=r"RANK.* not set: start the processes with torchrun"):
        Share.join()


def test_images_that_are_shifted_can_not_be_shared() -> None:
    from surefoot.core.base.spec import Array, Spec
    from surefoot.offline.bc import BC

    seen = Spec({"image": Array((36, 36, 3), "uint8")}, 2, (-1.0, -1.0), (1.0, 1.0))
    with pytest.raises(ConfigError, match=r"^bc: .* can't shift its images: set algo.shift=0$"):
        Share(0, 2).check(BC(seen, encoder="small", hidden=(8,)), 8)
    assert Share(0, 2).check(BC(seen, encoder="small", hidden=(8,), shift=0), 8) == 4
