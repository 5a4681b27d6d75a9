"""Tokens per second of our loop and of TRL's GRPOTrainer on the same small model, one thread on one core, by turns.

    python benchmarks/llm_speed.py            # writes results/llm_speed.md and .json; needs trl
    python benchmarks/llm_speed.py --quick    # two steps of ours, for CI

A Llama of 298,000 parameters over characters, 32 prompts with 8 answers of at most 6 tokens each, one update a batch,
GRPO without a reference. Both sample by transformers' generate. Rates are answers' tokens per second of CPU time,
medians over the turns; the first two steps of each turn are left out. Sampling is our `LMPolicy.generate` and TRL's
`_generate_single_turn`; training is all else of a step: texts, rewards, log-probabilities, the update and the log.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import torch
from study import git_commit

from surefoot.core.base.files import write_json
from surefoot.llm import Prompt, TrainConfig, method
from surefoot.llm.characters import character_policy
from surefoot.llm.loop import Loop
from surefoot.llm.policy import LMPolicy

RESULTS = pathlib.Path(__file__).parent / "results"
PROMPTS, GROUP, NEW, WARM = 32, 8, 6, 2


def policy() -> LMPolicy:
    return character_policy("0123456789+=", width=96, layers=2, heads=4, context=32, rotary=True)


def texts() -> list[str]:
    random = np.random.default_rng(0)
    return [f"{a}+{b}=" for a, b in random.integers(1000, size=(1000, 2))]


def reward(completions: list[str], **columns: Any) -> list[float]:
    return [text.count("7") / NEW for text in completions]


class Clock:
    """CPU seconds since the warm steps, those inside of one function, and tokens."""

    def __init__(self) -> None:
        """Stopped."""
        self.start()

    def start(self) -> None:
        """Forget what was."""
        self.began, self.inside, self.tokens = time.process_time(), 0.0, 0.0

    def around(self, function: Any) -> Any:
        """The same function, its time counted as sampling."""

        def timed(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return function(*given, **named)
            finally:
                self.inside += time.process_time() - began

        return timed

    def rates(self) -> dict[str, float]:
        """Tokens per second of sampling, of training, and of both."""
        total = time.process_time() - self.began
        parts = {"sampling": self.inside, "training": total - self.inside, "the whole step": total}
        return {name: self.tokens / seconds for name, seconds in parts.items()}


def ours(steps: int) -> dict[str, float]:
    config = TrainConfig(
        steps=steps, prompts_per_step=PROMPTS, group=GROUP, max_new_tokens=NEW, learning_rate=1e-4, rows_at_once=256
    )
    prompts = [Prompt(text) for text in texts()]
    loop = Loop(policy(), prompts, reward, method("grpo", kl="none", kl_coefficient=0.0), config)
    clock, sampler = Clock(), loop.sampler
    sampler.generate = clock.around(sampler.generate)  # type: ignore[method-assign]
    for step in range(steps + WARM):
        if step == WARM:
            clock.start()
        clock.tokens += loop.advance()["tokens"]
    return clock.rates()


def trls(steps: int) -> dict[str, float]:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    clock = Clock()

    def counting(completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        clock.tokens += sum(map(len, completion_ids))
        return reward(completions)

    class Warm(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == WARM:
                clock.start()

    made = policy()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            loss_type="grpo",
            beta=0.0,
            max_steps=steps + WARM,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=NEW,
            learning_rate=1e-4,
            report_to=[],
            use_cpu=True,
            bf16=False,
            logging_steps=1000,
            disable_tqdm=True,
            save_strategy="no",
            activation_checkpointing=False,
        )
        trainer = GRPOTrainer(
            model=made.model,
            reward_funcs=counting,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": text} for text in texts()]),
            processing_class=made.tokenizer,
            callbacks=[Warm()],
        )
        trainer._generate_single_turn = clock.around(trainer._generate_single_turn)
        trainer.train()
    return clock.rates()


def machine() -> str:
    """Processor, cores and versions."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines() if pathlib.Path("/proc/cpuinfo").is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    import transformers

    return f"{processor}, {os.cpu_count()} cores; torch {torch.__version__}, transformers {transformers.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.quick:
        print(", ".join(f"{name}: {rate:,.0f} tokens per second" for name, rate in ours(2).items()))
        return
    import trl

    found: dict[str, list[dict[str, float]]] = {"surefoot": [], "trl": []}
    for _ in range(arguments.turns):
        found["surefoot"].append(ours(arguments.steps))
        found["trl"].append(trls(arguments.steps))
    lines = []
    for part in ("sampling", "training", "the whole step"):
        here, there = ([turn[part] for turn in found[name]] for name in ("surefoot", "trl"))
        ratios = [a / b for a, b in zip(here, there, strict=True)]
        medians = f"{statistics.median(here):,.0f} | {statistics.median(there):,.0f}"
        lines.append(
            f"| {part} | {medians} | {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |\n"
        )
    text = (
        f"# Tokens per second, beside TRL {trl.__version__}\n\n{(__doc__ or '').split(chr(10) + chr(10), 2)[2]}\n"
        f"{machine()}; {arguments.steps} steps a turn, {arguments.turns} turns, one loop after the other.\n\n"
        "| tokens per second of CPU time, medians | surefoot | TRL | ratio, median | over turns |\n"
        "|---|---|---|---|---|\n"
        f"{''.join(lines)}"
    )
    print(text)
    (RESULTS / "llm_speed.md").write_text(text)
    facts = {
        "trl": trl.__version__,
        "steps": arguments.steps,
        "machine": machine(),
        "git": git_commit(),
        "rates": found,
    }
    write_json(RESULTS / "llm_speed.json", facts)


if __name__ == "__main__":
    main()
