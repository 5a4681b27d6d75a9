"""Lists that take seconds to make, kept in the user's cache: made anew where the code has changed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import surefoot

Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Listing:
    """One list: its name in the cache, the keys of its rows, and the packages that it is made of."""

    name: str
    keys: frozenset[str]
    packages: tuple[str, ...]


ENVIRONMENTS = Listing(
    "envs",
    frozenset({"name", "gymnasium_id", "what", "observations", "actions", "steps", "constraint"}),
    ("surefoot.envs", "surefoot.cli"),
)
ALGORITHMS = Listing(
    "algorithms",
    frozenset({"name", "family", "what", "needs", "takes", "presets"}),
    ("surefoot.offline", "surefoot.online", "surefoot.safe", "surefoot.streaming", "surefoot.model_based",
     "surefoot.core.engine", "surefoot.runs", "surefoot.cli"),
)  # fmt: skip


def kept(listing: Listing, make: Callable[[], Rows]) -> Rows:
    """What `make` gives, from the cache where surefoot's code is the same as when it was made.

    A cache that can't be read or written only costs time.
    """
    path = _folder() / f"{listing.name}-{_code(listing.packages)}.json"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if (
            isinstance(rows, list)
            and rows
            and all(isinstance(one, dict) and one.keys() == listing.keys for one in rows)
        ):
            return rows
    except (OSError, ValueError, RecursionError):
        pass
    rows = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f"{listing.name}-*.json"):
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


def _code(packages: Sequence[str]) -> str:
    """A name for the code that the list is made of: its files' paths, sizes and times."""
    import importlib.util

    facts = [surefoot.__version__, sys.version]
    for name in packages:
        spec = importlib.util.find_spec(name)
        for place in () if spec is None else spec.submodule_search_locations or ():
            for path in sorted(pathlib.Path(place).rglob("*.py")):
                found = path.stat()
                facts.append(f"{path} {found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
