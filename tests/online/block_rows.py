"""What tests of on policy share."""

from __future__ import annotations

from typing import Any

HELD: dict[str, Any] = {"exploration": "state_dependent", "hold_steps": 8}
