"""Numbers that an official JAX code is handed where it would draw, in the order of its calls."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp


class Handed:
    """While numbers are handed in, draws of `jax.random` give them; else they draw."""

    def __init__(self) -> None:
        self.given: Iterator[Any] | None = None
        for name in ("normal", "uniform", "choice", "randint"):
            setattr(jax.random, name, self._around(getattr(jax.random, name)))

    def _around(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def draw(key: Any, *rest: Any, **options: Any) -> Any:
            if self.given is None:
                return own(key, *rest, **options)
            shape = options["shape"] if "shape" in options else rest[0] if rest else ()
            return jnp.reshape(next(self.given), shape)

        return draw

    @contextlib.contextmanager
    def hand(self, numbers: Iterable[Any] | None) -> Iterator[None]:
        """Within, these are given one after the other; None: they are drawn."""
        self.given = None if numbers is None else iter(numbers)
        try:
            yield
        finally:
            self.given = None


@contextlib.contextmanager
def without_jit() -> Iterator[None]:
    """Within, `jax.jit` does nothing: what is imported there can be compiled as a whole afterwards."""
    jit = jax.jit
    jax.jit = lambda function=None, **_: function if function is not None else (lambda inner: inner)
    try:
        yield
    finally:
        jax.jit = jit
