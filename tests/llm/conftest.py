"""Tests of language models need transformers, the extra `llm`."""

import importlib.util

collect_ignore = (
    []
    if importlib.util.find_spec("transformers")
    else [
        "test_policy.py",
        "test_train.py",
        "test_supervised.py",
        "test_curriculum.py",
        "test_several_rewards.py",
        "test_optimizers.py",
        "test_runs.py",
        "test_conformance.py",
        "test_reward_models.py",
        "test_adapters.py",
        "test_tasks.py",
        "test_team.py",
        "test_steps_and_nucleus.py",
        "test_token_critic.py",
        "test_turns.py",
        "test_demonstrations.py",
    ]
)
