"""Which names of code may be followed: those that the user gives, not those that a received file gives.

A run's algorithm can be `module:Class`, an environment, also the one that a dataset names, `module:Id`, and a reward or
a termination `module:function`. To import a module is to execute it, and a function is called with what the file holds.
A name that the user types is his decision. One that comes from a file is asked for, whatever is imported already: a
module that is loaded for other reasons (`sympy`, by transformers) has functions that no file should get called.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from surefoot.core.base.errors import CheckpointError, ConfigError, MainGuardError

KNOWN = ("surefoot", "gymnasium")
"""Packages of which anyone may name an agent's class or an environment, which is one or is refused; not a function."""
FUNCTIONS = ("termination", "reward_function")
"""Options of algorithms whose values may name a function of the user's own."""
_allowed: set[str] = set()
"""Names that the user gave or trusts."""


class FunctionName(str):
    """The name of a function, `module:function`: it is called, so it is asked for in surefoot and gymnasium too."""

    __slots__ = ()


def module_of(name: str | None) -> str | None:
    """The module that a name asks trust for; None where it needs none.

    >>> module_of("my.robots:Arm-v0"), module_of("gymnasium.envs:Pendulum-v1"), module_of("native/pendulum")
    ('my.robots', None, None)
    >>> module_of(FunctionName("surefoot.core.base.files:remove_asides"))
    'surefoot.core.base.files'
    """
    return next(iter(_asking(name).values()), None)


def _names_in(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`envs.make.names_in`, which `surefoot --help` does not wait for: it imports gymnasium."""
    from surefoot.envs.make import names_in

    return names_in(name)


def _asking(name: str | None) -> dict[str, str]:
    """What of a name asks for trust -> its module; an environment's name may say functions too, as arguments."""
    found: dict[str, str] = {}
    environments: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    if isinstance(name, FunctionName):
        functions = (str(name),)
    elif name:
        environments, functions = _names_in(name)
    for one in (*environments, *functions):
        module = one.rpartition(":")[0]
        if module and (module.split(".")[0] not in KNOWN or one in functions):
            found[one] = module
    return found


def allow(name: str | None) -> None:
    """Let a name that the user gave be followed; its module may lie in the working directory too, which comes last."""
    for one, module in _asking(name).items():
        _allowed.add(one)
        if _spec(module) is None and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())


def require_trust(name: str | None, source: object, trust: bool = False) -> None:
    """Allow a name that comes from a file, if the user trusts it or has given the same name.

    Raises:
        ConfigError: the user does not say that he trusts the file.
    """
    asking = {one: module for one, module in _asking(name).items() if one not in _allowed}
    for one, module in asking.items():
        called = isinstance(name, FunctionName) or one in _names_in(str(name))[1]
        if not trust:
            what = "which would be called" if called else f"for which {module!r} would be executed"
            raise ConfigError(f"{source} names {one!r}, {what}; if you trust it, add --trust (trust=True in python)")
    if asking:
        allow(name)


def imported(name: str, what: str) -> Any:
    """What `module:attribute` names.

    Raises:
        ConfigError: there is none, or the module raises; the sentence has the line.
    """
    module, _, attribute = name.rpartition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        where = f"; modules are looked for on python's path and in {pathlib.Path.cwd()}" if error.name == module else ""
        raise ConfigError(f"{what} can't be imported: {error}{where}") from error
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"{what} can't be imported: {error}") from error
    except MainGuardError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        stated = f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        raise ConfigError(f"{what} can't be imported: {stated}") from error


def function_of(name: str, what: str) -> Callable[..., Any]:
    """The function that `module:function` names; who asks has made sure that it may be called.

    Raises:
        ConfigError: it can't be imported, or is no function.
    """
    if not name.rpartition(":")[0]:
        raise ConfigError(
            f"{what}={name!r} names no function; give module:function, as in my_rewards:height, or the folder of a run "
            "of algo=classifier"
        )
    found = imported(name, f"{what}={name}")
    if not callable(found):
        raise ConfigError(f"{what}={name}: is a {type(found).__name__}, not a function")
    return found


def refuse_links(folder: pathlib.Path, trust: bool = False) -> None:
    """Raise a CheckpointError for a run folder with symbolic links in it, through which other files would be written.

    Args:
        folder: of the run.
        trust: allow them.
    """
    for path in () if trust else folder.rglob("*"):
        _refuse_link(path)


def refuse_links_to_runs(folder: pathlib.Path, trust: bool = False) -> None:
    """As `refuse_links`, for the folder of a sweep or a study, but for what lies in its runs: each is asked by itself.

    Args:
        folder: of the sweep or study.
        trust: allow them.
    """
    for place, folders, files in () if trust else os.walk(folder):
        here = pathlib.Path(place)
        if here != folder and "config.json" in files:
            folders.clear()
            continue
        for name in sorted((*folders, *files)):
            _refuse_link(here / name)


def _refuse_link(path: pathlib.Path) -> None:
    if path.is_symlink():
        raise CheckpointError(
            f"{path}: is a symbolic link, through which a file elsewhere would be written; put what it leads to in its "
            "place, or add --trust (trust=True in python)"
        )


def for_workers(names: Iterable[str | None]) -> dict[str, Any]:
    """What a worker, which does not look in the working directory, needs to follow these names."""
    asking = {one: module for name in names for one, module in _asking(name).items()}
    return {"names": list(asking), "path": list(dict.fromkeys(filter(None, map(_folder, asking.values()))))}


def take_over(given: dict[str, Any]) -> None:
    """In a worker: allow what `for_workers` listed. Its folders come last, so that nothing in them hides a module."""
    _allowed.update(given["names"])
    sys.path += [folder for folder in given["path"] if folder not in sys.path]


def _spec(module: str) -> importlib.machinery.ModuleSpec | None:
    """Where the first part of a module's name is found; it is not imported."""
    try:
        return importlib.util.find_spec(module.split(".")[0])
    except (ImportError, ValueError):
        return None


def _folder(module: str) -> str | None:
    """The folder on python's path that a module is found in."""
    spec = _spec(module)
    if spec is None:
        return None
    locations = list(spec.submodule_search_locations or [])
    place = locations[0] if locations else spec.origin
    return None if place is None else str(pathlib.Path(place).resolve().parent)
