"""Measurements beside a training: validation, and evaluations in the background."""

import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from imitate.config import load_config
from imitate.data import SequenceDataset, build_datasets
from imitate.policy.checkpoint import algo_from_checkpoint, load_checkpoint
from imitate.train import evaluations
from imitate.train.evaluations import (
    BackgroundEvaluations,
    EvalRequest,
    Validation,
    acted,
    action_error,
)

from .conftest import config_dict, write_expert


@pytest.fixture
def algo(tmp_path):
    return algo_from_checkpoint(load_checkpoint(write_expert(tmp_path / "expert.pth")))


def test_action_error_is_the_mean_distance_to_the_demonstrated_action(algo, demos):
    dataset = SequenceDataset(demos, ["goal", "pos"])
    batch = dataset[np.arange(len(dataset))]
    obs, actions = batch["obs"], batch["actions"][:, 0]
    expected = (torch.tanh(4 * (obs["goal"] - obs["pos"])[:, 0]) - actions).abs().mean()
    assert action_error(algo, batch, 1) == pytest.approx(float(expected), rel=1e-5)
    assert 0.01 < float(expected) < 0.2


def test_padded_steps_and_history_do_not_count(algo, demos):
    dataset = SequenceDataset(demos, ["goal", "pos"], seq_length=4, get_pad_mask=True)
    last = dataset[np.array([14])]  # the last step of demo_0, three steps of padding
    single = SequenceDataset(demos, ["goal", "pos"])[np.array([14])]
    assert action_error(algo, last, 1) == pytest.approx(action_error(algo, single, 1))


def test_an_action_of_another_size_has_no_error(algo, demos):
    batch = SequenceDataset(demos, ["goal", "pos"])[np.arange(3)]
    batch["actions"] = torch.zeros(3, 1, 5)
    assert action_error(algo, batch, 1) is None


def test_the_same_numbers_each_time_and_no_trace(demos, algo):
    settings = {"validate": True, "validation_epoch_every_n_steps": 3}
    keys = {"hdf5_filter_key": "train", "hdf5_validation_filter_key": "valid"}
    config = load_config(config_dict(demos, experiment=settings, train=keys))
    train_set, valid_set = build_datasets(config)
    assert (len(train_set), len(valid_set)) == (150, 30)
    measured = Validation(config, valid_set, torch.device("cpu"))
    before = {name: weight.clone() for name, weight in algo.nets.state_dict().items()}
    torch.manual_seed(0)
    beats = []
    first, second = measured.run(algo, 1), measured.run(algo, 2, lambda: beats.append(1))
    assert len(beats) == 3 and 0.0 < first["Valid/Action_Error"] < 0.2
    after = torch.rand(1)
    torch.manual_seed(0)
    assert after == torch.rand(1)
    assert first == second and first["Valid/Loss"] > 0
    assert not any("lr" in key for key in first)
    assert algo.nets.training
    assert all(torch.equal(weight, before[name]) for name, weight in algo.nets.state_dict().items())


def test_a_policy_acts_in_steps_that_have_all_frames():
    class Policy:
        obs_keys, goal_keys = ("a", "b"), ("g",)

        def __call__(self, obs, goal, batched_ob):
            assert batched_ob and set(obs) == {"a", "b"}
            return obs["a"] + goal["g"]

    steps = torch.arange(8.0).reshape(2, 4, 1)
    raw = {
        "obs": {"a": steps, "b": steps[:, :3], "more": steps},
        "goal_obs": {"g": torch.tensor([[0.5], [0.25]])},
        "actions": torch.zeros(2, 3, 1),
        "pad_mask": torch.tensor([[True, True, False], [True, False, True]]),
    }
    found = [(t, action.tolist(), real.tolist()) for t, action, real in acted(Policy(), raw, 2)]
    assert found == [(1, [[1.5], [5.25]], [True, False]), (2, [[2.5], [6.25]], [False, True])]
    del raw["pad_mask"]
    assert [real.tolist() for _, _, real in acted(Policy(), raw, 3)] == [[True, True]]


@pytest.mark.parametrize(
    ("samples", "most", "batches", "size"),
    [(9, 6, 2, 4), (9, 8, 2, 4), (9, 100, 3, 4), (3, 100, 1, 3)],
)
def test_a_calibration_reads_no_more_than_it_needs(monkeypatch, samples, most, batches, size):
    monkeypatch.setattr(evaluations, "MOST_STEPS", most)
    read, modes = [], []

    def loader(given, order, workers, device):
        assert (len(given), workers, device) == (samples, 0, "cpu")
        for number, rows in enumerate(order):
            read.append(len(rows))
            yield number

    def acts(policy, number, frame_stack):
        assert frame_stack == 2
        values = torch.arange(size) + 10.0 * number
        policy.last_extras = {"uncertainty": values}
        yield 0, None, torch.arange(size) != 1

    monkeypatch.setattr(evaluations, "make_loader", loader)
    monkeypatch.setattr(evaluations, "acted", acts)
    monkeypatch.setattr(evaluations, "RolloutPolicy", lambda algo: SimpleNamespace())
    config = SimpleNamespace(train=SimpleNamespace(batch_size=4, seed=1, frame_stack=2))
    algo = SimpleNamespace(
        nets=SimpleNamespace(training=True), set_train=lambda: modes.append("train")
    )
    found = evaluations.Calibrator(config, range(samples), "cpu", held_out=True).run(algo)
    values = [10.0 * n + x for n in range(batches) for x in range(size) if x != 1][:most]
    assert (found["values"].tolist(), found["held_out"]) == (values, True)
    assert (len(read), read[0], modes) == (batches, size, ["train"])
    algo.nets.training = False
    evaluations.Calibrator(config, range(samples), "cpu", held_out=False).run(algo)
    assert modes == ["train"]


def test_a_calibration_is_for_policies_with_an_uncertainty_and_demonstrations(demos):
    dataset = SequenceDataset(demos, ["pos"])

    def made(train, valid, gives=True):
        setup = SimpleNamespace(config=None, device="cpu", train_set=train, valid_set=valid)
        setup.algo = SimpleNamespace(gives_uncertainty=gives)
        return evaluations.calibrator_of(setup)

    assert made(dataset, None, gives=False) is None
    assert made(range(9), None) is None and made(None, None) is None
    assert made(dataset, None) is not None and made(range(9), dataset) is not None


# ---- evaluations in the background ---------------------------------------------------------------


def request(epoch):
    return EvalRequest(epoch, epoch * 10, Path(f"{epoch}.pth"))


def collect(evaluations):
    """The next outcome, however long it takes."""
    while (outcome := evaluations.collect(timeout_s=0.1)) is None:
        pass
    return outcome


def test_one_runs_one_waits_and_a_newer_one_takes_its_place():
    gate, done = threading.Semaphore(0), []

    def evaluate(request):
        gate.acquire()
        done.append(request.epoch)
        return ()

    evaluations = BackgroundEvaluations(evaluate)
    assert evaluations.collect() is None and evaluations.request(request(1)) is None
    assert evaluations.request(request(2)) is None
    assert (evaluations.request(request(3)).epoch, evaluations.busy_with) == (2, 1)
    assert evaluations.pending == {1, 3} and evaluations.collect() is None
    gate.release()
    assert collect(evaluations).request.epoch == 1
    gate.release()
    assert collect(evaluations).request.epoch == 3
    assert evaluations.pending == set()
    assert done == [1, 3]


def test_a_failure_is_an_outcome():
    def evaluate(request):
        raise ValueError("no such thing")

    evaluations = BackgroundEvaluations(evaluate)
    evaluations.request(request(1))
    outcome = collect(evaluations)
    assert (outcome.error, outcome.results) == ("ValueError: no such thing", ())
