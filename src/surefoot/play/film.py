"""Episodes of a policy step by step: what a native system's states did, or the frames that an environment draws."""

from __future__ import annotations

import dataclasses
import io
import math
import pathlib
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from surefoot.core.actors.memory import GOAL
from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, MissingExtraError, SurefootError
from surefoot.core.base.files import written_aside
from surefoot.core.base.spec import mapped
from surefoot.core.policy.policy import Policy
from surefoot.envs.acting import check_goals
from surefoot.envs.episodes import episode_seeds
from surefoot.envs.interface import Array, as_numpy
from surefoot.envs.make import is_team, split_options
from surefoot.envs.names import beneath
from surefoot.envs.systems import System, system
from surefoot.envs.vector import GOAL_KEYS, make_env, make_vec
from surefoot.safe.filters.filtered import FilteredPolicy

MOST_STEPS = 5_000
"""Of an episode that has no end of its own."""
MOST_FRAMES = 80
"""Of a native episode, which are drawn by matplotlib."""
VIDEOS = (".mp4", ".gif")
FRAMES_PER_SECOND = 30
MOST_STATES = 12
"""Numbers of an observation that stand beside the frames of an environment that draws itself."""


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode; T steps."""

    states: Array
    """(T, S) before each action: of a native system its states, else what was observed (T, 0 where that is images)."""
    names: tuple[str, ...]
    """Of the states."""
    actions: Array
    """(T, A), as the environment takes them."""
    rewards: Array
    """(T,)."""
    costs: Array | None
    """(T,), or None where the environment has no constraint."""
    margins: Array | None
    """(T,), safe if >= 0, after each action."""
    time_step: float
    """Seconds; 1 where it is not known, and times are steps."""
    frames: tuple[Array, ...] = ()
    """(H, W, 3) uint8, before each action and at the end."""
    units: tuple[str, ...] = ()
    """Of the states, "" of one without; () where they are not known."""
    action_units: tuple[str, ...] = ()
    """The same of the actions."""
    action_names: tuple[str, ...] = ()
    """Of the actions; () where they have none."""
    goal: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """State -> its value where the task ends or is to be held; empty where there is no such place."""
    goal_radius: float = 0.0
    """Distance within which the goal counts as reached; 0 where there is none."""

    @property
    def violates(self) -> bool:
        """Whether any step had a cost."""
        return self.costs is not None and bool((self.costs > 0).any())


def native_episodes(policy: Policy | FilteredPolicy, env_id: str, count: int, seed: int = 2) -> list[Episode]:
    """Whole episodes in a native system, side by side, from the initial states that `rollout --seed` has.

    Args:
        policy: of the environment's observations; also one behind a filter.
        env_id: native/<system>, also one seen by a camera, whose episodes have the states of the system beneath.
        count: of episodes.
        seed: of the initial states and noise.
    """
    known = system(beneath(split_options(env_id)[0]))
    env: Any = make_vec(env_id, count)
    try:
        observations, _ = env.reset(seed=episode_seeds(seed, 0, count).tolist())
        memory = policy.begin(count, seed)
        rows: list[dict[str, list[Any]]] = [
            {key: [] for key in ("states", "actions", "rewards", "costs", "margins")} for _ in range(count)
        ]
        goals = _goals(known, getattr(env, "inner", env).parameters, count)
        while env.active.any():
            active, states = env.active.copy(), as_numpy(getattr(env, "inner", env).state)
            with torch.no_grad():
                chosen, memory = policy.act(mapped(_tensor, observations), memory)
            actions = np.clip(chosen.numpy(), known.action_low, known.action_high).astype(np.float32)
            observations, rewards, ended, cut, info = env.step(actions)
            rewards, over = as_numpy(rewards), as_numpy(ended) | as_numpy(cut)
            costs = as_numpy(info["cost"]) if "cost" in info else np.zeros(count)
            margins = as_numpy(info["margin"]) if "margin" in info else np.full(count, np.nan)
            earned, paid = (torch.from_numpy(np.asarray(value, np.float32)) for value in (rewards, costs))
            memory = policy.observe_outcome(memory, earned, paid, torch.from_numpy(over))
            for row in np.flatnonzero(active):
                found = zip(rows[row].values(), (states, actions, rewards, costs, margins), strict=True)
                for values, now in found:
                    values.append(np.array(now[row]))
            env.active[active & over] = False
    finally:
        env.close()
    return [
        _episode({key: np.array(values) for key, values in row.items()}, known, goal)
        for row, goal in zip(rows, goals, strict=True)
    ]


def _goals(known: System, parameters: Mapping[str, Any], count: int) -> list[dict[str, float]]:
    """The goal of each row, by the parameters that it has."""
    place = {} if known.goal is None else known.goal.place
    rows = {
        state: np.full(count, stated) if isinstance(stated, float) else as_numpy(parameters[stated])
        for state, stated in place.items()
    }
    return [{state: float(values[row]) for state, values in rows.items()} for row in range(count)]


def _tensor(values: Any) -> torch.Tensor:
    """Numbers as float32; images stay bytes."""
    found = as_numpy(values)
    return torch.from_numpy(found if found.dtype == np.uint8 else found.astype(np.float32))


def _episode(row: dict[str, Array], known: System, goal: Mapping[str, float]) -> Episode:
    bounded = bool(np.isfinite(row["margins"]).all())
    return Episode(
        row["states"],
        tuple(known.states),
        row["actions"],
        row["rewards"],
        row["costs"] if bounded else None,
        row["margins"] if bounded else None,
        known.time_step,
        units=known.state_units,
        action_units=known.action_units,
        action_names=tuple(known.actions),
        goal=goal,
        goal_radius=0.0 if known.goal is None else known.goal.radius,
    )


def rendered_episodes(policy: Policy, env_id: str, count: int, seed: int = 2) -> list[Episode]:
    """Whole episodes of any environment that draws itself, one after the other.

    Args:
        policy: of the environment's observations.
        env_id: gymnasium id.
        count: of episodes.
        seed: of the initial states and noise.

    Raises:
        ConfigError: the environment draws nothing.
        EnvironmentMismatchError: it fails while it draws, as MuJoCo does without a display.
    """
    if is_team(env_id):
        raise EnvironmentMismatchError(
            f"{env_id}: several agents act in it, and their episodes are not drawn: watch the learning curves of a run "
            "with --curves"
        )
    env = _drawing(env_id)
    try:
        frames_a_second = env.metadata.get("render_fps") or FRAMES_PER_SECOND
        return [_rendered(env, policy, int(s), frames_a_second, env_id) for s in episode_seeds(seed, 0, count)]
    finally:
        env.close()


def _drawing(env_id: str) -> gymnasium.Env[Any, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium's, of render modes that a class does not list
            return make_env(env_id, render_mode="rgb_array")
    except SurefootError as error:
        plain = make_env(env_id)
        modes = list(plain.metadata.get("render_modes") or [])
        plain.close()
        if "rgb_array" in modes:
            raise
        raise ConfigError(
            f"{env_id} can't be made with render_mode='rgb_array', and its class lists the render_modes {modes}: watch "
            "its learning curves with --curves"
        ) from error


def _rendered(env: gymnasium.Env[Any, Any], policy: Policy, seed: int, rate: float, env_id: str) -> Episode:
    observation, reported = env.reset(seed=seed)
    goal = _told_goal(policy, reported, env_id)
    policy.reset(seed, **({} if goal is None else {"goal": goal}))
    found: dict[str, list[Any]] = {key: [] for key in ("states", "actions", "rewards", "costs")}
    frames = [_frame(env, env_id)]
    has_costs = False
    for _ in range(MOST_STEPS):
        action = policy.select_action(observation)
        found["states"].append(np.ravel(observation) if isinstance(observation, np.ndarray) else np.zeros(0))
        observation, reward, terminated, truncated, info = env.step(action)
        cost = float(info.get("cost", 0.0))
        has_costs = has_costs or "cost" in info
        policy.observe(float(reward), cost)
        found["actions"].append(np.atleast_1d(action))
        found["rewards"].append(float(reward))
        found["costs"].append(cost)
        frames.append(_frame(env, env_id))
        if terminated or truncated:
            break
    arrays = {key: np.array(values) for key, values in found.items()}
    states, names = arrays["states"], tuple(f"observation {i}" for i in range(arrays["states"].shape[-1]))
    if (goals := _goal_columns(env, states)) is not None:  # what it is at, and what it is to be at
        states, names = states[:, list(goals)], tuple(goals.values())
    elif states.ndim != 2 or states.shape[1] > MOST_STATES:
        states, names = np.zeros((len(arrays["rewards"]), 0)), ()
    costs = arrays["costs"] if has_costs else None
    whole = goal is not None and len(goal) == len(names)  # a whole observation, number by number
    held = dict(zip(names, map(float, goal), strict=True)) if whole and goal is not None else {}
    steps = (arrays["actions"], arrays["rewards"], costs, None)
    return Episode(states, names, *steps, 1 / rate, tuple(frames), goal=held)


def _told_goal(policy: Policy, reported: Mapping[str, Any], env_id: str) -> Array | None:
    """(G,) the goal that a reset gave to a policy that is asked for one; None where it needs none, or has its own.

    Raises:
        EnvironmentMismatchError: the environment gives none, or one of another width.
    """
    asked = policy.begin(1).get(GOAL)
    if asked is None or ("goal" not in reported and not bool(asked.isnan().any())):
        return None
    given = np.asarray(reported["goal"], np.float32) if "goal" in reported else None
    check_goals(None if given is None else given.reshape(1, -1), asked.shape[1], env_id)
    return given


def _goal_columns(env: gymnasium.Env[Any, Any], states: Array) -> dict[int, str] | None:
    """Column -> name of the goals, achieved and desired, in observations of a goal environment; None of any other."""
    space = env.unwrapped.observation_space
    if not isinstance(space, gymnasium.spaces.Dict) or not {"achieved_goal", "desired_goal"} <= set(space.spaces):
        return None
    found, column = dict[int, str](), 0
    for key in GOAL_KEYS:
        width = gymnasium.spaces.flatdim(space[key]) if key in space.spaces else 0
        if key != "observation":
            found |= {column + i: f"{key} {i}".replace("_", " ") for i in range(width)}
        column += width
    return found if states.ndim == 2 and states.shape[1] == column else None


def _frame(env: gymnasium.Env[Any, Any], env_id: str) -> Array:
    try:
        frame: Any = env.render()
    except SurefootError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        stated = f"{env_id} fails to draw itself ({type(error).__name__}{f': {first}' if first else ''})"
        through = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
        if any("mujoco" in module for module in through):
            stated += "; without a display MuJoCo draws with MUJOCO_GL=egl or MUJOCO_GL=osmesa in the environment"
        else:
            stated += "; fix its render(), or watch its learning curves with --curves"
        raise EnvironmentMismatchError(stated) from error
    frame = np.asarray(frame) if frame is not None else np.zeros(0)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise ConfigError(
            f"{env_id} draws nothing as render_mode='rgb_array': render() must give (H, W, 3) uint8; "
            "watch its learning curves without episodes, or a native system"
        )
    return frame


def animated(episode: Episode, ground: tuple[Array, Array, Array] | None) -> Episode:
    """A native episode with frames of its own: the path so far where its states have a place, and all that it does.

    At most `MOST_FRAMES` of them; those of a longer episode are further apart, at the same speed.
    """
    from surefoot.evaluation import plots, trajectories

    steps = len(episode.rewards)
    every = max(1, -(-steps // MOST_FRAMES))
    figure, axes = plots.beside("", (6.4, 3.2), 2)
    mapped = trajectories.plane(episode.names)
    frames = []
    times = np.arange(steps) * episode.time_step
    for now in range(0, steps, every):
        for at in axes:
            at.clear()
        if mapped is not None:
            part = dataclasses.replace(episode, states=episode.states[: now + 1])
            trajectories.draw_paths(axes[0], [part], ground, f"{times[now]:.2f} s")
            axes[0].plot(*episode.states[now, list(mapped)], marker="o", color="black", markersize=5)
            axes[0].set_aspect("equal", adjustable="box")
            for set_limits, k in ((axes[0].set_xlim, 0), (axes[0].set_ylim, 1)):
                places = episode.states[:, mapped[k]]
                if (held := episode.goal.get(episode.names[mapped[k]])) is not None:
                    places = np.append(places, held)
                box = (places.min() - 0.3, places.max() + 0.3) if ground is None else (ground[k][0], ground[k][-1])
                set_limits(*box)
        else:
            for i, name in enumerate(trajectories.with_units(episode.names, episode.units)):
                axes[0].plot(times[: now + 1], episode.states[: now + 1, i], linewidth=1, label=name)
            axes[0].legend(fontsize=6, frameon=False, loc="upper right")
            axes[0].set_xlim(0, times[-1] or 1)
            axes[0].set_xlabel(f"time ({trajectories.clock(episode)})", fontsize=8)
        for i, name in enumerate(trajectories.action_labels(episode)):
            axes[1].plot(times[: now + 1], episode.actions[: now + 1, i], linewidth=1, label=name)
        if episode.margins is not None:
            axes[1].plot(times[: now + 1], episode.margins[: now + 1], linewidth=1, color="black", label="margin")
            axes[1].axhline(0.0, color=plots.GREY, linewidth=0.8)
        axes[1].set_xlim(0, times[-1] or 1)
        axes[1].set_xlabel(f"time ({trajectories.clock(episode)})", fontsize=8)
        axes[1].legend(fontsize=6, frameon=False, loc="upper right")
        canvas: Any = figure.canvas
        canvas.draw()
        frames.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    return dataclasses.replace(episode, frames=tuple(frames), time_step=episode.time_step * every)


def write_video(episodes: Sequence[Episode], path: str | pathlib.Path, rate: float | None = None) -> None:
    """The frames of the episodes, one after the other, as .mp4 or .gif.

    Args:
        episodes: with frames.
        path: its ending says which.
        rate: frames a second; None: as fast as it was, at most 50.

    Raises:
        ConfigError: another ending, or no frames.
        MissingExtraError: imageio, or its ffmpeg for MP4, is not installed.
    """
    path = pathlib.Path(path)
    if path.suffix not in VIDEOS:
        raise ConfigError(f"{path}: its ending names no kind of video; give {' or '.join(VIDEOS)}")
    frames = [frame for episode in episodes for frame in episode.frames]
    if not frames:
        raise ConfigError(f"{path}: there are no frames to write")
    try:
        import imageio.v2 as imageio

        if path.suffix == ".mp4":
            import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(str(error.name), "video", f"writing {path.name}") from error
    given = min(50.0, 1 / episodes[0].time_step) if rate is None else rate
    with written_aside(path) as aside:
        if path.suffix == ".gif":
            made = io.BytesIO()  # pillow tries to end a file that can't be written, and hides why it can't
            pictures: Any = frames
            imageio.mimwrite(made, pictures, format="gif", duration=1000 / given, loop=0)
            aside.write_bytes(made.getbuffer())
        else:
            even = [frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2] for frame in frames]
            imageio.mimwrite(aside, even, fps=given, macro_block_size=2)  # type: ignore[arg-type]


def write_rerun(episodes: Sequence[Episode], path: str | pathlib.Path) -> None:
    """States, actions, rewards and frames on rerun's time line, one recording stream per file (.rrd).

    Raises:
        MissingExtraError: rerun is not installed.
    """
    try:
        import rerun as rr
    except ImportError as error:
        raise MissingExtraError("rerun-sdk", "rerun", "writing .rrd") from error
    log: Any = rr
    log.init("surefoot")
    with written_aside(path) as aside:
        log.save(str(aside))
        for number, episode in enumerate(episodes):
            root = f"episode{number}"
            for t in range(len(episode.rewards)):
                log.set_time("time", duration=t * episode.time_step)
                log.log(f"{root}/reward", log.Scalars(float(episode.rewards[t])))
                for name, value in zip(episode.names, episode.states[t], strict=True):
                    log.log(f"{root}/state/{name.replace(' ', '_')}", log.Scalars(float(value)))
                for i, value in enumerate(episode.actions[t]):
                    log.log(f"{root}/action/{i}", log.Scalars(float(value)))
                if episode.margins is not None and math.isfinite(episode.margins[t]):
                    log.log(f"{root}/margin", log.Scalars(float(episode.margins[t])))
                if episode.frames:
                    log.log(f"{root}/camera", log.Image(episode.frames[t]))
        log.disconnect()


def obstacles(env_id: str) -> tuple[Array, Array, Array] | None:
    """Margin of a native system over its first two states, the others 0: (X,), (Y,), (Y, X), or None where unknown.

    Args:
        env_id: native/<system> whose first two states are places.
    """
    known = system(beneath(split_options(env_id)[0]))
    if known.states[:2] != ("x", "y") or not known.reach_box:
        return None
    (low, high, *_), (bottom, top, *_) = known.reach_box[:2]
    x, y = np.linspace(low, high, 161), np.linspace(bottom, top, 161)
    states = torch.zeros(len(x) * len(y), len(known.states), dtype=torch.float64)
    grid = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    states[:, :2] = torch.from_numpy(grid)
    parameters = known.default_parameters().expand(len(states), -1)
    return x, y, known.margin(states, parameters).reshape(len(y), len(x)).numpy()
