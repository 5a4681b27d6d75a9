"""A bound on the probability that a policy breaks its constraint, from very many whole episodes."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.core.base.errors import CheckpointError, ConfigError, DeviceError
from surefoot.core.base.files import read_json, write_json
from surefoot.envs.acting.sums import EpisodeBatch
from surefoot.envs.episodes import episode_seeds, run_episodes
from surefoot.envs.names import short_name
from surefoot.evaluation.certificates import Certificate, certificate, sequential_certificate
from surefoot.evaluation.runs import CERTIFICATE
from surefoot.evaluation.statistics import hierarchical_interval
from surefoot.evaluation.until import without_interval
from surefoot.play.actors import Actor
from surefoot.runs.run import Run
from surefoot.safety.variants import Ranges, of_episodes

if TYPE_CHECKING:
    from surefoot.safety.shield import Shield

WARM = 64
"""Episodes of the first batch, which is not measured: the first call loads and prepares."""
FIRST = 4096
"""Episodes that are then measured before the expected time is printed."""
BATCH = 1 << 16
"""Episodes between two reports of progress."""
FILTERED_BATCH = 1 << 13
"""The same behind a filter, whose numbers then fit into a core's cache."""
MOST_EPISODES = 10**12
"""That one certificate takes: ten days at a million a second."""
FILE = "certificate"
"""In the run folder; what makes it another question than that of the run's own policy comes behind, and .json."""
QUESTION = ("gap", "varied", "steps", "planner", "plans", "policy_seed", "sampled")
"""Beside environment and filter, what a certificate is about: one of other values doesn't take its place."""

Progress = Callable[[int, int, float], None]
"""Called with finished episodes, all of them, and the seconds that the rest will take."""


@dataclasses.dataclass(frozen=True)
class Certified:
    """A certificate with what it was made from."""

    certificate: Certificate
    policy: str
    environment: str
    gap: str | None
    seed: int
    steps_per_episode: float
    diverged: int
    """Episodes that the simulation's breakdown ended; each counts as a violation."""
    seconds: float
    device: str
    returns: dict[str, Any] | None = None
    """Mean undiscounted return with its 95 % interval, of episodes that did not diverge; None where all did. Without an
    interval where the episodes ended by looking at them (`until`)."""
    filter: dict[str, Any] | None = None
    """Of a filtered policy: the filter, its margin, and what it did and promised (`shield.Watch`)."""
    planner: str | None = None
    """Its name, where the policy plans."""
    varied: dict[str, list[float]] | None = None
    """Physical constant -> the least and the most of what each episode drew for itself."""
    steps: int | None = None
    """That episodes were cut off after; None: the environment's limit."""
    plans: str | None = None
    """How it plans and what for, where it does."""
    policy_seed: int | None = None
    """Of the run's policies or models."""
    sampled: bool | None = None
    """True where the policy drew actions whose mean it has too."""

    def sentence(self) -> str:
        """The bound in words."""
        return self.certificate.sentence(self.steps)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        return {**self.certificate.to_json(), "sentence": self.sentence(), **own}


def certify(
    actor: Actor,
    episodes: int,
    *,
    confidence: float = 0.95,
    seed: int = 2,
    steps: int | None = None,
    gap: str | None = None,
    threads: int | None = None,
    device: str = "auto",
    shield: Shield | None = None,
    progress: Progress | None = None,
    until: float | None = None,
    ranges: Ranges | None = None,
    side_by_side: int | None = None,
) -> Certified:
    """Count the episodes with any cost in them among `episodes` independent ones, and bound their probability.

    Args:
        actor: who acts, and where.
        episodes: at least 1.
        confidence: in (0, 1).
        seed: of the initial states and noise, at least 0; episode e has the same seed in whatever batch it is.
        steps: cut episodes off after this many; None: the environment's limit.
        gap: preset of altered dynamics, or None.
        threads: of native code; None: all processors.
        device: as in `run_episodes`.
        shield: a filter that every action passes, or None.
        progress: called when the expected time is known, and after each batch.
        until: a probability: stop as soon as it is known that violations are rarer, or that they are more frequent. The
            bounds are then those that hold at all looks (`sequential_certificate`); None: all episodes are run.
        ranges: of physical constants of a native system, as `variants.ranges_of` gives them: each episode draws its
            own, evenly. The certificate is then about this family.
        side_by_side: episodes of a batch, for policies that take long; None: as many as are quick.

    Raises:
        ConfigError: a number out of range, or an environment without a constraint.
        DeviceError: a GPU was asked for where none is used.
    """
    check_numbers(episodes, seed, confidence, until)
    check_device(device, shield is not None)
    done = violations = diverged = steps_taken = 0
    largest = BATCH if shield is None else FILTERED_BATCH
    sizes = itertools.chain((WARM, FIRST), itertools.repeat(largest))
    if side_by_side is not None:
        sizes = itertools.chain((), itertools.repeat(side_by_side))
    seconds, computed_by = 0.0, ""
    filtered = None if shield is None else _Filtered(shield)
    measured, timed, returns = 0, 0.0, []
    while done < episodes:
        seeds = episode_seeds(seed, done, min(next(sizes), episodes - done))
        constants = None if ranges is None else of_episodes(ranges, seeds)
        if filtered is None:
            options: dict[str, Any] = {"threads": threads, "device": device, "parameters": constants}
            batch = run_episodes(actor.policy, actor.env_id, seeds, steps=steps, gap=gap, **options)
        else:
            batch = filtered.episodes(actor, seeds, steps, gap, constants)
        violations += _violations(batch, actor.env_id)
        returns.append(batch.returns[~batch.diverged])
        diverged += int(batch.diverged.sum())
        steps_taken, seconds, computed_by = steps_taken + batch.steps, seconds + batch.seconds, batch.device
        if done > 0 or side_by_side is not None:
            measured, timed = measured + len(seeds), timed + batch.seconds
        done += len(seeds)
        if progress is not None and measured > 0:
            progress(done, episodes, (episodes - done) * timed / measured)
        if until is not None:
            known = sequential_certificate(violations, done, confidence)
            if known.upper <= until or known.low >= until:
                break
    made = certificate if until is None else sequential_certificate
    mean = None if diverged == done else hierarchical_interval([np.concatenate(returns)]).to_json()
    return Certified(
        certificate=made(violations, done, confidence),
        policy=actor.label,
        environment=actor.env_id,
        gap=gap,
        seed=seed,
        steps_per_episode=steps_taken / done,
        diverged=diverged,
        seconds=seconds,
        device=computed_by,
        returns=mean if mean is None or until is None else without_interval(mean),
        filter=None if filtered is None else filtered.to_json(),
        planner=actor.planner,
        varied=None if ranges is None else {name: list(bounds) for name, bounds in ranges.items()},
        steps=steps,
        plans=actor.plans,
        policy_seed=actor.seed,
        sampled=actor.sampled or None,
    )


def check_numbers(episodes: int, seed: int, confidence: float, until: float | None) -> None:
    """Raise ConfigError for those that `certify` can't take; a filter is made, and episodes are run, after that."""
    if episodes < 1 or seed < 0:
        raise ConfigError(
            f"{episodes} episodes and seed {seed}: at least 1 episode, and a seed of 0 or more, are needed"
        )
    if episodes > MOST_EPISODES:
        raise ConfigError(f"{episodes:.3g} episodes are more than the {MOST_EPISODES:.3g} that one certificate takes")
    certificate(0, 1, confidence)
    if until is not None and not 0 < until < 1:
        raise ConfigError(f"until is {until}; it must be a probability between 0 and 1, as in 0.001")


def check_device(device: str, filtered: bool) -> None:
    """Raise DeviceError for a GPU where a filter has episodes stepped from python."""
    if filtered and device == "cuda":
        raise DeviceError("behind a filter episodes are stepped on a CPU; use device cpu or auto")


class _Filtered:
    """Episodes behind a filter, and what it did in all of them."""

    def __init__(self, shield: Shield) -> None:
        from surefoot.safety.shield import Watch

        self.shield, self.watch = shield, Watch()

    def episodes(
        self, actor: Actor, seeds: Any, steps: int | None, gap: str | None, constants: Mapping[str, Any] | None
    ) -> EpisodeBatch:
        from surefoot.safety.shield import shielded_episodes

        chosen, env_id = self.shield, actor.env_id
        options: dict[str, Any] = {"steps": steps, "gap": gap, "parameters": constants}
        return shielded_episodes(actor.policy, chosen, env_id, seeds, self.watch, **options)

    def to_json(self) -> dict[str, Any]:
        margin = self.shield.safety.margin
        return {"kind": self.shield.kind, "margin": margin, "how": self.shield.sentence(), **self.watch.to_json()}


def _violations(batch: EpisodeBatch, env_id: str) -> int:
    if batch.violations is None:
        raise ConfigError(
            f"{env_id}: gives no cost, so there is no constraint to certify; `surefoot envs list` says which do"
        )
    return batch.violations


def store(certified: Certified, folder: pathlib.Path) -> pathlib.Path:
    """Write it into a run folder, where `surefoot report` finds it, in place of one of the same question; the path.

    Raises:
        CheckpointError: it is no run folder.
    """
    run, found = Run.open(folder), certified.to_json()
    own = run.plan.environment or run.spec.environment
    elsewhere = own is not None and short_name(own) != short_name(certified.environment)
    parts = (
        FILE,
        certified.planner,
        None if certified.filter is None else certified.filter["kind"],
        certified.gap,
        "varied" if certified.varied else None,
        "sampled" if certified.sampled else None,
        re.sub(r"[^\w.-]+", "-", certified.environment) if elsewhere else None,
        None if certified.policy_seed in (None, run.plan.seeds[0]) else f"seed{certified.policy_seed}",
        None if certified.steps is None else f"{certified.steps}steps",
    )
    stem = "-".join(part for part in parts if part)
    paths = (folder / f"{stem}{'' if number == 1 else f'-{number}'}.json" for number in itertools.count(1))
    path = next(path for path in paths if not path.exists() or _question(path) == _asked(found))
    write_json(path, found)
    return path


def _question(path: pathlib.Path) -> list[Any] | None:
    """What a kept certificate is about; None where that can't be read."""
    try:
        return _asked(read_json(path, CERTIFICATE))
    except CheckpointError:
        return None


def _asked(found: Mapping[str, Any]) -> list[Any]:
    behind = found.get("filter") or {}
    return [
        short_name(found["environment"]),
        *(found.get(name) for name in QUESTION),
        behind.get("kind"),
        behind.get("how"),
    ]
