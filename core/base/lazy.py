"""Classes by name that are imported when they are first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class Lazy(Mapping[str, type[T]]):
    """Name -> class, each from a module that is imported at its first use: names alone cost nothing.

    Args:
        homes: name -> "module:Class"; a package whose own names are lazy is a module too.
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        self.homes = dict(homes)

    def __getitem__(self, name: str) -> type[T]:
        module, _, attribute = self.homes[name].partition(":")
        found: type[T] = getattr(importlib.import_module(module), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.homes)

    def __len__(self) -> int:
        return len(self.homes)

    def __contains__(self, name: object) -> bool:
        return name in self.homes

    def __or__(self, other: Lazy[T]) -> Lazy[T]:
        """Both; of a name that both have, the other's."""
        return Lazy(self.homes | other.homes)

    def __ror__(self, other: Mapping[str, type[T]]) -> dict[str, type[T]]:
        """A dict and these; all are imported."""
        return {**other, **self}

    def name_of(self, attribute: str) -> str | None:
        """The name under which a class of this name is found; None where there is none."""
        return next((name for name, home in self.homes.items() if home.endswith(f":{attribute}")), None)
