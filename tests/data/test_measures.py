"""TQ and SACo on data whose counts are known by hand."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from make_files import three_episodes

from surefoot.core.base.errors import ConfigError, DataError
from surefoot.data import Dataset, load, measures
from surefoot.data.dataset import NO_REWARDS, REWARDS
from surefoot.data.formats.flat import Source, dataset_from_arrays


def grid(states: list[int], actions: list[int], name: str = "grid") -> Dataset:
    """One row for each state and action given, in steps that end at once."""
    count = len(states)
    arrays = {
        "observations": np.asarray(states, np.float32)[:, None],
        "actions": np.asarray(actions, np.float32)[:, None],
        "rewards": np.ones(count, np.float32),
        "terminals": np.ones(count, bool),
        "timeouts": np.zeros(count, bool),
    }
    return dataset_from_arrays(arrays, Source(name))


FULL = grid([s for s in range(4) for _ in range(4)], [a for _ in range(4) for a in range(4)], "full")


def test_saco_counts_pairs_that_are_visited_against_those_of_the_reference() -> None:
    # By hand: edges at 0, 0.75, 1.5, 2.25, 3 put 0, 1, 2, 3 into cells 1, 2, 3 and 5.
    half = grid([0, 0, 0, 0, 1, 1, 1, 1] * 2, [0, 1, 2, 3] * 4, "half")
    assert measures.coverage(half, FULL).unique == 8
    assert measures.saco(half, FULL) == 0.5
    assert measures.saco(FULL, FULL) == 1
    shuffled = FULL.select_episodes(np.arange(16)).replace(
        observations=FULL.observations[::-1].copy(), actions=FULL.actions[::-1].copy()
    )
    assert measures.saco(shuffled, FULL) == 1, "the order of rows does not matter where all are counted"
    # The published rule counts the first rows only, and as many of the reference.
    assert measures.saco(FULL.select_episodes(np.arange(4)), FULL) == 1
    outside = grid([-9, 9], [0, 0])
    assert measures.cells(measures.state_actions(outside), measures.limits(FULL)).tolist() == [[0, 1], [5, 1]]


def test_all_measures_beside_a_reference_count_the_same_rows() -> None:
    # 13 cells in 16 rows, but one in the first 4, which are as many as the reference has, in 2 cells.
    few = grid([0, 0, 3, 3], [0, 0, 3, 3], "few")
    repeated = grid([0, 0, 0, 0, *range(4), *range(4), *range(4)], [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4)
    found = measures.measures(repeated, few)
    assert (found["cells_of_rows"], found["unique_cells"], found["saco"]) == (4, 1, 0.5)
    assert found["saco"] == measures.saco(repeated, few)
    assert not found["cells_saturated"]
    first = measures.projected_coverage(repeated.select_rows(np.arange(4)), measures.limits(few))
    assert found["projected_coverage"] == first
    assert measures.measures(repeated)["cells_of_rows"] == 16


def test_adding_state_and_action_before_counting_as_the_official_exact_form_does_is_wrong() -> None:
    # The official exact variant adds the two cell numbers where it should concatenate them: 16 pairs become 7 sums.
    cells = measures.cells(measures.state_actions(FULL), measures.limits(FULL), edges=4)
    assert measures.exact_count(cells) == 16
    assert measures.exact_count(cells[:, :1] + cells[:, 1:]) == 7


@pytest.mark.parametrize("count", [50, 3_000, 60_000])
def test_the_approximate_count_is_within_three_standard_errors(count: int) -> None:
    rows = np.stack([np.arange(2 * count) % count // 251, np.arange(2 * count) % count % 251], 1)
    assert measures.exact_count(rows) == count
    assert measures.approximate_count(rows) == pytest.approx(count, rel=3 * 1.04 / 2**7)


def test_projected_coverage_orders_data_where_counting_cells_saturates() -> None:
    generator = np.random.default_rng(0)

    def points(scale: float) -> Dataset:
        values = generator.uniform(-scale, scale, (4_000, 30)).astype(np.float32)
        arrays = {
            "observations": values[:, :20],
            "actions": values[:, 20:],
            "rewards": np.zeros(4_000, np.float32),
            "terminals": np.ones(4_000, bool),
        }
        return dataset_from_arrays(arrays, Source(f"points within {scale}"))

    wide, narrow = points(1.0), points(0.5)
    bounds = measures.limits(wide)
    assert measures.coverage(narrow, wide).saturated
    assert measures.projected_coverage(narrow, bounds) < 0.6 * measures.projected_coverage(wide, bounds)
    assert measures.projected_coverage(wide, bounds) == measures.projected_coverage(wide, bounds)


def test_trajectory_quality_is_0_of_random_and_1_of_expert_returns() -> None:
    data = load_three()  # returns 6, 22, 17: mean 15
    assert measures.trajectory_quality(data, (5.0, 25.0)) == 0.5
    assert measures.trajectory_quality(data, (15.0, 20.0)) == 0
    assert measures.trajectory_quality(data, (0.0, 15.0)) == 1
    assert measures.trajectory_quality(data) is None, "no returns are known for it"
    hopper = data.replace(env_id="Hopper-v5")
    assert measures.trajectory_quality(hopper.replace(attributes={REWARDS: NO_REWARDS})) is None, "they are all 0"
    assert measures.trajectory_quality(hopper) == pytest.approx((15 + 20.272305) / (3234.3 + 20.272305))


def load_three() -> Dataset:
    return dataset_from_arrays(three_episodes(), Source("three"))


def test_what_can_not_be_compared_is_refused() -> None:
    with pytest.raises(DataError, match="give a reference of the same task"):
        measures.coverage(load_three(), FULL)
    with pytest.raises(ConfigError, match="edges is 1"):
        measures.coverage(FULL, FULL, edges=1)
    frames = np.zeros((16, 3, 4, 4), np.uint8)
    seen = FULL.replace(observations=np.zeros((16, 0), np.float32), extras={"observations/image": frames})
    with pytest.raises(DataError, match=r"observations are image \(3, 4, 4\)"):
        measures.coverage(seen)


def test_better_data_has_the_higher_quality_and_mixed_data_the_wider_coverage(shared_data: pathlib.Path) -> None:
    expert, mixed = (load(shared_data / f"hopper-v5-{kind}-sb3.hdf5") for kind in ("expert", "mixed"))
    assert (measures.trajectory_quality(expert) or 0) > 0.9 > 0.2 > (measures.trajectory_quality(mixed) or 1)
    assert measures.saco(expert, mixed) < 0.7
