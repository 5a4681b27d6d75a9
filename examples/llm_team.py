"""Two character models add in turn: the second reads what the first wrote, and both get the sum of their rewards
(CORY).

    python examples/llm_team.py                          about four minutes of one core
    python examples/llm_team.py --team marft             one reward for the team, members learn in turn

Both have copied a teacher who is wrong half of the time, and who sometimes sees an answer first: half of his examples
begin with one, right or wrong. What the second makes of the first's answer is up to the rewards.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from surefoot.llm import LMPolicy, Prompt, TrainConfig, method
from surefoot.llm.characters import character_policy
from surefoot.llm.supervised import supervise
from surefoot.llm.tasks import TASKS
from surefoot.llm.team import CORY, MARFT, Team, after, train_team

TASK = TASKS["addition"]


def copied(seed: int, steps: int) -> LMPolicy:
    """A policy that can answer with and without another's answer before it."""
    random = np.random.default_rng([seed, 1])
    policy = character_policy(TASK.alphabet + "\n", layers=2, width=96, heads=4, context=24, seed=seed)
    pairs = []
    for number, (prompt, _, given) in enumerate(TASK.examples(random, 128 * steps, False)):
        other = given if random.random() < 0.5 else str(int(random.integers(2000)))[::-1]
        pairs.append((after(prompt, [other]) if number % 2 else prompt, given))
    supervise(policy, pairs, steps=steps, rows=128, learning_rate=1e-3, seed=seed)
    return policy


def right(team: Team, prompts: list[Prompt]) -> list[float]:
    """Share of right answers to held-out prompts of the first and of the second to speak."""
    given: list[list[str]] = []
    shares = []
    for who in team.order:
        policy = team.loops[who].policy
        texts = [after(str(prompt.text), [one[n] for one in given]) for n, prompt in enumerate(prompts)]
        given.append(policy.decode(policy.generate(policy.encode(texts), 1, TASK.new, seed=0)))
        columns = {"total": [prompt.columns["total"] for prompt in prompts]}
        shares.append(float(np.mean([float(r or 0) for r in TASK.reward(completions=given[-1], **columns)])))
    return shares


def main() -> None:
    """Copy, answer, learn, answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--team", choices=("cory", "marft"), default="cory")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--supervised", type=int, default=900)
    parser.add_argument("--held-out", type=int, default=512)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    policies = [copied(seed, arguments.supervised) for seed in (0, 1)]
    unseen = TASK.prompts(np.random.default_rng(2), arguments.held_out, True)
    seen = TASK.prompts(np.random.default_rng(3), 32 * arguments.steps, False)
    config = TrainConfig(steps=arguments.steps, prompts_per_step=32, max_new_tokens=TASK.new, learning_rate=1e-4)
    chosen = CORY if arguments.team == "cory" else MARFT
    team = Team(policies, seen, TASK.reward, method("grpo", kl="none", kl_coefficient=0.0), config, chosen)
    before = right(team, unseen)
    print(
        f"held out, before: the first is right in {before[0]:.3f} of answers, the second in {before[1]:.3f}", flush=True
    )

    def show(line: dict[str, float]) -> None:
        if line["step"] % 20 == 0:
            print(f"  step {line['step']}: reward {line['reward']:.3f}", flush=True)

    train_team(team, show)
    after_training = right(team, unseen)
    print(f"held out, after:  the first is right in {after_training[0]:.3f}, the second in {after_training[1]:.3f}")


if __name__ == "__main__":
    main()
