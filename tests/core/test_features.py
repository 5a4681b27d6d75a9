"""Losses read features: which update learns the encoder, what it sees, and that vectors in a Dict change no number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Array
from surefoot.core.engine.agent import Agent, Spec
from surefoot.core.engine.features import encoded, training_encoder
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Uniform
from surefoot.core.nn.encoders import random_shift
from surefoot.data.store import Store
from surefoot.offline.bc import BC
from surefoot.offline.edac import EDAC
from surefoot.offline.iql import IQL
from surefoot.online.sac import SAC

ROWS = 40
BOTH = {"image": Array((2, 24, 24), "uint8"), "velocity": Array((2,))}
KINDS: list[type[Agent]] = [BC, IQL, SAC]


def problem(observations: Any) -> Spec:
    return Spec(observations, 1, (-1.0,), (1.0,))


def rows(observations: Any) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(3)
    found: dict[str, Tensor] = {}
    for name in ("observations", "next_observations"):
        for column, (shape, dtype) in problem(observations).columns(name).items():
            if dtype == "uint8":
                found[column] = torch.randint(0, 256, (ROWS, *shape), dtype=torch.uint8, generator=source)
            else:
                found[column] = torch.randn(ROWS, *shape, generator=source)
    found["actions"] = torch.rand(ROWS, 1, generator=source) * 2 - 1
    found["rewards"] = torch.randn(ROWS, generator=source)
    return found | {"terminations": torch.zeros(ROWS)}


def learner(
    kind: type[Agent],
    seeds: list[int],
    observations: Any = BOTH,
    given: dict[str, Tensor] | None = None,
    **options: Any,
) -> Learner:
    options = {"encoder": "small", "encoder_features": 6, "shift": 2, "hidden": (16,), **options}
    agents = [kind(problem(observations), **options).fresh(seed) for seed in seeds]
    source = Uniform(Store.pack(rows(observations) if given is None else given))
    return Learner(agents, seeds, source, batch_size=8, planned_steps=20)


@pytest.mark.parametrize("kind", KINDS)
def test_one_update_on_an_image_and_a_vector_trains_the_encoder(kind: type[Agent]) -> None:
    trained = learner(kind, [0])
    before = {name: value.clone() for name, value in trained.agents_parameters(0).items()}
    trained.run(1)
    after = trained.agents_parameters(0)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"encoder.linear.weight", "encoder.images.image.convolutions.0.weight"} <= changed
    assert any(name.startswith("actor.") for name in changed)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_together_learn_what_they_learn_alone(kind: type[Agent]) -> None:
    alone, together = learner(kind, [7]), learner(kind, [5, 7])
    alone.run(3)
    together.run(3)
    for name, value in alone.agents_parameters(0).items():
        torch.testing.assert_close(together.agents_parameters(1)[name], value, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("kind", "losses"), [(BC, {"actor_loss"}), (IQL, {"critic_loss"}), (SAC, {"critic_loss"})])
def test_one_update_alone_trains_the_encoder(kind: type[Agent], losses: set[str]) -> None:
    found = learner(kind, [0]).updates
    assert {update.name for update in found if "encoder" in update.trains} == losses


@pytest.mark.parametrize(("kind", "twice"), [(BC, False), (IQL, True), (SAC, True)])
def test_images_are_encoded_without_a_gradient_too_only_where_another_loss_reads_that(
    kind: type[Agent], twice: bool
) -> None:
    trained = learner(kind, [0])
    features = trained._annotated(rows(BOTH), {}).get("observations")
    assert (features is not None) is twice


def test_bc_learns_the_same_where_images_are_encoded_once() -> None:
    once, twice = learner(BC, [0]), learner(BC, [0])
    twice._twice = True
    for one in (once, twice):
        one.run(3)
    for name, value in once.agents_parameters(0).items():
        torch.testing.assert_close(twice.agents_parameters(0)[name], value)


def test_the_critics_loss_reaches_the_encoder_and_the_actors_does_not() -> None:
    agent = SAC(problem(BOTH), encoder="small", encoder_features=6, hidden=(16,), shift=0).fresh(0)
    batch = encoded(agent, rows(BOTH), {})
    critic, actor, _ = training_encoder(agent, agent.updates())
    noise = {name: torch.randn(ROWS, drawn.width) for name, drawn in critic.noise.items()}
    noise |= {name: torch.randn(ROWS, drawn.width) for name, drawn in actor.noise.items()}
    weight = agent.encoder.linear.weight  # type: ignore[union-attr]
    batch = {name: value.detach() for name, value in batch.items()}
    assert torch.autograd.grad(actor.loss(batch, noise)[0], weight, allow_unused=True)[0] is None
    features = agent.encoder({key: batch[f"observations/{key}"] for key in BOTH})  # type: ignore[misc]
    with torch.no_grad():
        target = agent.targets(batch, noise)
    q = agent.critic(torch.cat([features, batch["actions"]], 1))
    expected = torch.autograd.grad((q - target).square().mean(1).sum() / 2, weight)[0]
    found = torch.autograd.grad(critic.loss(batch, noise)[0], weight)[0]
    torch.testing.assert_close(found, expected)
    assert bool(found.any())


def test_images_of_a_step_are_shifted_by_its_noise_each_observation_by_its_own() -> None:
    agent = BC(problem(BOTH), encoder="small", encoder_features=6, shift=2)
    batch, noise = rows(BOTH), {"shift": torch.rand(ROWS, 4)}
    found = encoded(agent, batch, noise)
    for name, columns in (("observations", slice(0, 2)), ("next_observations", slice(2, 4))):
        images = random_shift(batch[f"{name}/image"], noise["shift"][:, columns], 2)
        assert torch.equal(found[f"{name}/image"], images)
        assert torch.equal(found[f"{name}/velocity"], batch[f"{name}/velocity"])
        seen = {"image": images, "velocity": batch[f"{name}/velocity"]}
        assert torch.equal(found[name], agent.encoder(seen))  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_in_a_dict_are_learned_from_to_the_bit_as_one_vector(kind: type[Agent]) -> None:
    parts = {"angle": Array((2,)), "rate": Array((3,))}
    joined = rows(parts)
    for name in ("observations", "next_observations"):
        joined[name] = torch.cat([joined.pop(f"{name}/{key}") for key in parts], 1)
    whole, split = learner(kind, [0], 5, joined), learner(kind, [0], parts)
    for one in (whole, split):
        one.run(3)
    for name, value in whole.agents_parameters(0).items():
        assert torch.equal(split.agents_parameters(0)[name], value), name


def test_agents_that_learn_from_one_vector_say_so() -> None:
    with pytest.raises(ConfigError, match=r"edac learns from one vector, and observations are image .*train it with"):
        EDAC(problem(BOTH))


@pytest.mark.parametrize(("options", "message"), [({"shift": -1}, "bc.shift is -1"), ({"encoder": "big"}, "'big'")])
def test_settings_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BC(problem(BOTH), **options)
