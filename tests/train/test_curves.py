"""Short names of settings in legends and tables."""

from pathlib import Path

import pytest

from imitate.errors import UserError
from imitate.train.sweep import curves
from imitate.train.sweep.curves import (
    Curve,
    Setting,
    algorithm_name,
    cell_of,
    color,
    distinguished,
    labelled,
    origin,
    renamed,
    value_words,
    words,
)


def curve(run="a", name="a", sweep=None, algo="bc"):
    config = {"experiment": {"name": name} if name else {}, "algo_name": algo}
    return Curve(name or "", (), (), config, Path("runs", run, "20260101"), sweep)


def setting(*curves, **values):
    return Setting("", values, curves, len(curves))


def labels_of(settings):
    return [each.label for each in settings]


@pytest.mark.parametrize(
    ("name", "shown"),
    [("iql", "IQL"), ("td3_bc", "TD3+BC"), ("my_own", "MY-OWN"), ("causal_bc", "causal BC")],
)
def test_algorithms_have_their_papers_names(name, shown):
    assert algorithm_name(name) == shown


def test_eight_colours_and_a_map_for_more():
    assert color(7, 8) == "#B2A000" and color(0, 1) == "#0072B2"
    many = [color(n, 9) for n in range(9)]
    assert len(set(many)) == 9 and many[0] != "#0072B2"
    import matplotlib

    assert many[4] == matplotlib.colormaps["turbo"](0.5)
    assert many[0] == matplotlib.colormaps["turbo"](0.5 / 9)


def test_the_style_of_pictures():
    """Two panels side by side are as wide as a page of a paper, and their letters as large as its notes."""
    assert curves.PANEL_INCHES == (3.4, 2.4)
    sizes = {key: value for key, value in curves.STYLE.items() if type(value) in (int, float)}
    assert sizes == {
        **{"font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "errorbar.capsize": 2},
        **{"grid.alpha": 0.25, "grid.linewidth": 0.5, "lines.linewidth": 1.3, "lines.markersize": 3},
        **{"pdf.fonttype": 42, "ps.fonttype": 42},
    }  # fmt: skip
    frames = (
        "axes.spines.top",
        "axes.spines.right",
        "axes.grid",
        "axes.axisbelow",
        "legend.frameon",
    )
    assert [curves.STYLE[key] for key in frames] == [False, False, True, True, False]


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ([setting(curve(name="lift"))], ["lift"]),
        ([setting(curve(name="x")), setting(curve(name="y"))], ["x", "y"]),
        ([setting(curve(), lr=0.1), setting(curve(), lr=0.2)], ["a lr=0.1", "a lr=0.2"]),
        ([setting(curve()), setting(curve())], ["a #1", "a #2"]),
        # one sweep: its values are enough
        ([setting(curve("seed=1,lr=1", sweep="s")), setting(curve("lr=2", sweep="s"))], ["lr=1", "lr=2"]),
        # two sweeps, and a sweep beside a run by itself
        ([setting(curve("lr=1", sweep="s")), setting(curve("lr=1", sweep="t"))], ["s", "t"]),
        ([setting(curve("lr=1", sweep="a")), setting(curve("b"), lr=2)], ["a lr=1", "a lr=2"]),
        ([setting(curve("algo_name=td3_bc", sweep="s"))], ["TD3+BC"]),
        ([setting(curve("algo_name=bc,lr=1", sweep="s"))], ["algo_name=bc, lr=1"]),
        # runs of different names: what they differ in, else the folder above, else the algorithm
        ([setting(curve("f", "x"), curve("g", "y"))], ["runs"]),
        ([setting(Curve("x", (), (), {"algo_name": "iql"}), curve("g", "y"))], ["iql"]),
        ([setting(curve("f", "x"), curve("g", "y"), algo_name="iql")], ["IQL"]),
    ],
)  # fmt: skip
def test_labels(settings, found):
    assert labels_of(labelled(settings)) == found


def test_long_labels_are_shortened_and_equal_ones_numbered():
    assert curves.LONGEST == 30
    names = ["x" * 30, "y" * 31, "z" * 26 + "_" + "z" * 9, "z" * 40]
    made = labels_of(distinguished([setting(curve())] * 4, names))
    assert made == ["x" * 30, "y" * 27 + "...", "z" * 26 + "...", "z" * 27 + "..."]
    made = labels_of(distinguished([setting(curve())] * 3, ["b" * 31, "a", "b" * 33]))
    assert made == ["b" * 26 + " #1", "a", "b" * 26 + " #2"]


def test_labels_of_the_user():
    settings = [Setting("a", {}, (curve(),), 1), Setting("b=1", {}, (curve(),), 1)]
    assert labels_of(renamed(settings, ["b=1=B"])) == ["a", "B"]
    assert labels_of(renamed(settings, [])) == ["a", "b=1"]
    by_algorithm = [Setting("TD3+BC", {}, (curve(),), 1)]
    assert labels_of(renamed(by_algorithm, ["td3_bc=ours"])) == ["ours"]
    for wrong in ("a", "a=", "=x"):
        with pytest.raises(UserError, match="wanted NAME=TEXT|no line has the name"):
            renamed(settings, [wrong])
    with pytest.raises(UserError, match="no line has the name 'c'"):
        renamed(settings, ["c=x"])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"algo_name": "rebrac"}, "ReBRAC"),
        ({"algo_name": "bc", "train.seed": 1}, "algo_name=bc, seed=1"),
        ({"train.a": 1, "train.b": 2, "train.c": 3}, "a=1, b=2"),
        ({"train.data": "/x/y/"}, "data=y"),
        ({"train.data": {"a/b": 1}}, 'data={"a/b": 1}'),
        ({"train.data": None}, "data=null"),
    ],
)
def test_values_in_words(values, text):
    assert value_words(values) == text


def test_cells_and_origins():
    assert words("a") == "a" and words(True) == "true"
    assert cell_of("seed=1,lr=2,train.seed=3,x=4") == "lr=2, x=4"
    assert origin(curve("lr=2,seed=1", sweep="s")) == ("s", "lr=2")
    assert origin(curve("lr=2", "n")) == ("n", "")
    assert origin(Curve("label", (), (), {})) == ("label", "")
