"""SAC learns to swing up a pendulum with actions from a policy worker, while updates go on."""

import json

import pytest

from imitate import load_config
from imitate.train.trainer import train

SETTINGS = {
    "train.num_epochs": 7,
    "train.online.warmup_steps": 500,
    "train.online.num_envs": 4,
    "train.online.num_workers": 2,
    "train.online.acting": "central",
    "train.online.ring": 2,
    "train.online.collect_steps": 5,
    "train.online.max_staleness": 60,
    "experiment.rollout.n": 10,
    "experiment.rollout.rate": 7,
    "experiment.rollout.num_workers": 0,
    "experiment.logging.log_tb": False,
}


@pytest.mark.slow
def test_sac_swings_up_a_pendulum(tmp_path):
    config = load_config("sac/sac_pendulum").with_overrides(SETTINGS)
    result = train(config, output_dir=tmp_path, quiet=True)
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    last = {record["kind"]: record for record in map(json.loads, lines)}
    assert last["epoch"]["Metrics/Staleness"] <= 60
    assert last["epoch"]["Metrics/ActingBatch"] >= 1
    # Without learning the mean return is about -1,200.
    assert last["rollout"]["Rollout/Return"] > -350
