"""What is refused, compared by field and code: the wording is tested once a kind, in tests/core/test_options.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from surefoot.core.base.errors import Code, ConfigError, SurefootError


@contextlib.contextmanager
def refused(field: str, code: Code, kind: type[SurefootError] = ConfigError) -> Iterator[None]:
    """Pass where the block raises an error about this field, of this code."""
    with pytest.raises(kind) as caught:
        yield
    assert (caught.value.field, caught.value.code) == (field, code), str(caught.value)
    assert field in str(caught.value)
