"""Trainings on given answers from the command line: `surefoot llm sft` and `surefoot llm dpo`.

A folder of one::

    training/         plan.json, metrics.jsonl and the checkpoint that `--resume` continues from
    config.json ...   at the end the model, as transformers writes it
    training.json     at the end: how it was trained, and how well
"""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from typing import Any

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.options import Options, option
from surefoot.core.base.schema import Plain, Table
from surefoot.language.plan import Progress, from_words
from surefoot.language.runs import asked_to_stop
from surefoot.llm import load_policy
from surefoot.llm.adapters import with_lora
from surefoot.llm.feedback import Demonstration, LabelledSteps, Pair, read_feedback
from surefoot.llm.supervised import CHECKPOINT, GivenTraining, Stopped, learn_given
from surefoot.runs.folders import Claim, claim_begun, claim_new
from surefoot.runs.processes.stopping import Terminated
from surefoot.runs.trust import refuse_links

LEARNED = {"sft": Demonstration, "dpo": Pair}
"""What each command learns from."""
LINES = {
    Demonstration: '{"prompt", "completion"}',
    Pair: '{"prompt", "chosen", "rejected"}',
    LabelledSteps: '{"prompt", "completions", "labels"}',
}
STATE, PLAN, ABOUT = "training", "plan.json", "training.json"


@dataclasses.dataclass(frozen=True)
class GivenPlan(Options):
    """Everything that decides a training on given answers, beside how it goes."""

    owner = ""
    model: str = option("", "folder of a model, as save_pretrained writes it; its config.json: begin at random weights")
    data: str = option("", ".jsonl; lines of prompt and completion (sft), or of prompt, chosen and rejected (dpo)")
    held_out: str = option("", ".jsonl of the same kind, examined before and after; none without it")
    out: str = option("", "folder for the model, which model= takes")
    device: str = option("cpu", "device: cpu or cuda")
    dtype: str = option("float32", "number type of the weights: float32 or bfloat16")
    lora: int = option(0, "rank of adapters, which alone are trained (extra `lora`); 0 for the whole model")
    lora_alpha: float = option(0.0, "scale of the adapters; 0 for twice their rank")
    lora_targets: str = option("all-linear", "layers that get an adapter, with commas between")


def begin_given(command: str, words: Mapping[str, str], progress: Progress | None = None) -> dict[str, Any]:
    """Train a model on given answers by NAME=value words; gives what training.json holds, and its folder.

    Args:
        command: "sft" or "dpo".
        words: settings of `GivenPlan` and `GivenTraining`.
        progress: called with the metrics of each step.

    Raises:
        ConfigError: an unknown name or value, one of model, data and out is missing, or `beta` without pairs.
        DataError: a file is damaged, or has lines of another kind.
    """
    if command == "sft" and "beta" in words:
        raise ConfigError("beta= is for dpo: supervised training has no reference")
    made, training = from_words(words, GivenPlan, GivenTraining, command)
    given = {name: getattr(made, name) for name in ("model", "data", "held_out") if getattr(made, name)}
    paths: dict[str, Any] = {name: str(pathlib.Path(path).expanduser().resolve()) for name, path in given.items()}
    made = dataclasses.replace(made, **paths)
    with claim_new(made.out) as claim:
        return _carry_out(command, made, training, claim, progress)


def resume_given(command: str, folder: str, progress: Progress | None = None, trusted: bool = False) -> dict[str, Any]:
    """Continue a training that was interrupted; one that is complete is left as it is.

    Raises:
        CheckpointError: the folder is not of a training by this command, its plan is damaged, or it has symbolic links
            in it and is not `trusted`.
    """
    place = pathlib.Path(folder)
    path = place / STATE / PLAN
    if not path.is_file():
        raise CheckpointError(f"{place}: not of `surefoot llm {command}` (there is no {STATE}/{PLAN} in it)")
    reported = read_json(path, Table(Plain()))
    if reported.get("command") != command:
        raise CheckpointError(f"{place}: was started by `surefoot llm {reported.get('command')}`: continue that")
    if (place / ABOUT).is_file():
        return {"folder": str(place.resolve()), **read_json(place / ABOUT)}
    try:
        made, training = GivenPlan(**reported["plan"]), GivenTraining(**reported["training"])
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path}: is damaged ({error}); begin anew") from error
    refuse_links(place, trusted)
    with claim_begun(place) as claim:
        return _carry_out(command, made, training, claim, progress)


def _read(command: str, path: str) -> Any:
    found = read_feedback(path)
    if not isinstance(found[0], LEARNED[command]):
        raise ConfigError(
            f"{path}: has lines of {LINES[type(found[0])]}, and {command} learns from {LINES[LEARNED[command]]}"
        )
    return found


def _carry_out(
    command: str, made: GivenPlan, training: GivenTraining, claim: Claim, progress: Progress | None
) -> dict[str, Any]:
    folder, state = claim.folder, claim.folder / STATE
    data, held_out = _read(command, made.data), _read(command, made.held_out) if made.held_out else []
    policy = load_policy(made.model, device=made.device, dtype=made.dtype, seed=training.seed)
    if made.lora:
        policy = with_lora(policy, made.lora, made.lora_alpha, made.lora_targets, training.seed)
    plan = {"command": command, "plan": dataclasses.asdict(made), "training": dataclasses.asdict(training)}
    state.mkdir(exist_ok=True)
    write_json(state / PLAN, plan)
    advice = f"continue: surefoot llm {command} --resume {shlex.quote(str(folder))}"
    with asked_to_stop() as stopping:
        try:
            found = learn_given(
                policy, data, training, state, held_out=held_out, progress=progress, stopping=stopping.get
            )
        except Stopped:
            if stopping.signal == signal.SIGTERM:
                print(f"terminated; {advice}", file=sys.stderr)
                raise Terminated(reported=True) from None
            raise KeyboardInterrupt(f"interrupted; {advice}") from None
        except BaseException:
            if not (state / CHECKPOINT).is_file():  # nothing was trained
                shutil.rmtree(state)
            raise
    policy.save(folder)
    about = {**plan, "lines": len(data), "held_out": len(held_out), **found}
    write_json(folder / ABOUT, about)
    return {"folder": str(folder), **about}
