"""What can be reported on the command line: structured configs from the algorithms' dataclasses, presets, checks.

A default has one home: the algorithm's dataclass, `plan.Settings`, or `TrainConfig` here. Presets hold only what
differs. Of an option's possible sources the later wins: dataclass, `algo.preset`, `preset`, the command line.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from surefoot.cli.support import file_overrides as received
from surefoot.cli.support.grammar import Parsed, hydra_errors, parse, typed
from surefoot.cli.support.presets import is_own, read_preset
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.options import EARLIER_SPELLINGS, declared, option
from surefoot.core.engine.agent import Agent
from surefoot.envs.make import LIMIT, with_options
from surefoot.runs.algorithms import check_parts
from surefoot.runs.plan import Settings, agent_class, folder_name
from surefoot.runs.trackers.options import check_options
from surefoot.runs.trust import allow

PRIMARY = "surefoot_train"
"""Name of the primary config in Hydra's store."""
DEFAULT_ALGORITHM = "iql"
DEFAULT_DATASET = "native/quadrotor-2d-mixed"
"""The dataset of algorithms that need one, where neither it nor another environment is named."""
DEFAULT_ENVIRONMENT = DEFAULT_DATASET.removesuffix("-mixed")
VERSION_BASE = "1.3"
"""The Hydra whose behaviour we rely on (`hydra.main`'s version_base)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """What `surefoot train` takes beside `algo` and its options."""

    dataset: str | None = option(
        None, "a path, an embedded name, d4rl/<id> or minari/<id>; online algorithms need none"
    )
    env: str | None = option(
        None, "id, module:Id, module:function or FILE.xml; none: no simulator; not given: the dataset's"
    )
    env_options: Any = option(None, "arguments of the environment, each as env_options.NAME=VALUE")
    max_episode_steps: int | None = option(
        None, "time limit of the environment's episodes; not given: its own", range="[1, 1e9]"
    )
    envs: int | None = option(None, "environments that each seed acts in: alias of algo.num_envs", range="[1, 1e7]")
    action_low: Any = None
    action_high: Any = None
    seeds: Any = option(3, "how many (0, 1, ...), or which: [0,5]")
    preset: str | None = option(
        None, "settings of a domain (surefoot train --help all); an algorithm's own: algo.preset="
    )
    out: str | None = option(None, "run folder; not given: runs/<algo>-<dataset or env>-<time>")
    logger: str | None = option(None, "tensorboard, wandb or mlflow, beside the run folder's own metrics.jsonl")
    logger_options: Any = option(
        None, "of the logger, each as logger_options.NAME=VALUE, as in logger_options.project=arms"
    )
    listener: str | None = option(None, "module:function called with each event; False ends training")

    def __post_init__(self) -> None:
        """Check these too."""
        super().__post_init__()
        object.__setattr__(self, "logger_options", check_options(self.logger, self.logger_options) or None)


LOGGER_OPTION = "logger_options."
"""Beginning of the keys that are options of a logger."""
_NAMED = re.compile(rf"({re.escape(received.ARGUMENT)}|{re.escape(LOGGER_OPTION)})[^\W\d]\w*")
FIELDS: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(TrainConfig))


@dataclasses.dataclass(frozen=True)
class Request:
    """A checked `surefoot train` command: everything a plan needs except what the dataset decides."""

    algorithm: str
    options: dict[str, Any]  # of the algorithm, all of them, as JSON values
    fields: dict[str, Any]  # of TrainConfig, seeds as a tuple

    @property
    def label(self) -> str:
        """The algorithm, and the dataset or else the environment, fit for a folder's name."""
        return folder_name(self.algorithm, self.fields["dataset"] or self.fields["env"])


@functools.cache
def register() -> None:
    """Put the primary config and our launchers into Hydra's store, for sweeps; types are checked by `resolve`."""
    from hydra.core.config_store import ConfigStore

    from surefoot.cli.support import launchers

    launchers.register()
    node = {"defaults": ["_self_", {"algo": DEFAULT_ALGORITHM}], "algo": None, **_defaults(TrainConfig)}
    ConfigStore.instance().store(name=PRIMARY, node=node, provider="surefoot")


def _defaults(kind: type) -> dict[str, Any]:
    """The values of a dataclass of options, tuples as lists."""
    return {
        name: list(one.default) if isinstance(one.default, tuple) else one.default
        for name, one in declared(kind).items()
    }


def algorithms_in(parsed: Sequence[Parsed]) -> list[str]:
    """The algorithms that overrides name; Hydra writes the values of a sweep with a backslash before a colon."""
    return [value.replace("\\:", ":") for item in parsed if item.key == "algo" for value in item.values]


def register_algorithms(names: Iterable[str]) -> None:
    """Put the options of algorithms (group `algo`), the default one among them, into Hydra's store.

    Not of all there are, unless they are asked for: each command copies the whole store.

    Args:
        names: of our algorithms, or `module:Class` of the user's own, as they stand on the command line.

    Raises:
        ConfigError: there is no such algorithm.
    """
    for name in (DEFAULT_ALGORITHM, *names):
        allow(name)
        kind: Any = agent_class(name)  # mypy takes no class for hashable
        _register_algorithm(kind, name)


@functools.cache
def _register_algorithm(kind: type[Agent], name: str) -> None:
    from hydra.core.config_store import ConfigStore

    node = {"name": name, "preset": None, **_defaults(kind.Config)}
    ConfigStore.instance().store(group="algo", name=name, node=node, provider="surefoot")


def compose(overrides: Sequence[str], trust: bool = False) -> Request:
    """The request that overrides make, by Hydra's grammar alone: nothing of Hydra's own state is touched.

    Args:
        overrides: what the user says.
        trust: let a preset of one's own, which is a file, name modules.

    Raises:
        ConfigError: anything unknown or out of range, in one sentence.
    """
    parsed = check_overrides(overrides, False)
    names = [item.value for item in parsed if item.key == "algo"] or [DEFAULT_ALGORITHM]
    if len(names) > 1:
        raise ConfigError(
            f"algo is given twice, as {names[0]} and {names[1]}: give it once", field="algo", code="conflict"
        )
    kind: Any = agent_class(names[0])
    values = _defaults(TrainConfig) | {"algo": {"name": names[0], "preset": None, **_defaults(kind.Config)}}
    for item in parsed:
        first, dot, rest = item.key.partition(".")
        if dot:
            values[first] = {**(values[first] or {}), rest: item.value}
        elif item.key != "algo":
            values[first] = item.value
    with hydra_errors():
        return resolve(OmegaConf.create(values), overrides, trust)


def resolve(cfg: DictConfig, overrides: Sequence[str], trust: bool = False) -> Request:
    """Apply presets beneath what the command line says, and check everything.

    Args:
        cfg: what Hydra composed from `overrides`.
        overrides: needed to know which options were given and which are defaults.
        trust: let a preset of one's own, which is a file, name modules.

    Raises:
        ConfigError: unknown preset or value out of range.
    """
    with hydra_errors():
        values = typing.cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
    algo = values.pop("algo")
    name = algo["name"]
    allow(name)  # for the user names it
    agent = agent_class(name)
    stated = {override.key for override in parse(overrides)}
    for given, kind in ((values, TrainConfig), (algo, agent.Config)):
        given.update({key: typed(one.hint, given[key]) for key, one in declared(kind).items()})
    run_preset, preset = read_preset(values["preset"], name) if values["preset"] else ({}, {})
    if values["preset"] and is_own(values["preset"]):
        received.check_preset(run_preset, preset, stated, values["preset"], trust)
    for key in run_preset:
        if key not in FIELDS:
            raise ConfigError(f"{values['preset']}: run has no {key!r}: {nearest(key, list(FIELDS))}")
    arguments = {**(run_preset.get("env_options") or {}), **(values["env_options"] or {})}
    values |= {key: value for key, value in run_preset.items() if key not in stated} | {"env_options": arguments}
    options = {key: value for key, value in algo.items() if f"algo.{key}" in stated and key not in ("name", "preset")}
    if algo["preset"] is not None:
        options["preset"] = algo["preset"]
    if values["envs"] is not None:
        _check_envs(agent, stated)
        options = {"num_envs": values["envs"], **options}
    config = configure(agent, {**preset, **options})
    fields = {key: values[key] for key in FIELDS}
    fields = dataclasses.asdict(TrainConfig(**fields))
    fields |= {"env": _with_arguments(fields), "env_options": None, "max_episode_steps": None}
    if fields["collectors"] is not None and values["envs"] is None and "algo.num_envs" not in stated:
        config = _environments_for(int(fields["workers"]), agent, config, {**preset, **options})
    _settle_data(agent, config, fields)
    return Request(name, config, fields)


def _check_envs(agent: type[Agent], stated: Collection[str]) -> None:
    """Refuse `envs=` for an algorithm that acts in one environment or in none, and beside its other name."""
    if "num_envs" not in option_names(agent):
        reason = "acts in one environment" if agent.requires.online else "learns from data alone"
        raise ConfigError(f"{agent.name} {reason}: leave out envs=, the number of environments to act in at once")
    if {"envs", "algo.num_envs"} <= set(stated):
        raise ConfigError("envs= and algo.num_envs= are one option by two names: give one of them")


def _settle_data(agent: type[Agent], config: Mapping[str, Any], fields: dict[str, Any]) -> None:
    """Fill in the dataset and the environment that are not named, and refuse what doesn't go with the algorithm."""
    if fields["dataset"] is None and agent.data_with(config) == "required":
        if str(fields["env"]).lower() not in ("none", DEFAULT_ENVIRONMENT):
            raise ConfigError(
                f"{agent.name} learns from data, and env={fields['env']} says nothing of which: give dataset=, a file "
                "or a name (`surefoot datasets list`)"
            )
        fields["dataset"] = DEFAULT_DATASET
    if not agent.requires.policy and fields["env"] is None:
        fields["env"] = "none"  # there is nothing to evaluate
    environment = None if str(fields["env"]).lower() == "none" else fields["env"]
    if agent.requires.online and fields["dataset"] is not None and fields["env"] is None:
        environment = "the dataset's"
    check_parts(agent, config, fields["dataset"], environment, fields["gap"])


def _with_arguments(fields: Mapping[str, Any]) -> str | None:
    """The environment with the arguments that are given, as one name.

    Raises:
        ConfigError: there are arguments, and no environment is named.
    """
    env, given = fields["env"], dict(fields["env_options"] or {})
    if fields["max_episode_steps"] is not None:
        given[LIMIT] = fields["max_episode_steps"]
    if not given:
        return None if env is None else str(env)
    if env is None or str(env).lower() == "none":
        first = next(iter(given))
        stated = first if first == LIMIT else f"{received.ARGUMENT}{first}"
        raise ConfigError(f"{stated} is an argument of an environment, and none is named: give env= too")
    return with_options(str(env), given)


def _environments_for(
    workers: int, agent: type[Agent], config: dict[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The options with as many environments as collectors can share equally: the fewest that are not below the usual.

    Args:
        workers: how many collectors.
        agent: the algorithm.
        config: all its options.
        options: those that were given.
    """
    usual = config.get("num_envs")
    if usual is None or usual % workers == 0:
        return config
    return configure(agent, {**options, "num_envs": -(-usual // workers) * workers})


def configure(agent: type[Agent], options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of an algorithm as JSON values, some of them given.

    Raises:
        ConfigError: unknown option, wrong type or value out of range.
    """
    ready = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    config = agent.configure(**ready)
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(config).items()
    }


def for_hydra(overrides: Sequence[str]) -> list[str]:
    """Overrides as Hydra takes them: an environment's arguments and a logger's options are no fields that it knows."""
    return [f"+{text}" if text.startswith((received.ARGUMENT, LOGGER_OPTION)) else text for text in overrides]


def respelled(overrides: Sequence[str]) -> list[str]:
    """Overrides in which options of an algorithm have their present names, where they had others in versions to 0.3."""
    keys = [text.partition("=")[0] for text in overrides]
    if not any(key.removeprefix("algo.") in EARLIER_SPELLINGS for key in keys):
        return list(overrides)
    names = algorithms_in(parse(overrides)) or [DEFAULT_ALGORITHM]
    known = {option for name in names for option in option_names(agent_class(name))}
    found = []
    for key, text in zip(keys, overrides, strict=True):
        option = key.removeprefix("algo.")
        now = EARLIER_SPELLINGS.get(option, option)
        found.append(
            f"algo.{now}{text[len(key) :]}" if key != option and option not in known and now in known else text
        )
    return found


def check_overrides(overrides: Sequence[str], multirun: bool, some: bool = False) -> list[Parsed]:
    """Refuse unknown names before Hydra sees them, since it does not know which are nearest.

    Args:
        overrides: what the user says.
        multirun: values may be lists, one for each run.
        some: let an option pass that one of the listed algorithms has and another lacks.

    Returns:
        The overrides, parsed.

    Raises:
        ConfigError: names the override.
    """
    parsed = parse(overrides)
    for item in parsed:
        if item.changes_keys:
            raise ConfigError(f"{item.text}: options can't be added or removed, only set, as in steps=1000")
        if item.sweep and not multirun and item.key == "seeds":
            listed = item.text.partition("=")[2]
            raise ConfigError(f"{item.text}: write a list of seeds as seeds=[{listed}], or how many, as in seeds=3")
        if item.sweep and not multirun:
            raise ConfigError(
                f"{item.text} lists several values: add -m to train once for each, or write a list as "
                f"{item.key}=[{item.text.partition('=')[2]}], or quote one text"
            )
    names = algorithms_in(parsed) or [DEFAULT_ALGORITHM]
    register_algorithms(names)
    for item in parsed:
        having = [name for name in names if item.key.removeprefix("algo.") in option_names(agent_class(name))]
        _check_key(item.key, having or names if some else names, multirun)
    return parsed


def _check_key(key: str, names: Sequence[str], multirun: bool) -> None:
    """One override's key: a field, an option of every algorithm that is trained, or Hydra's own."""
    if key == "env_options":
        raise ConfigError("env_options: give each argument of the environment by its name, as in env_options.gain=2")
    if key == "logger_options":
        raise ConfigError(
            "logger_options: give each option of the logger by its name, as in logger_options.project=arms"
        )
    if key == "algo" or key in FIELDS or _NAMED.fullmatch(key):
        return
    if key.split(".")[0].split("/")[0] == "hydra":
        if not multirun:
            raise ConfigError(f"{key}: settings of Hydra's own only matter with -m")
        return
    for name in names:
        known = [f"algo.{option}" for option in ("preset", *option_names(agent_class(name)))]
        if key.startswith("algo.") and key not in known:
            if (plain := key.removeprefix("algo.")) in FIELDS:
                raise ConfigError(f"{name} has no option {key!r}: {plain} is of the run; write {plain}= without algo.")
            raise ConfigError(f"{name} has no option {key!r}: {agent_class(name).lacks(plain) or nearest(key, known)}")
        if key == "algo.planned_steps" and hasattr(agent_class(name), "plan"):  # streams, whose plan is the run's
            raise ConfigError(f"{key}: a run plans for its own steps; set steps= and leave it out")
    if not key.startswith("algo."):
        options = [f"algo.{option}" for name in names for option in option_names(agent_class(name))]
        spelt = f"algo.{key}"
        if spelt in options:
            raise ConfigError(
                f"unknown option {key!r}: did you mean {spelt!r}? Options of an algorithm begin with algo."
            )
        raise ConfigError(f"unknown option {key!r}: {nearest(key, ['algo', *FIELDS])}")


def option_names(agent: type[Agent]) -> list[str]:
    """The fields of an algorithm's config."""
    return [field.name for field in dataclasses.fields(agent.Config)]


def described(config: type) -> list[dict[str, Any]]:
    """Name, default and meaning of each option of a dataclass; the meaning ends with the range, and with choices."""
    return [
        {"name": name, "default": one.default, "what": one.option.sentence} for name, one in declared(config).items()
    ]
