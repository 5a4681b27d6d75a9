#!/usr/bin/env bash
# On a GPU's machine without a network, from the repository's root there, with what wheels.sh put into .whl:
#   bash tools/gpu/check.sh 1 230     does it run at all
#   bash tools/gpu/check.sh 2 400     how fast
#   bash tools/gpu/check.sh 3 170     real data, from .data
#   bash tools/gpu/check.sh 4 560     a long run on .data/puzzle-3x3-part.hdf5; again: goes on with it (PUZZLE_RUN)
# Arguments: the stage, and seconds that all of it may take. OUT: where results go. DEVICE=cpu: a rehearsal.
set -uo pipefail
cd "$(dirname "$0")/../.."
stage=${1:-1} seconds=${2:-230} out=${OUT:-/tmp/out} site=${SITE:-/tmp/surefoot-site} start=$SECONDS
mkdir -p "$out" "$site"
export PYTHONUNBUFFERED=1 PYTHONPATH=$site SUREFOOT_CACHE=${SUREFOOT_CACHE:-/tmp/surefoot-cache} PYTHONNOUSERSITE=1
say() { echo "[$((SECONDS - start)) s] $*"; }
install() { # what, limit, arguments of pip
  local what=$1 limit=$2 status=0
  shift 2
  timeout "$limit" python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" \
    "$@" >>"$out/install.log" 2>&1 || status=$?
  say "$what: $([ "$status" = 0 ] && echo installed || echo "FAILED ($status), see install.log")"
  return "$status"
}

if [ ! -e "$site/.done" ]; then
  shopt -s nullglob
  own=(.whl/surefoot-*.whl) others=()
  for wheel in .whl/*.whl; do
    case $wheel in .whl/surefoot-*) ;; *) others+=("$wheel") ;; esac
  done
  [ "${#others[@]}" = 0 ] || install "other wheels" 60 "${others[@]}"
  same=no
  [ "$(cat .whl/surefoot.digest 2>/dev/null)" = "$(bash tools/gpu/digest.sh)" ] && same=yes
  say "carried wheel of surefoot: ${own[*]:-none}, of this tree: $same"
  if ! { [ "$same" = yes ] && install "surefoot's wheel" 60 "${own[@]}"; }; then # one level of instructions, not three
    export CMAKE_BUILD_PARALLEL_LEVEL=16 SKBUILD_CMAKE_DEFINE=SUREFOOT_GENERIC=ON SUREFOOT_ZIG=0
    install "surefoot, built here" 150 --no-build-isolation .
  fi
  python3 - <<'PY' && touch "$site/.done"
import torch
import surefoot
from surefoot.cuda_ext import native, why_not_native

print("torch", torch.__version__, "CUDA", torch.cuda.is_available(), surefoot.__file__)
print("native module:", why_not_native() if native() is None else "there")
PY
fi
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,memory.total,temperature.gpu,power.limit \
    --format=csv | tee "$out/smi.csv"
fi
python3 tools/gpu/check.py --stage "$stage" --seconds $((seconds - (SECONDS - start))) --out "$out" --device "${DEVICE:-cuda}"
status=$?
say "stage $stage ended ($status)"
exit "$status"
