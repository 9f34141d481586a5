"""Sweeps whose runs train on a Ray cluster, in folders of their own, from which the driver fetches what they write."""

import json
import threading
from contextlib import suppress

import pytest

from imitate.train.sweep.sweep import Resources, Sweep

from .conftest import last, records
from .test_sweep import check_gpus, processes_with, runs_seen, wait_until, write_config

pytestmark = [pytest.mark.ray, pytest.mark.nightly]
EPOCHS = 200


def test_runs_see_one_gpu_each(tmp_path, monkeypatch, ray_nodes):
    """The first node pretends to have two; three runs, never two at a time on one."""
    resources = Resources(on=ray_nodes.on, workers=3, cpus=1, gpus=1)
    runs_seen(tmp_path, monkeypatch).run(resources=resources)
    check_gpus(tmp_path / "seen", {"0", "1"})


def kill_node(folder, ray_nodes):
    """Kill the second node once both runs have a checkpoint on the driver's side."""
    wait_until(lambda: len(list(folder.glob("*/*/checkpoints/last.pth"))) == 2)
    ray_nodes.kill_second()


def test_runs_of_a_lost_node_are_resumed_from_what_the_driver_has(tmp_path, ray_nodes):
    options = [f"train.num_epochs={EPOCHS}", "experiment.save.every_n_seconds=0.05"]
    sweep = Sweep(write_config(tmp_path), overrides=options)
    killer = threading.Thread(target=kill_node, args=(sweep.folder, ray_nodes), daemon=True)
    killer.start()
    # A node has two processors: each run has a node to itself, wherever Ray would put them otherwise.
    result = sweep.run(resources=Resources(on=ray_nodes.on, workers=2, cpus=2))
    killer.join()
    assert [run.status for run in result.runs] == ["finished", "finished"]
    resumed = 0
    for run in result.runs:
        (folder,) = (path.parent for path in (sweep.folder / run.name).glob("*/config.json"))
        assert [line["epoch"] for line in records(folder)] == list(range(1, EPOCHS + 1))
        assert run.results["run"] == str(folder)
        assert run.results["checkpoint"] == str(folder / "checkpoints" / "last.pth")
        output_dir = json.loads((folder / "config.json").read_text())["train"]["output_dir"]
        assert output_dir == str(sweep.folder)
        assert last(folder)["train_state"]["epoch"] == EPOCHS
        resumed += "resumed at epoch" in (folder / "log.txt").read_text()
        assert not list(folder.rglob("*partial*"))
    assert resumed == 1
    wait_until(lambda: not _trainings())


def _trainings():
    found = []
    for path in processes_with("end_with_stdin"):
        with suppress(OSError):
            found += [path] if b"imitate-run-" in path.read_bytes() else []
    return found
