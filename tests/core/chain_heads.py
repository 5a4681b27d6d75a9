"""What tests of chains share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from surefoot.core.actors.chains import ChainActor
from surefoot.core.actors.denoising_chain import DenoisingActor
from surefoot.core.actors.diffusion import Schedule
from surefoot.core.actors.flow_chains import ConsistencyActor, FlowSDEActor, ReinFlowActor
from surefoot.core.nn.noise_networks import EmbeddedNoise, PlainNoise
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.nn.unet import UNetVelocity
from surefoot.core.nn.velocity import EmbeddedVelocity, PlainVelocity, ShortcutVelocity
from surefoot.core.policy.policy import Policy

OBSERVATIONS, ACTIONS = 3, 2


def velocity(kind: str) -> Any:
    if kind == "mlp":
        return PlainVelocity(OBSERVATIONS, ACTIONS, (16, 16))
    if kind == "unet":
        return UNetVelocity(OBSERVATIONS, ACTIONS, 2, 32, (1, 2), 6)
    if kind == "embedded":
        return EmbeddedVelocity(OBSERVATIONS, ACTIONS, (16, 16, 16), "mish", 6, (8, 4))
    return ShortcutVelocity(OBSERVATIONS, ACTIONS, (16, 16, 16), "relu", 6, (8, 6))


def noise_network(kind: str = "mlp") -> Any:
    if kind == "mlp":
        return PlainNoise(OBSERVATIONS, ACTIONS, (16, 16), 4)
    return EmbeddedNoise(OBSERVATIONS, ACTIONS, (16, 16, 16), "mish", 6)


def denoising(steps: int, **options: Any) -> DenoisingActor:
    return DenoisingActor(noise_network(), Schedule.cosine(max(steps, 4)), ACTIONS, trained=steps, **options)


MADE: dict[str, Callable[[int], ChainActor]] = {
    "reinflow": lambda steps: ReinFlowActor(velocity("embedded"), ACTIONS, steps),
    "reinflow, plain": lambda steps: ReinFlowActor(velocity("mlp"), ACTIONS, steps, clip_each=False, timed=False),
    "reinflow, shortcut": lambda steps: ReinFlowActor(velocity("shortcut"), ACTIONS, steps, noise="learn_decay"),
    "reinflow, const": lambda steps: ReinFlowActor(velocity("mlp"), ACTIONS, steps, noise="const", noise_limit=None),
    "reinflow, some": lambda steps: ReinFlowActor(velocity("mlp"), ACTIONS, steps, trained=(steps + 1) // 2),
    "reinflow, unet": lambda steps: ReinFlowActor(velocity("unet"), ACTIONS, steps),
    "sde": lambda steps: FlowSDEActor(velocity("embedded"), ACTIONS, max(steps, 2)),
    "consistency": lambda steps: ConsistencyActor(velocity("shortcut"), ACTIONS, steps),
    "ddpm": denoising,
    "ddim": lambda steps: DenoisingActor(noise_network("embedded"), Schedule.cosine(20), ACTIONS, taken=steps),
}


def policy(actor: Any) -> Policy:
    return Policy.of(actor, Normalizer(OBSERVATIONS), -torch.ones(ACTIONS), torch.ones(ACTIONS))
