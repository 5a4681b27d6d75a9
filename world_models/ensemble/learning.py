"""Learning an ensemble inside any agent: its rows, its updates, and the rule that keeps what a holdout prefers.

An agent composes it of five calls and inherits nothing; docs/world_models.md shows one:

    build:    self.model = ensemble_of(spec, config);  self.model_best = BestSoFar(self.model)
    prepare:  return prepare_model(self, prepare(self, dataset))
    sources:  {..., **model_sources(stores, config)}
    updates:  [*learn_model(self, until=N), Update(..., after=N)]
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.base.errors import DataError
from surefoot.core.base.options import Options, option
from surefoot.core.base.spec import Spec
from surefoot.core.engine.agent import Adam, Agent, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.engine.encoder_config import need_vector
from surefoot.core.engine.sources import Batch, Source, Stores
from surefoot.data.dataset import Dataset
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble
from surefoot.world_models.ensemble.gaussian import DECAYS, Judge, Prediction, gaussian_loss, squared_error
from surefoot.world_models.ensemble.mismatch import WEIGHTS as ROW_WEIGHTS
from surefoot.world_models.ensemble.mismatch import effective_sample_size
from surefoot.world_models.ensemble.renormalise import check_units
from surefoot.world_models.ensemble.rows import HOLDOUT, MODEL, Bootstrap, Fixed, split_rows
from surefoot.world_models.known import rewards, terminations
from surefoot.world_models.known.rewards import LEARNED
from surefoot.world_models.known.terminations import AUTO, named

WEIGHTS = "model_weights"
"""Column of a dataset's extras: how much a row counts (`world_models.ensemble.mismatch`)."""
READS = ("observations", "actions", "rewards", "next_observations")
"""Columns that a model learns from; `costs` too where it predicts them."""
NEVER = 1e30
"""Holdout error of a member that was not measured yet: finite, as all that a checkpoint holds."""
JUDGES: dict[str, Judge] = {"error": squared_error, "likelihood": gaussian_loss}
"""How members are compared on the holdout."""


@dataclasses.dataclass(frozen=True)
class ModelConfig(Options):
    """How a model is built; the defaults are those of MBPO and its offline kin."""

    model_members: int = option(7, "members of the model's ensemble", range=">= 1")
    model_elites: int = option(5, "members of the model that are asked, the best")
    model_hidden: tuple[int, ...] = option((200, 200, 200, 200), "widths of the model's hidden layers")
    model_decays: tuple[float, ...] = option(
        DECAYS,
        "weight decay of each layer, the last included; [] for none; these are spread over as many layers as there are",
    )
    model_learning_rate: float = option(1e-3, "learning rate of the model", range=">= 0")
    model_rows: int = option(256, "rows of each member in a training step", range=">= 1")
    model_normalize_targets: bool = option(False, "divide what is predicted by its deviations")
    model_learned_bounds: bool = option(True, "learn the bounds of the log-variance; false: they stay at -10 and 0.5")
    model_holdout_limit: int = option(1000, "rows that no member is trained on, at most", range=">= 1")
    termination: str = option(
        AUTO, "where episodes end in the model: auto (by the environment's id), none or module:function"
    )
    reward_function: str = option(
        LEARNED, "what a step earns: learned, auto (by the environment's id) or module:function"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name, c = "the model", self
        require(all(w >= 0 for w in c.model_decays), name, "model_decays", c.model_decays, "0 or more each")


@dataclasses.dataclass(frozen=True)
class EnsembleConfig(ModelConfig):
    """How a model is built and learned from a dataset, until a holdout of it improves no more."""

    model_holdout: float = option(0.2, "share of the rows that no member is trained on", range="(0, 1)")
    model_epoch: int = option(
        0, "training steps between measurements of the holdout; 0: one pass over the training rows", range=">= 0"
    )
    model_patience: int = option(
        5, "epochs without any member improving until the model's training stops", range=">= 1"
    )
    model_improvement: float = option(0.01, "relative improvement of the holdout that counts as one", range="[0, 1)")
    model_weights: str = option(
        "uniform",
        "weights of rows in the model's loss: uniform, recent, near_best or value_gradient",
        choices=ROW_WEIGHTS,
    )
    model_judged_by: str = option(
        "error", "measure on the holdout: error (squared, of the means: MBPO) or likelihood", choices=JUDGES
    )
    model_recalibrated: bool = option(False, "scale variances, a number a dimension, to what the holdout likes best")


def _decays(config: ModelConfig) -> tuple[float, ...]:
    """The weight decays of a config: the default ones for as many layers as it has, given ones as they are."""
    decays, layers = tuple(config.model_decays), len(config.model_hidden) + 1
    if decays != type(config).__dataclass_fields__["model_decays"].default or not decays:
        return decays
    last = len(decays) - 1
    return tuple(decays[round(k * last / max(1, layers - 1))] for k in range(layers - 1)) + decays[-1:]


def ensemble_of(
    spec: Spec, config: ModelConfig, costs: bool = False, units: Callable[[Tensor], Tensor] | None = None
) -> GaussianEnsemble:
    """The model that a config describes, of a problem of one vector.

    Args:
        spec: the problem.
        config: of the model.
        costs: predict costs too.
        units: (..., S) states as the model reads them -> as functions of ends and rewards do; None: they are the same.

    Raises:
        ConfigError: another problem, sizes that don't go together, or a termination function that can't be imported.
    """
    need_vector(spec, algorithm_of(config))
    ends = named(config.termination, spec.environment)
    earned = rewards.named(config.reward_function, spec.environment, (spec.action_low, spec.action_high))
    if units is not None:
        ends, earned = terminations.behind(ends, units), rewards.behind(earned, units)
    model = GaussianEnsemble(
        spec.observation_dim,
        spec.action_dim,
        members=config.model_members,
        elites=config.model_elites,
        hidden=config.model_hidden,
        decays=_decays(config),
        learned_bounds=config.model_learned_bounds,
        normalize_targets=config.model_normalize_targets,
        costs=costs,
        terminates=ends,
    )
    model.rewards_of = earned
    return model


class BestSoFar(nn.Module):
    """Each member as it was when its holdout error was best, and whether training is over.

    All of it is in checkpoints: a run that was killed continues bit for bit. Nothing trains `network`.
    """

    errors: Tensor
    stale: Tensor
    stopped: Tensor
    epochs: Tensor

    def __init__(self, model: GaussianEnsemble) -> None:
        """Begin with the members as they are, not measured yet."""
        super().__init__()
        self.network = copy.deepcopy(model.network).requires_grad_(False)
        self.register_buffer("errors", torch.full((model.members,), NEVER))
        self.register_buffer("stale", torch.zeros((), dtype=torch.int64))
        self.register_buffer("stopped", torch.zeros((), dtype=torch.bool))
        self.register_buffer("epochs", torch.zeros((), dtype=torch.int64))
        self.epoch = 1
        """Training steps between measurements; `prepare_model` sets it."""

    def measured(self, model: GaussianEnsemble, errors: Tensor, improvement: float, patience: int) -> dict[str, Tensor]:
        """What an epoch's (E,) holdout errors change, by the names of this module's tensors; nothing once stopped."""
        gain = (self.errors - errors) / self.errors.abs().clamp(min=1e-30)
        better = (gain > improvement) & ~self.stopped
        stale = torch.where(better.any(), torch.zeros_like(self.stale), self.stale + 1)
        changed = {"errors": torch.where(better, errors, self.errors)}
        changed["stale"] = torch.where(self.stopped, self.stale, stale)
        changed["epochs"] = self.epochs + (~self.stopped).long()
        changed["stopped"] = self.stopped | (changed["stale"] >= patience)
        live = dict(model.network.named_parameters())
        for name, kept in self.network.named_parameters():
            chosen = better.view(-1, *[1] * (kept.dim() - 1))
            changed[f"network.{name}"] = torch.where(chosen, live[name], kept)
        return changed


def model_of(agent: Agent) -> GaussianEnsemble:
    """The ensemble that an agent learns as its `model`."""
    model = agent.model
    assert isinstance(model, GaussianEnsemble)
    return model


def learn_model(agent: Agent, until: int | None = None, best: str = "model_best") -> list[Update | Rule]:
    """The entries of `Agent.updates` that train `agent.model`, to be put first.

    Each epoch the holdout is measured and the members that improved are kept. After `model_patience` epochs in which
    none did, the members kept are restored, the elites sorted, and no step is taken any more: further training steps
    cost nothing. Restoring also comes at step `until`, and at the last planned step.

    Args:
        agent: with `model` and a `BestSoFar`.
        until: the model's last training step; None: the run's.
        best: name of the `BestSoFar`.
    """
    c, keeper = agent.config, getattr(agent, best)

    def model_loss(batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Gaussian log-likelihood of the rows of each member."""
        return model_of(agent).loss(batch, batch.get(WEIGHTS))

    def final(model: GaussianEnsemble, kept: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Members and elites as they stay, and the temperatures of their variances where those are wanted."""
        found = restored(model, kept)
        return {**found, "model.temperature": temperatures(model, found, batch)} if c.model_recalibrated else found

    def keep_best(batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """Measure the holdout, keep the members that improved; restore them where that was the last epoch."""
        model, kept = model_of(agent), getattr(agent, best)
        judge = JUDGES[c.model_judged_by]
        errors = model.holdout_errors(batch, batch.get(WEIGHTS), judge)
        changed = kept.measured(model, errors, c.model_improvement, c.model_patience)
        found = {f"{best}.{name}": value for name, value in changed.items()}
        if bool(changed["stopped"]):  # rules are taken seed by seed
            found |= final(model, changed, batch)
        metrics = {f"model_error_{member}": error for member, error in enumerate(errors)}
        if WEIGHTS in batch:
            metrics["model_error_uniform"] = model.holdout_errors(batch, None, judge).mean()
        return found, {**metrics, "model_epochs": changed["epochs"].float()}

    def restore_best(batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """Measure for the last time, restore the members kept, and sort the elites."""
        found, metrics = keep_best(batch, noise)
        changed = {name.removeprefix(f"{best}."): value for name, value in found.items()}
        stopped = torch.ones_like(changed["stopped"])
        return {**found, f"{best}.stopped": stopped, **final(model_of(agent), changed, batch)}, metrics

    measured = Rule(
        keep_best, (best, "model"), source=HOLDOUT, rows=c.model_holdout_limit, every=keeper.epoch, until=until
    )
    last = until is None
    adam = Adam(c.model_learning_rate)
    switch = f"{best}.stopped"
    return [
        Update(model_loss, ("model",), adam, MODEL, until=until, unless=switch, rows=c.model_rows),
        measured,
        dataclasses.replace(measured, change=restore_best, every=until or 1, until=until or 0, last=last),
    ]


def restored(model: GaussianEnsemble, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full names of the model's tensors -> those kept, and the elites, best first.

    Args:
        model: gives the count of elites.
        kept: `network.*` and `errors`, as `BestSoFar.measured` gives them.
    """
    found = {f"model.{name}": value for name, value in kept.items() if name.startswith("network.")}
    return {**found, "model.elites": kept["errors"].argsort(stable=True)[: len(model.elites)]}


TEMPERATURES = tuple(math.exp(0.1 * k) for k in range(-80, 41))
"""Factors of variances that are tried."""


@torch.no_grad()
def temperatures(model: GaussianEnsemble, values: Mapping[str, Tensor], batch: Batch) -> Tensor:
    r"""(D,) the factors of the members' variances under which the elites' mixture is likeliest on rows (B, ...).

    .. math:: \arg\min_s \textstyle\sum_b (y_b - \mu_b)^2 / v_b + \log v_b, \quad
        v_b = s\, \mathrm{mean}_e \sigma^2_{eb} + \mathrm{var}_e \mu_{eb}

    for each dimension: temperature scaling (Guo et al., "On Calibration of Modern Neural Networks", 2017; Levi et al.
    for regression, 2022) of the noise alone: what members disagree on is left as it is.

    Args:
        model: whose sizes and statistics count.
        values: tensors by full name, `model.` in front, that take the place of the model's own.
        batch: that no member was trained on.
    """
    own = {name.removeprefix("model."): value for name, value in values.items()}
    inputs, targets = model.inputs(batch["observations"], batch["actions"]), model.targets(batch)
    found: Prediction = torch.func.functional_call(model, own, (inputs,))
    elites = own["elites"]
    mean, noise = found.mean[elites], found.log_variance[elites].exp().mean(0)
    spread, miss = mean.var(0, correction=0), (mean.mean(0) - targets).square()
    factors = torch.tensor(TEMPERATURES, dtype=noise.dtype, device=noise.device)
    loss = torch.stack([(miss / (s * noise + spread) + (s * noise + spread).log()).mean(0) for s in factors])
    return factors[loss.argmin(0)]


# -- rows -----------------------------------------------------------------------------------------------------


def model_sources(stores: Stores, config: EnsembleConfig) -> dict[str, Source]:
    """The sources `MODEL` and `HOLDOUT` of an agent's dataset, to be put beside its own."""
    train, held = split_rows(len(stores.data), config.model_holdout, config.model_holdout_limit)
    return {MODEL: Bootstrap(stores.data, train, config.model_members), HOLDOUT: Fixed(stores.data, held)}


def known_notes(config: ModelConfig, environment: str | None) -> list[str]:
    """What a user should hear where it is not known how episodes end, or what a step earns."""
    ends = terminations.notes(config.termination, environment)
    return [*ends, *rewards.notes(config.reward_function, environment)]


def model_notes(dataset: Dataset, config: EnsembleConfig, environment: str | None) -> list[str]:
    """What a user should hear of a model: are ends and rewards known, and how many rows do its weights leave."""
    return [*known_notes(config, environment), *weight_notes(dataset, config)]


def weight_notes(dataset: Dataset, config: EnsembleConfig) -> list[str]:
    """How many rows the model's weights leave, where rows are weighed."""
    if config.model_weights == "uniform":
        return []
    size = effective_sample_size(ROW_WEIGHTS[config.model_weights](dataset))
    share = 100 * size / len(dataset)
    return [f"the model's rows are weighed ({config.model_weights}): as {size:,.0f} of equal weight, {share:.0f} %"]


def prepare_model(agent: Agent, dataset: Dataset, best: str = "model_best") -> Dataset:
    """Set the statistics of `agent.model` from the rows that it is trained on, and the length of its epochs.

    Args:
        agent: with `model` and a `BestSoFar`.
        dataset: with actions in [-1, 1], as `data.prepare` leaves it.
        best: name of the `BestSoFar`.

    Returns:
        The dataset; where rows are weighed, with the column `WEIGHTS`, which is then in its `required_columns`.

    Raises:
        DataError: costs are to be predicted and the data has none, or a value is not finite.
        ConfigError: observations were normalised, and a model that came with `init=` reads them as they are.
    """
    model = model_of(agent)
    check_units(agent, model)
    c, valid = agent.config, np.flatnonzero(dataset.transitions)
    train = valid[split_rows(len(valid), c.model_holdout, c.model_holdout_limit)[0]]
    names = (*READS, "costs") if model.costs else READS
    if model.costs and dataset.costs is None:
        raise DataError(f"{dataset.name}: has no costs, and {agent.name} is to predict them")
    model.fit_statistics({name: getattr(dataset, name)[train] for name in names})
    if c.model_weights != "uniform":
        agent.required_columns = (*(name for name in agent.required_columns if name != WEIGHTS), WEIGHTS)  # type: ignore[misc]
        dataset = dataset.replace(extras={**dataset.extras, WEIGHTS: ROW_WEIGHTS[c.model_weights](dataset)})
    getattr(agent, best).epoch = c.model_epoch or max(1, math.ceil(len(train) / c.model_rows))
    return dataset
