import io
import json
import multiprocessing
import os
import shlex
import signal
import sys

import h5py
import pytest
import torch

import imitate.train.checkpoints
from imitate.algo.bc import BC
from imitate.config import load_config
from imitate.data.edit.edits import add_filter_key
from imitate.data.edit.selection import Selection
from imitate.data.edit.target import Target
from imitate.errors import CheckpointError, ConfigError, TrainingError, UserError
from imitate.policy.checkpoint import load_checkpoint, save_checkpoint
from imitate.system.run_folder import RunFolder
from imitate.train import trainer
from imitate.train.console import Console
from imitate.train.setup import build
from imitate.train.trainer import train
from tests.refusals import refused

from .conftest import assert_same_nets, config_dict, env_meta, last, records, write_demos

pytestmark = pytest.mark.usefixtures("importable_env")


@pytest.fixture
def run(demos, tmp_path):
    """Train with sections laid over the small configuration; what was said is in `run.said`."""

    def start(*, resume=None, overrides=(), **sections):
        stream = io.StringIO()
        config = None if resume else config_dict(demos, **sections)
        try:
            place = {"resume": resume} if resume else {"output_dir": tmp_path / "runs"}
            return train(config, overrides=overrides, stream=stream, **place)
        finally:
            start.said = stream.getvalue()

    return start


@pytest.fixture(scope="module")
def plain(tmp_path_factory, importable_env):
    """A run of the small configuration, with nothing laid over it."""
    place = tmp_path_factory.mktemp("plain")
    return train(config_dict(write_demos(place / "d.hdf5")), output_dir=place, quiet=True)


VALIDATED = {"hdf5_filter_key": "train", "hdf5_validation_filter_key": "valid"}
ONE_EPOCH = {"num_epochs": 1}
LATENTS = {"vae": {"enabled": True}}
HERE = {"enabled": True, "num_workers": 0}
"""Rollouts in this process."""


def rate(initial):
    return {"optim_params": {"policy": {"learning_rate": {"initial": initial}}}}


@pytest.fixture
def signalled(monkeypatch):
    """Sends this process a signal at an update."""

    def at(update, number):
        advance = Console.advance

        def interrupted(self, done):
            if done == update:
                monkeypatch.setattr(Console, "advance", advance)
                os.kill(os.getpid(), number)
            advance(self, done)

        monkeypatch.setattr(Console, "advance", interrupted)

    return at


def files(run):
    return sorted(path.name for path in (run.run_dir / "checkpoints").iterdir())


@pytest.mark.draws
def test_a_run_leaves_its_files(run, demos, tmp_path):
    result = run(train=VALIDATED, experiment={"validate": True}, algo=rate(0.01))
    folder = RunFolder(result.run_dir)
    assert result.run_dir.parent == tmp_path / "runs" / "point"
    assert (result.status, result.exit_code) == ("finished", 0)
    first, _, third = lines = records(result)
    assert len(folder.metrics.read_text().splitlines()) == 3
    assert [(r["epoch"], r["step"]) for r in lines] == [(1, 20), (2, 40), (3, 60)]
    assert third["Train/Loss"] < first["Train/Loss"]
    assert third["Valid/Loss"] < first["Valid/Loss"]
    assert 0 < third["Valid/Action_Error"] < first["Valid/Action_Error"] < 2
    assert first["Timing/Epoch_s"] > 0
    assert json.loads(folder.results.read_text())["train_loss"] == third["Train/Loss"]
    assert folder.curve.stat().st_size > 10_000
    config = load_config(folder.config)
    assert config.train.data[0].path == str(demos)
    ckpt = last(result)
    assert ckpt["train_state"]["epoch"] == 3
    assert ckpt["shape_metadata"]["action_high"] == [1.0, 1.0]
    assert ckpt["shape_metadata"]["raw_shapes"] == {"goal": [2], "pos": [2]}
    assert ckpt["env_metadata"] == env_meta()
    assert ckpt["provenance"]["datasets"][0]["num_demos"] == 12
    assert "epoch 3/3: loss" in run.said and "processes" not in run.said
    assert folder.log.read_text() == run.said
    assert str(folder.last) in "\n".join(result.summary)
    assert not list(folder.checkpoints.glob("*.partial"))


def test_what_is_null_follows_from_the_demos_and_is_written_down(run):
    nulls = {"epoch_every_n_steps": None, "rollout": {"horizon": None}}
    result = run(experiment=nulls, train=ONE_EPOCH)
    written = load_config(result.run_dir / "config.json").experiment
    # 10 demos of 15 steps, batches of 16; twice the length of the demos.
    assert result.results["step"] == written.epoch_every_n_steps == 9
    assert written.rollout.horizon == 30
    assert json.loads(last(result)["config"])["experiment"]["rollout"]["horizon"] == 30


def test_null_epochs_follow_from_the_samples(demos):
    keys = {"num_epochs": None, "batch_size": 4}
    config = config_dict(demos, experiment={"epoch_every_n_steps": 500}, train=keys)
    # 12 demos of 15 steps are 180 samples, 20 passes over them 900 batches of 4: less than 1000 updates.
    assert build(load_config(config), torch.device("cpu")).config.train.num_epochs == 2


@pytest.mark.parametrize(("scale", "wanted"), [(1.0, None), (0.2, "min_max"), (3.0, "min_max")])
def test_automatic_action_normalization_follows_from_the_actions(run, demos, scale, wanted):
    with h5py.File(demos, "r+") as file:
        for demo in file["data"].values():
            demo["actions"][...] = scale * demo["actions"][...]
    auto = {"actions": {"normalization": "auto"}}
    result = run(train={**ONE_EPOCH, "action_config": auto})
    config = load_config(result.run_dir / "config.json")
    assert config.train.action_config.actions.normalization == wanted


def test_two_runs_of_one_second_and_the_same_seed(run, plain):
    first, other = run(), run(train={"seed": 4})
    assert first.run_dir != other.run_dir
    assert_same_nets(first, plain)
    with pytest.raises(AssertionError):
        assert_same_nets(first, other)


def test_validation_changes_nothing_about_the_training(run):
    with_it = run(experiment={"validate": True}, algo=LATENTS, train=VALIDATED)
    assert_same_nets(with_it, run(algo=LATENTS, train=VALIDATED))


def test_workers_that_read_data_change_nothing_and_end_with_the_run(run, plain):
    with_workers = run(train={"num_data_workers": 2})
    assert multiprocessing.active_children() == []
    assert_same_nets(plain, with_workers)


def test_a_signal_saves_and_the_resumed_run_ends_as_if_there_had_been_none(run, signalled):
    whole = run(algo=LATENTS)
    signalled(33, signal.SIGTERM)
    cut = run(algo=LATENTS)
    assert (cut.status, cut.exit_code) == ("interrupted", 143)
    assert shlex.join(["imitate", "train", "--resume", str(cut.run_dir)]) in cut.summary[-1]
    assert last(cut)["train_state"]["step"] == 33
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    resumed = run(resume=cut.run_dir)
    assert resumed.exit_code == 0
    assert "resumed at epoch 1, step 33" in run.said
    assert_same_nets(whole, resumed)
    losses = [[r["Train/Loss"] for r in records(result)] for result in (whole, resumed)]
    assert losses[0] == losses[1]


def test_a_finished_run_can_be_extended_but_not_turned_into_another(run, plain, demos):
    first = run(train={"num_epochs": 2})
    run(resume=first.run_dir)
    steps = first.results["step"]
    assert f"resumed at epoch 2, step {steps}, its last: for more, add --epochs 4" in run.said
    longer = run(resume=first.run_dir, overrides=["train.num_epochs=3"])
    assert longer.results["epoch"] == 3
    assert_same_nets(longer, plain)
    with refused("train.batch_size: cannot change in a resumed run", error=ConfigError):
        run(resume=first.run_dir, overrides=["train.batch_size=3"])
    with refused("not a run folder", error=CheckpointError):
        run(resume=first.run_dir / "checkpoints")
    write_demos(demos, seed=1)
    with refused("demos.hdf5: has changed since the run began (|sha256", error=CheckpointError):
        run(resume=first.run_dir)


def test_a_run_is_resumed_where_its_dataset_has_moved_to(run, demos, tmp_path):
    first = run(train={"num_epochs": 2})
    moved = demos.rename(tmp_path / "moved.hdf5")
    with refused("if it was moved, give its new path: --dataset", error=ConfigError):
        run(resume=first.run_dir)
    other, before = write_demos(demos, seed=1), (first.run_dir / "config.json").read_bytes()
    with refused("demos.hdf5: has changed since the run began", error=CheckpointError):
        train(resume=first.run_dir, dataset=other)
    assert (first.run_dir / "config.json").read_bytes() == before
    other.unlink()
    longer = train(resume=first.run_dir, dataset=moved, overrides=["train.num_epochs=3"])
    assert longer.results["epoch"] == 3
    again = train(resume=first.run_dir, overrides=["train.num_epochs=4"])  # its place was noted
    assert again.results["epoch"] == 4


def test_resume_with_other_observations_or_rewards_is_refused(run, demos):
    first, content = run(train=ONE_EPOCH), demos.read_bytes()
    for key in ("obs/pos", "rewards"):
        demos.write_bytes(content)
        with h5py.File(demos, "r+") as file:
            for demo in file["data"].values():
                demo[key][...] = 1000
        with refused("has changed|observations, rewards or other", error=CheckpointError):
            run(resume=first.run_dir, overrides=["train.num_epochs=2"])


def test_resume_after_a_filter_key_was_added_and_of_a_run_that_noted_actions_only(run, demos):
    folder = run(train=ONE_EPOCH).run_dir
    add_filter_key(demos, Target(None, demos), "few", Selection(first=2))
    assert run(resume=folder, overrides=["train.num_epochs=2"]).results["epoch"] == 2
    ckpt = torch.load(folder / "checkpoints" / "last.pth", weights_only=True)
    for dataset in ckpt["provenance"]["datasets"]:
        for key in ("content_version", "content_sha256", "demos_sha256"):
            del dataset[key]
    save_checkpoint(ckpt, folder / "checkpoints" / "last.pth")
    assert run(resume=folder, overrides=["train.num_epochs=3"]).results["epoch"] == 3
    assert "no checksum of observations and rewards" in run.said


def test_resume_without_a_folder_takes_the_newest(run, demos, tmp_path):
    config = config_dict(demos)
    with refused("no run to resume", error=CheckpointError):
        train(config, output_dir=tmp_path / "runs", resume=True, quiet=True)
    run()
    newest = run(train={"num_epochs": 2}).run_dir
    assert train(config, output_dir=tmp_path / "runs", resume=True, quiet=True).run_dir == newest


def test_periodic_checkpoints_and_retention(run):
    save = {"every_n_epochs": 1, "keep_last": 2, "epochs": [1]}
    result = run(experiment={"save": save}, train={"num_epochs": 5})
    assert files(result) == ["epoch_1.pth", "epoch_4.pth", "epoch_5.pth", "last.pth"]
    fourth = load_checkpoint(result.run_dir / "checkpoints" / "epoch_4.pth")
    assert fourth["train_state"]["epoch"] == 4


def test_saving_can_be_switched_off(run, demos):
    off = {"save": {"enabled": False}}
    result = run(experiment=off)
    assert files(result) == []
    assert result.checkpoint is None
    with refused("a pause needs a checkpoint", error=ConfigError):
        train(config_dict(demos, experiment=off), until_epoch=1, quiet=True)


@pytest.mark.slow("a training with workers that evaluate and film")
def test_evaluations_in_the_background_and_the_best_checkpoint(run):
    result = run(experiment={"rollout": {"enabled": True, "rate": 2}, "render_video": True})
    assert result.exit_code == 0
    lines = records(result, "rollout")
    # Epoch 2 is due; 3 is the last one and always evaluated.
    assert sorted(r["epoch"] for r in lines) == [2, 3]
    assert [r["step"] for r in lines] == [20 * r["epoch"] for r in lines]
    final = result.results["final"]
    assert (final["epoch"], final["episodes"]) == (3, 4)
    assert final["environments"][0]["per_episode"][0]["seed"] == 100000
    best = load_checkpoint(result.run_dir / "checkpoints" / "best.pth")
    assert best["train_state"]["epoch"] == result.results["best"]["epoch"]
    assert not any(name.startswith("rollout_") for name in files(result))
    video = result.run_dir / "videos" / "epoch_3.mp4"
    assert video.stat().st_size > 0
    assert final["environments"][0]["video"] == str(video.absolute())
    assert "success, final" in "\n".join(result.summary)


def test_evaluations_in_this_process(run, plain):
    result = run(experiment={"rollout": HERE, "save": {"enabled": False}}, train={"num_epochs": 2})
    assert sorted(result.results["final"]) and result.results["final"]["epoch"] == 2
    # Training did not notice: the losses of both runs are the same to the last bit.
    losses = [[r["Train/Loss"] for r in records(one)[:2]] for one in (result, plain)]
    assert losses[0] == losses[1]


def test_a_failed_evaluation_is_told_and_training_goes_on(run, demos):
    write_demos(demos, meta=env_meta(raise_at=list(range(100000, 100004))))
    result = run(experiment={"rollout": HERE}, train={"num_epochs": 2})
    assert result.results["epoch"] == 2
    assert result.exit_code == 1
    assert "no episode could be played" in result.results["evaluation_failures"][0]
    assert "evaluation of epoch 1 failed" in run.said


def test_several_environments(run):
    more = {"additional_envs": ["point_mass:PointMassFar-v0"]}
    result = run(experiment={"rollout": HERE, **more}, train=ONE_EPOCH)
    (record,) = records(result, "rollout")
    assert record["Rollout/Horizon/point_mass:PointMassFar-v0"] == 30.0
    rates = [record[f"Rollout/Success_Rate/point_mass:PointMass{x}-v0"] for x in ("", "Far")]
    assert record["Rollout/Success_Rate"] == sum(rates) / 2
    ends = [f"Rollout/Success_Rate_At_End/point_mass:PointMass{x}-v0" for x in ("", "Far")]
    assert [record[tag] for tag in ends] == rates  # episodes end at success
    assert all("checkpoint" not in e for e in result.results["final"]["environments"])
    names = [e["env"] for e in result.results["final"]["environments"]]
    assert names == ["point_mass:PointMass-v0", "point_mass:PointMassFar-v0"]


def test_an_evaluation_that_a_signal_cut_is_done_after_the_resume(run, demos, signalled):
    write_demos(demos, meta=env_meta(step_s=0.5))
    signalled(45, signal.SIGINT)
    cut = run(experiment={"rollout": {"enabled": True, "rate": 2, "n": 1, "horizon": 8}})
    assert cut.exit_code == 130
    assert "rollout_epoch_2.pth" in files(cut)
    resumed = run(resume=cut.run_dir, overrides=["experiment.rollout.horizon=1"])
    assert resumed.exit_code == 0
    assert [r["epoch"] for r in records(cut, "rollout")] == [2, 3]
    assert "rollout_epoch_2.pth" not in files(cut)


def test_early_stopping_at_the_target(run):
    stopping = {"enabled": True, "target": 0.0}
    result = run(experiment={"rollout": HERE, "early_stopping": stopping}, train={"num_epochs": 50})
    assert result.status == "stopped early: success_rate reached the target 0"
    assert result.results["epoch"] == 1
    assert result.exit_code == 0


def test_a_loss_that_turns_nan_stops_before_it_is_saved(run, monkeypatch, tmp_path):
    train_on_batch = BC.train_on_batch

    def poisoned(self, batch, epoch, validate=False):
        self.calls = getattr(self, "calls", 0) + 1
        info = train_on_batch(self, batch, epoch, validate)
        if self.calls in (30, 31):
            with torch.no_grad():
                for parameter in self.nets.parameters():
                    parameter.fill_(float("nan"))
            info["Loss"] = torch.tensor(float("nan"))
        return info

    monkeypatch.setattr(BC, "train_on_batch", poisoned)
    words = "step 29 (epoch 2): the loss is nan, not finite; its batch: demo_0 st"
    with refused(words, error=TrainingError):
        run()
    (results,) = tmp_path.glob("runs/point/*/results.json")
    assert json.loads(results.read_text())["status"].startswith("failed: step 29")
    monkeypatch.setattr(imitate.train.checkpoints, "SAVING_SHARE", 1e9)
    rolled = run(train={"on_bad_loss": "rollback"})
    assert "rolled back to step 20" in run.said
    ckpt = load_checkpoint(rolled.checkpoint)["train_state"]
    # Batches 20 to 29 were left out, then 30, which is call 31.
    assert (ckpt["rollbacks"], ckpt["skipped_batches"]) == (2, 11)
    assert rolled.results["epoch"] == 3
    assert all(bool(torch.isfinite(w).all()) for w in last(rolled)["model"]["nets"].values())


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint(run, monkeypatch):
    checkpoints = imitate.train.checkpoints
    save = checkpoints.save_checkpoint
    saved = []

    def full(ckpt, path):
        saved.append(path)
        if len(saved) == 3:
            raise CheckpointError("x") from OSError(28, "No space left on device")
        save(ckpt, path)

    monkeypatch.setattr(checkpoints, "save_checkpoint", full)
    monkeypatch.setattr(checkpoints, "SAVING_SHARE", 1e9)
    words = "No space left on device|last.pth is intact|--resume"
    with refused(words, error=TrainingError):
        run()
    assert load_checkpoint(saved[0])["train_state"]["epoch"] == 2


def test_weights_to_start_from(run, plain):
    start = {"ckpt_path": str(plain.checkpoint), "name": "second"}
    second = run(experiment=start, algo=rate(1e-12), train=ONE_EPOCH)
    assert_same_nets(plain, second, atol=1e-6)
    with refused("experiment.ckpt_path: the weights of | do not fit", error=CheckpointError):
        run(experiment=start, algo={"actor_layer_dims": [8]})


NO_CHECKPOINTS = {"experiment": {"save": {"enabled": False}}, "train": {"on_bad_loss": "rollback"}}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"experiment": {"logging": {"log_wandb": True}}}, "wandb is not installed"),
        (NO_CHECKPOINTS, "'rollback' needs checkpoints"),
        ({"train": {"hdf5_filter_key": "nothing_here"}}, "nothing_here"),
        ({"train": {"output_dir": "file"}}, "cannot be created"),
        ({"dataset": "none.hdf5"}, "no such demonstration file"),
        (None, "--config"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_made(
    demos, tmp_path, monkeypatch, sections, words
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    dataset = (sections or {}).get("dataset", demos)
    laid = {name: keys for name, keys in (sections or {}).items() if name != "dataset"}
    config = None if sections is None else config_dict(**laid)
    with refused(words, error=UserError):
        train(config, dataset=None if config is None else dataset, quiet=True)
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "demos.hdf5"}


def test_a_resumed_run_keeps_its_environment():
    with refused("a resumed run keeps its environment: omit --env", error=ConfigError):
        train(resume="runs", env="Pendulum-v1")


@pytest.mark.parametrize(
    ("given", "device", "shared", "threads"),
    [
        (3, "cpu", 2, 3),
        (None, "cuda", 2, None),
        (None, "cpu", 0, None),
        (None, "cpu", 2, 4),
        (None, "cpu", 6, 1),
    ],
)
def test_torch_leaves_cores_to_the_evaluations(monkeypatch, demos, given, device, shared, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(trainer, "available_cores", lambda: 6)
    config = load_config(config_dict(demos, train={"num_threads": given}))
    assert trainer.threads_of(config, torch.device(device), shared) == threads


# ---- a run that pauses after an epoch: evaluated there, resumed as if there had been no pause ----


@pytest.mark.slow("three trainings, with rollouts")
def test_a_pause_is_evaluated_and_leaves_no_trace_in_the_weights(demos, tmp_path):
    cosine = {"optim_params": {"policy": {"learning_rate": {"scheduler_type": "cosine"}}}}
    rollout = {**HERE, "n": 2, "rate": 3}
    config = config_dict(demos, experiment={"rollout": rollout}, algo={**LATENTS, **cosine})
    whole = train(config, output_dir=tmp_path, quiet=True)
    paused = train(config, output_dir=tmp_path, until_epoch=1, quiet=True)
    assert (paused.status, paused.exit_code) == ("paused at epoch 1 of 3", 0)
    assert paused.results["status"] == paused.status and paused.results["epoch"] == 1
    assert [r["epoch"] for r in records(paused, "rollout")] == [1]  # which was not due
    # At a rung that it has passed already it pauses at once.
    again = train(resume=paused.run_dir, until_epoch=1, quiet=True)
    assert again.results["epoch"] == 1 and len(records(again)) == 1
    resumed = train(resume=paused.run_dir, until_epoch=3, quiet=True)
    assert resumed.status == "finished"
    losses = [[r["Train/Loss"] for r in records(run)] for run in (whole, resumed)]
    assert losses[0] == losses[1]
    assert_same_nets(whole, resumed)
