"""The few distributions of distrax and TensorFlow Probability that official JAX codes ask for, written out.

Their draws take numbers of `jax.random.normal` in the shape of the mean, so that a runner can hand in its own.
"""

import math
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp


class Normal:
    """Diagonal normal."""

    def __init__(self, loc: Any, scale_diag: Any) -> None:
        self.loc, self.scale_diag = loc, scale_diag * jnp.ones_like(loc)

    def log_prob(self, value: Any) -> Any:
        """Log-density, summed over dimensions."""
        z = (value - self.loc) / self.scale_diag
        return jnp.sum(-0.5 * z**2 - jnp.log(self.scale_diag) - 0.5 * math.log(2 * math.pi), -1)

    def sample(self, seed: Any, sample_shape: Any = ()) -> Any:
        """A draw, or several in front."""
        front = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        return self.loc + self.scale_diag * jax.random.normal(seed, (*front, *self.loc.shape))

    def sample_and_log_prob(self, seed: Any, sample_shape: Any = ()) -> Any:
        """Draws and their log-densities."""
        drawn = self.sample(seed, sample_shape)
        return drawn, self.log_prob(drawn)

    def mode(self) -> Any:
        """The mean."""
        return self.loc

    def stddev(self) -> Any:
        """The deviations."""
        return self.scale_diag


class Tanh:
    """Squashes; `forward_log_det_jacobian` by softplus, as both packages write it."""

    def forward(self, x: Any) -> Any:
        """tanh x."""
        return jnp.tanh(x)

    def log_det(self, x: Any) -> Any:
        """Log of the slope at x."""
        return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))


class Transformed:
    """A normal that is squashed; a density of an action is that of what tanh takes to it."""

    def __init__(self, distribution: Any, bijector: Any = None, validate_args: bool = False, **_: Any) -> None:
        self.distribution = self._distribution = distribution
        self.bijector = Tanh() if bijector is None else bijector
        self.last: tuple[Any, Any] = (None, None)

    def log_prob(self, value: Any) -> Any:
        """Of an action inside (-1, 1); of the last draw by what was drawn, as both packages remember it."""
        return self.density(self.last[1] if value is self.last[0] else jnp.arctanh(value))

    def density(self, before: Any) -> Any:
        """Of the action that tanh makes of `before`."""
        return self.distribution.log_prob(before) - self.bijector.log_det(before).sum(-1)

    def sample(self, seed: Any, sample_shape: Any = ()) -> Any:
        """A draw, or several in front."""
        return self.sample_and_log_prob(seed, sample_shape)[0]

    def sample_and_log_prob(self, seed: Any, sample_shape: Any = ()) -> Any:
        """Draws and their log-densities, at the places before tanh."""
        before = self.distribution.sample(seed=seed, sample_shape=sample_shape)
        self.last = (self.bijector.forward(before), before)
        return self.last[0], self.density(before)

    def mode(self) -> Any:
        """tanh of the mean."""
        return self.bijector.forward(self.distribution.mode())


def module(name: str, **members: Any) -> types.ModuleType:
    """An importable module that holds these and nothing else."""
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made


def stand_in() -> None:
    """Put them where `import distrax` and `import tensorflow_probability` look."""
    block = types.SimpleNamespace(Block=lambda bijector, ndims: bijector, Chain=lambda layers: layers[-1], Tanh=Tanh)
    module("distrax", MultivariateNormalDiag=Normal, Transformed=Transformed, Distribution=object, **vars(block))
    distributions = types.SimpleNamespace(
        Distribution=object, MultivariateNormalDiag=Normal, TransformedDistribution=Transformed
    )
    tfp = types.SimpleNamespace(distributions=distributions, bijectors=types.SimpleNamespace(Tanh=Tanh))
    made = module("tensorflow_probability")
    made.substrates = module("tensorflow_probability.substrates", jax=tfp)
