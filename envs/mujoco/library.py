"""The package `mujoco`, imported at first use, new enough to have `mujoco.batch`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import pathlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

from surefoot.core.base.errors import ConfigError, MissingExtraError

OLDEST = (3, 17)
"""`mujoco.batch` came with MuJoCo 3.17."""


def load(purpose: str = "batched MuJoCo") -> Any:
    """The module `mujoco` with `mujoco.batch` imported.

    Raises:
        MissingExtraError: mujoco is not installed.
        ConfigError: it is older than 3.17.
    """
    try:
        mujoco = importlib.import_module("mujoco")
    except ImportError as error:
        raise MissingExtraError("mujoco", "mujoco", purpose) from error
    if _numbers(mujoco.__version__) < OLDEST:
        raise ConfigError(
            f"{purpose} needs MuJoCo 3.17 or newer (mujoco.batch), and {mujoco.__version__} is installed: "
            "pip install -U 'surefoot[mujoco]' -c constraints.txt"
        )
    importlib.import_module("mujoco.batch")
    return mujoco


def version() -> str:
    """What datasets and runs record, such as "mujoco 4.0.0": trajectories differ between versions."""
    return f"mujoco {load().__version__}"


def compile_model(source: str | pathlib.Path) -> Any:
    """An `MjModel` from a path to an MJCF (or MJB, URDF) file, from MJCF text, or from a file of gymnasium's.

    Raises:
        ConfigError: no such file, or MuJoCo refuses it; the message has the compiler's reason.
    """
    mujoco = load()
    text = str(source)
    try:
        if text.lstrip().startswith("<"):
            return mujoco.MjModel.from_xml_string(text)
        path = _find(pathlib.Path(text).expanduser())
        if path.suffix == ".mjb":
            return mujoco.MjModel.from_binary_path(str(path))
        with no_deprecations() if path.parent == _assets() else contextlib.nullcontext():
            return mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        name = "the MJCF text" if text.lstrip().startswith("<") else text
        raise ConfigError(f"MuJoCo can't compile {name}: {' '.join(str(error).split())}") from error


@contextlib.contextmanager
def no_deprecations() -> Iterator[None]:
    """Within, MuJoCo says nothing of words in gymnasium's own models that it will give up: no user can fix those.

    By default it prints each such warning and writes it to MUJOCO_LOG.TXT in the working folder. What else it warns of
    becomes a RuntimeWarning. Without mujoco, or where someone else listens to its warnings, nothing changes.
    """
    try:
        mujoco = importlib.import_module("mujoco")
    except ImportError:
        yield
        return
    if mujoco.get_mju_user_warning() is not None:
        yield
        return
    given: list[str] = []
    mujoco.set_mju_user_warning(given.append)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)
        for text in given:
            if "deprecated" not in text:
                warnings.warn(f"MuJoCo: {text}", RuntimeWarning, stacklevel=3)


def _assets() -> pathlib.Path:
    """Where gymnasium keeps its models."""
    spec = importlib.util.find_spec("gymnasium")
    assert spec is not None  # gymnasium is a dependency of ours
    assert spec.origin is not None
    return pathlib.Path(spec.origin).parent / "envs" / "mujoco" / "assets"


def _find(path: pathlib.Path) -> pathlib.Path:
    """The file itself, or gymnasium's asset of that name (its package is not imported for that)."""
    if path.exists():
        return path
    asset = _assets() / path
    if not path.is_absolute() and asset.exists():
        return asset
    raise ConfigError(f"there is no MJCF file {path}; give a path, the text itself, or the name of a gymnasium asset")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
