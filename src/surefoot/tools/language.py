"""Runs of language models: their plan, their folder, and how one goes on.

config.json            the plan
environment.json       versions, machine, git commit, command
metrics.jsonl          a line for each step and each evaluation
checkpoint.safetensors the state that `--resume` goes on from
model/                 at the end: model and tokenizer, as transformers writes them
result.json            at the end: the last evaluation
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from surefoot.core.errors import CheckpointError, ConfigError, nearest
from surefoot.core.files import read_json, write_json
from surefoot.core.schema import Plain, Table
from surefoot.experiment import trust
from surefoot.experiment.folders import Claim, claim_begun, claim_named, claim_new
from surefoot.experiment.run import describe_machine
from surefoot.llm import TrainConfig, load_policy, load_reward, method, read_prompts, train
from surefoot.llm.adapters import with_lora
from surefoot.llm.feedback import Pair, read_feedback
from surefoot.llm.losses import Method
from surefoot.llm.reward_models import Kind, RewardModel, RewardTraining, accuracy, train_reward_model

Progress = Callable[[dict[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that decides a run."""

    model: str = ""  # folder of a model, as transformers' save_pretrained writes it
    prompts: str = ""  # .jsonl, each line {"prompt": text or messages, more columns for the reward}
    reward: str = ""  # module:function, by TRL's convention, or the folder of a reward model
    held_out: str = ""  # .jsonl of prompts to evaluate on; none without it
    method: str = "grpo"  # `surefoot llm methods` lists them
    temperature: float = 1.0  # of sampling
    device: str = "cpu"  # or cuda
    dtype: str = "float32"  # or bfloat16
    lora: int = 0  # rank of adapters, which alone are trained (extra `lora`); 0 for the whole model
    lora_alpha: float = 0.0  # scale of the adapters; 0 for twice their rank
    lora_targets: str = "all-linear"  # layers that get one, with commas between
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # method.NAME=value
    loop: TrainConfig = dataclasses.field(default_factory=TrainConfig)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def plan(words: Mapping[str, str]) -> tuple[Plan, str | None]:
    """A plan from NAME=value words, and the folder of `out`.

    Raises:
        ConfigError: an unknown name, a value of another kind, or one of model, prompts and reward is missing.
    """
    own = {field.name: field for field in dataclasses.fields(Plan) if field.name not in ("changes", "loop")}
    loop = {field.name: field for field in dataclasses.fields(TrainConfig)}
    settings = {field.name: field for field in dataclasses.fields(Method) if field.name not in ("title", "source")}
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for name, text in words.items():
        if name == "out":
            continue
        if name.startswith("method.") and name.removeprefix("method.") in settings:
            short = name.removeprefix("method.")
            changes[short] = _value(name, text, str(settings[short].type))
        elif name in own:
            first[name] = _value(name, text, str(own[name].type))
        elif name in loop:
            second[name] = _value(name, text, str(loop[name].type))
        else:
            known = [*own, *loop, "out", *(f"method.{setting}" for setting in settings)]
            raise ConfigError(f"unknown setting {name!r}: {nearest(name, known)}")
    for name in ("model", "prompts", "reward"):
        if not first.get(name):
            raise ConfigError(f"{name}= is missing; `surefoot llm train --help` says what it takes")
    for name in ("model", "prompts", "held_out"):
        if first.get(name):
            first[name] = str(pathlib.Path(first[name]).expanduser().resolve())
    if (pathlib.Path(first["reward"]).expanduser() / "config.json").is_file():
        first["reward"] = str(pathlib.Path(first["reward"]).expanduser().resolve())
    made = Plan(**first, changes=changes, loop=TrainConfig(**second))
    method(made.method, **changes)
    return made, words.get("out")


def _value(name: str, text: str, kind: str) -> Any:
    if kind == "str":
        return text
    if kind == "bool":
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ConfigError(f"{name}={text!r} must be true or false")
    try:
        number = float(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text!r} must be a number") from error
    if not math.isfinite(number) or (kind == "int" and not number.is_integer()):
        raise ConfigError(f"{name}={text!r} must be {'a whole' if kind == 'int' else 'a finite'} number")
    return int(number) if kind == "int" else number


@dataclasses.dataclass(frozen=True)
class RewardPlan:
    """Everything that decides a reward model."""

    model: str = ""  # folder of a model, as transformers' save_pretrained writes it
    data: str = ""  # .jsonl; lines of prompt, chosen and rejected, or of prompt, completions (its steps) and labels
    out: str = ""  # folder for the reward model, which reward= takes
    separator: str = "\n"  # that ends each step of an answer; in a shell, separator=$'\n' is a line's end
    device: str = "cpu"  # or cuda
    dtype: str = "float32"  # of the weights


def train_reward(words: Mapping[str, str], progress: Progress | None = None) -> dict[str, Any]:
    """Train a reward model on pairs or labelled steps by NAME=value words; the last tenth of the lines is held out.

    Returns:
        Its folder, kind, numbers of lines, and share of held-out pairs (steps) that it tells right.

    Raises:
        ConfigError: an unknown name or value, or one of model, data and out is missing.
    """
    own = {field.name: field for field in dataclasses.fields(RewardPlan)}
    loop = {field.name: field for field in dataclasses.fields(RewardTraining)}
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    for name, text in words.items():
        if name not in own and name not in loop:
            raise ConfigError(f"unknown setting {name!r}: {nearest(name, [*own, *loop])}")
        (first if name in own else second)[name] = _value(name, text, str((own | loop)[name].type))
    for name in ("model", "data", "out"):
        if not first.get(name):
            raise ConfigError(f"{name}= is missing; `surefoot llm reward --help` says what it takes")
    made, training = RewardPlan(**first), RewardTraining(**second)
    data: list[Any] = [*read_feedback(made.data)]
    held = data[len(data) - len(data) // 10 :]
    if not held:
        raise ConfigError(f"{made.data}: has {len(data)} lines; ten or more are needed, so that some can be held out")
    kind: Kind = "pairs" if isinstance(data[0], Pair) else "steps"
    with claim_new(made.out) as claim:
        policy = load_policy(made.model, device=made.device, dtype=made.dtype, seed=training.seed)
        model = RewardModel(policy, kind, made.separator)
        last = train_reward_model(model, data[: len(data) - len(held)], training, progress)
        right, count = accuracy(model, held)
        model.save(claim.folder)
        facts = {"folder": str(claim.folder), "kind": kind, "trained": len(data) - len(held), **last}
        facts |= {"held_out": len(held), "held_out_accuracy": right, "held_out_compared": count}
        write_json(claim.folder / "training.json", facts | {"training": dataclasses.asdict(training)})
    return facts


def begin(made: Plan, out: str | None, progress: Progress | None = None) -> pathlib.Path:
    """Train in a new folder; gives the folder."""
    trust.allow(made.reward)
    with claim_named("llm") if out is None else claim_new(out) as claim:
        return _train(made, claim, progress, new=True)


def resume(folder: str | os.PathLike[str], trusted: bool = False, progress: Progress | None = None) -> pathlib.Path:
    """Go on with a run that was interrupted.

    Raises:
        CheckpointError: the folder is not a run of this kind.
        ConfigError: its reward's module would be executed, and is not trusted.
    """
    path = pathlib.Path(folder)
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path}: not a run folder (there is no config.json in it)")
    value = read_json(path / "config.json", Table(Plain()))
    try:
        loop, given = TrainConfig(**value.pop("loop")), dict(value)
        made = Plan(**given, loop=loop)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}/config.json: not of a run of a language model ({error})") from error
    trust.demand(made.reward, path / "config.json", trusted)
    with claim_begun(path) as claim:
        return _train(made, claim, progress, new=False)


def _train(made: Plan, claim: Claim, progress: Progress | None, new: bool) -> pathlib.Path:
    folder = claim.folder
    reward, prompts = load_reward(made.reward, made.device), read_prompts(made.prompts)
    held_out = read_prompts(made.held_out) if made.held_out else None
    policy = load_policy(made.model, made.temperature, made.device, made.dtype, made.loop.seed)
    if made.lora:
        policy = with_lora(policy, made.lora, made.lora_alpha, made.lora_targets, made.loop.seed)
    if new:
        write_json(folder / "environment.json", describe_machine())
        write_json(folder / "config.json", made.to_json())
    chosen = method(made.method, **made.changes)
    try:
        lines = train(policy, prompts, reward, chosen, made.loop, folder, held_out=held_out, progress=progress)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"interrupted; surefoot llm train --resume {shlex.quote(str(folder))} goes on from its last checkpoint"
        ) from error
    write_json(folder / "result.json", result(lines))
    return folder


def result(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """First and last evaluation, and the mean reward of the first and the last ten steps."""
    evaluations = [line for line in lines if "evaluation" in line]
    rewards = [line["reward"] for line in lines if "reward" in line]
    return {
        "steps": max((line["step"] for line in lines), default=0),
        "reward_first_10": sum(rewards[:10]) / max(1, len(rewards[:10])),
        "reward_last_10": sum(rewards[-10:]) / max(1, len(rewards[-10:])),
        "before": evaluations[0]["evaluation"] if evaluations else None,
        "after": evaluations[-1]["evaluation"] if evaluations else None,
    }
