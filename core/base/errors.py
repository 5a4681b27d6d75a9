"""The exceptions of surefoot: each names the file, key, index or field, and says what to do."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection
from typing import Any, Literal

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it, and what can't be written to one: control characters but tab and line
feed, marks that turn the direction of writing, halves of surrogate pairs."""


def printable(text: str) -> str:
    r"""`text` with each character that a terminal would obey as its escape: names in files can hold any.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


LONGEST = 4_000
"""Characters of an error's sentence that are shown: a name in a file may have millions."""
_formatwarning = warnings.formatwarning


def show_warnings_printable() -> None:
    """Show warnings of this process without what a terminal would obey; for programs of ours, not for libraries."""

    def formatted(*arguments: Any, **options: Any) -> str:
        return printable(_formatwarning(*arguments, **options))

    warnings.formatwarning = formatted


Code = Literal[
    "choice", "conflict", "depth", "length", "missing", "range", "text", "trust", "type", "unknown", "version"
]
"""Kinds of mistakes. "type", "range", "choice", "length", "depth", "text" (control characters): of one value.
"missing", "unknown": of a name. "conflict": values that don't go together. "trust": code that is named and not trusted.
"version": of a newer format."""


class SurefootError(Exception):
    """Base of all errors that a user can fix; the command line prints it and exits with code 2.

    Args:
        sentence: for people: what is wrong, where, and what to do.
        field: the option, key, column or place in a file that it is about, where it is about one.
        code: the kind of mistake, where it is of one of the usual kinds.
    """

    field: str | None = None
    code: Code | None = None

    def __init__(self, sentence: object = "", *, field: str | None = None, code: Code | None = None) -> None:
        super().__init__(sentence)
        self.field = field
        self.code = code

    def inside(self, source: object, kind: type[SurefootError]) -> SurefootError:
        """An error of another kind with the file before the sentence, about the same field."""
        return kind(f"{source}: {self}", field=self.field, code=self.code)

    def __str__(self) -> str:
        """The sentence; names that came from a file can't move the cursor, nor fill the terminal."""
        text = super().__str__()
        if len(text) > LONGEST:
            text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
        return printable(text)


class DataError(SurefootError):
    """A dataset file or array is damaged, incomplete or inconsistent."""


class DownloadError(SurefootError):
    """A dataset could not be fetched; what had arrived is kept for the next try."""


class ConfigError(SurefootError):
    """An option, algorithm, dataset or environment name is unknown or its value out of range."""


class RenderModeError(ConfigError, TypeError):
    """An environment was asked for a `render_mode` that it does not have.

    A `TypeError` as well: stable-baselines3 asks every id for "rgb_array", and continues without one after such an
    error.
    """


class MainGuardError(ConfigError):
    """A module that surefoot imports starts a run while it is imported: its script has no main guard."""


class EnvironmentMismatchError(SurefootError):
    """An environment can't be made, or its spaces don't fit the dataset or policy."""


class SimulatorError(SurefootError):
    """An environment raised an error of its own while it was reset or stepped."""


class CheckpointError(SurefootError):
    """A checkpoint, policy or run folder is damaged, incomplete or of another kind."""


class DeviceError(SurefootError):
    """The device that was asked for is not there."""


class DivergenceError(SurefootError):
    """A loss stopped being finite; the last good checkpoint is kept."""


class ExecutionError(SurefootError):
    """A chunk of actions could not be planned, or can't be carried out; the message names the control tick."""


class ExportError(SurefootError):
    """A policy could not be exported."""


class MissingExtraError(SurefootError):
    """An optional package is not installed; the message says what brings it.

    Args:
        package: that is missing.
        extra: of surefoot, with the package; None: no extra has it.
        purpose: what needs it.
    """

    def __init__(self, package: str, extra: str | None, purpose: str) -> None:
        if extra is None:
            how = f"pip install {package}, in an environment of its own, since it asks for versions of its own"
        else:
            how = f"pip install 'surefoot[{extra}]' -c constraints.txt"
        super().__init__(f"{purpose} needs the package {package!r}, which is not installed: {how}")


LONGEST_NAME = 1_000
"""Characters of a name that is compared with those that are known."""
OTHER_WORDS = {
    "lr": ("learning_rate", "actor_learning_rate", "critic_learning_rate"),
    "gamma": ("discount",),
    "lam": ("gae_lambda", "trace"),
    "tau": ("target_rate",),
    "polyak": ("target_rate",),
    "utd": ("updates_per_step",),
    "utd_ratio": ("updates_per_step",),
    "gradient_steps": ("updates_per_step",),
    "learning_starts": ("initial_steps",),
    "start_steps": ("initial_steps",),
    "n_envs": ("num_envs",),
    "n_steps": ("horizon", "n_step"),
    "n_epochs": ("epochs",),
    "clip_range": ("clip",),
    "ent_coef": ("entropy_coefficient", "temperature"),
    "vf_coef": ("value_coefficient",),
    "max_grad_norm": ("max_gradient_norm",),
    "alpha": ("temperature", "alpha"),
    "net_arch": ("hidden",),
    "hidden_sizes": ("hidden",),
    "hidden_dims": ("hidden",),
    "dqn": ("stream_q", "ppo"),
    "ddqn": ("stream_q", "ppo"),
    "ddpg": ("td3",),
    "cem": ("pets",),
    "ppo_lagrangian": ("ppo_lag",),
    "decision_transformer": ("dt",),
    "diffusion_policy": ("diffusion_bc",),
}
"""What other libraries call an option or an algorithm -> our words for it, or what comes nearest."""


def guesses(name: str, known: Collection[str]) -> list[str]:
    """Up to three of the known names that `name` may have been meant for, by other libraries' words or by spelling.

    >>> guesses("algo.lr", ["algo.learning_rate", "algo.lambda"])
    ['algo.learning_rate']
    """
    import difflib

    before, dot, last = name.rpartition(".")
    given = [f"{before}{dot}{word}" for word in OTHER_WORDS.get(last.lower(), ())]
    if len(name) > LONGEST_NAME:  # it is like none, and to compare it takes a minute
        return []
    return [word for word in given if word in known] or difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)


def nearest(name: str, known: Collection[str]) -> str:
    """A clause naming the known names nearest to `name`, for error messages.

    >>> nearest("iq", ["iql", "bc"])
    "did you mean 'iql'? Known: bc, iql"
    >>> nearest("iq", [])
    'there is none to choose from'
    >>> nearest("sac", ["iql", "bc"])
    'choose from bc, iql'
    """
    names = sorted(known)
    if not names:
        return "there is none to choose from"
    close = guesses(name, names)
    listed = ", ".join(names[:30]) + (", ..." if len(names) > 30 else "")
    return f"did you mean {' or '.join(repr(c) for c in close)}? Known: {listed}" if close else f"choose from {listed}"
