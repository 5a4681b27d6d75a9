"""`starts=` and `vary=`: snapshots that a run's episodes start from, and the physical constants that they draw."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from surefoot.core.base.actions import to_agent
from surefoot.core.base.errors import CheckpointError, ConfigError, EnvironmentMismatchError
from surefoot.core.base.unpacking import read_npz
from surefoot.core.engine.agent import Agent
from surefoot.core.nn.networks import Critic
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import returns_to_go
from surefoot.envs.curriculum import VariedParameters
from surefoot.envs.interface import Array, VectorEnvironment
from surefoot.envs.known_systems import system_of
from surefoot.envs.make import split_options
from surefoot.envs.names import beneath
from surefoot.envs.parameters import Ranges, parameter_ranges, parameter_table
from surefoot.envs.placing import NAMES, POSITIONS, STATE
from surefoot.envs.snapshots import DESCRIPTION, MOST, VALUES, Snapshots, SnapshotStarts, Value
from surefoot.envs.training import make_training
from surefoot.envs.vector import check_spaces
from surefoot.runs.embedded import load
from surefoot.runs.plan import Plan
from surefoot.runs.run import Run, load_agent
from surefoot.runs.trust import require_trust

FILE = "starts.npz"
"""In a run's folder: the snapshots that it took, so that resuming reads no other file."""
EPISODES, EVERY = 10, 10
"""Of a teacher, and steps from one snapshot to the next."""
DISCOUNT = 0.99
"""Of the returns by which states are worth something, where nothing has a discount of its own."""


def snapshots_of(source: str, env_id: str, trust: bool = False) -> Snapshots:
    """The snapshots that `starts=` names.

    Args:
        source: an .npz file of snapshots, the folder of a finished run, or a dataset (a path or an id).
        env_id: where the episodes start.
        trust: import modules that the run or the dataset names.

    Raises:
        ConfigError, DataError, CheckpointError, EnvironmentMismatchError: it can't be read, or does not fit.
    """
    path = pathlib.Path(source)
    if path.suffix == ".npz" and (not path.is_file() or holds_snapshots(path)):
        return Snapshots.load(path)
    if path.is_dir() and (path / "config.json").is_file():
        return of_run(path, env_id, trust=trust)
    return of_dataset(load(source), env_id)


def holds_snapshots(path: pathlib.Path) -> bool:
    """Whether an .npz file is one of snapshots, and no dataset."""
    _, names = read_npz(path, lambda name: False, CheckpointError)
    return {VALUES, DESCRIPTION} <= set(names)


def of_run(
    folder: pathlib.Path,
    env_id: str | None = None,
    *,
    seed: int | None = None,
    episodes: int = EPISODES,
    every: int = EVERY,
    episode_seed: int = 0,
    value: str | None = None,
    trust: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Snapshots:
    """Record a run's policy as the teacher.

    Args:
        folder: of a finished run.
        env_id: where; None: in the run's own environment.
        seed: which of its policies; None: the first.
        episodes, every, episode_seed, progress: as of `Snapshots.record`.
        value: what states are worth: `critic`, the run's own least critic of the policy's action, or `returns`, what
            followed; None: the critic, where there is one.
        trust: import modules that the run names.

    Raises:
        ConfigError: no environment; a critic is asked for, and there is none.
        CheckpointError: it is no finished run, or damaged.
        EnvironmentMismatchError: the policy does not fit the environment, or its state can't be set.
    """
    run = Run.open(folder)
    if env_id is None:
        env_id = run.plan.environment
        require_trust(env_id, folder / "config.json", trust)
    if env_id is None:
        raise ConfigError(f"{folder}: was trained without a simulator; name one with --env ID")
    policy = run.policy(seed)
    check_spaces(env_id, policy.arrays, policy.action_dim, policy.discrete)
    agent = load_agent(run, seed, trust) if value != "returns" else None
    judged = None if agent is None else critic_of(agent, policy)
    if value == "critic" and judged is None:
        raise ConfigError(
            f"{folder}: {run.plan.algorithm} has no critic of observations and single actions that its policy acts on; "
            "take --value returns"
        )
    discount = float(run.plan.config.get("discount", DISCOUNT))
    return Snapshots.record(
        policy,
        env_id,
        episodes=episodes,
        every=every,
        seed=episode_seed,
        discount=discount,
        value=judged,
        progress=progress,
    )


def critic_of(agent: Agent, policy: Policy) -> Value | None:
    """What a teacher's critics give the least of its own actions; None where it has none of states and actions."""
    critic: Any = getattr(agent, "critic", None)
    plain = isinstance(critic, Critic) and agent.encoder is None and not agent.spec.discrete
    if not plain or agent.decision_dim != agent.spec.action_dim or policy.begin(1):
        return None

    def value(observations: torch.Tensor) -> Array:
        with torch.no_grad():
            actions = to_agent(policy(observations), agent.action_low, agent.action_high)
            found: torch.Tensor = critic(torch.cat([agent.normalizer(observations), actions], -1)).amin(0)
        return found.double().numpy()

    return value


def of_dataset(dataset: Dataset, env_id: str, every: int = EVERY, discount: float = DISCOUNT) -> Snapshots:
    """States of a recording, each worth the discounted rewards from there to its episode's end.

    They are the columns `state`, or `qpos` and `qvel` (OGBench's own files, `surefoot datasets generate`); of native
    systems they follow from the observations.

    Args:
        dataset: of the environment.
        env_id: where episodes are to start.
        every: steps of an episode from one snapshot to the next; more where there would be too many.
        discount: in [0, 1].

    Raises:
        ConfigError: numbers out of range.
        EnvironmentMismatchError: it holds no states.
    """
    if every < 1 or not 0 <= discount <= 1:
        raise ConfigError(f"every={every} and discount={discount:g}: give 1 or more, and a number in [0, 1]")
    lengths = dataset.episode_lengths
    within = np.arange(len(dataset)) - np.repeat(dataset.episode_starts[:-1], lengths)
    rows = np.flatnonzero((within % every == 0) & dataset.valid)
    rows = rows[:: -(-len(rows) // MOST)] if len(rows) > MOST else rows
    states = {name: np.asarray(dataset.extras[name])[rows] for name in NAMES if name in dataset.extras}
    states = {name: value.reshape(len(rows), -1) for name, value in states.items()}
    system: Any = system_of(split_options(env_id)[0])
    if not {STATE, POSITIONS} & set(states) and system is not None and hasattr(system, "state_of"):
        check_spaces(env_id, dataset.arrays, dataset.action_dim, dataset.choices is not None)
        table = torch.from_numpy(parameter_table(system, 1, None, None)).expand(len(rows), -1)
        states = {STATE: system.state_of(torch.from_numpy(dataset.observations[rows]), table).numpy()}
    if not {STATE, POSITIONS} & set(states):
        raise EnvironmentMismatchError(
            f"{dataset.name}: holds no simulator states to start from: that takes a column 'state', or 'qpos' and "
            "'qvel'; or record a policy with `surefoot snapshots RUN -o FILE`"
        )
    values = returns_to_go(dataset, discount, dtype=np.float64)[rows]
    words = f"{len(rows)} of the {len(dataset):,} states of {dataset.name}"
    return Snapshots(states, values, dataset.env_id, "returns", words)


def checked(plan: Plan, trust: bool = False) -> Snapshots | None:
    """The snapshots of a plan that names some, tried in a row of its environment; None where it names none.

    Raises:
        ConfigError, DataError, CheckpointError, EnvironmentMismatchError: they can't be read, or don't fit.
    """
    if plan.starts is None or plan.environment is None:
        return None
    found = snapshots_of(plan.starts, plan.environment, trust)
    env: Any = starting(make_training(plan.environment, 1, gap=plan.gap), plan, found, 1)
    try:
        env.reset(seed=[0] if env.seeding == "rows" else None)
    finally:
        env.close()
    return found


def snapshots_in(run: Run) -> Snapshots | None:
    """Those that a run's folder holds, where its plan names some.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    return None if run.plan.starts is None else Snapshots.load(run.folder / FILE)


def starting(env: VectorEnvironment, plan: Plan, snapshots: Snapshots | None, rows: int) -> VectorEnvironment:
    """An environment to learn in, of `rows` rows for each seed, with the constants and starts that a plan asks for.

    Raises:
        ConfigError, EnvironmentMismatchError: the environment has no such constants, or none that can be set.
    """
    if plan.vary is not None:
        ranges = ranges_of(plan.vary, str(plan.environment))
        env = VariedParameters(env, ranges, cells=plan.vary_cells, curriculum=plan.curriculum, rows_each=rows)
    if snapshots is None:
        return env
    return SnapshotStarts(
        env,
        snapshots,
        clusters=plan.starts_clusters,
        truncate=plan.starts_truncate,
        until=plan.starts_until,
        rows_each=rows,
        curriculum=plan.curriculum,
    )


def ranges_of(vary: str, env_id: str) -> Ranges:
    """The ranges of constants that `vary=` names.

    Raises:
        ConfigError: not a native system or one of the user's own equations, an unknown constant, or no range of it.
    """
    system = system_of(beneath(split_options(env_id)[0]))
    if system is None:
        raise ConfigError(
            f"vary={vary}: changes the constants of native systems and of systems of yours, and {env_id} is none: "
            "`surefoot envs list`",
            field="vary",
            code="conflict",
        )
    return parameter_ranges([vary], system, env_id, "vary=")


def notes(plan: Plan, snapshots: Snapshots) -> list[str]:
    """What a run says of its starts."""
    groups = len(snapshots.clusters(plan.starts_clusters))
    cut = f", cut off after {plan.starts_truncate} steps" if plan.starts_truncate else ""
    phase = min(plan.starts_until, plan.steps)
    return [
        f"episodes of the first {phase:,} steps start from {len(snapshots):,} snapshots in {groups} "
        f"cluster{'s' if groups > 1 else ''} of their {snapshots.value}{cut}: {snapshots.source}"
    ]
