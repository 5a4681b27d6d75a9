"""A language model of single characters learns to add from a teacher who is wrong half of the time, then from rewards.

    python examples/llm_addition.py                      about four minutes on two cores
    python examples/llm_addition.py --method rloo --seeds 3
    python examples/llm_addition.py --shuffle            the control: rewards shuffled within each batch

The task is `a+b=`, a and b from 0 to 999, the digits of the answer reversed. Supervised training copies the teacher:
greedy answers become right, sampled ones as wrong as his. Rewards sharpen what the model can do already: watch pass@1
rise and pass@8 stay. Prompts are held out by a hash of the whole prompt, and seen by neither stage.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from typing import Any

import numpy as np
import torch

from surefoot.llm import Prompt, Report, TrainConfig, evaluate, method, train
from surefoot.llm.characters import character_policy
from surefoot.llm.policy import LMPolicy
from surefoot.llm.supervised import supervise

NEW = 6
"""The most tokens of an answer: four digits, the end, and one to spare."""


def held_out(prompt: str) -> bool:
    """A tenth of all prompts, whatever their digits."""
    return hashlib.sha256(prompt.encode()).digest()[0] % 10 == 0


def drawn(random: np.random.Generator, count: int, held: bool) -> list[tuple[int, int]]:
    """Pairs of numbers whose prompt is held out, or is not."""
    found: list[tuple[int, int]] = []
    while len(found) < count:
        a, b = (int(number) for number in random.integers(1000, size=2))
        if held_out(f"{a}+{b}=") == held:
            found.append((a, b))
    return found


def noisy_teacher(random: np.random.Generator, count: int) -> list[tuple[str, str]]:
    """Half of the sums are right, the others 1, 10 or 100 off."""
    pairs = []
    for a, b in drawn(random, count, False):
        total = a + b
        if random.random() < 0.5:
            off = int(random.choice([1, -1, 10, -10, 100, -100]))
            total += 1 if total < 100 else off
        pairs.append((f"{a}+{b}=", str(total)[::-1]))
    return pairs


def exact(prompts: list[str], completions: list[str], total: list[str], **columns: Any) -> list[float]:
    """1 for the right sum: a reward function by TRL's convention."""
    return [float(completion == answer) for completion, answer in zip(completions, total, strict=True)]


def shuffled(seed: int) -> Any:
    """The same rewards, given to the wrong answers."""
    random = np.random.default_rng(seed)

    def reward(**columns: Any) -> list[float]:
        return list(random.permutation(exact(**columns)))

    return reward


def prompts(random: np.random.Generator, count: int, held: bool) -> list[Prompt]:
    """Prompts with their sum as a column."""
    return [Prompt(f"{a}+{b}=", {"total": str(a + b)[::-1]}) for a, b in drawn(random, count, held)]


def copied(seed: int, steps: int, quiet: bool = False) -> LMPolicy:
    """A policy that has copied the teacher: 229,000 parameters."""
    policy = character_policy("0123456789+=", layers=2, width=96, heads=4, context=16, seed=seed)
    pairs = noisy_teacher(np.random.default_rng([seed, 1]), 128 * steps)
    say = None if quiet else lambda step, loss: print(f"  supervised step {step}: loss {loss:.3f}", flush=True)
    supervise(policy, pairs, steps=steps, rows=128, learning_rate=1e-3, seed=seed, progress=say)
    return policy


def run(seed: int, arguments: argparse.Namespace) -> tuple[Report, Report]:
    """One seed: held-out results before and after."""
    policy = copied(seed, arguments.supervised, arguments.quiet)
    unseen = prompts(np.random.default_rng([seed, 2]), arguments.held_out, True)
    before = evaluate(policy, unseen, exact, new=NEW, seed=seed)
    print(f"seed {seed}, copied the teacher: {before}", flush=True)
    config = TrainConfig(
        steps=arguments.steps,
        prompts_per_step=32,
        group=8,
        max_new_tokens=NEW,
        learning_rate=arguments.learning_rate,
        evaluate_every=arguments.steps,
        seed=seed,
    )
    reward = shuffled(seed) if arguments.shuffle else exact
    chosen = method(arguments.method, kl="none", kl_coefficient=0.0)

    def show(line: dict[str, Any]) -> None:
        if line["step"] % 20 == 0 and not arguments.quiet:
            print(f"  step {line['step']}: reward {line['reward']:.3f}, entropy {line['entropy']:.2f}", flush=True)

    train(
        policy,
        prompts(np.random.default_rng([seed, 3]), 32 * arguments.steps, False),
        reward,
        chosen,
        config,
        progress=show,
    )
    after = evaluate(policy, unseen, exact, new=NEW, seed=seed)
    print(f"seed {seed}, {arguments.method}: {after}", flush=True)
    return before, after


def main() -> None:
    """Train some seeds and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="dapo_clip")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=120, help="of reinforcement")
    parser.add_argument("--supervised", type=int, default=900, help="steps of copying")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--held-out", type=int, default=512)
    parser.add_argument(
        "--shuffle", action="store_true", help="shuffle the rewards of each batch: the negative control"
    )
    parser.add_argument("--quiet", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began, gains = time.perf_counter(), []
    for seed in range(arguments.seeds):
        before, after = run(seed, arguments)
        gains.append((after.pass_1[0] - before.pass_1[0], after.pass_k[0] - before.pass_k[0]))
    first, eighth = np.array(gains).T
    print(
        f"{arguments.method}: pass@1 {first.mean():+.3f}, pass@8 {eighth.mean():+.3f} over {arguments.seeds} "
        f"seed{'s' if arguments.seeds > 1 else ''} in {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
