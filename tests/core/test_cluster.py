"""Ray that is started here answers to no one else."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import os, subprocess, sys
from surefoot.runs.processes import cluster
from surefoot.core.base.errors import SurefootError
try:
    ray = cluster.begin("a test", cpus=1)
except SurefootError as error:
    sys.exit(str(error))
assert ray.get(ray.remote(lambda: 5).remote()) == 5
address = ray.get_runtime_context().gcs_address
stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
enter = f"import ray; ray.init(address={address!r}, logging_level='CRITICAL'); print('in')"
for own in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
    tried = subprocess.run([sys.executable, "-c", enter], env=stranger | own, capture_output=True, text=True)
    assert tried.returncode != 0 and "in" not in tried.stdout.split(), tried.stdout
friend = {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
tried = subprocess.run([sys.executable, "-c", enter], env=stranger | friend, capture_output=True, text=True)
assert "in" in tried.stdout.split(), tried.stderr
"""


@pytest.mark.slow
def test_strangers_are_refused_by_ray_that_is_begun_here() -> None:
    pytest.importorskip("ray.actor")
    done = subprocess.run([sys.executable, "-c", BEGIN], capture_output=True, text=True)
    if "Ray did not begin" in done.stderr:
        pytest.skip(f"Ray does not begin on this machine now: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
