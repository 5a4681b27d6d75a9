"""A run: the loop, its lines, its checkpoints and, at the end, its model."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.files import written_aside
from surefoot.llm.curriculum import Write
from surefoot.llm.evaluate import evaluate, warn_unreached
from surefoot.llm.loop import Loop, TrainConfig
from surefoot.llm.losses.method import Method
from surefoot.llm.policy import LMPolicy
from surefoot.llm.prompts import Prompt
from surefoot.llm.reward_models import RewardModel
from surefoot.llm.rewards import RewardFunction
from surefoot.llm.supervised import CHECKPOINT, METRICS, Stopped, metrics_until
from surefoot.llm.turns import Environment

MODEL, BEST = "model", "best"


def train(
    policy: LMPolicy,
    prompts: Sequence[Prompt],
    reward: RewardFunction | None,
    method: Method,
    config: TrainConfig,
    folder: str | os.PathLike[str] | None = None,
    *,
    critic: RewardModel | None = None,
    write: Write | None = None,
    environment: Environment | None = None,
    held_out: Sequence[Prompt] | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any]]:
    """Train a policy in place; resumes where `folder` holds a checkpoint of the same run (`Loop.settings`).

    Args:
        policy: is changed.
        prompts: to learn from.
        reward: by TRL's convention (`llm.rewards`); None for a method whose own reward is enough. One with a `rule`,
            as `Cooper`, is evaluated by that.
        method: from `llm.methods.method`.
        config: of the loop.
        folder: for metrics.jsonl, checkpoint.safetensors and, at the end, the model; None keeps nothing. With
            `held_out` also best/, the model of the evaluation with the highest pass@1, unless none was better than the
            model before training.
        critic: what the critic of `method.advantages=gae` begins as, and is trained; None for a copy of the policy.
        write: makes new problems of weak prompts (`llm.curriculum`), with `config.weak_share`.
        environment: replies between the turns of an answer (`llm.turns`), with `config.turns`.
        held_out: prompts to evaluate on, at the beginning, every `evaluate_every` steps and at the end.
        progress: called with each line of the metrics.
        stopping: asked after each step; once it is true the state is kept, and training ends.

    Returns:
        The lines of the metrics.

    Raises:
        CheckpointError: the checkpoint in `folder` is damaged, or of another run; names the setting that differs.
        ConfigError: a prompt that is too long, or what `Loop` refuses; or `held_out` without a reward.
        DataError: the reward function raised, or gave what is no finite number.
        DivergenceError: a loss stopped being finite.
        Stopped: it was asked to stop.
    """
    if held_out is not None and reward is None:
        raise ConfigError("held_out needs a reward that tells right answers: give reward=, as my_rewards:exact")
    loop = Loop(policy, prompts, reward, method, config, critic, write, environment)
    path = None if folder is None else pathlib.Path(folder)
    lines: list[dict[str, Any]] = []
    if path is not None and (path / CHECKPOINT).is_file():
        loop.load(path / CHECKPOINT)
        lines = metrics_until(path / METRICS, loop.step)

    def note(line: dict[str, Any]) -> None:
        lines.append(line)
        if progress is not None:
            progress(line)

    def keep_state() -> None:
        if path is not None:
            with written_aside(path / METRICS) as aside:
                aside.write_text("".join(json.dumps(line) + "\n" for line in lines))
            loop.save(path / CHECKPOINT)

    def examine() -> bool:
        """Note an evaluation; whether it is the best and was kept."""
        if held_out is not None and reward is not None:
            found = evaluate(
                policy,
                held_out,
                getattr(reward, "rule", reward),
                new=config.max_new_tokens,
                samples=config.samples,
                solved=config.solved,
                seed=config.seed,
                at_once=config.rows_at_once,
                turns=loop.turns,
            )
            if loop.step in (0, config.steps):
                warn_unreached(found, config.solved)
            before = best(lines)
            note({"step": loop.step, "evaluation": found.to_json(), "each": dict(found.each)})
            if before is not None and found.pass_1[0] > before[1] and config.keep_best and path is not None:
                _save_model(policy, path, BEST)
                return True
        return False

    if not lines:
        examine()
    while loop.step < config.steps:
        note({"step": loop.step + 1, **loop.advance()})
        improved = (loop.step % config.evaluate_every == 0 or loop.step == config.steps) and examine()
        stop = stopping() and loop.step < config.steps
        if loop.step % config.checkpoint_every == 0 or loop.step == config.steps or stop or improved:
            keep_state()
        if stop:
            raise Stopped(f"stopped after step {loop.step} of {config.steps}")
    if path is not None:
        _save_model(policy, path, MODEL)
    return lines


def best(lines: Sequence[Mapping[str, Any]]) -> tuple[int, float] | None:
    """Step and pass@1 of the best evaluation, the first of those that are equal; None where there is none."""
    found = [(line["step"], line["evaluation"]["pass_1"][0]) for line in lines if "evaluation" in line]
    return max(found, key=lambda one: one[1], default=None)


def _save_model(policy: LMPolicy, folder: pathlib.Path, name: str) -> None:
    """Written aside, then in place of the one that is there."""
    aside = folder / f".{name}"
    shutil.rmtree(aside, ignore_errors=True)
    policy.save(aside)
    shutil.rmtree(folder / name, ignore_errors=True)
    aside.rename(folder / name)
