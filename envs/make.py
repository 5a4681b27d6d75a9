"""What a user names as an environment -> environments: the one place that knows every form of name.

::

    Pendulum-v1                      an id that gymnasium, a benchmark or this process has registered
    native/quadrotor-2d              a native system
    my_robots:Arm-v0                 an id that a module registers when it is imported
    my_robots:Arm, my_robots:make    a class or a function of a module: it gives an Env, or, where it takes `num_envs`,
                                     a VectorEnv
    walker.xml                       an MJCF file (envs/mujoco/mjcf.py)
    here:Arm                         an object of this process (`keep`): what no other process can import
    NAME?gain=2&reward=my:reward     any of them with arguments (`with_options`), so that one text says all of it
    other:PYTHON:MODULE:ID           an environment in another python (envs/other)
    objective:NAME?formula=F a&labels=my:labels   any of them with an objective (envs/objectives)
    weighted:NAME?objectives=2       any of them whose reward is a weighted sum (envs/objectives/several.py)
    mo:deep-sea-treasure-v0          of MO-Gymnasium, whose rewards are vectors
    team:NAME, team:MODULE:CLASS     several agents: a task of ours, or a class of yours (envs/team_tasks)
    jaxmarl:NAME                     several agents: JaxMARL's (envs/adapters/jaxmarl.py)
    pettingzoo:MODULE                several agents: what the module's `parallel_env` makes (envs/agents.py)
    playground/NAME, brax/, mjx/, warp/   of a simulator that may be on a GPU (envs/adapters/named.py)
    prefix:rest, prefix/rest         any other scheme

A further scheme is one entry in `SCHEMES`: its prefix, with the ":" or "/" that ends it, and a `Scheme` that names its
maker, `make(rest, num_envs, **options)`. The maker gives a `gymnasium.vector.VectorEnv` of that many rows, of any
autoreset mode, a contract environment (envs/interface.py), also one that gives tensors on a device, or a list of single
environments. Its module is imported at first use, so heavy packages may stand at its top. Options are the arguments of
the name, `max_episode_steps` among them, where it was given; `gap` and `threads` are handed to a maker that takes them.
`names` says what of a name executes code, so that one in a received file is asked for.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import pathlib
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import gymnasium

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError, MainGuardError, SurefootError, nearest
from surefoot.envs.names import AROUND, OBJECTIVE, WEIGHTED, device_scheme

HERE = "here:"
"""Prefix of what only this process has."""
MJCF = (".xml", ".mjcf")
"""Endings of names that are files of MuJoCo."""
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""A function's name: its module and its own."""
LIMIT = "max_episode_steps"
_OPTIONS, _BETWEEN = "?", "&"
_kept: dict[str, Any] = {}


# -- names with arguments ------------------------------------------------------------------------------------


def with_options(name: str, options: Mapping[str, Any]) -> str:
    """A name that says these arguments too; they go over those that it says already.

    >>> with_options("my:make", {"gain": 2.0, "goal": "left"})
    'my:make?gain=2.0&goal=left'

    Raises:
        ConfigError: an argument that is no number, text, true, false, null, or list or dict of them.
    """
    base, before = split_options(name)
    merged = {**before, **options}
    if not merged:
        return base
    return base + _OPTIONS + _BETWEEN.join(f"{key}={_written(key, value)}" for key, value in sorted(merged.items()))


def split_options(name: str) -> tuple[str, dict[str, Any]]:
    """A name without its arguments, and the arguments.

    >>> split_options("my:make?gain=2.0&goal=left")
    ('my:make', {'gain': 2.0, 'goal': 'left'})

    Raises:
        ConfigError: arguments that are not written as KEY=VALUE.
    """
    base, found, text = name.partition(_OPTIONS)
    options: dict[str, Any] = {}
    for part in text.split(_BETWEEN) if found else ():
        key, equals, value = part.partition("=")
        if not key.isidentifier() or not equals or key in options:
            raise ConfigError(
                f"environment {name!r}: {part!r} is no argument; write NAME?key=value&key=value, each key once"
            )
        options[key] = _read(unquote(value))
    return base, options


def _written(key: str, value: Any) -> str:
    if callable(value):
        name = name_in_module(value)
        if name is None:
            raise ConfigError(
                f"env_options: {key} is a function or class that no other process can import; put it into a module of "
                "its own, or give env= a function that makes the environment with it"
            )
        value = name
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"env_options: {key} is {value!r}; an argument that a run keeps is a number, a text, true, false, null "
            "or a list or dict of them"
        ) from error
    if isinstance(value, str) and _read(value) == value:
        text = value
    return quote(text, safe=":/,[]{}()!|>\"' .@+-")


def _read(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


# -- schemes -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How the environments behind one prefix are made."""

    maker: str
    """A function of surefoot by its module and name, which is called with (rest, num_envs, ...options)."""
    names: Callable[[str, Mapping[str, Any]], tuple[str, ...]] = lambda rest, options: ()
    """(rest, options) -> what of a name needs trust where a file says it, each as `module:name`; () if nothing does."""
    teams: bool = False
    """Whether several agents act in each of its environments (envs/agents.py)."""

    @property
    def function(self) -> Callable[..., Any]:
        """The maker."""
        module, _, function = self.maker.partition(":")
        return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


def _functions(rest: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Of options, those that name a function."""
    return tuple(value for value in options.values() if isinstance(value, str) and FUNCTION.fullmatch(value))


def _task_or_reward(rest: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """A `PhysicsTask` of a module, and functions among the options."""
    return (*([rest] if FUNCTION.fullmatch(rest) else []), *_functions(rest, options))


def _of_agents(function: str) -> Callable[[str, Mapping[str, Any]], tuple[str, ...]]:
    """Of environments of several agents: the module and its function, or the module's usual one."""

    def named(rest: str, options: Mapping[str, Any]) -> tuple[str, ...]:
        return (*([rest] if ":" in rest else [f"{rest}:{function}"]), *_functions(rest, options))

    return named


def _of_other(rest: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Of an environment in another python, PYTHON:MODULE:ID, that python and the module in it."""
    return ("other:" + rest.rpartition(":")[0],)


SCHEMES: dict[str, Scheme] = {
    HERE: Scheme("surefoot.envs.make:made_here"),
    OBJECTIVE: Scheme("surefoot.envs.objectives.named:make", _functions),
    WEIGHTED: Scheme("surefoot.envs.objectives.several:make", _functions),
    "mo:": Scheme("surefoot.envs.objectives.several:make_mo_gymnasium", _functions),
    "other:": Scheme("surefoot.envs.other.client:make", _of_other),
    "pettingzoo:": Scheme("surefoot.envs.adapters.pettingzoo:make", _of_agents("parallel_env"), True),
    "jaxmarl:": Scheme("surefoot.envs.adapters.jaxmarl:make", teams=True),
    "team:": Scheme("surefoot.envs.team_tasks:make", _task_or_reward, True),
    "playground/": Scheme("surefoot.envs.adapters.named:playground"),
    "brax/": Scheme("surefoot.envs.adapters.named:brax"),
    "mjx/": Scheme("surefoot.envs.adapters.named:mjx", _task_or_reward),
    "warp/": Scheme("surefoot.envs.adapters.named:warp", _task_or_reward),
}
"""Prefix -> scheme. Of two that fit, the longer one."""
_MJCF = Scheme("surefoot.envs.mujoco.mjcf:make", _functions)


def scheme_of(base: str) -> tuple[Scheme, str] | None:
    """The scheme of a name without arguments, and what it is given; None: an id of gymnasium's or a module's name."""
    for prefix in sorted(SCHEMES, key=len, reverse=True):
        if base.startswith(prefix) and (not prefix.endswith("/") or device_scheme(base) is not None):
            return SCHEMES[prefix], base.removeprefix(prefix)
    return (_MJCF, base) if base.lower().endswith(MJCF) else None


def is_team(name: str | None) -> bool:
    """Whether a name's scheme is one of environments in which several agents act."""
    found = None if name is None else scheme_of(split_options(name)[0])
    return found is not None and found[0].teams


def file_of(name: str | None) -> pathlib.Path | None:
    """The file that an environment's name is, or None."""
    base = "" if name is None else split_options(name)[0]
    found = scheme_of(base)
    return pathlib.Path(base) if found is not None and found[0] is _MJCF else None


def settled(name: str) -> str:
    """A name that means the same from any folder: a file's path is made absolute.

    Raises:
        ConfigError: there is no such file.
    """
    file = file_of(name)
    if file is None:
        return name
    if not file.expanduser().is_file():
        raise ConfigError(f"environment {str(file)!r}: there is no such file")
    path = str(file.expanduser().resolve())
    if _OPTIONS in path:
        raise ConfigError(
            f"environment {path!r}: a path with {_OPTIONS} in it can't be distinguished from arguments; rename it"
        )
    return with_options(path, split_options(name)[1])


def names_in(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What of an environment's name is a module's: environments `module:name`, and functions `module:function`."""
    base, options = split_options(name)
    scheme = scheme_of(base)
    if base.startswith(tuple(AROUND)):  # another environment's name is in it
        environments, functions = names_in(without_objective(name))
        return environments, (*functions, *_functions("", {"labels": options.get("labels")}))
    if scheme is not None:
        return (), scheme[0].names(scheme[1], options)
    return (base,), ()


def without_objective(name: str) -> str:
    """The name of the environment itself, without an objective or weights that the name says.

    >>> without_objective("objective:my:Arm?formula=F goal&gain=2&labels=my:rooms"), without_objective("my:Arm")
    ('my:Arm?gain=2', 'my:Arm')
    """
    base, options = split_options(name)
    for prefix, stated in AROUND.items():
        if base.startswith(prefix):
            own = {key: value for key, value in options.items() if key not in stated}
            return without_objective(with_options(base.removeprefix(prefix), own))
    return name


def is_plain(name: str) -> bool:
    """Whether a name, maybe with arguments, stands for a registered id rather than a scheme or a module's object."""
    base, _ = split_options(name)
    return scheme_of(base) is None and object_of(base) is None


# -- a module's class or function ----------------------------------------------------------------------------


def import_module(name: str, module: str, hint: str = "") -> types.ModuleType:
    """The module of an environment's name; the script that is running is not executed again under its own name.

    Raises:
        ConfigError: it can't be imported.
    """
    if is_running_script(module):
        return sys.modules["__main__"]
    try:
        return importlib.import_module(module)
    except MainGuardError:
        raise
    except Exception as error:
        line = (str(error).strip().splitlines() or ["no message"])[0]
        raise ConfigError(
            f"environment {name!r}: the module {module!r} can't be imported ({type(error).__name__}: {line}); install "
            f"it, or put its folder on PYTHONPATH{hint}"
        ) from error


def is_running_script(module: str) -> bool:
    """Whether a module is the script that this process was started with."""
    main = sys.modules.get("__main__")
    if module == "__main__":
        return True
    path = getattr(main, "__file__", None)
    if path is None or pathlib.Path(path).stem != module.rpartition(".")[2]:
        return False
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return bool(spec.name == module)
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    same = found is not None and found.origin is not None
    return same and pathlib.Path(str(found.origin)).resolve() == pathlib.Path(path).resolve()  # type: ignore[union-attr]


def guarded_script() -> str | None:
    """The name by which other processes import the running script; None where that would execute it again.

    A script whose work stands under `if __name__ == "__main__":` does nothing else when it is imported.
    """
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    name = "" if path is None else pathlib.Path(path).stem
    if not name.isidentifier() or not is_running_script(name):
        return None
    try:
        body = ast.parse(pathlib.Path(str(path)).read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    tests = [ast.unparse(part.test) for part in body if isinstance(part, ast.If)]
    return name if any("__name__" in test and "__main__" in test for test in tests) else None


def object_of(base: str, hint: str = "") -> Any | None:
    """The class or function that `module:name` is, its module imported; None where it is an id, or no module is named.

    Raises:
        ConfigError: the module can't be imported, or has something of that name that makes no environment.
    """
    module, _, rest = base.rpartition(":")
    if not module or not all(part.isidentifier() for part in rest.split(".")):
        return None
    found: Any = import_module(base, module, hint)
    if rest in gymnasium.registry:
        return None
    for part in rest.split("."):
        found = getattr(found, part, None)
    if found is not None and not callable(found) and not _is_environment(found):
        raise ConfigError(
            f"environment {base!r}: {rest} is a {type(found).__name__}; name an id that {module} registers, a class of "
            "an environment, or a function that makes one"
        )
    return found


def makers_in(module: str) -> list[str]:
    """Names in a module, which is imported, that may make environments: for messages."""
    found = sys.modules["__main__"] if is_running_script(module) else sys.modules.get(module)
    return (
        [
            name
            for name, value in vars(found).items()
            if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == found.__name__  # type: ignore[union-attr]
        ]
        if found is not None
        else []
    )


# -- what only this process has ------------------------------------------------------------------------------


def name_for(env: Any) -> str:
    """A name for an environment that is given as an object: by its module where another process can import it.

    Args:
        env: an id or other name, which stays as it is; a class or function; an environment, of which copies are made.

    Raises:
        ConfigError: none of these.
    """
    if isinstance(env, str):
        return env
    if not callable(env) and not _is_environment(env):
        raise ConfigError(
            f"an environment is an id, a class, a function that makes one, or an environment, and not of type "
            f"{type(env).__name__}"
        )
    known = name_in_module(env) or _id_of(env)
    if known is not None:
        return known
    qualname = getattr(env, "__qualname__", "")
    word = qualname.rpartition(".")[2] or type(getattr(env, "unwrapped", env)).__name__
    return keep(env, re.sub(r"\W+", "", word) or "env")


def _id_of(env: Any) -> str | None:
    """The id of an environment as `gymnasium.make(id)` gives it, without arguments or wrappers of the user's own."""
    spec = env.spec if isinstance(env, gymnasium.Env) else None
    known = None if spec is None else gymnasium.registry.get(spec.id)
    if spec is None or known is None or spec.additional_wrappers or spec.entry_point != known.entry_point:
        return None
    given = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    same = given == known.kwargs and spec.max_episode_steps == known.max_episode_steps
    return spec.id if same and _registered_everywhere(known) else None


def name_in_module(value: Any) -> str | None:
    """`module:name` of a class or function that other processes can import; None of others."""
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not module or not qualname or "<" in qualname:
        return None
    found: Any = sys.modules.get(module)
    if is_running_script(module):
        module = guarded_script()
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return f"{module}:{qualname}" if module and found is value else None


def keep(env: Any, name: str) -> str:
    """Give an object of this process a name, `here:NAME`, another one where that is taken by another object."""
    number, tried = 1, name
    while _kept.get(tried, env) is not env:
        number += 1
        tried = f"{name}-{number}"
    _kept[tried] = env
    return HERE + tried


def keep_as(env: Any, name: str) -> None:
    """Let `here:NAME` of a run that was trained in another process be this object.

    Raises:
        ConfigError: the run's environment has a name that any process understands.
    """
    base, _ = split_options(without_objective(name))
    if not base.startswith(HERE):
        raise ConfigError(f"env=: the run's environment is {name}, which is found by that name: leave env= out")
    _kept[base.removeprefix(HERE)] = env


def only_here(name: str) -> str | None:
    """Why no other process can make an environment of this name, as part of a sentence; None where one can."""
    base, _ = split_options(without_objective(name))
    if base.startswith(HERE):
        return "was given as an object that no other process can import"
    if scheme_of(base) is not None:
        return None
    module, _, rest = base.rpartition(":")
    if module:
        if not is_running_script(module) or guarded_script() == module:
            return None
        return 'is of the script that is running, which has no main guard (`if __name__ == "__main__":`)'
    spec = gymnasium.registry.get(rest)
    if spec is None or _registered_everywhere(spec):
        return None
    return "is registered in this process alone"


def _registered_everywhere(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    """Whether any process that imports gymnasium and surefoot knows this id."""
    entry = spec.entry_point if spec.entry_point is not None else spec.vector_entry_point
    root = entry.partition(":")[0].split(".")[0] if isinstance(entry, str) else ""
    return spec.id in _of_gymnasium() or root in ("surefoot", *SUITES, *_plugins())


SUITES = ("gymnasium_robotics", "ogbench", "ocbench")
"""Packages whose ids `envs.suites` registers when they are used."""


@functools.cache
def _of_gymnasium() -> frozenset[str]:
    """Ids that gymnasium registers itself, read from its text: a user's may have one of its classes too."""
    text = pathlib.Path(gymnasium.envs.__file__).read_text(encoding="utf-8")
    return frozenset(re.findall(r'id="([^"]+)"', text))


@functools.cache
def _plugins() -> tuple[str, ...]:
    """Packages that gymnasium imports by itself."""
    found = importlib.metadata.entry_points(group="gymnasium.envs")
    return tuple(point.value.partition(":")[0].split(".")[0] for point in found)


def made_here(rest: str, num_envs: int, **options: Any) -> Any:
    """Of an object that `keep` holds.

    Raises:
        ConfigError: this process does not have it.
    """
    return made_of(held(rest), HERE + rest, num_envs, options)


def held(rest: str) -> Any:
    """What `keep` holds by this name, without the prefix."""
    if rest not in _kept:
        raise ConfigError(
            f"environment {HERE}{rest} was an object of the python that trained, which this process does not have: go "
            "on in python, surefoot.resume(folder, env=...), or train with a class or function of a module, "
            "env=module:name"
        )
    return _kept[rest]


# -- making --------------------------------------------------------------------------------------------------


def made_of(maker: Any, name: str, num_envs: int, options: Mapping[str, Any]) -> Any:
    """`num_envs` environments of a class, a function or an environment: a VectorEnv, or a list of as many Envs.

    Raises:
        ConfigError: an argument that it does not take; an environment of its own that can't be copied.
        EnvironmentMismatchError: it fails, or gives no environment.
    """
    if _is_environment(maker):
        return _copies(maker, name, num_envs, options)
    given, limit = dict(options), None
    taken = parameters_of(maker)
    if taken is not None and LIMIT in given and LIMIT not in taken:
        limit = given.pop(LIMIT)
    refuse_unknown(name, given, taken)
    vector = (taken is not None and "num_envs" in taken) or _is_vector_class(maker)
    if vector:
        given["num_envs"] = num_envs
    first = called(maker, name, given)
    if isinstance(first, gymnasium.Env):
        rest = [called(maker, name, given) for _ in range(num_envs - 1)]
        return [_limited(env, limit, name) for env in (first, *rest)]
    if not _is_environment(first):
        raise EnvironmentMismatchError(
            f"{name} gave a {type(first).__name__}; it must return a gymnasium.Env, or a gymnasium.vector.VectorEnv of "
            "num_envs rows"
        )
    if limit is not None:
        raise ConfigError(
            f"{LIMIT}={limit}: {name} gives a vector environment, which counts by itself: let it take {LIMIT}"
        )
    return first


def called(maker: Any, name: str, given: Mapping[str, Any]) -> Any:
    """What a maker gives; its errors as ours, which name the environment."""
    try:
        return maker(**given)
    except SurefootError:
        raise
    except Exception as error:
        line = (str(error).strip().splitlines() or ["no message"])[0]
        hint = f"check its arguments {sorted(given)}" if given else "call it by itself"
        raise EnvironmentMismatchError(
            f"{name} fails when it is made ({type(error).__name__}: {line}); {hint}"
        ) from error


def _copies(env: Any, name: str, num_envs: int, options: Mapping[str, Any]) -> Any:
    """Of an environment that is given itself."""
    others = sorted(set(options) - {LIMIT})
    if others:
        raise ConfigError(f"{name} is made already and takes no argument {others[0]!r}: give its class or a function")
    try:
        if isinstance(env, gymnasium.Env):
            return [_limited(copy.deepcopy(env), options.get(LIMIT), name) for _ in range(num_envs)]
        return copy.deepcopy(env)
    except SurefootError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{name}: training and evaluation need {num_envs} copies of this environment, and it can't be copied "
            f"({type(error).__name__}: {error}); give its class, or a function that makes one"
        ) from error


def _limited(env: gymnasium.Env[Any, Any], limit: Any, name: str) -> gymnasium.Env[Any, Any]:
    """With gymnasium's time limit, where one is asked for."""
    return env if limit is None else gymnasium.wrappers.TimeLimit(env, steps_of(limit, name))


def steps_of(limit: Any, name: str) -> int:
    """A time limit that is one; raises ConfigError elsewhere."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigError(f"{LIMIT}={limit!r} of {name}: must be a whole number of steps from 1 on")
    return limit


def parameters_of(maker: Any) -> list[str] | None:
    """Names that a class or function takes; None where it takes any."""
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return [one.name for one in parameters if one.kind not in positional]


def takes(maker: Any, name: str) -> bool:
    """Whether a class or function says that it takes an argument of this name."""
    try:
        return name in inspect.signature(maker).parameters
    except (TypeError, ValueError):
        return False


def with_hints(maker: Any, name: str, options: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments, and of the hints those that a class or function takes.

    Raises:
        ConfigError: it takes no `gap`, and there is one.
    """
    if hints.get("gap") is not None and not takes(maker, "gap"):
        raise no_gaps(name, hints["gap"])
    return {**{key: value for key, value in hints.items() if value is not None and takes(maker, key)}, **options}


def no_gaps(name: str, gap: Any) -> ConfigError:
    """What to raise where an environment has no altered dynamics."""
    return ConfigError(
        f"gap={gap}: {name} has no dynamics gaps; native systems, python systems, MJCF files and gymnasium's MuJoCo v5 "
        "tasks have them (surefoot envs info ID), and functions of yours that take gap="
    )


def _is_vector_class(maker: Any) -> bool:
    return isinstance(maker, type) and issubclass(maker, gymnasium.vector.VectorEnv)


def _is_environment(value: Any) -> bool:
    vector = hasattr(value, "num_envs") and hasattr(value, "step") and not isinstance(value, type)
    return isinstance(value, gymnasium.Env | gymnasium.vector.VectorEnv) or vector


def refuse_unknown(name: str, options: Mapping[str, Any], taken: Sequence[str] | None) -> None:
    """Raise ConfigError for the first argument that is not among those `taken`; None: any is."""
    if taken is None:
        return
    for option in options:
        if option not in taken:
            known = [one for one in taken if one not in ("num_envs", "render_mode")]
            there = nearest(option, known) if known else "it takes none"
            raise ConfigError(f"{name} takes no argument {option!r} (env_options.{option}): {there}")
