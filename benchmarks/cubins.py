"""Registers and spilled bytes of the rollout kernels, compiled for GPUs without one.

    python benchmarks/cubins.py                # every system, three architectures; writes results/cubins.json
    python benchmarks/cubins.py --quick        # pendulum and cart-pole, for CI

A policy of two layers of 64 with tanh in the loop. `lanes` are the threads of an environment: 1 for 65,536
environments, 2 for 20,000 and 4 for 4,096 on a GPU with 132 multiprocessors. NVRTC compiles what runs; nvcc, where it
is installed, compiles the same text for sm_90 as a second opinion.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from surefoot.core.base.files import write_json
from surefoot.cuda_ext.cubin import MissingPackageError, Unit, compile_now, compiler
from surefoot.cuda_ext.launch import Layout, Limits, Plan, plan, unit_of
from surefoot.cuda_ext.operation import POLICY, sizes_of
from surefoot.envs.systems import SYSTEMS, system

HERE = pathlib.Path(__file__).parent
DEVICES = {  # shared memory of a block and of a multiprocessor, multiprocessors
    "sm_80": Limits("sm_80", 163 * 1024, 164 * 1024, 108),  # A100
    "sm_90": Limits("sm_90", 227 * 1024, 228 * 1024, 132),  # H100, H200
    "sm_120": Limits("sm_120", 99 * 1024, 100 * 1024, 170),  # RTX 5090
}
ENVIRONMENTS = (65_536, 20_000, 4_096)
NVCC = "-cubin -std=c++17 --expt-relaxed-constexpr -prec-div=false -ftz=true -Xptxas -v"
MOST_SPILLED = 64  # bytes a thread that `--quick` lets pass: the one-thread kernels lack a few of 128 registers


def unit(name: str, limits: Limits, envs: int) -> tuple[Unit, Plan]:
    """The kernel for `envs` environments of a system under a policy of two layers of 64."""
    sizes = sizes_of(system(name))
    header = [3, 2, 0, 1, 0, sizes[2], 64, 64, sizes[1]]  # layers, tanh, no norm, squash, no noise, widths
    layout = Layout.of(header)
    chosen = plan(limits, envs, layout)
    return unit_of(name, sizes, POLICY, header, chosen, layout), chosen


def nvcc_report(what: Unit, architecture: str) -> str:
    """What ptxas says when nvcc compiles the same."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "kernel.cu"
        defines = [f"#define {key} {value}\n" for key, value in what.defines]  # nvcc splits -D at commas
        source.write_text("".join(defines) + what.source)
        command = ["nvcc", *NVCC.split(), f"-arch={architecture}", f"-I{what.folder}", str(source)]
        done = subprocess.run(
            [*command, "-o", f"{folder}/kernel.cubin"], capture_output=True, text=True, check=False, timeout=300
        )
    if done.returncode != 0:
        raise SystemExit(f"nvcc can't compile {what.system} for {architecture}:\n{done.stderr}")
    return done.stdout + done.stderr


def resources(report: str) -> dict[str, int]:
    """Registers and spilled bytes of surefoot_rollout from ptxas's report."""
    text = report[report.index("'surefoot_rollout'") :]
    found = {"registers": r"Used (\d+) registers", "spill_stores": r"(\d+) bytes spill stores"}
    found["spill_loads"] = r"(\d+) bytes spill loads"
    return {key: int(re.search(pattern, text)[1]) for key, pattern in found.items()}  # type: ignore[index]


def measure(names: list[str], architectures: list[str], compilers: list[str]) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        for architecture in architectures:
            seen = set()
            for envs in ENVIRONMENTS:
                what, chosen = unit(name, DEVICES[architecture], envs)
                if what in seen:  # less shared memory: more lanes for any number
                    continue
                seen.add(what)
                for by in compilers if architecture == "sm_90" else compilers[:1]:
                    report = compile_now(what, architecture)[1] if by == "nvrtc" else nvcc_report(what, architecture)
                    row = {"system": name, "architecture": architecture, "lanes": chosen.lanes, "compiler": by}
                    row |= {"shared_bytes": chosen.shared_bytes, **resources(report)}
                    rows.append(row)
                    print(*(f"{key} {value}" for key, value in row.items()), sep="  ", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="pendulum and cart-pole for sm_90, nothing written")
    options = parser.parse_args()
    try:
        version = compiler()[2]
    except MissingPackageError as error:
        print(f"nothing is measured: {error}")
        return
    compilers = ["nvrtc"] + (["nvcc"] if shutil.which("nvcc") else [])
    if options.quick:
        rows = measure(["pendulum", "cartpole_balance"], ["sm_90"], compilers)
        nvrtc = [row for row in rows if row["compiler"] == "nvrtc"]
        spilling = [row for row in nvrtc if row["spill_stores"] + row["spill_loads"] > MOST_SPILLED]
        sys.exit(f"registers are spilled: {spilling}" if spilling else 0)
    rows = measure(list(SYSTEMS), list(DEVICES), compilers)
    write_json(HERE / "results" / "cubins.json", {"nvrtc": version, "hidden": [64, 64], "kernels": rows})


if __name__ == "__main__":
    main()
