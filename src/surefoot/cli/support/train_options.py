"""The options of `surefoot train`, for its parser and its help."""

from __future__ import annotations

from typing import Any

_FLAG: dict[str, Any] = {"action": "store_true"}
OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
    (
        ("-m", "--multirun"),
        _FLAG,
        "a list of values trains once for each: -m algo=bc,iql seeds=5; hydra/launcher=joblib: side by side",
    ),
    (
        ("--resume",),
        {"metavar": "RUN"},
        "continue a run that was interrupted; with steps=MORE also one that is complete",
    ),
    (
        ("--skip-failing",),
        _FLAG,
        "of -m: give up combinations that can't be trained, and train the others; the exit code is 2",
    ),
    (
        ("--config",),
        {"metavar": "FILE"},
        "a YAML file with the same names and values (algo: iql, steps: 20000); what is typed here wins",
    ),
    (("--config-dir",), {"metavar": "F"}, "a folder of presets of your own, NAME.yaml each, for preset=NAME"),
    (
        ("--trust",),
        _FLAG,
        "execute modules outside of surefoot and gymnasium that a run or dataset names (SECURITY.md)",
    ),
    (("-q", "--quiet"), _FLAG, "no progress, only the result"),
    (("--json",), _FLAG, "the result as JSON"),
)
"""Names, how argparse reads them, and what `--help` says of them."""
