"""Anchors: where a policy that seeks the data leads in a learned model; and the head that acts by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor, Evaluation, MLPActor, actor_class
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.transduction import TransducedMLP
from surefoot.world_models.ensemble.ensemble import GaussianEnsemble


@torch.no_grad()
def anchored(model: GaussianEnsemble, seeker: MLP, states: Tensor, steps: int) -> Tensor:
    """(B, O) states after `steps` of the policy tanh(seeker) in the model, by the mean of its elites' means."""
    for _ in range(steps):
        change = model.predict_elites(states, torch.tanh(seeker(states))).mean.mean(0)
        states = states + change[..., : model.state_dim]
    return states


def transduce(network: Any, observation_dim: int, transducer: tuple[int, ...], embedding: int) -> None:
    """Replace the `mlp` of an actor, critic or value, which is one vector's, by a transduced one of its sizes."""
    network.mlp = TransducedMLP(network.mlp, observation_dim, transducer, embedding)


class AnchoredActor(Actor):
    """A head whose network is transduced, with all that its anchors need."""

    kind = "anchored"

    def __init__(self, inner: MLPActor, seeker: MLP, model: GaussianEnsemble, steps: int) -> None:
        """Take the parts as they are; the inner head's `mlp` is a `TransducedMLP`."""
        super().__init__()
        self.inner, self.seeker, self.model, self.steps = inner, seeker, model, steps
        self.model.terminates = None
        inner.mlp.anchored_by(self.anchors)  # type: ignore[operator]

    def anchors(self, states: Tensor) -> Tensor:
        """(B, O) anchors of (B, O) normalised states."""
        return anchored(self.model, self.seeker, states, self.steps)

    @property
    def noise_dim(self) -> int:
        """The inner head's."""
        return self.inner.noise_dim

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """As the inner head acts."""
        return self.inner.act(observations, noise)

    def evaluate(self, observations: Tensor, actions: Tensor, kept: Mapping[str, Tensor]) -> Evaluation:
        """As the inner head says."""
        return self.inner.evaluate(observations, actions, kept)

    def description(self) -> dict[str, Any]:
        """The inner head and the sizes of its transduction, of the seeker and of the model."""
        mlp: Any = self.inner.mlp
        network = self.model.network
        return {
            "inner": {"actor": self.inner.kind, **self.inner.description()},
            "transducer": list(mlp.transducer),
            "embedding": mlp.embedding,
            "steps": self.steps,
            "seeker_hidden": list(self.seeker.hidden),
            "model_hidden": list(network.hidden),
            "model_members": self.model.members,
            "model_elites": len(self.model.elites),
            "model_learned_bounds": self.model.learned_bounds,
            "model_normalize_targets": self.model.normalize_targets,
        }

    @classmethod
    def from_description(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `Actor.from_description`."""
        inner: Any = actor_class(options["inner"]["actor"]).from_description(
            observation_dim, action_dim, options["inner"]
        )
        transduce(inner, observation_dim, tuple(options["transducer"]), options["embedding"])
        seeker = seeker_of(observation_dim, action_dim, options["seeker_hidden"])
        model = GaussianEnsemble(
            observation_dim,
            action_dim,
            members=options["model_members"],
            elites=options["model_elites"],
            hidden=options["model_hidden"],
            decays=(),
            learned_bounds=options["model_learned_bounds"],
            normalize_targets=options["model_normalize_targets"],
        )
        return cls(inner, seeker, model, options["steps"])


def seeker_of(observation_dim: int, action_dim: int, hidden: Any) -> MLP:
    """The network of a policy that seeks anchors, with layer norms; its action is the tanh of it."""
    return MLP(observation_dim, action_dim, tuple(hidden), layer_norm=True)
