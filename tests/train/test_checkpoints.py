import os
from unittest.mock import Mock

import pytest

from imitate.config import ExperimentConfig
from imitate.errors import CheckpointError, TrainingError
from imitate.system.run_folder import create_run_folder
from imitate.train import checkpoints as module
from imitate.train.checkpoints import Checkpoints
from tests.refusals import refused


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Checkpoints of a run whose files hold the number of the save."""
    written = []

    def save_checkpoint(ckpt, path):
        temporary = path.with_name(".new")
        temporary.write_text(str(ckpt["number"]))
        temporary.replace(path)

    monkeypatch.setattr(module, "save_checkpoint", save_checkpoint)

    def build(**save):
        def state():
            written.append(len(written) + 1)
            return {"number": written[-1]}

        folder = create_run_folder(tmp_path, "run")
        return Checkpoints(folder, ExperimentConfig(save=save).save, state), folder.checkpoints

    build.written = written
    return build


def test_a_state_is_written_once_whatever_its_names(make):
    checkpoints, folder = make(every_n_epochs=1, on_best_validation=True)
    checkpoints.write_last(10)
    checkpoints.write_last(10)
    checkpoints.keep_epoch(1)
    checkpoints.write_candidate(1, 10)
    checkpoints.keep_best(checkpoints.last, {"valid"})
    assert make.written == [1]
    assert os.stat(checkpoints.last).st_nlink == 4
    checkpoints.write_last(20)
    assert (folder / "epoch_1.pth").read_text() == "1"
    assert (folder / "last.pth").read_text() == "2"


def test_only_wanted_bests_are_kept(make):
    checkpoints, folder = make(on_best_rollout_return=True)
    checkpoints.write_last(1)
    checkpoints.keep_best(checkpoints.last, {"valid", "return", "best"})
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["best.pth", "best_return.pth", "last.pth"]


def test_a_file_system_without_hard_links_gets_copies(make, monkeypatch):
    def link(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    checkpoints, folder = make()
    checkpoints.write_last(1)
    checkpoints.saved_elsewhere(2)
    checkpoints.write_last(2)
    assert make.written == [1]
    checkpoints.keep_epoch(5)
    assert (folder / "epoch_5.pth").read_text() == "1"


def test_the_last_checkpoint_takes_a_small_share_of_the_time(make, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    checkpoints, _ = make()
    assert checkpoints.last_is_due()
    save = module.save_checkpoint

    def slow(ckpt, path):
        save(ckpt, path)
        clock[0] += 2.0

    monkeypatch.setattr(module, "save_checkpoint", slow)
    checkpoints.write_last(1)
    clock[0] += 39.0
    assert not checkpoints.last_is_due()
    clock[0] += 1.0
    assert checkpoints.last_is_due()
    by_time, _ = make(every_n_seconds=5.0)
    clock[0] += 4.0
    assert not by_time.last_is_due()
    clock[0] += 1.0
    assert by_time.last_is_due()


def test_periodic_epochs(make):
    checkpoints, _ = make(every_n_epochs=4, epochs=[3])
    assert [epoch for epoch in range(1, 10) if checkpoints.epoch_is_due(epoch)] == [3, 4, 8]
    switched_off, _ = make(enabled=False, every_n_epochs=1)
    assert not switched_off.epoch_is_due(1) and not switched_off.last_is_due()


def test_the_newest_epochs_and_the_listed_ones_are_kept(make):
    checkpoints, folder = make(every_n_epochs=1, keep_last=2, epochs=[1])
    for epoch in (1, 2, 3, 9, 10):
        checkpoints.write_last(epoch)
        checkpoints.keep_epoch(epoch)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["epoch_1.pth", "epoch_10.pth", "epoch_9.pth", "last.pth"]


def test_candidates_for_an_evaluation(make):
    checkpoints, folder = make()
    assert checkpoints.saved_step is None and checkpoints.candidates() == []
    for epoch in (10, 9):
        checkpoints.write_candidate(epoch, 100 * epoch)
    assert (checkpoints.saved_step, checkpoints.candidates()) == (900, [9, 10])
    assert checkpoints.candidate(9) == folder / "rollout_epoch_9.pth"
    checkpoints.saved_elsewhere(0)
    assert checkpoints.saved_step == 0


def test_without_saving_only_candidates_are_written(make):
    checkpoints, folder = make(enabled=False)
    checkpoints.write_candidate(7, 70)
    checkpoints.keep_best(checkpoints.candidate(7), {"best", "valid", "return"})
    assert [path.name for path in folder.iterdir()] == ["rollout_epoch_7.pth"]
    assert checkpoints.saved_step is None


def test_a_failed_save_says_what_is_intact(make, monkeypatch):
    checkpoints, folder = make()

    def full(ckpt, path):
        raise CheckpointError("could not be written") from OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_checkpoint", full)
        with refused("No space left on device|there was none before it", error=TrainingError):
            checkpoints.write_last(1)
    checkpoints.write_last(1)
    monkeypatch.setattr(module, "save_checkpoint", full)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: Mock(free=3.1e6))
    with refused("; 3 MB free|last.pth is intact. Make room", error=TrainingError):
        checkpoints.write_last(2)
    assert (folder / "last.pth").read_text() == "2"
