"""Starting from another run: which networks come along, and whether its policy or its data is the better one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.engine.agent import Agent, Update
from surefoot.core.engine.learner import Learner
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.temperature import Temperature
from surefoot.envs.acting import under
from surefoot.envs.names import gymnasium_id
from surefoot.evaluation import evaluate, hierarchical_interval
from surefoot.online.base.on_policy_agent import OnPolicyAgent
from surefoot.online.base.pretrained import FlowOptions, chosen_of, take_encoder
from surefoot.online.loops.on_policy import OnPolicyLoop
from surefoot.runs.inputs import elsewhere
from surefoot.runs.plan import TRAINING_EVALUATION_SEED, Plan, agent_class
from surefoot.runs.run import Run, load_agent, load_state
from surefoot.streaming.agent import StreamingAgent


def initialise_from(agent: Agent, run: Run, seed: int, position: int = 0) -> list[str]:
    """Start `agent` from another run: the networks of its `warm_start`, and what else fits by name and shape.

    Args:
        agent: to be changed.
        run: with checkpoints.
        seed: of the agent there, where it has it; else its first is taken.
        position: of the stream, where the agent is one of several.

    Returns:
        Names of the networks that came along whole.

    Raises:
        ConfigError: something that it inherits is missing there, of another size or another function; another kind of
            actor; or actions of another range.
    """
    source = load_agent(run, _seed_there(run, seed))
    if isinstance(agent, StreamingAgent) or isinstance(source, StreamingAgent):
        return _stream_from(agent, source, run, position)
    there, here = source.spec, agent.spec
    orders = list(there.observations.items()), list(here.observations.items())  # features are joined in it
    if orders[0] != orders[1] or there.action_dim != here.action_dim:
        raise ConfigError(
            f"init={run.folder}: its {run.plan.algorithm} agent does not fit {agent.name} here: it observes "
            f"{there.described()} and has {there.action_dim} actions, this problem {here.described()} and "
            f"{here.action_dim}"
        )
    theirs, mine = source.state_dict(), agent.state_dict()
    adopted = agent.load_from(source)
    if adopted is not None:
        _same_bounds(agent, run, mine, theirs)
        agent.normalizer.load_state_dict(source.normalizer.state_dict())
        agent.normalizer.fixed = True
        return [*adopted, *take_encoder(agent, source)]
    others = _other_functions(agent, source)
    fits = {  # all but what begins anew
        name: name in theirs and theirs[name].shape == value.shape and not name.startswith(others)
        for name, value in mine.items()
        if name not in agent.warm_start.counters
    }
    needed = {"encoder", *_wanted(agent, source)}  # networks that come along read its features
    unfit = [name for name, fit in fits.items() if name.split(".")[0] in needed and not fit]
    if "actor" in needed and type(agent.actor) is not type(source.actor):
        unfit = [f"a {source.actor.kind} actor is no {agent.actor.kind} one: its head"]
    elif not unfit:
        _same_bounds(agent, run, mine, theirs)
    if unfit:
        raise ConfigError(
            f"init={run.folder}: its {run.plan.algorithm} agent does not fit {agent.name} as configured ({unfit[0]} "
            "differs); use the same observations, encoder, actions, actor, critics, hidden layers, layer norms and "
            "activations, or train it with the same preset first"
        )
    agent.load_state_dict({name: theirs[name] if fits.get(name) else value for name, value in mine.items()})
    return _settled(agent, source, fits)


def _settled(agent: Agent, source: Agent, fits: Mapping[str, bool]) -> list[str]:
    """Set right what hangs on the tensors that came along (those that fit): followers, temperatures, rewards' scale.

    Returns:
        Names of the networks that came along whole.
    """
    agent.normalizer.fixed = source.requires.policy  # a model of the world reads observations as they are
    networks = sorted({name.split(".")[0] for name, _ in agent.named_parameters()})
    taken = [n for n in networks if all(fit for name, fit in fits.items() if name.split(".")[0] == n)]
    for follower, leader in agent.copies().items():
        if follower not in taken:
            getattr(agent, follower).load_state_dict(getattr(agent, leader).state_dict())
    for name in taken:
        network, other = getattr(agent, name), getattr(source, name)
        if isinstance(network, Temperature) and network.form != other.form:
            network.set(other().item())
    agent.rewards_fixed = type(agent) is type(source) or any("critic" in name for name in taken)
    if not agent.rewards_fixed and "model" not in taken:  # nothing came along that knows rewards as they were there
        agent.reward_scale.fill_(1.0)
        agent.reward_shift.fill_(0.0)
    return taken


def _wanted(agent: Agent, source: Agent) -> tuple[str, ...]:
    """What must come along: of a model of the world alone the model, else the networks of the agent's `warm_start`.

    Raises:
        ConfigError: there is only a model, and the agent has none.
    """
    if source.requires.policy:
        return agent.warm_start.networks
    if not hasattr(agent, "model"):
        raise ConfigError(f"{agent.name} can't start from a run of {source.name}: it has no model of the world")
    return ("model", "model_best")


def moments_from(agent: Agent, run: Run, seed: int) -> dict[str, Tensor]:
    """Adam's moments and counts that come along from a run, named as `Learner.state` names them.

    Of losses that both have, for the same networks, where that algorithm is in `warm_start.moments`. A temperature
    that is written in another form has another gradient: its moments stay behind.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    if run.plan.algorithm not in agent.warm_start.moments:
        return {}
    source, stems = run.agent(), []
    for update in agent.updates():
        for name in update.trains if isinstance(update, Update) else ():
            mine, other = getattr(agent, name), getattr(source, name, None)
            if not (isinstance(mine, Temperature) and isinstance(other, Temperature) and mine.form != other.form):
                stems.append(f"adam/{update.name}/{name}/")
    state = load_state(run, _seed_there(run, seed))
    return {name: value for name, value in state.items() if name.startswith(tuple(stems))}


def take_moments(learner: Learner, run: Run) -> None:
    """Let the optimisers continue where those of the run that the agents start from ended.

    Args:
        learner: not trained yet, of agents that `initialise_from` started.
        run: with checkpoints.

    Raises:
        CheckpointError: a checkpoint is missing or damaged; seeds that continue together have taken unequal steps.
    """
    given = [moments_from(learner.agent, run, seed) for seed in learner.seeds]
    for name in given[0]:
        if name.endswith("/count") and len({float(one[name]) for one in given}) > 1:
            raise CheckpointError(
                f"init={run.folder}: its seeds have not taken equally many steps: resume it to its end first"
            )
    for position, one in enumerate(given):
        learner.take_moments(position, one)


def take_reward_scale(loop: OnPolicyLoop, run: Run) -> None:
    """Let the scale of rewards continue where that run's ended, where `_keeps_reward_scale`.

    Args:
        loop: not trained yet, of agents that `initialise_from` started.
        run: with checkpoints.

    Raises:
        CheckpointError: a checkpoint is missing or damaged.
    """
    if _keeps_reward_scale(loop.agent, run):
        for position, seed in enumerate(loop.seeds):
            given = under(load_state(run, _seed_there(run, seed)), "rewards/")
            loop.rewards.take_moments(position, given)


def _keeps_reward_scale(agent: Agent, run: Run) -> bool:
    """Whether a critic came along that learned of rewards over a running deviation, and rewards are scaled so here."""
    there = issubclass(agent_class(run.plan.algorithm), OnPolicyAgent) and run.plan.config["normalize_rewards"]
    return bool(there and agent.rewards_fixed and getattr(agent.config, "normalize_rewards", False))


def _seed_there(run: Run, seed: int) -> int:
    """The seed of a run that stands for `seed`: itself, or the first where the run does not have it."""
    return seed if seed in run.plan.seeds else run.plan.seeds[0]


def _other_functions(agent: Agent, source: Agent) -> tuple[str, ...]:
    """Prefixes of the parameters whose numbers would mean another function here: other activations, say."""
    theirs = dict(source.named_modules())
    return tuple(
        f"{name}."
        for name, network in agent.named_modules()
        if isinstance(network, MLP) and isinstance(other := theirs.get(name), MLP)
        if any(getattr(network, n) != getattr(other, n) for n in ("activation", "unit_features", "layer_norm"))
    )


BOUNDS = ("action_low", "action_high")
STATISTICS = ("observation_", "reward_count", "reward_mean", "reward_squares")


def _same_bounds(agent: Agent, run: Run, mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """Refuse to start from a policy whose -1 and 1 mean other actions."""
    if any(not torch.allclose(theirs[name], mine[name]) for name in BOUNDS):
        ours, its = ([[round(float(b), 6) for b in of[name]] for name in BOUNDS] for of in (mine, theirs))
        raise ConfigError(
            f"init={run.folder}: its {run.plan.algorithm} agent does not fit {agent.name} as configured: actions reach "
            f"from {its[0]} to {its[1]} there and from {ours[0]} to {ours[1]} here"
            + ("; state the same range by action_low= and action_high=" if run.plan.environment is None else "")
        )


def fine_tunes(kind: type[Agent]) -> bool:
    """Whether an algorithm is made to start from a run's policy, whose sizes its options are left to."""
    return bool(kind.inherit_options.__func__ is not Agent.inherit_options.__func__)  # type: ignore[attr-defined]


def settled(plan: Plan) -> Plan:
    """The plan with what its algorithm leaves to the run that it starts from, such as the sizes of a policy.

    Raises:
        ConfigError: that run's policy is not of a kind that the algorithm starts from.
    """
    kind = agent_class(plan.algorithm)
    if plan.init is None or not fine_tunes(kind):
        return plan
    return dataclasses.replace(
        plan, config={**plan.config, **kind.inherit_options(plan.config, Run.open(plan.init).agent())}
    )


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


def start_notes(agent: Agent, plan: Plan) -> list[str]:
    """Initialise `agent` from the plan's run, where it has one, and say what came along, and for one that acts, what
    should be kept; or that there is nothing to fine-tune.

    Raises:
        ConfigError: as `initialise_from`.
    """
    notes = _without_limit(agent, plan)
    if plan.init is None:
        alone = f"no init=: {agent.name} fine-tunes a policy that was cloned, and begins with an untrained one here"
        return [*notes, *_frozen_as_drawn(agent, ()), *([alone] if fine_tunes(type(agent)) else [])]
    run = Run.open(plan.init)
    taken = initialise_from(agent, run, plan.seeds[0])
    notes += _frozen_as_drawn(agent, taken)
    networks = {name.split(".")[0] for name, _ in agent.named_parameters()}
    new = sorted(networks - set(taken) - set(agent.copies()))
    moving = sorted({name.split("/")[2] for name in moments_from(agent, run, plan.seeds[0])})
    notes += [
        f"init: {', '.join(taken)} of {run.plan.algorithm} in {run.folder.name}"
        + (f"; new: {', '.join(new)}" if new else "")
        + (f"; Adam continues in {', '.join(moving)}" if moving else "")
        + ("; so does the scale of rewards" if _keeps_reward_scale(agent, run) else "")
    ]
    if isinstance(agent.config, FlowOptions) and (count := chosen_of(run.agent())) > 1:
        notes.append(
            f"init: the policy of {run.folder.name} plays the best of {count} draws of its flow; {agent.name} begins "
            "with one draw of that flow, and its first returns are those"
        )
    if agent.requires.online and agent_class(run.plan.algorithm).requires.policy:
        notes += elsewhere(run.plan.environment, plan.environment, f"the policy of {run.folder.name}")
        notes += advice(run, plan)
    return notes


def _frozen_as_drawn(agent: Agent, taken: Sequence[str]) -> list[str]:
    """That an encoder which stays as it is has the weights that it was drawn with; `taken` came from another run."""
    config = agent.config
    drawn = agent.encoder is not None and bool(agent.encoder.views) and "encoder" not in taken
    if not drawn or config.encoder_trains or config.encoder_weights:
        return []
    return [
        f"{agent.name}.encoder_trains is false, and neither encoder_weights nor init= gives the encoder: it stays as "
        "it was drawn, at random; start from a run whose policy sees, or set algo.encoder_trains=true"
    ]


def _without_limit(agent: Agent, plan: Plan) -> list[str]:
    """That a limit of normalised observations, perhaps a preset's, has nothing to clip."""
    config = agent.config
    if not isinstance(agent, OnPolicyAgent) or config.normalize_observations or config.observation_limit is None:
        return []
    text = f"{agent.name}.observation_limit clips normalised observations, and there are none"
    return [text if plan.init is None else f"{text}; leave normalize_observations out to clip by the run's statistics"]


def advice(run: Run, plan: Plan) -> list[str]:
    """Both returns, and what the three-regimes rule says: protect the better of policy and data.

    A policy whose return in the plan's environment the run does not know is evaluated there.

    Source: "The Three Regimes of Offline-to-Online Reinforcement Learning" (2025).
    """
    if plan.environment is None:
        return []
    summary: dict[str, Any] = run.summary if run.complete else {}
    policy, data, before = summary.get("returns"), summary.get("behaviour"), summary.get("environment")
    unlike = before is None or gymnasium_id(before) != gymnasium_id(plan.environment)
    if policy is None or unlike:
        policies = [load_agent(run, seed).policy() for seed in run.plan.seeds]
        found = evaluate(policies, plan.environment, plan.evaluate_episodes, seed=TRAINING_EVALUATION_SEED)
        policy = hierarchical_interval([one.returns for one in found]).to_json()
    if data is None or (before is not None and unlike):
        return [f"the policy that it starts from returns {_bounds(policy)}; its data's return here is not known"]
    both = f"the policy that it starts from returns {_bounds(policy)}, its data {_bounds(data)}"
    ends = [policy["low"], policy["high"], data["low"], data["high"]]
    known = None not in ends  # a single episode has no interval
    if known and policy["low"] > data["high"]:
        return [f"{both}: the policy is better, so protect it (wsrl); old data is not needed"]
    if known and policy["high"] < data["low"]:
        text = f"{both}: the data is better, so keep learning from it (rlpd)"
        return [text if plan.dataset is not None else f"warning: {text}; this run discards it"]
    if policy["mean"] < data["mean"] and plan.dataset is None:
        return [f"warning: {both}: the data may be the better of the two, and this run discards it"]
    return [f"{both}: neither is clearly better, with or without the data may work"]


def _bounds(value: dict[str, Any]) -> str:
    known = "" if value["low"] is None else f" [{value['low']:.1f}, {value['high']:.1f}]"
    return f"{value['mean']:.1f}{known}"
