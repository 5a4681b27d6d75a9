"""An argument parser whose errors are ours."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import NoReturn

from surefoot.core.base.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours."""

    commands: Collection[str] = ()
    """Names of the commands, where it has some."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise ConfigError(f"{message}; `{self.prog} --help` shows what it takes")
