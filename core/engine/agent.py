"""What an algorithm is to the engine: networks, losses, and the order in which they are stepped."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from surefoot.core.actors.heads import Actor
from surefoot.core.actors.histories import INSTEAD, history_of, widened
from surefoot.core.actors.memory_actors import HistoryActor
from surefoot.core.base.errors import ConfigError, guesses
from surefoot.core.base.options import ALGORITHM_OF, check_options, respelled
from surefoot.core.base.options import algorithm_of as algorithm_of
from surefoot.core.base.options import require as require
from surefoot.core.base.random import Noise
from surefoot.core.base.rates import Adam, Descent
from surefoot.core.base.spec import MASK, no_dataset
from surefoot.core.base.spec import DatasetLike as DatasetLike
from surefoot.core.base.spec import Spec as Spec
from surefoot.core.engine.encoder_config import READERS, EncoderConfig, encoder_of, need_vector, reads_pictures
from surefoot.core.engine.needs import CONTINUOUS, DISCRETE, Needs
from surefoot.core.engine.sources import MAIN, Batch, Source, Stores, Uniform
from surefoot.core.engine.traits import Described, Requires, Teams, Vision, WarmStart, earlier_keywords
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy

Metrics = dict[str, Tensor]
"""Name -> a tensor that a loss had at hand, of any shape; the Learner averages it when it logs."""
Loss = Callable[[Any, dict[str, Tensor]], tuple[Tensor, Metrics]]
"""(batch, noise) -> (scalar, metrics); the batch of an update of several sources is a dict of batches."""
Change = Callable[[Any, dict[str, Tensor]], tuple[dict[str, Tensor], Metrics]]
"""(batch, noise) -> (full name of a parameter or buffer -> new tensor, metrics)."""


@earlier_keywords(then="target_updates", lagging="pre_step_targets", together="simultaneous")
@dataclasses.dataclass(frozen=True)
class Update:
    """One optimiser step of an agent's training step."""

    loss: Loss
    """`loss(batch, noise) -> (scalar, metrics)`: a bound method of the agent, or a function that holds it."""
    trains: tuple[str, ...]
    """Names of the networks that it changes; no other gets a gradient, so losses need not detach them."""
    optimizer: Adam | Descent = dataclasses.field(default_factory=Adam)
    source: str | tuple[str, ...] = MAIN
    """Where its rows come from; of several, the loss is given a dict of batches by their names."""
    every: int = 1
    """Taken at training steps every, 2 every, ... (1 is the first)."""
    after: int = 0
    """Not taken in the first so many training steps."""
    until: int | None = None
    """Not taken after so many training steps; None: to the end."""
    unless: str | None = None
    """Full name of a () bool buffer: not taken where it is true of all seeds, as of a model that no longer improves. It
    is read after the rules that may change it; schedules don't go with it."""
    repeat: int = 1
    """Times in a row, each on rows of its own."""
    rows: int | None = None
    """Batch size, of each of its sources, where it differs from the run's."""
    target_updates: Mapping[str, tuple[str, float]] = dataclasses.field(default_factory=dict)
    """Target network -> (network, rate): target += rate * (network - target) after the step."""
    pre_step_targets: Mapping[str, tuple[str, float]] = dataclasses.field(default_factory=dict)
    """As `target_updates`, but of the network as it was before the step: a target one update older (FQL, QC)."""
    factors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Network that it trains -> factor on the learning rate; 1 where it is not named."""
    follows: Mapping[str, tuple[str, float]] = dataclasses.field(default_factory=dict)
    """Buffer, by its full name -> (metric of the loss, rate): buffer += rate * (metric - buffer) once the loss has been
    evaluated: a running scale of what the loss sees, which it reads at the next step."""
    simultaneous: bool = False
    """Differentiated at the same parameters as the last due update before it, not at those that it made."""
    noise: Mapping[str, Noise] = dataclasses.field(default_factory=dict)
    """Random numbers that the loss is handed, by name: for each row of its sources, one source after another."""
    writes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Source -> metric of the loss, a number for each row: after the step `source.write(rows, metric)` is called, as
    for priorities. Steps that write are taken one by one."""

    @property
    def name(self) -> str:
        """The loss's name."""
        return self.loss.__name__

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources that it reads."""
        return (self.source,) if isinstance(self.source, str) else self.source


@earlier_keywords(then="target_updates")
@dataclasses.dataclass(frozen=True)
class Rule:
    """A change of an agent's tensors that is no gradient step: a natural gradient, a multiplier, a copy.

    It stands in the same ordered list as the updates, and is taken at its place.
    """

    change: Change | None = None
    """`change(batch, noise) -> (new tensors, metrics)`, as `Update.loss`; None: only `target_updates`."""
    changes: tuple[str, ...] = ()
    """Names of the networks or buffers whose tensors `change` may give."""
    on: Literal["step", "block", "episodes"] = "step"
    """When it is taken. "step": in each training step. "block": once for each block of an on-policy loop, on all its
    rows, flattened; the updates on either side of it each take all their epochs. "episodes": when episodes of the
    agent's own policy have ended; the batch has () `cost` and `length`, means over the last `cost_window` of them."""
    source: str = MAIN
    """Of a rule of training steps: where its rows come from. Of one on blocks: the columns that the losses read, which
    it may change too, or "block": the block itself, (T, N, ...), as `columns` is given it."""
    rows: int | None = None
    """Of a rule of training steps: batch size, where it differs from the run's."""
    every: int = 1
    """Of a rule of training steps: as `Update.every`."""
    after: int = 0
    """Of a rule of training steps: as `Update.after`."""
    until: int | None = None
    """Of a rule of training steps: as `Update.until`."""
    last: bool = False
    """Of a rule of training steps: taken at the last planned one too, whatever the three above say."""
    target_updates: Mapping[str, tuple[str, float]] = dataclasses.field(default_factory=dict)
    """Network -> (network, rate): first += rate * (second - first), in this order, after `change`."""
    noise: Mapping[str, Noise] = dataclasses.field(default_factory=dict)
    """Of a rule of training steps: random numbers that `change` is handed, by name."""

    @property
    def name(self) -> str:
        """The change's name, or that of the networks that it copies to."""
        return ", ".join(self.target_updates) if self.change is None else self.change.__name__

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the Learner's sources that it reads."""
        return (self.source,) if self.on == "step" and self.change is not None else ()


def is_due(entry: Update | Rule, step: int) -> bool:
    """Whether an update, or a rule of training steps, is taken at training step `step` (1 is the first)."""
    return step % entry.every == 0 and step > entry.after and (entry.until is None or step <= entry.until)


def times_due(entry: Update | Rule, steps: int) -> int:
    """At how many of the first `steps` training steps it is taken."""
    last = steps if entry.until is None else min(steps, entry.until)
    return max(0, last // entry.every - entry.after // entry.every)


def in_groups(entries: Sequence[Update | Rule]) -> tuple[list[list[Update | Rule]], list[int | Rule]]:
    """An agent's list, parted by its rules on blocks.

    Returns:
        Groups: what a training step does, in order. And what is done with a block: numbers of groups, and the rules.
    """
    groups: list[list[Update | Rule]] = []
    sequence: list[int | Rule] = []
    for entry in entries:
        if isinstance(entry, Rule) and entry.on == "block":
            sequence.append(entry)
        elif isinstance(entry, Update) or entry.on == "step":
            if not sequence or isinstance(sequence[-1], Rule):
                sequence.append(len(groups))
                groups.append([])
            groups[-1].append(entry)
    return groups, sequence


class Agent(nn.Module, Described):
    """Base of the algorithms that a `Learner` trains: holds the spec and the way out, nothing of the maths.

    A subclass sets `name`, `Config`, `PRESETS` and `required_columns`, and states in `requires` what differs from its
    base; builds its networks in `build`; and writes its losses and `updates`. Actions are in [-1, 1] inside,
    observations as `normalizer` leaves them.
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    required_columns: ClassVar[tuple[str, ...]]
    """Columns of a dataset that its losses read."""
    requires: ClassVar[Requires] = Requires()
    """What it needs to be trained, and what it can take."""
    vision: ClassVar[Vision] = Vision()
    """How it uses the encoder of images."""
    warm_start: ClassVar[WarmStart] = WarmStart()
    """What it takes from a run that it starts from."""
    teams: ClassVar[Teams] = Teams()
    """How it trains the agents of a team."""
    row_separable: ClassVar[bool] = False
    """Whether its losses are means over the rows of a batch, so that processes can share it (`core.engine.share`)."""
    average_of: ClassVar[str | None] = None
    """Network whose average acts, by that average's name; then features are those of an averaged encoder too."""
    cost_window: int | None = None
    """Episodes whose mean cost rules on "episodes" are given while it acts; None for agents without a constraint."""
    earlier: ClassVar[dict[str, Any]] = {}
    """Options that run folders of earlier versions lack -> what they were then, with which such a run continues."""
    if TYPE_CHECKING:

        @property
        def actor(self) -> Actor:
            """What acts: a network that `build` makes, or a property that puts it together from others."""

    action_low: Tensor
    action_high: Tensor
    reward_scale: Tensor
    reward_shift: Tensor

    def __init_subclass__(cls, **options: Any) -> None:
        """Make known whose config its config is."""
        super().__init_subclass__(**options)
        if "name" in cls.__dict__ and "Config" in cls.__dict__:
            ALGORITHM_OF.setdefault(cls.Config, cls.name)

    def __init__(self, problem: Spec | DatasetLike, config: Any = None, **options: Any) -> None:
        """Build the networks from torch's global generator.

        Args:
            problem: a `Spec`, or a dataset, whose actions are then taken to lie in the range that it states, or else
                in [-1, 1].
            config: the algorithm's config dataclass, or None for its defaults.
            options: fields of the config to change, e.g. expectile=0.8; preset="..." starts from a preset.

        Raises:
            ConfigError: an option that the config does not have, or a value out of range; discrete actions where
                the algorithm learns continuous actions only; a problem that is neither of the two.
        """
        super().__init__()
        if not isinstance(problem, Spec) and not hasattr(problem, "action_dim"):
            raise ConfigError(
                f"{self.name} is made from a dataset or a Spec: {no_dataset(problem)}, and "
                "surefoot.envs.acting.spec_of gives the Spec of a vector environment (models, such as surefoot.IQL, "
                "take paths and ids too)"
            )
        self.environment_spec = problem if isinstance(problem, Spec) else Spec.of(problem)
        """As the environment has it; `spec` is what networks are built for, which with a history is wider."""
        self.spec = self.environment_spec
        self.config = self.configure(config, **options)
        self._check_problem(self.spec)
        remembers = self.vision.histories and not self.requires.online
        self.spec = widened(self.environment_spec, self.config, self.name, self.requires.online, remembers)
        self.encoder = encoder_of(self.spec, self.config, self.name)
        self.frames = 1 if self.encoder is None else history_of(self.config)
        """Observations whose features networks read side by side; one vector's history is in its own width."""
        self.features = self.spec.observation_dim if self.encoder is None else self.frames * self.encoder.width
        """Width of what networks read as an observation: the vector, or what the encoder makes of several arrays."""
        self.normalizer = Normalizer(self.environment_spec.vector_dim)
        self.register_buffer("action_low", torch.tensor(self.spec.action_low, dtype=torch.float32))
        self.register_buffer("action_high", torch.tensor(self.spec.action_high, dtype=torch.float32))
        self.rewards_fixed = False  # True: the two numbers below came with trained critics and must stay
        self.goals_fixed = False  # True: `prepare` is given other data than is learned from: what it asks for stays
        self.register_buffer("reward_scale", torch.ones(()))
        self.register_buffer("reward_shift", torch.zeros(()))
        self.build()
        if self.vision.encodes_itself and self.encoder is not None and not self.config.encoder_trains:
            raise ConfigError(f"{self.name}.encoder_trains is false, must be true: its losses train the encoder")
        if self.average_of is not None and self.encoder is not None and self.encoder_learns:
            self.average_encoder = copy.deepcopy(self.encoder).requires_grad_(False)

    @classmethod
    def configure(cls, config: Any = None, **options: Any) -> Any:
        """The config with a preset and options applied, checked."""
        if not hasattr(cls, "Config"):
            raise TypeError(f"{cls.__name__} must define Config, a frozen dataclass of its settings")
        preset = options.pop("preset", None)
        if preset is not None:
            if preset not in cls.PRESETS:
                raise ConfigError(
                    f"{cls.name} has no preset {preset!r}; it has {sorted(cls.PRESETS)}", field="preset", code="choice"
                )
            options = {**cls.PRESETS[preset], **options}
        known = {field.name for field in dataclasses.fields(cls.Config)}
        options = respelled(options, known)
        for option in options:
            if option not in known:
                if why := cls.lacks(option):
                    raise ConfigError(f"{cls.name} has no option {option!r}: {why}", field=option, code="unknown")
                close = guesses(option, known)
                guess = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
                raise ConfigError(
                    f"{cls.name} has no option {option!r}; {guess}It has {sorted(known)}", field=option, code="unknown"
                )
        given: Any = config if config is not None else cls.Config()
        own = isinstance(given, cls.Config)
        if not own:
            raise ConfigError(
                f"{cls.name} takes a {cls.Config.__name__}, not a {type(given).__name__}: give it its own"
            )
        check_options(cls.Config, {**vars(given), **options}, cls.name)
        return dataclasses.replace(given, **options)

    @classmethod
    def lacks(cls, option: str) -> str | None:
        """Why it does not have an option that many others have, and what to do; None of any other word."""
        if option == "history" and cls.requires.online:
            return f"it acts while it learns; {INSTEAD}" if cls.name != "dreamer" else "it remembers without one"
        if option in (field.name for field in dataclasses.fields(EncoderConfig)):
            return f"it reads no images; {READERS} do (docs/images.md)"
        return None

    @classmethod
    def data_with(cls, config: Mapping[str, Any]) -> str:
        """`requires.data` with these options: some decide whether there is anything to learn from a dataset."""
        return cls.requires.data

    @classmethod
    def needs(cls, config: Mapping[str, Any] | None = None) -> Needs:
        """What it needs to be trained, and what it can take; with these options, or with its defaults."""
        return Needs(
            data=cls.requires.data if config is None else cls.data_with(config),
            environment="required" if cls.requires.online else "optional" if cls.requires.policy else "refused",
            costs=cls.requires.costs or "costs" in getattr(cls, "required_columns", ()),
            run=cls.requires.run,
            continuous=cls.requires.continuous,
            discrete=cls.requires.discrete,
            pictures=reads_pictures(cls.Config) and not cls.requires.one_vector,
            masks=cls.requires.masks,
        )

    @classmethod
    def _check_problem(cls, spec: Spec) -> None:
        """Refuse a problem whose actions or observations are of a kind that it does not learn."""
        needs, kind = cls.needs(), DISCRETE if spec.discrete else CONTINUOUS
        if spec.masked and not needs.masks and kind in needs.actions:
            raise ConfigError(
                f"{cls.name} does not obey masks of actions, and observations have one ({MASK}); train it with "
                "ppo or dqn, or with another that `surefoot algorithms --takes masks` lists, or leave the mask out"
            )
        if not needs.pictures:
            need_vector(spec, cls.name)
        if kind in needs.actions:
            return
        count = f"{spec.action_dim} discrete ones" if spec.discrete else "continuous ones"
        example = "bc (from data), ppo or dqn" if spec.discrete else "iql (from data), ppo or sac"
        raise ConfigError(
            f"{cls.name} learns {needs.actions[0]} actions, and this problem has {count}; train it with {example}, or "
            f"with another that `surefoot algorithms --takes {kind}` lists"
        )

    @property
    def chunk(self) -> int:
        """Actions that are decided on at once, C: 1 where the config has no `chunk`."""
        return int(getattr(self.config, "chunk", None) or 1)

    @property
    def decision_dim(self) -> int:
        """Numbers that are decided on at once: C A, in time order."""
        return self.chunk * self.spec.action_dim

    def build(self) -> None:
        """Make the networks as attributes."""
        raise TypeError(f"{type(self).__name__} must define build")

    def prepare(self, dataset: Any) -> Any:
        """The dataset as the losses read it; sets the normaliser. Runs once, before training."""
        raise TypeError(f"{type(self).__name__} must define prepare")

    def judged_on(self, held_out: Any, seed: int) -> dict[str, Any]:
        """More of a seed's result, as JSON values: what its last networks are worth on episodes that it never saw.

        Asked in runs without a simulator; `held_out` is a dataset that was not prepared.
        """
        return {}

    def judged_words(self, found: Mapping[str, Any]) -> list[str]:
        """Sentences for the user on what `judged_on` found."""
        return []

    def notes(self, dataset: Any) -> list[str]:
        """What the user should hear of training on this dataset, before the first step and before `prepare`."""
        return []

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """The rows that its updates learn from, by the names that they use; here the data's, drawn uniformly."""
        return {MAIN: Uniform(stores.data)}

    def prepare_full_batch(self, batch: Batch) -> Batch:
        """What losses need of a whole batch, before processes that share it take their parts (`core.engine.share`)."""
        return batch

    def annotate(self, batch: Batch) -> Batch:
        """Quantities that several losses share, computed once for each batch of the main source, without gradient."""
        return batch

    def updates(self) -> Sequence[Update | Rule]:
        """The optimiser steps and rules of one training step, in order."""
        raise TypeError(f"{type(self).__name__} must define updates")

    @classmethod
    def inherit_options(cls, config: Mapping[str, Any], source: Agent) -> dict[str, Any]:
        """Options, by name, that a config leaves to the agent of the run that it starts from; here none."""
        return {}

    def load_from(self, source: Agent) -> list[str] | None:
        """Start from an agent whose policy is of another kind, for agents that know how.

        Returns:
            Names of the networks that came along; None, as here: networks are taken by name and shape.

        Raises:
            ConfigError: an agent that this one can't start from.
        """
        return None

    def copies(self) -> dict[str, str]:
        """Network -> the network that it follows slowly and starts equal to."""
        entries = self.updates()
        trained = {name for entry in entries if isinstance(entry, Update) for name in entry.trains}
        moves = [*(e.target_updates for e in entries), *(e.pre_step_targets for e in entries if isinstance(e, Update))]
        pairs = ((target, source) for move in moves for target, (source, _) in move.items())
        found = {target: source for target, source in pairs if target not in trained}
        if self.average_of is not None:
            found[self.average_of] = self.average_of.removeprefix("average_")
        return found | ({"average_encoder": "encoder"} if hasattr(self, "average_encoder") else {})

    @property
    def encoder_learns(self) -> bool:
        """Whether training changes the encoder: it has parameters, and `encoder_trains` does not hold them."""
        return (
            self.encoder is not None
            and getattr(self.config, "encoder_trains", True)
            and any(True for _ in self.encoder.parameters())
        )

    @property
    def encodes_anew(self) -> bool:
        """Whether losses make features of the arrays of their batches, in place of reading those that acting made."""
        return self.encoder is not None and getattr(self.config, "encoder_trains", True)

    def encode_moved(self, observations: Mapping[str, Tensor], draws: Mapping[str, Tensor]) -> Tensor:
        """As `encode`, of images that are moved by the draws (`Encoder.moved`)."""
        assert self.encoder is not None
        return self.encoder(self.encoder.moved(observations, draws, self.config.shift))

    @property
    def acting_encoder(self) -> Encoder | None:
        """The encoder whose features the deployed policy reads: the average where its head is an average."""
        return getattr(self, "average_encoder", self.encoder)

    def forward(self, method: str | Callable[..., Any], *arguments: Any) -> Any:
        """Call a method by name, or a function of this agent: how `torch.func.functional_call` reaches the losses."""
        return (getattr(self, method) if isinstance(method, str) else method)(*arguments)

    def encode(self, observations: Mapping[str, Tensor]) -> Tensor:
        """(..., F) features of several arrays, as networks read them; of agents with an `encoder`."""
        assert self.encoder is not None
        return self.encoder(observations)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions in [-1, 1] for normalised (B, O) observations; mean ones without `noise`."""
        return self.actor.act(observations, noise)

    def mean_action(self, observations: Tensor) -> Tensor:
        """(B, A) mean actions, with gradient, of the policy that `actor` is trained for: what a penalty smooths."""
        return self.act(observations)

    def policy(self) -> Policy:
        """A copy of the policy that stands on its own: observations and actions in the environment's units."""
        return self.policy_of(self.actor)

    def policy_of(self, head: Actor) -> Policy:
        """The same of a head that reads what the networks read."""
        if (length := history_of(self.config)) > 1:
            own = self.encoder
            width = self.environment_spec.observation_dim if own is None else own.width
            head = HistoryActor(head, width, length, repeats=own is not None)
        return Policy.of(head, self.normalizer, self.action_low, self.action_high, self.acting_encoder)

    def fresh(self, seed: int) -> Self:
        """A new agent with the same problem and config, its networks drawn from `seed`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return type(self)(self.environment_spec, self.config)
