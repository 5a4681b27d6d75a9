"""A language model of single characters learns to add from a teacher who is wrong half of the time, then from rewards.

    python examples/llm_addition.py                      about four minutes on two cores
    python examples/llm_addition.py --method rloo --seeds 3
    python examples/llm_addition.py --shuffle            the control: rewards shuffled within each batch

The task is `a+b=`, a and b from 0 to 999, the digits of the answer reversed (`surefoot.llm.tasks`). Supervised training
copies the teacher: greedy answers become right, sampled ones as wrong as his. Rewards sharpen what the model can do
already: watch pass@1 rise and pass@8 stay. Prompts are held out by a hash of the whole prompt, and seen by neither
stage. Shuffled rewards teach nothing, but their steps go somewhere: with --learning-rate 1e-4 --kl 0.1 what the model
could do is kept.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

from surefoot.llm import Report, TrainConfig, evaluate, method, train
from surefoot.llm.tasks import TASKS, Task, shuffled


def run(task: Task, seed: int, arguments: argparse.Namespace) -> tuple[Report, Report]:
    """One seed: held-out results before and after."""

    def supervised(step: int, loss: float) -> None:
        if not arguments.quiet:
            print(f"  supervised step {step}: loss {loss:.3f}", flush=True)

    policy = task.copied(seed, arguments.supervised, supervised)
    unseen = task.prompts(np.random.default_rng([seed, 2]), arguments.held_out, True)
    before = evaluate(policy, unseen, task.reward, new=task.new, seed=seed)
    print(f"seed {seed}, copied the teacher: {before}", flush=True)
    config = TrainConfig(
        steps=arguments.steps,
        prompts_per_step=32,
        group=8,
        max_new_tokens=task.new,
        learning_rate=arguments.learning_rate,
        evaluate_every=arguments.steps,
        seed=seed,
    )
    reward = shuffled(task.reward, seed) if arguments.shuffle else task.reward
    chosen = method(arguments.method, kl="k2" if arguments.kl else "none", kl_coefficient=arguments.kl)

    def show(line: dict[str, Any]) -> None:
        if line["step"] % 20 == 0 and not arguments.quiet:
            print(f"  step {line['step']}: reward {line['reward']:.3f}, entropy {line['entropy']:.2f}", flush=True)

    seen = task.prompts(np.random.default_rng([seed, 3]), 32 * arguments.steps, False)
    train(policy, seen, reward, chosen, config, progress=show)
    after = evaluate(policy, unseen, task.reward, new=task.new, seed=seed)
    print(f"seed {seed}, {arguments.method}: {after}", flush=True)
    return before, after


def main(name: str, about: str | None, steps: int, learning_rate: float) -> None:
    """Train some seeds and compare."""
    task = TASKS[name]
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="dapo_clip")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=steps, help="of reinforcement")
    parser.add_argument("--supervised", type=int, default=task.supervised, help="steps of copying")
    parser.add_argument("--learning-rate", type=float, default=learning_rate)
    parser.add_argument(
        "--kl", type=float, default=0.0, help="coefficient of the KL to the supervised model, as a loss"
    )
    parser.add_argument("--held-out", type=int, default=512)
    parser.add_argument("--shuffle", action="store_true", help="shuffle each batch's rewards: the negative control")
    parser.add_argument("--quiet", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began, gains = time.perf_counter(), []
    for seed in range(arguments.seeds):
        before, after = run(task, seed, arguments)
        gains.append((after.pass_1[0] - before.pass_1[0], after.pass_k[0] - before.pass_k[0]))
    first, eighth = np.array(gains).T
    print(
        f"{arguments.method}: pass@1 {first.mean():+.3f}, pass@8 {eighth.mean():+.3f} over {arguments.seeds} "
        f"seed{'s' if arguments.seeds > 1 else ''} in {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main("addition", __doc__, steps=120, learning_rate=3e-4)
