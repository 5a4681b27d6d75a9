"""Runs of language models: started, continued, summed up, and watched while they train.

A folder of one::

    config.json       the plan
    environment.json  versions, machine, git commit, command
    seeds/K/          of seed K: metrics.jsonl and checkpoint.safetensors, which `--resume` continues from, best/ (the
                      best model on held-out prompts) and at the end model/ (as transformers writes it) and result.json
    metrics.jsonl     a line for each step and evaluation of each seed
    summary.json      shares of right answers with intervals; there when the run is complete
    curves.png        pass@1 along training
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from surefoot.core.base.errors import CheckpointError, ConfigError, DataError
from surefoot.core.base.files import read_json, read_json_lines, write_json, written_aside
from surefoot.core.base.schema import Many, Number, Plain, Record, Table, Text
from surefoot.evaluation import RunData, hierarchical_interval, names, plots
from surefoot.evaluation.label import labelled
from surefoot.evaluation.passes import REWARD, RIGHT, pass_figures
from surefoot.evaluation.runs import CONFIG_FORMAT, METRICS_FORMAT, SUMMARY_FORMAT
from surefoot.language.plan import Plan, Progress, rewards_of, shares_of
from surefoot.llm import load_policy, load_reward, method, read_prompts, train
from surefoot.llm.adapters import with_lora
from surefoot.llm.cooper import Cooper
from surefoot.llm.reward_models import RewardModel, RewardTraining, load_function, load_reward_model
from surefoot.llm.rewards import RewardFunction, Weighted
from surefoot.llm.supervised import Stopped
from surefoot.llm.train import BEST, best
from surefoot.runs import trust
from surefoot.runs.folders import Claim, claim_begun, claim_named, claim_new
from surefoot.runs.loggers import LiveMetrics, read_live
from surefoot.runs.plan import folder_name
from surefoot.runs.processes.stopping import Terminated
from surefoot.runs.run import LANGUAGE, describe_machine

SHARES = ("greedy", "pass_1", "pass_k")
STEPS_OF = "batches of answers"
CONFIG = Record(
    {
        "kind": Text(),
        "plan": Record(
            {
                "method": Text(),
                "prompts": Text(),
                "reward": Text(),
                "seeds": Many(Number(0, whole=True), 1),
                "steps": Number(1, whole=True),
                "config": Table(Plain()),
            }
        ),
    },
    others=True,
    newest=CONFIG_FORMAT,
)
"""What config.json holds."""


def begin(made: Plan, out: str | None, progress: Progress | None = None) -> pathlib.Path:
    """Train all seeds in a new folder; gives the folder."""
    for name in functions_of(made):
        trust.allow(name)
    named = folder_name(made.method, made.prompts)
    with claim_named(named) if out is None else claim_new(out) as claim:
        return _carry_out(made, claim, progress, new=True)


def resume(folder: str | os.PathLike[str], trusted: bool = False, progress: Progress | None = None) -> pathlib.Path:
    """Continue a run that was interrupted: seeds that are done are left as they are.

    Raises:
        CheckpointError: the folder is not a run of this kind.
        ConfigError: its reward is a function, which would be called, and is not trusted.
    """
    path = pathlib.Path(folder)
    made = plan_of(path)
    trust.refuse_links(path, trusted)
    for name in functions_of(made):
        trust.require_trust(name, path / "config.json", trusted)
    with claim_begun(path) as claim:
        return _carry_out(made, claim, progress, new=False)


def functions_of(made: Plan) -> list[trust.FunctionName]:
    """What a plan names that would be called."""
    return [
        trust.FunctionName(name)
        for name in (*rewards_of(made.reward), made.rule, made.corrupt, made.write, made.environment)
        if name
    ]


def reward_of(made: Plan) -> RewardFunction | None:
    """The reward that a plan names; with `rule` a reward model that is trained. None for a method's own alone.

    Raises:
        ConfigError: there is none of that name, or `rule` without a reward model.
    """
    parts = [load_reward(name, made.device) for name in rewards_of(made.reward)] if made.reward else []
    several = len(parts) > 1 or made.reward_shares
    gate = float(made.gate) if made.gate else None
    found = (
        Weighted(parts, shares_of(made.reward, made.reward_shares), gate) if several else parts[0] if parts else None
    )
    if not made.rule:
        return found
    if not isinstance(found, RewardModel):
        raise ConfigError(f"rule={made.rule} trains a reward model, and reward={made.reward} is none: give its folder")
    corrupt: Any = load_function(made.corrupt, "corrupt")
    return Cooper(
        found, load_function(made.rule, "rule"), corrupt, RewardTraining(learning_rate=made.judge_learning_rate)
    )


def plan_of(folder: pathlib.Path) -> Plan:
    """The plan that a run was started with.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder}: not a run folder (there is no config.json in it)")
    if read_json(path, Table(Plain())).get("kind") != LANGUAGE:
        raise CheckpointError(f"{path}: not of a run of a language model")
    try:
        return Plan.from_json(read_json(path, CONFIG)["plan"])
    except ConfigError as error:
        raise error.inside(path, CheckpointError) from error


def seed_folder(folder: pathlib.Path, seed: int) -> pathlib.Path:
    """Where checkpoint, metrics, result and model of a seed are."""
    return folder / "seeds" / str(seed)


def model_of(folder: pathlib.Path, seed: int | None = None, best: bool = False) -> pathlib.Path:
    """The folder of the model that one seed of a run ended with, or its best; its first seed's where none is named.

    Raises:
        CheckpointError: there is none.
    """
    made = plan_of(folder)
    seed = made.seeds[0] if seed is None else seed
    if seed not in made.seeds:
        raise CheckpointError(f"{folder}: has no seed {seed}; it has {list(made.seeds)}")
    found = seed_folder(folder, seed) / "model"
    if not found.is_dir():
        raise CheckpointError(f"{folder}: seed {seed} is not complete; {_advice(folder, made)}")
    if best and not (found.parent / BEST).is_dir():
        raise CheckpointError(
            f"{folder}: seed {seed} kept no best model: held_out or keep_best was not set, or no evaluation was better "
            "than that of the model before training"
        )
    return found.parent / BEST if best else found


def _advice(folder: pathlib.Path, made: Plan) -> str:
    trusted = " --trust" if any(trust.module_of(name) for name in functions_of(made)) else ""
    return f"continue: surefoot llm train --resume {shlex.quote(str(folder))}{trusted}"


def _carry_out(made: Plan, claim: Claim, progress: Progress | None, new: bool) -> pathlib.Path:
    """Train the seeds that have no result yet, one after another, then sum up."""
    folder = claim.folder
    prompts = read_prompts(made.prompts)
    held_out = read_prompts(made.held_out) if made.held_out else None
    chosen, live = method(made.method, **made.changes), LiveMetrics(folder)
    for seed in made.seeds:
        place = seed_folder(folder, seed)
        if (place / "result.json").is_file():
            continue
        config, reward = dataclasses.replace(made.loop, seed=seed), reward_of(made)
        critic = load_reward_model(made.critic, made.device) if made.critic else None
        environment: Any = load_function(made.environment, "environment") if made.environment else None
        write: Any = load_function(made.write, "write") if made.write else None
        policy = load_policy(made.model, made.temperature, made.device, made.dtype, seed)
        if made.lora:
            policy = with_lora(policy, made.lora, made.lora_alpha, made.lora_targets, seed)
        if new and seed == made.seeds[0]:
            write_json(folder / "environment.json", describe_machine())
            write_json(folder / "config.json", {"format": CONFIG_FORMAT, "kind": LANGUAGE, "plan": made.to_json()})
        place.mkdir(parents=True, exist_ok=True)

        def heard(line: dict[str, Any], seed: int = seed) -> None:
            live({"kind": "metrics", "line": _metrics_line(seed, line)})
            if progress is not None:
                progress({"seed": seed, **line})

        with asked_to_stop() as stopping:
            try:
                lines = train(
                    policy, prompts, reward, chosen, config, place, critic=critic, write=write, environment=environment,
                    held_out=held_out, progress=heard, stopping=stopping.get,
                )  # fmt: skip
            except Stopped:
                if stopping.signal == signal.SIGTERM:
                    print(f"terminated; {_advice(folder, made)}", file=sys.stderr)
                    raise Terminated(reported=True) from None
                raise KeyboardInterrupt(f"interrupted; {_advice(folder, made)}") from None
            except (ConfigError, DataError):
                if new and seed == made.seeds[0] and not (place / "checkpoint.safetensors").is_file():
                    for name in ("metrics.jsonl", "config.json"):  # nothing was trained: the claim takes all back
                        (folder / name).unlink(missing_ok=True)
                raise
        if isinstance(reward, Cooper):
            reward.model.save(place / "judge")
        write_json(place / "result.json", result(seed, lines))
    _sum_up(folder, made)
    return folder


class _Stopping:
    """Whether Ctrl-C or SIGTERM came."""

    signal: int | None = None

    def get(self) -> bool:
        """Asked after each step."""
        return self.signal is not None


@contextlib.contextmanager
def asked_to_stop() -> Iterator[_Stopping]:
    """The first Ctrl-C or SIGTERM inside is kept until the step is done; a second Ctrl-C ends at once."""
    stopping, before = _Stopping(), {}

    def handle(number: int, *unused: object) -> None:
        if stopping.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.signal = number
        print("stopping: a checkpoint is written after this step (Ctrl-C again: end at once)", file=sys.stderr)

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # not in the main thread
            before[number] = signal.signal(number, handle)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _metrics_line(seed: int, line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a seed's loop as runs of control have them too."""
    if "evaluation" not in line:
        values = {name: value for name, value in line.items() if name != "step"}
        return {"seed": seed, "step": line["step"], "kind": "train", "values": values}
    found, each = line["evaluation"], line["each"]
    values = {name: found[name] for name in ("entropy", "length", "same")}
    values |= {"return_mean": found["reward"][0], "success_mean": found["pass_1"][0]}
    values |= {"greedy_mean": found["greedy"][0], "pass_k_mean": found["pass_k"][0]}
    values |= {"successes": each["pass_1"], "passes": each["pass_k"]}
    if None not in each["reward"]:
        values["returns"] = each["reward"]
    return {"seed": seed, "step": line["step"], "kind": "eval", "values": values}


def result(seed: int, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """First and last evaluation, in all and prompt by prompt; mean reward of the first and the last ten steps."""
    evaluations = [line for line in lines if "evaluation" in line]
    rewards = [line["reward"] for line in lines if "reward" in line]
    found = {"before": evaluations[0], "after": evaluations[-1]} if evaluations else {}
    return {
        "seed": seed,
        "steps": max((line["step"] for line in lines), default=0),
        "reward_first_10": sum(rewards[:10]) / max(1, len(rewards[:10])),
        "reward_last_10": sum(rewards[-10:]) / max(1, len(rewards[-10:])),
        "best": None if (one := best(lines)) is None else {"step": one[0], "pass_1": one[1]},
        **{when: found[when]["evaluation"] if found else None for when in ("before", "after")},
        "each": {when: line["each"] for when, line in found.items()},
    }


def _sum_up(folder: pathlib.Path, made: Plan) -> None:
    """Write metrics.jsonl anew, summary.json and curves.png of a run whose seeds all have results."""
    places = [seed_folder(folder, seed) for seed in made.seeds]
    results = [read_json(place / "result.json") for place in places]
    machine = read_json(folder / "environment.json")
    lines = [
        _metrics_line(seed, line)
        for seed, place in zip(made.seeds, places, strict=True)
        for _, line in read_json_lines(place / "metrics.jsonl")
    ]
    with written_aside(folder / "metrics.jsonl") as aside:
        ordered = sorted(lines, key=lambda line: int(line["step"]))
        aside.write_text("".join(json.dumps({"format": METRICS_FORMAT, **line}) + "\n" for line in ordered))
    evaluated = all(one["after"] for one in results)
    write_json(
        folder / "summary.json",
        {
            "format": SUMMARY_FORMAT,
            "algorithm": made.method,
            "options": made.reported,
            "dataset": made.prompts,
            "environment": made.reward or made.method,
            "steps": made.loop.steps,
            "steps_of": STEPS_OF,
            "seeds": list(made.seeds),
            "episodes": results[0]["after"]["prompts"] if evaluated else None,
            "per_seed_returns": [one["after"]["reward"][0] for one in results] if evaluated else None,
            "per_seed_success": [one["after"]["pass_1"][0] for one in results] if evaluated else None,
            "per_seed_pass_k": [one["after"]["pass_k"][0] for one in results] if evaluated else None,
            "returns": _returns(results) if evaluated else None,
            "passes": _passes(results, made.loop.samples) if evaluated else None,
            "normalized": None,
            "behaviour": None,
            "cost": None,
            "updates_per_second": None,
            "versions": machine["versions"],
            "date": machine["date"],
        },
    )
    if evaluated:
        run = RunData.load(folder)
        figure, _ = pass_figures([(names.labels([run])[0], run)])[0]
        plots.save_png(figure, folder / "curves.png")


def _returns(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean reward after training, over seeds and those prompts whose answers could be scored for all of them."""
    each = np.array([one["each"]["after"]["reward"] for one in results], dtype=np.float64)
    return hierarchical_interval(list(each[:, ~np.isnan(each).any(axis=0)])).to_json()


def _passes(results: Sequence[Mapping[str, Any]], samples: int) -> dict[str, Any]:
    """Shares of right answers before and after training and their change, over seeds and prompts."""
    at = {
        when: {name: np.array([one["each"][when][name] for one in results]) for name in SHARES}
        for when in ("before", "after")
    }
    at["change"] = {name: at["after"][name] - at["before"][name] for name in SHARES}
    found: dict[str, Any] = {"samples": samples}
    for when, values in at.items():
        low = -1.0 if when == "change" else 0.0
        found[when] = {k: hierarchical_interval(list(one), bounds=(low, 1.0)).to_json() for k, one in values.items()}
    return found


def look(folder: pathlib.Path) -> dict[str, Any]:
    """How far a run is, as `surefoot watch` shows it: evaluations as (step, pass@1), or rewards where there are none.

    Raises:
        CheckpointError: it is damaged.
    """
    made = plan_of(folder)
    lines = read_live(folder)
    evaluations = [line for line in lines if line["kind"] == "eval"]
    shown, key = (evaluations, "success_mean") if evaluations else (lines, "reward")
    means: dict[int, list[float]] = {}
    reached: dict[int, int] = {}
    for line in shown:
        means.setdefault(int(line["step"]), []).append(float(line["values"][key]))
    for line in lines:
        reached[line["seed"]] = max(reached.get(line["seed"], 0), int(line["step"]))
    points = [(step, sum(values) / len(values)) for step, values in sorted(means.items())]
    what = "pass@1" if evaluations else "reward"
    return {
        "name": str(folder),
        "label": labelled(made.method, None, made.reported),
        "task": f"{what}, {pathlib.Path(made.prompts).stem}",
        "step": sum(reached.get(seed, 0) for seed in made.seeds) // len(made.seeds),
        "steps": made.loop.steps,
        "complete": (folder / "summary.json").is_file(),
        "returns": points,
        "steps_of": STEPS_OF,
        "axis": RIGHT if evaluations else REWARD,
        "last": f"{what} {points[-1][1]:.3f}" if points else "-",
        "losses": {},
    }
