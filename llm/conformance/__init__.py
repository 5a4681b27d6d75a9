"""Does an engine compute what the papers say? Its losses, gradients and log-probabilities beside ours."""

from surefoot.llm.conformance.implementation import Case, Implementation, Ours
from surefoot.llm.conformance.kit import Finding, check

ENGINES = ("trl", "verl")


def engine(name: str) -> Implementation:
    """The installed engine of this name.

    Raises:
        ConfigError: an unknown name.
        MissingExtraError: it is not installed.
    """
    from surefoot.core.base.errors import ConfigError, nearest

    if name == "trl":
        from surefoot.llm.conformance.trl_engine import TRL

        return TRL()
    if name == "verl":
        from surefoot.llm.conformance.verl_engine import Verl

        return Verl()
    raise ConfigError(f"unknown engine {name!r}: {nearest(name, ENGINES)}")


__all__ = ["ENGINES", "Case", "Finding", "Implementation", "Ours", "check", "engine"]
