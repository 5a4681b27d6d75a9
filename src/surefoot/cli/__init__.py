"""The command line: one module a group of commands, each a thin layer over the library."""

from surefoot.cli import _path as _path  # before anything that could lie in the working directory too
from surefoot.cli.main import main

__all__ = ["main"]
