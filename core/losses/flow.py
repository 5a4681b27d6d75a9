"""Flow matching: the path from noise to actions, the losses that train a velocity, and the sampler that follows it.

Time runs from t = 0, noise, to t = 1, data. A straight path x_t = (1 - t) x_0 + t x_1 has the velocity x_1 - x_0, and
actions are drawn by Euler's steps on the grid t_k = k / K, k = 0 .. K - 1: a velocity is never asked for at t = 1.
An action here is a row of D numbers: of a chunk all its actions, one after the other.

Sources: Lipman et al., "Flow Matching for Generative Modeling"; Liu et al., "Flow Straight and Fast" (rectified flow);
Frans et al., "One Step Diffusion via Shortcut Models"; Geng et al., "Mean Flows for One-step Generative Modeling".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.pointwise import pointwise, squared_difference
from surefoot.core.nn.native import kernels

Field = Callable[[Tensor, Tensor], Tensor]
"""(x (B, D), time (1,) or (B,)) -> velocity (B, D); what it is conditioned on is bound already."""
SizedField = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x (B, D), time (B,), size (B,)) -> mean velocity (B, D) over a step of this size, from this time on."""
REST = 1e-5
"""Share of the noise that a shortcut model's path leaves at t = 1."""
FARTHEST_TIME = 0.999
"""Of the law "beta"."""


def times(steps: int) -> tuple[float, ...]:
    """Where Euler's K steps ask for a velocity: k / K for k = 0 .. K - 1.

    Raises:
        ConfigError: no step.
    """
    if steps < 1:
        raise ConfigError(f"a flow is followed in {steps} steps; needs 1 or more")
    return tuple(k / steps for k in range(steps))


def interpolate(noise: Tensor, actions: Tensor, time: Tensor, rest: float = 0.0) -> tuple[Tensor, Tensor]:
    """The place x_t on the straight path from noise to actions, and the path's velocity.

    Args:
        noise: (B, D) standard normal, x_0.
        actions: (B, D), x_1.
        time: (B,) in [0, 1].
        rest: share of the noise that is left at t = 1: x_t = (1 - (1 - rest) t) x_0 + t x_1.

    Returns:
        (B, D) x_t, and (B, D) x_1 - (1 - rest) x_0.
    """
    if rest == 0.0:
        return _on_the_path(noise, actions, time.unsqueeze(-1))
    return _on_a_path_with_rest(noise, actions, time.unsqueeze(-1), rest)


@pointwise
def _on_the_path(noise: Tensor, actions: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return (1 - t) * noise + t * actions, actions - noise


@pointwise
def _on_a_path_with_rest(noise: Tensor, actions: Tensor, t: Tensor, rest: float) -> tuple[Tensor, Tensor]:
    return (1 - (1 - rest) * t) * noise + t * actions, actions - (1 - rest) * noise


@pointwise
def _stepped(x: Tensor, velocity: Tensor, steps: int) -> Tensor:
    return x + velocity / steps


def flow_matching_loss(
    predicted: Tensor, velocity: Tensor, weight: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Mean over rows and numbers of the squared error of a velocity.

    Weighted, its minimiser is the flow of the data's density times the weight: no guidance is needed when sampling.

    Args:
        predicted: (B, D).
        velocity: (B, D), of `interpolate`.
        weight: (B,) of rows, without gradient. They are not normalised.
        mask: (B, D), 0 where a number does not count, such as those behind an episode's end in a chunk. The mean is
            over all numbers, masked ones too, so that a row's pull does not depend on its neighbours' masks.

    Returns:
        ().
    """
    errors = squared_difference(predicted, velocity)
    if mask is not None:
        errors = errors * mask
    if weight is not None:
        errors = errors * weight.unsqueeze(-1)
    return errors.mean()


def euler(field: Field, noise: Tensor, steps: int, limit: float | None = None, clip_each: bool = False) -> Tensor:
    """Where noise is carried in K steps x_{k+1} = x_k + v(x_k, k / K) / K; nothing is changed in place.

    Args:
        field: the velocity; it is given (1,) times.
        noise: (B, D), x_0.
        steps: K.
        limit: the last place is clipped to +- this; None for not at all.
        clip_each: clip every place on the way too.

    Returns:
        (B, D).

    Raises:
        ConfigError: no step, or `clip_each` without a limit.
    """
    if clip_each and limit is None:
        raise ConfigError("clip_each clips to the limit, and there is none")
    grid, x = times(steps), noise
    for k, time in enumerate(grid):
        x = _stepped(x, field(x, x.new_full((1,), time)), steps)
        if limit is not None and (clip_each or k == steps - 1):
            x = x.clamp(-limit, limit)
    return x


LAWS = ("uniform", "beta", "logit_normal")


def draw_times(uniform: Tensor, law: str = "uniform") -> Tensor:
    """Times at which a velocity is trained.

    Args:
        uniform: (B,) on [0, 1).
        law: "uniform"; "beta": 0.999 (1 - b) with b of Beta(3/2, 1), more of them near the noise (Black et al.,
            pi_0); "logit_normal": the sigmoid of a standard normal number, more in the middle (Esser et al., "Scaling
            Rectified Flow Transformers").

    Returns:
        (B,) in [0, 1].

    Raises:
        ConfigError: another law.
    """
    if law == "uniform":
        return uniform
    if law == "beta":  # the distribution function of Beta(3/2, 1) is b^(3/2)
        return FARTHEST_TIME * (1 - uniform ** (2 / 3))
    if law == "logit_normal":
        return torch.sigmoid(math.sqrt(2) * torch.erfinv((2 * uniform - 1).clamp(min=-1 + 1e-6)))
    raise ConfigError(f"no law of times is called {law!r}; {nearest(law, LAWS)}")


class Stretch(NamedTuple):
    """From when on, and for how long, a mean velocity is asked for; its size is 0 for the velocity at the time."""

    time: Tensor
    """(B,) in [0, 1]."""
    size: Tensor
    """(B,) in [0, 1 - time]."""


# -- shortcut models -------------------------------------------------------------------------------------------


def shortcut_rows(rows: int, share: float = 0.25) -> int:
    """How many rows of a batch, its first ones, train self-consistency."""
    return int(share * rows)


def draw_shortcut(uniform: Tensor, share: float = 0.25, finest: int = 128) -> Stretch:
    """Steps that a shortcut model is trained for: its first rows for self-consistency, the rest for flow matching.

    Of the former the size is 2^-e, each e = 0 .. log2(finest) - 1 as likely, and the time any multiple of the size
    below 1; of the latter the size is 0 and the time uniform.

    Args:
        uniform: (B, 2) on [0, 1).
        share: of rows that train self-consistency.
        finest: M, a power of 2, at least 2: half of the smallest step is 1 / M.

    Raises:
        ConfigError: another `finest`.
    """
    levels = finest.bit_length() - 1
    if finest < 2 or finest != 2**levels:
        raise ConfigError(f"finest is {finest}, must be a power of 2, at least 2")
    first = shortcut_rows(len(uniform), share)
    exponent = (uniform[:first, 1] * levels).floor().clamp(max=levels - 1)
    size = torch.exp2(-exponent)
    time = (uniform[:first, 0] / size).floor() * size
    rest = uniform[first:, 0]
    return Stretch(torch.cat([time, rest]), torch.cat([size, torch.zeros_like(rest)]))


@torch.no_grad()
def shortcut_target(field: SizedField, x: Tensor, stretch: Stretch) -> Tensor:
    """(B, D) what one step of a shortcut model must be: the mean of two steps of half its size, as the model is now."""
    time, half = stretch.time, stretch.size / 2
    first = field(x, time, half)
    between = x + half.unsqueeze(-1) * first
    return (first + field(between, time + half, half)) / 2


# -- MeanFlow --------------------------------------------------------------------------------------------------


def draw_mean_flow(uniform: Tensor, share: float = 0.75) -> Stretch:
    """Stretches that a MeanFlow is trained for: two uniform times in order, but of size 0 in a share of the rows.

    Args:
        uniform: (B, 3) on [0, 1): two times, and what decides.
        share: of rows whose size is 0: plain flow matching, at the first of the two times.
    """
    one, other = uniform[:, 0], uniform[:, 1]
    plain = uniform[:, 2] < share
    time = torch.where(plain, one, torch.minimum(one, other))
    return Stretch(time, torch.where(plain, 0.0, (one - other).abs()))


def mean_flow_target(field: SizedField, x: Tensor, velocity: Tensor, stretch: Stretch) -> Tensor:
    r"""What the mean velocity u over [t, r] must be, after the MeanFlow identity.

    .. math:: u(x_t, t, r) = v + (r - t) \frac{d u}{d t}, \quad \frac{d u}{d t} = \partial_x u \, v + \partial_t u

    with r held; as a function of the time and the size r - t, the size shrinks as time continues. In the paper's time,
    which is 1 - t, the sign of the second term is the other one. The derivative along the path is taken as
    two backward passes, the second through the first, in plain PyTorch: so a tape repeats it, and vmap stacks it.

    Args:
        field: u.
        x: (B, D) x_t.
        velocity: (B, D) of the straight path.
        stretch: t and r - t.

    Returns:
        (B, D), without gradient.
    """
    time, size = stretch
    tangents = (velocity, torch.ones_like(time), -torch.ones_like(size))
    with kernels.use(None), torch.no_grad():
        found, pull = torch.func.vjp(field, x, time, size)[:2]
        push = torch.func.vjp(pull, torch.zeros_like(found))[1]
        (slope,) = push(tangents)
    return (velocity + size.unsqueeze(-1) * slope).detach()


def adaptive_weight(predicted: Tensor, target: Tensor, power: float = 1.0, least: float = 1e-3) -> Tensor:
    """(B,) 1 / (squared error + least)^power, without gradient: what MeanFlow weighs its rows by.

    A large power makes the loss robust, and where the data of an observation are several the minimiser then is no mean
    any more: for policies of several modes a power of 0, no weight, came closer to the data.
    """
    errors = (predicted - target).square().sum(-1)
    return (errors + least).pow(-power).detach()
