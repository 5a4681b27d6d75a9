from __future__ import annotations

import pathlib
import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes

from surefoot.core.base.errors import ConfigError, SurefootError
from surefoot.evaluation import plots
from surefoot.evaluation.curves import CurvePoint

CURVE = [CurvePoint(0, -1200.0, -1300.0, -1100.0), CurvePoint(5000, -200.0, -250.0, -150.0)]
FLAT = [CurvePoint(0, -1200.0, float("nan"), float("nan")), CurvePoint(5000, -1100.0, -9e9, 9e9)]


def test_a_learning_curve_shows_means_band_behaviour_and_labelled_axes() -> None:
    axes = plots.learning_curves({"iql": CURVE, "bc": FLAT}, "pendulum", behaviour=-1000.0).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [-1200, -200])
    (data,) = [line for line in axes.lines if line.get_label() == "behaviour (data)"]
    assert (data.get_linestyle(), set(data.get_ydata())) == ("--", {-1000.0})
    assert axes.get_xlabel().startswith("gradient steps")
    assert "return" in axes.get_ylabel()
    assert axes.get_ylim()[0] > -2000  # an enormous interval does not squash the curves


def marks(axes: Axes, marker: str) -> list[tuple[float, float]]:
    """Places of the triangles of one kind."""
    lines = [line for line in axes.lines if line.get_marker() == marker and line.get_linestyle() == "None"]
    return [(float(x), float(y)) for line in lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def test_a_band_inside_the_picture_is_drawn_whole_and_without_a_mark() -> None:
    points = [CurvePoint(k, 10.0 * k, 10.0 * k - 15, 10.0 * k + 15) for k in range(5)]
    axes = plots.learning_curves({"iql": points}).axes[0]
    box = axes.collections[0].get_paths()[0].get_extents()
    bottom, top = axes.get_ylim()
    assert (box.y0, box.y1) == (-15.0, 55.0)
    assert bottom < -15
    assert top > 55
    assert marks(axes, "v") == marks(axes, "^") == []
    assert plots.CUT not in axes.get_xlabel()


def test_a_band_that_is_cut_at_the_axis_has_a_mark_there_and_is_drawn_all_the_same() -> None:
    points = [CurvePoint(k, 10.0 * k, 10.0 * k - 1, 10.0 * k + 1) for k in range(5)]
    points[3] = CurvePoint(3, 30.0, -500.0, 560.0)
    points[4] = CurvePoint(4, 40.0, 39.0, 560.0)
    axes = plots.learning_curves({"iql": points}).axes[0]
    bottom, top = axes.get_ylim()
    # means from 0 to 40, half of that on either side (20), and a margin of a twentieth of 80
    assert (bottom, top) == pytest.approx((-24.0, 64.0))
    assert marks(axes, "v") == [(3.0, bottom)]
    assert marks(axes, "^") == [(3.0, top), (4.0, top)]
    assert plots.CUT in axes.get_xlabel()
    box = axes.collections[0].get_paths()[0].get_extents()
    assert (box.x0, box.x1, box.y0, box.y1) == (0.0, 4.0, -500.0, 560.0)


def test_a_cost_limit_is_a_line_inside_the_picture() -> None:
    costs = {"ppo_lag": [CurvePoint(0, 1.0, 0.5, 1.5), CurvePoint(100, 2.0, 1.5, 2.5)]}
    axes = plots.learning_curves(costs, label=plots.COST, limits=[25.0]).axes[0]
    (line,) = [line for line in axes.lines if line.get_label() == "cost limit 25"]
    assert set(line.get_ydata()) == {25.0}
    assert axes.get_ylim()[0] < 1 < 25 < axes.get_ylim()[1]
    against = plots.return_against_cost({"ppo_lag": ([2.0], [1.0])}, limits=[25.0]).axes[0]
    assert against.get_xlim()[1] > 25


def test_the_final_evaluation_stands_apart_from_the_curves_last_point() -> None:
    finals = {"iql": {"mean": -300.0, "low": -2000.0, "high": -250.0}}
    figure = plots.learning_curves({"iql": CURVE}, finals=finals)
    axes = figure.axes[0]
    (mark,) = [line for line in axes.lines if line.get_marker() == "D" and len(line.get_xdata()) == 1]
    assert mark.get_markerfacecolor() == "white"
    assert mark.get_xdata()[0] == pytest.approx(5000 * 1.035)
    assert mark.get_ydata()[0] == -300.0
    assert marks(axes, "v") == [(pytest.approx(5175.0), axes.get_ylim()[0])]
    assert plots.FINAL in [text.get_text() for text in figure.legends[0].get_texts()]


def test_more_curves_than_colours_are_told_apart_by_line_and_mark() -> None:
    axes = plots.learning_curves({f"run {i}": CURVE for i in range(15)}).axes[0]
    looks = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines]
    assert len(set(looks)) == 15


@pytest.mark.parametrize("ending", [".pdf", ".svg", ".png"])
def test_a_figure_for_print_is_the_same_file_each_time(ending: str, tmp_path: pathlib.Path) -> None:
    panel = plots.Panel({"iql": CURVE}, "pendulum")
    for name in ("a", "b"):
        figure = plots.curve_panels([panel, panel], size=(plots.COLUMN, 2.0), style=plots.PRINT)
        plots.save(figure, tmp_path / f"{name}{ending}")
    content = (tmp_path / f"a{ending}").read_bytes()
    assert content == (tmp_path / f"b{ending}").read_bytes()
    if ending == ".pdf":
        assert b"/Type3" not in content
        assert b"/FontFile2" in content  # an embedded TrueType font, which is Type 42
        (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", content)
        assert float(box) == pytest.approx(72 * 3.25)
    if ending == ".svg":
        assert b">gradient steps</text>" in content


def test_a_figure_of_another_ending_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"names no kind of figure; give \.pdf, \.svg, \.png"):
        plots.save(plots.learning_curves({"iql": CURVE}), tmp_path / "x.eps")
    assert not list(tmp_path.iterdir())


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


def test_a_models_band_that_is_cut_has_a_mark_too() -> None:
    from surefoot.evaluation.model_calibration import picture

    ahead = {
        "steps": [1, 2],
        "mean": [0.5, 1.0],
        "members": [],
        "low": [0.1, 0.2],
        "high": [0.9, 9.0],
        "constant": [1, 1],
    }
    axes = picture([{"open_loop": ahead, "levels": [0.5], "observed": [0.5]}]).axes[0]
    assert axes.get_ylim() == (0.0, 1.6)
    assert marks(axes, "^") == [(2.0, 1.6)]
    assert plots.CUT in axes.get_xlabel()
    whole = picture([{"open_loop": {**ahead, "high": [0.9, 1.5]}, "levels": [0.5], "observed": [0.5]}]).axes[0]
    assert marks(whole, "^") == marks(whole, "v") == []
    assert whole.get_xlabel() == "steps ahead"
