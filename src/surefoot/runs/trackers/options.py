"""What a tracker can be given, and where a value comes from: the option, else the tracker's own variable, else ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from surefoot.core.base.errors import ConfigError, nearest

OPTIONS: dict[str, dict[str, str | None]] = {
    "tensorboard": {},
    "wandb": {
        "project": "WANDB_PROJECT",
        "entity": "WANDB_ENTITY",
        "group": "WANDB_RUN_GROUP",
        "tags": "WANDB_TAGS",
        "name": "WANDB_NAME",
        "mode": "WANDB_MODE",
    },
    "mlflow": {"experiment": "MLFLOW_EXPERIMENT_NAME", "group": None, "tags": None, "name": None},
}
"""Logger -> its options, each with the environment variable that is read where the option is not given."""
DEFAULT_PROJECT = "surefoot"
"""Project of W&B and experiment of MLflow where neither option nor variable names one."""
MODES = ("online", "offline", "disabled", "shared")
"""Of W&B."""
LIST = "tags"
"""The option that is a list; as a variable, words with commas between them."""


def check_options(logger: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of a logger as they are kept: texts, and `tags` a list of texts.

    Args:
        logger: tensorboard, wandb or mlflow; None: none is named.
        options: by their names.

    Raises:
        ConfigError: an unknown logger, options of no logger, an unknown option or a value that is no text.
    """
    if logger is not None and logger not in OPTIONS:
        raise ConfigError(f"logger={logger!r} is unknown: {nearest(logger, list(OPTIONS))}")
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(f"logger_options={options!r}: give each by its name, as in logger_options.project=arms")
    if not options:
        return {}
    if logger is None:
        raise ConfigError(f"logger_options.{next(iter(options))} is an option of a logger: give logger= too")
    known, found = OPTIONS[logger], dict[str, Any]()
    for name, value in options.items():
        if name not in known:
            has = nearest(str(name), list(known)) if known else "it has none"
            raise ConfigError(f"logger_options.{name}: {logger} has no such option; {has}")
        if value is None:
            continue
        if name == LIST:
            parts = [value] if isinstance(value, str | int | float) else value
            good = isinstance(parts, list | tuple) and all(isinstance(one, str | int | float) for one in parts)
            if not good:
                raise ConfigError(f"logger_options.{name}={value!r}: give texts, as in logger_options.{name}=[arm,v2]")
            found[name] = [str(one) for one in parts]
        elif isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
            raise ConfigError(f"logger_options.{name}={value!r}: must be a text")
        else:
            found[name] = str(value)
    if found.get("mode", MODES[0]) not in MODES:
        raise ConfigError(f"logger_options.mode={found['mode']!r}: {nearest(found['mode'], list(MODES))}")
    return found


def settled(logger: str, name: str, options: Mapping[str, Any]) -> Any:
    """An option's value, or else that of its environment variable; None where neither is there."""
    if options.get(name) is not None:
        return options[name]
    variable = OPTIONS[logger][name]
    text = os.environ.get(variable, "").strip() if variable else ""
    if not text:
        return None
    return [word.strip() for word in text.split(",") if word.strip()] if name == LIST else text
