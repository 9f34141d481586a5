"""The benchmarks' own arithmetic: medians, targets, tables. Nothing here is timed."""

import io
import json

import pytest
import torch

from benchmarks import published
from benchmarks.gpu import NO_GPU, Figures, main, markdown
from benchmarks.measuring import Spent, compare
from benchmarks.peer_cases import answer
from benchmarks.row import Row, table
from benchmarks.studies.results import kept


def test_compare_takes_the_median_round_without_the_first_and_divides_by_the_iterations():
    # Ten iterations a round; the first round is a warm-up, one of the others was disturbed.
    costs = iter([99.0, 1.0, 50.0, 2.0])
    asked = []

    def contestant(n):
        asked.append(n)
        cpu = next(costs)
        return Spent(cpu, 2 * cpu)

    assert compare({"ours": contestant}, 10, rounds=3) == {"ours": Spent(0.2, 0.4)}
    assert asked == [10, 10, 10, 10]


def test_contestants_take_turns():
    turns = []

    def contestant(name):
        def run(n):
            turns.append((name, n))
            return Spent(1.0, 1.0)

        return run

    compare({"a": contestant("a"), "b": contestant("b")}, {"a": 1, "b": 5}, rounds=1)
    assert turns == [("a", 1), ("b", 5)] * 2


@pytest.mark.parametrize(
    ("value", "target", "at_most", "met"),
    [
        (2.0, None, False, None),
        (2.0, 1.6, False, True),
        (1.5, 1.6, False, False),
        (0.14, 0.15, True, True),
        (0.16, 0.15, True, False),
    ],
)
def test_a_target_is_met_or_not(value, target, at_most, met):
    row = Row("x", value, "ms", target, at_most)
    assert row.met is met
    assert row.to_dict()["met"] is met


def test_table():
    rows = [
        Row("fast", 12345.6, "/s", 10000.0, False, 690.0, "recorded", "quiet"),
        Row("odd", 0.5, "x", 0.4, True),
    ]
    lines = table("loader", rows).splitlines()
    assert [len(line) for line in lines] == [len(lines[0])] * 4
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["loader", "value", "unit", "wanted", "met", "robomimic", "note"]
    assert cells[2] == ["fast", "12,346", "/s", ">= 10,000", "yes", "690 (recorded)", "quiet"]
    assert cells[3] == ["odd", "0.5", "x", "<= 0.4", "NO", "", ""]


def test_a_program_of_a_peer_prepares_a_case_once_and_answers_each_request(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO('{"case": "a", "n": 2}\n{"case": "a", "n": 6}\n'))
    asked, answers = [], io.StringIO()

    def case(request):
        asked.append(request["n"])
        return lambda n: {"cpu_s": n / 2}

    answer({"version": "1"}, {"a": case}, answers)
    assert answers.getvalue() == '{"version": "1"}\n{"cpu_s": 1.0}\n{"cpu_s": 3.0}\n'
    assert asked == [2]


def test_a_cell_of_a_study_is_measured_once(tmp_path):
    numbers = iter([{"curve": [(1, 2.0)]}])
    cells = [kept(tmp_path, lambda: next(numbers)) for _ in range(2)]
    assert cells == [{"curve": [[1, 2.0]]}] * 2


# ---- training steps on a GPU ---------------------------------------------------------------------


def test_a_dry_run_writes_both_files_and_says_that_it_is_one(tmp_path):
    files = [tmp_path / "out" / name for name in ("gpu.json", "gpu.md")]
    code = main(["--dry", "--cases", "bc", "--json", str(files[0]), "--markdown", str(files[1])])
    assert code == 0
    report = json.loads(files[0].read_text())
    assert report["dry"]
    figures = report["cases"]["bc"]
    assert figures["errors"] == {}
    assert set(figures["per_s"]) == {"default", "step by step", "data on device", "and bf16"}
    assert all(values[0] > 0 for values in figures["per_s"].values())
    assert "its figures are meaningless" in files[1].read_text()


def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--cases", "bc"]) == NO_GPU
    assert "torch sees no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(("peer", "met"), [(10.0, True), (30.0, False)])
def test_the_fastest_of_ours_is_compared_with_the_peer(peer, met):
    per_s = {"peer": [peer] * 3, "default": [40.0, 50.0, 90.0], "and bf16": [60.0, 70.0, 80.0]}
    figures = Figures("bc", per_s)
    assert figures.times == 70.0 / peer
    assert figures.met is met


def test_the_table_has_figures_and_errors():
    host = {"cpu": "C", "cores": 2, "torch": "2", "python": "3", "imitate": "0", "date": "today"}
    report = {"dry": False, "device": "G", "machine": host, "peers": {}, "data": "demos"}
    figures = Figures("bc", {"peer": [2.0], "default": [8.0, 9.0, 13.0]}, {"and compiled": "E: no"})
    lines = markdown(report, [figures]).splitlines()
    assert "| bc | default | 9.0 | 8.0 - 13.0 | 4.50 | 5 |" in lines
    assert "| bc | and compiled | failed: E: no | | | |" in lines


def test_a_row_has_the_mean_of_the_last_evaluations_beside_the_published_figure():
    def cell(seed, *successes):
        curve = [(step, value) for step, value in enumerate(successes)]
        return {"seed": seed, "updates": 1_000_000, "cpu_s": 7200.0, "curve": curve, "tasks": []}

    cells = [cell(1, 0.0, 90.0, 96.0, 96.0), cell(2, 0.0, 100.0, 100.0, 100.0)]
    assert published.row("cube-single", "fql", cells) == (
        "| cube-single | fql | 1,000,000 | 97 ± 4 | 94, 100 | 97 ± 2 | 2.0 |  |"
    )
    goals = [{**cells[0], "tasks": [90.0, 94.0]}, {**cells[1], "tasks": [100.0, 100.0]}]
    assert published.row("pointmaze-medium", "hiql", goals).endswith(
        "| 94, 100 |  | 2.0 | 95, 97 |"
    )
    assert published.TASKS["pointmaze-medium"].env("pointmaze-medium", 2) == (
        "ogbench:pointmaze-medium-navigate-task2-v0"
    )
    one = published.row("cube-single", "bc", cells[:1])
    assert one == "| cube-single | bc | 1,000,000 | 94 | 94 |  | 2.0 |  |"
