"""Pictures: the numbers they show, one style on light and dark pages, no matplotlib until one is drawn."""

import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from mercer.figures import plots
from mercer.figures.narrow import narrow, write_svg
from mercer.figures.theme import DARK, LIGHT, canvas, png, svg

CURVES = {
    "a": {"x": [0, 1, 2], "y": [1.0, float("nan"), 3.0], "low": [0.5, 1, 2], "high": [1.5, 2, 4]},
    "b": {"x": [0, 1, 2], "y": [2.0, 2.0, float("inf")]},
}
POINTS = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


def _halves(rows):
    share = 1 / (1 + np.exp(-rows[:, 0]))
    return np.stack([share, 1 - share], 1)


DRAW = {  # a new picture joins every test below by adding one line here
    "lines": lambda theme: plots.lines(CURVES, x_label="epoch", y_label="loss", title="T", theme=theme),
    "many": lambda theme: plots.lines({f"c{i}": CURVES["b"] for i in range(12)}, theme=theme),
    "bars": lambda theme: plots.bars(
        {"ours": {"p": 1.0, "q": 2.0}, "paper": {"p": 1.5}}, errors={"ours": {"p": 0.1}}, theme=theme
    ),
    "reliability": lambda theme: plots.reliability([1, 0, 3], [0.3, np.nan, 0.9], [0.0, np.nan, 1.0], theme=theme),
    "canvas": lambda theme: canvas(1, 2, theme=theme)[0],
    "band": lambda theme: plots.band([0, 1, 2], [1, 2, 1], [0.1, 0.5, 1], ([0, 1], [1.1, 1.8]), theme=theme),
    "confidence": lambda theme: plots.confidence(_halves, POINTS, [0, 1, 1], grid=20, theme=theme),
}


@pytest.fixture(params=DRAW)
def draw(request):
    return DRAW[request.param]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_every_picture_is_drawn_on_its_themes_paper(draw, theme):
    image = Image.open(io.BytesIO(png(draw(theme.name), dpi=40))).convert("RGB")
    assert "#{:02x}{:02x}{:02x}".format(*image.getpixel((0, 0))) == theme.paper
    assert len(image.getcolors(100_000)) > 3


def test_both_themes_give_one_svg_that_follows_the_page(draw):
    light = svg(draw("light"))
    assert light.startswith("<svg") and ET.fromstring(light).tag.endswith("svg")
    assert "@media screen and (prefers-color-scheme: dark)" in light
    body = light.split("</style>", 1)[1]
    fixed = set(re.findall(r"(?<!, )#[0-9a-f]{6}\b", body))
    assert fixed <= {"#fefefe", "#101010"}  # the numbers on a heat map, whose cells keep their colours
    assert svg(draw("light")) == light
    if "<image" not in light:
        assert without_ids(svg(draw("dark"))) == without_ids(light)


def without_ids(text):
    """Matplotlib names a marker by a hash of its shape and colour."""
    return re.sub(r"\b[a-z][0-9a-f]{10}\b", "", text)


def test_svg_text_stays_text():
    text = svg(DRAW["lines"]("light"))
    assert ">epoch</text>" in text and ">loss</text>" in text and "system-ui" in text and "DejaVu" not in text


def test_a_plot_is_made_narrow_after_it_was_drawn():
    figure = DRAW["many"]("light")
    wide = svg(figure)
    thin = svg(narrow(figure, 3.0))
    assert 'width="216pt"' in thin and 'width="216pt"' not in wide
    assert all(f">c{i}</text>" in thin for i in range(12))


@pytest.mark.parametrize("pictures", [True, False], ids=["two by two", "one below the other"])
def test_panels_side_by_side_are_stacked_for_a_phone(pictures):
    figure, axes = canvas(2, 3)
    for i, ax in enumerate(axes):
        ax.set_visible(i < 5)
        ax.set(title=f"a title of the panel number {i}", ylabel="height" if i % 3 == 0 else "")
        drawn = ax.imshow(np.eye(3)) if pictures else ax.plot([1, 2])
    if pictures:
        figure.colorbar(drawn, ax=axes).set_label("confidence")
    narrow(figure)
    figure.draw_without_rendering()
    shown = [ax for ax in axes if ax.get_visible()]
    boxes = np.array([ax.get_position().bounds for ax in shown])  # (5, 4)
    assert figure.get_size_inches()[0] == 4.1
    assert len(np.unique(boxes[:, 0].round(1))) == (2 if pictures else 1)
    assert (boxes[:, 2] > (0.33 if pictures else 0.6)).all() and (boxes[:, 3] > 0.1).all()
    assert [ax.get_ylabel() for ax in shown] == ["height", "", "height", "", "height"] if pictures else ["height"] * 5
    assert figure.axes[-1].get_xlabel() == ("confidence" if pictures else "")


def test_a_title_that_comes_twice_stays_with_the_panel_above_it():
    figure, axes = canvas(2, 2)
    for ax, title in zip(axes, ("layer 1", "layer 2", "kernel", "kernel"), strict=True):
        ax.set_title(title)
    narrow(figure)
    assert [ax.get_title() for ax in sorted(axes, key=lambda ax: ax.get_subplotspec().num1)] == [
        "layer 1", "kernel", "layer 2", "kernel",
    ]  # fmt: skip


def test_a_picture_is_written_for_a_desk_and_for_a_phone(tmp_path):
    write_svg(DRAW["lines"]("light"), tmp_path / "a.svg")
    assert 'width="460.8pt"' in (tmp_path / "a.svg").read_text()
    assert 'width="295.2pt"' in (tmp_path / "a_narrow.svg").read_text()


def test_lines_show_the_numbers_and_leave_gaps():
    (ax,) = DRAW["lines"]("light").axes
    first, second = ax.get_lines()
    np.testing.assert_array_equal(first.get_ydata(), [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(second.get_ydata(), [2.0, 2.0, np.nan])
    assert len(ax.collections) == 1 and first.get_color() != second.get_color()


def test_when_the_colours_come_round_the_dashes_change():
    (ax,) = DRAW["many"]("light").axes
    looks = {(line.get_color(), str(line._dash_pattern)) for line in ax.get_lines()}
    assert len(looks) == 12


def test_bars_leave_out_what_is_missing():
    (ax,) = DRAW["bars"]("light").axes
    widths = [patch.get_width() for patch in ax.patches]
    np.testing.assert_array_equal(widths, [1.0, 2.0, 1.5, np.nan])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["p", "q"]


def test_reliability_names_its_error():
    top = DRAW["reliability"]("light").axes[0]
    assert top.get_title() == "expected calibration error 0.150"  # (1 * 0.3 + 3 * 0.1) / 4


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_colours_can_be_told_from_the_paper(theme):
    def contrast(a, b):
        low, high = sorted([luminance(a), luminance(b)])
        return (high + 0.05) / (low + 0.05)

    assert all(contrast(colour, theme.paper) >= 3 for colour in theme.series)
    assert contrast(theme.ink, theme.paper) >= 7 and contrast(theme.soft, theme.paper) >= 4.5


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: plots.lines({}), r"lines: curves must have at least one name; got none"),
        (
            lambda: plots.lines({"a": {"x": [1], "y": [1, 2]}}),
            r"x and y of 'a' must be as long; got \(1,\) and",
        ),
        (lambda: plots.lines(CURVES, theme="sepia"), r"figures: theme must be one of 'light', 'dark'; got 'sepia'"),
        (lambda: plots.reliability([0], [0], [0]), r"reliability: count, .* not all empty; got"),
    ],
)
def test_bad_input_is_named(call, reason):
    with pytest.raises(ValueError, match=reason):
        call()


def test_matplotlib_comes_with_the_first_picture_and_never_through_pyplot():
    code = (
        "import sys; from mercer.figures import plots, theme; assert 'matplotlib' not in sys.modules;"
        "theme.svg(plots.lines({'a': {'x': [1, 2], 'y': [1, 2]}})); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_logarithmic_axis_is_written_in_plain_numbers():
    text = svg(plots.lines({"a": {"x": [1, 10, 1000], "y": [0.02, 0.5, 0.06]}}, x_log=True, y_log=True))
    for number in (">1,000<", ">0.1<", ">0.02<"):
        assert number in text
    tiny = svg(plots.lines({"a": {"x": [1, 2], "y": [1e-9, 1e-6]}}, y_log=True))
    assert ">1e-09<" not in tiny


def test_the_control_is_dashed_and_grey():
    curve = {"x": [0, 1], "y": [1.0, 2.0]}
    drawn = plots.lines({"a": curve, "b": curve}, control="b").axes[0].lines
    assert drawn[1].get_color() == LIGHT.soft and drawn[0].get_linestyle() != drawn[1].get_linestyle()


def test_a_confusion_matrix_names_its_classes_and_counts():
    figure = plots.confusion([[1200, 3], [0, 7]], ["cat", "dog"])
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["1,200", "3", "\N{MIDDLE DOT}", "7"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["cat", "dog"]
    with pytest.raises(ValueError, match=r"counts must have shape \(2, 2\), as many as names; got \(1, 2\)"):
        plots.confusion([[1, 2]], ["cat", "dog"])


def test_a_scatter_has_the_diagonal_and_refuses_unequal_lengths():
    figure = plots.scatter([1.0, 2.0], [1.5, 4.0])
    low, high = figure.axes[0].get_xlim()
    assert (low, high) == figure.axes[0].get_ylim() and low < 1 and high > 4
    with pytest.raises(ValueError, match="x and y must be as long, not empty"):
        plots.scatter([1.0], [])


def test_large_numbers_on_an_axis_are_written_out():
    drawn = svg(plots.scatter([1e5, 9e5], [2e5, 8e5], x_label="price", y_label="predicted"))
    assert "1e6" not in drawn and "1e5" not in drawn
    assert "400,000" in drawn
