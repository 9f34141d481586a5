"""Parts of the benchmark of kills: processes are found by their mark, half-written files by opening them."""

import json
import os
import subprocess
import sys
import time

import h5py

from benchmarks.kill_jobs import _alike, _learned, jobs, learned_alike
from benchmarks.kills import MARK, Kill, broken_files, marked, summary


def test_processes_are_found_by_their_mark():
    mark = f"test-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, MARK: mark},
        start_new_session=True,
    )
    try:
        while not marked(mark) and process.poll() is None:
            time.sleep(0.05)
        assert (marked(mark), marked(mark + "1")) == ([process.pid], [])
    finally:
        process.kill()
        process.wait()
    assert marked(mark) == []


def test_files_that_do_not_open(tmp_path):
    (tmp_path / "good.json").write_text("{}")
    with h5py.File(tmp_path / "good.hdf5", "w") as file:
        file["a"] = 1
    assert broken_files(tmp_path) == []
    (tmp_path / "bad.json").write_text('{"a": ')
    data = (tmp_path / "good.hdf5").read_bytes()
    (tmp_path / "bad.hdf5").write_bytes(data[: len(data) // 2])
    assert sorted(words.split(":")[0] for words in broken_files(tmp_path)) == [
        "bad.hdf5",
        "bad.json",
    ]


def test_results_are_compared_without_times(tmp_path):
    lines = [
        {"kind": "rollout", "epoch": 4, "Rollout/Return": 3.0, "time": 5.0},
        {"kind": "rollout", "epoch": 2, "Rollout/Return": 2.0, "time": 5.0},
        {"kind": "epoch", "epoch": 1, "Train/Loss": 1.0, "Timing/Epoch_s": 3.0, "time": 4.0},
    ]

    def learned(lines, log=""):
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (tmp_path / "log.txt").write_text(log)
        return _learned(tmp_path)

    whole = learned(lines)
    assert whole.epochs == [{"kind": "epoch", "epoch": 1, "Train/Loss": 1.0}]
    assert [line["epoch"] for line in whole.evaluations] == [2, 4]
    assert not learned_alike(learned(lines[1:]), whole)
    log = "evaluation of epoch 4 skipped: epoch 2 is still evaluated\n"
    assert learned_alike(learned(lines[1:], log), whole)
    assert not learned_alike(learned([lines[0], lines[2]], log), whole)
    assert not learned_alike(learned([*lines, lines[2]]), whole)
    assert _alike([{"wall_s": 1, "a": {"seconds": 2, "b": 3}}]) == [{"a": {"b": 3}}]


def test_after_the_loss_of_a_collector_numbers_may_differ_but_no_epoch_is_missing(tmp_path):
    def learned(rewards, log="", evaluated=(2, 4)):
        lines = [
            *({"kind": "epoch", "epoch": k + 1, "Reward": r} for k, r in enumerate(rewards)),
            *({"kind": "rollout", "epoch": k, "Return": rewards[k - 1]} for k in evaluated),
        ]
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (tmp_path / "log.txt").write_text(log)
        return _learned(tmp_path)

    words = "warning: environments [0]: died; its episodes are discarded, and another worker replaces it\n"
    log = f"epoch 1/4: return 1\nepoch 2/4: return 1\n{words}epoch 3/4: return 1\n"
    whole = learned([1, 2, 3, 4])
    assert whole.sure is None
    assert not learned_alike(learned([1, 2, 3, 5]), whole)
    assert learned_alike(learned([1, 2, 8, 9], log), whole)
    assert learned_alike(learned([7, 8, 8, 9], words), whole)
    assert not learned_alike(learned([1, 3, 8, 9], log), whole)
    assert not learned_alike(learned([1, 2, 8], log, evaluated=(2,)), whole)
    assert not learned_alike(learned([1, 2, 8, 9], log, evaluated=(2,)), whole)


def test_a_line_for_each_job(tmp_path):
    assert list(jobs(tmp_path)) == ["collect", "online", "features", "sweep", "eval", "render"]
    kills = [
        Kill(0, "eval", "main", 1.0, gone_s=0.5),
        Kill(1, "eval", "other", 1.0, findings=["process left"]),
        Kill(2, "sweep", "main", 1.0, gone_s=1.25),
    ]
    assert summary(kills)[2:] == [
        "| eval | 2 | 1 / 1 | 0.5 | 1 |",
        "| sweep | 1 | 1 / 0 | 1.2 | 0 |",
        "| all | 3 | 2 / 1 | 1.2 | 1 |",
    ]
