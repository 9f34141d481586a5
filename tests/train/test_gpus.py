"""GPUs of the runs of a sweep: each run sees one, none is shared while another is free."""

import json
import os

import pytest

from imitate.errors import ConfigError
from imitate.train import sweep_work
from imitate.train.gpus import VISIBLE, GpuShares, visible_gpus
from imitate.train.sweep import Resources, Sweep
from tests.train.test_sweep import write_config


def test_each_process_gets_the_gpu_with_the_fewest():
    gpus = GpuShares(["3", "5"])
    first, second, third = gpus.take(), gpus.take("cuda"), gpus.take()
    assert [taken[VISIBLE] for taken in (first, second, third)] == ["3", "5", "3"]
    gpus.give_back(first)
    gpus.give_back(third)
    assert gpus.take() == {VISIBLE: "3"}
    assert gpus.places is None


def test_gpus_of_ones_own_are_nobody_elses():
    gpus = GpuShares(["3", "5", "7", "GPU-1f", "9"], each=2)
    assert gpus.places == 2
    first, second = gpus.take(), gpus.take("cuda")
    assert (first, second) == ({VISIBLE: "3,5"}, {VISIBLE: "7,GPU-1f"})
    gpus.give_back(first)
    assert set(gpus.take()[VISIBLE].split(",")) < {"3", "5", "9"}
    assert GpuShares(["0"], each=1).take() == {VISIBLE: "0"}
    with pytest.raises(ConfigError, match="--gpus 2: this machine shows 1"):
        _ = GpuShares(["0"], each=2).places


def test_processes_that_name_their_device_and_machines_with_one_gpu_are_left_alone():
    for device in ("cpu", "cuda:1", "mps"):
        assert GpuShares(["0", "1"]).take(device) == {}
    for names in ([], ["0"]):
        assert GpuShares(names).take() == {}


def test_the_gpus_that_may_be_used_are_those_that_are_visible():
    assert visible_gpus({VISIBLE: "2, GPU-1f"}) == ["2", "GPU-1f"]
    assert visible_gpus({VISIBLE: ""}) == []
    assert all(name.isdigit() for name in visible_gpus({}))


SEEN = """
import json, os, pathlib, time
here, began = pathlib.Path({0!r}), time.time()
(here / f"begun-{{os.getpid()}}").touch()
end = time.monotonic() + 60
while len(list(here.glob("begun-*"))) < 2 and time.monotonic() < end: time.sleep(0.05)
time.sleep(0.5)
entry = [os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"], began, time.time()]
(here / f"run-{{os.getpid()}}.json").write_text(json.dumps(entry))
"""
"""Training that writes which GPU it saw, and when; the first two wait for each other."""


def runs_seen(tmp_path, monkeypatch, program=SEEN):
    (tmp_path / "seen").mkdir()
    monkeypatch.setattr(sweep_work, "PROGRAM", program.format(str(tmp_path / "seen")))
    resources = Resources(workers=3, cpus=1, gpus=1)
    sweep = Sweep(write_config(tmp_path), ["train.seed=[1,2,3]"])
    return sweep, resources


def test_runs_of_a_sweep_see_one_gpu_each(tmp_path, monkeypatch):
    """Three runs on two GPUs: never two at a time on one."""
    monkeypatch.setenv(VISIBLE, "4,7")
    sweep, resources = runs_seen(tmp_path, monkeypatch)
    sweep.run(resources=resources)
    check_gpus(tmp_path / "seen", {"4", "7"})


def check_gpus(folder, names):
    """Each run saw one number, none two at a time."""
    entries = [json.loads(path.read_text()) for path in folder.glob("run-*.json")]
    assert len(entries) == 3
    assert {gpu for gpu, *_ in entries} == names
    assert {threads for _, threads, *_ in entries} == {"1"}
    for gpu in names:
        spans = sorted((began, ended) for seen, _, began, ended in entries if seen == gpu)
        assert all(one[1] <= two[0] for one, two in zip(spans, spans[1:], strict=False))


def test_fewer_gpus_than_a_run_needs_are_told_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv(VISIBLE, "4")
    sweep = Sweep(write_config(tmp_path))
    with pytest.raises(ConfigError, match="--gpus 2"):
        sweep.run(resources=Resources(gpus=2))
    assert set(os.listdir(sweep.folder)) <= {".lock", "sweep.json"}
