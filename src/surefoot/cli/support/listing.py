"""The list of environments, kept in the user's cache: what it is made of is imported where the code has changed."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import surefoot

Rows = list[dict[str, Any]]
KEYS = {"name", "gymnasium_id", "what", "observations", "actions", "steps", "constraint"}


def kept(make: Callable[[], Rows]) -> Rows:
    """What `make` gives, from the cache where surefoot's code is the same as when it was made.

    A cache that can't be read or written only costs time.
    """
    path = _folder() / f"envs-{_code()}.json"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(rows, list) and rows and all(isinstance(row, dict) and row.keys() == KEYS for row in rows):
            return rows
    except (OSError, ValueError, RecursionError):
        pass
    rows = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob("envs-*.json"):
            old.unlink(missing_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(rows), encoding="utf-8")
        aside.replace(path)
    except OSError:
        pass
    return rows


def _folder() -> pathlib.Path:
    """As `data.files.cache_folder`, whose room takes a second to import."""
    root = os.environ.get("SUREFOOT_CACHE")
    return (pathlib.Path(root) if root else pathlib.Path.home() / ".cache" / "surefoot") / "listings"


def _code() -> str:
    """A name for the code that the list is made of: its files' paths, sizes and times."""
    import importlib.util

    facts = [surefoot.__version__, sys.version]
    for name in ("surefoot.envs", "surefoot.cli"):
        spec = importlib.util.find_spec(name)
        for place in () if spec is None else spec.submodule_search_locations or ():
            for path in sorted(pathlib.Path(place).rglob("*.py")):
                found = path.stat()
                facts.append(f"{path} {found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
