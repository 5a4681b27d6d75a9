"""Pairs with authors' codes in JAX."""

from __future__ import annotations

from typing import Any

from pairs.pair import CHEETAH, PUZZLE, WHOLE_PUZZLE, Pair

IQL = ("ikostrikov/implicit_q_learning", "09d700248117881a75cb21f0adb95c6c8a694cb2", "paired_iql.py", "paired_jax")
FQL = ("seohongpark/fql", "719d04417cb0b206deddbc7d761b3e710c3d750c", "paired_flow.py", "paired_jax")
QC = ("ColinQiyangLi/qc", "48283b4f662bd1c127ec9fa80647b49759f10653", "paired_flow.py", "paired_jax")
QAM = ("ColinQiyangLi/qam", "f93efd22520a79f6819f458dffe9c075eacc786f", "paired_flow.py", "paired_jax")
RLPD = ("ikostrikov/rlpd", "c90fd4baf28c9c9ef40a81460a2e395092844f88", "paired_rlpd.py", "paired_jax")
WSRL = ("zhouzypaul/wsrl", "891ee353afe5303835da421c60d4ac35f6e2ef10", "paired_wsrl.py", "paired_jax")
SMALL: dict[str, Any] = {"hidden": (64, 64, 64, 64)}
"""Sizes of peers/paired_flow.py; 512 are published."""
BY_ACTING = {"curves": "it learns online, and the kit trains from a file alone"}
FIRST_Q = {
    "curves": "Q keeps the offset of about 1 that the first weights gave it: ten seeds of ours start from -2.2 to 1.3, "
    "with a deviation of 1"
}
WIDE = (512, 512, 512, 512)
CRITICS = ("critic", "target_critic")
AFTER_THE_END = (
    "in those windows the task ends and the recording runs on, unsolved again: the official code adds what it earns "
    "then, ours does not"
)


def in_puzzle(
    algorithm: str, code: tuple[str, str, str, str], options: dict[str, Any], *networks: str, **reported: Any
) -> Pair:
    """A pair on the puzzle's data, whose environment is slow."""
    return Pair(
        algorithm,
        {**SMALL, **options},
        *code,
        *PUZZLE,
        networks=(*networks, *CRITICS),
        acting_episodes=4,
        curve_episodes=2,
        **reported,
    )


PAIRS: dict[str, Pair] = {
    "iql": Pair("iql", {"preset": "official"}, *IQL, *CHEETAH, updates=12_000),
    "fql": in_puzzle("fql", FQL, {"alpha": 300.0}, "velocity", "student", updates=1_800, causes=FIRST_Q),
    "ifql": in_puzzle("ifql", FQL, {}, "velocity", "value"),
    "rebrac": in_puzzle(
        "rebrac", FQL, {"preset": "fql", "actor_penalty": 0.1, "critic_penalty": 0.01}, "actor", "target_actor",
        causes={
            "rows": "at a recording's last step the official code takes the next recording's first action for the next "
            "one; ours takes nothing off there",
            "steps": "one official Adam counts the critics' steps for the actor too, and keeps moving it by its "
            "momentum in the steps between, 1.4 times as far a gradient; with ours given gradients of zero there, "
            "networks differ by 1e-5 after 10 steps",
        },
    ),
    "qc": in_puzzle("qc", QC, {"samples": 8}, "velocity", causes={"rows": AFTER_THE_END}),
    "qc_fql": in_puzzle(
        "qc_fql", QC, {"alpha": 300.0}, "velocity", "student", causes={"rows": AFTER_THE_END, **FIRST_Q}
    ),
    "qam": in_puzzle(
        "qam", QAM, {"chunk": 5}, "velocity", "improved", "average_velocity", causes={"rows": AFTER_THE_END}
    ),
    "qc_fql-published": Pair(
        "qc_fql", {"alpha": 300.0, "hidden": WIDE}, *QC, *WHOLE_PUZZLE,
        settings={"actor_hidden_dims": WIDE, "value_hidden_dims": WIDE}, updates=120_000,
        left_out=dict.fromkeys(("rows", "weights", "steps", "acting"), "as `qc_fql`"),
    ),
    "wsrl": Pair(
        "wsrl",
        {"preset": "wsrl-locomotion", "critics": 1, "subset": 1, "critic_steps": 1},
        *WSRL,
        *CHEETAH,
        {},
        ("actor", "temperature", *CRITICS),
        left_out=BY_ACTING,
        causes={
            "weights": "its last hidden layers begin with orthogonal weights of gain 0.01, ours as the others (one "
            "critic on both sides, since several official ones share their last layer and ours don't)",
            "steps": "a step of some networks hands the others' official Adams gradients of zero, and momentum still "
            "moves them; with those put back where they were, networks differ by 2e-5 after 10 steps",
        },
    ),
    "rlpd": Pair(
        "rlpd", {"critic_steps": 1}, *RLPD, *CHEETAH, {}, ("actor", "temperature", *CRITICS), left_out=BY_ACTING
    ),
}  # fmt: skip
