"""Features of an encoder that is not trained: computed once, and losses as with encoding at every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.engine.agent import Agent
from surefoot.core.engine.features import encodes_once
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import Stores
from surefoot.core.nn.encoders import Encoder
from surefoot.data.dataset import Dataset
from surefoot.data.frozen_features import with_features
from surefoot.data.pictures import shared
from surefoot.data.store import store_from_dataset
from surefoot.offline.bc import BC
from surefoot.offline.flow_bc import FlowBC
from surefoot.offline.iql import IQL
from surefoot.offline.rebrac import ReBRAC
from surefoot.offline.td3_bc import TD3BC

LENGTHS = (7, 5)
ROWS, SIZE = sum(LENGTHS), 32
OPTIONS: dict[str, Any] = {"encoder": "small", "encoder_features": 6, "hidden": (8,), "encoder_trains": False}
KINDS: dict[type[Agent], dict[str, Any]] = {
    BC: {"history": 2},
    FlowBC: {"chunk": 3, "flow_steps": 2, "history": 2},
    IQL: {},
    TD3BC: {},
    ReBRAC: {"chunk": 2},
}


def seen(size: int = SIZE) -> Dataset:
    """Two cameras and a state that has large numbers, of two episodes; what followed their last steps is known."""
    source, extras = np.random.default_rng(0), dict[str, Any]()
    whole: Any
    for key, shape in {"front": (size, size, 3), "wrist": (size, size, 3), "state": (2,)}.items():
        for length in LENGTHS:
            if key == "state":
                whole = (1e6 + 1e5 * source.normal(size=(length + 1, *shape))).astype(np.float32)
            else:
                whole = source.integers(0, 256, (length + 1, *shape), dtype=np.uint8)
            for which, part in (("", whole[:-1]), ("next_", whole[1:])):
                extras.setdefault(f"{which}observations/{key}", []).append(part)
    ends = np.zeros(ROWS, bool)
    ends[np.cumsum(LENGTHS) - 1] = True
    return Dataset(
        observations=np.zeros((ROWS, 0), np.float32), next_observations=np.zeros((ROWS, 0), np.float32),
        actions=source.uniform(-0.9, 0.9, (ROWS, 2)).astype(np.float32),
        rewards=source.normal(size=ROWS).astype(np.float32),
        terminations=np.zeros(ROWS, bool), truncations=ends, episode_ids=np.repeat(np.arange(len(LENGTHS)), LENGTHS),
        valid=np.ones(ROWS, bool), extras=shared({k: np.concatenate(v) for k, v in extras.items()}, None), name="seen",
    )  # fmt: skip


def learner(agent: Agent, dataset: Dataset) -> Learner:
    store = store_from_dataset(dataset, agent.required_columns)
    return Learner([agent], [0], agent.sources(Stores(dataset, store)), batch_size=6, planned_steps=20)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many observations are encoded at a time, from now on."""
    found: list[int] = []
    whole = Encoder.forward

    def forward(self: Encoder, observations: Any) -> Any:
        found.append(len(observations["front"]))
        return whole(self, observations)

    monkeypatch.setattr(Encoder, "forward", forward)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_training_on_cached_features_is_that_on_pictures(kind: type[Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh() -> tuple[Agent, Dataset]:
        made = kind(seen(), **{**OPTIONS, "normalization": "observations", **KINDS[kind]}).fresh(3)
        return made, made.prepare(seen())  # type: ignore[return-value]

    (first, plain), (second, ready) = fresh(), fresh()
    assert encodes_once(second)
    following = any(key.startswith("next_") for key in second.required_columns)
    calls = counted(monkeypatch)
    cached = with_features(ready, second.encoder, torch.device("cpu"), following)  # type: ignore[arg-type]
    assert sum(calls) == ROWS + (len(LENGTHS) if following else 0)  # each observation once
    calls.clear()
    losses = [learner(agent, data).run(10) for agent, data in ((first, plain), (second, cached))]
    assert calls  # of the first
    calls.clear()
    learner(second, cached).run(2)
    assert calls == []
    for name, value in losses[0].items():
        np.testing.assert_allclose(losses[1][name], value, rtol=1e-3, atol=1e-3)


def test_features_take_two_bytes_each_and_vectors_keep_their_digits() -> None:
    data = seen(48)
    agent = BC(data, **{**OPTIONS, "encoder": "resnet18", "encoder_features": 8}).fresh(0)
    assert agent.encoder is not None
    found = with_features(data, agent.encoder, torch.device("cpu"), True)
    features = found.extras["observations/~features"]
    assert (features.dtype, features.shape) == (np.float16, (ROWS, 16))
    np.testing.assert_array_equal(found.extras["observations/~vectors"], data.extras["observations/state"])
    np.testing.assert_array_equal(found.extras["next_observations/~vectors"], data.extras["next_observations/state"])
    assert not any("front" in name or "wrist" in name for name in found.extras)
    with torch.no_grad():
        agent.encoder.images["front"].linear.weight.mul_(1e7)
    wide = with_features(data, agent.encoder, torch.device("cpu"), False)
    assert wide.extras["observations/~features"].dtype == np.float32
    assert "next_observations/~features" not in wide.extras


def test_what_is_trained_is_encoded_anew() -> None:
    assert not encodes_once(BC(seen(), **{**OPTIONS, "encoder_trains": True}))
