"""Pairs with authors' codes in PyTorch, each from a repository of its own."""

from __future__ import annotations

from pairs.pair import HOPPER, Pair

KIT = ("yihaosun1124/OfflineRL-Kit", "e3ce69793766d02660217d4dfc0af4693a5531bd", "paired_offlinekit.py", "corl")
MOBILE = ("yihaosun1124/mobile", "4882dce878f0792a337c0a95c27f4abf7e926101", "paired_offlinekit.py", "corl")
SOFT = ("actor", "critic", "target_critic", "temperature")
WIDER = {
    "weights": "the model's layers in PyTorch are 1.14 times as wide, since `trunc_normal_` cuts at 2 and not at two "
    "deviations; ours cuts at two deviations, as the TensorFlow code of MOPO's authors does"
}
LATER = {
    "curves": "compared is SAC's step on the data's rows, neither rollouts nor penalties, which only imagined rows "
    "have; a whole run needs the model's epochs first"
}
PAIRS: dict[str, Pair] = {
    "mopo": Pair(
        "mopo",
        {"real_ratio": 1.0},
        *KIT,
        *HOPPER,
        networks=(*SOFT, "model"),
        noise="zeros",
        part=SOFT,
        causes=WIDER,
        left_out=LATER,
    ),
    "mobile": Pair(
        "mobile",
        {"real_ratio": 1.0, "clamp_targets": True},
        *MOBILE,
        *HOPPER,
        networks=(*SOFT, "model"),
        noise="zeros",
        steps=100,
        part=SOFT,
        causes=WIDER,
        left_out=LATER,
    ),
}
