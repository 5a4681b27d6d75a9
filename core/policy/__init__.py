"""The deployable policy: one module, its file, its checks, and its exports (ONNX, C++)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from surefoot.core.policy.policy import Policy as Policy

__all__ = ["Policy"]


def __getattr__(name: str) -> object:
    """`from surefoot.core.policy import Policy`, imported at first use."""
    if name == "Policy":
        from surefoot.core.policy.policy import Policy

        return Policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
