"""Rewards by term: what a reward is made of, where an environment's `info` says so, summed over episodes.

A term is an entry of a step's info with one number a row whose name begins with `reward_` or `reward/`, as gymnasium's
MuJoCo tasks have `reward_forward` and `reward_ctrl` and MuJoCo Playground `reward/tracking`; or an entry of a dict
`info["reward_terms"]`, by its own name, which is how an environment of one's own declares them. Isaac Lab sums up
itself: `info["episode_reward_terms"]` has what it logs of the rows that ended with the step, one number a term.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.envs.interface import Numbers

PREFIXES = ("reward_", "reward/")
DECLARED = "reward_terms"
"""Entry of an info: name -> (N,) numbers."""
SUMMED = "episode_reward_terms"
"""Entry of an info: name -> the mean over the rows that ended with the step; of no meaning where none did."""
STEM = "reward/"
"""Before a term's name in metrics."""


def reward_terms(info: Mapping[str, Any], rows: int) -> dict[str, Numbers]:
    """Name -> (N,) what each term of the reward was in this step; empty where the info says nothing of terms.

    Args:
        info: of a step of all rows.
        rows: N; entries of another shape are no terms.
    """
    from surefoot.envs.interface import is_numeric  # imports torch, for which `import surefoot` does not wait

    found: dict[str, Numbers] = {}
    for key, value in info.items():
        if not key.startswith("reward"):
            continue
        if key == DECLARED and isinstance(value, Mapping):
            terms = {name: one for name, one in value.items() if not name.startswith("_")}  # gymnasium's masks
        elif key.startswith(PREFIXES):
            terms = {key[len(STEM) :]: value}
        else:
            continue
        found |= {name: one for name, one in terms.items() if is_numeric(one) and tuple(one.shape) == (rows,)}
    return found


def flat(info: Mapping[str, Any]) -> dict[str, Any]:
    """The info of one environment with each declared term as an entry `reward/TERM` of its own."""
    declared = info.get(DECLARED)
    if not isinstance(declared, Mapping):
        return dict(info)
    others = {key: value for key, value in info.items() if key != DECLARED}
    return others | {f"{STEM}{name}": value for name, value in declared.items()}


def extras_terms(extras: Any) -> dict[str, Any]:
    """Of a simulator's extras or metrics, what tells terms of the reward, by the same names."""
    if not isinstance(extras, Mapping):
        return {}
    return {key: value for key, value in extras.items() if key == DECLARED or key.startswith(PREFIXES)}
