"""Pairs with the authors' zero-shot agents."""

from __future__ import annotations

from typing import Any

from pairs.goals import MAZE
from pairs.pair import Pair

JEEN = ("enjeeneer/zero-shot-rl", "2280cdf8fd8a5ccd51593ce9e6e06d27636c5a44", "paired_zero_shot.py", "corl")
HILP = ("seohongpark/HILP", "be2431bbb75e3b13cbdb1dec11776c42ef0f1593", "paired_zero_shot.py", "corl")
SMALL: dict[str, Any] = {"hidden": (64, 64), "width": 32, "latent": 16}
LEFT = {
    "rows": "the authors' loaders read ExORL's files alone; both codes are given the file's rows",
    "acting": "the kit hands policies no tasks",
    "curves": "the kit hands policies no tasks",
}


WHITENED = {
    "steps": "compared with tasks that are all uniform on the sphere; for those of states the authors' code whitens "
    "features by the pseudo-inverse of the batch's second moment, ours by the inverse of a running one, which does not "
    "hang on rounding where features are next to dependent"
}
LAGS = {
    "steps": "the penalty's weight in the loss is that of the step before, in the authors' code that after a step on "
    "the same batch: at most one step of Adam apart"
}
CONSERVATIVE = ("penalty_weight",)


def of_maps(algorithm: str, *more: str, causes: dict[str, str] | None = None) -> Pair:
    """FB, or a conservative variant."""
    networks = ("actor", "forward_map", "backward_map", "target_forward_map", "target_backward_map", *more)
    options = {**SMALL, "backward_hidden": (64, 64, 64)}
    return Pair(algorithm, options, *JEEN, *MAZE, networks=networks, noise="by_row", causes=causes or {}, left_out=LEFT)


PAIRS: dict[str, Pair] = {
    "fb": of_maps("fb"),
    "vc_fb": of_maps("vc_fb", *CONSERVATIVE, causes=LAGS),
    "mc_fb": of_maps("mc_fb", *CONSERVATIVE, causes=LAGS),
    "hilp": Pair(
        "hilp",
        {**SMALL, "hidden": (64,), "feature_hidden": (64, 64)},
        *HILP,
        *MAZE,
        networks=("actor", "features_of", "target_features_of", "successor", "target_successor"),
        silent={"task_share": 0.0},
        noise="by_row",
        causes=WHITENED,
        left_out=LEFT,
    ),
}
