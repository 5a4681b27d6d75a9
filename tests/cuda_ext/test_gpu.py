"""Compiling for GPUs without one: cubins of every system, their cache, the launch's arithmetic and its arguments."""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

import pytest
import torch
from emulation import H200
from test_gpu_emulated import policy_of

from surefoot.cuda_ext import cubin, gpu
from surefoot.cuda_ext.cubin import CompileError, MissingPackageError, NoDeviceError, Unit
from surefoot.cuda_ext.launch import Layout, Limits, plan, unit_of
from surefoot.cuda_ext.operation import RECORDS, sizes_of
from surefoot.cuda_ext.rollout import rollout
from surefoot.cuda_ext.rollout_arrays import POLICY, SUMS
from surefoot.cuda_ext.system import System
from surefoot.envs.systems import SYSTEMS, system

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
LAPTOP = Limits("sm_120", 99 * 1024, 100 * 1024, multiprocessors=30)


def unit_for(s: System, hidden: tuple[int, ...] = (16,), envs: int = 100, limits: Limits = H200) -> Unit:
    policy = policy_of(s, hidden)
    layout = Layout.of(policy.header)
    return unit_of(s.name, sizes_of(s), POLICY, policy.header, plan(limits, envs, layout), layout)


# ---- NVRTC ----


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_compiles_to_a_cubin_for_three_architectures(name: str) -> None:
    unit = unit_for(system(name))
    codes = [cubin.compile_now(unit, architecture)[0] for architecture in ARCHITECTURES]
    for code in codes:
        assert code[:4] == b"\x7fELF"
        assert int.from_bytes(code[18:20], "little") == 190  # EM_CUDA
        assert b"surefoot_rollout" in code
        assert b"surefoot_reset" in code
    assert len(set(codes)) == 3


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("name", ["pendulum", "cartpole_balance"])
@pytest.mark.parametrize("envs", [4096, 20_000, 65_536])
def test_two_layers_of_64_spill_hardly_any_register_on_a_data_centre_gpu(name: str, envs: int) -> None:
    _, report = cubin.compile_now(unit_for(system(name), (64, 64), envs), "sm_90")
    spills = [int(count) for count in re.findall(r"(\d+) bytes spill", report)]
    assert len(spills) == 4  # stores and loads of two kernels
    assert sum(spills) <= (64 if envs == 65_536 else 0)  # one thread per environment has 128 registers: a few too few
    assert max(int(count) for count in re.findall(r"Used (\d+) registers", report)) <= 128


@pytest.mark.usefixtures("nvrtc")
def test_a_cubin_is_compiled_once_and_again_when_the_file_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    unit, compiled = unit_for(system("pendulum")), []
    whole = cubin.compile_now

    def counted(*arguments: Any, **options: Any) -> tuple[bytes, str]:
        compiled.append(1)
        return whole(*arguments, **options)

    monkeypatch.setattr(cubin, "compile_now", counted)
    first = cubin.cubin(unit, "sm_90")
    assert cubin.cubin(unit, "sm_90") == first
    assert len(compiled) <= 1  # another test may have left it there
    (path,) = cubin.cache_folder().glob(f"pendulum-sm_90-{unit.key(cubin.compiler()[2], 'sm_90')[:32]}.cubin")
    good = path.read_bytes()
    damaged = [good[:-1], good[:4000] + b"\x00" + good[4001:], b"", good.replace(cubin.MAGIC, b"another format ")]
    assert good[4000:4001] != b"\x00" or damaged.pop(1)
    for content in damaged:
        compiled.clear()
        path.write_bytes(content)
        assert cubin.cubin(unit, "sm_90") == first
        assert compiled == [1]
        assert path.read_bytes() == good
    assert not list(path.parent.glob(".*")), "temporary files are left"


def test_the_key_changes_with_headers_options_version_and_architecture(tmp_path: pathlib.Path) -> None:
    (tmp_path / "systems").mkdir()
    for name in ("maths.h", "rollout.cuh", "systems/mine.h", "systems/other.h"):
        (tmp_path / name).write_text(name)
    unit = Unit("mine", (("A", "1"),), tmp_path)
    keys = {unit.key("13.0", "sm_90"), unit.key("13.1", "sm_90"), unit.key("13.0", "sm_80")}
    keys.add(Unit("mine", (("A", "2"),), tmp_path).key("13.0", "sm_90"))
    (tmp_path / "systems" / "other.h").write_text("another system changes nothing")
    assert unit.key("13.0", "sm_90") in keys
    for name in ("maths.h", "rollout.cuh", "systems/mine.h"):
        (tmp_path / name).write_text("changed")
        keys.add(unit.key("13.0", "sm_90"))
    assert len(keys) == 7


@pytest.mark.usefixtures("nvrtc")
def test_a_header_that_does_not_compile_is_one_sentence_with_the_place_and_the_log(tmp_path: pathlib.Path) -> None:
    for path in cubin.NATIVE.glob("*.[hc]*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "systems").mkdir()
    text = (cubin.NATIVE / "systems" / "pendulum.h").read_text()
    (tmp_path / "systems" / "pendulum.h").write_text(text.replace("const T dt = T(0.05)", "const T dt = oops"))
    unit = unit_for(system("pendulum"))
    with pytest.raises(CompileError, match=r"pendulum\.h\(\d+\).*error: identifier \"oops\" is undefined") as caught:
        cubin.cubin(Unit("pendulum", unit.defines, tmp_path), "sm_90")
    message = str(caught.value)
    assert "\n" not in message
    log = pathlib.Path(message.split("the whole log is ")[1])
    assert "SF_LANES" in log.read_text()


@pytest.mark.usefixtures("nvrtc")
def test_an_unwritable_cache_costs_a_warning_only(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"file.cubins.* can't be kept"):
        assert cubin.cubin(unit_for(system("pendulum")), "sm_90")[:4] == b"\x7fELF"


# ---- what is missing ----


@pytest.mark.parametrize(
    ("module", "package"), [("cuda.core", "cuda-core"), ("cuda.bindings", "cuda-bindings"), ("cuda", "cuda-core")]
)
def test_a_missing_package_is_named_with_its_extra(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if module == "cuda.bindings":
        pytest.importorskip(
            "cuda.core", reason="comes with surefoot[cuda13], and is named first where it is missing too"
        )
    for name in [name for name in sys.modules if name == "cuda" or name.startswith("cuda.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=rf"'{package}'.*pip install 'surefoot\[cuda13\]'") as caught:
        cubin.compiler()
    assert (caught.value.package, caught.value.extra) == (package, "cuda13")
    with pytest.warns(UserWarning, match="slower torch twin"):
        assert not gpu.usable()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_rollout_on_cuda_without_a_gpu_says_so() -> None:
    with pytest.raises(NoDeviceError, match=r"there is no GPU to roll out on: .*; use device='cpu'"):
        rollout(system("pendulum"), random=True, num_envs=3, horizon=2, device="cuda")
    with pytest.raises(NoDeviceError):
        gpu.CudaDriver(torch.device("cuda"))


# ---- the launch's arithmetic ----


def layout_of(*hidden: int, name: str = "cartpole_balance") -> Layout:
    policy = policy_of(system(name), hidden)
    return Layout.of(policy.header)


@pytest.mark.parametrize(
    ("limits", "hidden", "envs", "lanes", "shared_weights", "blocks_together", "grid"),
    [
        (H200, (64, 64), 65_536, 1, True, 4, 512),
        (H200, (64, 64), 20_000, 2, True, 4, 313),
        (H200, (64, 64), 4_096, 4, True, 4, 128),
        (H200, (64, 64), 1, 4, True, 4, 1),
        (H200, (256, 256), 65_536, 4, False, 3, 2048),
        (LAPTOP, (64, 64), 65_536, 4, True, 3, 2048),
    ],
)
def test_threads_and_memory_follow_the_device_and_the_number_of_environments(
    limits: Limits,
    hidden: tuple[int, ...],
    envs: int,
    lanes: int,
    shared_weights: bool,
    blocks_together: int,
    grid: int,
) -> None:
    layout = layout_of(*hidden)
    chosen = plan(limits, envs, layout)
    assert (chosen.lanes, chosen.shared_weights) == (lanes, shared_weights)
    assert (chosen.blocks_together, chosen.blocks(envs)) == (blocks_together, grid)
    activations = 4 * layout.rows * 128 // lanes
    assert chosen.shared_bytes == activations + (4 * len(layout.index) if shared_weights else 0)
    assert chosen.shared_bytes <= limits.shared_per_block


def test_weights_of_two_layers_of_64_take_what_the_kernel_counts_by_hand() -> None:
    layout = layout_of(64, 64)
    # 4 means, 4 scales, middle, half, 2 deviations; 4 + 1, 64 + 1 rows of 64; 64 + 1 rows of 4
    assert len(layout.index) == 12 + 5 * 64 + 65 * 64 + 65 * 4
    assert layout.rows == 64


def test_a_layer_too_wide_for_shared_memory_is_refused_with_the_limit() -> None:
    assert plan(H200, 10, layout_of(908, 908)).lanes == 4
    with pytest.raises(ValueError, match=r"widest layer has 910 values; sm_90 has room for 908 .*device='cpu'"):
        plan(H200, 10, layout_of(910, 910))


# ---- arguments ----


def kernel_signature(name: str) -> dict[str, str]:
    text = (cubin.NATIVE / "rollout.cuh").read_text()
    found = re.search(rf"{name}\((.*?)\) \{{", text, re.S)
    assert found is not None
    pairs = [argument.strip().rsplit(" ", 1) for argument in found[1].split(",")]
    return {argument.lstrip("*"): kind.removeprefix("const ") for kind, argument in pairs}


def test_arguments_are_listed_in_the_order_and_types_of_the_kernels() -> None:
    kinds = {torch.float32: "float*", torch.int32: "int*", torch.int64: "long long*", torch.uint8: "unsigned char*"}
    expected = {name: "int" for name in gpu.SCALARS} | {name: kinds[dtype] for name, dtype in gpu.ARRAYS.items()}
    assert list(kernel_signature("surefoot_rollout").items()) == list(expected.items())
    reset = kernel_signature("surefoot_reset")
    assert tuple(reset) == gpu.RESET_ARGUMENTS
    assert reset == {name: expected.get(name, "unsigned char*") for name in reset}


def test_sums_and_records_are_those_of_rollout() -> None:
    assert gpu.SUMS == SUMS
    assert {name.removeprefix("record_") for name in gpu.RECORDS} - {"last_observations"} == set(RECORDS)
