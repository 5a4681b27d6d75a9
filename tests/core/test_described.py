"""A constructor's signature says what a description holds, what it lacks, and what is refused when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from torch import nn

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.heads import DeterministicActor, GaussianActor
from surefoot.core.actors.memory_actors import ChunkActor, HistoryActor
from surefoot.core.actors.steered import SteeredActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.networks import Critic, LayerNorm
from surefoot.core.nn.velocity import PlainVelocity, VelocityNetwork


class Own(Actor):
    """A head as a user writes it: attributes of its arguments' names, and no word on how it is described."""

    kind = "test_own"
    optional = ("sharp",)
    unwritten = ("gain",)

    def __init__(
        self,
        observation_dim: int,
        network: VelocityNetwork,
        steps: int,
        widths: Sequence[int] = (4,),
        *,
        limit: float | None = None,
        norm: LayerNorm = False,
        critic: Critic | None = None,
        sharp: bool = False,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(observation_dim, steps)
        self.network, self.steps, self.widths, self.limit = network, steps, tuple(widths), limit
        self.norm, self.critic, self.sharp = norm, critic, sharp


class Handing(Own):
    """Hands all that it is given to its parent."""

    kind = "test_handing"

    def __init__(self, *sizes: Any, **options: Any) -> None:
        super().__init__(*sizes, **options)


NETWORK = {"velocity_hidden": [8], "velocity_activation": "relu", "velocity_layer_norm": False}
WRITTEN = {"network": "mlp", **NETWORK, "steps": 3, "widths": [5, 6], "limit": None, "norm": "after"}
OF_CRITIC = {"critic_hidden": [7], "critic_members": 2}


def made(kind: type[Own] = Own, **options: Any) -> Own:
    return kind(3, PlainVelocity(3, 2, (8,), "relu"), 3, (5, 6), norm="after", gain=2.0, **options)


@pytest.mark.parametrize("kind", [Own, Handing])
def test_a_description_has_the_arguments_in_their_order_and_no_sizes(kind: type[Own]) -> None:
    assert list(made(kind).description().items()) == list(WRITTEN.items())
    full = made(kind, critic=Critic(3, 2, (7,)), sharp=True).description()
    assert list(full.items()) == [*WRITTEN.items(), *OF_CRITIC.items(), ("sharp", True)]


@pytest.mark.parametrize("kind", [Own, Handing])
def test_what_is_read_is_of_the_same_kind_sizes_and_options(kind: type[Own]) -> None:
    again = kind.from_description(3, 2, {**WRITTEN, **OF_CRITIC, "sharp": True, "another": [1]})
    assert type(again) is kind
    assert again.description() == {**WRITTEN, **OF_CRITIC, "sharp": True}
    assert isinstance(again.critic, Critic)
    assert (again.layer.in_features, again.critic.mlp.weights[0].shape) == (3, (2, 7, 5))
    assert kind.from_description(3, 2, WRITTEN).sharp is False


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 3.5}, r"description of Own: steps is 3.5, must be a whole number"),
        ({"widths": 5}, "widths is 5, must be a list"),
        ({"widths": [5, "6"]}, r"widths\[1\] is '6', must be a whole number"),
        ({"limit": "far"}, "limit is 'far', must be a finite number"),
        ({"limit": float("nan")}, "limit is nan, must be a finite number"),
        ({"norm": "before"}, "norm is 'before', must be one of after"),
        ({"sharp": 1}, "sharp is 1, must be true or false"),
        ({"network": "mlq"}, "no velocity network is called 'mlq'.*mlp"),
        ({"network": ["mlp"]}, r"description of a VelocityNetwork: network is \['mlp'\], must be a text"),
        ({"velocity_hidden": [8.5]}, r"description of PlainVelocity: velocity_hidden\[0\] is 8.5"),
    ],
)
def test_values_of_another_type_are_refused_by_name(change: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Own.from_description(3, 2, {**WRITTEN, **change})


@pytest.mark.parametrize("name", ["steps", "widths", "velocity_hidden"])
def test_what_is_not_optional_must_be_there(name: str) -> None:
    with pytest.raises(ConfigError, match=f"has no key '{name}'"):
        Own.from_description(3, 2, {key: value for key, value in WRITTEN.items() if key != name})


def test_how_weights_begin_is_not_read_either() -> None:
    read = GaussianActor.from_description(3, 2, {"hidden": [4], "initialization": "no such thing"})
    assert "initialization" not in read.description()


def test_a_head_within_a_head_has_the_sizes_that_it_reads_and_gives() -> None:
    inner = ChunkActor(DeterministicActor(8, 6, (4,)), 3, 2, execute=2)
    head = HistoryActor(inner, 4, 2)
    deepest = {"actor": "deterministic", "hidden": [4], "activation": "relu"}
    written = {"length": 2, "inner": {"actor": "chunk", "chunk": 3, "execute": 2, "inner": deepest}}
    assert head.description() == written
    again = HistoryActor.from_description(4, 2, written)
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in head.state_dict().items()}


def test_a_head_of_another_kind_than_the_constructor_takes_is_not_built() -> None:
    flow = {"network": "mlp", **NETWORK, "steps": 3, "samples": 1}
    with pytest.raises(ConfigError, match="description of TanhGaussianActor: it has no key 'hidden'"):
        SteeredActor.from_description(3, 2, {"steering": flow, "flow": flow, "reach": 1.0})


class Forgetful(Actor):
    kind = "test_forgetful"

    def __init__(self, observation_dim: int, kept: int, lost=3) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.kept = kept


def test_a_head_that_does_not_keep_an_argument_is_told_which() -> None:
    with pytest.raises(TypeError, match="Forgetful must keep its argument 'lost' as an attribute of that name, or def"):
        Forgetful(3, 1).description()


class Slower(ChunkActor):
    kind = "test_slower"

    def __init__(self, inner: Actor, chunk: int, action_dim: int, pause: int, execute: int | None = None) -> None:
        super().__init__(inner, chunk, action_dim, execute)
        self.pause = pause


def test_an_argument_that_a_subclass_adds_is_described_too() -> None:
    head = Slower(DeterministicActor(4, 6, (4,)), 3, 2, pause=7)
    written = head.description()
    assert (written["pause"], written["chunk"], "execute" in written) == (7, 3, False)
    assert Slower.from_description(4, 2, written).pause == 7
