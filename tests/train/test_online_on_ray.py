"""Whole trainings of online RL whose workers are on a Ray cluster."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from imitate.errors import ConfigError
from imitate.train.trainer import train
from tests.refusals import refused

from .conftest import last, online_tree, records

IMITATE = Path(sys.executable).parent / "imitate"
WORKERS = {"num_envs": 2, "num_workers": 2, "collect_steps": 10, "max_staleness": 50}


def wait_for(condition):
    deadline = time.monotonic() + 600
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def workers(address):
    """Collecting processes on the cluster with this address, each the child of an actor."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "ray::Host" not in " ".join(process.info["cmdline"] or ()):
            continue
        with suppress(psutil.NoSuchProcess):
            if address in " ".join(process.parent().cmdline()):
                found += [p for p in process.children() if "spawn_main" in " ".join(p.cmdline())]
    return found


@pytest.mark.ray
@pytest.mark.nightly
def test_a_killed_training_leaves_no_worker_and_is_resumed(ray_nodes, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(online_tree(online=WORKERS, train={"num_epochs": 4})))
    command = [IMITATE, "train", "--config", config, "--output-dir", tmp_path, "--quiet", "--json"]
    process = subprocess.Popen(
        [str(word) for word in [*command, "--on", ray_nodes.on]], stdout=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: list(tmp_path.glob("*/*/checkpoints/last.pth")))
        members = wait_for(lambda: workers(ray_nodes.address))
    finally:
        process.kill()  # SIGKILL: nothing of its own runs any more
        process.wait()
    _, alive = psutil.wait_procs(members, timeout=600)
    assert alive == []
    (run_dir,) = tmp_path.glob("online/*")
    begun = last(run_dir)["train_state"]["step"]
    command = [IMITATE, "train", "--resume", run_dir, "--quiet", "--json", "--on", ray_nodes.on]
    resumed = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    results = json.loads(resumed.stdout)  # and nothing else is printed there
    assert results["status"] == "finished" and results["step"] >= 800 > begun > 0
    assert json.loads((run_dir / "results.json").read_text()) == results
    assert [line["epoch"] for line in records(run_dir)] == [1, 2, 3, 4]
    assert os.environ["RAY_AUTH_TOKEN_PATH"] not in (run_dir / "config.json").read_text()


def test_a_cluster_that_nobody_would_use_is_refused(tmp_path):
    config = {**online_tree(), "cluster": {"on": "ray"}}
    with refused("cluster.on: 'ray', but train.online.num_workers is 0", error=ConfigError):
        train(config, output_dir=tmp_path, quiet=True)
