"""Any gymnasium id as a vector environment of flat observations, or one sentence saying why not."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import (
    ConfigError,
    EnvironmentMismatchError,
    MissingExtraError,
    SurefootError,
)
from surefoot.core.base.spec import VECTOR, in_words
from surefoot.core.base.spec import Array as NamedArray
from surefoot.envs import make, suites
from surefoot.envs.choices import numbered
from surefoot.envs.masks import MaskedObservation, with_masks
from surefoot.envs.mujoco import tasks as mujoco_tasks
from surefoot.envs.mujoco.library import no_deprecations
from surefoot.envs.names import PREFIX, gantry_ids, gymnasium_id, native_names
from surefoot.envs.side_by_side import PausableVectorEnv, PausingVectorEnv, close, name_of, time_limit
from surefoot.envs.spaces import arrays_of, is_image

Array = np.ndarray[Any, Any]

# The order in which `data.formats.minari` concatenates them too; a test compares the two.
GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")

BOUND = "gymnasium.wrappers.TransformAction(env, lambda a: a, gymnasium.spaces.Box(low, high, dtype=np.float32))"
"""What gives an environment bounds that it does not declare; RescaleAction needs some already."""
DISCRETE_SPACES = (gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete, gymnasium.spaces.MultiBinary)


@dataclasses.dataclass(frozen=True)
class EnvironmentDescription:
    """What a policy needs to know of an environment; all in the environment's own units."""

    env_id: str
    observations: Mapping[str, NamedArray]
    """As `Spec.observations`."""
    action_dim: int
    action_low: Array  # (action dim,) float32
    action_high: Array  # (action dim,) float32
    max_episode_steps: int | None
    simulator: str | None = None
    """Name and version of what computes the physics, such as "mujoco 4.0.0", where it matters to repeat a run."""

    @property
    def observation_dim(self) -> int | None:
        """Width of an observation that is one vector; None of others."""
        return self.observations[VECTOR].shape[0] if VECTOR in self.observations else None


def make_vec(env_id: str, num_envs: int, **kwargs: Any) -> PausableVectorEnv:
    """`num_envs` copies of the environment `env_id`, any name of `envs.make`, behind the vector interface.

    Our own ids (`surefoot/...`) come as their batched class. So do gymnasium's MuJoCo v5 tasks, bit for bit
    the same as gymnasium's own, except where an argument such as `render_mode` asks for its class.
    Dict observations become vectors: those of gymnasium-robotics in the order `GOAL_KEYS`, any other in the
    alphabetical order of their keys, as `data.formats.minari` concatenates them.

    Args:
        env_id: gymnasium id, also of an environment that a module of the user's registers, or any name of `envs.make`.
        num_envs: number of sub-environments, at least 1.
        kwargs: arguments of the environment itself.

    Raises:
        ConfigError: unknown id (the message names the nearest ids), module or keyword; num_envs below 1.
        MissingExtraError: the environment needs mujoco, which is not installed.
        EnvironmentMismatchError: the environment exists but fails when it is made.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}; an evaluation needs at least 1 environment")
    env_id, kwargs = _resolved(env_id, kwargs)
    given = behind(env_id, num_envs, kwargs, tensors="numpy")
    if given is not None:
        return given
    ours = batched(env_id, num_envs, kwargs)
    if ours is not None:
        return ours
    return _beside([_make(env_id, kwargs) for _ in range(num_envs)], env_id)


def behind(env_id: str, num_envs: int, options: Mapping[str, Any], **hints: Any) -> PausableVectorEnv | None:
    """The environments of a name that is no id: of a scheme, a file, or a module's class or function; None of an id.

    Args:
        env_id: without arguments.
        num_envs: rows.
        options: the environment's arguments.
        hints: arguments that it gets only where it takes them, such as `threads`.

    Raises:
        ConfigError, EnvironmentMismatchError: it can't be made; the message says why.
    """
    scheme = make.scheme_of(env_id)
    maker: Any = None if scheme is None else scheme[0].function
    if scheme is None:
        maker = make.object_of(env_id, _without_module(env_id.rpartition(":")[2]))
        if maker is None:
            return None
    given = make.with_hints(maker, env_id, options, hints)
    made = maker(scheme[1], num_envs, **given) if scheme else make.made_of(maker, env_id, num_envs, given)
    if not isinstance(made, list):
        from surefoot.envs.given import pausable  # it imports torch, which gymnasium's users don't wait for

        rows = made.num_envs if hasattr(made, "agents_team") else num_envs  # of an environment, a row for each agent
        return pausable(made, rows, env_id)
    beside = _beside([_ready(env) for env in made], env_id)
    beside.called = env_id
    return beside


def _beside(envs: Sequence[gymnasium.Env[Any, Any]], env_id: str) -> PausingVectorEnv:
    """Single environments side by side."""
    try:
        return PausingVectorEnv([lambda env=env: env for env in envs])
    except SurefootError:
        raise
    except Exception as error:
        raise EnvironmentMismatchError(
            f"{env_id}: its copies can't be put side by side ({type(error).__name__}: {_first_line(error)}); "
            "every copy must have the same spaces"
        ) from error


def _resolved(env_id: str, kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The gymnasium id or other name without the arguments that it says, and all arguments."""
    base, options = make.split_options(env_id)
    return gymnasium_id(base), {**options, **kwargs}


def batched(env_id: str, num_envs: int, kwargs: Mapping[str, Any], **hints: Any) -> PausableVectorEnv | None:
    """The class of many simulations at once of a registered gymnasium id, or None where there is none.

    It is ours, or the `vector_entry_point` of any id; of gymnasium's own ids the single class is stepped.

    Args:
        env_id: without arguments; its module is imported.
        num_envs: rows.
        kwargs: the environment's arguments.
        hints: arguments that a class gets only where it takes them, such as `threads`.

    Raises:
        ConfigError: an argument that the class does not take.
        EnvironmentMismatchError: it fails when it is made.
    """
    env_id = _registered(env_id)
    spec = gymnasium.registry.get(env_id)
    if spec is None or spec.additional_wrappers:
        return None
    entry = spec.vector_entry_point
    if _mujoco_task(spec) is not None or str(entry).startswith("surefoot."):
        return _ours(spec, num_envs, {**hints, **kwargs})
    if entry is None or (str(entry).startswith("gymnasium.") and spec.entry_point is not None):
        return None
    creator: Any = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    taken = make.parameters_of(creator)
    here = {**spec.kwargs, **kwargs}
    make.refuse_unknown(env_id, here, taken)
    here = make.with_hints(creator, env_id, here, {make.LIMIT: spec.max_episode_steps, **hints})
    env = make.called(creator, env_id, {"num_envs": num_envs, **here})
    env.spec = spec
    from surefoot.envs.given import pausable

    return pausable(env, num_envs, env_id)


def _ours(
    spec: gymnasium.envs.registration.EnvSpec, num_envs: int, kwargs: Mapping[str, Any]
) -> PausableVectorEnv | None:
    """As `batched`, of our own classes."""
    arguments = {"max_episode_steps": spec.max_episode_steps, **spec.kwargs, **kwargs}
    task = _mujoco_task(spec)
    if task is not None:
        from surefoot.envs.mujoco import factory

        # one thread: evaluation runs in workers, one a core
        arguments = {"threads": 1, **arguments, "task": task}
        if not factory.supports(arguments):
            return None
        creator: Any = factory.make
    else:
        creator = gymnasium.envs.registration.load_env_creator(str(spec.vector_entry_point))
    env = creator(num_envs=num_envs, **arguments)
    env.spec = spec
    return env  # type: ignore[no-any-return]


def is_mujoco(env_id: str) -> bool:
    """Whether a gymnasium id is one of the MuJoCo tasks that we step natively."""
    spec = gymnasium.registry.get(env_id)
    return spec is not None and _mujoco_task(spec) is not None


def _mujoco_task(spec: gymnasium.envs.registration.EnvSpec) -> str | None:
    """The task of `envs.mujoco` that this id is, ours or gymnasium's, also where a user registered it anew."""
    if str(spec.vector_entry_point).startswith("surefoot.envs.mujoco."):
        return str(spec.kwargs["task"])
    found = re.fullmatch(r"gymnasium\.envs\.mujoco\.\w+_v5:(\w+)Env", str(spec.entry_point))
    return found[1] if found is not None and found[1] in mujoco_tasks.TASKS else None


def describe(env_id: str, **kwargs: Any) -> EnvironmentDescription:
    """Dimensions, action bounds and time limit of an environment.

    Raises:
        EnvironmentMismatchError: observations or actions are not flat, bounded vectors of real numbers.
        ConfigError, MissingExtraError: as in `make_vec`.
    """
    env = _probe(env_id, kwargs)
    try:
        single = isinstance(env, gymnasium.Env)
        low, high = _action_bounds(env_id, env.action_space if single else env.single_action_space)
        observations = arrays_of(env.observation_space if single else env.single_observation_space, env_id)
        limit = time_limit(env) if single else env.max_episode_steps
        return EnvironmentDescription(env_id, observations, len(low), low, high, limit, _simulator(env))
    finally:
        close(env)


def _probe(env_id: str, kwargs: Mapping[str, Any]) -> Any:
    """What tells the spaces: a single environment of an id that has one, else a row of its vector environment."""
    base, options = _resolved(env_id, kwargs)
    return _make(base, options) if _is_single(base) else make_vec(base, 1, **options)


def _is_single(base: str) -> bool:
    """Whether a name without arguments is a registered id that gymnasium can make one environment of."""
    if make.scheme_of(base) is not None:
        return False
    spec = gymnasium.registry.get(_registered(base))
    return make.is_plain(base) and (spec is None or spec.entry_point is not None)


def limit_of(env_id: str, **kwargs: Any) -> int | None:
    """Time limit of an environment, in steps, as its class or registration declares it; None: it declares none."""
    env = make_vec(env_id, 1, **kwargs)
    try:
        return env.max_episode_steps
    finally:
        close(env)


def _registered(env_id: str) -> str:
    """The id of a name such as "module:Id", the module imported, so that gymnasium knows it."""
    module, _, name = env_id.rpartition(":")
    if module:
        make.import_module(env_id, module, _without_module(name))
    suites.ensure_registered(name)
    return name


def _simulator(env: Any) -> str | None:
    named = (env.metadata or {}).get("simulator")
    if named is None and hasattr(getattr(env, "unwrapped", None), "model") and "mujoco" in sys.modules:
        mujoco = sys.modules["mujoco"]
        named = f"mujoco {mujoco.__version__}" if isinstance(env.unwrapped.model, mujoco.MjModel) else None
    return named


def action_bounds(env_id: str, **kwargs: Any) -> tuple[Array, Array]:
    """Lowest and highest action, two (action dim,) float32 arrays; errors as in `describe`."""
    description = describe(env_id, **kwargs)
    return description.action_low, description.action_high


def check_spaces(
    env: str | gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any] | PausableVectorEnv,
    observations: int | Mapping[str, NamedArray],
    action_dim: int,
    discrete: bool = False,
    scales: bool = True,
) -> None:
    """Make sure that a dataset or policy of these dimensions fits an environment (an id, or one made).

    Images of another height and width fit where they are scaled by a rule (`Array.scaled`), as policies do.

    Args:
        env: id of an environment, or one that is made.
        observations: width of an observation, or its arrays as in `Spec.observations`.
        action_dim: width of an action, or the number of choices.
        discrete: actions are choices.
        scales: images of another size fit; not to those who learn from what the environment shows.

    Raises:
        EnvironmentMismatchError: it doesn't fit; the message gives both shapes.
        ConfigError, MissingExtraError: as in `make_vec`, where `env` is an id.
    """
    if isinstance(env, str):
        made = _probe(env, {})
        try:
            check_spaces(made, observations, action_dim, discrete, scales)
        finally:
            close(made)
        return
    if isinstance(env, gymnasium.Env):
        observation_space, action_space = env.observation_space, env.action_space
    else:  # of a team, the policy is that of one agent
        observation_space = getattr(env, "agent_observation_space", env.single_observation_space)
        action_space = getattr(env, "agent_action_space", env.single_action_space)
    name = name_of(env)
    if discrete and isinstance(action_space, gymnasium.spaces.Box):
        raise EnvironmentMismatchError(
            f"{name}: actions are {action_space}, and this policy chooses one of {action_dim}; choose the environment "
            "that it was trained in with env=ID"
        )
    if discrete and isinstance(action_space, gymnasium.spaces.Discrete):
        width = int(action_space.n)
    else:
        width = len(_action_bounds(name, action_space)[0])
    given = {VECTOR: NamedArray((observations,))} if isinstance(observations, int) else observations
    found = arrays_of(observation_space, name)
    taken = {
        key: given[key] if scales and key in given and given[key].scales(one) else one for key, one in found.items()
    }
    for what, wanted, has in (
        ("observations", in_words(dict(sorted(given.items()))), in_words(dict(sorted(taken.items())))),
        ("actions", f"{action_dim} numbers", f"{width} numbers"),
    ):
        if wanted != has:
            resized = [key for key, one in found.items() if key in given and given[key].differs_in_size(one)]
            raise EnvironmentMismatchError(
                f"{what} don't fit: {name} has {in_words(found) if what == 'observations' else has}, the dataset or "
                f"policy {wanted}; choose the environment that the data was recorded in with env=ID"
                + (_of_sizes(resized[0], found[resized[0]], scales) if resized and what == "observations" else "")
            )


def _of_sizes(key: str, image: NamedArray, scales: bool) -> str:
    """What to do about images of another size."""
    height, width = image.image_size[1:]
    if not scales:
        return f", or read the data with image_size=[{height},{width}]: who acts learns from {key!r} as it is shown"
    return f", or train with image_size=: a policy scales {key!r} where its data were scaled"


def check_actions(name: str, space: gymnasium.Space[Any]) -> int:
    """Width of an environment's actions; an EnvironmentMismatchError where they are no bounded vectors of numbers."""
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or space.shape[0] < 1:
        raise EnvironmentMismatchError(
            f"{name}: actions are {space}, and agents give vectors (a one-dimensional Box with a dimension or more) or "
            "one number of a choice: wrap the environment so that its actions are such a Box, or Discrete"
        )
    if space.dtype.kind != "f":
        raise EnvironmentMismatchError(
            f"{name}: actions are whole numbers ({space}), and agents give real ones: declare dtype=np.float32 and "
            "round inside the environment, or offer Discrete choices"
        )
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise EnvironmentMismatchError(
            f"{name}: its action space {space} has no finite bounds to scale a policy by: declare them, or bound it "
            f"from outside: {BOUND}"
        )
    return int(space.shape[0])


def _action_bounds(name: str, space: gymnasium.Space[Any]) -> tuple[Array, Array]:
    if isinstance(space, DISCRETE_SPACES):
        raise EnvironmentMismatchError(
            f"{name}: actions are discrete ({space}), and this algorithm chooses continuous ones; take one that learns "
            "discrete actions, such as ppo or dqn, or an environment with a Box action space"
        )
    check_actions(name, space)
    assert isinstance(space, gymnasium.spaces.Box)
    return space.low.astype(np.float32), space.high.astype(np.float32)


def make_env(env_id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """One environment by any id that `make_vec` takes, its Dict of vectors as one vector.

    Raises:
        ConfigError, EnvironmentMismatchError, MissingExtraError: as in `make_vec`.
    """
    base, options = _resolved(env_id, kwargs)
    if _is_single(base):
        return _make(base, options)
    found = None if make.scheme_of(base) is not None else make.object_of(base)
    made = None if found is None else make.made_of(found, base, 1, options)
    if isinstance(made, list):
        return _ready(made[0])
    from surefoot.envs.adapters.gym_in import adapt
    from surefoot.envs.adapters.gym_out import to_gymnasium

    return to_gymnasium(adapt(make_vec(base, 1, **options) if made is None else made))


def _make(env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """One environment with flat observations; gymnasium's many errors become ours."""
    name = _registered(env_id)
    spec = gymnasium.registry.get(name)
    if kwargs and spec is not None and spec.entry_point is not None:
        _refuse_arguments(spec, kwargs)
    try:
        with no_deprecations() if is_mujoco(name) else contextlib.nullcontext():
            env = suites.finished(gymnasium.make(name, disable_env_checker=True, **kwargs), name)
    except SurefootError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing_dependency(env_id, error) from error
    except gymnasium.error.UnregisteredEnv as error:
        raise ConfigError(f"unknown environment {env_id!r}; {_nearest_ids(name, env_id.rpartition(':')[0])}") from error
    except gymnasium.error.Error as error:  # malformed or deprecated id: gymnasium's sentence says what to do
        raise ConfigError(f"environment {env_id!r}: {_first_line(error)}") from error
    except ImportError as error:
        raise _missing_dependency(env_id, error) from error
    except Exception as error:
        hint = f"check its arguments {sorted(kwargs)}" if kwargs else "try gymnasium.make on it by itself"
        raise EnvironmentMismatchError(
            f"{env_id} fails when it is made ({type(error).__name__}: {_first_line(error)}); {hint}"
        ) from error
    return _ready(env)


def _ready(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """One environment as agents read it: choices as numbers from 0 on, masks observed, a Dict of vectors as one."""
    env = with_masks(numbered(env))
    return env if isinstance(env, MaskedObservation) else _flat(env)


def _flat(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Dict observations as one vector, in the order of `GOAL_KEYS` or, for other keys, alphabetical.

    A Dict with an image stays one.
    """
    space = env.observation_space
    if not isinstance(space, gymnasium.spaces.Dict) or any(is_image(part) for part in space.values()):
        return env
    goal = set(space.spaces) <= set(GOAL_KEYS)
    keys = [key for key in GOAL_KEYS if key in space.spaces] if goal else sorted(space.spaces)
    ordered = gymnasium.spaces.Dict([(key, space[key]) for key in keys])
    return gymnasium.wrappers.TransformObservation(
        env,
        lambda observation: gymnasium.spaces.flatten(ordered, observation),
        gymnasium.spaces.flatten_space(ordered),
    )


def _refuse_arguments(spec: gymnasium.envs.registration.EnvSpec, kwargs: Mapping[str, Any]) -> None:
    """Raise ConfigError for an argument that the class of an id does not take."""
    own = {key: value for key, value in kwargs.items() if key not in (make.LIMIT, "render_mode")}
    try:
        entry = spec.entry_point
        creator: Any = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    except Exception:  # gymnasium says it better when it makes one
        return
    make.refuse_unknown(spec.id, own, make.parameters_of(creator))
    if make.LIMIT in kwargs:
        make.steps_of(kwargs[make.LIMIT], spec.id)


def _without_module(name: str) -> str:
    """A clause that says how an environment of this name is written which needs no module; else nothing."""
    native = PREFIX + name.lower().replace("_", "-")
    found = [one for one, known in ((name, gymnasium.registry), (native, native_names())) if one in known]
    return f"; without a module it is {found[0]}" if found else ""


def _missing_dependency(env_id: str, error: Exception) -> SurefootError:
    """The extra to install where it is one of ours, else gymnasium's own sentence."""
    for package in ("mujoco", "imageio"):
        if importlib.util.find_spec(package) is None and package in str(error).lower():
            return MissingExtraError(package, "mujoco", f"the environment {env_id}")
    return EnvironmentMismatchError(f"{env_id} can't be made here: {_first_line(error)}")


def _nearest_ids(name: str, module: str) -> str:
    if module and name.isidentifier():
        there = make.makers_in(module)
        near = difflib.get_close_matches(name, there, n=3) or there[:6]
        return f"{module} registers no such id, and has {', '.join(near) if near else 'no class or function'}"
    words = {str(known).lower(): str(known) for known in gymnasium.registry}
    words |= {word: known for known in native_names() for word in (known, known.removeprefix(PREFIX))}
    words |= {known: known for known in gantry_ids()}
    close = dict.fromkeys(words[word] for word in difflib.get_close_matches(name.lower(), words, n=6, cutoff=0.5))
    nearest = f"the nearest registered ids are {', '.join(close)}" if close else "no registered id is near"
    return (
        f"{nearest}; an id that another package registers is written package:Id, and one that a "
        "script registers is known in that script alone"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]
