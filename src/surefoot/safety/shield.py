"""Policies behind a safety filter in a native or python system: made, rolled out, broken promises counted."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from surefoot.core.actors.memory import Memory, PolicyLike
from surefoot.core.base.errors import CheckpointError, ConfigError, nearest
from surefoot.core.base.schema import Maybe, Number, Record, Text, check
from surefoot.core.policy.control_loop import ControlLoop
from surefoot.core.policy.policy import Policy
from surefoot.envs.acting import EpisodeRunner, Step
from surefoot.envs.acting.sums import EpisodeBatch
from surefoot.envs.episodes import Act, acting_policy, run
from surefoot.envs.interface import Array, as_numpy
from surefoot.envs.vector import make_vec
from surefoot.runs.trust import require_trust
from surefoot.safe.filters.filtered import FilteredPolicy
from surefoot.safe.filters.margins import Margin, needed_margin
from surefoot.safe.filters.model import Model
from surefoot.safe.filters.safety_filter import RATE, BarrierQP, LeastRestrictive, Value
from surefoot.safe.reachability.files import load
from surefoot.safe.reachability.solver import Progress
from surefoot.safety.reach import SafeSet, known_system, load_safe_set, reach, system_model

FILTERS = ("none", "reach", "cbf")
ABOUT = Record(
    {"environment": Text(), "filter": Text(among=FILTERS[1:]), "margin": Number(), "rate": Maybe(Number(0))},
    others=True,
)
"""What `Shield.save` says of a filter, beside what a safe set says of itself."""
TOLERANCE = 1e-5
"""Of the value iteration behind a filter."""
KEPT = 5
"""Broken promises whose state is reported."""


@dataclasses.dataclass(frozen=True)
class Shield:
    """A filter for a system, with what it was made from."""

    kind: str
    safety: LeastRestrictive
    safe_set: SafeSet
    margin: Margin | None
    """How the margin was found; None where it was given."""

    def around(self, policy: Policy) -> FilteredPolicy:
        """The policy behind this filter."""
        return FilteredPolicy(policy, self.safety, self.safe_set.model)

    def save(self, policy: Policy, path: str | os.PathLike[str]) -> None:
        """Write the policy as `Policy.save` does, and the filter beside it as PATH.filter.npz."""
        policy.save(path)
        how = {"filter": self.kind, "margin": self.safety.margin, "rate": getattr(self.safety, "rate", None)}
        self.safe_set.save(_filter_path(path), how)

    def sentence(self) -> str:
        """For people."""
        found = f"margin {self.safety.margin:.4g}, given" if self.margin is None else self.margin.sentence()
        shape = " x ".join(map(str, self.safe_set.solution.grid.shape))
        return f"filter {self.kind} on a grid of {shape} points; {found}"


def shield(
    kind: str,
    env_id: str,
    *,
    safe_set: str | os.PathLike[str] | None = None,
    margin: float | None = None,
    rate: float = RATE,
    progress: Progress | None = None,
) -> Shield:
    """A filter for a native or python system, made from its own equations without any gap.

    Args:
        kind: reach (least restrictive) or cbf (control-barrier programme).
        env_id: native/<system> or module:python/NAME-v0, with a grid.
        safe_set: a file of `surefoot reach`; None: the system is solved now.
        margin: eps >= 0; None: as much as `needed_margin` finds.
        rate: of the barrier.
        progress: of the value iteration.

    Raises:
        ConfigError: an unknown filter, a system without what it needs, or a safe set of another system, with a gap,
            with a discount or not converged.
        CheckpointError: a damaged file.
    """
    check_filter(kind, env_id, margin, rate)
    found = reach(env_id, tolerance=TOLERANCE, progress=progress) if safe_set is None else load_safe_set(safe_set)
    if found.model.system.alias != _alias(env_id):
        raise ConfigError(f"{safe_set}: is the safe set of {found.environment}, not of {env_id}; make one of that")
    if (wrong := _unfit(found)) is not None:
        raise ConfigError(f"{safe_set or env_id}: {wrong}, and a filter would promise what it can't keep")
    value = found.solution.value
    trial = LeastRestrictive(found.model, value, 0.0)
    measured = None
    if margin is None:
        measured = needed_margin(trial, found.solution.grid, steps=found.model.system.max_steps)
        margin = measured.value
    return Shield(kind, _filter(kind, found.model, value, margin, rate), found, measured)


def check_filter(kind: str, env_id: str, margin: float | None = None, rate: float = RATE) -> None:
    """Refuse, before a system is solved for it, a filter that can't be.

    Raises:
        ConfigError: an unknown filter, numbers out of range, or a system that is not known or that it can't be of.
    """
    if kind not in FILTERS[1:]:
        raise ConfigError(f"filter {kind!r} is unknown; {nearest(kind, FILTERS)}")
    _filter(kind, system_model(env_id), lambda states: states[:, 0], 0.0 if margin is None else margin, rate)


def _filter(kind: str, model: Model, value: Value, margin: float, rate: float) -> LeastRestrictive:
    return BarrierQP(model, value, margin, rate) if kind == "cbf" else LeastRestrictive(model, value, margin)


def _unfit(found: SafeSet) -> str | None:
    """Why no filter can be made from a safe set; None where one can."""
    solution = found.solution
    if not solution.converged:
        return f"is not converged (stopped after {solution.sweeps:,} sweeps); make it again with more --max-sweeps"
    if solution.discount < 1:
        return f"has a discount of {solution.discount:g}, which makes the set too large; make it again without one"
    if found.gap is not None:
        return f"is of the system with {found.gap}, and filters know it without a gap; make it again without one"
    return None


def load_filtered(path: str | os.PathLike[str], trust: bool = False) -> FilteredPolicy:
    """The policy and filter that `Shield.save` wrote.

    Args:
        path: of the policy.
        trust: import the module of the python system that the filter names.

    Raises:
        CheckpointError: a file is missing or damaged.
        ConfigError: of a system that is not there, or of a module that is not trusted.
    """
    policy, beside = Policy.load(path), _filter_path(path)
    about = load(beside)[1]
    if "filter" not in about:
        raise CheckpointError(f"{beside}: is a safe set without a filter; write it with Shield.save")
    check(about, ABOUT, beside)
    require_trust(about["environment"], beside, trust)
    options = {"rate": about["rate"]} if about["filter"] == "cbf" else {}
    made = shield(about["filter"], about["environment"], safe_set=beside, margin=about["margin"], **options)
    return made.around(policy)


def _filter_path(path: str | os.PathLike[str]) -> pathlib.Path:
    path = pathlib.Path(path)
    stem = path.with_suffix("") if path.suffix in {".safetensors", ".json"} else path
    return stem.parent / f"{stem.name}.filter.npz"


def _alias(env_id: str) -> str:
    return known_system(env_id).alias


@dataclasses.dataclass
class Watch:
    """What a filter did and promised, over all episodes."""

    actions: int = 0
    changed: int = 0
    """Actions that the filter replaced."""
    short: int = 0
    """Actions where no candidate kept its condition."""
    episodes: int = 0
    promised: int = 0
    """Episodes that began where the filter promises to keep the constraint."""
    broken: int = 0
    """Of those, the ones with a violation."""
    unpromised_violations: int = 0
    """Of the others."""
    cases: list[str] = dataclasses.field(default_factory=list)
    """The first broken promises, in words."""

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return dataclasses.asdict(self)


class _Watched(EpisodeRunner):
    """The sums of episodes and the filtered policy that runs them, with an eye on the filter's promises."""

    def __init__(self, env: Any, limit: int, env_id: str, policy: PolicyLike, chosen: Shield, watch: Watch) -> None:
        super().__init__(env, [self], env_id, env.num_envs, limit=limit)
        self.policy, self.chosen, self.count = policy, chosen, watch
        self.begin, self.observe_outcome = policy.begin, policy.observe_outcome
        self.promised: Array | None = None
        self.violated = np.zeros(env.num_envs, np.bool_)
        self.states = np.zeros((env.num_envs, 0))
        self.taken = np.zeros((env.num_envs, 0))

    def act(self, observations: torch.Tensor, memory: Memory) -> tuple[torch.Tensor, Memory]:
        """Filtered actions; rows whose episode is over get any."""
        chosen, memory = self.policy.act(observations, memory)
        given = chosen.to(torch.float32)
        states = self.chosen.safe_set.model.state_of(observations.double())
        if self.promised is None:
            self.promised = self.chosen.safety.promises(states).numpy()
        rows = torch.from_numpy(np.flatnonzero(self.vector.active))
        with torch.no_grad():
            found = self.chosen.safety(states[rows], given[rows].double())
        actions = given.clone()
        actions[rows[found.changed]] = found.actions[found.changed].to(torch.float32)
        self.count.actions += len(rows)
        self.count.changed += int(found.changed.sum())
        self.count.short += int(found.short.sum())
        self.states, self.taken = states.numpy(), actions.numpy()
        return actions, self.policy.executed(memory, actions) if isinstance(self.policy, Policy) else memory

    def add_constraint(self, moved: Array, done: Step) -> Array:
        """Add costs and margins, and note the promises that were broken."""
        costs = super().add_constraint(moved, done)
        if self.promised is None:
            return costs
        new = moved & (costs > 0) & ~self.violated
        self.violated |= new
        for row in np.flatnonzero(new & self.promised)[: max(0, KEPT - len(self.count.cases))]:
            reached = f" to margin {as_numpy(done.info['margin'])[row]:.4g}" if "margin" in done.info else ""
            self.count.cases.append(
                f"episode of seed {self.seeds[row]}, step {int(self.running.lengths[row])}: from state "
                f"{np.round(self.states[row], 6).tolist()} by action {np.round(self.taken[row], 6).tolist()}{reached}"
            )
        return costs

    def finish(self) -> None:
        """Add the episodes to the watch."""
        promised = np.zeros_like(self.violated) if self.promised is None else self.promised
        self.count.episodes += len(self.violated)
        self.count.promised += int(promised.sum())
        self.count.broken += int((self.violated & promised).sum())
        self.count.unpromised_violations += int((self.violated & ~promised).sum())


def shielded_episodes(
    policy: ControlLoop | Act,
    chosen: Shield,
    env_id: str,
    seeds: Array,
    watch: Watch,
    *,
    steps: int | None = None,
    gap: str | None = None,
    parameters: Mapping[str, Array] | None = None,
) -> EpisodeBatch:
    """One episode behind the filter from each seed, stepped from python; `watch` is added to.

    Arguments as of `run_episodes`; the filter knows the system without the gap and with its own parameters.
    """
    given = {name: value for name, value in (("gap", gap), ("parameters", parameters)) if value is not None}
    env: Any = make_vec(env_id, len(seeds), **given)
    try:
        limit = min(value for value in (steps, env.max_episode_steps) if value is not None)
        acting, memory = acting_policy(policy, seeds)
        stepper = _Watched(env, limit, env_id, acting, chosen, watch)
        batch = run(stepper, memory, seeds)
        stepper.finish()
        return batch
    finally:
        env.close()
