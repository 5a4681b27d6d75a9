"""Starting from another run: which networks come along, and whether its policy or its data is the better one."""

from __future__ import annotations

from typing import Any

import torch

from surefoot.core.agent import Agent
from surefoot.core.errors import ConfigError
from surefoot.plan import Plan
from surefoot.run import Run, load_agent
from surefoot.streaming.agent import StreamingAgent


def initialise_from(agent: Agent, run: Run, seed: int, position: int = 0) -> list[str]:
    """Start `agent` from another run: what it `inherits` in any case, and what else fits by name and shape.

    Args:
        agent: to be changed.
        run: with checkpoints.
        seed: of the agent there, where it has it; else its first is taken.
        position: of the stream, where the agent is one of several.

    Returns:
        Names of the networks that came along whole.

    Raises:
        ConfigError: something that it inherits is missing there, of another size, or another kind of actor.
    """
    source = load_agent(run, seed if seed in run.plan.seeds else run.plan.seeds[0])
    if isinstance(agent, StreamingAgent) or isinstance(source, StreamingAgent):
        return _stream_from(agent, source, run, position)
    theirs, mine = source.state_dict(), agent.state_dict()
    fits = {name: name in theirs and theirs[name].shape == value.shape for name, value in mine.items()}
    unfit = [name for name in mine if name.split(".")[0] in agent.inherits and not fits[name]]
    if type(agent.actor) is not type(source.actor):
        unfit = [f"a {source.actor.kind} actor is no {agent.actor.kind} one: its head"]
    if unfit:
        raise ConfigError(
            f"init={run.folder}: its {run.plan.algorithm} agent does not fit {agent.name} as configured ({unfit[0]} "
            "differs); use the same observation and action sizes, actor, critics and hidden layers"
        )
    agent.load_state_dict({name: theirs[name] if fits[name] else value for name, value in mine.items()})
    agent.normalizer.fixed = True
    networks = sorted({name.split(".")[0] for name, _ in agent.named_parameters()})
    taken = [n for n in networks if all(fit for name, fit in fits.items() if name.split(".")[0] == n)]
    agent.rewards_fixed = type(agent) is type(source) or any("critic" in name for name in taken)
    return taken


STATISTICS = ("observation_", "reward_count", "reward_mean", "reward_squares")


def _stream_from(agent: Agent, source: Agent, run: Run, position: int) -> list[str]:
    """Weights and statistics of a stream, but no traces: an episode begins."""
    known = getattr(agent, "stream_buffers", ())
    wanted = [name for name in known if name.endswith("_weights") or name.startswith(STATISTICS)]
    same = type(source) is type(agent)
    pairs = [(getattr(agent, name), getattr(source, name)) for name in wanted] if same else []
    if not same or any(mine.shape[1:] != theirs.shape[1:] for mine, theirs in pairs):
        raise ConfigError(
            f"init={run.folder}: streaming algorithms start from runs of the same one with the same sizes; this is "
            f"{agent.name} with hidden {agent.config.hidden}, and that run {source.name} with {source.config.hidden}"
        )
    with torch.no_grad():
        for mine, theirs in pairs:
            mine[position] = theirs[0]
    return [*(name.removesuffix("_weights") for name in wanted if name.endswith("_weights")), "statistics"]


def start_notes(agent: Agent, run: Run, plan: Plan) -> list[str]:
    """Initialise `agent` from a run and say what came along, and for one that acts, what should be kept.

    Raises:
        ConfigError: as `initialise_from`.
    """
    taken = initialise_from(agent, run, plan.seeds[0])
    networks = {name.split(".")[0] for name, _ in agent.named_parameters()}
    new = sorted(networks - set(taken))
    notes = [
        f"init: {', '.join(taken)} of {run.plan.algorithm} in {run.folder.name}"
        + (f"; new: {', '.join(new)}" if new else "")
    ]
    if agent.acts:
        notes += advice(run, plan)
    return notes


def advice(run: Run, plan: Plan) -> list[str]:
    """Both returns, and what the three-regimes rule says: protect the better of policy and data.

    Source: "The Three Regimes of Offline-to-Online Reinforcement Learning" (2025).
    """
    summary: dict[str, Any] = run.summary if run.complete else {}
    policy, data = summary.get("returns"), summary.get("behaviour")
    if policy is None or data is None or summary.get("environment") != plan.environment:
        return ["the returns of the policy that it starts from and of its data are not both known in this environment"]
    both = f"the policy that it starts from returns {_bounds(policy)}, its data {_bounds(data)}"
    if policy["low"] > data["high"]:
        return [f"{both}: the policy is better, so protect it (wsrl); old data is not needed"]
    if policy["high"] < data["low"]:
        text = f"{both}: the data is better, so keep learning from it (rlpd)"
        return [text if plan.dataset is not None else f"warning: {text}; this run discards it"]
    return [f"{both}: neither is clearly better, with or without the data may work"]


def _bounds(value: dict[str, Any]) -> str:
    return f"{value['mean']:.1f} [{value['low']:.1f}, {value['high']:.1f}]"
