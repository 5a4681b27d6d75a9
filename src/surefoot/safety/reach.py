"""The largest safe set of a native or python system, from its own equations, and how a learned one compares with it."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import CheckpointError, ConfigError
from surefoot.core.base.schema import Many, Maybe, Number, Record, Text, check
from surefoot.cuda_ext.system import System
from surefoot.envs.known_systems import system_of
from surefoot.envs.parameters import parameter_table
from surefoot.envs.systems import SYSTEMS
from surefoot.runs.run import Run, load_agent
from surefoot.runs.trust import require_trust
from surefoot.safe.filters.model import Model
from surefoot.safe.reachability import Comparison, compare, solve
from surefoot.safe.reachability.files import load, save
from surefoot.safe.reachability.measures import volume
from surefoot.safe.reachability.solver import Progress, Solution

ROWS = 1 << 16
"""States given to a learned value at once."""
ABOUT = Record({"environment": Text(), "gap": Maybe(Text()), "parameters": Many(Number(), 1)}, others=True)
"""What `SafeSet.save` says of the system."""
DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclasses.dataclass(frozen=True)
class SafeSet:
    """A solved system."""

    solution: Solution
    model: Model
    environment: str
    gap: str | None

    @property
    def facts(self) -> dict[str, Any]:
        """What it came to, as JSON values."""
        found, grid = self.solution, self.solution.grid
        box = grid.cell_volume * grid.size
        return {
            "environment": self.environment,
            "gap": self.gap,
            "axes": grid.to_json(),
            "points": grid.size,
            "actions": len(self.model.candidates()),
            "discount": found.discount,
            "sweeps": found.sweeps,
            "converged": found.converged,
            "change": found.change,
            "seconds": found.seconds,
            "safe_volume": volume(found.values, grid.cell_volume),
            "safe_share": volume(found.values, grid.cell_volume) / box,
            "kept_now_share": volume(found.h, grid.cell_volume) / box,
        }

    def save(self, path: str | os.PathLike[str], more: Mapping[str, Any] | None = None) -> None:
        """Write it as .npz, whole or not at all, with `more` JSON values beside what it says of itself."""
        parameters = self.model.parameters_row.tolist()
        about = {"environment": self.environment, "gap": self.gap, "parameters": parameters, **(more or {})}
        save(self.solution, path, about)

    def closed_form(self) -> Tensor | None:
        """The known value on the grid, in this room's sign, where the system has a `safe_value`."""
        known = getattr(self.model.system, "safe_value", None)
        if known is None:
            return None
        states = self.solution.grid.states()
        parameters = self.model.parameters_row.to(states).expand(len(states), -1)
        value: Tensor = -known(states, parameters)
        return value.reshape(self.solution.grid.shape)

    def learned(self, agent: Any) -> Tensor:
        """What an agent of `feasible_agent` takes for the feasible value, on the grid; at least h of the state itself.

        The constraint of a dataset's row is that of the state which its step leads to, so a learned V_h(s) is about
        what follows s (`safe.constraint.signal`); with h(s) it is the value that the grid has.
        """
        kind: Any = self.model.system
        states = self.solution.grid.states()
        values = []
        with torch.no_grad():
            for part in states.split(ROWS):
                parameters = self.model.parameters_row.to(part).expand(len(part), -1)
                values.append(agent.feasible_value(kind.observe(part, parameters).float()).reshape(-1).double())
        learned = torch.cat(values).reshape(self.solution.grid.shape)
        return torch.maximum(learned, self.solution.h.double())


def feasible_agent(env_id: str, run: str | os.PathLike[str], seed: int | None = None, trust: bool = False) -> Any:
    """A run's agent whose feasible value can be compared with the safe set of a system.

    Raises:
        ConfigError: the run's algorithm has no such value, or was trained for another system or observations.
        CheckpointError: the run is damaged.
    """
    opened, kind = Run.open(run), known_system(env_id)
    agent: Any = load_agent(opened, seed, trust)
    if not hasattr(agent, "feasible_value"):
        raise ConfigError(
            f"{run}: {opened.plan.algorithm} learns no feasible value, which is needed for a comparison; fisor does"
        )
    trained_in = opened.plan.environment
    if trained_in is not None and _other(trained_in, kind):
        raise ConfigError(f"{run}: was trained for {trained_in}, not for {env_id}")
    if opened.spec.observation_dim != len(kind.observations):
        raise ConfigError(
            f"{run}: was trained on observations of width {opened.spec.observation_dim}; "
            f"{kind.alias} has {len(kind.observations)}"
        )
    return agent


def _other(env_id: str, kind: System) -> bool:
    """Whether an id is known to be of another system."""
    own = env_id.rpartition(":")[2]
    if own == kind.gym_id:
        return False
    if env_id != own:
        return own.startswith("python/")  # a module is not imported for it
    known = system_of(env_id)
    return known is not None and known.alias != kind.alias


def known_system(env_id: str, source: object = None, trust: bool = False) -> System:
    """The system called `env_id`: a native one, or a user's that a module registers (`module:ID`).

    Args:
        env_id: native/<system>, a gymnasium id of one, or a python or C++ system's id.
        source: the file that names it; None: the user does.
        trust: let that file's module be imported.

    Raises:
        ConfigError: it is neither, so that its equations are not at hand; a file names a module that is not trusted.
    """
    if source is not None:
        require_trust(env_id, source, trust)
    found = system_of(env_id)
    if found is None:
        boxed = ", ".join(known().alias for known in SYSTEMS.values() if known.reach_box)
        raise ConfigError(
            f"{env_id} is not a native system, nor a system of yours that is registered here, so its equations are not "
            f"at hand; those with a grid: {boxed}; one of yours is named module:python/NAME-v0 "
            "(docs/python_systems.md) or, in C++, module:NAME-v0 (docs/cpp_systems.md)"
        )
    return found


def system_model(env_id: str, gap: str | None = None) -> Model:
    """Its model, with a preset of altered dynamics or none.

    Raises:
        ConfigError: not native, no such gap, or no margin of states.
    """
    found = known_system(env_id)
    return Model(found, torch.from_numpy(parameter_table(found, 1, gap)[0]).double())


native_system, native_model = known_system, system_model
"""Their names until version 0.5."""


def reach(
    env_id: str,
    *,
    points: Sequence[int] | None = None,
    discount: float = 1.0,
    gap: str | None = None,
    device: str = "cpu",
    dtype: str = "float64",
    tolerance: float = 1e-6,
    max_sweeps: int = 10_000,
    progress: Progress | None = None,
) -> SafeSet:
    """Solve a native or python system for its largest safe set.

    Args:
        env_id: native/<system> or its gymnasium id, or a python system's (module:python/NAME-v0); at most 4 states
            and a box.
        points: of the grid along each state; None: the system's own.
        discount: in [0, 1]; 1 is the safe set itself.
        gap: preset of altered dynamics, or None.
        device: cpu or cuda.
        dtype: float64 or float32.
        tolerance: stop at a sweep in which no value changes by more.
        max_sweeps: stop after so many.
        progress: called with the number of each sweep and the largest change.

    Raises:
        ConfigError: a system without a grid, a number out of range, a grid too large for the memory.
        DeviceError: no such device.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is unknown; float64 or float32")
    model = system_model(env_id, gap)
    solution = solve(
        model.problem(),
        model.grid(points),
        discount=discount,
        tolerance=tolerance,
        max_sweeps=max_sweeps,
        dtype=DTYPES[dtype],
        device=device,
        progress=progress,
    )
    solution = dataclasses.replace(solution, value=solution.value.cpu(), h=solution.h.cpu())
    return SafeSet(solution, model, env_id, gap)


def load_safe_set(path: str | os.PathLike[str], trust: bool = False) -> SafeSet:
    """What `SafeSet.save` wrote.

    Args:
        path: of the file.
        trust: import the module of the python system that it names; the user's own names need none.

    Raises:
        CheckpointError: the file is missing or damaged.
        ConfigError: of a system that is not there, or of a module that is not trusted.
    """
    solution, about = load(path)
    check(about, ABOUT, path)
    found = known_system(about["environment"], path, trust)
    if len(about["parameters"]) != len(found.parameters):
        raise CheckpointError(f"{path}: has {len(about['parameters'])} parameters, its system {len(found.parameters)}")
    model = Model(found, torch.tensor(about["parameters"], dtype=torch.float64))
    return SafeSet(solution, model, about["environment"], about["gap"])


def comparison(safe_set: SafeSet, values: Tensor) -> Comparison:
    """How `values` on the grid compare with the solved ones."""
    return compare(values, safe_set.solution.values)


def draw(safe_set: SafeSet, path: str | os.PathLike[str], others: dict[str, Tensor]) -> pathlib.Path:
    """A picture of its slices, with the boundaries of `others`."""
    from surefoot.safe.reachability.pictures import slices, write

    found = safe_set.solution
    title = f"{safe_set.environment}{f' with {safe_set.gap}' if safe_set.gap else ''}, discount {found.discount:g}"
    write(slices(found.grid, found.values, found.h, title, others), path)
    return pathlib.Path(path)
