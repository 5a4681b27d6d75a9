#!/usr/bin/env bash
# A digest of everything that surefoot's wheel is made from: a carried wheel is this tree's where they agree.
set -euo pipefail
cd "$(dirname "$0")/../.."
rooms=(src core data envs offline online streaming safe world_models model_based llm evaluation cuda_ext)
find "${rooms[@]}" pyproject.toml CMakeLists.txt README.md tools/build_backend.py -type f \
  -not -path '*/__pycache__/*' -not -name '*.so' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16
