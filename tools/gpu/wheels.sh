#!/usr/bin/env bash
# Before a GPU's machine without a network is used: the wheels that it lacks, and surefoot's own for its python, in .whl.
#   PYTHON312=python3.12 bash tools/gpu/wheels.sh       MUJOCO=1: MuJoCo too
# The machine is expected to have python 3.12, torch (CUDA 13), numpy, scipy, h5py, safetensors, cuda-core, NVRTC and JAX.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON312:-python3.12}
names=(gymnasium Farama-Notifications hydra-core omegaconf hydra-joblib-launcher)
[ -z "${MUJOCO:-}" ] || names+=(mujoco mujoco-core glfw PyOpenGL)
mkdir -p .whl

# Versions are those of constraints.txt.
pinned() {
  local name
  for name in "$@"; do
    grep -E "^$name==" constraints.txt || { echo "constraints.txt has no version of $name" >&2; exit 1; }
  done
}
platforms=()
for number in 17 27 28 31 34; do platforms+=(--platform "manylinux_2_${number}_x86_64"); done
mapfile -t wanted < <(pinned "${names[@]}")
[ "${#wanted[@]}" = "${#names[@]}" ] || exit 1
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" \
  --platform manylinux2014_x86_64 -d .whl "${wanted[@]}"
python3 -m pip wheel -q --no-deps -w .whl "$(pinned antlr4-python3-runtime)" # PyPI has its source alone

if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
  echo "there is no python 3.12 ($python) here: check.sh will build surefoot on the GPU's machine, which takes minutes; or name one with PYTHON312=" >&2
else
  [ -d build/venv312 ] || { "$python" -m venv build/venv312 && build/venv312/bin/pip install -q scikit-build-core nanobind cmake ninja; }
  rm -f .whl/surefoot-*.whl .whl/surefoot.digest
  build/venv312/bin/pip wheel -q --no-deps --no-build-isolation -w .whl .
  bash tools/gpu/digest.sh >.whl/surefoot.digest
fi
du -sh .whl
ls .whl
