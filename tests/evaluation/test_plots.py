from __future__ import annotations

import pathlib
import xml.etree.ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest

from surefoot.core.base.errors import ConfigError, SurefootError
from surefoot.evaluation import plots
from surefoot.evaluation.curves import CurvePoint

CURVE = [CurvePoint(0, -1200.0, -1300.0, -1100.0), CurvePoint(5000, -200.0, -250.0, -150.0)]
FLAT = [CurvePoint(0, -1200.0, float("nan"), float("nan")), CurvePoint(5000, -1100.0, -9e9, 9e9)]


def test_a_learning_curve_shows_means_band_behaviour_and_labelled_axes() -> None:
    axes = plots.learning_curves({"iql": CURVE, "bc": FLAT}, "pendulum", behaviour=-1000.0).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [-1200, -200])
    assert axes.lines[2].get_linestyle() == "--"
    assert set(axes.lines[2].get_ydata()) == {-1000.0}
    assert axes.get_xlabel().startswith("gradient steps")
    assert "return" in axes.get_ylabel()
    assert axes.get_ylim()[0] > -2000  # an enormous interval does not squash the curves


def test_a_band_wider_than_the_picture_is_left_out_and_that_is_said() -> None:
    points = [CurvePoint(k, 10.0 * k, 10.0 * k - 1, 10.0 * k + 1) for k in range(5)]
    axes = plots.learning_curves({"iql": points}).axes[0]
    drawn, limits, said = axes.collections[0].get_paths(), axes.get_ylim(), plots.TOO_WIDE
    assert [path.get_extents().x0 for path in drawn] == [0.0]
    assert said not in axes.get_xlabel()
    points[3] = CurvePoint(3, 30.0, -500.0, 560.0)
    axes = plots.learning_curves({"iql": points}).axes[0]
    left = [path.get_extents() for path in axes.collections[0].get_paths()]
    assert max(box.x1 for box in left if box.width > 0) == 2.0  # nothing is drawn around step 3
    assert axes.get_ylim() == limits
    assert said in axes.get_xlabel()


@pytest.mark.parametrize("name", ["iql", "mobile (model_hidden=[32,32], model_decays=[], model_updates=80, 3 more)"])
def test_a_name_of_any_length_leaves_the_axes_their_width(name: str) -> None:
    figure = plots.learning_curves({name: CURVE}, "halfcheetah", behaviour=-1000.0)
    figure.canvas.draw()
    box, legend = figure.axes[0].get_position(), figure.legends[0].get_window_extent()
    assert box.width > 0.5
    assert not legend.overlaps(figure.axes[0].get_window_extent())


@pytest.mark.parametrize("name", ["iql", "mobile (model_hidden=[32,32], model_decays=[], model_updates=80, 3 more)"])
def test_a_legend_of_many_lines_is_all_in_the_picture_and_beside_the_axes(name: str) -> None:
    figure = plots.learning_curves({f"{name} {i}": CURVE for i in range(25)}, "halfcheetah")
    figure.canvas.draw()
    axes, legend = figure.axes[0], figure.legends[0].get_window_extent()
    assert axes.get_position().height * figure.get_figheight() > 1.5
    assert not legend.overlaps(axes.get_tightbbox())
    assert legend.y0 >= 0


def test_an_empty_learning_curve_is_refused() -> None:
    with pytest.raises(ConfigError, match="no evaluation"):
        plots.learning_curves({"iql": []})


def test_intervals_and_profiles_are_drawn_where_the_numbers_are() -> None:
    figure = plots.interval_plot(
        {"iql": {"mean": 5.0, "low": 4.0, "high": 6.5}, "one": {"mean": 1.0, "low": None, "high": None}},
        reference=2.0,
    )
    bar, dot, lonely, reference = figure.axes[0].lines
    np.testing.assert_array_equal(bar.get_xdata(), [4.0, 6.5])
    np.testing.assert_array_equal(dot.get_xdata(), [5.0])
    np.testing.assert_array_equal(lonely.get_xdata(), [1.0])
    assert reference.get_linestyle() == "--"
    thresholds = np.linspace(0, 1, 5)
    profile = np.array([1.0, 0.75, 0.5, 0.25, 0.0])
    figure = plots.performance_profiles({"iql": (profile, profile, profile)}, thresholds)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), profile)


def test_svg_is_well_formed_repeatable_and_free_of_matplotlib_s_global_state() -> None:
    before = dict(mpl.rcParams)
    first, again = (plots.to_svg(plots.learning_curves({"a<b>&": CURVE}, "t & <u>")) for _ in range(2))
    assert first == again
    assert ET.fromstring(first).tag.endswith("svg")
    assert dict(mpl.rcParams) == before


def test_png_is_written_whole_or_not_at_all(tmp_path: pathlib.Path) -> None:
    figure = plots.learning_curves({"iql": CURVE})
    plots.save_png(figure, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]
    (tmp_path / "file").write_text("")
    with pytest.raises(SurefootError, match="file"):
        plots.save_png(figure, tmp_path / "file" / "curve.png")


def test_return_against_cost_draws_each_limit_where_it_is() -> None:
    runs = {"careful": ([2.0, 3.0], [1.0, 3.0]), "plain": ([9.0], [40.0])}
    axes = plots.return_against_cost(runs, limits=[10.0, 25.0]).axes[0]
    assert [set(line.get_xdata()) for line in axes.lines] == [{10.0}, {25.0}]
    means = [spot.get_offsets().tolist() for spot in axes.collections if len(spot.get_offsets()) == 1]
    assert [2.0, 2.5] in [spot[0] for spot in means]
