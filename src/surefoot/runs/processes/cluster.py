"""Ray (extra `ray`): started with what keeps it small, and again where a busy machine was too slow for it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from surefoot.core.base.children import environment
from surefoot.core.base.errors import MissingExtraError, SurefootError

TRIES = 3
PAUSE = 5.0
"""Seconds between tries."""
STORE = 256 * 2**20
"""Bytes of the object store of a machine of its own; what does not fit is written to disk."""


def check(purpose: str) -> None:
    """Refuse what needs Ray where it is not installed; it is not imported yet.

    Raises:
        MissingExtraError: it is not installed.
    """
    found = importlib.util.find_spec("ray")
    if (
        found is None or found.origin is None
    ):  # a folder called ray, such as its own in /tmp, is found and holds nothing
        raise MissingExtraError("ray", "ray", purpose)


def started() -> bool:
    """Whether this process is connected to Ray already."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def begin(
    purpose: str,
    cpus: int | None = None,
    address: str | None = None,
    settings: Mapping[str, Any] | None = None,
    notify: Callable[[str], None] | None = None,
) -> Any:
    """Connect this process to Ray, or begin one on this machine; the package.

    Ray's own processes wait about 15 seconds for each other when they begin, which is too little on a busy machine: it
    is tried three times. They listen on all of the machine's addresses, whatever address they are given, and who may
    speak to them may execute code: a Ray that is started here answers only to this process's own random token, unless
    the environment has settings of its own (RAY_AUTH_MODE), or the program had imported Ray before.

    Args:
        purpose: what needs it, for errors.
        cpus: that it may give out, where it is started here; None: all.
        address: of a cluster, or "auto", with the user's own token; None: one of this machine alone.
        settings: more arguments of `ray.init`.
        notify: called with a sentence where a try has failed.

    Raises:
        MissingExtraError: it is not installed.
        SurefootError: it did not begin.
    """
    check(purpose)
    if address is None and "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:  # it reads them at import
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    import ray

    if ray.is_initialized():
        return ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]
    given: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", **(settings or {})}
    if address is not None:
        given["address"] = address
    else:
        given = {"include_dashboard": False, "object_store_memory": STORE, **given}
        given |= {} if cpus is None else {"num_cpus": cpus}
    stated = ""
    for number in range(TRIES):
        try:
            ray.init(**given)
            return ray
        except (OSError, RuntimeError, ValueError, TimeoutError) as error:  # what ray.init is known to raise
            stated = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            with contextlib.suppress(Exception):
                ray.shutdown()
            if notify is not None and number + 1 < TRIES:
                notify(f"Ray did not begin ({stated}); trying again")
            time.sleep(PAUSE)
        except Exception as error:  # of packages that differ by version
            raise SurefootError(f"{purpose}: Ray did not begin ({type(error).__name__}: {error})") from error
    raise SurefootError(
        f"{purpose}: Ray did not begin in {TRIES} tries ({stated}). On a busy machine its processes wait too briefly "
        "for each other: try when there is less to do, or without it"
    )
