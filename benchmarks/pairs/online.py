"""Pairs of algorithms that act while they learn: "rows" is what the collection hands to the update.

cartpole-mixed.hdf5, in `SUREFOOT_PEERS`/files, is made by `python benchmarks/paired_online.py`.
"""

from __future__ import annotations

from pairs.pair import HOPPER, Pair

SB3 = ("DLR-RM/stable-baselines3", "v2.9.2", "paired_sb3.py", "sb3")
PACKAGE = "stable-baselines3==2.9.2"
CRITICS = ("critic", "target_critic")
FIRST = {"initial_steps": 100}
STREAMING = (
    "mohmdelsayed/streaming-drl",
    "407dca7a8b584c1c20bc649053557f66e270b1e6",
    "paired_streaming.py",
    "sb3",
)
LATER = {"curves": "whole runs of SAC, TD3 and PPO beside stable-baselines3 stand in online_curves.md"}
ACTS = {
    "acting": "the official code acts by sampling while it learns, and has no evaluation",
    "curves": "the kit drives no run of samples one by one",
}
ROUNDING = (
    "float32's rounding: ours in float64 differs from ours in float32 by the same 1.5e-03 at the same steps, and for "
    "600 steps all three agree within 5e-07"
)
PAIRS: dict[str, Pair] = {
    "sac": Pair(
        "sac",
        {"preset": "sb3"},
        *SB3,
        *HOPPER,
        networks=("actor", *CRITICS, "temperature"),
        package=PACKAGE,
        noise="zeros",
        collecting=FIRST,
        left_out=LATER,
    ),
    "td3": Pair(
        "td3",
        {"preset": "sb3"},
        *SB3,
        *HOPPER,
        {"target_noise": 0.0},
        networks=("actor", "target_actor", *CRITICS),
        package=PACKAGE,
        collecting=FIRST,
        left_out=LATER,
    ),
    "dqn": Pair(
        "dqn",
        {"double": False, "learning_rate": 1e-4, "target_every": 10_000},
        *SB3,
        "cartpole-mixed",
        "CartPole-v1",
        networks=CRITICS,
        package=PACKAGE,
        collecting={**FIRST, "epsilon_steps": 200, "last_epsilon": 0.04, "target_every": 50},
        causes={
            "rows": "ours lets epsilon fall from the first update on, theirs from the first step, over as many steps: "
            "`initial_steps` later; observations, rewards, masks, updates and the target network's moves are equal"
        },
        left_out={"curves": "several seeds of each on CartPole-v1 are wanted, and the kit takes a file"},
    ),
    "ppo": Pair(
        "ppo",
        {
            "schedule": "constant",
            "value_clip": None,
            "value_coefficient": 1.0,
            "normalize_observations": False,
            "normalize_rewards": False,
        },
        *SB3,
        *HOPPER,
        networks=("actor", "value"),
        package=PACKAGE,
        collecting={"horizon": 128, "minibatches": 4, "epochs": 4},
        left_out=LATER,
    ),
    "stream_ac": Pair(
        "stream_ac",
        {"preset": "official"},
        *STREAMING,
        *HOPPER,
        collecting={},
        causes={"rows": ROUNDING},
        left_out=ACTS,
    ),
    "stream_q": Pair(
        "stream_q", {"preset": "official"}, *STREAMING, "cartpole-mixed", "CartPole-v1", collecting={}, left_out=ACTS
    ),
}
