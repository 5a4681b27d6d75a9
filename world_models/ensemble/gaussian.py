"""Probabilistic ensembles: E networks that each predict a Gaussian over the change of the state and the reward.

Sources: Chua, Calandra, McAllister and Levine, "Deep Reinforcement Learning in a Handful of Trials using Probabilistic
Dynamics Models" (PETS, 2018); Janner, Fu, Zhang and Levine, "When to Trust Your Model" (MBPO, 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.nn.native import native
from surefoot.core.nn.networks import MLP
from surefoot.world_models.dynamics import RewardsOf, Terminates

DECAYS = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
"""Weight decay of each layer of the usual network, four hidden ones of 200: MBPO's."""


class Prediction(NamedTuple):
    """Gaussians over what is predicted: change of the state, reward and, where the model predicts it, cost."""

    mean: Tensor
    """(..., D)."""
    log_variance: Tensor
    """(..., D)."""

    @property
    def std(self) -> Tensor:
        """(..., D) standard deviations."""
        return (0.5 * self.log_variance).exp()


CostsOf = Callable[[Tensor], Tensor]
"""(..., S) next states in the environment's units -> (...) costs, where the constraint is known and not learned."""
Judge = Callable[[Prediction, Tensor, Tensor | None], Tensor]
"""(predictions, targets, weights) -> (E,), the less the better."""


def soft_clamp(values: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    r"""Values between two bounds, with a gradient everywhere.

    .. math:: y = h - \mathrm{softplus}(h - x), \quad l + \mathrm{softplus}(y - l)

    Args:
        values: (..., D).
        low: (D,) or a number.
        high: likewise.

    Source: PETS, appendix A.1.
    """
    below = high - nn.functional.softplus(high - values)
    return low + nn.functional.softplus(below - low)


def gaussian_loss(prediction: Prediction, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""(E,) :math:`E[(\mu - y)^2 e^{-\log \sigma^2} + \log \sigma^2]`, a negative log-likelihood.

    Args:
        prediction: (E, B, D).
        targets: (E, B, D), or (B, D) that all members share.
        weights: (E, B) or (B,) of the rows, >= 0; they are divided by their sum. None: all alike.
    """
    loss = (prediction.mean - targets).square() * (-prediction.log_variance).exp() + prediction.log_variance
    return weighted_mean(loss.mean(-1), weights)


def squared_error(prediction: Prediction, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """(E,) mean squared error of the means: how members are compared. Arguments as of `gaussian_loss`."""
    return weighted_mean((prediction.mean - targets).square().mean(-1), weights)


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """(E,) means of (E, B) values, by (E, B) or (B,) weights where they are given."""
    if weights is None:
        return values.mean(-1)
    return (values * weights).sum(-1) / weights.expand_as(values).sum(-1)


class GaussianMembers(nn.Module):
    """The networks of a `GaussianEnsemble`: E members side by side, of which the best few, the elites, are asked.

    States are in the environment's units and actions in [-1, 1]; inputs are normalised within. Targets are the change
    of the state and the reward, and the cost where it is predicted, raw or, with `normalize_targets`, divided by
    their own deviations; `predict` and `step` give the environment's units in either case. A function set as `costs_of`
    takes the place of predicted costs: a Gaussian fits a step from 0 to 1 badly, and planners with a limit of 0 see it.
    """

    input_mean: Tensor
    input_scale: Tensor
    target_mean: Tensor
    target_scale: Tensor
    elites: Tensor
    fitted: Tensor
    temperature: Tensor
    max_log_variance: Tensor
    min_log_variance: Tensor
    members: int

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        *,
        members: int = 7,
        elites: int = 5,
        hidden: Sequence[int] = (200, 200, 200, 200),
        decays: Sequence[float] = DECAYS,
        learned_bounds: bool = True,
        normalize_targets: bool = False,
        costs: bool = False,
        terminates: Terminates | None = None,
    ) -> None:
        """Build and initialise from torch's global generator.

        Args:
            state_dim: S.
            action_dim: A.
            members: E.
            elites: how many of them are asked once they are ordered; the first ones until then.
            hidden: widths of the hidden layers, with SiLU between them.
            decays: weight decay of each layer, the last included; () for none.
            learned_bounds: learn the bounds of the log-variance (PETS); False: they stay where they start.
            normalize_targets: divide targets by their deviations over the data, which `fit_statistics` finds. What a
                trained model was divided by counts in any case, such as where `init=` loads one.
            costs: predict costs too.
            terminates: where episodes end; None: nowhere.

        Raises:
            ConfigError: more elites than members, or not as many decays as layers.
        """
        super().__init__()
        if not 1 <= elites <= members:
            raise ConfigError(f"elites is {elites} of {members} members: give 1 to {members}")
        if decays and len(decays) != len(hidden) + 1:
            raise ConfigError(
                f"{len(decays)} decays (option model_decays) for {len(hidden) + 1} layers of model_hidden, the last "
                "included: give one each, or none"
            )
        self.state_dim, self.action_dim, self.members, self.costs = state_dim, action_dim, members, costs
        self.decays, self.normalize_targets, self.terminates = tuple(decays), normalize_targets, terminates
        self.costs_of: CostsOf | None = None
        self.rewards_of: RewardsOf | None = None
        self.noise_dim = outputs = state_dim + 1 + int(costs)
        inputs = state_dim + action_dim
        self.network = MLP(inputs, 2 * outputs, hidden, members=members, activation="silu", initialization="truncated")
        self.learned_bounds = learned_bounds
        for name, start in (("max_log_variance", 0.5), ("min_log_variance", -10.0)):
            bound = torch.full((outputs,), start)
            if learned_bounds:
                setattr(self, name, nn.Parameter(bound))
            else:
                self.register_buffer(name, bound)
        self.register_buffer("input_mean", torch.zeros(inputs))
        self.register_buffer("input_scale", torch.ones(inputs))
        self.register_buffer("target_mean", torch.zeros(outputs))
        self.register_buffer("target_scale", torch.ones(outputs))
        self.register_buffer("elites", torch.arange(elites))
        self.register_buffer("temperature", torch.ones(outputs))  # of the predicted variances (`learning.recalibrated`)
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    @property
    def knows_costs(self) -> bool:
        """Whether costs are predicted, or computed from next states."""
        return self.costs or self.costs_of is not None

    # -- from data ----------------------------------------------------------------------------------------

    def fit_statistics(self, columns: Mapping[str, np.ndarray | Tensor]) -> None:
        """Set the normalisation from (N, ...) columns of the training rows, named as in a batch.

        A model that was trained keeps what it was trained with: the second call changes nothing.

        Raises:
            DataError: a value is not finite.
        """
        if bool(self.fitted):
            return
        rows = {name: torch.as_tensor(value).double() for name, value in columns.items()}
        inputs = torch.cat([rows["observations"], rows["actions"]], -1)
        for buffers, values in ((("input_mean", "input_scale"), inputs), *self._target_statistics(rows)):
            mean, scale = _statistics(values)
            if not bool(mean.isfinite().all() and scale.isfinite().all()):
                raise DataError("a model's training rows are not all finite: drop or fix them")
            getattr(self, buffers[0]).copy_(mean)
            getattr(self, buffers[1]).copy_(scale)
        self.fitted.fill_(True)

    def _target_statistics(self, rows: Mapping[str, Tensor]) -> list[tuple[tuple[str, str], Tensor]]:
        return [(("target_mean", "target_scale"), self.raw_targets(rows))] if self.normalize_targets else []

    def raw_targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """(..., D) what is to be predicted, in the environment's units."""
        parts = [batch["next_observations"] - batch["observations"], batch["rewards"].unsqueeze(-1)]
        if self.costs:
            parts.append(batch["costs"].unsqueeze(-1))
        return torch.cat(parts, -1)

    def targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        """(..., D) what the networks are trained on."""
        return (self.raw_targets(batch) - self.target_mean) / self.target_scale

    def inputs(self, states: Tensor, actions: Tensor) -> Tensor:
        """(..., S + A) what the networks read."""
        return (torch.cat([states, actions], -1) - self.input_mean) / self.input_scale

    # -- learning -----------------------------------------------------------------------------------------

    def forward(self, inputs: Tensor) -> Prediction:
        """(E, B, D) in the units of `targets`, for (B, S + A) normalised inputs, or (E, B, S + A), each its own."""
        return self._bounded(self.network(inputs))

    def _bounded(self, outputs: Tensor) -> Prediction:
        mean, log_variance = outputs.chunk(2, -1)
        return Prediction(mean, self.clamped(log_variance))

    def clamped(self, log_variance: Tensor) -> Tensor:
        """(..., D) log-variances between the bounds."""
        return soft_clamp(log_variance, self.min_log_variance, self.max_log_variance)

    def of_batch(self, batch: Mapping[str, Tensor]) -> tuple[Prediction, Tensor]:
        """Predictions for a batch, (E, B, D), and their targets.

        Args:
            batch: columns (B, ...) that all members share, or (B, E, ...), rows for each member.
        """
        inputs, targets = self._rows(batch)
        return self(inputs), targets

    def _rows(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a batch, member first where each has rows of its own."""
        inputs, targets = self.inputs(batch["observations"], batch["actions"]), self.targets(batch)
        return (inputs.transpose(0, 1), targets.transpose(0, 1)) if inputs.dim() == 3 else (inputs, targets)

    def loss(self, batch: Mapping[str, Tensor], weights: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum over members of `gaussian_loss`, with weight decay, and with a pull on the bounds where learned.

        Args:
            batch: as `of_batch`.
            weights: (B,) or (B, E) of the rows; None: all alike.

        Returns:
            () loss, and metrics.
        """
        inputs, targets = self._rows(batch)
        decay = None
        if any(self.decays):
            outputs, decay = self.network.decayed(inputs, self.decays)
        else:
            outputs = self.network(inputs)
        prediction = self._bounded(outputs)
        rows = weights.transpose(0, 1) if weights is not None and weights.dim() == 2 else weights
        likelihood = gaussian_loss(prediction, targets, rows)
        loss = likelihood.sum()
        if decay is not None:
            loss = loss + decay
        if self.learned_bounds:
            loss = loss + 0.01 * (self.max_log_variance.sum() - self.min_log_variance.sum())
        return loss, {"model_likelihood": likelihood.mean()}

    @torch.no_grad()
    def holdout_errors(
        self, batch: Mapping[str, Tensor], weights: Tensor | None = None, judge: Judge = squared_error
    ) -> Tensor:
        """(E,) by which members are compared, on rows (B, ...) that none of them was trained on.

        Args:
            batch: columns (B, ...).
            weights: (B,) of the rows; None: all alike.
            judge: `squared_error`, of the means, or `gaussian_loss`, of the variances too.
        """
        return judge(*self.of_batch(batch), weights)

    # -- asking -------------------------------------------------------------------------------------------

    def in_units(self, prediction: Prediction) -> Prediction:
        """A prediction in the environment's units, the exact inverse of `targets`, with recalibrated variances."""
        log_variance = prediction.log_variance + self.temperature.log()
        mean = prediction.mean * self.target_scale + self.target_mean
        return Prediction(mean, log_variance + 2 * self.target_scale.log())

    def predict_all(self, states: Tensor, actions: Tensor) -> Prediction:
        """(E, ..., D) what each member predicts, in the environment's units: rewards at D = S, costs after them."""
        states, actions = _same_lead(states, actions)
        inputs = self.inputs(states, actions)
        flat = self(inputs.reshape(-1, inputs.shape[-1]))
        shape = (self.members, *inputs.shape[:-1], self.noise_dim)
        return self.in_units(Prediction(flat.mean.reshape(shape), flat.log_variance.reshape(shape)))

    def predict_elites(self, states: Tensor, actions: Tensor) -> Prediction:
        """(K, ..., D) as `predict_all`, of the K elites alone."""
        every = self.predict_all(states, actions)
        return Prediction(every.mean[self.elites], every.log_variance[self.elites])

    def predict(self, states: Tensor, actions: Tensor, member: Tensor | None = None) -> Prediction:
        """(..., D) what one member predicts for each row, in the environment's units.

        Args:
            states: (..., S).
            actions: (..., A).
            member: int64, broadcast against the leading dimensions; None: the mixture of the elites.
        """
        if member is None:
            return mixture(self.predict_elites(states, actions))
        states, actions = _same_lead(states, actions)
        inputs = self.inputs(states, actions)
        lead = torch.broadcast_shapes(inputs.shape[:-1], member.shape)
        inputs, member = inputs.expand(*lead, -1), member.expand(lead)
        found = self._bounded(self._chosen(inputs.reshape(-1, inputs.shape[-1]), member.reshape(-1)))
        shape = (*lead, self.noise_dim)
        return self.in_units(Prediction(found.mean.reshape(shape), found.log_variance.reshape(shape)))

    def _chosen(self, inputs: Tensor, member: Tensor) -> Tensor:
        """(N, 2 D) what member (N,) gives for its row: by that member alone where rows can be counted.

        Under `vmap`, on a GPU and where a step is recorded they can't be: all members are evaluated, one is kept.
        """
        if countable(inputs, member, self.network.weights[0]):
            order = member.argsort(stable=True)
            counts = torch.bincount(member, minlength=self.members).tolist()
            parts = inputs[order].split(counts)
            found = torch.cat([self.network.member(part, e) for e, part in enumerate(parts) if len(part)])
            return torch.empty_like(found).index_copy(0, order, found)
        every = self.network(inputs)
        return every.gather(0, member.view(1, -1, 1).expand(1, -1, every.shape[-1])).squeeze(0)


def mixture(predictions: Prediction) -> Prediction:
    """(..., D) mean and variance of the equal mixture of (K, ..., D) Gaussians."""
    mean = predictions.mean.mean(0)
    variance = predictions.log_variance.exp().mean(0) + predictions.mean.var(0, correction=0)
    return Prediction(mean, variance.log())


def _statistics(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of (N, D) float64 values; a column that does not vary beyond float32's rounding gets 1."""
    mean, std = values.mean(0), values.std(0, correction=0)
    return mean, torch.where(std <= torch.clamp(1e-6 * mean.abs(), min=1e-12), torch.ones_like(std), std)


def _same_lead(states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the same leading dimensions."""
    if states.shape[:-1] == actions.shape[:-1]:
        return states, actions
    lead = torch.broadcast_shapes(states.shape[:-1], actions.shape[:-1])
    return states.expand(*lead, -1), actions.expand(*lead, -1)


def countable(*tensors: Tensor) -> bool:
    """Whether python may read these tensors' values at no cost: on a CPU, not under `vmap`, not in a recorded step."""
    plain = all(t.device.type == "cpu" and not torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)
    return plain and native.recorder() is None and not torch.compiler.is_compiling()
