"""The GPU benchmark on the CPU, tiny, and its table. Nothing here is timed."""

import json

import pytest
import torch

from benchmarks.gpu import NO_GPU, Figures, main, markdown


def test_a_dry_run_writes_both_files_and_says_that_it_is_one(tmp_path):
    files = [tmp_path / "out" / name for name in ("gpu.json", "gpu.md")]
    code = main(["--dry", "--cases", "bc", "--json", str(files[0]), "--markdown", str(files[1])])
    assert code == 0
    report = json.loads(files[0].read_text())
    assert report["dry"]
    figures = report["cases"]["bc"]
    assert figures["errors"] == {}
    assert set(figures["per_s"]) == {"default", "data on device", "and bf16"}
    assert all(values[0] > 0 for values in figures["per_s"].values())
    assert "the figures mean nothing" in files[1].read_text()


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
