"""Anchors: where a policy that seeks the data leads in a learned model; and the head that acts by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from surefoot.core.actors.actor import Evaluation, MLPActor, OptionsActor
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


class AnchoredActor(OptionsActor):
    """A head whose network is transduced, with all that its anchors need."""

    kind = "anchored"

    def __init__(self, inner: MLPActor, seeker: MLP, model: GaussianEnsemble, steps: int) -> None:
        """Take the parts as they are; the inner head's `mlp` is a `TransducedMLP`."""
        super().__init__()
        self.inner, self.seeker, self.model, self.steps = inner, seeker, model, steps
        self.model.terminates = None
        assert isinstance(inner.mlp, TransducedMLP)
        inner.mlp.anchored_by(self.anchors)
        self.options = {
            **MLPActor.write(inner, "inner"),
            "transducer": inner.mlp.transducer,
            "embedding": inner.mlp.embedding,
            "steps": steps,
            "seeker_hidden": seeker.hidden,
            "model_hidden": tuple(model.network.hidden),
            "model_members": model.members,
            "model_elites": len(model.elites),
            "model_learned_bounds": model.learned_bounds,
            "model_normalize_targets": model.normalize_targets,
        }

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

    @classmethod
    def built(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `OptionsActor.built`."""
        inner = MLPActor.read("inner", observation_dim, action_dim, options)
        transduce(inner, observation_dim, options["transducer"], options["embedding"])
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
