"""GPUs of the runs of a sweep: each run sees one, none is shared while another is free."""

import os

import pytest

from imitate.train import sweep
from imitate.train.gpus import VISIBLE, GpuShares, visible_gpus
from imitate.train.sweep import Sweep
from tests.train.test_sweep import write_config


def test_each_process_gets_the_gpu_with_the_fewest():
    gpus = GpuShares(["3", "5"])
    with gpus.taken(None) as first, gpus.taken("cuda") as second:
        assert (first, second) == ({VISIBLE: "3"}, {VISIBLE: "5"})
        with gpus.taken(None) as third:
            assert third == {VISIBLE: "3"}
    with pytest.raises(RuntimeError), gpus.taken(None):
        raise RuntimeError
    with gpus.taken(None) as again:
        assert again == {VISIBLE: "3"}


def test_processes_that_name_their_device_and_machines_with_one_gpu_are_left_alone():
    for device in ("cpu", "cuda:1", "mps"):
        with GpuShares(["0", "1"]).taken(device) as variables:
            assert variables == {}
    for names in ([], ["0"]):
        with GpuShares(names).taken(None) as variables:
            assert variables == {}


def test_the_gpus_that_may_be_used_are_those_that_are_visible():
    assert visible_gpus({VISIBLE: "2, GPU-1f"}) == ["2", "GPU-1f"]
    assert visible_gpus({VISIBLE: ""}) == []
    assert all(name.isdigit() for name in visible_gpus({}))


def test_runs_of_a_sweep_see_one_gpu_each(tmp_path, monkeypatch):
    """Two runs at a time that wait for each other: each writes which GPU it sees."""
    meet = (
        "import os, pathlib, time; here = pathlib.Path({0!r}); seen = os.environ['CUDA_VISIBLE_DEVICES']; "
        "(here / seen).touch(); end = time.monotonic() + 60\n"
        "while len(list(here.iterdir())) < 2 and time.monotonic() < end: time.sleep(0.05)"
    )
    (tmp_path / "seen").mkdir()
    monkeypatch.setenv(VISIBLE, "4,7")
    monkeypatch.setattr(sweep, "_TRAINER", meet.format(str(tmp_path / "seen")))
    Sweep(write_config(tmp_path)).run(workers=2)
    assert sorted(os.listdir(tmp_path / "seen")) == ["4", "7"]
