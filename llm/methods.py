"""Methods by name: the settings that their papers, or the code of their authors, have.

Two methods are called DAPO: `dapo_clip` (decoupled clip and dynamic sampling, 2503.14476) is here; direct advantage
policy optimisation (2412.18279) is offline and stepwise, `llm.losses.regressions.direct_advantage_terms`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.llm.losses.method import Method

_GRPO = Method(
    "GRPO",
    "Shao et al., DeepSeekMath (2402.03300); the KL's coefficient is DeepSeek-R1's, 0.04 in the paper",
    reduction="sequence_mean",
    kl="k3",
    kl_coefficient=0.001,
)
_DAPO = Method("DAPO, decoupled clip", "Yu et al. (2503.14476)", high=0.28, mixed_groups=True, overlong_share=0.2)
_PP = Method("REINFORCE++", "Hu et al. (2501.03262)", advantages="whitened_to_go", kl="reward", kl_coefficient=1e-3)
_PPO = Method(
    "PPO with a token critic",
    "Ouyang et al., InstructGPT (2203.02155), appendix C.4",
    advantages="gae",
    kl="reward",
    kl_coefficient=0.02,
)
_replace = dataclasses.replace

METHODS: dict[str, Method] = {
    "grpo": _GRPO,
    "dr_grpo": Method("Dr.GRPO", "Liu et al. (2503.20783)", advantages="mean", reduction="fixed_length"),
    "dapo_clip": _DAPO,
    "lite_ppo": Method("Lite PPO", "Liu et al., Tricks or Traps (2508.08221)", advantages="batchstd"),
    "rloo": Method(
        "RLOO",
        "Ahmadian et al. (2402.14740), as TRL's RLOOTrainer",
        advantages="loo",
        ratio="chain",
        reduction="token_sum",
        kl="reward",
        kl_coefficient=0.05,
    ),
    "reinforce_pp": _PP,
    "reinforce_pp_baseline": _replace(_PP, title="REINFORCE++-baseline", advantages="whitened_group_mean"),
    "stable_reinforce": _replace(
        _PP,
        title="StableReinforce",
        source="Zhang et al., R1-Reward (2505.02835)",
        advantages="filtered_to_go",
        log_ratio_bound=6.907755278982137,  # log 1000
    ),
    "loop": Method(
        "LOOP",
        "Chen et al., ml-loop (2502.01600)",
        advantages="loo",
        reduction="sequence_mean",
        low=1 / 6,  # the code clips to [1 / 1.2, 1.2]
    ),
    "gspo": Method(
        "GSPO", "Zheng et al. (2507.18071)", ratio="sequence", reduction="sequence_mean", low=3e-4, high=4e-4
    ),
    "gspo_token": Method(
        "GSPO-token",
        "Zheng et al. (2507.18071), eq. (14)",
        ratio="sequence_of_units",
        reduction="sequence_mean",
        low=3e-4,
        high=4e-4,
    ),
    "luspo": Method("LUSPO", "TRL's luspo", ratio="sequence", reduction="length_weighted", low=2e-3, high=2.5e-3),
    "vespo": Method("VESPO", "Shen et al. (2602.10693)", surrogate="vespo"),
    "cispo": Method("CISPO", "MiniMax-M1 (2506.13585)", surrogate="cispo"),
    "sapo": Method("SAPO", "Gao et al. (2511.20347)", surrogate="sapo", reduction="sequence_mean"),
    "oapl": Method(
        "OAPL", "2602.19362, eqs. (2) and (3)", advantages="none", surrogate="oapl", scale=1e-3, lagged=True
    ),
    "pacs": Method("PACS", "Li et al. (2509.02522)", advantages="none", surrogate="pacs"),
    "raft": Method("RAFT", "Dong et al. (2304.06767)", advantages="best", surrogate="likelihood", units="chosen"),
    "rrhf": Method("RRHF", "Yuan et al. (2304.05302)", advantages="none", surrogate="rrhf"),
    "rwr": Method("RWR", "Peters and Schaal (2007)", advantages="none", surrogate="reward_weighted", temperature=0.5),
    "entropy_tokens": _replace(
        _DAPO, title="80/20, high-entropy tokens", source="Wang et al. (2506.01939)", units="high_entropy"
    ),
    "stapo": _replace(_DAPO, title="STAPO", source="2602.15620", units="spurious", mixed_groups=False),
    "gui_g1": Method(
        "GUI-G1", "Zhou et al. (2505.15810)", advantages="mean", reduction="fixed_length", fixed_length=64
    ),
    "rlpr": Method(
        "RLPR", "Yu et al. (2506.18254)", high=0.27, reads="probability", answer_mark="<answer>", spread=0.5
    ),
    "care": Method(
        "GRPO-CARE",
        "Chen et al. (2506.16141)",
        reduction="sequence_mean",
        reads="consistency",
        answer_mark="<answer>",
    ),
    "dsdr": Method("DSDR", "2602.19895, eqs. (4) to (16)", high=0.28, reads="diversity", diversity_entropy=0.001),
    "urpo": Method("URPO", "2507.17515; the choice's reward is ours", reduction="sequence_mean", reads="choice"),
    "grpo_s": _replace(
        _GRPO, title="GRPO-S", source="DR-IRL (2503.18991), from notes; the encoder is ours", reads="demonstration"
    ),
    "process": _replace(_GRPO, title="GRPO, process supervision", advantages="steps"),
    "brpo": Method("BRPO", "Jia et al., Writing-Zero (2506.00103)", advantages="pairwise"),
    "ppo": _PPO,
    "nlpo": _replace(
        _PPO,
        title="NLPO",
        source="Ramamurthy et al. (2210.01241), and the settings of its code for IMDB",
        nucleus=0.9,
        kl_coefficient=0.1,
        discount=0.99,
        value_clip=0.0,
    ),
    "async_ppo": Method(
        "decoupled PPO",
        "Fu et al., AReaL (2505.24298); the cap, beyond which tokens are masked, is its configurations'",
        weight_cap=5.0,
        drop_above_cap=True,
        lagged=True,
    ),
}
"""Name -> method."""


def method(name: str, **changes: Any) -> Method:
    """A method by its name, with some of its settings changed.

    Raises:
        ConfigError: an unknown name, setting or value.
    """
    if name not in METHODS:
        if name == "dapo":
            raise ConfigError(
                "two methods are called DAPO: dapo_clip is decoupled clip and dynamic sampling (2503.14476)"
            )
        raise ConfigError(f"unknown method {name!r}: {nearest(name, list(METHODS))}")
    fields = {field.name for field in dataclasses.fields(Method)} - {"title", "source"}
    for change in changes:
        if change not in fields:
            raise ConfigError(f"a method has no setting {change!r}: {nearest(change, sorted(fields))}")
    return dataclasses.replace(METHODS[name], **changes)
