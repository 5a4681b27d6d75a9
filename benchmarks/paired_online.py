"""What the collection of our online loops hands to the update, beside another code's, in a scripted environment.

    python benchmarks/paired_online.py     # makes cartpole-mixed.hdf5, which pairs of choices learn from

The environment (peers/scripted_env.py) answers any action alike, so that two codes that act by different random numbers
must hand over the same rows: observations and what follows them at ends and time limits, rewards, targets' masks,
advantages and returns by equal networks, how many updates after each step, when learning begins.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from surefoot.data import from_arrays, save
from surefoot.envs import make_vec
from surefoot.online import spec_of
from surefoot.online.loops.off_policy import OffPolicyLoop
from surefoot.online.loops.on_policy import OnPolicyLoop

sys.path.append(str(pathlib.Path(__file__).parent / "peers"))
import scripted_env

Arrays = dict[str, np.ndarray]
STEPS = 400
"""As in the runner."""


def compare(kind: Any, options: dict[str, Any], ask: Callable[[Arrays], Arrays]) -> dict[str, Any]:
    """The largest difference of each column.

    Args:
        kind: class of our agent.
        options: of it.
        ask: networks by name -> the other code's columns.
    """
    env = make_vec(scripted_env.NAMES["discrete" if kind.name in ("dqn", "stream_q") else "box"], 1)
    agent = kind(spec_of(env), **options).fresh(0)
    state = agent.state_dict().items()
    given = {f"weights/{n}": v.detach().numpy().copy() for n, v in state if n.split(".")[0] in ("actor", "value")}
    ours = block(agent, env) if kind.name == "ppo" else replay(agent, env)
    theirs = ask(given)
    columns = {}
    for name, other in theirs.items():
        largest = np.abs(ours[name].astype(np.float64) - other.astype(np.float64)).max()
        columns[name] = {"largest": float(largest), "scale": float(np.abs(other).max())}
    if "rewards" in columns:
        columns["rewards"]["ratio"] = float(ours["rewards"].sum() / theirs["rewards"].sum())
    counts = [len(side["observations"]) for side in (ours, theirs)]
    return {"ours": counts[0], "theirs": counts[1], "cut": 0, "columns": columns}


def replay(agent: Any, env: Any) -> Arrays:
    """The replay buffer after `STEPS` steps, and how many updates were taken after each."""
    torch.set_num_threads(1)
    loop = OffPolicyLoop([agent], [0], env, planned_steps=STEPS, batch_size=256)
    counts: dict[str, list[float]] = {"updates": [], "epsilon": [], "targets": [_sum(loop)]}
    for _ in range(STEPS):
        loop.run(1)
        counts["updates"].append(loop.learner.step)
        counts["targets"].append(_sum(loop))
        if "epsilon" in loop.learner.buffers:
            counts["epsilon"].append(float(loop.learner.buffers["epsilon"]))
    buffer = loop.experience.buffer
    batch = buffer.gather(torch.arange(len(buffer))[buffer.valid])
    found = {name: batch[name].numpy() for name in agent.required_columns if name != "actions"}
    found |= {name: np.array(counts[name], np.float32) for name in ("updates", "epsilon")}
    found["target_moves"] = np.cumsum(np.diff(counts["targets"]) != 0).astype(np.float32)
    return found


def _sum(loop: OffPolicyLoop) -> float:
    """A number that changes where the target network does."""
    return float(loop.learner.agents_parameters(0)["target_critic.mlp.weights.0"].abs().double().sum())


def block(agent: Any, env: Any) -> Arrays:
    """Two blocks of steps by networks that stay as they are, and how often each row is learned from."""
    c = agent.config
    loop = OnPolicyLoop([agent], [0], env, planned_steps=2 * c.rows)
    loop.learner.run = lambda steps, *_: visits(loop, steps)  # type: ignore[method-assign, assignment]
    found: dict[str, list[np.ndarray]] = {}
    for number in range(2):
        loop.visits = np.zeros(c.rows, np.float32)  # type: ignore[attr-defined]
        loop.run(1)
        for name in ("observations", "values", "advantages", "returns"):
            found.setdefault(name, []).append(loop.store[name].numpy().copy())
        found.setdefault("visits", []).append(loop.visits)  # type: ignore[attr-defined]
        steps = (number + 1) * c.steps_per_block
        found.setdefault("updates", []).append(np.full(c.rows, steps, np.float32))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def visits(loop: Any, steps: int) -> dict[str, list[float]]:
    """Count the rows of the block's minibatches instead of learning from them."""
    for step in range(loop.learner.step, loop.learner.step + steps):
        loop.visits[loop.minibatches.rows(step)[0].numpy()] += 1
    loop.learner.step += steps
    return {}


def cartpole(folder: pathlib.Path, steps: int = 20_000) -> None:
    """Write cartpole-mixed.hdf5: a falling pole's side is chosen, with 0.3 of the choices at random."""
    env, source = gymnasium.make("CartPole-v1"), np.random.default_rng(0)
    rows: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "next_observations")}
    ends: dict[str, list[bool]] = {"terminals": [], "timeouts": []}
    state, _ = env.reset(seed=0)
    for step in range(steps):
        action = int(source.integers(2)) if source.random() < 0.3 else int(state[2] + 0.5 * state[3] > 0)
        following, reward, terminated, truncated, _ = env.step(action)
        for name, value in zip(rows, (state, action, reward, following), strict=True):
            rows[name].append(value)
        ends["terminals"].append(terminated)
        ends["timeouts"].append(truncated or step == steps - 1)
        state = env.reset()[0] if terminated or truncated else following
    arrays = {name: np.array(values) for name, values in {**rows, **ends}.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save(from_arrays(**arrays, env_id="CartPole-v1", choices=2), folder / "cartpole-mixed.hdf5")


if __name__ == "__main__":
    cartpole(pathlib.Path(os.environ.get("SUREFOOT_PEERS", "/tmp/surefoot-peers")) / "files")
