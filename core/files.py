"""Files written whole or not at all, and read with an error that names them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

from surefoot.core.errors import CheckpointError, SurefootError


@contextlib.contextmanager
def written_aside(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A temporary path beside `path` that replaces it when the block ends well, and vanishes when not.

    Raises:
        SurefootError: the disk is full or the folder can't be written; `path` is as it was.
    """
    path = pathlib.Path(path)
    temporary: pathlib.Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
        temporary = pathlib.Path(name)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise SurefootError(
            f"{path}: could not be written ({error.strerror or error}); free some space or choose another "
            "folder. Nothing was changed."
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write JSON whole or not at all."""
    text = json.dumps(value, indent=2, sort_keys=False, allow_nan=False)
    with written_aside(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Raises:
        CheckpointError: the file is missing or not JSON.
    """
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error}); restore it from a copy") from error
