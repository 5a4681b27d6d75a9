"""What another python has of what `other:` needs: `surefoot doctor --other PYTHON`."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from surefoot.core.base.errors import ConfigError
from surefoot.envs.other.client import executable

OLDEST = (3, 8)
PATIENCE = 120.0
"""Seconds that the other python may take to import what is asked for."""
PACKAGES = ("numpy", "gymnasium", "gym")
ASK = """
import importlib, json, sys, traceback
found = {"version": list(sys.version_info[:3]), "modules": {}}
sys.path.append(sys.argv[1])
out = sys.stdout
sys.stdout = sys.stderr
for name in sys.argv[2:]:
    try:
        module = importlib.import_module(name)
        found["modules"][name] = {"version": str(getattr(module, "__version__", "") or "")}
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        found["modules"][name] = {"error": type(error).__name__ + ": " + line}
out.write(json.dumps(found))
"""


def examine(python: str, folder: str, module: str | None = None) -> dict[str, Any]:
    """Versions, and problems with what fixes them.

    Args:
        python: an executable.
        folder: where a module of one's own may lie.
        module: the one that makes the environments, or None.

    Returns:
        `python`, `versions` (package -> its version, or None) and `problems`, as `surefoot doctor` has them.

    Raises:
        ConfigError: there is no such python, or it does not answer.
    """
    path = executable(python)
    asked = [*PACKAGES, *([module] if module else [])]
    try:
        done = subprocess.run([path, "-c", ASK, folder, *asked], capture_output=True, text=True, timeout=PATIENCE)
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{path}: did not answer within {PATIENCE:g} s") from error
    except (OSError, ValueError) as error:
        words = (
            ""
            if isinstance(error, OSError)
            else "; its output: " + (done.stderr.strip().splitlines() or ["nothing"])[-1]
        )
        raise ConfigError(f"{path}: is no python that answers ({error}){words}") from error
    modules, problems = found["modules"], []

    def problem(level: str, what: str, fix: str) -> None:
        problems.append({"level": level, "what": what, "mend": fix})

    version = ".".join(map(str, found["version"]))
    if tuple(found["version"]) < OLDEST:
        problem("error", f"it is python {version}", f"{'.'.join(map(str, OLDEST))} or newer is needed")
    if "error" in modules["numpy"]:
        problem("error", f"numpy does not import there ({modules['numpy']['error']})", f"{path} -m pip install numpy")
    if all("error" in modules[name] for name in ("gymnasium", "gym")):
        problem(
            "warning",
            "neither gymnasium nor gym imports there, so that no id of theirs is known",
            f"name a class or function, other:{python}:MODULE:NAME, or {path} -m pip install gymnasium",
        )
    if module and "error" in modules[module]:
        problem(
            "error",
            f"{module} does not import there ({modules[module]['error']})",
            f"{path} -m pip install what is missing, or start surefoot in the folder of {module}.py",
        )
    versions = {name: None if "error" in one else one["version"] or "?" for name, one in modules.items()}
    return {"python": f"{version} ({path})", "versions": versions, "problems": problems}
