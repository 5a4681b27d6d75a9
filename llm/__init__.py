"""Post-training of language models: one consumer of the policy-gradient functions in `surefoot.core`.

`surefoot.llm` itself imports no transformers: the extra `llm` is asked for where a model is read. docs/llm.md.
"""

from surefoot.llm.evaluate import Report, evaluate, pass_at
from surefoot.llm.loop import Loop, TrainConfig
from surefoot.llm.losses.method import Batch, Method
from surefoot.llm.methods import METHODS, method
from surefoot.llm.policy import LMPolicy, Rollout, load_policy
from surefoot.llm.prompts import Prompt, read_prompts
from surefoot.llm.reward_models import load_reward
from surefoot.llm.rewards import scores
from surefoot.llm.train import train

__all__ = [
    "METHODS",
    "Batch",
    "LMPolicy",
    "Loop",
    "Method",
    "Prompt",
    "Report",
    "Rollout",
    "TrainConfig",
    "evaluate",
    "load_policy",
    "load_reward",
    "method",
    "pass_at",
    "read_prompts",
    "scores",
    "train",
]
