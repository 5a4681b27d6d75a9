"""What `convert` says that a layout has no place for is what is gone when the file is read again."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from surefoot.data import Dataset, load, not_held, save
from surefoot.data.dataset import NO_REWARDS, REWARDS
from surefoot.data.save import CUT_OFF, LAYOUTS, OF_FILES, WRITERS
from surefoot.runs import embedded as generate


def full() -> Dataset:
    """Two episodes with costs, an extra column and an attribute of their own."""
    dataset = generate.generate("native/pendulum", 0, 400, "random")
    rows = len(dataset)
    extras = {"expert": np.ones(rows, np.float32)}
    attributes = {**dataset.attributes, "corruptions": "random observations"}
    return dataset.replace(costs=np.ones(rows, np.float32), extras=extras, attributes=attributes)


def places() -> list[tuple[str, str | None]]:
    """Name and layout of a file of each kind that we write."""
    own = [(f"file{suffix}", None) for suffix in WRITERS]
    return [*own, *((f"{layout}/train{endings[0]}", layout) for layout, (endings, _) in LAYOUTS.items())]


@pytest.mark.parametrize(("name", "layout"), places(), ids=lambda one: str(one))
def test_what_is_not_held_is_what_is_gone(name: str, layout: str | None, tmp_path: pathlib.Path) -> None:
    if layout == "lerobot" or name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    before, path = full(), tmp_path / name
    path.parent.mkdir(exist_ok=True)
    save(before, path, layout)
    after = load(path)
    gone = [key for key in ("env_id", "costs") if getattr(after, key) is None]
    gone += sorted({*before.extras} - {*after.extras})
    gone += sorted({*before.attributes} - {*after.attributes} - OF_FILES)
    gone += [CUT_OFF] if (before.transitions & ~after.transitions).any() else []
    assert not_held(before, path, layout) == gone


@pytest.mark.parametrize(("name", "layout"), [one for one in places() if one[1] != "dppo"], ids=lambda one: str(one))
def test_data_without_rewards_stay_so_in_a_file_that_is_written(
    name: str, layout: str | None, tmp_path: pathlib.Path
) -> None:
    if layout == "lerobot" or name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    before, path = full(), tmp_path / name
    before = before.replace(rewards=0 * before.rewards, attributes={REWARDS: NO_REWARDS})
    path.parent.mkdir(exist_ok=True)
    save(before, path, layout)
    assert not load(path).has_rewards


def test_minari_holds_no_extras_and_an_ogbench_file_holds_states() -> None:
    dataset = full()
    assert {"expert", "corruptions"} <= {*not_held(dataset, "minari/my/set-v0")}
    assert "costs" not in not_held(dataset, "minari/my/set-v0")
    states = dataset.replace(extras={"qpos": np.zeros((len(dataset), 2), np.float32)})
    assert not_held(states, "states.npz", "ogbench") == ["costs"]
