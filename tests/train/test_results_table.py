"""Tables of results: whole texts, and which keys and measures have a column."""

import json

import pytest

from imitate.train.sweep.curves import Curve, Setting
from imitate.train.sweep.results_table import (
    as_json,
    cells,
    csv_text,
    latex_text,
    loss_kind,
    markdown_text,
    save_table,
)


def curve(seed, loss, rates, returns=None, algo="bc"):
    epochs = ({"epoch": 1, "Train/Loss": loss},)
    rollouts = [
        {"epoch": n, "Rollout/Success_Rate": rate, "Rollout/Return": value}
        for n, (rate, value) in enumerate(zip(rates, returns or rates, strict=True), 1)
    ]
    config = {"algo_name": algo, "train": {"seed": seed}}
    return Curve("run", epochs, tuple(rollouts), config)


def setting(label, *curves, wanted=2, **values):
    return Setting(label, values, curves, wanted)


@pytest.fixture
def two():
    """One setting with all its seeds, one with one of two."""
    return [
        setting("a|b", curve(0, 0.5, [0.5, 0.25]), curve(1, 1.5, [0.5, 0.75]), size=8, form="x y"),
        setting("c_d", curve(3, 2.0, [1.0, 1.0])),
    ]


EXPLAINED = "mean over training seeds (95 % interval: Student's t interval, at least as wide as that of the episodes)"


def test_markdown(two):
    assert markdown_text(two, "mean").splitlines() == [
        "| setting | size | form | seeds | success, last | success, best | train loss |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        r"| a\|b | 8 | x y | 2 | 50.0 % (0.0 - 100.0) | 62.5 % (0.0 - 100.0) | 1 (-5.353 to 7.353) |",
        "| c_d |  |  | 1 of 2 | 100.0 % | 100.0 % | 2 |",
        "",
        EXPLAINED,
    ]


def test_latex(two):
    assert latex_text(two, "mean").splitlines() == [
        f"% {EXPLAINED}",
        r"\begin{tabular}{lllrrrr}",
        r"\toprule",
        r"setting & size & form & seeds & success, last & success, best & train loss \\",
        r"\midrule",
        r"a|b & 8 & x y & 2 & $50.0\,\%\ [0.0, 100.0]$ & $62.5\,\%\ [0.0, 100.0]$ & $1\ [-5.353, 7.353]$ \\",
        r"c\_d &  &  & 1 of 2 & $100.0\,\%$ & $100.0\,\%$ & $2$ \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_csv(two):
    header, full, lone = (line.split(",") for line in csv_text(two, "mean").splitlines())
    measures = ("success_last", "success_best", "train_loss")
    parts = ("", "_low", "_high", "_std", "_n")
    named = [f"{measure}{part}" for measure in measures for part in parts]
    assert header == ["setting", "size", "form", "seeds", "statistic", *named]
    assert full[:10] == [
        "a|b",
        "8",
        "x y",
        "2",
        "mean",
        "0.5",
        "0.0",
        "1.0",
        "0.3535533905932738",
        "2",
    ]
    assert lone == [
        "c_d",
        "",
        "",
        "1",
        "mean",
        *("1.0", "", "", "", "1") * 2,
        "2.0",
        "",
        "",
        "",
        "1",
    ]
    five = csv_text([setting("s", curve(0, 1.0, []), **dict.fromkeys("abcde", 1))], "iqm")
    assert five.splitlines()[1] == "s,1,iqm,,,,,"


def test_json(two, tmp_path):
    _, one = as_json(two, "mean")
    assert one == {
        **{"label": "c_d", "values": {}, "seeds": [3], "seeds_wanted": 2, "runs": ["."]},
        **{"statistic": "mean", "confidence": 0.95},
        "measures": {
            name: {"per_seed": [value], "value": value, "low": None, "high": None, "std": None, "n": 1}
            for name, value in {"success_last": 1.0, "success_best": 1.0, "train_loss": 2.0}.items()
        },
    }  # fmt: skip
    path = save_table(two, "mean", tmp_path / "new" / "t.JSON")
    assert path.read_text().startswith('[\n  {\n    "label": "a|b",\n') and path.parent.is_dir()


def columns(*settings):
    """Header before the seeds, and these cells of the rows."""
    header, rows = cells(settings, "mean")
    number = header.index("seeds")
    return header[1:number], [row[1:number] for row in rows]


def test_keys_have_a_column_unless_they_are_many_or_long_or_in_the_labels():
    run = curve(0, 1.0, [])
    one, other = setting("s", run, a=1, b="x"), setting("t", run, a=2, c=None)
    assert columns(one, other) == (["a", "b", "c"], [["1", "x", ""], ["2", "", "null"]])
    four = dict.fromkeys("abcd", 1)
    assert columns(setting("s", run, **four)) == (list("abcd"), [["1"] * 4])
    assert columns(setting("s", run, **four, e=1)) == ([], [[]])
    assert columns(setting("s", run, a="x" * 30, b=1)) == (["a", "b"], [["x" * 30, "1"]])
    assert columns(setting("s", run, a="x" * 31, b=1)) == ([], [[]])
    assert columns(setting("a=1", run, a=1)) == ([], [[]])
    assert columns(setting("1", run, a=1)) == (["a"], [["1"]])
    assert columns(setting("a=1", run, a=2)) == (["a"], [["2"]])
    assert columns(setting("a=1", run, a=1), setting("x", run, a=2)) == (["a"], [["1"], ["2"]])
    assert columns(setting("TD3+BC", run, algo_name="td3_bc")) == ([], [[]])
    assert columns(setting("TD3+BC", run, name="td3_bc")) == (["name"], [["td3_bc"]])
    assert columns(setting("x", run, algo_name="td3_bc")) == (["algo_name"], [["td3_bc"]])


def measured(*curves):
    header, _ = cells([setting("s", each) for each in curves], "mean")
    return header[2:]


def test_measures_that_repeat_others_or_cannot_be_compared_have_no_column():
    same, other = curve(0, 1.0, [0.5]), curve(0, 1.0, [0.5], [7.0])
    assert measured(same) == ["success, last", "success, best", "train loss"]
    assert measured(same, other) == ["success, last", "success, best", "return, last", "train loss"]
    assert measured(same, curve(0, 1.0, [0.5], algo="iql")) == ["success, last", "success, best"]
    returned = curve(0, 1.0, [None], [7.0])
    assert measured(returned) == ["return, last", "return, best", "train loss"]
    assert measured(curve(0, 1.0, []), curve(0, 1.0, [], algo="iql")) == ["train loss"]


@pytest.mark.parametrize(
    ("section", "kept"),
    [
        ({"loss": {"l2_weight": 1.0}}, {"loss.l2_weight": 1.0}),
        ({"gmm": {"enabled": True, "num_modes": 5}}, {"gmm.enabled": True}),
        ({"gmm": {"enabled": False, "kl_weight": 5}}, {"gmm.enabled": False}),
        ({"vae": {"enabled": False, "prior": {"enabled": True}}}, {"vae.enabled": False}),
        ({"vae": {"enabled": True, "prior": {"enabled": True}}},
         {"vae.enabled": True, "vae.prior.enabled": True}),
        ({"enabled": False, "discount": 0.9}, {"enabled": False, "discount": 0.9}),
        ({"rnn": {"enabled": True}, "ema": {"enabled": True}, "discount": 0.9}, {"discount": 0.9}),
    ],
)  # fmt: skip
def test_what_decides_the_scale_of_a_loss(section, kept):
    config = {"algo_name": "bc", "algo": section, "train": {"action_config": {"a": 1}}}
    one = setting("s", Curve("r", (), (), config))
    assert json.loads(loss_kind(one)) == ["bc", kept, {"a": 1}]
