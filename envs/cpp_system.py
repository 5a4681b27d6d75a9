"""`CppSystem`: a simulated system in a C++ header of the user's own, with the native loop around it."""

from __future__ import annotations

import functools
import os
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.cuda_ext.library import LibraryError, load
from surefoot.cuda_ext.rows import call_rows
from surefoot.cuda_ext.system import Behaviour, Parameter, Step
from surefoot.envs.own_system import Bounds, OwnSystem
from surefoot.envs.python_torch import recorded

SIZES = ("states", "actions", "observations", "parameters", "uniforms", "normals")
"""In the order of the header's enumeration."""


class CppSystem(OwnSystem):
    """A system whose equations are a struct in a C++ header (docs/cpp_systems.md), named as the file.

    `surefoot build HEADER` compiles it, once; a GPU's kernels are compiled from the header at first use. Rollouts,
    evaluation, exact worlds and grids then run as those of native systems. `step`, `observe`, `margin` and `state_of`
    work on the CPU and without derivatives: who needs those, or exports a safety filter as a file, overrides them in a
    subclass, with torch's operators.

    Args:
        header: `Path(__file__).with_name("my_robot.h")`.
        states, actions, observations, parameters, uniforms, normals: as the header has them, in its order.
        time_step: seconds between two actions.
        max_steps: steps after which an episode is truncated.
        gaps: preset of altered dynamics -> parameters that it sets.
        behaviours: name -> function from (N, O) observations and a generator to (N, A) actions.
        reach_box: state -> (low, high, points), or (low, high, points, True) of an angle whose ends are one state: the
            grid on which `surefoot reach` solves it, wider than the safe set. None: no grid.
        control_affine: the state's rate is affine in the actions: for the filter `cbf`.
        title, margin_of: one line each, for lists.

    Raises:
        ConfigError: no such header; names, bounds or numbers that can't be. At first use: it is not built, the library
            is of other headers, or the description does not fit the header.
    """

    def __init__(
        self,
        header: str | os.PathLike[str],
        *,
        states: Sequence[str],
        actions: Mapping[str, Bounds],
        observations: Mapping[str, Bounds] | Sequence[str] | None = None,
        parameters: Mapping[str, float] | Sequence[Parameter] = (),
        uniforms: int | None = None,
        normals: int = 0,
        time_step: float = 0.02,
        max_steps: int = 500,
        gaps: Mapping[str, Mapping[str, float]] | None = None,
        behaviours: Mapping[str, Behaviour] | None = None,
        reach_box: Mapping[str, Sequence[Any]] | None = None,
        control_affine: bool = False,
        title: str = "",
        margin_of: str = "",
    ) -> None:
        self._header = pathlib.Path(header).expanduser().resolve()
        name = self._header.stem
        if not self._header.is_file():
            raise ConfigError(f"{self._header}: there is no such header")
        super().__init__(
            name,
            f"{name}-v0",
            states=states,
            actions=actions,
            observations=observations,
            parameters=parameters,
            time_step=time_step,
            max_steps=max_steps,
            uniforms=uniforms,
            normals=normals,
            gaps=gaps,
            behaviours=behaviours,
            reach_box=reach_box,
            control_affine=control_affine,
            title=title or f"{name}, in C++",
            margin_of=margin_of or "what the header says",
            source=str(self._header),
        )
        if not parameters or not self.uniforms:
            raise ConfigError(f"{name}: a header has 1 or more parameters and uniforms, as arrays can't be empty")

    @functools.cached_property
    def _library(self) -> tuple[str, dict[str, Any]]:
        """The native module's name of it, and what its library says of itself."""
        try:
            native, found = load(self._header, self._command())
        except LibraryError as error:
            raise ConfigError(f"{self.name}: {error}") from error
        described = (self.states, self.actions, self.observations, self.parameters)
        widths = [*map(len, described), self.uniforms, self.normals]
        for what, declared, width in zip(SIZES, found["sizes"], widths, strict=True):
            if any(found["sizes"]) and declared != width:  # else they are chosen at run time
                raise ConfigError(
                    f"{self.name}: {self._header.name} has {what} = {declared}, and the description in python {width}; "
                    "make them the same"
                )
        return native, found

    def _command(self) -> str:
        """What compiles it, as it is typed here."""
        here = pathlib.Path.cwd()
        path = self._header.relative_to(here) if self._header.is_relative_to(here) else self._header
        return f"surefoot build {shlex.quote(str(path))}"

    def native_name(self) -> str:
        """By which the native module knows it; its library is loaded at the first call.

        Raises:
            ConfigError: it is not built, or does not fit.
        """
        return self._library[0]

    def own_header(self) -> pathlib.Path:
        """The header."""
        return self._header

    @property
    def alias(self) -> str:
        """How it is called in messages."""
        return self.gym_id

    # ---- row by row, as every system ----

    def reset(self, uniforms: Tensor, parameters: Tensor) -> Tensor:
        """(N, S) initial states."""
        return self._called("reset", "states", parameters, uniforms=uniforms)

    def observe(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N, O) observations."""
        return self._called("observe", "observations", parameters, states=state)

    def step(self, state: Tensor, action: Tensor, parameters: Tensor, normals: Tensor) -> Step:
        """One control step."""
        found = self._rows("step", parameters, states=state, actions=action, normals=normals)
        reward, margin, ended = (found[name][:, 0] for name in ("rewards", "margins", "terminated"))
        return Step(found["states"], reward, margin, ended > 0.5)

    def margin(self, state: Tensor, parameters: Tensor) -> Tensor:
        """(N,) signed margin of (N, S) states, safe if >= 0.

        Raises:
            ConfigError: the header does not say it.
        """
        self._demand("margin", "T margin(const T (&s)[states], const T (&p)[parameters])")
        return self._called("margin", "margins", parameters, states=state)[:, 0]

    def state_of(self, observations: Tensor, parameters: Tensor) -> Tensor:
        """(N, S) states of (N, O) observations.

        Raises:
            ConfigError: observations are not the states, and the header does not say how to find those.
        """
        if self.observations == self.states and not self._library[1]["state_of"]:
            return observations
        declared = "void state_of(T (&s)[states], const T (&o)[observations], const T (&p)[parameters])"
        self._demand("state_of", declared)
        return self._called("state_of", "states", parameters, observations=observations)

    def _demand(self, function: str, declared: str) -> None:
        if not self._library[1][function]:
            raise ConfigError(
                f"{self.name}: {self._header.name} has no {function}, which reachability and filters need: add "
                f"template <class T> static {declared}"
            )

    def _called(self, call: str, result: str, parameters: Tensor, **given: Tensor) -> Tensor:
        return self._rows(call, parameters, **given)[result]

    def _rows(self, call: str, parameters: Tensor, **given: Tensor) -> dict[str, Tensor]:
        """`call_rows` of tensors of any device and type: what comes back is as what was given."""
        first = next(iter(given.values()))
        if recorded() or (torch.is_grad_enabled() and any(value.requires_grad for value in given.values())):
            raise ConfigError(
                f"{self.name}: C++ can't be recorded or derived by torch: override {call}() in a subclass of CppSystem "
                "with torch's operators (docs/cpp_systems.md)"
            )
        kind = torch.float64 if first.dtype == torch.float64 else torch.float32
        own = {name: value.detach().to("cpu", kind) for name, value in {"parameters": parameters, **given}.items()}
        _ = self._library
        found = call_rows(self, call, **own)
        return {name: value.to(first) for name, value in found.items()}
