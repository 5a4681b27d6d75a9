"""What one run is called: its algorithm with its preset and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST = 4
"""Options that a name holds; of more the number is given."""
LONGEST = 40
"""Characters of a text that a name holds; of a longer one the beginning."""


def labelled(algorithm: str, preset: str | None, options: Mapping[str, Any] | None = None) -> str:
    """An algorithm with its preset, where that is not called as itself, and the options that were changed.

    >>> labelled("fisor", "small"), labelled("iql", None, {"expectile": 0.9, "hidden": [8, 8]}), labelled("bc", "bc")
    ('fisor (small)', 'iql (expectile=0.9, hidden=[8,8])', 'bc')
    """
    given = list((options or {}).items())
    words = [
        *([] if preset in (None, algorithm) else [preset]),
        *(f"{name}={shown(value)}" for name, value in given[:MOST]),
    ]
    if len(given) > MOST:
        words.append(f"{len(given) - MOST} more")
    return f"{algorithm} ({', '.join(words)})" if words else algorithm


def shown(value: Any) -> str:
    """A value as one types it on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
