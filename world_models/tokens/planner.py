"""`TrajectoryPlanner`: a policy head that searches by beams for the best future which a model of trajectories gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from surefoot.core.actors.actor import OptionsActor
from surefoot.core.actors.memory import Memory
from surefoot.core.base.errors import ConfigError
from surefoot.world_models.tokens.tokens import Bins, drawn, uniform_of, without_tail
from surefoot.world_models.tokens.transformer import Past, TokenTransformer, of_rows

SEARCH: dict[str, Any] = {
    "past": 5,
    "horizon": 5,
    "beams": 32,
    "expansion": 2,
    "action_tail": 0.6,
    "discount": 0.99,
}
"""Options of the search."""
NETWORKS: dict[str, Any] = {
    "bins": 100, "law": "quantile", "context": 10, "width": 128, "layers": 4, "heads": 4, "reads_to_go": False,
}  # fmt: skip
"""Options of the networks, and the official values."""
PART = 8
"""Rows that are planned for at once: each of them has beams of its own."""


class Beams(NamedTuple):
    """Futures under way of B rows with N beams each."""

    actions: Tensor
    """(B N, h, A) tokens of the actions so far."""
    earned: Tensor
    """(B N,) discounted sum of the rewards so far."""
    past: Past
    logits: Tensor
    """(B N, K) log-odds of the next token."""


class TrajectoryPlanner(OptionsActor):
    r"""Beam search in a transformer over tokens of states, actions, rewards and returns-to-go.

    From what was seen, each of N beams continues in E ways: its actions are drawn token by token, the least likely
    `action_tail` of the odds left out; reward and return-to-go are the means of their tokens, and the N best futures by

    .. math:: \textstyle\sum_{k \le h} \gamma^k r_k + \gamma^{h + 1} \hat G_{h}

    continue by the likeliest tokens of the next state, H steps in all. The first action of the best is carried out. G
    is the discounted sum of all rewards after the step's own, so that no search needs to look to the end. Source:
    Janner, Li and Levine, "Offline Reinforcement Learning as One Big Sequence Modeling Problem" (NeurIPS 2021), section
    3.2.

    The memory is the last `past` steps. Past and horizon together are no longer than what the transformer was trained
    on; the published search has a horizon beyond it, and drops the oldest steps while it plans. The noise is that of
    the actions' draws, for all beams of all steps: rows planned together equal rows planned alone.
    """

    kind = "trajectory_planner"
    defaults: ClassVar[Mapping[str, Any]] = {"reads_to_go": True}
    always_samples = True
    needs_outcomes = True

    def __init__(
        self,
        transformer: TokenTransformer,
        bins: Bins,
        observation_dim: int,
        action_dim: int,
        options: Mapping[str, Any],
    ) -> None:
        """Search in a model.

        Args:
            transformer: of O + A + 2 places a step.
            bins: of as many numbers.
            observation_dim: O.
            action_dim: A.
            options: those of `SEARCH`, and of `NETWORKS`, by which the networks were built.

        Raises:
            ConfigError: no beam, or more steps than the transformer was trained on.
        """
        super().__init__()
        self.transformer, self.bins = transformer, bins
        self.observation_dim, self.action_dim = observation_dim, action_dim
        self.options = {name: options[name] for name in (*NETWORKS, *SEARCH)}
        o = self.options
        if min(o["horizon"], o["beams"], o["expansion"]) < 1 or o["past"] < 0 or not 0 <= o["action_tail"] < 1:
            raise ConfigError(
                f"horizon {o['horizon']}, beams {o['beams']}, expansion {o['expansion']}, past {o['past']} and action "
                f"tail {o['action_tail']}: at least 1, 1, 1, 0, and in [0, 1)"
            )
        if o["past"] + o["horizon"] > o["context"]:
            raise ConfigError(
                f"past {o['past']} and horizon {o['horizon']} are longer than the {o['context']} steps of context: "
                "give context more, and train anew, or look less far"
            )

    @property
    def noise_dim(self) -> int:
        """Numbers of a whole search: for each step, beam, expansion and dimension of the action."""
        o = self.options
        return int(o["horizon"] * o["beams"] * o["expansion"] * self.action_dim)

    # -- memory --------------------------------------------------------------------------------------------

    def begin(self, rows: int) -> Memory:
        """No steps seen."""
        some = self.transformer.positions
        shape = (rows, self.options["past"], self.transformer.places)
        return {"steps": some.new_zeros(shape), "seen": some.new_zeros(rows, 1)}

    def executed(self, memory: Memory, actions: Tensor) -> Memory:
        """The memory with what was done in the newest step; its reward and return-to-go come with `observe_outcome`."""
        if self.options["past"] == 0:
            return memory
        first = self.observation_dim
        last = torch.cat(
            [memory["steps"][:, -1, :first], actions, memory["steps"][:, -1, first + actions.shape[1] :]], -1
        )
        return {**memory, "steps": torch.cat([memory["steps"][:, :-1], last.unsqueeze(1)], 1)}

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """The memory with what the newest step earned; of what follows, the model's own mean was written by `step`."""
        if self.options["past"] > 0:
            kept = memory["steps"][:, -1]
            last = torch.cat([kept[:, :-2], rewards.unsqueeze(-1), kept[:, -1:]], -1)
            memory = {**memory, "steps": torch.cat([memory["steps"][:, :-1], last.unsqueeze(1)], 1)}
        return super().observe_outcome(memory, rewards, costs, ended)

    # -- the search ----------------------------------------------------------------------------------------

    def search(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, A) actions of the best future, its (B,) value, and the (B,) return-to-go behind its first step.

        Args:
            observations: (B, O) as the bins read them.
            memory: steps before.
            noise: (B, `noise_dim`) standard normal.
        """
        o, rows = self.options, len(observations)
        count = o["beams"] * o["expansion"]
        uniform = uniform_of(noise).unflatten(-1, (o["horizon"], count, self.action_dim))
        steps = self.bins.encode(memory["steps"]).flatten(1)
        tokens = torch.cat([steps, self.bins.encode(observations)], 1)
        skipped = (o["past"] - memory["seen"].squeeze(-1)).clamp(min=0).long()
        logits, past = self.transformer(tokens, skipped=skipped)
        every = torch.arange(rows, device=observations.device).repeat_interleave(count)
        at, skipped = tokens.shape[1], skipped[every]
        none = tokens.new_zeros(rows * count, 0, self.action_dim)
        beams = Beams(none, observations.new_zeros(rows * count), of_rows(past, every), logits[every, -1])
        first = observations.new_zeros(rows * count)
        for step in range(o["horizon"]):
            beams, behind, at = self._acted(beams, uniform[:, step].flatten(0, 1), at, skipped)
            reward, to_go = behind.unbind(-1)
            earned = beams.earned + o["discount"] ** step * reward
            value = (earned + o["discount"] ** (step + 1) * to_go).unflatten(0, (rows, count))
            first = to_go if step == 0 else first
            last = step == o["horizon"] - 1
            best = value.topk(1 if last else o["beams"], -1)
            offsets = torch.arange(rows, device=value.device).unsqueeze(-1) * count
            chosen = (best.indices + offsets).flatten()
            if not last:
                chosen = chosen.repeat_interleave(o["expansion"])
            first = first[chosen]
            beams = Beams(beams.actions[chosen], earned[chosen], of_rows(beams.past, chosen), beams.logits[chosen])
            if not last:
                beams, at = self._moved(beams, at, skipped)
        place = self.observation_dim
        return self.bins.decode(beams.actions, place), best.values[:, 0], first

    def _read(self, beams: Beams, token: Tensor, at: int, skipped: Tensor) -> Beams:
        logits, past = self.transformer(token.unsqueeze(-1), at, beams.past, skipped)
        return beams._replace(past=past, logits=logits[:, -1])

    def _acted(self, beams: Beams, uniform: Tensor, at: int, skipped: Tensor) -> tuple[Beams, Tensor, int]:
        """Beams with one action more, the (B N, 2) means of reward and return-to-go, and the next token's number."""
        tokens, means = [], []
        for number in range(self.action_dim):
            odds = without_tail(beams.logits.softmax(-1), self.options["action_tail"])
            tokens.append(drawn(odds, uniform[:, number]))
            beams, at = self._read(beams, tokens[-1], at, skipped), at + 1
        for number in range(2):
            odds = beams.logits.softmax(-1)
            means.append(self.bins.expected(odds, self.observation_dim + self.action_dim + number))
            beams, at = self._read(beams, odds.argmax(-1), at, skipped), at + 1
        action = torch.stack(tokens, -1).unsqueeze(1)
        return beams._replace(actions=torch.cat([beams.actions, action], 1)), torch.stack(means, -1), at

    def _moved(self, beams: Beams, at: int, skipped: Tensor) -> tuple[Beams, int]:
        """Beams with the likeliest next state."""
        for _ in range(self.observation_dim):
            beams, at = self._read(beams, beams.logits.argmax(-1), at, skipped), at + 1
        return beams, at

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`: the first actions of the best futures; the present step enters the memory."""
        if noise is None:
            raise ConfigError("a search draws its actions from noise: give (B, noise_dim) standard normal numbers")
        found, to_go = [], []
        with torch.no_grad():
            for rows in torch.arange(len(observations), device=observations.device).split(PART):
                own = {name: value[rows] for name, value in memory.items()}
                actions, _, behind = self.search(observations[rows], own, noise[rows])
                found.append(actions[:, 0])
                to_go.append(behind)
        action, behind = torch.cat(found), torch.cat(to_go)
        if self.options["past"] == 0:
            return action, memory
        fresh = torch.cat([observations, action, torch.zeros_like(behind).unsqueeze(-1), behind.unsqueeze(-1)], -1)
        steps = torch.cat([memory["steps"][:, 1:], fresh.unsqueeze(1)], 1)
        return action, {**memory, "steps": steps, "seen": memory["seen"] + 1}

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions at the first step of an episode, from (B, `noise_dim`) noise."""
        return self.step(observations, self.begin(len(observations)), noise)[0]

    # -- how it is built again -----------------------------------------------------------------------------

    @classmethod
    def built(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `OptionsActor.built`."""
        return cls(*networks(observation_dim, action_dim, options), observation_dim, action_dim, options)


def networks(observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> tuple[TokenTransformer, Bins]:
    """Transformer and bins of the sizes of `NETWORKS`: a step is state, action, reward and return-to-go."""
    places = observation_dim + action_dim + 2
    sizes = {name: options[name] for name in ("bins", "width", "layers", "heads")}
    unread = None if options["reads_to_go"] else places - 1
    transformer = TokenTransformer(places, options["context"], unread=unread, **sizes)
    return transformer, Bins(places, options["bins"], options["law"])
