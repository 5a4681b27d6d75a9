"""A policy behind its least-restrictive filter as one C++ header: network, system's equations and safe set.

The header is that of the policy (`core.policy.cpp`) with a second class, `FilteredPolicy`. It gives what
`FilteredPolicy.act` gives, in double precision where that is: the state of an observation and the next state are the
system's own equations, written in C++ by `core.policy.cpp_equations`, and the value is read between the grid's points
by the same interpolation.
"""

from __future__ import annotations

import os
import pathlib
import re

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ExportError
from surefoot.core.base.files import written_aside
from surefoot.core.policy import cpp
from surefoot.core.policy.cpp_equations import cpp_function
from surefoot.core.policy.policy import Policy
from surefoot.safe.filters.model import Model
from surefoot.safe.filters.safety_filter import LeastRestrictive, SafetyFilter
from surefoot.safe.reachability.grid import GridValue

MOST_VALUES = 1_000_000
"""Points of a grid in a header: 20 MB of text, which compilers take ten seconds for."""

FILTER = """\
namespace detail {

@ARRAYS@

@EQUATIONS@
// Whether no number is infinite or NaN, by its bits.
inline bool finite(const double* values, int count) {
  for (int k = 0; k < count; ++k) {
    std::uint64_t bits;
    std::memcpy(&bits, values + k, sizeof bits);
    if ((bits & 0x7ff0000000000000u) == 0x7ff0000000000000u) return false;
  }
  return true;
}

// The value of a state between the grid's points, multilinear; beyond the box that of its edge. Safe where <= 0.
inline double value(const double* state) {
  double corners[@CORNERS@], place[@STATES@];
  int base = 0;
  for (int k = 0; k < @STATES@; ++k) {
    double at = (state[k] - low[k]) / spacing[k];
    const double last = points[k] - 1;
    if (periodic[k]) at -= points[k] * std::floor(at / points[k]);
    else at = at < 0.0 ? 0.0 : at > last ? last : at;
    double cell = std::floor(at);
    const double most = periodic[k] ? last : last - 1;
    cell = cell < 0.0 ? 0.0 : cell > most ? most : cell;
    base += static_cast<int>(cell) * stride[k];
    place[k] = at - cell;
  }
  for (int c = 0; c < @CORNERS@; ++c) {
    int offset = base;
    for (int k = 0; k < @STATES@; ++k)
      if ((c >> (@STATES@ - 1 - k)) & 1) offset += stride[k];
    corners[c] = values[offset];
  }
  for (int k = @STATES@ - 1, count = @CORNERS@ / 2; k >= 0; --k, count /= 2)
    for (int c = 0; c < count; ++c) corners[c] = corners[2 * c] + place[k] * (corners[2 * c + 1] - corners[2 * c]);
  return corners[0];
}

}  // namespace detail

// The policy behind a filter. An action passes where the value of the state that follows it is at most -margin; else
// that one of @CANDIDATES@ candidates acts whose next state has the smallest value. Where promises(observation) is
// true, the constraint is kept, as long as the system (@SYSTEM@) follows its equations and every action is carried out.
class FilteredPolicy {
 public:
  FilteredPolicy() : changed(false), kept(true) {}

  void reset() { policy.reset(); }

  // As Policy::act. False also where a state is not finite, and then nothing may be carried out.
  bool act(const float* observation, float* action) {
    float wanted[action_size];
    double state[@STATES@], bounded[action_size], following[@STATES@];
    if (!policy.act(observation, wanted) || !state_of(observation, state)) return false;
    for (int k = 0; k < action_size; ++k) {
      const double u = static_cast<double>(wanted[k]);
      bounded[k] = u < detail::lowest[k] ? detail::lowest[k] : u > detail::highest[k] ? detail::highest[k] : u;
    }
    detail::next_state(state, bounded, following);
    if (!detail::finite(following, @STATES@)) return false;
    changed = !(detail::value(following) <= -detail::margin);
    kept = true;
    if (changed) {
      int best = -1;
      double least = 0.0;
      for (int c = 0; c < @CANDIDATES@; ++c) {
        detail::next_state(state, detail::candidates + c * action_size, following);
        if (!detail::finite(following, @STATES@)) continue;
        const double found = detail::value(following);
        if (best < 0 || found < least) best = c, least = found;
      }
      if (best < 0) return false;
      kept = least <= -detail::margin;
      for (int k = 0; k < action_size; ++k) wanted[k] = static_cast<float>(detail::candidates[best * action_size + k]);
    }
    std::memcpy(action, wanted, sizeof wanted);
    return true;
  }

  // Whether the constraint is kept from here on, if every action passes the filter.
  static bool promises(const float* observation) {
    double state[@STATES@];
    return state_of(observation, state) && detail::value(state) <= -detail::margin;
  }

  bool changed;  // the last action was not the policy's
  bool kept;     // the last action keeps the filter's condition; else it is the one that breaks it least

 private:
  static bool state_of(const float* observation, double* state) {
    double seen[observation_size];
    for (int k = 0; k < observation_size; ++k) seen[k] = static_cast<double>(observation[k]);
    detail::state_of(seen, state);
    return detail::finite(state, @STATES@);
  }

  Policy policy;
};
"""
"""What follows the policy's class; `@WORDS@` are filled in."""


def header(policy: Policy, safety: SafetyFilter, model: Model | None, name: str = "policy") -> str:
    """The text of the header of a policy behind a filter; arguments as of `FilteredPolicy`.

    Raises:
        ExportError: another filter than the least restrictive one on a grid, observations that are the state without a
            model, a grid of more than `MOST_VALUES` points, or a policy that a header can't hold.
    """
    if type(safety) is not LeastRestrictive or not isinstance(safety.value, GridValue) or safety.fallback is not None:
        kind = type(safety).__name__
        raise ExportError(
            f"a C++ header holds the least-restrictive filter of a safe set (--filter reach), and this one is {kind}; "
            "export it to .onnx, which C++ runs by onnxruntime"
        )
    if model is None or policy.discrete:
        raise ExportError("a C++ header filters continuous actions, by a model of the system; export to .onnx")
    grid, states, actions = safety.value.grid, len(safety.value.grid.axes), policy.action_dim
    if len(safety.value.padded) > MOST_VALUES:
        shape = " x ".join(map(str, grid.shape))
        raise ExportError(
            f"the safe set has {shape} points, and a C++ header holds {MOST_VALUES:,}: make one of fewer by "
            "`surefoot reach ENV --points N,N,... -o FILE.npz`, or export to .onnx"
        )
    arrays = [
        _array("low", [axis.low for axis in grid.axes]),
        _array("spacing", grid.spacings),
        f"constexpr double margin = {safety.margin!r};",
        _array("lowest", model.action_low),
        _array("highest", model.action_high),
        _array("candidates", safety.candidates),
        _whole("int", "points", grid.shape),
        _whole("bool", "periodic", [axis.periodic for axis in grid.axes]),
        _whole("int", "stride", grid.strides),
        _array("values", safety.value.padded),
    ]
    equations = [
        cpp_function("state_of", model.state_of, [policy.observation_dim]),
        cpp_function("next_state", model, [states, actions]),
    ]
    facts = {
        "ARRAYS": "\n".join(arrays),
        "EQUATIONS": "\n".join(equations),
        "STATES": states,
        "CORNERS": 1 << states,
        "CANDIDATES": len(safety.candidates),
        "SYSTEM": model.system.alias,
    }
    text = re.sub(r"@(\w+)@", lambda found: str(facts[found[1]]), FILTER)
    return cpp.header(policy, name, text)


def export(policy: Policy, safety: SafetyFilter, model: Model | None, path: str | os.PathLike[str]) -> None:
    """Write the header; it appears whole or not at all. Errors as of `header`."""
    path = pathlib.Path(path)
    text = header(policy, safety, model, cpp.name_of(path))
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def _array(name: str, values: Tensor | list[float] | tuple[float, ...]) -> str:
    """Doubles that C++ reads back bit for bit."""
    numbers = [repr(value) for value in torch.as_tensor(values, dtype=torch.float64).reshape(-1).tolist()]
    if not np.isfinite([float(number) for number in numbers]).all():
        raise ExportError(f"the filter's {name} are not all finite, and can't be written in C++")
    rows = [", ".join(numbers[k : k + 8]) for k in range(0, len(numbers), 8)]
    return f"static const double {name}[{len(numbers)}] = {{\n" + ",\n".join(rows) + "};"


def _whole(kind: str, name: str, values: object) -> str:
    numbers = [str(value).lower() for value in values]  # type: ignore[attr-defined]
    return f"static const {kind} {name}[{len(numbers)}] = {{{', '.join(numbers)}}};"
