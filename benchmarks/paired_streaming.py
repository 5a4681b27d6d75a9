"""Our streaming agents beside the official ones over one scripted stream (peers/scripted_env.py).

Ours acts; the other code is handed its first weights and its actions. Compared are the observations as they reach the
networks, the TD errors, which hold the scaled rewards and the ends, and the networks on the way.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from surefoot.core.engine.agent import Spec

sys.path.append(str(pathlib.Path(__file__).parent / "peers"))
import scripted_env

Arrays = dict[str, np.ndarray]
STEPS = 1000


def networks(agent: Any) -> Arrays:
    """Weights (out, in) and biases (out) of the first stream by name."""
    found: Arrays = {}
    for name, network in agent.networks.items():
        for layer, (weight, bias) in enumerate(network.layers(getattr(agent, f"{name}_weights")[:1])):
            found[f"{name}.weights.{layer}"] = weight[0].numpy().copy()
            found[f"{name}.biases.{layer}"] = bias[0].numpy().copy()
    return found


def ours(kind: Any, options: dict[str, Any], at: tuple[int, ...]) -> tuple[Arrays, Arrays, Arrays]:
    """First weights and actions, for the other code; what reached the networks; networks at some steps."""
    env = scripted_env.Scripted(kind.name == "stream_q")
    spec = Spec.of_choices(scripted_env.OBSERVATIONS, scripted_env.ACTIONS)
    if kind.name != "stream_q":
        size = scripted_env.ACTIONS
        spec = Spec(scripted_env.OBSERVATIONS, size, (-1.0,) * size, (1.0,) * size)
    agent = kind(spec, **options).fresh(0)
    agent.plan(STEPS)
    given = {f"weights/{name}": values for name, values in networks(agent).items()}
    seen: dict[str, list[Any]] = {"observations": [], "td_errors": [], "actions": [], "explored": []}
    snapshots: Arrays = {}
    agent.begin(env.reset()[0])
    seen["observations"].append(agent.states[0].numpy().copy())
    for step in range(1, STEPS + 1):
        seen["actions"].append(agent.chosen[0].numpy().copy())
        seen["explored"].append(bool(agent.explored[0]))
        observation, reward, terminated, truncated, _ = env.step(None)
        agent.step(observation, reward, terminated, truncated)
        seen["td_errors"].append(float(agent.out_td[0]))
        seen["observations"].append(agent.states[0].numpy().copy())
        if step in at:
            snapshots |= {f"{step}/{name}": values for name, values in networks(agent).items()}
        if terminated or truncated:
            agent.begin(env.reset()[0])
            seen["observations"].append(agent.states[0].numpy().copy())
    columns = {name: np.array(values, np.float32) for name, values in seen.items()}
    given |= {name: columns.pop(name) for name in ("actions", "explored")}
    return given, columns, snapshots


def compare(
    kind: Any, options: dict[str, Any], at: tuple[int, ...], ask: Callable[[Arrays], Arrays]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `rows` and `steps` say of the pair.

    Args:
        kind: class of our agent.
        options: of it.
        at: steps after which networks are compared.
        ask: first weights, actions and which of them explored -> the other code's columns and networks.
    """
    given, columns, mine = ours(kind, options, at)
    theirs = ask(given)
    rows: dict[str, Any] = {"ours": len(columns["observations"]), "theirs": len(theirs["observations"]), "cut": 0}
    rows["columns"] = {
        name: {
            "largest": float(np.abs(values - theirs[name]).max()),
            "scale": float(np.abs(theirs[name]).max()),
        }
        for name, values in columns.items()
    }
    distances: dict[str, dict[str, float]] = {}
    for step in at:
        for network in sorted({name.split("/")[1].split(".")[0] for name in mine}):
            names = [name for name in mine if name.startswith(f"{step}/{network}.")]
            left, right = (np.concatenate([side[name].ravel() for name in names]) for side in (mine, theirs))
            started = np.concatenate([given[f"weights/{name.split('/')[1]}"].ravel() for name in names])
            moved = max(float(np.linalg.norm(right - started)), 1e-30)
            distances.setdefault(str(step), {})[network] = float(np.linalg.norm(left - right)) / moved
    rates = {str(step): {"critic": float(options.get("step_size", 1.0))} for step in at}
    return rows, {"distances": distances, "theirs": {"rates": rates}, "ours": {"rates": rates}}
