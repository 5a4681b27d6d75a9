"""Several policies that answer in turn, each reading what those before it held: CORY's pair and MARFT's team.

A team is a `Loop` for each policy and what one says to the next. Everything else, from ratios to reductions, is the
method's, as for one policy.
"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.files import read_json, write_json
from surefoot.core.base.options import Options, option
from surefoot.core.base.schema import Plain, Table
from surefoot.llm.critic import TeamCritic
from surefoot.llm.loop import Loop, TrainConfig
from surefoot.llm.losses import shared_reward
from surefoot.llm.losses.method import Method
from surefoot.llm.policy import LMPolicy, Rollout
from surefoot.llm.prompts import Prompt
from surefoot.llm.rewards import RewardFunction
from surefoot.llm.same_run import check_same

STATE, CRITIC = "team.json", "critic.safetensors"
Credit = Literal["sum", "last"]
Reads = Callable[[str, Sequence[str]], str]


def after(prompt: str, stated: Sequence[str]) -> str:
    """What the next one reads: the prompt, and on a line each what was given."""
    return "\n".join([prompt, *stated, ""]) if stated else prompt


@dataclasses.dataclass(frozen=True)
class TeamConfig(Options):
    """How a team answers and learns."""

    owner = ""
    credit: Credit = option(
        "sum", "reward of each: sum, of the rewards of each one's answer (CORY); or last, of the last answer (MARFT)"
    )
    swap_every: int = option(
        0, "steps after which policies change places, the first becoming the last; 0 for never", range=">= 0"
    )
    in_turn: bool = option(False, "one policy learns in each step, the others stay (MARFT's round robin)")


CORY = TeamConfig(credit="sum", swap_every=5)
"""Pioneer and observer share r1 + r2 and change places every five steps, as in its code for IMDB.

Source: Ma et al., "Coevolving with the Other You"."""
MARFT = TeamConfig(credit="last", in_turn=True)
"""A team has one reward, and its members learn in turn: against the group, or with `critic=` against a critic for all.
With `method.ratio=chain` a message has one ratio (its action-level trainer), with `unit` each token.

Source: Liao et al., "MARFT: Multi-Agent Reinforcement Fine-Tuning", and its code."""


class Team:
    """K policies in training. Answers of all K to one prompt, `group` times, are a step's groups."""

    def __init__(
        self,
        policies: Sequence[LMPolicy],
        prompts: Sequence[Prompt],
        reward: RewardFunction,
        method: Method,
        config: TrainConfig,
        team: TeamConfig,
        reads: Reads = after,
        critic: TeamCritic | None = None,
    ) -> None:
        """Begin.

        Args:
            policies: K of them, two or more; each is changed.
            prompts: texts, to be answered by the first.
            reward: of each one's answer to the prompt.
            method: the same for all; groups that differ nowhere are not drawn again.
            config: of each one's loop.
            team: how they answer and learn.
            reads: (prompt, what was given so far) -> what the next policy is given.
            critic: of what each one reads, in the place of the method's baseline; all get the last answer's reward.

        Raises:
            ConfigError: fewer than two policies, the same one twice, prompts of messages, rewards of steps, a method
                whose reward reads the policy or whose answers are drawn or chosen otherwise, or a critic of rewards
                that are summed, or whose model a member trains.
        """
        if len({id(policy.model) for policy in policies}) < max(2, len(policies)):
            raise ConfigError("a team is of two policies or more, each with a model of its own: copy the model")
        if any(not isinstance(prompt.text, str) for prompt in prompts):
            raise ConfigError("a team's prompts are texts: what the others wrote is put behind them")
        for field in ("reads", "sage", "spread"):
            if getattr(method, field) not in ("none", 0):
                raise ConfigError(
                    f"method.{field}={getattr(method, field)}: a team's answers are drawn plainly, all count, and "
                    "the reward function alone scores them"
                )
        if config.weak_share:
            raise ConfigError(f"weak_share={config.weak_share}: a team's prompts all come equally often; leave it at 0")
        if critic is not None and team.credit != "last":
            raise ConfigError("a team's critic is of one reward at the end of a conversation: credit=last")
        if critic is not None and any(critic.model.policy.model is policy.model for policy in policies):
            raise ConfigError("a team's critic needs a model of its own, which no member trains: copy it")
        method = dataclasses.replace(method, mixed_groups=False)
        if critic is not None:
            method = dataclasses.replace(method, advantages="none")  # those of the critic come as returns
        self.critic = critic
        self.loops = [Loop(policy, prompts, reward, method, config) for policy in policies]
        if self.loops[0].of_steps or method.nucleus:
            raise ConfigError("a team learns from one reward for each answer, and draws from all tokens")
        self.team, self.reads, self.step = team, reads, 0
        self.order = list(range(len(policies)))
        """Who speaks first, second, ..."""

    def speak(self) -> tuple[list[Rollout], list[list[str]], list[Prompt]]:
        """Each one's answers (B rows) in the order of speaking, their texts, and the prompt of each row."""
        first = self.loops[0]
        config = first.config
        rows = [first.prompts[n] for n in first._draw(config.prompts_per_step) for _ in range(config.group)]
        stated: list[list[str]] = []
        rollouts = []
        for place, who in enumerate(self.order):
            loop = self.loops[who]
            texts = [self.reads(str(row.text), [one[n] for one in stated]) for n, row in enumerate(rows)]
            given = loop.policy.encode(texts)
            seed = int(np.random.SeedSequence([config.seed, self.step, place]).generate_state(1)[0])
            rollout = loop.sampler.generate(
                given, 1, config.max_new_tokens, seed, at_once=config.rows_at_once, continuous=config.continuous
            )
            rollouts.append(rollout)
            stated.append(loop.policy.decode(rollouts[-1]))
        return rollouts, stated, rows

    def advance(self) -> dict[str, float]:
        """One step of the team; metrics of each, behind "0/", "1/", ... in the order of `policies`."""
        for loop in self.loops:
            loop.refresh()
        rollouts, stated, rows = self.speak()
        own = [self.loops[who].score(rollout, rows)[1] for who, rollout in zip(self.order, rollouts, strict=True)]
        shared = self._shared(own)
        metrics: dict[str, float] = {"reward": float(shared.nanmean())}
        learned = [shared] * len(self.loops)
        if self.critic is not None:
            read = [
                [self.reads(str(row.text), [one[n] for one in stated[:place]]) for n, row in enumerate(rows)]
                for place in range(len(self.loops))
            ]
            advantages, returns = self.critic.advantages(read, shared)
            metrics |= self.critic.update(read, returns)
            learned = list(torch.where(shared.isnan().unsqueeze(1), shared.unsqueeze(1), advantages).unbind(1))
        for place, (who, rollout) in enumerate(zip(self.order, rollouts, strict=True)):
            if self.team.in_turn and who != self.step % len(self.loops):
                self.loops[who].end_step()
                continue
            facts = {"reward": float(own[place].nanmean()), "place": float(place)}
            found = self.loops[who].learn(rollout, learned[place], facts)
            metrics |= {f"{who}/{name}": value for name, value in found.items()}
        self.step += 1
        if self.team.swap_every and self.step % self.team.swap_every == 0:
            self.order = [*self.order[1:], self.order[0]]
        return metrics

    def _shared(self, own: Sequence[Tensor]) -> Tensor:
        if self.team.credit == "last":
            return own[-1]
        total = own[0]
        for one in own[1:]:
            total = shared_reward(total, one)
        return total

    def save(self, folder: str | pathlib.Path) -> None:
        """Write the whole state: a folder for this step, and then its name into team.json, which makes it count."""
        path = pathlib.Path(folder)
        now = path / f"step-{self.step}"
        now.mkdir(parents=True, exist_ok=True)
        for number, loop in enumerate(self.loops):
            loop.save(now / f"{number}.safetensors")
        if self.critic is not None:
            self.critic.save(now / CRITIC)
        write_json(path / STATE, {"step": self.step, "order": self.order, "team": dataclasses.asdict(self.team)})
        for other in path.glob("step-*"):
            if other != now:
                shutil.rmtree(other, ignore_errors=True)

    def load(self, folder: str | pathlib.Path) -> None:
        """Continue from what `save` wrote.

        Raises:
            CheckpointError: it is damaged, of another team, or of other settings.
        """
        path = pathlib.Path(folder)
        about = read_json(path / STATE, Table(Plain()))
        step, order = about.get("step"), about.get("order")
        if not isinstance(step, int) or sorted(order or []) != list(range(len(self.loops))):
            raise CheckpointError(f"{path / STATE}: is not of a team of {len(self.loops)}")
        check_same(path / STATE, about.get("team"), dataclasses.asdict(self.team))
        for number, loop in enumerate(self.loops):
            loop.load(path / f"step-{step}" / f"{number}.safetensors")
        if self.critic is not None:
            self.critic.load(path / f"step-{step}" / CRITIC)
        self.step, self.order = step, list(order)


def train_team(
    team: Team,
    progress: Callable[[dict[str, Any]], None] | None = None,
    folder: str | pathlib.Path | None = None,
) -> list[dict[str, Any]]:
    """Take `config.steps` steps; gives the metrics of those that were taken, a dict each.

    Args:
        team: whose policies are changed.
        progress: called with each line.
        folder: for the state, every `config.checkpoint_every` steps and at the end; where one is there it continues.
    """
    config, lines = team.loops[0].config, list[dict[str, Any]]()
    if folder is not None and (pathlib.Path(folder) / STATE).is_file():
        team.load(folder)
    while team.step < config.steps:
        found = team.advance()
        lines.append({"step": team.step, **found})
        if progress is not None:
            progress(lines[-1])
        if folder is not None and (team.step % config.checkpoint_every == 0 or team.step == config.steps):
            team.save(folder)
    return lines
