"""Small policies as one C++ header without dependencies, for controllers that have neither python nor a runtime.

The header holds the normaliser, the network, tanh or clip, the action bounds, histories and chunks of actions; it takes
nothing from the heap, throws nothing, and is C++11. Weights lie in panels of 32 outputs: a layer is one pass over
contiguous memory whose inner loop a compiler vectorises without being allowed to change the order of sums.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from importlib.metadata import version
from typing import Any

import numpy as np
from torch import Tensor

from surefoot.core.actors.actor import Actor, MLPActor
from surefoot.core.actors.goal_actor import GoalActor, UnitGaussianActor
from surefoot.core.actors.greedy_actor import GreedyActor
from surefoot.core.actors.heads import CategoricalActor
from surefoot.core.actors.memory_actors import ChunkActor, HistoryActor
from surefoot.core.actors.value_heads import ValueHead
from surefoot.core.base.actions import middle_and_half
from surefoot.core.base.errors import ExportError
from surefoot.core.base.files import written_aside
from surefoot.core.nn.networks import MLP
from surefoot.core.policy.cpp_runtime import ACTIVATIONS, CLASS, GOAL_SET, RUNTIME
from surefoot.core.policy.policy_module import PolicyModule
from surefoot.core.policy.single_action import CLIPPED, SQUASHED

Array = np.ndarray[Any, Any]

PANEL = 32
"""Outputs that are summed side by side: eight registers of four numbers, four of eight."""
MOST_NUMBERS = 4_000_000
"""Weights of a header: compilers take a minute for more."""


KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class co_await
co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do
double dynamic_cast else enum explicit export extern false float for friend goto if inline int long main mutable
namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
requires return short signed sizeof static static_assert static_cast std struct switch template this thread_local
throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
TAKEN = frozenset(KEYWORDS.split())
"""Keywords of C++ up to C++23, and names that a program has anyway."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a policy's head is made of, as the header runs it."""

    network: MLP
    squashed: bool  # tanh of the outputs; else they are clipped
    discrete: bool
    history: int = 1  # observations that the network reads
    chunk: int = 1  # actions that it plans
    execute: int = 1  # of them that are played
    goal: GoalActor | None = None  # what the network reads behind the observations


def parts_of(actor: Actor) -> Parts:
    """The parts of a head.

    Raises:
        ExportError: it is of another kind; the sentence says which file holds it.
    """
    sizes: dict[str, Any] = {}
    while isinstance(actor, HistoryActor | ChunkActor | GoalActor):
        if isinstance(actor, GoalActor) and "goal" not in sizes:
            sizes["goal"] = actor
        elif type(actor) is HistoryActor and "history" not in sizes:
            sizes["history"] = actor.length
        elif type(actor) is ChunkActor and "chunk" not in sizes:
            sizes |= {"chunk": actor.chunk, "execute": actor.execute}
        else:
            break
        actor = actor.inner
    if isinstance(actor, ValueHead) and (network := actor.plain_network()) is not None:
        return Parts(network, False, True, **sizes)
    kinds = (*SQUASHED, *CLIPPED, UnitGaussianActor, CategoricalActor, GreedyActor)
    if (
        not isinstance(actor, MLPActor)
        or type(actor) not in kinds
        or actor.mlp.members is not None
        or actor.mlp.activation not in ACTIVATIONS
    ):
        raise ExportError(
            "a C++ header holds a plain network (deterministic, Gaussian, categorical; also with a history, chunks or "
            f"a goal) and this policy's head is {actor.kind!r}; export it to .onnx, which C++ runs by onnxruntime"
        )
    return Parts(actor.mlp, type(actor) in SQUASHED, actor.discrete, **sizes)


def header(policy: PolicyModule, name: str = "policy", more: str = "") -> str:
    """The text of the header; all is in the namespace `name`, `more` behind the class of the policy.

    Raises:
        ExportError: the policy is of a kind that it can't hold, has images, or more than `MOST_NUMBERS` weights.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name) or name in TAKEN:
        raise ExportError(
            f"{name!r} is no name of a C++ namespace: letters, digits and _, no digit first, and no word of C++"
        )
    if policy.encoder is not None:
        raise ExportError(
            "a C++ header holds policies of one vector, and this one reads images or several arrays: .onnx"
        )
    parts = parts_of(policy.actor)
    if parts.goal is not None and more:
        raise ExportError("a C++ header with a filter takes no goal; export it to .onnx, or without the filter")
    network, actions = parts.network, policy.action_dim * parts.chunk
    if (count := sum(weight.numel() for weight in network.weights)) > MOST_NUMBERS:
        raise ExportError(
            f"the policy has {count:,} weights, and a C++ header holds {MOST_NUMBERS:,}; export it to .onnx"
        )
    bounds = _numbers(policy.action_low), _numbers(policy.action_high)
    middle, half = middle_and_half(*bounds)
    lines = [_array("mean", _numbers(policy.normalizer.mean)), _array("scale", _numbers(policy.normalizer.scale))]
    lines += [_array("middle", middle), _array("half", half)]
    lines += [_array("action_low", bounds[0]), _array("action_high", bounds[1])]
    lines += [] if parts.goal is None else _goal_arrays(parts.goal)
    calls: list[str] = []
    here, width = "in", int(network.weights[0].shape[1])
    last = len(network.weights) - 1
    for k, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        rows = actions if k == last else weight.shape[0]  # of two halves of the outputs the first is the mean
        packed, padded = _panels(_numbers(weight)[:rows], _numbers(bias)[:rows])
        lines += [_array(f"w{k}", packed), _array(f"b{k}", padded)]
        there = "out" if k == last else f"h{k % 2}"
        calls.append(f"detail::dense<{width}, {len(padded)}>(detail::w{k}, detail::b{k}, {here}, {there});")
        if k < last:
            calls += _hidden(network, k, rows, there, lines)
        if k == last - 1 and network.unit_features:
            calls.append(f"detail::unit<{rows}>({there});")
        here, width = there, int(rows)
    widest = max([PANEL, *(_padded(size) for size in network.hidden)])
    limit = policy.normalizer.limit
    facts = {
        "NAME": name,
        "GUARD": f"SUREFOOT_{name}_HPP",
        "VERSION": version("surefoot"),
        "NAMES": "".join(_named(key, names) for key, names in policy.names.items()),
        "OBSERVATIONS": policy.observation_dim,
        "ACTIONS": policy.action_dim,
        "HISTORY": parts.history,
        "CHUNK": parts.chunk,
        "EXECUTE": parts.execute,
        "OUTPUTS": actions,
        "PADDED": _padded(actions),
        "WIDEST": widest,
        "PANEL": PANEL,
        "LIMITED": "true" if np.isfinite(limit) else "false",
        "LIMIT": _literal(float(limit)) if np.isfinite(limit) else "0.0f",
        "SQUASHED": "true" if parts.squashed else "false",
        "ACTIVATION": ACTIVATIONS[network.activation],
        "ARRAYS": "\n".join(lines),
        "LAYERS": "\n    ".join(calls),
        "ACT": CLASS["discrete" if parts.discrete else "continuous"],
        "MORE": more,
        **_goal_facts(parts.goal),
    }
    text = RUNTIME
    for _ in range(2):  # the act function and that of goals have places of their own
        text = re.sub(r"@(\w+)@", lambda found: str(facts[found[1]]), text)
    return text


def _goal_arrays(goal: GoalActor) -> list[str]:
    """How a goal is normalised, and the one that counts where none is given, if there is one."""
    found = [_array("goal_mean", _numbers(goal.normalizer.mean)), _array("goal_scale", _numbers(goal.normalizer.scale))]
    return [*found, _array("goal", _numbers(goal.goal))] if bool(goal.fixed) else found


def _goal_facts(goal: GoalActor | None) -> dict[str, str]:
    """What a header has where its policy is asked for a goal."""
    places = ("SIZE", "RESET", "SET", "CHECK", "MORE", "MEMBER")
    if goal is None:
        return {f"GOAL_{place}": "" for place in places}
    limit, fixed = float(goal.normalizer.limit), bool(goal.fixed)
    limited = bool(np.isfinite(limit))
    reported = (
        f"\nconstexpr int goal_size = {goal.goal_dim};",
        "\n    aimed = false;" + ("\n    set_goal(detail::goal);" if fixed else ""),
        GOAL_SET,
        "    if (!aimed) return false;\n",
        " + goal_size",
        "\n  bool aimed;",
    )
    limits = {"GOAL_LIMITED": "true" if limited else "false", "GOAL_LIMIT": _literal(limit) if limited else "0.0f"}
    return {**{f"GOAL_{place}": text for place, text in zip(places, reported, strict=True)}, **limits}


def _named(key: str, names: list[str]) -> str:
    """A comment that says what each number of an observation or an action is; JSON, so that no name can end it."""
    what = key.removesuffix("_names")
    reported = (json.dumps(name).replace("@", r"\u0040") for name in names)
    return "\n//" + "".join(f"\n//   {what}[{k}]: {name}" for k, name in enumerate(reported))


def _hidden(network: MLP, k: int, width: int, place: str, lines: list[str]) -> list[str]:
    """What is done to a hidden layer's sums: the norm before or after the activation."""
    active = f"detail::active<{width}>({place});"
    if not len(network.scales):
        return [active]
    lines += [_array(f"g{k}", _numbers(network.scales[k])), _array(f"s{k}", _numbers(network.shifts[k]))]
    epsilon = _literal(float(network.norm_epsilon))
    norm = f"detail::norm<{width}>(detail::g{k}, detail::s{k}, {epsilon}, {place});"
    return [active, norm] if network.layer_norm == "after" else [norm, active]


def export(policy: PolicyModule, path: str | os.PathLike[str], name: str | None = None) -> None:
    """Write the header; it appears whole or not at all.

    Args:
        policy: a plain network, also with a history or chunks of actions.
        path: of the new file.
        name: of the namespace; None: the file's name.

    Raises:
        ExportError: the policy is of a kind that a header can't hold.
        SurefootError: the file can't be written.
    """
    path = pathlib.Path(path)
    text = header(policy, name_of(path) if name is None else name)
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def name_of(path: pathlib.Path) -> str:
    """The namespace of a header of this name; what begins with a digit, or C++ has taken, stands behind `policy_`.

    >>> [name_of(pathlib.Path(name)) for name in ("my-arm.2.hpp", "2.hpp", "new.hpp")]
    ['my_arm_2', 'policy_2', 'policy_new']
    """
    name = re.sub(r"\W", "_", path.stem, flags=re.ASCII).strip("_")
    return name if name and not name[0].isdigit() and name not in TAKEN else f"policy_{name}"


def _numbers(tensor: Tensor) -> Array:
    return tensor.detach().cpu().float().numpy()


def _padded(width: int) -> int:
    return -(-width // PANEL) * PANEL


def _panels(weight: Array, bias: Array) -> tuple[Array, Array]:
    """(outputs, inputs) weights as panels of `PANEL` outputs, inputs outermost within each; zeros fill the last one."""
    outputs, inputs = weight.shape
    wide = np.zeros((_padded(outputs), inputs), np.float32)
    wide[:outputs] = weight
    more = np.zeros(len(wide), np.float32)
    more[:outputs] = bias
    return wide.reshape(-1, PANEL, inputs).transpose(0, 2, 1).reshape(-1), more


def _literal(value: float) -> str:
    """The float32 as C++ reads it back bit for bit."""
    text = f"{value:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _array(name: str, values: Array) -> str:
    numbers = [_literal(float(value)) for value in values.reshape(-1)]
    rows = [", ".join(numbers[k : k + 8]) for k in range(0, len(numbers), 8)]
    return f"alignas(64) static const float {name}[{len(numbers)}] = {{\n" + ",\n".join(rows) + "};"
