"""Corruption: the attacks on a dataset by which robust offline RL is judged (RIQL's protocol).

Yang et al., "Towards Robust Offline Reinforcement Learning under Diverse Data Corruption", ICLR 2024, and the
authors' code, YangRui2015/RIQL; where this differs from it stands in `corrupt`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, DataError, nearest
from surefoot.core.base.schema import Many, Plain, Table, check, parse
from surefoot.data.dataset import BEST_RETURN, Dataset
from surefoot.data.formats.named import need_one_vector

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int], None]

COLUMNS = {  # element -> the one column that an attack on it changes
    "observations": "observations",
    "actions": "actions",
    "rewards": "rewards",
    "dynamics": "next_observations",
}
ALIASES = {"obs": "observations", "act": "actions", "rew": "rewards", "reward": "rewards", "dyn": "dynamics"}
MODES = ("random", "adversarial")
RECORD = "corruptions"
"""Attribute that holds a JSON list of the attacks' settings."""
REWARD_RANGE = 30.0  # random rewards are uniform on +-30 scale, whatever the rewards were
ATTACK_STEPS = 100
ATTACK_STEP = 0.01  # in units of scale: from the middle of the box an attack can just reach a face
CHUNK = 4096  # attacked rows that go through the victim at once


class Victim(Protocol):
    """A trained agent whose critics an adversary attacks: differentiable, in raw observation units."""

    def q_values(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(K, B) values of K critics at (B, observation dim) and (B, action dim)."""

    def policy(self, observations: Tensor) -> Tensor:
        """(B, action dim) mean actions: deterministic, so that equal seeds give equal attacks."""


@dataclasses.dataclass(frozen=True)
class Corruption:
    """A corrupted copy of a dataset, and what was done to it."""

    dataset: Dataset
    mask: Array  # (N,) bool: the rows that were attacked
    noise: Array  # shape of the column, float64: what was added; 0 on the other rows
    report: dict[str, Any]  # settings, counts, statistics of the noise, the victim's values; fit for JSON


def corrupt(
    dataset: Dataset,
    element: str = "observations",
    mode: Literal["random", "adversarial"] = "random",
    rate: float = 0.3,
    scale: float = 1.0,
    seed: int = 0,
    exact_count: bool = False,
    consistent: bool = False,
    victim: Victim | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Corruption:
    """Attack one element of a dataset, as RIQL's experiments do.

    Each valid row is attacked with probability `rate`. With std the clean column's population standard
    deviation per dimension, over valid rows, an attacked row becomes

    - random observations, actions, dynamics: x + z std, z uniform on [-scale, scale] per dimension;
    - random rewards: uniform on [-30 scale, 30 scale], in place of the reward;
    - adversarial rewards: -scale r;
    - adversarial observations, actions, dynamics: x + z std, where z in [-scale, scale] per dimension
      minimises the mean of the victim's critics at (s + z std, a), (s, a + z std) or
      (s' + z std, policy(s' + z std)): 100 sign-gradient steps of 0.01 scale from a uniform start.

    Only the named column changes ("dynamics" is `next_observations`), nothing is clipped, and rows that are
    not valid stay as they are. Extras computed from the clean column are not computed anew, and an attack on rewards
    drops the attribute `best_return`, which is of others. Where this
    differs from the official code, on purpose: the start is uniform in the box (there it is multiplied by
    std twice), and the dynamics attack goes through the policy's deterministic mean (there through a sample,
    passed as a tuple, which the critic can't take). Steps are by the gradient's sign; there they are those of
    an Adam made anew each time, 0.01 scale g / (|g| + 1e-8), with g of a mean over thousands of rows: the
    same but for the few coordinates (3 to 5 %) whose gradient is that small, which hardly move there.

    Args:
        dataset: what to attack; it is left as it is.
        element: observations, actions, rewards or dynamics (obs, act, rew, dyn).
        mode: random or adversarial.
        rate: share of rows that are attacked, in [0, 1].
        scale: size of the attack, in standard deviations, above 0.
        seed: equal seeds give equal attacks, each element on rows of its own; both modes hit the same rows.
        exact_count: attack round(rate * rows) rows rather than a binomial number.
        consistent: observations only: the same noise also goes to the copy of the observation that the row
            before it, in the same episode, holds as next observation.
        victim: needed by adversarial attacks except on rewards; where given, the report has its mean value
            before and after.
        device: where the victim is.
        progress: called with (chunks done, chunks) during an adversarial attack.

    Raises:
        ConfigError: unknown element or mode, a number out of range, or a victim missing or without a method.
        DataError: the victim does not fit the dataset or gives values that are not finite, or the corrupted
            values don't fit the column's dtype.
    """
    element = _check_settings(element, mode, rate, scale, seed, consistent, victim)
    column = COLUMNS[element]
    if column in ("observations", "next_observations"):
        need_one_vector(dataset, "an attack on observations")
    clean = getattr(dataset, column)
    rows = np.flatnonzero(dataset.transitions)
    adversary = None
    if victim is not None and element != "rewards":
        adversary = _Adversary(victim, dataset, element, device)
        adversary.check()
    std = clean[rows].std(axis=0, dtype=np.float64)
    attacked = rows[_attack_mask(len(rows), rate, exact_count, _generator(seed, element, "mask"))]
    rng = _generator(seed, element, "noise")

    if element == "rewards":
        values = _attacked_rewards(clean[attacked], mode, scale, rng)
        added = values - clean[attacked].astype(np.float64)
    else:
        z = rng.uniform(-scale, scale, (len(attacked), clean.shape[1]))
        if mode == "adversarial":
            assert adversary is not None  # _check_settings
            z = adversary.descend(z, attacked, std, scale, progress)
        added = z * std
        values = clean[attacked] + added

    changes = {column: _replaced(clean, attacked, values, dataset.name)}
    if consistent:
        changes["next_observations"] = _propagated(dataset, attacked, added)
    noise = np.zeros(clean.shape)
    noise[attacked] = added
    mask = np.zeros(len(dataset), bool)
    mask[attacked] = True

    settings = {
        "element": element, "mode": mode, "rate": rate, "scale": scale, "seed": seed,
        "exact_count": exact_count, "consistent": consistent,
    }  # fmt: skip
    corrupted = dataset.replace(**changes, **_labels(dataset, settings, len(attacked)))
    report = settings | {
        "dataset": dataset.name,
        "sha256": dataset.sha256,
        "rows": len(rows),
        "attacked": len(attacked),
        "attacked_share": len(attacked) / len(rows) if len(rows) else 0.0,
        "clean_std": np.atleast_1d(std).tolist(),
        "noise": _statistics(added if element == "rewards" else added / np.where(std > 0, std, 1)),
        "noise_unit": "reward" if element == "rewards" else "standard deviation of the clean column",
        "victim": adversary.report(corrupted, attacked) if adversary else None,
    }
    return Corruption(corrupted, mask, noise, report)


@dataclasses.dataclass(frozen=True)
class _Adversary:
    """One element of a dataset as a victim sees it."""

    victim: Victim
    dataset: Dataset
    element: str
    device: str | torch.device

    def values(self, rows: Array) -> Callable[[Tensor], Tensor]:
        """What the adversary makes small: attacked element (B, d) at `rows` -> (B,) mean over critics."""
        observations, actions = self._tensor("observations", rows), self._tensor("actions", rows)
        q_values, policy = self.victim.q_values, self.victim.policy
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "observations": lambda attacked: q_values(attacked, actions).mean(0),
            "actions": lambda attacked: q_values(observations, attacked).mean(0),
            "dynamics": lambda attacked: q_values(attacked, policy(attacked)).mean(0),
        }
        return functions[self.element]

    def descend(self, start: Array, rows: Array, std: Array, scale: float, progress: Progress | None) -> Array:
        """(n, d) float64: noise `start` after the sign-gradient steps, within [-scale, scale]."""
        spread = torch.as_tensor(std, device=self.device)
        chunks = torch.as_tensor(start).split(CHUNK)
        found = []
        for number, z in enumerate(chunks):
            part = rows[number * CHUNK : number * CHUNK + len(z)]
            values, clean = self.values(part), self._tensor(COLUMNS[self.element], part).double()
            z = z.to(self.device, copy=True)
            for _ in range(ATTACK_STEPS):
                z.requires_grad_(True)
                (gradient,) = torch.autograd.grad(values((clean + z * spread).float()).sum(), z)
                z = (z.detach() - ATTACK_STEP * scale * gradient.sign()).clamp_(-scale, scale)
            if not torch.isfinite(gradient).all():
                raise DataError(f"{self.dataset.name}: the victim's gradient is not finite: train another victim")
            found.append(z.cpu())
            if progress is not None:
                progress(number + 1, len(chunks))
        return torch.cat(found).numpy()

    def mean_value(self, dataset: Dataset, rows: Array) -> float:
        """Mean critic over `rows`, with the attacked element taken from `dataset`."""
        column = getattr(dataset, COLUMNS[self.element])
        total = 0.0
        with torch.no_grad():
            for part in np.split(rows, range(CHUNK, len(rows), CHUNK)):
                values = self.values(part)(torch.as_tensor(column[part], device=self.device))
                total += float(values.double().sum())
        return total / len(rows)

    def report(self, corrupted: Dataset, rows: Array) -> dict[str, Any] | None:
        """The mean critic on the attacked rows, before and after; None where no row was attacked."""
        if len(rows) == 0:
            return None
        before, after = self.mean_value(self.dataset, rows), self.mean_value(corrupted, rows)
        if not (math.isfinite(before) and math.isfinite(after)):
            raise DataError(f"{self.dataset.name}: the victim's values are not finite: train another victim")
        return {"name": type(self.victim).__name__, "mean_value_before": before, "mean_value_after": after}

    def check(self) -> None:
        """One small call with the dataset's shapes, so that a mismatch is reported before the long attack."""
        dataset, rows = self.dataset, np.arange(min(len(self.dataset), 3))
        observations, actions = self._tensor("observations", rows), self._tensor("actions", rows)
        sizes = f"observations of {dataset.observation_dim} and actions of {dataset.action_dim} numbers"
        try:
            with torch.no_grad():
                proposed = self.victim.policy(observations)
                values = self.victim.q_values(observations, actions)
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{dataset.name} has {sizes}; the victim can't take them ({error})") from error
        if proposed.shape != actions.shape:
            shape = tuple(proposed.shape)
            raise DataError(f"{dataset.name} has {sizes}; the victim's policy gives actions of shape {shape}")
        if values.ndim != 2 or values.shape[1] != len(rows):
            raise DataError(
                f"the victim's q_values gave shape {tuple(values.shape)} for {len(rows)} rows; "
                "it must be (critics, rows)"
            )

    def _tensor(self, column: str, rows: Array) -> Tensor:
        return torch.as_tensor(getattr(self.dataset, column)[rows], device=self.device)


def _check_settings(
    element: str, mode: str, rate: float, scale: float, seed: int, consistent: bool, victim: Victim | None
) -> str:
    """The element's full name, or an error that names the option that is wrong."""
    element = ALIASES.get(element, element)
    if element not in COLUMNS:
        raise ConfigError(f"unknown element {element!r} to corrupt: {nearest(element, list(COLUMNS))}")
    if mode not in MODES:
        raise ConfigError(f"unknown corruption mode {mode!r}: {nearest(mode, MODES)}")
    if not 0 <= rate <= 1:
        raise ConfigError(f"corruption rate is {rate}; it is a share of the rows, between 0 and 1")
    if not (scale > 0 and math.isfinite(scale)):
        raise ConfigError(f"corruption scale is {scale}; it must be a finite number above 0")
    if seed < 0:
        raise ConfigError(f"corruption seed is {seed}; it must be a whole number from 0 on")
    if consistent and element != "observations":
        raise ConfigError(f"consistent=True carries observations over; it says nothing about {element}")
    if victim is None:
        if mode == "adversarial" and element != "rewards":
            raise ConfigError(f"an adversarial attack on {element} needs a trained critic to attack: give a victim")
        return element
    for method in ("q_values", "policy"):
        if not callable(getattr(victim, method, None)):
            raise ConfigError(f"the victim ({type(victim).__name__}) has no method {method!r}")
    return element


def _generator(seed: int, element: str, purpose: Literal["mask", "noise"]) -> np.random.Generator:
    """A stream of its own for each seed, element and purpose."""
    words = [seed, list(COLUMNS).index(element), ("mask", "noise").index(purpose)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def _attack_mask(count: int, rate: float, exact: bool, rng: np.random.Generator) -> Array:
    """(count,) bool: rows with a uniform number below `rate`, or the round(rate * count) smallest."""
    uniform = rng.random(count)
    if not exact:
        return uniform < rate
    mask = np.zeros(count, bool)
    mask[np.argsort(uniform, kind="stable")[: round(rate * count)]] = True
    return mask


def _attacked_rewards(rewards: Array, mode: str, scale: float, rng: np.random.Generator) -> Array:
    if mode == "adversarial":
        return -scale * rewards.astype(np.float64)
    return rng.uniform(-REWARD_RANGE * scale, REWARD_RANGE * scale, len(rewards))


def _replaced(clean: Array, rows: Array, values: Array, name: str) -> Array:
    """A copy of the column with new values in some rows."""
    column = clean.copy()
    with np.errstate(over="ignore"):
        column[rows] = values
    if not np.isfinite(column[rows]).all():
        raise DataError(f"{name}: corrupted values are too large for {clean.dtype}: use a smaller scale")
    return column


def _propagated(dataset: Dataset, attacked: Array, added: Array) -> Array:
    """`next_observations` with each attacked observation's noise in the row before it, within its episode."""
    before = attacked - 1
    same = (attacked > 0) & (dataset.episode_ids[before] == dataset.episode_ids[attacked])
    rows = before[same]
    return _replaced(dataset.next_observations, rows, dataset.next_observations[rows] + added[same], dataset.name)


def history(dataset: Dataset) -> list[dict[str, Any]]:
    """Settings of the attacks on a dataset, the first one first.

    Raises:
        DataError: the attribute that records them holds something else.
    """
    stored = dataset.attributes.get(RECORD, "[]")
    if not isinstance(stored, str):
        raise DataError(f"{dataset.name}: attribute {RECORD!r} is {stored!r}, not a JSON list: remove it")
    where = f"{dataset.name}, attribute {RECORD!r}"
    return [*check(parse(stored, where, DataError), Many(Table(Plain())), where, DataError)]


def moved(dataset: Dataset, element: str) -> bool:
    """Whether an attack may have changed rows of this element of a dataset; another's attribute says nothing of it."""
    try:
        return any(one.get("element") == element and one.get("rate") != 0 for one in history(dataset))
    except DataError:
        return False


def _labels(dataset: Dataset, settings: dict[str, Any], attacked: int) -> dict[str, Any]:
    """Name and attributes that record this attack, on so many rows, and those before it."""
    attributes = {**dataset.attributes, RECORD: json.dumps([*history(dataset), settings])}
    if settings["element"] == "rewards" and attacked:
        attributes.pop(BEST_RETURN, None)  # of other rewards
    how = f"{settings['mode']} {settings['element']}, rate {settings['rate']:g}, scale {settings['scale']:g}"
    return {"name": f"{dataset.name} ({how}, seed {settings['seed']})", "attributes": attributes}


def _statistics(noise: Array) -> dict[str, list[float]] | None:
    """Mean, standard deviation, least and greatest of each dimension; None where no row was attacked."""
    if len(noise) == 0:
        return None
    columns = noise.reshape(len(noise), -1)
    return {how: getattr(columns, how)(axis=0).tolist() for how in ("mean", "std", "min", "max")}
