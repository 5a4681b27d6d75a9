"""Environments of device simulators by name: playground/NAME, brax/NAME, mjx/NAME or FILE, warp/NAME or FILE.

`mjx/module:Class` is a `PhysicsTask` of the user's own with an attribute `model`. Nothing of a simulator is imported
before one of its names is asked for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.envs.adapters.dlpack import PREALLOCATE, require
from surefoot.envs.adapters.pausing import PausableRows
from surefoot.envs.interface import Tensors
from surefoot.envs.names import device_scheme

STEPS = 1000
"""Time limit of brax's environments and of MJCF files where none is given."""
FILES = (".xml", ".mjcf", ".mjb")
JAX = ("playground", "brax", "mjx")
"""Schemes whose simulator runs on jax."""
PACKAGES = {
    "playground": ("playground", "mujoco-mjx", "jax"),
    "brax": ("brax", "jax"),
    "mjx": ("mujoco-mjx", "jax"),
    "warp": ("mujoco-warp", "warp-lang"),
}
"""Scheme -> packages whose versions its numbers depend on."""


def make_on_device(env_id: str, num_envs: int, tensors: Tensors = "torch", **options: Any) -> PausableRows:
    """`num_envs` rows of a device simulator's environment, behind the contract; evaluation can pause its rows.

    Args:
        env_id: with a scheme, as `envs.names.device_scheme` knows them.
        num_envs: rows N.
        tensors: "torch": tensors on the simulator's device; "numpy": arrays.
        options: of the environment: fields of a playground's configuration, arguments of brax's `get_environment`,
            `reward`, `substeps` and `noise` of an MJCF file; `max_episode_steps` of all.

    Raises:
        ConfigError: an unknown name or option (the message names the nearest), or an MJCF file without a reward.
        MissingExtraError: the simulator is not installed; the message names the extra.
        DeviceError: so many rows don't fit into the device's memory.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs}; a vector environment needs at least 1 row")
    scheme = device_scheme(env_id)
    if scheme is None:
        raise ConfigError(f"{env_id!r} has no scheme of a device simulator: {nearest(env_id, list(MAKERS))}")
    return MAKERS[scheme](env_id.partition("/")[2], num_envs, tensors=tensors, **options)


def _labelled(env: PausableRows, scheme: str, name: str) -> PausableRows:
    env.called = f"{scheme}/{name}"
    env.metadata = {**env.metadata, "simulator": simulator_of(scheme)}
    return env


def simulator_of(scheme: str) -> str:
    """Names and versions of what computes the physics, and where: "brax 0.14.2, jax 0.10.2 on cpu"."""
    versions = []
    for package in PACKAGES[scheme]:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{', '.join(versions)} on {torch_device(scheme)}"


def notes_on_device(env_id: str) -> list[str]:
    """What a run says of a device simulator's environment: on which device, and what memory it takes beside torch."""
    scheme = device_scheme(env_id)
    if scheme is None:
        return []
    found, taken = [f"{env_id}: {simulator_of(scheme)}"], os.environ.get(PREALLOCATE, "")
    if scheme in JAX and torch_device(scheme) == "cpu":
        found.append(f"{env_id}: jax computes on the CPU here, which is slow: physics of thousands of rows want a GPU")
    elif scheme in JAX and taken.lower() in ("false", "0"):
        found.append(f"jax takes the GPU's memory as it needs it, beside torch ({PREALLOCATE}={taken})")
    elif scheme in JAX:
        share = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")
        found.append(f"jax takes {share} of the GPU's memory at once, and torch has the rest ({PREALLOCATE}=false)")
    return found


def torch_device(scheme: str) -> str:
    """torch's name of the device that a simulator computes on."""
    if scheme not in JAX:
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"
    return {"gpu": "cuda"}.get(backend := str(require("jax", scheme).default_backend()), backend)


# -- the schemes -------------------------------------------------------------------------------------------


def playground(name: str, num_envs: int, *, tensors: Tensors = "torch", **options: Any) -> PausableRows:
    """`num_envs` rows of playground/NAME; options are fields of its configuration, `max_episode_steps` and `group`."""
    from surefoot.envs.adapters.brax import from_brax

    group = str(options.pop("group", "state"))
    if "max_episode_steps" in options:
        options["episode_length"] = options.pop("max_episode_steps")
    env, length = _loaded_playground(name, tuple(sorted(options.items())))
    device = torch_device("playground")
    made = from_brax(env, num_envs, episode_length=length, group=group, tensors=tensors, device=device)
    return _labelled(made, "playground", name)  # type: ignore[arg-type]  # a bare environment's rows can be paused


@functools.lru_cache(maxsize=8)  # compiled functions are kept by the environment
def _loaded_playground(name: str, changed: tuple[tuple[str, Any], ...]) -> tuple[Any, int]:
    registry = require("mujoco_playground", "playground").registry
    known = [str(one) for one in registry.ALL_ENVS]
    if name not in known:
        raise ConfigError(f"playground has no environment {name!r}: {nearest(name, known)}")
    config, options = registry.get_default_config(name), dict(changed)
    for key in options:
        if key not in config:
            raise ConfigError(f"playground/{name} has no option {key!r}: {nearest(key, list(config))}")
    if torch_device("playground") == "cpu" and config.get("impl", "jax") != "jax":
        options.setdefault("impl", "jax")  # Warp's kernels are compiled for minutes on a CPU, and run slower there
    env = registry.load(name, config_overrides=options)
    return env, int(options.get("episode_length", config.episode_length))


def brax(name: str, num_envs: int, *, tensors: Tensors = "torch", **options: Any) -> PausableRows:
    """`num_envs` rows of brax/NAME; options are arguments of its class, such as `backend`, and `max_episode_steps`."""
    from surefoot.envs.adapters.brax import from_brax

    length = int(options.pop("max_episode_steps", STEPS))
    env = _loaded_brax(name, tuple(sorted(options.items())))
    made = from_brax(env, num_envs, episode_length=length, tensors=tensors, device=torch_device("brax"))
    return _labelled(made, "brax", name)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=8)
def _loaded_brax(name: str, given: tuple[tuple[str, Any], ...]) -> Any:
    envs = require("brax.envs", "brax")
    known = [str(one) for one in envs._envs]
    if name not in known:
        raise ConfigError(f"brax has no environment {name!r}: {nearest(name, known)}")
    takes = inspect.signature(envs._envs[name].__init__).parameters
    for key, _ in given:
        if key not in takes and not any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            raise ConfigError(f"brax/{name} has no option {key!r}: {nearest(key, [k for k in takes if k != 'self'])}")
    return envs.get_environment(name, **dict(given))


def mjx(name: str, num_envs: int, *, tensors: Tensors = "torch", **options: Any) -> PausableRows:
    """`num_envs` rows of mjx/NAME, FILE or module:Class; options of a file are `reward`, `substeps` and `noise`."""
    for module in ("jax", "mujoco.mjx"):
        require(module, "MJX")
    from surefoot.envs.adapters.mjx import from_mjx

    model, task = _model_and_task("mjx", name, options)
    return _labelled(from_mjx(model, task, num_envs, torch_device("mjx"), tensors), "mjx", name)


def warp(name: str, num_envs: int, *, tensors: Tensors = "torch", **options: Any) -> PausableRows:
    """`num_envs` rows of warp/NAME, FILE or module:Class, as `mjx`."""
    for module in ("warp", "mujoco_warp"):
        require(module, "MuJoCo Warp")
    from surefoot.envs.adapters.mujoco_warp import from_mujoco_warp

    model, task = _model_and_task("warp", name, options)
    return _labelled(from_mujoco_warp(model, task, num_envs, torch_device("warp"), tensors), "warp", name)


def _model_and_task(scheme: str, name: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """A `mujoco.MjModel` and a `PhysicsTask` of what follows mjx/ or warp/."""
    from surefoot.envs.adapters.torch_tasks import RewardedModel, model_of, task_of
    from surefoot.envs.mujoco.library import compile_model

    limit, task = options.pop("max_episode_steps", None), None
    if name.endswith(FILES):
        takes = {"reward": None, "substeps": 1, "noise": 0.01}
        for key in options:
            if key not in takes:
                raise ConfigError(f"{scheme}/{name} has no option {key!r}: {nearest(key, list(takes))}")
        if not pathlib.Path(name).is_file():
            raise ConfigError(f"{scheme}/{name}: there is no file {name}; the path counts from {pathlib.Path.cwd()}")
        given = takes | options
        if given["reward"] is None:
            raise ConfigError(
                f"{scheme}/{name}: an MJCF file says nothing of rewards: give env_options.reward=module:function, or "
                f"write a PhysicsTask with a `model` and train in {scheme}/module:Class (docs/device_simulators.md)"
            )
        model, steps = compile_model(name), STEPS if limit is None else int(limit)
        reward = given["reward"] if callable(given["reward"]) else attribute(str(given["reward"]), "the reward")
        return model, RewardedModel(model, reward, int(given["substeps"]), float(given["noise"]), steps)
    if ":" in name:
        model, task = _own_task(scheme, name, options)
    else:
        if options:
            raise ConfigError(f"{scheme}/{name} takes no {', '.join(sorted(options))}: only max_episode_steps")
        model = compile_model(model_of(name))
        task = task_of(name, model)
    if limit is not None:
        task.max_steps = int(limit)
    return model, task


def _own_task(scheme: str, name: str, options: dict[str, Any]) -> tuple[Any, Any]:
    from surefoot.envs.adapters.physics import PhysicsTask
    from surefoot.envs.mujoco.library import compile_model

    made = attribute(name, "the task")
    try:
        made = made(**options) if callable(made) else made
    except Exception as error:
        raise ConfigError(
            f"{scheme}/{name} fails when it is made ({type(error).__name__}: {error}); it is called with the "
            f"environment's options {sorted(options)}"
        ) from error
    if not isinstance(made, PhysicsTask) or not hasattr(made, "model"):
        raise ConfigError(
            f"{scheme}/{name} is no surefoot.envs.adapters.PhysicsTask with an attribute `model`, the path of an MJCF "
            f"file or its text: it gives a {type(made).__name__}"
        )
    return compile_model(made.model), made


def attribute(name: str, what: str) -> Any:
    """What `module:attribute` names.

    Raises:
        ConfigError: the module can't be imported, or has no such attribute.
    """
    module, _, found = name.rpartition(":")
    try:
        return getattr(importlib.import_module(module), found)
    except Exception as error:
        raise ConfigError(
            f"{what} {name!r} can't be imported ({type(error).__name__}: {error}); write module:Name, and put the "
            "module's folder on PYTHONPATH"
        ) from error


MAKERS: Mapping[str, Callable[..., PausableRows]] = {
    "playground": playground,
    "brax": brax,
    "mjx": mjx,
    "warp": warp,
}
"""Scheme -> what makes its environments; `envs.names.DEVICE_SCHEMES` lists them."""
