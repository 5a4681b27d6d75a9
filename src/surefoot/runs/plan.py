"""`Plan`: everything that decides what a run computes, as plain values that a run folder keeps."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.base.options import Options, declared, option, respelled
from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.capture import STEPS_PER_GRAPH, check_steps_per_graph
from surefoot.data.cameras import cameras_of
from surefoot.data.frame_cache import size_of
from surefoot.envs.curriculum import TEACHERS
from surefoot.envs.names import OBJECTIVE
from surefoot.runs.algorithms import ALGORITHMS, AUTO
from surefoot.runs.trust import FUNCTIONS, FunctionName, imported, require_trust

TRAINING_EVALUATION_SEED, FINAL_EVALUATION_SEED = 0, 1
"""Initial states of evaluations during training, and of the final one."""


MOST_SEEDS = 10_000
SHAPINGS = ("none", "value", "negative_value")
"""As `envs.objectives.wrapper` has them, without its imports."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Options):
    """What a run takes beside algorithm, dataset and environment: the one home of these defaults and their checks.

    Raises:
        ConfigError: a value out of range.
    """

    owner = ""
    steps: int = option(
        100_000,
        "gradient steps, or steps in the environment where the algorithm acts; for each seed",
        range="[1, 1e12]",
    )
    seeds: tuple[int, ...] = option((0, 1, 2), "seeds to train; also given as how many (0, 1, ...)")
    batch_size: int = option(256, "transitions per step", range="[1, 1e7]")
    episodes: int = option(50, "episodes of the final evaluation, per seed", range="[1, 1e7]")
    evaluate_every: int = option(
        0, "steps between evaluations, each with a checkpoint; 0: a tenth of steps", range="[0, 1e12]"
    )
    checkpoint_every: int = option(
        0, "steps between checkpoints besides those after evaluations; 0: none besides", range="[0, 1e12]"
    )
    evaluate_episodes: int = option(10, "episodes of the evaluations while it trains, per seed", range="[1, 1e7]")
    keep_best: bool = option(False, "keep the policy of the best of these evaluations, measured on other episodes")
    device: str = option(
        "auto", "auto, cpu or cuda; auto takes a GPU where there is one", choices=("auto", "cpu", "cuda")
    )
    strict: bool = option(False, "refuse oddities in the data that are otherwise counted and reported")
    view: str = option(
        "corrected", "corrected, or d4rl for the rows of D4RL's qlearning_dataset", choices=("corrected", "d4rl")
    )
    image_size: Any = option(
        None, "height and width that the dataset's pictures are scaled to: 96, or [96,128]; null: as they are"
    )
    cameras: Any = option(None, "those of the dataset's cameras that are read, as [top,wrist]; null: all")
    init: str | None = option(None, "run folder whose trained networks are the start")
    reward: str | None = option(
        None, "module:function that rewards the dataset's steps, or a run of algo=classifier or preferences"
    )
    gap: str | None = option(None, "perturbed dynamics (training only), as gravity2")
    starts: str | None = option(None, "first episodes start from it: .npz, run folder, data")
    starts_until: int = option(100_000, "steps of each seed with such starts", range="[1, 1e12]")
    starts_clusters: int = option(6, "clusters of values drawn alike; 1: none", range="[1, 1000]")
    starts_truncate: int = option(100, "steps of such an episode; 0: as others", range="[0, 1e7]")
    vary: str | None = option(None, "constants that episodes draw: mass=0.5:2,gravity=8:12")
    vary_cells: int = option(4, "parts of each range: a curriculum's tasks", range="[1, 100]")
    curriculum: str = option("uniform", "uniform, progress or improvement: who draws these", choices=tuple(TEACHERS))
    objective: str | None = option(
        None,
        "what is wanted in place of the reward: a formula, as 'F(a & F b) & G !c', or a reward machine's .json file",
    )
    labels: str | None = option(None, "module:function that says which of the objective's propositions hold in a step")
    shaping: str = option(
        "none",
        "potentials of the objective's states in training rewards: their values, or these less than 0 as in "
        "Toro Icarte's code",
        choices=SHAPINGS,
    )
    kernels: bool = option(True, "networks and updates in the native module, on a CPU; false: plain PyTorch")
    compiled: bool = option(False, "compile the training step with torch.compile")
    mixed_precision: bool = option(False, "bfloat16 where it is safe")
    steps_per_graph: int = option(STEPS_PER_GRAPH, "on a GPU: training steps that are one launch; 1, 2, 4, 8, 16 or 32")
    tf32: bool = option(
        False, "on a GPU: matrix products of numbers rounded to 10 bits of fraction; false: float32 throughout"
    )
    action_low: tuple[float, ...] | None = option(
        None, "lowest action without a simulator, one for all or for each; with action_high="
    )
    action_high: tuple[float, ...] | None = option(None, "highest action, likewise; neither: as in the data")
    jacobian_penalty: float = option(
        0.0, "weight of |d mean action / d observation|^2 in the policy's loss: smoother actions", range=">= 0"
    )
    collectors: str | None = option(
        None, "who acts for one learner: processes or ray; null: the learner itself", choices=("processes", "ray")
    )
    workers: int = option(1, "collectors of each seed, which share its environments", range="[1, 1e5]")
    staleness: int = option(0, "maximum policy lag; above 0 collectors act while the learner learns", range="[0, 100]")
    collect_steps: int = option(
        32, "steps of each environment by one policy, where collectors fill a replay buffer", range="[1, 1e6]"
    )
    collect: str = option(
        "steps",
        "what a collector does by one policy: collect_steps of each environment, or an episode",
        choices=("steps", "episode"),
    )
    learners: int = option(
        1, "processes that share each batch of a seed and average their gradients", range="[1, 1024]"
    )
    patience: float = option(
        600.0, "seconds that one call of an environment may take before the run stops; 0: for ever", range=">= 0"
    )

    def __post_init__(self) -> None:
        """Check everything; `seeds` becomes a tuple."""
        object.__setattr__(self, "seeds", seeds_of(self.seeds))
        for name, checked in (("image_size", size_of), ("cameras", cameras_of)):
            value = getattr(self, name)
            object.__setattr__(self, name, checked(list(value) if isinstance(value, tuple | list) else value))
        self._check_range()
        super().__post_init__()
        check_steps_per_graph(self.steps_per_graph)
        for name, usual in (("workers", 1), ("staleness", 0), ("collect", "steps")):
            if self.collectors is None and getattr(self, name) != usual:
                raise ConfigError(
                    f"{name}={getattr(self, name)}: who acts is not given: add collectors=processes or ray",
                    field=name,
                    code="conflict",
                )

        self._check_tasks()

    def _check_tasks(self) -> None:
        """Refuse settings of starts, constants and curricula where there are none."""
        starts = ("starts_until", "starts_clusters", "starts_truncate")
        wanted = {
            name: (self.starts, "what episodes start from is not given: add starts=FILE or RUN") for name in starts
        }
        wanted["vary_cells"] = (self.vary, "what varies is not given: add vary=NAME=LOW:HIGH")
        wanted["curriculum"] = (self.starts or self.vary, "there are no tasks to choose among: add vary= or starts=")
        for name, (given, words) in wanted.items():
            if given is None and getattr(self, name) != declared(Settings)[name].default:
                raise ConfigError(f"{name}={getattr(self, name)}: {words}", field=name, code="conflict")
        if self.curriculum != "uniform" and self.starts is not None and self.vary is not None:
            raise ConfigError(
                f"curriculum={self.curriculum}: chooses among cells of vary= or among clusters of starts=, and both "
                "are given: leave out one of them, or take curriculum=uniform",
                field="curriculum",
                code="conflict",
            )

    def _check_range(self) -> None:
        """Make the actions' range two tuples, or nothing of both."""
        for name in ("action_low", "action_high"):
            value = getattr(self, name)
            given = None if value is None else list(value) if isinstance(value, list | tuple) else [value]
            if given is not None:
                whole = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in given)
                if not whole or not given:
                    raise ConfigError(
                        f"{name}={value!r}: must be a finite number, or a list of one for each action, as [-0.4,0]",
                        field=name,
                        code="type",
                    )
                object.__setattr__(self, name, tuple(float(v) for v in given))
        if (self.action_low is None) != (self.action_high is None):
            name, other = ("action_low", "action_high") if self.action_high is None else ("action_high", "action_low")
            raise ConfigError(
                f"{name}= is given without {other}=: give both, the ends of the actuators' range",
                field=name,
                code="missing",
            )


READING = ("strict", "view", "image_size", "cameras")
"""Settings that say how a dataset is read."""
SHARED: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(Settings))


@dataclasses.dataclass(frozen=True)
class Plan(Settings):
    """A training run. Two runs of one plan on one machine give the same numbers."""

    algorithm: str  # name, or module:Class of an agent of the user's own
    config: dict[str, Any]  # every option of the algorithm, resolved
    dataset: str | None = None  # path or catalogue id, as the user gave it; None: the algorithm needs none
    environment: str | None = None  # gymnasium id, or None: no simulator

    def __post_init__(self) -> None:
        """Check everything; an objective becomes part of the environment's name, so that all who make it have it.

        Raises:
            ConfigError: an objective without environment or labels, or shaping without objective.
        """
        super().__post_init__()
        if self.objective is not None:
            from surefoot.envs.objectives.named import named

            if self.environment is None:
                raise ConfigError(
                    "objective= is of an environment, and none is named: give env=, or relabel the data by "
                    "`surefoot datasets objective`",
                    field="objective",
                    code="missing",
                )
            object.__setattr__(self, "environment", named(self.environment, self.objective, self.labels))
            object.__setattr__(self, "objective", None)
            object.__setattr__(self, "labels", None)
        for name, usual in (("labels", None), ("shaping", "none")):
            value = getattr(self, name)
            if value != usual and not (name == "shaping" and str(self.environment).startswith(OBJECTIVE)):
                raise ConfigError(f"{name}={value}: is of an objective: add objective=", field=name, code="conflict")

    @property
    def reading(self) -> dict[str, Any]:
        """How the dataset is read: options of `load`."""
        return {name: getattr(self, name) for name in READING}

    @property
    def interval(self) -> int:
        """Steps between evaluations, each with a checkpoint."""
        return self.evaluate_every or max(1, self.steps // 10)

    @property
    def label(self) -> str:
        """The algorithm, and the dataset or else the environment, fit for a folder's name."""
        return folder_name(self.algorithm, self.dataset or self.environment)

    @property
    def evaluates(self) -> bool:
        """Whether there are policies to evaluate, and an environment for it."""
        return self.environment is not None and agent_class(self.algorithm).requires.policy

    @property
    def cost_limit(self) -> float | None:
        """What an episode's summed cost should keep to, where the algorithm has a `cost_limit`."""
        limit = self.config.get("cost_limit")
        return None if limit is None else float(limit)

    @property
    def imports(self) -> tuple[str, ...]:
        """Names that may need trust, since to build its agents follows them."""
        return (self.algorithm, *self.functions.values())

    @property
    def functions(self) -> dict[str, FunctionName]:
        """Option -> what it names, which may be a function in a module."""
        words = {"reward": self.reward, **{f"algo.{name}": self.config.get(name) for name in FUNCTIONS}}
        return {option: FunctionName(word) for option, word in words.items() if isinstance(word, str)}

    def agent(self, spec: Spec) -> Agent:
        """An agent of this plan; which weights it has does not matter until `Agent.fresh` draws them."""
        kind = agent_class(self.algorithm)
        for name, word in self.functions.items():
            require_trust(word, f"the option {name}")
        config = kind.configure(**options_from_json(kind, self.config))
        if getattr(spec, "team", None) is not None and hasattr(
            config, "num_envs"
        ):  # the plan counts environments, loops count rows
            config = dataclasses.replace(config, num_envs=config.num_envs * spec.agents)
        return kind(spec, config)

    def resolved(self, agent: Agent) -> Plan:
        """The plan with every option as the agent that it made has it; `num_envs` counts environments, not agents."""
        config = dataclasses.asdict(agent.config)
        if "num_envs" in config:
            config["num_envs"] //= agent.environment_spec.agents
        return dataclasses.replace(self, config=config)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        """The plan that `to_json` wrote; raises ConfigError where fields are missing or unknown."""
        known = {field.name for field in dataclasses.fields(cls)}
        odd = sorted(set(value) - known)
        if odd:
            raise ConfigError(f"a plan has no field {odd[0]!r}; {nearest(odd[0], sorted(known))}")
        try:
            return cls(**{**value, "seeds": tuple(value.get("seeds", (0,)))})
        except TypeError as error:
            raise ConfigError(f"the plan is incomplete: {error}") from error


def as_made(plan: Plan, kind: type[Agent] | None = None) -> Plan:
    """A run folder's plan with the options that it lacks because an earlier version made it, as they were then.

    Args:
        plan: of the folder, whose options are all those that there were when it was made.
        kind: the plan's algorithm; needed only of one that is none of surefoot's.
    """
    kind = kind or ALGORITHMS.get(plan.algorithm)
    if kind is None:
        return plan
    options = respelled(plan.config, declared(kind.Config))
    return dataclasses.replace(plan, config={**kind.earlier, **options})


def seeds_of(value: Any) -> tuple[int, ...]:
    """A count or a list of seeds as a tuple of seeds.

    >>> seeds_of(3), seeds_of([0, 5])
    ((0, 1, 2), (0, 5))
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_SEEDS:
            raise ConfigError(f"seeds={value}: train at least 1 seed, and at most {MOST_SEEDS:,}")
        return tuple(range(value))
    whole = isinstance(value, list | tuple) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    if not whole or not value or min(value) < 0 or max(value) >= 2**63 or len(set(value)) != len(value):
        raise ConfigError(
            f"seeds={value}: give a count, as in seeds=3, or different numbers from 0 on, as in seeds=[0,5]"
        )
    if len(value) > MOST_SEEDS:
        raise ConfigError(f"seeds are {len(value):,}; train at most {MOST_SEEDS:,} at once")
    return tuple(value)


def folder_name(algorithm: str, where: str | None) -> str:
    """An algorithm and its dataset or environment as one name fit for a folder.

    >>> folder_name("my.module:Agent", "native/pendulum"), folder_name("bc", "/data/hop (1).hdf5")
    ('Agent-pendulum', 'bc-hop-1')
    """
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", pathlib.Path(where or "data").stem).strip("-.")[:60]
    return f"{algorithm.split(':')[-1]}-{stem or 'data'}"


def agent_class(name: str) -> type[Agent]:
    """The agent of this name, or of `module:Class`.

    Raises:
        ConfigError: there is none, or a file named its module and the user has not stated that he trusts it.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if ":" in name:
        require_trust(name, "the algorithm")
        found = imported(name, f"the agent {name!r}")
        if isinstance(found, type) and issubclass(found, Agent):
            return found
        raise ConfigError(f"{name} is not a surefoot.core.engine.agent.Agent")
    if name == AUTO:
        raise ConfigError(
            f"{AUTO} is no algorithm but a choice among several, which `surefoot train algo={AUTO} dataset=FILE` makes "
            "by itself, one dataset at a time; name an algorithm here"
        )
    raise ConfigError(f"unknown algorithm {name!r}: {nearest(name, [*ALGORITHMS, AUTO])}")


def preset_name(algorithm: str, config: Mapping[str, Any]) -> str | None:
    """The preset of an algorithm that a config has, where the algorithm has several to tell apart.

    It is the one whose values the config has in every option that any of the presets sets; options that none sets, such
    as `cost_limit`, don't count, and one that a config does not have, for it is older, has its default. None where no
    preset fits, or more than one.
    """
    kind = agent_class(algorithm)
    if len(kind.PRESETS) < 2:
        return None
    told_apart = {option for options in kind.PRESETS.values() for option in options}
    usual = {option: getattr(kind.configure(), option) for option in told_apart}
    given = usual | options_from_json(kind, {option: config[option] for option in told_apart if option in config})
    fitting = [name for name, options in kind.PRESETS.items() if {**usual, **options} == given]
    return fitting[0] if len(fitting) == 1 else None


def told_options(algorithm: str, config: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """What tables say of a config: its preset, where it has one, and the options that are not the preset's or default.

    The preset whose values are the defaults is named only where no option was changed.
    """
    kind, preset = agent_class(algorithm), preset_name(algorithm, config)
    usual = dataclasses.asdict(kind.configure(preset=preset))
    given = options_from_json(kind, dict(config))
    changed = {name: value for name, value in config.items() if name in usual and given[name] != usual[name]}
    default = preset is not None and usual == dataclasses.asdict(kind.configure())
    return None if default and changed else preset, changed


def name_of(kind: type[Agent]) -> str:
    """The name by which `agent_class` finds this class again.

    Raises:
        ConfigError: it is no algorithm's, or can't be imported by worker processes.
    """
    if not issubclass(kind, Agent):
        raise ConfigError(
            f"what is trained is an agent, such as surefoot.offline.IQL(dataset), and not of type {kind.__name__}; "
            "surefoot.IQL and its like are trained by their own learn()"
        )
    if ALGORITHMS.get(kind.name) is kind:
        return kind.name
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise ConfigError(
            f"{kind.__qualname__} is defined in a script or function, where worker processes can't import it; put it "
            "at the top of a module of its own"
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def options_from_json(kind: type[Agent], options: dict[str, Any]) -> dict[str, Any]:
    """Options with lists made the tuples that configs hold.

    Raises:
        ConfigError: one is of another type than the config's field.
    """
    known = declared(kind.Config)
    for name in options.keys() & known.keys():  # one that is not known gets its sentence from `Agent.configure`
        known[name].check(options[name], kind.name)
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


SAID = ("algorithm", "config", "dataset", "environment", "steps", "seeds")
"""Fields of a plan that python's `fit` and `learn` have arguments of their own for, or know from the agent."""
OPTIONS = tuple(field.name for field in dataclasses.fields(Plan) if field.name not in SAID)
"""The other fields, which they take by these names."""
