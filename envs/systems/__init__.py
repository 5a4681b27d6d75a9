"""The native systems, one file each: adding `<name>.py` here and `cuda_ext/native/systems/<name>.h` adds a system."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.cuda_ext.system import System

__all__ = ["SYSTEMS", "system"]


def _discover() -> dict[str, type[System]]:
    found: dict[str, type[System]] = {}
    for module in pkgutil.iter_modules(__path__):
        contents = vars(importlib.import_module(f"{__name__}.{module.name}"))
        for value in contents.values():
            if isinstance(value, type) and issubclass(value, System) and value.__module__ == contents["__name__"]:
                kind: type[System] = value
                found[kind.name] = kind
    return dict(sorted(found.items()))


SYSTEMS: dict[str, type[System]] = _discover()
"""Name -> class of every system, found from the files of this folder."""


def system(name: str, **options: Any) -> System:
    """The system called `name`, `native/<name>` or by its gymnasium id; `options` are those of its class.

    Raises:
        ConfigError: no system has that name.
    """
    key = name.removeprefix("native/").replace("-", "_")
    for known in SYSTEMS.values():
        if name == known.gym_id or key == known.name:
            return known(**options)
    aliases = ["native/" + known.replace("_", "-") for known in SYSTEMS]
    raise ConfigError(f"there is no system {name!r}; {nearest(name, aliases)}")
