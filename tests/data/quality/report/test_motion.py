"""Plots of motion: which arrays are drawn, with which points, ranges and words."""

from types import SimpleNamespace

import numpy as np
import pytest

from imitate.data.quality.doctor.survey import FileArray
from imitate.data.quality.report import contents
from imitate.data.quality.report.contents import actions, initial_states, places_in, trajectories


class Drawing:
    """Notes what is drawn, in place of a plot."""

    made = []

    def __init__(self, x, y, **how):
        self.x, self.y, self.how, self.parts = x, y, how, []
        self.made.append(self)

    def line(self, line):
        self.parts.append(("line", line.points.tolist(), line.class_, line.title))

    def dot(self, x, y, class_, title, radius=3.0):
        self.parts.append(("dot", [x, y], class_, title, radius))

    def band(self, x, low, high):
        self.parts.append(("band", x.tolist(), low.tolist(), high.tolist()))

    def draw(self):
        return "drawn"


@pytest.fixture(autouse=True)
def drawings(monkeypatch):
    Drawing.made.clear()
    monkeypatch.setattr(contents, "Plot", Drawing)
    return Drawing.made


class Subject:
    """Demos d0, d1, ... with arrays; the second one failed, and outcomes of others are not known."""

    names = {}

    def __init__(self, arrays, demos=2):
        shapes = {
            k: np.asarray(v[0] if isinstance(v, list) else v).shape[1:] for k, v in arrays.items()
        }
        steps = {k: FileArray((0, *shape), np.dtype("f8")) for k, shape in shapes.items()}
        self.layout, self.arrays, self.asked = SimpleNamespace(steps=steps), arrays, set()
        self.sample = [SimpleNamespace(name=f"d{n}", length=5) for n in range(demos)]
        self.outcomes = {f"d{n}": [True, False, None][n % 3] for n in range(demos)}

    def values(self, demo, key, most):
        self.asked.add((key, most))
        found = self.arrays.get(key)
        return found[int(demo.name[1:])] if isinstance(found, list) else found

    def pooled(self, key, most):
        self.asked.add((key, most))
        return self.arrays.get(key)


PATH = np.array([[0.0, 0, 1], [1, 2, 3], [2, 4, 5]])


# ---- paths ---------------------------------------------------------------------------------------


def test_paths_of_a_hand_from_two_sides(drawings):
    subject = Subject({"obs/robot0_eef_pos": [PATH, PATH + 1], "obs/eef_pos": PATH[:, :2]})
    section = trajectories(subject)
    assert (section.id, section.title, section.legend) == ("trajectories", "Trajectories", True)
    assert section.note == "2 demos; a circle where they begin, a dot where they end."
    assert [(figure.title, figure.caption) for figure in section.figures] == [
        ("robot0_eef_pos", "seen from above"),
        ("robot0_eef_pos", "seen from the side"),
    ]
    assert subject.asked == {("obs/robot0_eef_pos", 80)}
    above, beside = drawings
    labels = [plot.how.pop("labels") for plot in drawings]
    assert labels == [("x, m", "y, m"), ("x, m", "z, m")]
    for plot, words in ((above, "seen from above"), (beside, "seen from the side")):
        title = f"paths of obs/robot0_eef_pos {words}"
        assert plot.how == {"width": 460, "height": 340, "equal": True, "title": title}
        np.testing.assert_allclose(plot.x, (-0.18, 3.18))
    np.testing.assert_allclose(above.y, (-0.3, 5.3))
    np.testing.assert_allclose(beside.y, (0.7, 6.3))
    assert above.parts == [
        ("line", [[0, 0], [1, 2], [2, 4]], "way solved", "d0"),
        ("line", [[1, 1], [2, 3], [3, 5]], "way failed", "d1"),
        ("dot", [0, 0], "start solved", "d0 begins", 3.0),
        ("dot", [2, 4], "end solved", "d0 ends", 2.5),
        ("dot", [1, 1], "start failed", "d1 begins", 3.0),
        ("dot", [3, 5], "end failed", "d1 ends", 2.5),
    ]
    assert beside.parts[0][1] == [[0, 1], [1, 3], [2, 5]]


def test_demos_without_failures_and_without_values(drawings):
    found = trajectories(Subject({"obs/eef_pos": [PATH]}, demos=1))
    assert not found.legend and found.note.startswith("1 demo;")
    subject = Subject({"obs/eef_pos": [PATH, None, PATH]}, demos=3)
    assert len(trajectories(subject).figures) == 2
    assert {part[3] for part in drawings[-1].parts if part[0] == "line"} == {"d0", "d2"}
    subject = Subject({"obs/eef_pos": PATH}, demos=61)
    trajectories(subject)
    assert len([part for part in drawings[-1].parts if part[0] == "line"]) == 60
    assert trajectories(Subject({"obs/eef_pos": [None, None]})).figures == []


def test_curves_of_files_without_hands(drawings):
    curve = np.array([[1.0, 9], [3.0, 9]])
    keys = {f"obs/{name}": curve for name in ("z", "qpos", "a", "b", "c", "d", "e")}
    subject = Subject({**keys, "obs/i": np.zeros((2, 4, 4, 3)), "states": curve}, demos=6)
    subject.layout.steps["obs/text"] = FileArray((0,), np.dtype("S1"))
    subject.names = {"obs/qpos": ["lift", "turn"]}
    section = trajectories(subject)
    assert section.note == "The first low-dimensional observations over time."
    titles = [figure.title for figure in section.figures]
    assert titles == ["qpos, dimension 0 (lift)", *(f"{name}, dimension 0" for name in "abcde")]
    assert section.figures[0].curves == ["d0", "d1", "d2", "d4", "d5"]
    assert subject.asked == {(f"obs/{name}", 200) for name in ("qpos", *"abcde")}
    plot = drawings[0]
    assert plot.x == (0, 4) and plot.y == (0.88, 3.12)
    assert plot.how == {
        **{"width": 460, "height": 220, "labels": ("step", "value")},
        "title": "obs/qpos over time",
    }
    assert [part[2] for part in plot.parts] == [f"curve c{n}" for n in range(5)]
    assert plot.parts[0][:2] == ("line", [[0, 1], [4, 3]])
    one = Subject({"obs/s": [None, curve]})
    (figure,) = trajectories(one).figures
    assert figure.curves == ["d1"] and drawings[-1].parts[0][2] == "curve c0"
    assert trajectories(Subject({"obs/s": [None, None]})).figures == []


# ---- the first step ------------------------------------------------------------------------------


def poses(*parts):
    """Rows of objects whose quaternions have a length of 1."""
    return np.array([[*parts, *parts]] * 3)


ONE = (0.1, 0.2, 0.3, 0.0, 0.0, 0.6, 0.8)


@pytest.mark.parametrize(
    ("key", "starts", "found"),
    [
        ("obs/cube_pos", np.zeros((3, 3)), [0]),
        ("obs/cube_position", np.zeros((3, 2)), [0]),
        ("obs/cube_pos", np.zeros((3, 4)), []),
        ("obs/cube_pos", np.zeros((3, 1)), []),
        ("obs/cube", np.zeros((3, 3)), []),
        ("obs/object", poses(*ONE), [0, 7]),
        ("obs/object", poses(9.0, *ONE), [1, 9]),
        ("obs/object", poses(0.1, 0.2, 0.3, 0.0, 0.0, 0.6, 0.8009), [0, 7]),
        ("obs/object", poses(0.1, 0.2, 0.3, 0.0, 0.0, 0.6, 0.8014), [0]),
        ("obs/object", np.array([ONE, (*ONE[:6], 0.9)]), [0]),
        ("obs/object", np.zeros((3, 2)), [0]),
        ("obs/object", np.zeros((3, 1)), []),
    ],
)
def test_places_in_observations(key, starts, found):
    assert places_in(key, starts) == found


def test_objects_at_the_first_step(drawings):
    cube = np.array([[0.5, 0.25, 0.1], [9, 9, 9]])
    subject = Subject({"obs/cube_pos": [cube, cube + 1, None], "obs/eef_pos": cube}, demos=3)
    subject.names = {"obs/cube_pos": ["x", "y", "z"]}
    section = initial_states(subject)
    assert section.note == "Objects at the first step of 3 demos: how much the scenes differ."
    assert (section.id, section.title, section.grid) == ("starts", "Initial states", "grid starts")
    (figure,) = section.figures
    assert (figure.title, figure.caption) == ("cube_pos", "dimensions 0 (x) and 1 (y)")
    assert subject.asked == {("obs/cube_pos", 1)}
    (plot,) = drawings
    np.testing.assert_allclose([plot.x, plot.y], [(0.44, 1.56), (0.19, 1.31)])
    assert plot.how == {
        **{"width": 300, "height": 260, "equal": True},
        "labels": ("cube_pos[0], m", "cube_pos[1], m"),
        "title": "obs/cube_pos at the first step",
    }
    assert plot.parts == [
        ("dot", [0.5, 0.25], "end solved", "d0", 2.5),
        ("dot", [1.5, 1.25], "end failed", "d1", 2.5),
    ]
    many = {f"obs/{name}_pos": cube for name in "abcde"}
    subject = Subject(many, demos=501)
    assert len(initial_states(subject).figures) == 4 and len(drawings[-1].parts) == 500
    assert initial_states(Subject({"obs/a_pos": [None, None], "obs/robot0_x_pos": cube})) is None
    assert initial_states(Subject({"obs/a_pos": np.zeros((2, 3, 3)), "states_pos": cube})) is None


# ---- actions -------------------------------------------------------------------------------------


def said(figure):
    """The caption with a plain minus and plain spaces."""
    return figure.caption.replace("\N{MINUS SIGN}", "-").replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture
def histograms(monkeypatch):
    found = []
    monkeypatch.setattr(
        contents, "histogram", lambda values, **how: found.append((values, how)) or "bars"
    )
    return found


def test_histograms_of_actions(histograms):
    values = np.array([[1.0, 1, 7 / 8], [1.0, -1, 7 / 8], [-1.0, -1, 7 / 8], [0.25, -1, 7 / 8]])
    subject = Subject({"actions": values})
    subject.names = {"actions": ["x", "grip", "z"]}
    section = actions(subject)
    assert section.note == "4 steps of 2 demos; dashed lines are the limits −1 and 1."
    assert (section.id, section.title, section.grid) == ("actions", "Actions", "grid small")
    assert subject.asked == {("actions", 200_000), ("actions", 2_000)}
    assert [(figure.title, said(figure)) for figure in section.figures] == [
        ("dimension 0 (x)", "-1 to 1, mean 0.31; 75 % at a limit"),
        ("dimension 1 (grip)", "a switch: -1 in 75 %, else 1"),
        ("dimension 2 (z)", "always 0.875"),
    ]
    shown, how = histograms[0]
    assert shown.tolist() == [1, 1, -1, 0.25]
    assert how == {
        **{"noun": "step", "label": "action", "width": 232, "height": 150, "marks": (-1, 1)},
        **{"limits": (-1.08, 1.08), "title": "histogram of action 0 (x)"},
    }
    nothing = actions(Subject({}))
    assert nothing.text == "There are no actions that can be read." and not nothing.figures


@pytest.mark.parametrize(
    ("column", "limits", "words"),
    [
        ([0, 1, 2, 5], (-0.2, 5.2), "0 to 5, mean 2; 50 % at a limit"),
        ([0, 0, 2, 5], (-0.2, 5.2), "0 to 5, mean 1.8; 75 % at a limit"),
        ([3, 3, 3, 3], (2.5, 3.5), "always 3"),
        ([-2, 0, 1, 1], (-2.12, 1.12), "-2 to 1, mean 0; 75 % at a limit"),
    ],
)
def test_actions_beyond_one(histograms, column, limits, words):
    values = np.array(column, float)[:, None]
    section = actions(Subject({"actions": values}))
    end = "; the actions leave [−1, 1]: the limits are the smallest and largest value."
    assert section.note == f"4 steps of 2 demos{end}"
    assert said(section.figures[0]) == words
    np.testing.assert_allclose(histograms[0][1]["limits"], limits)
    assert histograms[0][1]["marks"] == ()


def test_thirty_two_dimensions_are_shown(histograms):
    for width, more in ((32, ""), (33, " The first 32 of 33 dimensions are shown.")):
        section = actions(Subject({"actions": np.zeros((3, width))}))
        assert len(section.figures) == 32
        assert section.note == f"3 steps of 2 demos; dashed lines are the limits −1 and 1.{more}"


def test_the_course_of_the_size(histograms, drawings):
    steps = np.arange(100.0)
    moves = np.stack([0.003 * steps, 0.004 * steps, steps % 2], axis=1)
    subject = Subject({"actions": moves})
    figure = actions(subject).below
    assert figure.title == "Action in the course of a demo"
    words = "norm of the action: median, and the middle 80 % of the steps"
    assert figure.caption == f"{words}; switches such as a gripper's are left out"
    (plot,) = drawings
    assert plot.x == (0, 100) and plot.y[0] == 0
    assert plot.y[1] == pytest.approx(1.05 * 0.495)  # two steps in each of 50 parts
    assert plot.how == {
        **{"width": 720, "height": 220},
        "labels": ("progress of the demo, %", "size of the action"),
        "title": "size of the action in the course of a demo",
    }
    (_, at, low, high), (_, points, kind, title) = plot.parts
    assert at[:2] == [1, 3] and at[-1] == 99 and (kind, title) == ("curve", "median")
    np.testing.assert_allclose(
        low[1], 0.01, atol=1e-9
    )  # 0.1 and 0.9 of 0.010 and 0.015, each twice
    np.testing.assert_allclose(high[1], 0.015, atol=1e-9)
    np.testing.assert_allclose(points[1], [3, 0.0125], atol=1e-9)
    short = Subject({"actions": [np.array([[0.5], [1.0], [0.25]]), None]})
    short.pooled = lambda key, most: np.array([[0.5], [1.0], [0.25]])
    figure = actions(short).below
    assert figure.caption == words
    np.testing.assert_allclose([part[1] for part in drawings[-1].parts][0], [1, 33, 67])
    switches = Subject({"actions": np.array([[0.0], [1], [0]])})
    assert actions(switches).below is None
