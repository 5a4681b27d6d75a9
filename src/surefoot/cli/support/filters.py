"""The filter that `surefoot certify` and `surefoot export` put around a policy, and how computing its safe set goes."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from surefoot.cli.support import output
from surefoot.core.base.errors import ConfigError

if TYPE_CHECKING:
    from surefoot.safety.shield import Shield

EVERY = 2.0
"""Seconds between two lines of progress where standard error is no terminal."""


def shield_of(arguments: argparse.Namespace, env_id: str) -> Shield | None:
    """The filter that --filter, --safe-set and --margin ask for; None where none is."""
    if arguments.filter == "none":
        if arguments.safe_set is not None or arguments.margin is not None:
            raise ConfigError("--safe-set and --margin are of a filter; add --filter reach or --filter cbf")
        return None
    import torch

    from surefoot.safety.shield import check_filter, shield

    check_filter(arguments.filter, env_id, arguments.margin)
    torch.set_num_threads(1)  # a filter's batches fit into a core's cache; more threads cost more than they bring
    options = {"safe_set": arguments.safe_set, "margin": arguments.margin}
    quiet = arguments.quiet or arguments.json
    if not quiet:
        found = "computing" if arguments.safe_set is None else "reading"
        output.say(f"{found} the safe set of {env_id}, and the margin that a filter of it needs", stderr=True)
    with Sweeps(quiet) as progress:
        made = shield(arguments.filter, env_id, progress=progress, **options)
    if not quiet:
        output.say(made.sentence(), stderr=True)
    return made


class Sweeps:
    """Tells the sweeps: in place on a terminal, else a line every few seconds."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._last, self._in_place = quiet, time.monotonic(), sys.stderr.isatty()

    def __enter__(self) -> Any:
        """Begin; gives the function to call with (sweep, largest change)."""
        return None if self._quiet else self._show

    def _show(self, sweep: int, change: float) -> None:
        now = time.monotonic()
        if now - self._last < (0.1 if self._in_place else EVERY):
            return
        self._last = now
        ending = "\r" if self._in_place else "\n"
        print(f"sweep {sweep}, largest change {change:.2e}   ", end=ending, file=sys.stderr, flush=True)

    def __exit__(self, *unused: object) -> None:
        """Clear the line."""
        if self._in_place and not self._quiet:
            print(" " * 60, end="\r", file=sys.stderr, flush=True)
