"""What is trained, rolled out and planned here: Learners of HalfCheetah's sizes, policies and planners."""

from __future__ import annotations

import dataclasses
import itertools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Source, Stores, Uniform
from surefoot.cuda_ext.policy import NativePolicy
from surefoot.cuda_ext.system import System
from surefoot.data.store import Store
from surefoot.model_based import TDMPC2, LearnedDynamics
from surefoot.offline import ReBRAC
from surefoot.runs.plan import agent_class
from surefoot.world_models.known.exact import NativeDynamics
from surefoot.world_models.planners import MPPI

OBSERVATIONS, ACTIONS, BATCH = 17, 6, 256
NAMES = ("iql", "sac", "fql", "tdmpc2", "dynamics")
HORIZON = 3
"""Steps of TD-MPC2's windows."""
CRITICS = 10
"""Of ReBRAC on puzzles, with four layers of 512."""
NEVER = 10**9
"""Steps until a model is measured on held-out rows."""


def random_columns(rows: int) -> dict[str, np.ndarray[Any, Any]]:
    """Made-up transitions of HalfCheetah's sizes."""
    source = np.random.default_rng(0)
    return {
        "observations": source.standard_normal((rows, OBSERVATIONS), dtype=np.float32),
        "actions": source.uniform(-0.99, 0.99, (rows, ACTIONS)).astype(np.float32),
        "rewards": source.standard_normal(rows, dtype=np.float32),
        "terminations": np.zeros(rows, bool),
        "next_observations": source.standard_normal((rows, OBSERVATIONS), dtype=np.float32),
    }


def made(name: str, seeds: int, device: str, rows: int = 200_000, compiled: bool = False) -> Learner:
    """A Learner of `seeds` agents of the library's usual sizes on made-up rows; on the meta device, to be counted."""
    spec = Spec(OBSERVATIONS, ACTIONS, (-1.0,) * ACTIONS, (1.0,) * ACTIONS)
    agents, sources = _agents_and_sources(name, spec, seeds, device, rows)
    options: dict[str, Any] = {"device": device, "stacked": True, "compiled": compiled, "planned_steps": NEVER}
    return Learner(agents, list(range(seeds)), sources, batch_size=BATCH, **options)


def _agents_and_sources(name: str, spec: Spec, seeds: int, device: str, rows: int) -> tuple[list[Agent], Any]:
    agents: list[Any]
    if name == "tdmpc2":
        agents = [TDMPC2(spec, episode_length=1000).fresh(seed) for seed in range(seeds)]
        return agents, _windows(min(rows, 4096), device)
    if name == "rebrac":
        agents = [ReBRAC(spec, preset="fql", critics=CRITICS).fresh(seed) for seed in range(seeds)]
        return agents, _windows(min(rows, 4096), device, 2 * agents[0].config.chunk)
    columns = random_columns(rows)
    store = Store.pack(columns, device="cpu" if device == "meta" else device)
    if device == "meta":
        store.groups = {key: value.to("meta") for key, value in store.groups.items()}
    if name != "dynamics":
        return [agent_class(name)(spec).fresh(seed) for seed in range(seeds)], Uniform(store)
    agents = [LearnedDynamics(spec, model_epoch=NEVER).fresh(seed) for seed in range(seeds)]
    for agent in agents:
        agent.model.fit_statistics(columns)
        agent.model_best.epoch = NEVER
    return agents, agents[0].sources(Stores(types.SimpleNamespace(valid=np.ones(rows, bool)), store))


def _windows(count: int, device: str, steps: int = HORIZON) -> Source:
    windows = {
        "observations": torch.randn(count, steps, OBSERVATIONS),
        "next_observations": torch.randn(count, steps, OBSERVATIONS),
        "actions": torch.rand(count, steps, ACTIONS) * 2 - 1,
        "rewards": torch.randn(count, steps),
        "terminations": torch.zeros(count, steps),
        "mask": torch.ones(count, steps),
    }
    placed = {key: value.to(device) for key, value in windows.items()}
    return Uniform(lambda rows: {key: value[rows] for key, value in placed.items()}, count)


def policy_of(system: System, hidden: tuple[int, ...] = (64, 64), norm: bool = False) -> NativePolicy:
    """A tanh policy with weights that keep activations of the order of 1, on the processor."""
    torch.manual_seed(0)
    widths = [len(system.observations), *hidden, len(system.actions)]
    high = torch.tensor(system.action_high)
    norms: dict[str, Any] = {}
    if norm:
        norms = {"gains": [torch.ones(width) for width in hidden], "shifts": [torch.zeros(width) for width in hidden]}
    return NativePolicy(
        weights=[torch.randn(after, before) / before**0.5 for before, after in itertools.pairwise(widths)],
        biases=[torch.zeros(width) for width in widths[1:]],
        action_middle=torch.zeros_like(high),
        action_half=high,
        activation="tanh",
        **norms,
    )


def moved(policy: NativePolicy, device: str) -> NativePolicy:
    """The policy with its tensors on a device."""

    def there(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device)
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            return [one.to(device) for one in value]
        return value

    fields = {field.name: there(getattr(policy, field.name)) for field in dataclasses.fields(policy)}
    return dataclasses.replace(policy, **fields)


def plans(
    device: str, states: int, samples: int, horizon: int, env_id: str = "native/cartpole-balance"
) -> Callable[[], None]:
    """What makes a plan of MPPI for each of `states` states, the next one from where the last one was."""
    world = NativeDynamics(env_id, backend="native")
    planner = MPPI(horizon=horizon, samples=samples, temperature=0.1, color=0.0)
    start = 0.05 * torch.randn(states, 4, generator=torch.Generator().manual_seed(0)).to(device)
    memory = {name: value.to(device) for name, value in planner.begin(states, 1).items()}

    def once() -> None:
        nonlocal memory
        _, memory = planner.plan(world, start, memory)

    once()
    return once
