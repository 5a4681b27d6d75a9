#!/usr/bin/env bash
# llm_engines.sh [FOLDER]: TRL and verl, in the versions that docs/llm.md names, each in an environment of its own beside
# this checkout's surefoot (default ${SUREFOOT_PEERS:-/tmp/surefoot-peers}); then the conformance kit and the tests of
# what is handed over to them run there. It takes the packages from the index that pip is set up for, 3 GB with torch.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-${SUREFOOT_PEERS:-/tmp/surefoot-peers}}
tests="tests/llm/test_conformance.py tests/llm/test_export.py"

environment() { # NAME PACKAGES...: made where it is not there
  local name=$1
  shift
  [ -x "$folder/$name/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder/$name"
  "$folder/$name/bin/python" -m pip install -q '.[llm]' pytest -c constraints.txt
  "$folder/$name/bin/python" -m pip install -q "$@"
}

environment trl trl==1.16.0
# verl itself asks for serving engines that nothing here calls: of its requirements those that its losses import
environment verl tensordict==0.15.3 codetiming==1.4.0 ray==2.60.0 orjson accelerate==1.15.0 datasets==5.2.0 pylatexenc==2.11
"$folder/verl/bin/python" -m pip install -q --no-deps verl==0.9.1

for engine in trl verl; do
  "$folder/$engine/bin/surefoot" llm check "$engine"
  # shellcheck disable=SC2086
  "$folder/$engine/bin/python" -m pytest -q $tests
done
