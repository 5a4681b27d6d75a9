"""What every policy head is: it acts, says how it can be built again, and is found by its kind."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from surefoot.core.actors.memory import Memory, begun_anew
from surefoot.core.base.described import Described, as_argument, as_json
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.networks import MLP

SampleAux = dict[str, Tensor]
"""Name -> (B, ...) what a head remembers of how it sampled, such as a denoising chain; it travels with the action."""


class Evaluation(NamedTuple):
    """What a head says of actions that it may have sampled."""

    log_density: Tensor
    """(B,) in nats, of the actions and, where something is kept, of how they came about."""
    entropy: Tensor
    """(B,) in nats."""
    outputs: Any = None
    """The distribution's parameters, of heads that have one distribution."""


ACTORS: dict[str, type[Actor]] = {}
"""Kind, as policy files name it -> class: all that have been imported."""
_HOMES = {
    "act": "surefoot.core.actors.act_actor",
    "diffusion": "surefoot.core.actors.diffusion",
    "flow": "surefoot.core.actors.flow_actor",
    "one_step": "surefoot.core.actors.flow_actor",
    "reinflow": "surefoot.core.actors.flow_chains",
    "flow_sde": "surefoot.core.actors.flow_chains",
    "consistency": "surefoot.core.actors.flow_chains",
    "denoising": "surefoot.core.actors.denoising_chain",
    "perturbed": "surefoot.core.actors.vae",
    "decision_transformer": "surefoot.core.actors.transformer_actor",
    "return_conditioned": "surefoot.core.actors.return_actor",
    "goal": "surefoot.core.actors.goal_actor",
    "unit_gaussian": "surefoot.core.actors.goal_actor",
    "subgoal": "surefoot.core.actors.goal_actor",
    "task": "surefoot.core.actors.task_actor",
    "task_reading": "surefoot.core.actors.task_actor",
    "family": "surefoot.core.actors.family",
    "tanh_family": "surefoot.core.actors.family",
    "history": "surefoot.core.actors.memory_actors",
    "gru": "surefoot.core.actors.memory_actors",
    "lstm": "surefoot.core.actors.memory_actors",
    "chunk": "surefoot.core.actors.memory_actors",
    "residual": "surefoot.core.actors.residual_actor",
    "step_residual": "surefoot.core.actors.residual_actor",
    "steered": "surefoot.core.actors.steered",
    "edited": "surefoot.core.actors.steered",
    "ensembled_chunk": "surefoot.core.actors.chunk_actors",
    "blended_chunk": "surefoot.core.actors.chunk_actors",
    "greedy": "surefoot.core.actors.greedy_actor",
    "value_head": "surefoot.core.actors.value_heads",
    "quantile_head": "surefoot.core.actors.value_heads",
    "categorical_head": "surefoot.core.actors.value_heads",
    "masked_categorical": "surefoot.core.actors.masked_actors",
    "masked_greedy": "surefoot.core.actors.masked_actors",
    "boosted": "surefoot.core.actors.boosted_actor",
    "held": "surefoot.core.actors.held_actor",
    "sequence": "surefoot.core.actors.sequence_actor",
    "with_choice": "surefoot.core.actors.choice_actor",
    "held_noise": "surefoot.core.actors.memory_actors",
    "latent_planner": "surefoot.world_models.latent.planner",
    "ensemble_planner": "surefoot.world_models.ensemble.planner",
    "attribute_planner": "surefoot.core.actors.attribute_planner",
    "trajectory_planner": "surefoot.world_models.tokens.planner",
    "latent_prior": "surefoot.world_models.latent.latent",
    "recurrent": "surefoot.world_models.recurrent.actor",
    "anchored": "surefoot.world_models.ensemble.anchors",
}
"""Kind of actor -> module that defines it, of those that are not in `core.actors.heads`."""


def actor_class(kind: str) -> type[Actor]:
    """The head of this kind; heads that few policies have are imported when one is read.

    Raises:
        ConfigError: no head of this kind is known.
    """
    if kind in _HOMES and kind not in ACTORS:
        importlib.import_module(_HOMES[kind])
    if kind not in ACTORS:
        known = ", ".join(sorted({*ACTORS, *_HOMES}))
        raise ConfigError(f"no actor of kind {kind!r} is known (known: {known}); import the module that defines it")
    return ACTORS[kind]


class Actor(Described, nn.Module):
    """A policy head: normalised observations in, actions in [-1, 1] out; its constructor says how it is described.

    A subclass with a `kind` is found by `Policy.load` once its module has been imported.
    """

    kind: ClassVar[str]
    """What policy files call it."""
    always_samples: bool = False
    """Whether it has no action without noise: its policy then draws the noise itself where it is given none."""
    discrete: bool = False
    """Whether its actions are one-hot choices."""
    needs_outcomes: bool = False
    """Whether the next action depends on rewards or costs, so that `observe_outcome` must follow each action."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Make the kind known."""
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__:
            ACTORS[cls.kind] = cls

    @property
    def noise_dim(self) -> int:
        """Standard normal numbers per row that a sample reads; 0 of a deterministic head."""
        raise TypeError(f"{type(self).__name__} must define noise_dim")

    @classmethod
    def write(cls, part: Self, name: str) -> dict[str, Any]:
        """As `Part.write`, under `name`; with its kind where the constructor that takes it takes any kind."""
        described = part.description()
        return {name: described if hasattr(cls, "kind") else {"actor": part.kind, **described}}

    @classmethod
    def read(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `Part.read`.

        Raises:
            ConfigError: a head that the constructor does not take.
        """
        kind = cls if hasattr(cls, "kind") else actor_class(options[name]["actor"])
        if not issubclass(kind, cls):
            raise ConfigError(f"{name} is a {kind.kind!r} head, must be one of {cls.__name__}")
        return kind.from_description(observation_dim, action_dim, options[name])

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions, or samples from (B, `noise_dim`) standard normal noise."""
        raise TypeError(f"{type(self).__name__} must define act")

    def begin(self, rows: int) -> Memory:
        """The memory of `rows` rows at the first step of an episode: float32, on the head's device; often empty."""
        return {}

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """(B, A) actions as of `act` for the present observations with what is remembered, and the new memory."""
        return self.act(observations, noise), memory

    def executed(self, memory: Memory, actions: Tensor) -> Memory:
        """The memory once (B, A) actions in [-1, 1] are carried out: those of `step`, or others from a filter."""
        return memory

    def observe_outcome(self, memory: Memory, rewards: Tensor, costs: Tensor, ended: Tensor) -> Memory:
        """The memory after (B,) rewards and costs in the environment's units; (B,) bool `ended` rows begin anew."""
        return begun_anew(memory, self.begin(1), ended)

    @property
    def has_memory(self) -> bool:
        """Whether actions depend on more than the present observation and noise."""
        return bool(self.begin(1))

    @property
    def held_dim(self) -> int:
        """Standard normal numbers per row that `explore` reads."""
        return self.noise_dim

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, A) samples while it trains, from (B, `held_dim`) noise, which some heads hold for several steps."""
        return self.act(observations, noise)

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, SampleAux]:
        """(B, A) samples while it trains, from (B, `held_dim`) noise, and what must be kept to know their density."""
        return self.explore(observations, noise), {}

    def evaluate(self, observations: Tensor, actions: Tensor, sample_aux: Mapping[str, Tensor]) -> Evaluation:
        """Density and entropy at (B, O) observations of (B, A) actions with what `sample` gave beside them."""
        raise TypeError(f"{type(self).__name__} has no density of its actions")

    def log_density(self, observations: Tensor, actions: Tensor, sample_aux: Any = None) -> Tensor:
        """(B,) as `evaluate`."""
        return self.evaluate(observations, actions, {} if sample_aux is None else sample_aux).log_density


class OptionsActor(Actor):
    """A head that is handed its networks, and describes itself by `options`, of which `built` makes them anew."""

    options: dict[str, Any]
    """Numbers, texts and tuples, as the constructor sets them."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Options that older files do not have."""

    @classmethod
    def built(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """The head, its weights drawn anew, of these options and perhaps others."""
        raise TypeError(f"{cls.__name__} must define built")

    def description(self) -> dict[str, Any]:
        """Its options."""
        return {name: as_json(value) for name, value in self.options.items()}

    @classmethod
    def from_description(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `Described.from_description`."""
        given = {name: as_argument(value) for name, value in options.items()}
        return cls.built(observation_dim, action_dim, {**cls.defaults, **given})


class MLPActor(Actor):
    """A head on one multilayer perceptron, `mlp`, whose sizes describe it."""

    mlp: MLP
    unwritten = ("initialization", "initial_log_std")
    optional = ("log_std_range", "coefficients", "activation", "layer_norm", "norm_epsilon", "unit_features")
    outputs: ClassVar[int] = 1
    """Of the network for each dimension of the action."""

    @property
    def noise_dim(self) -> int:
        """A: a number for each dimension of the action."""
        return int(self.mlp.biases[-1].shape[-1]) // self.outputs

    def description(self) -> dict[str, Any]:
        """Widths, activation and what is added to the layers, which the network knows, and the head's own arguments."""
        value: dict[str, Any] = {"hidden": list(self.mlp.hidden), "activation": self.mlp.activation}
        if len(self.mlp.scales) > 0:
            value["layer_norm"] = self.mlp.layer_norm
            value |= {"norm_epsilon": self.mlp.norm_epsilon} if self.mlp.norm_epsilon != self.mlp.usual_epsilon else {}
        if self.mlp.unit_features:
            value["unit_features"] = True
        return value | {name: as_json(getattr(self, name)) for name in self.option_names() if hasattr(self, name)}


class DistributionActor(MLPActor):
    """A head that gives the parameters of one distribution of the action, `outputs`, whose divergences are exact."""

    def density_of(self, outputs: Any, actions: Tensor) -> Tensor:
        """(B,) log-density of (B, A) actions, in nats."""
        raise TypeError(f"{type(self).__name__} must define density_of")

    def entropy_of(self, outputs: Any) -> Tensor:
        """(B,) entropy in nats."""
        raise TypeError(f"{type(self).__name__} must define entropy_of")

    def divergence(self, outputs: Any, others: Any) -> Tensor:
        """(B,) KL(outputs || others) in nats, exactly."""
        raise TypeError(f"{type(self).__name__} must define divergence")

    def to_rows(self, outputs: Any) -> Tensor:
        """Outputs as (B, H) rows, to be kept and read again by `from_rows`."""
        raise TypeError(f"{type(self).__name__} must define to_rows")

    def from_rows(self, rows: Tensor) -> Any:
        """Inverse of `to_rows`."""
        raise TypeError(f"{type(self).__name__} must define from_rows")

    def evaluate(self, observations: Tensor, actions: Tensor, sample_aux: Mapping[str, Tensor]) -> Evaluation:
        """Density and entropy of the distribution at (B, O) observations; nothing needs to be kept."""
        outputs = self(observations)
        return Evaluation(self.density_of(outputs, actions), self.entropy_of(outputs), outputs)
