"""The success classifier: labels, batches, the threshold, and that it finds success on episodes that it never saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.core.engine.agent import Spec
from surefoot.core.engine.learner import Learner
from surefoot.core.engine.sources import MAIN, Stores
from surefoot.data.arrays import from_arrays
from surefoot.data.dataset import Dataset
from surefoot.data.store import store_from_dataset
from surefoot.offline.classifier import Classifier, judged, threshold_of

NAME = "observations/image"


def frames(episodes: int = 12, steps: int = 10, seed: int = 0, pictures: bool = False) -> Dataset:
    """Success where the second number is above 0.6, or, of pictures, where their middle is bright."""
    source, count = np.random.default_rng(seed), episodes * steps
    walked = source.uniform(-1, 1, (count + 1, 2)).astype(np.float32)
    ends = np.arange(count) % steps == steps - 1
    made = from_arrays(
        walked[:-1], np.zeros((count, 1), np.float32), np.zeros(count, np.float32), ends & False, ends,
        next_observations=walked[1:],
    )  # fmt: skip
    success = walked[1:, 1] > 0.6
    if not pictures:
        return made.replace(extras={"success": success})
    drawn = source.integers(0, 80, (count + 1, 24, 24, 3)).astype(np.uint8)
    drawn[1:][success, 8:16, 8:16] += 150
    none = np.zeros((count, 0), np.float32)
    extras = {"success": success, NAME: drawn[:-1], f"next_{NAME}": drawn[1:]}
    return made.replace(observations=none, next_observations=none, extras=extras)


def trained(dataset: Dataset, steps: int, **options: Any) -> Classifier:
    agent = Classifier(Spec.of(dataset, [-1.0], [1.0]), hidden=(32,), learning_rate=3e-3, **options).fresh(0)
    ready = agent.prepare(dataset)
    store = store_from_dataset(ready, agent.required_columns)
    learner = Learner([agent], [0], agent.sources(Stores(ready, store)), batch_size=64)
    learner.run(steps)
    return learner.extract(0)  # type: ignore[return-value]


def test_it_finds_success_on_episodes_that_it_never_saw() -> None:
    agent, others = trained(frames(60), 1500), frames(60, seed=1)
    found = agent.judged_on(others, 0)["classifier"]
    assert found["failing"] + found["success"] == 600
    assert found["positives_at_half"] <= 0.03 * found["failing"]
    right = (agent.probability(torch.from_numpy(others.next_observations)).numpy() >= 0.5) == others.extras["success"]
    assert right.mean() > 0.97
    assert agent.judged_words({"classifier": found})[0].startswith("held-out episodes: ")


def test_it_learns_from_pictures_and_its_encoder_with_it() -> None:
    dataset = frames(20, pictures=True)
    options: dict[str, Any] = {"encoder": "small", "encoder_features": 16, "shift": 1}
    agent, others = trained(dataset, 80, **options), frames(20, seed=1, pictures=True)
    before = Classifier(Spec.of(dataset, [-1.0], [1.0]), hidden=(32,), **options).fresh(0)
    assert not all(
        torch.equal(a, b) for a, b in zip(agent.encoder.parameters(), before.encoder.parameters(), strict=True)
    )
    found = agent.probability(torch.from_numpy(np.asarray(others.extras[f"next_{NAME}"]))).numpy()
    right = (found >= 0.5) == others.extras["success"]
    assert right.mean() > 0.95
    assert agent.judged_on(others, 0)["classifier"]["success"] == int(others.extras["success"].sum())


def test_a_label_speaks_of_what_a_step_led_to_or_of_where_it_began() -> None:
    dataset = frames(2)
    for of, wanted in (("next_observations", dataset.next_observations), ("observations", dataset.observations)):
        agent = Classifier(Spec.of(dataset, [-1.0], [1.0]), label_of=of, normalization="none")
        ready = agent.prepare(dataset)
        np.testing.assert_array_equal(ready.observations, wanted)
        np.testing.assert_array_equal(ready.extras["labels"], dataset.extras["success"].astype(np.float32))
    rewarded = dataset.replace(rewards=np.arange(20, dtype=np.float32) - 10)
    agent = Classifier(Spec.of(dataset, [-1.0], [1.0]), label="rewards")
    assert agent.prepare(rewarded).extras["labels"].sum() == 9


def test_half_of_each_batch_is_success() -> None:
    dataset = frames(20)
    agent = Classifier(Spec.of(dataset, [-1.0], [1.0]))
    ready = agent.prepare(dataset)
    source = agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns)))[MAIN]
    source.bind([0, 1], 10, torch.device("cpu"))
    for step in range(5):
        batch = source.gather(source.rows(step))
        assert batch["labels"].tolist() == [[1.0, 0.0] * 5] * 2
    seen = torch.cat([source.rows(step)[0, ::2] for step in range(300)]).unique()
    assert len(seen) == int(dataset.extras["success"].sum())


def test_the_threshold_lets_one_failing_frame_in_a_thousand_pass() -> None:
    scores = np.concatenate([np.arange(2000) / 2500, [0.7, 0.79, 0.9]])
    success = np.arange(2003) >= 2000
    found = judged(scores, success)
    # 2,000 failing frames from 0 to 0.7996: two may pass, those of 1999 and 1998; 1997 may not.
    assert found["positives"] == 2
    assert found["threshold"] == pytest.approx(1997 / 2500)
    assert (found["positives_at_half"], found["missed"]) == (750, 2)
    few = judged(np.array([0.6, 0.2, 0.9]), np.array([False, False, True]))
    assert (few["threshold"], few["positives"], few["missed"]) == (pytest.approx(0.6), 0, 0)
    assert few["threshold"] > 0.6
    assert few["positives_bound"] == pytest.approx(1 - 0.05**0.5)  # none of two
    assert judged(np.array([0.1, 0.9]), np.array([False, True]))["threshold"] == 0.5
    with pytest.raises(ConfigError, match=r"runs/x: has no threshold"):
        threshold_of(judged(np.array([0.9]), np.array([True])), "runs/x")


def test_mistakes_are_named() -> None:
    dataset = frames(2)
    spec = Spec.of(dataset, [-1.0], [1.0])
    with pytest.raises(DataError, match=r"has no column 'sucess', which algo.label names.*success"):
        Classifier(spec, label="sucess").prepare(dataset)
    odd = dataset.replace(extras={"success": np.full(20, 2.0, np.float32)})
    with pytest.raises(DataError, match=r"'success' is \[2.0\] in row 0; a label is one number, 0 or 1"):
        Classifier(spec).prepare(odd)
    agent = Classifier(spec)
    ready = agent.prepare(dataset.replace(extras={"success": np.zeros(20, bool)}))
    with pytest.raises(DataError, match=r"'success' is 0 in all 20 rows: rows of both kinds are needed"):
        agent.sources(Stores(ready, store_from_dataset(ready, agent.required_columns)))
    with pytest.raises(ConfigError, match=r"label_of is 'frames'"):
        Classifier(spec, label_of="frames")
