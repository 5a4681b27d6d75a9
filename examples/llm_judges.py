"""Judges that learn beside the policy that they judge, on addition after a noisy teacher.

    python examples/llm_judges.py cooper                 a reward model, updated as the policy moves
    python examples/llm_judges.py cooper --frozen        the same reward model, left as it was
    python examples/llm_judges.py urpo                   one model is player and judge
    python examples/llm_judges.py urpo --unjudged        without the prompts that it judges itself

Cooper (2508.05613): GRPO by a reward model's scores; after each step the reward model learns that an answer which a
rule finds right is better than a corrupted one, here with a digit changed. Beyond Cooper, it learns of the policy's own
wrong answers too; `surefoot llm train reward=JUDGE rule=... corrupt=...` is Cooper without these. URPO
(2507.17515): one GRPO loop over three kinds of prompts: sums with a known answer, pairs of answers of which the better
is to be named, and sums without an answer, whose answers the model itself compares with each other. Of neither paper
the exact loss could be found: the reward model's is Bradley and Terry's, and the right choice is rewarded by 1.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import numpy as np
import torch

from surefoot.llm import LMPolicy, Prompt, TrainConfig, evaluate, method
from surefoot.llm.characters import character_policy
from surefoot.llm.feedback import Pair
from surefoot.llm.loop import Loop
from surefoot.llm.reward_models import RewardLearner, RewardModel, RewardTraining, train_reward_model
from surefoot.llm.supervised import supervise
from surefoot.llm.tasks import TASKS

TASK = TASKS["addition"]
GRPO = method("grpo", kl="none", kl_coefficient=0.0)
GROUP = 8


def corrupted(random: np.random.Generator, answer: str) -> str:
    """The answer with one digit changed."""
    place = int(random.integers(len(answer)))
    return answer[:place] + str((int(answer[place]) + int(random.integers(1, 10))) % 10) + answer[place + 1 :]


def settings(arguments: argparse.Namespace, new: int) -> TrainConfig:
    """Of the loop."""
    return TrainConfig(steps=arguments.steps, prompts_per_step=32, group=GROUP, max_new_tokens=new, learning_rate=1e-4)


def report(policy: LMPolicy, when: str, count: int) -> None:
    """Right sums to prompts that were held out."""
    unseen = TASK.prompts(np.random.default_rng(2), count, True)
    print(f"{when}: {evaluate(policy, unseen, TASK.reward, new=TASK.new)}", flush=True)


def cooper(arguments: argparse.Namespace) -> None:
    """A policy and its reward model."""
    random, policy = np.random.default_rng(0), TASK.copied(0, arguments.supervised)
    pairs = [Pair(p, c["total"], corrupted(random, c["total"])) for p, c, _ in TASK.examples(random, 2000, False)]
    judge = RewardModel(LMPolicy(copy.deepcopy(policy.model), policy.tokenizer))
    last = train_reward_model(judge, pairs, RewardTraining(steps=arguments.judge_steps, learning_rate=1e-3))
    print(f"the reward model tells {last['accuracy']:.3f} of its pairs right", flush=True)
    report(policy, "before", arguments.held_out)
    prompts = TASK.prompts(np.random.default_rng(3), 32 * arguments.steps, False)
    loop = Loop(policy, prompts, judge, GRPO, settings(arguments, TASK.new))
    learner = RewardLearner(judge, RewardTraining(learning_rate=1e-3))
    for step in range(1, arguments.steps + 1):
        rollout, returns, metrics = loop.collect()
        texts = policy.decode(rollout)
        loop.learn(rollout, returns, metrics)
        answers = [(row.text, row.columns["total"], text) for row, text in zip(loop.answered, texts, strict=True)]
        found = [Pair(p, total, corrupted(random, total) if text == total else text) for p, total, text in answers]
        given = {"accuracy": float("nan")} if arguments.frozen else learner.update(found)
        if step % 20 == 0:
            right = np.mean([text == total for _, total, text in answers])
            reported = f"pairs ordered correctly {given['accuracy']:.3f}"
            print(f"  step {step}: score {metrics['reward']:.2f}, right {right:.3f}, {reported}", flush=True)
    report(policy, "after", arguments.held_out)


def ranking(prompt: str, first: str, second: str) -> str:
    """Two answers, of which the better is to be named: 1 or 2."""
    return f"{prompt}{first}|{second}?"


def urpo(arguments: argparse.Namespace) -> None:
    """One model that answers and judges."""
    random = np.random.default_rng(0)
    policy = character_policy(TASK.alphabet + "|?", layers=2, width=96, heads=4, context=32)

    def pair(total: str) -> tuple[str, str, str]:
        wrong, place = corrupted(random, total), int(random.integers(2))
        return (wrong, total, "2") if place else (total, wrong, "1")

    taught = []
    for number, (prompt, columns, given) in enumerate(TASK.examples(random, 128 * arguments.supervised, False)):
        first, second, better = pair(columns["total"])
        taught.append((ranking(prompt, first, second), better) if number % 2 else (prompt, given))
    supervise(policy, taught, steps=arguments.supervised, rows=128, learning_rate=1e-3)

    kinds = ("known", "pair") if arguments.unjudged else ("known", "pair", "open", "open")
    prompts = []
    for number, (prompt, columns, _) in enumerate(TASK.examples(random, 32 * arguments.steps, False)):
        kind, total = kinds[number % len(kinds)], columns["total"]
        first, second, better = pair(total)
        asked = ranking(prompt, first, second) if kind == "pair" else prompt
        prompts.append(Prompt(asked, {"kind": kind, "right": better if kind == "pair" else total}))

    def reward(prompts: list[str], completions: list[str], kind: list[str], right: list[str], **_: Any) -> list[float]:
        """1 for what is known to be right; of open prompts, how often the model itself prefers the answer."""
        found = [float(text == one) for text, one in zip(completions, right, strict=True)]
        asked, rows = [], []
        for row, text in enumerate(completions):
            if kind[row] == "open":
                other = completions[row // GROUP * GROUP + (row + 1 + int(random.integers(GROUP - 1))) % GROUP]
                asked += [ranking(prompts[row], text, other), ranking(prompts[row], other, text)]
                rows.append(row)
        if rows:
            judged = policy.decode(policy.generate(policy.encode(asked), 1, 2, 0, greedy=True))
            for place, row in enumerate(rows):
                found[row] = ((judged[2 * place] == "1") + (judged[2 * place + 1] == "2")) / 2
        return found

    def judging(count: int) -> float:
        unseen = [(p, pair(c["total"])) for p, c, _ in TASK.examples(np.random.default_rng(4), count, True)]
        asked = policy.encode([ranking(prompt, first, second) for prompt, (first, second, _) in unseen])
        given = policy.decode(policy.generate(asked, 1, 2, 0, greedy=True))
        return float(np.mean([one == better for one, (_, (_, _, better)) in zip(given, unseen, strict=True)]))

    report(policy, f"before (it judges {judging(arguments.held_out):.3f} of pairs right)", arguments.held_out)
    loop = Loop(policy, prompts, reward, GRPO, settings(arguments, TASK.new))
    for step in range(1, arguments.steps + 1):
        metrics = loop.advance()
        if step % 20 == 0:
            print(f"  step {step}: reward {metrics['reward']:.3f}, entropy {metrics['entropy']:.2f}", flush=True)
    report(policy, f"after (it judges {judging(arguments.held_out):.3f} of pairs right)", arguments.held_out)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("cooper", "urpo"))
    parser.add_argument("--frozen", action="store_true", help="cooper: the reward model is not updated")
    parser.add_argument("--unjudged", action="store_true", help="urpo: no prompts that it judges itself")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--supervised", type=int, default=900)
    parser.add_argument("--judge-steps", type=int, default=400)
    parser.add_argument("--held-out", type=int, default=256)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    (cooper if arguments.which == "cooper" else urpo)(arguments)


if __name__ == "__main__":
    main()
