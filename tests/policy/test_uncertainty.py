"""Uncertainty of a policy: thresholds by hand, and its way from a training to a policy and to `imitate eval`."""

import json
import math

import h5py
import numpy as np
import pytest

from imitate.errors import CheckpointError, UserError
from imitate.policy.checkpoint import load_checkpoint
from imitate.policy.loading import policy_from_checkpoint, policy_of
from imitate.policy.uncertainty import MOST_STEPS, Calibration
from tests.calling import Caller
from tests.tiny import tiny_checkpoint, tiny_demos, tiny_run


@pytest.mark.parametrize(
    "quantile, threshold",
    [(0.05, 1.0), (0.07, 2.0), (0.5, 10.0), (0.9, 18.0), (0.95, 19.0), (0.96, math.inf)],
)
def test_a_threshold_is_the_conformal_one(quantile, threshold):
    """Of 19 values and a new one each is the largest with a probability of 1/20."""
    made = Calibration.of(np.arange(19, 0, -1), held_out=True)
    assert made.threshold(quantile) == threshold
    assert f"threshold {threshold:g}" in made.words(quantile)


def test_ranks_and_wrong_quantiles():
    made = Calibration.of([4.0, 1.0, 2.0, 3.0], held_out=False)
    assert made.rank([0.5, 2.0, 2.5, 9.0]).tolist() == [0.0, 0.2, 0.4, 0.8]
    assert made.threshold(0.4) < 2.5 < made.threshold(0.41)
    assert "4 training steps" in made.words(0.5)
    for quantile in (0.0, 1.1):
        with pytest.raises(UserError, match="above 0, at most 1"):
            made.threshold(quantile)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short training with held-out demonstrations; its policy."""
    folder = tmp_path_factory.mktemp("run")
    masks = {"train": [0, 1, 2], "valid": [3, 4]}
    data = tiny_demos(folder / "demos.hdf5", num_demos=5, filter_keys=masks)
    experiment = {"validate": True, "validation_epoch_every_n_steps": 1}
    train = {"hdf5_validation_filter_key": "valid"}
    found = tiny_run(folder, "bc_ensemble", data=data, experiment=experiment, train=train)
    return last_of(found), data


def last_of(run):
    return run / "checkpoints" / "last.pth"


def test_a_checkpoint_contains_the_uncertainties_in_held_out_demonstrations(run):
    policy, _ = policy_from_checkpoint("cpu", run[0])
    seen = []
    with h5py.File(run[1]) as file:
        for demo in ("demo_3", "demo_4"):
            policy.start_episode()
            for row in file[f"data/{demo}/obs/s"]:
                policy({"s": row})
                seen.append(float(policy.last_extras["uncertainty"][0]))
    assert policy.calibration.held_out
    assert policy.calibration.values == pytest.approx(sorted(seen), rel=1e-4)


def test_without_them_they_are_the_training_s_own(tmp_path):
    policy, _ = policy_from_checkpoint("cpu", last_of(tiny_run(tmp_path, "bc_ensemble")))
    assert len(policy.calibration.values) == 4 * 12 and not policy.calibration.held_out


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_calibration_that_is_not_finite_is_refused(run, wrong):
    ckpt = load_checkpoint(run[0])
    ckpt["calibration"]["values"][0] = wrong
    with pytest.raises(CheckpointError, match="finite"):
        policy_of(ckpt, "cpu", "a.pth")


def test_eval_tells_other_demonstrations_from_the_held_out_ones(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tiny_demos(tmp_path / "other.hdf5", num_demos=3)
    with h5py.File(other, "r+") as file:
        for demo in file["data"].values():
            demo["obs/s"][:] += 50.0
    call = Caller()
    words = call("eval --uncertainty other.hdf5 --out found.json --agent", run[0]).stdout
    assert "24 held-out steps" in words and "filter key 'valid'" in words
    (row,) = json.loads((tmp_path / "found.json").read_text())["uncertainty"]
    assert row["auroc"]["value"] > 0.9 > 0.1 > row["usual_above"]
    assert (row["usual_steps"], row["other_steps"]) == (24, 36)
    same = call("eval --agent", run[0], "--uncertainty", run[1], "--data", run[1]).stdout
    assert "AUROC 0.500 (" in same
    policy = tiny_checkpoint(tmp_path / "bc.pth", "bc")
    refused = call("eval --uncertainty other.hdf5 --data other.hdf5 --agent", policy, code=2)
    assert "bc reports no uncertainty" in refused.stderr


def test_a_quantile_that_is_a_little_larger_needs_another_step():
    known = Calibration.of(range(9), True)
    assert (known.threshold(0.5), known.threshold(0.5 + 1e-8)) == (4.0, 5.0)
    assert Calibration.of(range(99), True).threshold(0.07) == 6.0


def test_a_checkpoint_contains_a_thousand_uncertainties():
    assert MOST_STEPS == 1000
