"""An argument parser whose errors are ours."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import NoReturn

from surefoot.core.base.errors import ConfigError

LONGEST = 500
"""Characters of a message that are shown: it holds the value that was given."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours."""

    commands: Collection[str] = ()
    """Names of the commands, where it has some."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        text = message if len(message) <= LONGEST else f"{message[:LONGEST]}..."
        raise ConfigError(f"{text}; `{self.prog} --help` shows what it takes")
