"""Steps over flat storage: the parameters of a network, S seeds of them, in one tensor, and their target averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from surefoot.core.base.rates import LaProp
from surefoot.core.engine.agent import Adam, Descent, Update, times_due
from surefoot.core.nn.native import native


class Network:
    """One network of S agents in flat storage: parameters are views of a row each of `value`."""

    def __init__(self, stacked: Mapping[str, Tensor]) -> None:
        """Copy stacked (S, ...) parameters into flat storage.

        Args:
            stacked: full parameter name -> (S, ...) tensor.
        """
        first = next(iter(stacked.values()))
        self.names = list(stacked)
        self.shapes = [tuple(value.shape[1:]) for value in stacked.values()]
        sizes = [math.prod(shape) for shape in self.shapes]
        self.value = torch.cat([value.detach().reshape(first.shape[0], -1) for value in stacked.values()], 1)
        self.gradient = torch.zeros_like(self.value)
        self._sizes = sizes

    def views(self, flat: Tensor) -> list[Tensor]:
        """(S, ...) views of (S, P) storage, in the order of `names`."""
        lead = flat.shape[:-1]
        parts = flat.split(self._sizes, dim=-1)
        return [part.view(*lead, *shape) for part, shape in zip(parts, self.shapes, strict=True)]


class Held:
    """Where a learning rate is kept, and those of networks that have a factor of it."""

    def __init__(self, rate: Tensor | None, factors: Sequence[float]) -> None:
        self.rate = rate
        self.rates = [rate if rate is None or factor == 1 else rate.clone() for factor in factors]
        self.written = math.nan


class Optimizer:
    """Fused Adam, LaProp or plain descent, over the flat storage of the networks that one update trains."""

    def __init__(
        self,
        settings: Adam | Descent,
        networks: Sequence[Network],
        planned: int,
        fused: bool = False,
        factors: Sequence[float] = (),
    ) -> None:
        """Start with zero moments.

        Args:
            settings: learning rate, betas, schedule.
            networks: what it steps.
            planned: optimiser steps until a cosine schedule ends.
            fused: take steps and target averages in the native module.
            factors: of the learning rate, one for each network; none: 1.
        """
        self.factors = list(factors) or [1.0] * len(networks)
        self.average: Callable[[Sequence[Tensor]], None] | None = None
        """What averages the gradients of processes that share each batch, before a step; None: it is alone."""
        self.settings, self.networks, self.planned = settings, list(networks), max(1, planned)
        device = networks[0].value.device
        remembering = [] if isinstance(settings, Descent) else self.networks
        self.first = [torch.zeros_like(n.value) for n in remembering]
        self.second = [torch.zeros_like(n.value) for n in remembering]
        # Adam's count, on the device for CUDA graphs; `taken` is the same number for the schedule,
        # but for moments that came from another run: their count continues, schedules start anew.
        self.counts = [torch.zeros((), dtype=torch.float32, device=device) for _ in networks]
        self.fused = fused
        rate = None  # where a CUDA graph or a tape reads the rate
        if device.type != "cpu" or fused:
            rate = torch.zeros((), device=device, dtype=torch.float64 if fused else torch.float32)
        self._host = rate.numpy() if fused and rate is not None else None  # quicker to write than a tensor
        self._turns = [Held(rate, self.factors)]
        self.turn = 0
        """Which of several training steps at once is taken: each has a learning rate of its own."""
        self.taken = 0
        seeds = networks[0].value.shape[0]
        self.rates = torch.full((seeds,), settings.learning_rate, dtype=torch.float64, device=device)
        """(S,) of the schedule "adaptive": whoever adapts it writes here."""
        self.active: Tensor | None = None

    @classmethod
    def of(cls, update: Update, networks: Mapping[str, Network], planned_steps: int, fused: bool) -> Optimizer:
        """Of an update's networks, by their names; `planned_steps` are those of training."""
        own, factors = [networks[name] for name in update.trains], [update.factors.get(n, 1.0) for n in update.trains]
        return cls(update.optimizer, own, times_due(update, planned_steps) * update.repeat, fused, factors)

    def hold_rates(self, turns: int) -> None:
        """Keep the learning rates of so many training steps at once where a CUDA graph reads them."""
        first = self._turns[0].rate
        if first is None:
            first = torch.zeros((), dtype=torch.float32, device=self.networks[0].value.device)
            self._turns = [Held(first, self.factors)]
        while len(self._turns) < turns:
            self._turns.append(Held(torch.zeros_like(first), self.factors))

    def by_seed(self) -> None:
        """From now on each seed has a count and a rate of its own, and `active` (S,) bool says which ones move.

        For what happens to some seeds and not to others: an early stop, an adapted rate.
        """
        if self.active is None:
            self.active = torch.ones(len(self.rates), dtype=torch.bool, device=self.rates.device)
            self.counts = [count.expand(len(self.rates)).clone() for count in self.counts]

    def count(self, network: int, position: int) -> Tensor:
        """() float32 steps that seed `position` has taken; a view."""
        return self.counts[network] if self.active is None else self.counts[network][position]

    def state(self, position: int, names: Sequence[str]) -> dict[str, Tensor]:
        """What seed `position` needs to continue, as named views.

        Args:
            position: of the seed.
            names: of the networks, in order.
        """
        tensors = {}
        for index, name in enumerate(names if self.first else ()):  # plain descent has nothing to remember
            tensors[f"{name}/first"] = self.first[index][position]
            tensors[f"{name}/second"] = self.second[index][position]
            tensors[f"{name}/count"] = self.count(index, position)
        if self.settings.schedule == "adaptive":
            tensors["rate"] = self.rates[position]
        return tensors

    def learning_rate(self) -> float:
        """The rate of the next step; with several seeds and the schedule "adaptive", that of the first."""
        if isinstance(self.settings, Descent) or self.settings.schedule == "constant":
            return self.settings.learning_rate
        if self.settings.schedule == "adaptive":
            return float(self.rates[0])
        s, taken = self.settings, self.taken // self.settings.stride
        if s.schedule == "restarts":
            taken %= s.cycle
            falling = 0.5 * (1 + math.cos(math.pi * (taken - s.warm_up) / (s.cycle - s.warm_up)))
            return s.lowest + (s.learning_rate - s.lowest) * (taken / s.warm_up if taken < s.warm_up else falling)
        if taken < s.warm_up:
            return s.learning_rate * taken / s.warm_up
        if s.schedule == "warm_up":
            return s.learning_rate
        progress = min(1.0, (taken - s.warm_up) / max(self.planned * s.decay_over / s.stride - s.warm_up, 1.0))
        return s.learning_rate * (1 - progress if s.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress)))

    def before(self, turn: int = 0) -> None:
        """What must happen on the host before a step: the rate goes where a CUDA graph or a tape reads it.

        Args:
            turn: which of several training steps at once it is.
        """
        rate, held = self.learning_rate(), self._turns[turn]
        if held.rate is None or rate == held.written:
            return
        held.written = rate
        if self._host is not None:
            self._host[()] = rate
        else:
            held.rate.fill_(rate)
        for factor, own in zip(self.factors, held.rates, strict=True):
            if own is not None and own is not held.rate:
                own.fill_(factor * rate)

    def step(self, averages: Sequence[tuple[Network, Network, float]] = ()) -> None:
        """Take the gradients in the networks' storage one step down, then average the targets.

        Args:
            averages: (target, network, rate): target += rate * (network - target).
        """
        if self.average is not None:
            self.average([network.gradient for network in self.networks])
        left = list(averages)
        if isinstance(self.settings, Descent):
            self._descend(self.settings.learning_rate)
        else:
            self._step_adam(self.settings, left)
        for target, source, rate in left:
            target.value.lerp_(source.value, rate)
        if (recorder := native.recorder()) is not None and not isinstance(self.settings, Descent):
            written = [network.value for network in (*self.networks, *(target for target, _, _ in averages))]
            recorder.stepped([*written, *(self.first if isinstance(self.settings, LaProp) else ())])

    def _descend(self, rate: float) -> None:
        for network, factor in zip(self.networks, self.factors, strict=True):
            change = rate * factor * network.gradient
            network.value.sub_(change if self.active is None else torch.where(self.active.unsqueeze(1), change, 0.0))

    def _step_adam(self, s: Adam, averages: list[tuple[Network, Network, float]]) -> None:
        """One step of Adam in the form at hand; takes from `averages` what it has done with it."""
        gradients = [network.gradient for network in self.networks]
        if s.max_gradient_norm is not None:
            clip_per_seed(gradients, s.max_gradient_norm)
        if s.max_gradient is not None:
            for gradient in gradients:
                gradient.clamp_(-s.max_gradient, s.max_gradient)
        if isinstance(s, LaProp):
            self._step_laprop(s, gradients)
        elif self.fused:
            self._step_fused(s, averages)
        elif self.active is not None:
            self._step_by_seed(s, gradients, self.active.unsqueeze(1))
        else:
            self._step_torch(s, gradients)

    def _step_fused(self, s: Adam, averages: list[tuple[Network, Network, float]]) -> None:
        """The native step; takes from `averages` what it has done with it."""
        moments = zip(self.networks, self.first, self.second, self.counts, self._turns[self.turn].rates, strict=True)
        for network, first, second, count, rate_of_network in moments:
            assert rate_of_network is not None
            target, _, rate = mine = next((a for a in averages if a[1] is network), (None, network, 0.0))
            if target is not None:
                averages.remove(mine)  # type: ignore[arg-type]
            native.adam(
                network.value,
                network.gradient,
                first,
                second,
                count,
                rate_of_network,
                betas=s.betas,
                epsilon=s.epsilon,
                decay=s.weight_decay,
                average=None if target is None else target.value,
                average_rate=rate,
            )

    def _rate_of(self, s: Adam, like: Tensor) -> Tensor | float:
        """The rate of the next step: (S, 1) where each seed has its own."""
        if s.schedule == "adaptive":
            return self.rates.unsqueeze(1).to(like.dtype)
        rate = self._turns[self.turn].rate
        return self.learning_rate() if rate is None else rate

    def _step_laprop(self, s: LaProp, gradients: list[Tensor]) -> None:
        """LaProp written out, for all seeds or those that are active."""
        rate, b1, b2 = self._rate_of(s, gradients[0]), *s.betas
        moves = None if self.active is None else self.active.unsqueeze(1)
        for network, gradient, first, second, count, factor in zip(
            self.networks, gradients, self.first, self.second, self.counts, self.factors, strict=True
        ):
            if s.clip is not None:
                clip_per_tensor(network, s.clip, s.least_norm)
            count.add_(1 if self.active is None else self.active)
            taken = count.clamp(min=1).unsqueeze(-1).to(first.dtype)
            new_second = b2 * second + (1 - b2) * gradient.square()
            scaled = gradient / ((new_second / (1 - b2**taken)).sqrt() + s.epsilon)
            new_first = b1 * first + (1 - b1) * scaled
            step = rate * factor * (new_first / (1 - b1**taken) + s.weight_decay * network.value)
            for held, new in ((first, new_first), (second, new_second), (network.value, network.value - step)):
                held.copy_(new if moves is None else torch.where(moves, new, held))

    def _step_by_seed(self, s: Adam, gradients: list[Tensor], active: Tensor) -> None:
        """Adam written out, for the seeds where (S, 1) `active` is True."""
        rate = self._rate_of(s, gradients[0])
        for network, gradient, first, second, count, factor in zip(
            self.networks, gradients, self.first, self.second, self.counts, self.factors, strict=True
        ):
            count.add_(active.squeeze(1))
            taken = count.clamp(min=1).unsqueeze(1).to(first.dtype)
            first.copy_(torch.where(active, first.lerp(gradient, 1 - s.betas[0]), first))
            second.copy_(torch.where(active, s.betas[1] * second + (1 - s.betas[1]) * gradient.square(), second))
            spread = (second / (1 - s.betas[1] ** taken)).sqrt() + s.epsilon
            change = rate * factor * (first / (1 - s.betas[0] ** taken) / spread + s.weight_decay * network.value)
            network.value.sub_(torch.where(active, change, 0.0))

    def _step_torch(self, s: Adam, gradients: list[Tensor]) -> None:
        torch._foreach_add_(self.counts, 1)
        fused = torch._fused_adamw_ if s.weight_decay else torch._fused_adam_
        for factor in dict.fromkeys(self.factors):
            chosen = [number for number, own in enumerate(self.factors) if own == factor]
            rate = self._turns[self.turn].rates[chosen[0]]
            fused(
                [self.networks[number].value for number in chosen],
                [gradients[number] for number in chosen],
                [self.first[number] for number in chosen],
                [self.second[number] for number in chosen],
                [],
                [self.counts[number] for number in chosen],
                lr=factor * self.learning_rate() if rate is None else rate,
                beta1=s.betas[0],
                beta2=s.betas[1],
                weight_decay=s.weight_decay,
                eps=s.epsilon,
                amsgrad=False,
                maximize=False,
            )


def clip_per_seed(gradients: Sequence[Tensor], limit: float) -> None:
    """Scale (S, P) gradients in place so that each seed's norm over all of them is at most `limit`."""
    squares = torch.stack([gradient.square().sum(1) for gradient in gradients]).sum(0)
    factor = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.unsqueeze(1))


def clip_per_tensor(network: Network, share: float, least: float) -> None:
    """Scale each parameter's gradient in place so that its norm is at most `share` of max(the parameter's, `least`)."""
    for gradient, value in zip(network.views(network.gradient), network.views(network.value), strict=True):
        size, own = (tensor.reshape(len(tensor), -1).square().sum(1).sqrt() for tensor in (gradient, value))
        factor = (share * own.clamp(min=least) / size.clamp(min=1e-30)).clamp(max=1.0)
        gradient.mul_(factor.view(-1, *(1,) * (gradient.dim() - 1)))
