"""The policy gradient that control, flows and language models share: ratios, surrogates, divergences, coefficients.

A unit is what has one log-probability in a ratio: an environment step, a denoising step, a token. Every function takes
tensors and a mask, and gives terms per unit; `core.losses.masked.reduce` makes a loss of them. Three policies may
differ: the one that is trained (`log_prob`), the one that the ratio is taken to (`proximal_log_prob`) and the one that
acted (`behaviour_log_prob`). PPO's last two are the same.

An update is four arguments: advantages, ratios (`ratios`), a surrogate (`surrogates`) and a reduction
(`core.losses.masked`). What only language models use of them (advantages in groups, rewards that are shaped, masks of
tokens, regressions) is in `surefoot.llm.losses`. docs/policy_gradient.md shows them together.
"""

from surefoot.core.losses.policy_gradient.coefficients import (
    adaptive_entropy,
    adaptive_kl,
    adaptive_lr,
    annealed_noise,
    kl_stop,
)
from surefoot.core.losses.policy_gradient.divergences import (
    kl_k1,
    kl_k2,
    kl_k3,
    kl_k3_straight,
    kl_k3_weighted,
)
from surefoot.core.losses.policy_gradient.ratios import (
    LARGEST_LOG_RATIO,
    LEVELS,
    behaviour_accepts,
    behaviour_weight,
    log_ratio,
    message_log_ratio,
    ratio,
    ratio_metrics,
    sequence_log_ratio_of_units,
    weight_metrics,
)
from surefoot.core.losses.policy_gradient.surrogates import (
    cispo_surrogate,
    clip_surrogate,
    reinforce_surrogate,
    sapo_surrogate,
    spo_surrogate,
    stage_clip,
    stage_weights,
    vespo_surrogate,
    vespo_weight,
)

__all__ = [
    "LARGEST_LOG_RATIO",
    "LEVELS",
    "adaptive_entropy",
    "adaptive_kl",
    "adaptive_lr",
    "annealed_noise",
    "behaviour_accepts",
    "behaviour_weight",
    "cispo_surrogate",
    "clip_surrogate",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_k3_straight",
    "kl_k3_weighted",
    "kl_stop",
    "log_ratio",
    "message_log_ratio",
    "ratio",
    "ratio_metrics",
    "reinforce_surrogate",
    "sapo_surrogate",
    "sequence_log_ratio_of_units",
    "spo_surrogate",
    "stage_clip",
    "stage_weights",
    "vespo_surrogate",
    "vespo_weight",
    "weight_metrics",
]
