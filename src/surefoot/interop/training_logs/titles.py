"""Algorithm, environment and seed as the names of runs and folders have them."""

from __future__ import annotations

import pathlib
import re
from typing import Any

CLEANRL = re.compile(r"(?P<environment>.+)__(?P<algorithm>[^_].*?)__(?P<seed>\d+)__(?P<time>[\d_\-]+)")
"""CleanRL's name of a run: environment, script, seed, time."""
ZOO = re.compile(r"(?P<environment>[A-Za-z][\w.\-]*-v\d+)_(?P<number>\d+)")
"""rl-zoo3's folder of a run, below one named as the algorithm; the number counts runs, and stands for the seed."""
SEED = re.compile(r"(?:^|[_\-.])(?:seed|s)[_\-=]?(\d+)$", re.IGNORECASE)
ENVIRONMENT = re.compile(r"[A-Z][\w]*(?:NoFrameskip)?-v\d+")


def about(title: str) -> dict[str, Any]:
    """What a run's name says: algorithm, environment, seed; nothing for what it does not say."""
    if found := CLEANRL.fullmatch(title):
        known = found.groupdict()
        return {"algorithm": known["algorithm"], "environment": known["environment"], "seed": int(known["seed"])}
    if seed := SEED.search(title):
        return {"seed": int(seed[1])}
    return {}


def about_place(path: pathlib.Path) -> dict[str, Any]:
    """The same by a file or folder and the two folders that it lies in; the innermost that says something counts."""
    known: dict[str, Any] = {}
    resolved = path.resolve()
    for place in (resolved, *resolved.parents[:2]):
        title = place.stem if place.is_file() else place.name
        given = about(title)
        if not given and (zoo := ZOO.fullmatch(title)):
            given = {"algorithm": place.parent.name, "environment": zoo["environment"], "seed": int(zoo["number"])}
        known = {**given, **known}
    return known
