"""What is trained of language models, from NAME=value words: the plan of a run, and reward models."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.files import write_json
from surefoot.core.base.options import Options, option, respelled
from surefoot.llm import TrainConfig, load_policy, method
from surefoot.llm.feedback import Demonstration, Pair, read_feedback
from surefoot.llm.losses.method import Method
from surefoot.llm.own_rewards import WITHOUT
from surefoot.llm.reward_models import Kind, RewardModel, RewardTraining, accuracy, train_reward_model
from surefoot.runs.folders import claim_new
from surefoot.runs.plan import seeds_of

Progress = Callable[[dict[str, Any]], None]
First = TypeVar("First")
Second = TypeVar("Second")
TELLING_NOTHING = ("steps", "seed", "checkpoint_every", "evaluate_every", "samples", "keep_best")
"""Settings of the loop that a run is not named after."""
TOLD = (
    *("reward_shares", "gate", "rule", "corrupt", "judge_learning_rate", "critic", "write", "environment"),
    *("temperature", "dtype", "lora", "lora_alpha", "lora_targets"),
)
"""Settings beside the loop's that it is."""


@dataclasses.dataclass(frozen=True)
class Plan(Options):
    """Everything that decides a run."""

    owner = ""
    model: str = option("", "folder of a model, as save_pretrained writes it; its config.json: begin at random weights")
    prompts: str = option("", ".jsonl, each line {'prompt': text or messages, more columns for the reward}")
    reward: str = option(
        "", "module:function, by TRL's convention, or the folder of a reward model; several with commas"
    )
    reward_shares: str = option("", "weights of several rewards, with commas between; without it each is 1")
    rule: str = option("", "module:function; reward= is then a reward model that is trained beside the policy (Cooper)")
    corrupt: str = option(
        "", "module:function that makes wrong answers of right ones, for the reward model to tell apart"
    )
    judge_learning_rate: float = option(1e-5, "learning rate of that reward model")
    gate: str = option(
        "", "of several rewards: the others count where the first is this or more (G-RA); without it always"
    )
    environment: str = option("", "module:function that replies between the turns of an answer, with turns")
    write: str = option("", "module:function that makes new problems of weak prompts, with weak_share")
    critic: str = option(
        "", "folder of a reward model, as which the critic of method=ppo begins; else a copy of the model"
    )
    held_out: str = option("", ".jsonl of prompts to evaluate on; none without it")
    method: str = option("grpo", "method; `surefoot llm methods` lists them")
    seeds: tuple[int, ...] = option(
        (0,), "seeds of all random numbers, each a training of its own: 3 for 0, 1 and 2, or [0,5]"
    )
    temperature: float = option(1.0, "temperature of sampling")
    device: str = option("cpu", "device: cpu or cuda")
    dtype: str = option("float32", "number type: float32 or bfloat16")
    lora: int = option(0, "rank of adapters, which alone are trained (extra `lora`); 0 for the whole model")
    lora_alpha: float = option(0.0, "scale of the adapters; 0 for twice their rank")
    lora_targets: str = option("all-linear", "layers that get an adapter, with commas between")
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # method.NAME=value
    loop: TrainConfig = dataclasses.field(default_factory=TrainConfig)

    def to_json(self) -> dict[str, Any]:
        """Plain values, what names of runs may tell under `config`: settings of the loop, changes as method.NAME."""
        value = dataclasses.asdict(self)
        loop, changes = value.pop("loop"), value.pop("changes")
        first = {name: value.pop(name) for name in ("method", "prompts", "reward", "seeds")}
        del loop["seed"]
        config = value | loop | {f"method.{name}": setting for name, setting in changes.items()}
        return {**first, "seeds": list(self.seeds), "steps": config.pop("steps"), "config": config}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """What `to_json` gave.

        Raises:
            ConfigError: something is missing, unknown, or out of its range.
        """
        given = {name: value[name] for name in ("method", "prompts", "reward")} | value["config"]
        changes = {name: given.pop(name) for name in list(given) if name.startswith("method.")}
        fields = {field.name: field for kind in (cls, TrainConfig) for field in dataclasses.fields(kind)}
        for name, one in given.items():
            kind = type(getattr(fields.get(name), "default", None))
            if kind not in (str, int, float, bool) or not (type(one) is kind or (kind is float and type(one) is int)):
                raise ConfigError(f"plan: {name} is {one!r}, which is no setting, or not of its kind")
        own = {name: given.pop(name) for name in list(given) if hasattr(cls, name)}
        loop = TrainConfig(steps=value["steps"], **given)
        short = {name.removeprefix("method."): setting for name, setting in changes.items()}
        return cls(**own, seeds=seeds_of(value["seeds"]), changes=short, loop=loop)

    @property
    def reported(self) -> dict[str, Any]:
        """Settings that differ from the defaults, by which tables and pages name the run."""
        fields = [field for field in dataclasses.fields(TrainConfig) if field.name not in TELLING_NOTHING]
        loop = {f.name: v for f in fields if (v := getattr(self.loop, f.name)) != f.default}
        own = {
            f.name: v for f in dataclasses.fields(self) if f.name in TOLD and (v := getattr(self, f.name)) != f.default
        }
        return own | loop | {f"method.{name}": setting for name, setting in self.changes.items()}


def plan(words: Mapping[str, str]) -> tuple[Plan, str | None]:
    """A plan from NAME=value words, and the folder of `out`.

    Raises:
        ConfigError: an unknown name, a value of another kind, or one of model, prompts and reward is missing.
    """
    first, second, changes = _parted(words)
    own_reward = method(first.get("method", "grpo"), **changes).reads in WITHOUT
    for name in ("model", "prompts", *(() if own_reward else ("reward",))):
        if not first.get(name):
            raise ConfigError(f"{name}= is missing; `surefoot llm train --help` says what it takes")
    for name in ("model", "prompts", "critic", "held_out"):
        if first.get(name):
            first[name] = str(pathlib.Path(first[name]).expanduser().resolve())
    if bool(first.get("rule")) != bool(first.get("corrupt")):
        raise ConfigError("rule= and corrupt= go together: what is right, and what makes wrong answers of right ones")
    _check_rewards(first)
    made = Plan(**first, changes=changes, loop=TrainConfig(**second))
    method(made.method, **changes)
    return made, words.get("out")


def _parted(words: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Settings of the plan, of its loop and of its method, read as the types of their fields."""
    own = {field.name: field for field in dataclasses.fields(Plan) if field.name not in ("changes", "loop")}
    loop = {field.name: field for field in dataclasses.fields(TrainConfig) if field.name != "seed"}
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
        elif name == "seeds":
            first[name] = _seeds(text)
        elif name == "seed":
            if "seeds" in words:
                raise ConfigError(f"seed={text} and seeds={words['seeds']}: give one of them; seed=5 is seeds=[5]")
            first["seeds"] = _seeds(f"[{text}]")
        elif name in own:
            first[name] = _value(name, text, str(own[name].type))
        elif name in loop:
            second[name] = _value(name, text, str(loop[name].type))
        else:
            known = [*own, *loop, "seed", "out", *(f"method.{setting}" for setting in settings)]
            raise ConfigError(f"unknown setting {name!r}: {nearest(name, known)}")
    return first, second, changes


def _check_rewards(first: dict[str, Any]) -> None:
    """Make folders of rewards absolute, and refuse shares and a gate that don't fit their number."""
    if first.get("reward"):
        first["reward"] = ",".join(
            str(pathlib.Path(name).expanduser().resolve()) if is_folder(name) else name
            for name in rewards_of(first["reward"])
        )
    shares_of(first.get("reward", ""), first.get("reward_shares", ""))
    if first.get("gate"):
        _value("gate", first["gate"], "float")
        if len(rewards_of(first.get("reward", ""))) < 2:
            raise ConfigError(f"gate={first['gate']} is for several rewards, of which the first opens it: reward=a:b,c")


def is_folder(name: str) -> bool:
    """Whether a reward's name is the folder of a reward model."""
    return (pathlib.Path(name).expanduser() / "config.json").is_file()


def rewards_of(text: str) -> list[str]:
    """Names of rewards, with commas between; a folder whose name has commas is one."""
    return [text] if is_folder(text) else [name.strip() for name in text.split(",")]


def shares_of(rewards: str, shares: str) -> list[float]:
    """The weight of each reward.

    Raises:
        ConfigError: there are not as many, or one is no finite number.
    """
    names = rewards_of(rewards)
    if not shares:
        return [1.0] * len(names)
    found = [_value("reward_shares", text, "float") for text in shares.split(",")]
    if len(found) != len(names):
        raise ConfigError(f"reward_shares={shares} has {len(found)} weights, and reward={rewards} names {len(names)}")
    return found


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return seeds_of(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"seeds={text}: give a count, as in seeds=3, or numbers, as in seeds=[0,5]") from error


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
class RewardPlan(Options):
    """Everything that decides a reward model."""

    owner = ""
    model: str = option("", "folder of a model, as transformers' save_pretrained writes it")
    data: str = option(
        "", ".jsonl; lines of prompt, chosen and rejected, or of prompt, completions (its steps) and labels"
    )
    out: str = option("", "folder for the reward model, which reward= takes")
    separator: str = option("\n", "text that ends each step of an answer; in a shell, separator=$'\\n' is a line's end")
    device: str = option("cpu", "device: cpu or cuda")
    dtype: str = option("float32", "number type of the weights: float32 or bfloat16")


def from_words(words: Mapping[str, str], what: type[First], how: type[Second], command: str) -> tuple[First, Second]:
    """Two dataclasses from NAME=value words: what is trained on which data to which folder, and how.

    Raises:
        ConfigError: an unknown name or value, or one of model, data and out is missing.
    """
    kinds: tuple[Any, Any] = what, how
    own, loop = ({field.name: field for field in dataclasses.fields(kind)} for kind in kinds)
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    for name, text in respelled(words, {*own, *loop}).items():
        if name not in own and name not in loop:
            raise ConfigError(f"unknown setting {name!r}: {nearest(name, [*own, *loop])}")
        (first if name in own else second)[name] = _value(name, text, str((own | loop)[name].type))
    for name in ("model", "data", "out"):
        if not first.get(name):
            raise ConfigError(f"{name}= is missing; `surefoot llm {command} --help` says what it takes")
    return what(**first), how(**second)


def train_reward(words: Mapping[str, str], progress: Progress | None = None) -> dict[str, Any]:
    """Train a reward model on pairs or labelled steps by NAME=value words; the last tenth of the lines is held out.

    Returns:
        Its folder, kind, numbers of lines, and share of held-out pairs (steps) that it tells right.

    Raises:
        ConfigError: an unknown name or value, or one of model, data and out is missing.
    """
    made, training = from_words(words, RewardPlan, RewardTraining, "reward")
    data: list[Any] = [*read_feedback(made.data)]
    if isinstance(data[0], Demonstration):
        raise ConfigError(f"{made.data}: has answers that nothing tells the worth of, which `surefoot llm sft` learns")
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
