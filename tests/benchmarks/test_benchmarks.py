"""The benchmarks' own arithmetic: medians, targets, tables, the peer's protocol. Nothing here is timed."""

import json
import sys

import pytest

from benchmarks.demos import OBS_DIMS, find_or_make, made_up, words
from benchmarks.images import scene
from benchmarks.measuring import Spent, compare, peak_bytes, percentiles
from benchmarks.peer import Peer
from benchmarks.row import Row, table
from imitate.data import DatasetFile


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


def test_percentiles_leave_the_warm_up_out():
    calls = []
    figures = percentiles(lambda: calls.append(1), calls=100, warm_up=7)
    assert len(calls) == 107
    assert 0 <= figures["wall_p50_ms"] <= figures["wall_p99_ms"]
    assert 0 <= figures["cpu_p50_ms"] <= figures["cpu_p99_ms"]


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


def test_made_up_demonstrations_have_lifts_shapes(tmp_path):
    path = made_up(tmp_path / "made_up.hdf5", [3, 5], ("agentview_image",))
    with DatasetFile(path) as file:
        assert [file.length(demo) for demo in file.demos()] == [3, 5]
        for key, dim in OBS_DIMS.items():
            assert file.shape("demo_1", f"obs/{key}") == (5, dim)
        assert file.shape("demo_0", "obs/agentview_image") == (3, 84, 84, 3)
    assert words(path) == "made-up numbers in the shapes of Lift: 2 demos, 8 steps"
    assert find_or_make(tmp_path, path) == path


def test_made_up_scenes_compress_as_simulated_ones_do(tmp_path):
    """Simulated frames of 84 x 84 take 0.21 of their bytes with gzip, and 0.15 as JPEG."""
    taken = {}
    for storage in ("raw", "gzip", "jpeg"):
        path = made_up(tmp_path / storage, [40], ("camera",), scene, storage)
        taken[storage] = path.stat().st_size / (40 * 84 * 84 * 3)
    assert 1.0 < taken["raw"] < 1.1
    assert 0.15 < taken["gzip"] < 0.3
    assert 0.1 < taken["jpeg"] < 0.25


def test_without_an_interpreter_the_recorded_figures_stand(tmp_path):
    with Peer(None, None, tmp_path / "unused.hdf5") as peer:
        assert (peer.live, peer.source, peer.contestants("step_bc")) == (False, "recorded", {})
        assert peer.per_s("loader_seq10", {}) == 686
        assert peer.figure("call_bc_rnn_gmm") == 2.9
        assert peer.words.startswith("recorded figures of robomimic 0.5.0")


def test_a_live_peer_answers_line_by_line(tmp_path):
    stand_in = tmp_path / "python"
    hello = {"robomimic": "9.9", "torch": "2.0", "cases": ["step_bc"]}
    answer = {"cpu_s": 0.5, "wall_s": 1.0}
    stand_in.write_text(
        f"#!{sys.executable}\nimport sys\nprint('{json.dumps(hello)}', flush=True)\n"
        f"for line in sys.stdin:\n    print('{json.dumps(answer)}', flush=True)\n"
    )
    stand_in.chmod(0o755)
    with Peer(stand_in, None, tmp_path / "unused.hdf5") as peer:
        assert peer.words == "robomimic 9.9 with torch 2.0, same run"
        spent = compare(peer.contestants("step_bc"), 5, rounds=1)
        assert spent == {"peer": Spent(0.1, 0.2)}
        assert peer.per_s("step_bc", spent) == 10.0
        assert peer.source == "same run"


def test_a_peer_that_dies_is_said(tmp_path):
    stand_in = tmp_path / "peer.py"
    stand_in.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stderr.write('Traceback\\n')\n"
        "sys.exit(\"ModuleNotFoundError: No module named 'six'\")\n"
    )
    stand_in.chmod(0o755)
    with pytest.raises(RuntimeError, match="ended with exit code 1: .*No module named 'six'"):
        Peer(stand_in, None, tmp_path / "unused.hdf5")


class TestPeak:
    def test_is_the_command_s_alone(self):
        here = bytearray(300_000_000)  # counts for this process, not for the command
        here[::4096] = b"x" * len(here[::4096])
        command = [sys.executable, "-c", "x = bytearray(100_000_000); x[::4096] = x[::4096]"]
        assert 100e6 < peak_bytes(command) < 200e6

    def test_a_failing_command_is_told(self):
        with pytest.raises(RuntimeError, match="ended with 3"):
            peak_bytes([sys.executable, "-c", "raise SystemExit(3)"])
