"""Figures of curves: sizes, axes, lines, bands and legends by hand."""

import pytest
from matplotlib.figure import Figure

from imitate.errors import UserError
from imitate.train.sweep.curves import Curve, Setting
from imitate.train.sweep.plot import default_panels, draw_settings
from tests.refusals import refused


def curve(losses, rates=(), *, seed=0, algo="bc", **more):
    """A run with these losses and success rates, epoch by epoch; an epoch has ten updates."""
    epochs = [
        {"epoch": n, "step": 10 * n, "Train/Loss": x, **more} for n, x in enumerate(losses, 1)
    ]
    rollouts = [
        {"epoch": n, "step": 10 * n, "Rollout/Success_Rate": x, "Rollout/Episodes": 4.0}
        for n, x in enumerate(rates, 1)
        if x is not None
    ]
    config = {"algo_name": algo, "train": {"seed": seed}}
    return Curve("run", tuple(epochs), tuple(rollouts), config)


def setting(label, *curves):
    return Setting(label, {}, curves, len(curves))


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """Draws settings; returns the figure and how it was saved."""

    def go(*settings, path="c.png", **options):
        saved = []

        def save(figure, part, **how):
            part.write_bytes(b"picture")
            saved.append((figure, how))

        with monkeypatch.context() as patch:
            patch.setattr(Figure, "savefig", save)
            assert draw_settings(settings, [tmp_path / "deep" / path], **options)
        return saved[0]

    return go


def labels(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_the_size_of_a_figure_and_how_it_is_saved(draw):
    figure, how = draw(setting("a", curve([2.0, 1.0])), path="c.PDF")
    assert how == {"dpi": 200, "format": "pdf"}
    assert figure.get_size_inches().tolist() == pytest.approx([3.4, 2.4 + 0.18])
    assert len(figure.axes) == 1 and figure.get_suptitle() == "a" and not figure.legends
    # two panels, and a legend of three columns for five names of eight letters: 2 * 3.4 * 13 / 14 = 6.3
    five = [setting(f"{n} letters", curve([2.0, 1.0], [0.5, 1.0])) for n in range(5)]
    figure, _ = draw(*five)
    assert figure.get_size_inches().tolist() == pytest.approx([6.8, 2.4 + 0.18])
    long = [setting("x" * 23 + str(n), curve([2.0, 1.0], [0.5, 1.0])) for n in range(5)]
    figure, _ = draw(*long)  # 88.4 / 30 = 2.9 columns
    assert figure.get_size_inches().tolist() == pytest.approx([6.8, 2.4 + 3 * 0.18])
    assert labels(figure.legends[0]) == [each.label for each in long]


def test_a_line_and_its_band(draw):
    seeds = [curve([4.0, 2.0], [0.25, 0.75], seed=n) for n in range(3)]
    figure, _ = draw(setting("a", *seeds))
    loss, success = figure.axes
    (line,) = loss.lines
    assert line.get_xydata().tolist() == [[10.0, 4.0], [20.0, 2.0]]
    assert (line.get_linestyle(), line.get_marker(), line.get_color()) == ("-", "", "#0072B2")
    assert (loss.get_xlabel(), loss.get_ylabel(), loss.get_yscale()) == ("updates", "loss", "log")
    assert loss.get_xlim() == success.get_xlim() == (0, pytest.approx(20.8))
    (line,) = success.lines
    assert line.get_ydata().tolist() == [0.25, 0.75] and line.get_marker() == "o"
    assert success.get_ylim() == pytest.approx((-0.03, 1.03))
    assert success.get_title() == "mean, 95 % interval over seeds"
    (band,) = success.collections
    assert (band.get_alpha(), band.get_linewidth().tolist()) == (0.18, [0.0])
    assert figure.get_suptitle() == "a (3 seeds)"
    single, _ = draw(setting("a", curve([1.0], [0.5, 0.75])), over="epoch")
    assert single.axes[1].get_title() == "95 % interval of the episodes"
    assert single.axes[1].get_xlabel() == "epoch"


def test_lone_points_stand_beside_each_other(draw):
    figure, _ = draw(
        *(setting(x, curve([1.0, 1.0], [None, 0.5])) for x in "ab"), panels=["success"]
    )
    (axes,) = figure.axes
    bars = [container[0] for container in axes.containers]
    assert [bar.get_xdata()[0] for bar in bars] == pytest.approx([20 * 0.994, 20 * 1.006])
    assert [bar.get_marker() for bar in bars] == ["o", "o"]
    assert [bar.get_fillstyle() for bar in bars] == ["full", "full"]


@pytest.mark.parametrize(
    ("losses", "scale", "plain"),
    [
        ([2.0, 1.0], "log", True),
        ([200.0, 1.0], "log", False),
        ([2.0, 0.0], "linear", True),
        ([2.0, -1.0], "linear", True),
    ],
)
def test_losses_have_a_logarithmic_axis_with_plain_numbers(draw, losses, scale, plain):
    figure, _ = draw(setting("a", curve(losses)))
    (axes,) = figure.axes
    assert axes.get_yscale() == scale
    assert (type(axes.yaxis.get_major_formatter()).__name__ == "ScalarFormatter") is plain


def test_several_metrics_of_a_panel_are_named(draw):
    more = {"Valid/Loss": 3.0}
    figure, _ = draw(setting("a", curve([2.0, 1.0], **more)))
    (axes,) = figure.axes
    assert labels(axes.get_legend()) == ["training", "validation"]
    assert [line.get_linestyle() for line in axes.get_legend().get_lines()] == ["-", "--"]
    assert [line.get_marker() for line in axes.get_legend().get_lines()] == ["", ""]
    lone, _ = draw(setting("a", curve([2.0], **more)))
    assert [line.get_marker() for line in lone.axes[0].get_legend().get_lines()] == ["o", "o"]
    styles = [line.get_fillstyle() for line in lone.axes[0].get_legend().get_lines()]
    assert styles == ["full", "none"]
    plain, _ = draw(setting("a", curve([2.0, 1.0])))
    assert plain.axes[0].get_legend() is None
    online = {"Metrics/EnvironmentSteps": 5.0, "Metrics/AverageReturn": 7.0}
    figure, _ = draw(setting("a", curve([2.0, 1.0], **online)))
    (axes,) = figure.axes
    assert labels(axes.get_legend()) == ["while training"] and axes.lines[0].get_linestyle() == ":"
    assert axes.get_xlabel() == "environment steps" and not axes.collections


def test_panels_without_numbers_say_so(draw):
    figure, _ = draw(setting("a", curve([2.0, 1.0])), panels=["success", "return"])
    texts = [axes.texts[0] for axes in figure.axes]
    assert [text.get_text() for text in texts] == ["no evaluations", "no returns"]
    assert [text.get_position() for text in texts] == [(0.5, 0.5), (0.5, 0.5)]
    assert figure.axes[0].get_title() == ""


def test_losses_of_different_scales_have_a_panel_each(draw):
    runs = [("a", "bc"), ("b", "iql"), ("c", "bc")]
    figure, _ = draw(
        *(setting(x, curve([2.0, 1.0], algo=algo)) for x, algo in runs), panels=["loss"]
    )
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss of a and 1 more", "loss of b"]
    colours = [[line.get_color() for line in axes.lines] for axes in figure.axes]
    assert colours == [["#0072B2", "#009E73"], ["#D55E00"]]


def test_the_panels_for_which_there_are_numbers():
    online = curve([1.0], **{"Metrics/EnvironmentSteps": 5.0, "Metrics/AverageReturn": 7.0})
    returned = Curve("r", (), ({"epoch": 1, "Rollout/Return": 2.0},), {"algo_name": "bc"})
    for curves, panels in (
        ([curve([1.0])], ["loss"]),
        ([curve([1.0], [0.5])], ["loss", "success"]),
        ([curve([1.0], [0.5]), curve([1.0], algo="iql")], ["success"]),
        ([curve([1.0]), curve([1.0], algo="iql")], ["loss"]),
        ([online], ["return"]),
        ([online, curve([1.0], [0.5])], ["return", "success"]),
        ([curve([1.0]), returned], ["loss", "return"]),
        ([Curve("x", (), (), {})], ["loss"]),
    ):
        assert default_panels([setting("a", each) for each in curves]) == panels


def test_a_picture_of_an_unknown_form_is_refused(tmp_path):
    with refused("a picture cannot be written as '.pgn'; did you mean '.png'", error=UserError):
        draw_settings([setting("a", curve([1.0]))], [tmp_path / "c.pgn"])
    assert list(tmp_path.iterdir()) == []
