"""Charts as SVG: coordinates by hand in a frame of 100 x 100 pixels."""

import re

import numpy as np
import pytest

from imitate.data.quality.report.svg import (
    Line,
    Plot,
    el,
    histogram,
    padded,
    share_bar,
    short,
    ticks,
)


def plot(x=(0, 10), y=(0, 4), **how):
    """The left edge is at 46, the right one at 146, the top at 8, the base at 108."""
    return Plot(x, y, width=158, height=142, **how)


def parts(drawing, name):
    """Attributes of all elements of a name, as numbers where they are."""
    found = []
    for text in re.findall(rf"<{name}\b([^>]*)", drawing):
        pairs = re.findall(r'([\w-]+)="([^"]*)"', text)
        found.append({k: float(v) if re.fullmatch(r"-?[\d.]+", v) else v for k, v in pairs})
    return found


def texts(drawing, class_):
    return re.findall(rf'<text[^>]*class="{class_}"[^>]*>([^<]*)<', drawing)


@pytest.mark.parametrize(
    ("element", "text"),
    [
        (el("g"), "<g/>"),
        (el("g", "a<b", el("i")), "<g>a&lt;b<i/></g>"),
        (el("g", class_="x", a_b=1, c=None), '<g class="x" a-b="1"/>'),
        (el("g", x=1.25, y=2.0, z=0.04), '<g x="1.2" y="2" z="0"/>'),
    ],
)
def test_elements(element, text):
    assert element == text


@pytest.mark.parametrize(
    ("low", "high", "most", "found"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 10, 10, list(range(11))),
        (0, 10, 9, [0, 2, 4, 6, 8, 10]),
        (0, 50, 5, [0, 10, 20, 30, 40, 50]),
        (0, 24, 5, [0, 5, 10, 15, 20]),
        (0.1, 0.9, 2, [0.5]),
        (-3, 3, 3, [-2, 0, 2]),
        (0, 99, 1, [0]),
    ],
)
def test_round_numbers_between_limits(low, high, most, found):
    assert ticks(low, high, most) == pytest.approx(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1e-10, "0"),
        (1e-9, "1e−09"),
        (999.0, "999"),
        (1000.0, "1k"),
        (-2500.0, "−2.5k"),
        (999_999.0, "1000k"),
        (1e6, "1M"),
        (-3e6, "−3M"),
    ],
)
def test_numbers_of_ticks(value, text):
    assert short(value) == text


def test_coordinates():
    frame = plot()
    assert frame.at(0, 0) == (46, 108) and frame.at(10, 4) == (146, 8)
    assert frame.at(2.5, 1) == (71, 83)
    x, y = frame.at(np.array([0, 5]), np.array([4, 2]))
    assert (x.tolist(), y.tolist()) == ([46, 96], [8, 58])
    shifted = plot(x=(10, 20), y=(-4, 0))
    assert shifted.at(15, -2) == (96, 58)


@pytest.mark.parametrize(
    ("limits", "found"),
    [((3, 3), (2.5, 3.5)), ((100, 100), (95, 105)), ((-100, -100), (-105, -95)), ((0, 1), (0, 1))],
)
def test_a_range_that_is_a_point_is_widened(limits, found):
    assert plot(x=limits).x_range == pytest.approx(found)


def test_equal_scales():
    frame = plot(x=(0, 1), y=(0, 4), equal=True)
    assert frame.x_range == (-1.5, 2.5) and frame.y_range == (0.0, 4.0)
    wide = Plot((0, 8), (0, 1), width=258, height=142, equal=True)  # 200 x 100 pixels
    assert wide.x_range == (0.0, 8.0) and wide.y_range == (-1.5, 2.5)
    assert Plot((0, 1), (0, 1)).width == 300 and Plot((0, 1), (0, 1)).height == 170


def test_bars():
    frame = plot()
    frame.bars([4, 0, 2], [0.0, 2.0, 4.0, 10.0], lambda k: f"bar {k}")
    drawn = frame.draw()
    first, third = parts(drawn, "rect")
    assert first == {"class": "bar", "x": 46.5, "y": 8, "width": 19, "height": 100}
    assert third == {"class": "bar", "x": 86.5, "y": 58, "width": 59, "height": 50}
    assert "bar 0" in drawn and "bar 1" not in drawn
    frame = plot(x=(0, 1000), y=(0, 1000))
    frame.bars([1], [0.0, 1.0], str)
    assert parts(frame.draw(), "rect") == [
        {"class": "bar", "x": 46.5, "y": 106.5, "width": 1, "height": 1.5}
    ]


def test_lines_bands_dots_and_marks():
    frame = plot()
    frame.line(Line(np.array([[0, 0], [10, 4]]), "demo", "a line"))
    frame.band(np.array([0, 10]), np.array([0, 1]), np.array([1, 4]))
    frame.dot(5, 2, "start", "a dot")
    frame.mark(2.5)
    frame.mark(5, "other")
    drawn = frame.draw()
    line, band = parts(drawn, "path")
    assert line == {"class": "demo", "d": "M46.0 108.0L146.0 8.0"}
    assert band == {"class": "band", "d": "M46.0 83.0L146.0 8.0L146.0 83.0L46.0 108.0Z"}
    assert parts(drawn, "circle") == [{"class": "start", "cx": 96, "cy": 58, "r": 3}]
    marks = [line for line in parts(drawn, "line") if line["class"] in ("limit", "other")]
    assert marks == [
        {"class": "limit", "x1": 71, "x2": 71, "y1": 8, "y2": 108},
        {"class": "other", "x1": 96, "x2": 96, "y1": 8, "y2": 108},
    ]


def test_axes():
    drawn = plot(labels=("time", "height"), title="A title").draw()
    assert texts(drawn, "tick y") == ["0", "2", "4"]
    assert texts(drawn, "tick") == ["0", "5", "10"]
    assert texts(drawn, "label") == ["time", "height"]
    grid = [line for line in parts(drawn, "line") if line["class"] == "grid"]
    assert [line["y1"] for line in grid] == [108, 58, 8]
    assert {(line["x1"], line["x2"], line["y1"] - line["y2"]) for line in grid} == {(46, 146, 0)}
    assert {"class": "axis", "x1": 46, "x2": 146, "y1": 108, "y2": 108} in parts(drawn, "line")
    placed = {text["class"]: (text["x"], text["y"]) for text in parts(drawn, "text")[::-1]}
    assert placed["tick y"] == (40, 111.5) and placed["tick"] == (46, 122)
    across, up = (text for text in parts(drawn, "text") if text["class"] == "label")
    assert (across["x"], across["y"]) == (96, 137)
    assert (up["x"], up["y"], up["transform"]) == (11, 58, "rotate(-90 11 58.0)")
    (svg,) = parts(drawn, "svg")
    assert svg == {
        **{"viewBox": "0 0 158 142", "width": 158, "height": 142, "role": "img"},
        "aria-label": "A title",
    }
    plain = plot().draw()
    assert texts(plain, "label") == [] and "aria-label" not in plain


def test_larger_frames_have_more_ticks():
    drawn = Plot((0, 10), (0, 10), width=1000, height=500).draw()
    assert texts(drawn, "tick") == [str(n) for n in range(11)]
    assert texts(drawn, "tick y") == [str(n) for n in range(11)]


@pytest.mark.parametrize(("share", "found"), [(0.1, (-1, 11)), (0.0, (0, 10))])
def test_a_range_with_a_margin(share, found):
    assert padded(np.array([0.0, 10.0, 3.0]), share) == pytest.approx(found)
    assert padded(np.array([0.0, 100.0])) == pytest.approx((-6, 106))


def titles(drawn):
    return re.findall(r"<title>([^<]*)", drawn)


@pytest.mark.parametrize(
    ("values", "how", "found"),
    [
        ([3, 3, 4, 9], {}, ["3: 2 demos", "4: 1 demo", "9: 1 demo"]),
        ([0, 99], {"bins": 10}, ["0 to 9: 1 demo", "90 to 99: 1 demo"]),
        ([0, 199], {"bins": 40}, ["0 to 4: 1 demo", "195 to 199: 1 demo"]),
        ([0, 200], {"bins": 2}, ["0 to 100: 1 demo", "100 to 200: 1 demo"]),
        ([0.5, 1.5], {"bins": 2}, ["0.5 to 1: 1 demo", "1 to 1.5: 1 demo"]),
        ([1, 2], {"bins": 2, "limits": (0, 4)}, ["0 to 2: 1 demo", "2 to 4: 1 demo"]),
        ([0.5, 0.5], {"bins": 2}, ["0.5 to 1: 2 demos"]),
    ],
)
def test_histograms(values, how, found):
    assert titles(histogram(np.array(values), noun="demo", label="x", **how)) == found


def test_a_histogram_of_few_numbers_has_room_at_its_sides():
    drawn = histogram(np.array([5, 5]), noun="demo", label="steps", width=148, height=142)
    # nine bars from 0.5 to 9.5 in 90 pixels; the highest fills 1 / 1.05 of the height
    (bar,) = parts(drawn, "rect")
    assert (bar["x"], bar["width"]) == (86.5, 9)
    assert bar["height"] == pytest.approx(100 / 1.05, abs=0.06)
    assert texts(drawn, "label") == ["steps", "demos"]
    drawn = histogram(np.arange(9), noun="demo", label="x", marks=[4.0], width=148, height=142)
    assert len(parts(drawn, "rect")) == 9
    (mark,) = (line for line in parts(drawn, "line") if line["class"] == "limit")
    assert mark["x1"] == 91


@pytest.mark.parametrize(("share", "width"), [(0.0, 1), (0.5, 60), (1.0, 120)])
def test_the_bar_of_a_table(share, width):
    drawn = share_bar(share, "half")
    track, bar = parts(drawn, "rect")
    assert track == {"class": "track", "x": 0, "y": 3, "width": 120, "height": 8, "rx": 2}
    assert bar == {"class": "bar", "x": 0, "y": 3, "width": width, "height": 8, "rx": 2}
    (svg,) = parts(drawn, "svg")
    assert (svg["viewBox"], svg["width"], svg["height"]) == ("0 0 120 14", 120, 14)
    assert titles(drawn) == ["half"] and svg["aria-label"] == "half"
