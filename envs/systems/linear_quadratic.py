"""Linear system with quadratic cost, of any size: optimal gain and cost are known exactly."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.core.errors import ConfigError
from surefoot.core.placed import Placed
from surefoot.cuda_ext.system import Behaviour, Parameter, Step, System

Array = np.ndarray[Any, Any]

LARGEST = 32
"""States or actions that the native loop has room for."""


def two_carts(time_step: float) -> tuple[Array, Array]:
    """A (4, 4) and B (4, 2) of two carts of 1 kg: positions, then velocities; zero-order hold.

    Springs of 1 N/m wall to cart, cart to cart, cart to wall; friction 0.05 N s/m.
    """
    import scipy.linalg  # slow to import, which training workers spare

    stiffness = np.array([[2.0, -1.0], [-1.0, 2.0]])
    continuous = np.zeros((6, 6))
    continuous[:2, 2:4] = np.eye(2)
    continuous[2:4, :2] = -stiffness
    continuous[2:4, 2:4] = -0.05 * np.eye(2)
    continuous[2:4, 4:] = np.eye(2)
    held = scipy.linalg.expm(continuous * time_step)
    return held[:4, :4], held[:4, 4:]


def random_system(n: int, m: int, seed: int, radius: float = 0.98) -> tuple[Array, Array]:
    """Gaussian A (n, n) scaled to the spectral radius `radius`, Gaussian B (n, m) with columns of length 0.1."""
    _check_sizes(n, m)
    generator = np.random.default_rng(seed)
    a = generator.standard_normal((n, n))
    b = generator.standard_normal((n, m))
    return a * (radius / np.abs(np.linalg.eigvals(a)).max()), 0.1 * b / np.linalg.norm(b, axis=0)


def _check_sizes(n: int, m: int) -> None:
    if not (1 <= n <= LARGEST and 1 <= m <= LARGEST):
        raise ConfigError(f"linear_quadratic: {n} states and {m} actions; each must be 1 to {LARGEST}")


def _matrix(field: str, value: Array) -> Array:
    matrix = np.asarray(value, dtype=np.float64)
    if matrix.ndim != 2:
        raise ConfigError(f"linear_quadratic: {field} has {matrix.ndim} dimensions; give a matrix")
    return matrix


def uniform(observations: Array, generator: np.random.Generator, bound: float, size: int) -> Array:
    """Actions drawn uniformly within the bounds at every step."""
    return generator.uniform(-bound, bound, (len(observations), size))


def feedback(observations: Array, generator: np.random.Generator, gain: Array, noise: float, bound: float) -> Array:
    """u = -gain x + noise, clipped."""
    action = -observations @ gain.T
    return np.clip(action + noise * generator.standard_normal(action.shape), -bound, bound)


def _behaviours(gain: Array, bound: float) -> dict[str, Behaviour]:
    """Fractions of the optimal gain (m, n) under noise that is a share of the bound."""
    linear = functools.partial(feedback, bound=bound)
    return {
        "random": functools.partial(uniform, bound=bound, size=len(gain)),
        "idle": functools.partial(linear, gain=0.0 * gain, noise=0.1 * bound),
        "reversed": functools.partial(linear, gain=-0.02 * gain, noise=0.1 * bound),
        "medium": functools.partial(linear, gain=0.1 * gain, noise=0.15 * bound),
        "expert": functools.partial(linear, gain=gain, noise=0.0),
    }


class LinearQuadratic(System):
    """x' = a A x + b B u + noise z, reward -(x^T Q x + u^T R u) of the state that the action meets.

    Safe half-space c^T x <= limit. Default: two carts of 1 kg between springs, a force on each, zero-order hold of
    0.1 s. `LinearQuadratic(n=6, m=2, seed=1)` draws a random one; `LinearQuadratic(A=..., B=...)` takes any.
    """

    name = "linear_quadratic"
    gym_id = "surefoot/LinearQuadratic-v0"
    title = "Linear-quadratic regulator, any size up to 32 (default: two carts between springs)"
    source = (
        "discrete algebraic Riccati equation: Anderson and Moore, Optimal Control: Linear Quadratic Methods, 1990; "
        "zero-order hold: Astrom and Wittenmark, Computer-Controlled Systems, 1997, chapter 2"
    )
    parameters = (
        Parameter("process_noise", 0.0, 0.0, 10.0, "", "standard deviation added to every state"),
        Parameter("state_scale", 1.0, 0.0, 2.0, "", "multiplies A"),
        Parameter("action_scale", 1.0, -10.0, 10.0, "", "multiplies B"),
        Parameter("start", 1.0, 0.0, 1000.0, "", "half width of the initial states"),
        Parameter("limit", 1.2, -1000.0, 1000.0, "", "c^T x stays below"),
    )
    time_step = 0.1
    max_steps = 100
    margin_of = "limit - c^T x, in the state's units"
    gaps: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "noise1": {"process_noise": 1.0},
        "noise0.1": {"process_noise": 0.1},
        "weak": {"action_scale": 0.5},
        "unstable": {"state_scale": 1.05},
    }

    def __init__(
        self,
        n: int | None = None,
        m: int | None = None,
        seed: int = 0,
        *,
        A: Array | None = None,
        B: Array | None = None,
        Q: Array | None = None,
        R: Array | None = None,
        c: Array | None = None,
        action_bound: float = 5.0,
    ) -> None:
        """Two carts; or the random system of `n` states and `m` actions that `seed` draws; or A (n, n) and B (n, m).

        Q (n, n) is I, R (m, m) is 0.1 I and c (n,) the first state where not given. Actions lie in
        [-action_bound, action_bound]^m. Raises ConfigError for shapes that don't fit, more than 32 states or actions,
        Q not symmetric positive semidefinite, R not symmetric positive definite, and where no gain stabilises.
        """
        if (A is None) != (B is None) or (n is None) != (m is None) or (A is not None and n is not None):
            raise ConfigError("linear_quadratic: give n and m, or A and B, or none of them")
        if A is None or B is None:
            A, B = two_carts(self.time_step) if n is None or m is None else random_system(n, m, seed)
        self.A, self.B = _matrix("A", A), _matrix("B", B)
        n, m = self.B.shape
        self.Q = np.eye(n) if Q is None else _matrix("Q", Q)
        self.R = 0.1 * np.eye(m) if R is None else _matrix("R", R)
        self.c = np.eye(n)[0] if c is None else np.asarray(c, dtype=np.float64)
        self._check(n, m, action_bound)
        self._placed = [Placed(torch.as_tensor(x)) for x in (self.A, self.B, self.Q, self.R, self.c)]
        self._describe(n, m, action_bound)

    def _check(self, n: int, m: int, action_bound: float) -> None:
        _check_sizes(n, m)
        shapes = {"A": (self.A, (n, n)), "B": (self.B, (n, m)), "Q": (self.Q, (n, n)), "R": (self.R, (m, m))}
        for field, (value, shape) in {**shapes, "c": (self.c, (n,))}.items():
            if value.shape != shape or not np.isfinite(value).all():
                raise ConfigError(
                    f"linear_quadratic: {field} has shape {value.shape}; {shape} of finite numbers "
                    f"goes with a B of shape {(n, m)}"
                )
        for field, value, least in (("Q", self.Q, -1e-12), ("R", self.R, 1e-12)):
            if not np.allclose(value, value.T) or np.linalg.eigvalsh(value).min() < least * np.abs(value).max():
                raise ConfigError(f"linear_quadratic: {field} must be symmetric and positive (semi)definite")
        if not (np.isfinite(action_bound) and action_bound > 0):
            raise ConfigError(f"linear_quadratic: action_bound is {action_bound}; it must be positive")

    def _describe(self, n: int, m: int, action_bound: float) -> None:
        """Sizes, names and behaviours of this instance (class attributes in the systems of fixed size)."""
        described: dict[str, Any] = {
            "states": tuple(f"x{i}" for i in range(n)),
            "observations": tuple(f"x{i}" for i in range(n)),
            "actions": tuple(f"u{i}" for i in range(m)),
            "action_low": (-action_bound,) * m,
            "action_high": (action_bound,) * m,
            "observation_low": (-np.inf,) * n,
            "observation_high": (np.inf,) * n,
            "uniforms": n,
            "normals": n,
            "behaviours": _behaviours(self.riccati()[1], action_bound),
            "mixtures": {"mixed": {"random": 0.3, "idle": 0.2, "reversed": 0.1, "medium": 0.3, "expert": 0.1}},
        }
        for attribute, value in described.items():
            setattr(self, attribute, value)

    def matrices(self) -> Tensor:
        """(n^2 + nm + n^2 + m^2 + n,) float64: A, B, Q, R row by row, then c; what the C++ reads."""
        return torch.from_numpy(np.concatenate([part.ravel() for part in (self.A, self.B, self.Q, self.R, self.c)]))

    def riccati(self) -> tuple[Array, Array]:
        """P (n, n) and K (m, n) of the nominal system: cost x^T P x, action u = -K x, bounds and limit ignored.

        P = Q + A^T P A - A^T P B K, K = (R + B^T P B)^-1 B^T P A (Anderson and Moore, 1990).
        Raises ConfigError where no stabilising solution exists.
        """
        import scipy.linalg

        try:
            p = scipy.linalg.solve_discrete_are(self.A, self.B, self.Q, self.R)
        except np.linalg.LinAlgError as error:
            raise ConfigError(
                f"linear_quadratic: no stabilising gain exists for these matrices ({error}); "
                "make (A, B) stabilisable and (A, Q) detectable"
            ) from error
        return p, np.linalg.solve(self.R + self.B.T @ p @ self.B, self.B.T @ p @ self.A)

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """(N, n) states, uniform in a cube."""
        return parameters[:, 3:4] * (2 * uniforms - 1)

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N, n): the state."""
        return state

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """One step of the difference equation."""
        noise, state_scale, action_scale, _, limit = parameters.unbind(-1)
        a, b, q, r, c = (place(state) for place in self._placed)
        reward = -((state @ q) * state).sum(-1) - ((action @ r) * action).sum(-1)
        state = state_scale[:, None] * (state @ a.T) + action_scale[:, None] * (action @ b.T) + noise[:, None] * normals
        margin = limit - state @ c
        return Step(state, reward, margin, torch.zeros_like(margin, dtype=torch.bool))
