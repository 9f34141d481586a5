"""Results over seeds: which runs are one setting, curves and tables of settings, the commands that show them."""

import csv
import json
import re

import matplotlib
import pytest
from matplotlib.figure import Figure

from imitate.errors import ConfigError
from imitate.train.sweep.curves import Curve, Setting, read_curves
from imitate.train.sweep.over_seeds import MEASURES, band, each_run, estimate_of, settings_of
from imitate.train.sweep.plot import default_panels, draw_settings
from imitate.train.sweep.results_table import as_json, cells, csv_text, latex_text, markdown_text
from imitate.train.sweep.sweep import Sweep, SweepRun, table_rows
from tests.refusals import refused
from tests.tiny import tiny_demos, tiny_tree

SUCCESS = {1: (0.2, 0.7), 2: (0.4, 0.8), 3: (0.3, 0.9)}


@pytest.fixture
def make_run(tmp_path):
    """Writes a run folder: two epochs, an evaluation after each unless `success` leaves one out (None)."""

    def make(name, seed, success=(0.2, 0.7), stamp="20260101000000", losses=(1.0, 0.5), **train):
        sweep, algo = train.pop("sweep", None), train.pop("algo", {})
        folder = tmp_path / "runs" / (sweep or "") / name / stamp
        folder.mkdir(parents=True)
        if sweep:
            (tmp_path / "runs" / sweep / "sweep.json").write_text("{}")
        config = {
            "algo_name": train.pop("algo_name", "bc"),
            "algo": algo,
            "experiment": {"name": name},
            "train": {"seed": seed, "output_dir": str(tmp_path), **train},
        }
        (folder / "config.json").write_text(json.dumps(config))
        records = []
        for epoch, (rate, loss) in enumerate(zip(success, losses, strict=True), 1):
            place = {"epoch": epoch, "step": 10 * epoch}
            cpu = {"Timing/CPU_s": float(seed * epoch)}
            records.append({"kind": "epoch", **place, **cpu, "Train/Loss": loss, "Valid/Loss": 2.0})
            if rate is not None:
                success_rate = {"Rollout/Success_Rate": rate, "Rollout/Return": 100 * rate}
                records.append({"kind": "rollout", **place, **success_rate})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        return folder

    return make


@pytest.fixture
def settings_in(tmp_path):
    """Settings of all runs that have been written."""
    return lambda: settings_of(read_curves([tmp_path / "runs"]))


@pytest.fixture
def three_seeds(make_run, tmp_path):
    for seed, success in SUCCESS.items():
        make_run(f"seed={seed}", seed, success)
    return tmp_path / "runs"


def test_runs_that_differ_only_in_the_seed_are_one_setting(make_run, settings_in):
    for seed in (2, 1):
        make_run(f"small_{seed}", seed, batch_size=8, num_threads=seed)
        make_run(f"large_{seed}", seed, batch_size=64)
    large, small = settings_in()
    assert (large.label, large.seeds) == ("batch_size=64", (1, 2))
    assert (small.label, small.values) == ("batch_size=8", {"train.batch_size": 8})
    assert small.title == "batch_size=8 (2 seeds)"


def test_the_experiments_name_is_the_label_where_the_seeds_share_it(make_run, settings_in):
    make_run("lift", 1, stamp="20260101000000")
    make_run("lift", 2, stamp="20260101000001")
    make_run("stack", 1, algo_name="flow_policy")
    settings = settings_in()
    assert [setting.title for setting in settings] == ["lift (2 seeds)", "stack"]


def test_the_same_seed_twice_is_no_second_seed(make_run, settings_in, tmp_path, monkeypatch):
    make_run("lift", 1, (0.1, 0.1), stamp="20260101000000")
    monkeypatch.chdir(tmp_path)
    assert len(read_curves(["lift"])) == 1, "a name below runs/, as in every command"
    make_run("lift", 1, (0.9, 0.9), stamp="20260101000001")
    (setting,) = settings_in()
    assert MEASURES["success_last"].of(setting.curves[0]) == 0.9, "the later run counts"
    make_run("lift_new_code", 1, (0.5, 0.5))
    assert len(settings_in()) == 2, "another name stays apart"


ALGOS = {"bc": {"rnn": {"horizon": 10}}, "iql": {"discount": 0.99}, "td3_bc": {"alpha": 2.5}}


@pytest.fixture
def three_sweeps(make_run, tmp_path):
    """Three sweeps of three seeds, whose algorithms have no keys in common."""
    for algo, section in ALGOS.items():
        section = {**section, "checkpoint": f"/home/{'long/' * 20}{algo}.pth", "x": 1, "y": algo}
        for seed in (1, 2, 3):
            words = {"sweep": f"lift_{algo}", "algo_name": algo, "algo": section}
            make_run(f"seed={seed}", seed, **words)
    return [tmp_path / "runs" / f"lift_{algo}" for algo in ALGOS]


def test_the_table_of_a_paper(three_sweeps, tmp_path, call):
    """A row for each sweep, with its name or the user's; no losses, which cannot be compared."""
    options = "--table t.md --table t.tex --table t.csv --out c.svg --label lift_td3_bc=TD3+BC"
    said = call(f"plot {options}", *three_sweeps).stdout.splitlines()
    assert [line.split()[:2] for line in said[1:4]] == [
        ["lift_bc", "3"],
        ["lift_iql", "3"],
        ["TD3+BC", "3"],
    ]
    assert said[4].startswith("mean over training seeds")
    header, _, row, *_ = (tmp_path / "t.md").read_text().splitlines()
    assert header == "| setting | seeds | success, last | success, best | return, last |"
    assert row.startswith("| lift_bc | 3 | 70.0 % (70.0 - 70.0) |")
    assert r"TD3+BC & 3 & $70.0\,\%" in (tmp_path / "t.tex").read_text()
    assert max(map(len, (tmp_path / "t.tex").read_text().splitlines())) < 200
    assert (tmp_path / "t.csv").read_text().startswith("setting,seeds,statistic,success_last")
    wrong = call("plot --label lift_bx=BC", three_sweeps[0], code=2).output
    assert "no line has the name 'lift_bx'; did you mean 'lift_bc'" in wrong


@pytest.mark.parametrize(
    ("sweeps", "labels"),
    [
        ({"a": ["seed=1", "seed=2"], "b": ["seed=1", "seed=2"]}, ["a", "b"]),
        ({"a": ["batch_size=8,seed=1", "batch_size=9,seed=1"]}, ["batch_size=8", "batch_size=9"]),
        ({"a": ["bc,seed=1", "bc,seed=2", "act,seed=1"]}, ["act", "bc"]),
        ({"a": ["algo_name=iql,seed=1", "algo_name=vq_bet,seed=1"]}, ["IQL", "VQ-BeT"]),
        (
            {"a": ["batch_size=8,seed=1", "batch_size=9,seed=1"], "b": ["seed=1"]},
            ["a batch_size=8", "a batch_size=9", "b"],
        ),
        (
            {"a_very_long_name_of_a_sweep_of_mine": ["x=1,seed=1", "x=2,seed=1"], "b": ["seed=1"]},
            ["a_very_long_name_of_a_swee #1", "a_very_long_name_of_a_swee #2", "b"],
        ),
    ],
)
def test_lines_are_called_by_their_sweeps_and_their_values(make_run, settings_in, sweeps, labels):
    """Runs of two sweeps are two settings even where their configurations are the same."""
    for sweep, names in sweeps.items():
        for name in names:
            cell, _, seed = name.rpartition("seed=")
            algo = re.findall("algo_name=([^,]+)", cell)
            varied = {"algo_name": algo[0]} if algo else {"batch_size": sum(map(ord, cell))}
            make_run(name, int(seed), sweep=sweep, **varied)
    settings = settings_in()
    assert [setting.label for setting in settings] == labels
    assert "algo_name" not in cells(settings, "mean")[0]


def test_final_numbers_over_seeds_by_hand(three_seeds, settings_in):
    (setting,) = settings_in()
    # 0.7, 0.8, 0.9: mean 0.8, t(0.975, 2) * 0.1 / sqrt(3) = 0.248414; the upper end is cut to 1.
    last = estimate_of(setting, MEASURES["success_last"], "mean")
    assert last == pytest.approx((0.8, 0.551586, 1.0, 0.1, 3), abs=1e-6)
    assert estimate_of(setting, MEASURES["train_loss"], "mean")[:3] == (0.5, None, None)
    assert estimate_of(setting, MEASURES["success_last"], "iqm") is None
    assert estimate_of(setting, MEASURES["return_last"], "median").value == 80


def test_the_best_evaluation_is_each_seeds_own(make_run, settings_in):
    make_run("seed=1", 1, (0.6, 0.2))
    make_run("seed=2", 2, (0.1, 0.8))
    (setting,) = settings_in()
    assert estimate_of(setting, MEASURES["success_best"], "mean").value == pytest.approx(0.7)
    assert estimate_of(setting, MEASURES["success_last"], "mean").value == pytest.approx(0.5)


def test_a_band_along_the_training_by_hand(three_seeds, settings_in):
    (setting,) = settings_in()
    line = band(setting, "Rollout/Success_Rate", "step")
    assert (line.x, line.value) == ((10, 20), pytest.approx((0.3, 0.8)))
    assert line.low == pytest.approx((0.051586, 0.551586), abs=1e-6)
    assert line.high == pytest.approx((0.548414, 1.0), abs=1e-6)
    # CPU seconds of the seeds at epoch 1: 1, 2, 3.
    assert band(setting, "Rollout/Success_Rate", "cpu").x == (2, 4)
    median = band(setting, "Rollout/Success_Rate", "epoch", "median")
    assert (median.low[0], median.value[0], median.high[0]) == (0.2, 0.3, 0.4)


def curve(seed, rates):
    records = [
        {"epoch": epoch, "step": epoch, "Rollout/Success_Rate": rate}
        for epoch, rate in rates.items()
    ]
    return Curve(str(seed), (), tuple(records), {"train": {"seed": seed}})


def test_equal_names_are_preceded_by_their_sweeps_or_numbered():
    runs = [Curve(name, (), (), sweep=sweep) for name, sweep in zip("aaabb", "xy z ", strict=True)]
    runs[2] = Curve("a", (), ())
    runs[4] = Curve("c", (), (), sweep="z")
    assert [found.label for found in each_run(runs)] == ["x a", "y a", "a", "b", "c"]
    assert [found.label for found in each_run([runs[2], runs[2]])] == ["a #1", "a #2"]


def test_a_name_that_cannot_be_drawn_is_escaped():
    assert Setting("t \udc80", {}, (curve(1, {1: 0.0}),), 1).title == "t \\udc80"


def test_a_skipped_evaluation_is_interpolated_and_nothing_is_said_beyond_the_shortest_run():
    setting = Setting(
        "x", {}, (curve(1, {1: 0.0, 3: 1.0, 5: 1.0}), curve(2, {1: 0, 2: 0, 3: 0})), 2
    )
    line = band(setting, "Rollout/Success_Rate", "epoch")
    assert line.x == (1, 2, 3)
    # Seed 1 has 0, (0.5), 1; seed 2 has 0.
    assert line.value == (0.0, 0.25, 0.5)


def test_a_number_that_no_run_has_is_no_band_and_no_column(make_run, settings_in):
    make_run("seed=1", 1, (None, None))
    make_run("seed=2", 2, (None, None))
    settings = settings_in()
    assert band(settings[0], "Rollout/Success_Rate", "step").x == ()
    header, rows = cells(settings, "mean")
    assert header == ["setting", "seeds", "train loss", "valid loss"]
    assert rows == [["runs", "2", "0.5", "2"]]


def test_tables_in_every_form(three_seeds, settings_in):
    settings = settings_in()
    header, (row,) = cells(settings, "mean")
    assert header[:4] == ["setting", "seeds", "success, last", "success, best"]
    assert row[1:3] == ["3", "80.0 % (55.2 - 100.0)"]
    (line,) = csv.DictReader(csv_text(settings, "mean").splitlines())
    assert float(line["success_last"]) == pytest.approx(0.8)
    assert float(line["success_last_low"]) == pytest.approx(0.551586, abs=1e-6)
    assert (line["seeds"], line["statistic"], line["success_last_n"]) == ("3", "mean", "3")
    markdown = markdown_text(settings, "mean").splitlines()
    assert markdown[2].startswith("| runs | 3 | 80.0 % (55.2 - 100.0) |")
    assert "Student's t" in markdown[-1]
    assert r"runs & 3 & $80.0\,\%\ [55.2, 100.0]$ &" in latex_text(settings, "mean")
    (entry,) = as_json(settings, "median")
    assert entry["seeds"] == [1, 2, 3] and entry["statistic"] == "median"
    assert entry["measures"]["success_last"]["per_seed"] == [0.7, 0.8, 0.9]
    assert entry["measures"]["success_last"]["value"] == 0.8


@pytest.fixture
def evaluated(make_run, settings_in):
    """Returns the setting of runs, one per seed, whose last evaluation of four episodes has these entries."""

    def make(rollouts):
        for seed, rollout in enumerate(rollouts):
            folder = make_run(f"seed={seed}", seed)
            record = {"kind": "rollout", "epoch": 2, "step": 20, "Rollout/Episodes": 4, **rollout}
            (folder / "metrics.jsonl").open("a").write(json.dumps(record) + "\n")
        return settings_in()[0]

    return make


@pytest.mark.parametrize(
    ("solved", "words"),
    [
        # 12 of 12: Wilson's low end 12 / (12 + z^2) = 12 / 15.841459.
        ((4, 4, 4), "100.0 % (75.8 - 100.0)"),
        ((0, 0, 0), "0.0 % (0.0 - 24.2)"),
        # 11 of 12: Wilson 64.6 - 98.5; Student's t 4.302653 * 14.4338 / sqrt(3) = 35.9 to each side.
        ((3, 4, 4), "91.7 % (55.8 - 100.0)"),
        # 6 of 12: Wilson 25.4 - 74.6, wider than Student's t at rates that agree.
        ((2, 2, 2), "50.0 % (25.4 - 74.6)"),
        ((4,), "100.0 % (51.0 - 100.0)"),  # 4 / (4 + z^2)
    ],
)
def test_seeds_that_agree_by_chance_do_not_make_a_rate_certain(evaluated, solved, words):
    setting = evaluated([{"Rollout/Success_Rate": number / 4} for number in solved])
    _, (row,) = cells([setting], "mean")
    assert row[2] == words
    low, high = (float(end) for end in words[words.index("(") + 1 : -1].split(" - "))
    line = band(setting, "Rollout/Success_Rate", "step")
    assert (100 * line.low[-1], 100 * line.high[-1]) == pytest.approx((low, high), abs=0.06)
    made = as_json([setting], "mean")[0]["measures"]["success_last"]
    assert 100 * made["low"] == pytest.approx(low, abs=0.06)
    latex = latex_text([setting], "mean")
    assert words.replace(" %", r"\,\%").replace(" (", r"\ [").replace(" - ", ", ")[:-1] in latex


def test_returns_have_a_deviation_and_at_least_the_interval_of_their_episodes(evaluated):
    # Student's t over seeds: 4.302653 * 10 / sqrt(3) = 24.84. Episodes: 9 degrees of freedom, t 2.262157,
    # sqrt(3 * 60^2 / 4) / 3 = 17.3205, so 39.18.
    setting = evaluated(
        [{"Rollout/Return": mean, "Rollout/Return_Std": 60.0} for mean in (190, 200, 210)]
    )
    made = estimate_of(setting, MEASURES["return_last"], "mean")
    assert made == pytest.approx((200, 160.82, 239.18, 10, 3), abs=0.01)
    assert "200 ± 10 (160.8 - 239.2)" in cells([setting], "mean")[1][0]
    assert r"$200 \pm 10\ [160.8, 239.2]$" in latex_text([setting], "mean")


def test_latex_is_escaped(make_run, settings_in):
    make_run("50%_of & {x}", 1)
    assert r"50\%\_of \& \{x\} & 1 & $70.0\,\%$" in latex_text(settings_in(), "mean")


def test_plot_gives_numbers_as_json_and_a_line_for_each_run(three_seeds, tmp_path, call):
    (entry,) = call.json("plot --out new/c.png", three_seeds)
    assert (tmp_path / "new/c.png").read_bytes()[:4] == b"\x89PNG"
    assert entry["measures"]["success_last"]["n"] == 3
    assert call("plot --out c.pdf --each", three_seeds).stdout.count("seed=") == 3


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--statistic iqm", "--statistic iqm needs at least 4 seeds; 'runs' has 3"),
        ("--table t.xls", "a table cannot be written as '.xls'"),
        ("--out c.pgn", "cannot be written as '.pgn'; did you mean '.png'"),
    ],
)
def test_what_plot_cannot_do_is_said_in_a_line(three_seeds, call, words, named):
    assert named in call(f"plot --out c.png {words}", three_seeds, code=2).output


@pytest.fixture
def drawn(settings_in, tmp_path):
    """Words in the picture of all runs, and the default panels."""

    def draw(**options):
        settings = settings_in()
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            picture = draw_settings(settings, [tmp_path / "c.svg"], **options)[0].read_text()
        return re.findall(r">([^<>]+)</text>", picture), default_panels(settings)

    return draw


def test_a_picture_has_the_panels_for_which_there_are_numbers(make_run, drawn):
    """Its words are those of what is drawn; numbers are plain."""
    make_run("quiet", 1, success=(None, None), losses=(2.4, 2.2))
    words, panels = drawn()
    assert panels == ["loss"] and "validation" in words
    assert "2.2" in words and not any("×" in word for word in words)
    words, _ = drawn(panels=["success"])
    assert "no evaluations" in words and "validation" not in words


def test_losses_of_different_scales_are_not_drawn_together(make_run, drawn):
    make_run("bc", 1, algo_name="bc")
    assert drawn()[1] == ["loss", "success"]
    make_run("iql", 1, algo_name="iql")
    assert drawn()[1] == ["success"]
    assert {"loss of bc", "loss of iql"} <= {*drawn(panels=["loss"])[0]}
    assert "success rate" not in drawn(panels=["loss"])[0]


@pytest.mark.parametrize(
    ("section", "apart"),
    [
        ({"gmm": {"enabled": True}}, True),
        ({"loss": {"l2_weight": 0.5}}, True),
        ({"rnn": {"enabled": True}}, False),
        ({"gmm": {"enabled": False, "kl_weight": 3}, "actor_layer_dims": [8]}, False),
    ],
)
def test_losses_of_variants_are_apart_if_their_scales_differ(make_run, drawn, section, apart):
    plain = {"gmm": {"enabled": False}, "loss": {"l2_weight": 1.0}, "rnn": {"enabled": False}}
    make_run("plain", 1, success=(None, None), algo_name="bc", algo=plain)
    make_run("other", 1, success=(None, None), algo_name="bc", algo=plain | section)
    words = drawn()[0]
    assert ("loss of plain" in words) == ("loss of other" in words) == apart
    assert ("loss" in words) != apart


def test_losses_that_are_all_there_is_are_said_not_to_be_comparable(make_run, settings_in, drawn):
    """Without returns the line says nothing of deviations."""
    explained = "mean over training seeds (95 % interval: Student's t interval, at least"
    for algo in ("bc", "iql"):
        make_run(algo, 1, success=(None, None), algo_name=algo)
        text = markdown_text(settings_in(), "mean")
        assert explained in text
        assert ("losses of different scales are not comparable" in text) == (algo == "iql")


def test_the_legend_names_what_is_drawn(make_run, drawn):
    make_run("bc", 1, algo_name="bc")
    make_run("iql", 1, success=(None, None), algo_name="iql")
    make_run("act", 1, algo_name="act")
    words, panels = drawn()
    assert panels == ["success"] and {"bc", "act"} <= set(words) and "iql" not in words


def test_a_lone_evaluation_has_a_bar_on_the_axis_of_the_training(make_run, settings_in, tmp_path):
    for seed in (1, 2):
        make_run(f"seed={seed}", seed, (None, 0.2 * seed))
    figures = []
    with pytest.MonkeyPatch.context() as patch:
        save = Figure.savefig
        patch.setattr(Figure, "savefig", lambda f, *a, **k: (figures.append(f), save(f, *a, **k)))
        draw_settings(settings_in(), [tmp_path / "c.svg"])
    loss, success = figures[0].axes
    assert loss.get_xlim() == success.get_xlim() == (0, pytest.approx(20.8))
    (bar,) = success.containers
    assert bar.has_yerr and bar[0].get_ydata() == pytest.approx([0.3])


def test_runs_of_a_folder_come_in_the_order_of_their_numbers(make_run, settings_in):
    for size in (16, 8):
        make_run(f"batch_size={size}", 1, batch_size=size)
    assert [setting.label for setting in settings_in()] == ["batch_size=8", "batch_size=16"]


def test_returns_are_drawn_where_an_environment_is_learned_in(make_run, drawn, settings_in):
    folder = make_run("seed=1", 1)
    text = (folder / "metrics.jsonl").read_text()
    online = text.replace('"kind": "epoch"', '"kind": "epoch", "Metrics/EnvironmentSteps": 5')
    (folder / "metrics.jsonl").write_text(online)
    settings = settings_in()
    assert "return, last" in cells(settings, "mean")[0]
    words, panels = drawn()
    assert panels == ["return", "success"] and "environment steps" in words


def test_many_settings_have_a_legend_that_leaves_room_for_the_curves(
    make_run, tmp_path, settings_in
):
    heights = []
    for count in (2, 12):
        for number in range(count):
            make_run(f"{count} settings, number {number}", 1, batch_size=number)
        settings = settings_in()
        picture = draw_settings(settings, [tmp_path / "c.svg"], panels=["loss"])[0].read_text()
        heights.append(float(re.search(r'height="([\d.]+)pt"', picture)[1]))
    assert heights[1] > heights[0] + 60


@pytest.fixture
def sweep_config(tmp_path):
    data = tiny_demos(tmp_path / "d.hdf5", {"s": 1}, num_demos=1, length=4)
    tree = tiny_tree(obs={"s": 1}, data=data, train={"output_dir": str(tmp_path / "runs")})
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(tree))
    return path


def test_a_statistic_that_needs_more_seeds_is_refused_before_anything_is_trained(sweep_config):
    sweep = Sweep(sweep_config, ["train.seed=[1,2,3]"])
    with refused("iqm needs at least 4 seeds, the sweep has 3", error=ConfigError):
        sweep.run(statistic="iqm")
    assert not list(sweep.folder.glob("seed*"))


def test_sweep_takes_trains_options(sweep_config, call):
    options = "--grid train.seed=[1,2] --epochs 3 --device cpu --quiet --dry-run"
    named = call(f"sweep {options} --config", sweep_config).stdout
    assert named == call(f"sweep {options}", sweep_config).stdout
    assert named.split() == ["train.seed", "status", "1", "waiting", "2", "waiting"]
    assert "name a configuration" in call(f"sweep {options}", code=2).output
    other = sweep_config.with_name("other.json")
    other.write_text(sweep_config.read_text())
    twice = call(f"sweep {options} --name both", sweep_config, other).stdout.split()
    assert twice[:3] == ["config", "train.seed", "status"] and twice.count("other") == 2
    algos = """--grid 'algo_name=["bc","iql"]' --set algo.gmm.enabled=true"""
    wrong = call(f"sweep {options} {algos}", sweep_config, code=2).output
    assert "seed=1,algo_name=iql: --set algo.gmm.enabled=true: algo.gmm: unknown key" in wrong
    assert not (sweep_config.parent / "runs").exists(), "a list of the runs writes nothing"


def test_the_sweeps_table_has_the_validation_loss_and_no_empty_column():
    results = {"train_loss": 0.5, "valid_loss": 0.75, "times": {"train_cpu_s": 2.4}}
    runs = [
        SweepRun("seed=1", {"train.seed": 1}, "finished", results),
        SweepRun("seed=2", {"train.seed": 2}, "waiting", {}),
    ]
    header, rows = table_rows(runs)
    assert header == ["train.seed", "train loss", "valid loss", "CPU s", "status"]
    assert rows == [["1", "0.5", "0.75", "2", "finished"], ["2", "-", "-", "-", "waiting"]]
    rate = {"success_rate": 0.5, "success_rate_95": [0.25, 0.75]}
    header, rows = table_rows([SweepRun("x", {}, "finished", {"final": rate, "best": rate})])
    assert header == ["last", "best", "status"]
    assert rows == [["50 % (25 - 75)", "50 % (25 - 75)", "finished"]]


@pytest.mark.parametrize(
    ("final", "last", "returned"),
    [
        ({"success_rate": 0.5, "mean_return": 2.0}, "50 %", "2"),
        ({"success_rate": 0.5, "mean_return": 2.0, "return_std": 1.0}, "50 %", "2 ± 1"),
        (
            {"success_rate": 0.5, "mean_return": 2.0, "mean_return_95": [1.0, 3]},
            "50 %",
            "2 (1 - 3)",
        ),
        ({"success_rate": 0.5, "mean_return": 2.0, "mean_return_95": [1.0]}, "50 %", "2"),
        ({"success_rate": 0.5, "mean_return": 2.0, "mean_return_95": [1.0, "x"]}, "50 %", "2"),
        ({"success_rate": 0.5, "mean_return": 0.5}, "50 %", None),
        ({"success_rate": 0.5, "mean_return": "x"}, "50 %", None),
        ({"mean_return": 2.0}, "return 2", None),
        ({"num_rollouts": 4}, None, None),
        ([0.5], None, None),
    ],
)
def test_the_sweeps_table_has_the_return_beside_another_outcome(final, last, returned):
    runs = [SweepRun("a", {"x": 1}, "finished", {"final": final, "times": 3})]
    runs.append(SweepRun("b", {"y": "z"}, "waiting", {}))
    named = {"last": last, "return, last": returned}
    shown = {name: cell for name, cell in named.items() if cell is not None}
    header, rows = table_rows(runs)
    assert header == ["x", "y", *shown, "status"]
    assert rows == [
        ["1", "", *shown.values(), "finished"],
        ["", "z", *["-"] * len(shown), "waiting"],
    ]
