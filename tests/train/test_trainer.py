import io
import json
import multiprocessing
import os
import signal

import h5py
import pytest
import torch

import imitate.train.checkpoints
from imitate.algo.bc import BC
from imitate.config import load_config
from imitate.data.curate.masks import add_filter_key
from imitate.data.curate.selection import Selection
from imitate.data.curate.target import Target
from imitate.errors import CheckpointError, ConfigError, DatasetError, TrainingError
from imitate.policy.checkpoint import load_checkpoint, save_checkpoint
from imitate.run_folder import RunFolder
from imitate.train.console import Console
from imitate.train.metrics import MetricsFile
from imitate.train.trainer import train

from .conftest import config_dict, env_meta, write_demos

pytestmark = pytest.mark.usefixtures("importable_env")


@pytest.fixture
def run(demos, tmp_path):
    """Train with sections laid over the small configuration; what was said is in `run.said`."""

    def start(*, resume=None, overrides=(), **sections):
        stream = io.StringIO()
        config = None if resume else config_dict(demos, **sections)
        try:
            return train(
                config,
                output_dir=None if resume else tmp_path / "runs",
                resume=resume,
                overrides=overrides,
                stream=stream,
            )
        finally:
            start.said = stream.getvalue()

    return start


def weights(path):
    return load_checkpoint(path)["model"]["nets"]


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.draws
def test_a_run_leaves_its_files(run, demos, tmp_path):
    result = run(
        train={"hdf5_filter_key": "train", "hdf5_validation_filter_key": "valid"},
        experiment={"validate": True},
        algo={"optim_params": {"policy": {"learning_rate": {"initial": 0.01}}}},
    )
    folder = RunFolder(result.run_dir)
    assert result.run_dir.parent == tmp_path / "runs" / "point"
    assert (result.status, result.exit_code) == ("finished", 0)
    records = MetricsFile(folder.metrics).read()
    assert [(r["kind"], r["epoch"], r["step"]) for r in records] == [
        ("epoch", 1, 20),
        ("epoch", 2, 40),
        ("epoch", 3, 60),
    ]
    assert records[2]["Train/Loss"] < records[0]["Train/Loss"]
    assert records[2]["Valid/Loss"] < records[0]["Valid/Loss"]
    assert 0 < records[2]["Valid/Action_Error"] < records[0]["Valid/Action_Error"] < 2
    assert records[0]["Timing/Epoch_s"] > 0
    assert json.loads(folder.results.read_text())["train_loss"] == records[2]["Train/Loss"]
    assert folder.curve.stat().st_size > 10_000
    config = load_config(folder.config)
    assert config.train.data[0].path == str(demos)
    ckpt = load_checkpoint(folder.last)
    assert ckpt["train_state"]["epoch"] == 3
    assert ckpt["shape_metadata"]["action_high"] == [1.0, 1.0]
    assert ckpt["shape_metadata"]["raw_shapes"] == {"goal": [2], "pos": [2]}
    assert ckpt["env_metadata"] == env_meta()
    assert ckpt["provenance"]["datasets"][0]["num_demos"] == 12
    assert "epoch 3/3: loss" in run.said
    assert folder.log.read_text() == run.said
    assert str(folder.last) in "\n".join(result.summary)
    assert not list(folder.checkpoints.glob("*.partial"))


def test_null_steps_per_epoch_is_one_pass_and_is_written_down(run):
    result = run(experiment={"epoch_every_n_steps": None}, train={"num_epochs": 1})
    # 10 demos of 15 steps, batches of 16.
    assert result.results["step"] == 9
    assert load_config(result.run_dir / "config.json").experiment.epoch_every_n_steps == 9


def test_a_null_horizon_follows_from_the_demos_and_is_written_down(run):
    result = run(experiment={"rollout": {"horizon": None}}, train={"num_epochs": 1})
    # 12 demos of 15 steps: twice that.
    assert load_config(result.run_dir / "config.json").experiment.rollout.horizon == 30
    ckpt = load_checkpoint(result.run_dir / "checkpoints" / "last.pth")
    assert json.loads(ckpt["config"])["experiment"]["rollout"]["horizon"] == 30


def test_null_epochs_follow_from_the_samples_and_are_written_down(run):
    result = run(
        experiment={"epoch_every_n_steps": 500}, train={"num_epochs": None, "batch_size": 4}
    )
    # 12 demos of 15 steps are 180 samples, 20 passes over them 900 batches of 4: less than 1000 updates.
    assert result.results["step"] == 1000
    assert load_config(result.run_dir / "config.json").train.num_epochs == 2


@pytest.mark.parametrize(("scale", "wanted"), [(1.0, None), (0.2, "min_max"), (3.0, "min_max")])
def test_automatic_action_normalization_follows_from_the_actions(run, demos, scale, wanted):
    with h5py.File(demos, "r+") as file:
        for demo in file["data"].values():
            demo["actions"][...] = scale * demo["actions"][...]
    auto = {"actions": {"normalization": "auto"}}
    result = run(train={"num_epochs": 1, "action_config": auto})
    config = load_config(result.run_dir / "config.json")
    assert config.train.action_config.actions.normalization == wanted


def test_two_runs_of_one_second_and_the_same_seed(run):
    first, second = run(), run()
    assert first.run_dir != second.run_dir
    assert equal(weights(first.checkpoint), weights(second.checkpoint))
    third = run(train={"seed": 4})
    assert not equal(weights(first.checkpoint), weights(third.checkpoint))


def test_validation_changes_nothing_about_the_training(run):
    sections = {
        "algo": {"vae": {"enabled": True}},
        "train": {"hdf5_filter_key": "train", "hdf5_validation_filter_key": "valid"},
    }
    with_it = run(experiment={"validate": True}, **sections)
    without = run(**sections)
    assert equal(weights(with_it.checkpoint), weights(without.checkpoint))


def test_workers_that_read_data_change_nothing_and_end_with_the_run(run):
    without, with_workers = run(), run(train={"num_data_workers": 2})
    assert multiprocessing.active_children() == []
    assert equal(weights(without.checkpoint), weights(with_workers.checkpoint))


def test_a_signal_saves_and_the_resumed_run_ends_as_if_there_had_been_none(run, monkeypatch):
    sections = {"algo": {"vae": {"enabled": True}}}
    whole = run(**sections)
    advance = Console.advance

    def interrupted(self, done):
        if done == 33:
            os.kill(os.getpid(), signal.SIGTERM)
        advance(self, done)

    with monkeypatch.context() as patch:
        patch.setattr(Console, "advance", interrupted)
        cut = run(**sections)
    assert (cut.status, cut.exit_code) == ("interrupted", 143)
    assert f"imitate train --resume {cut.run_dir}" in cut.summary[-1]
    assert load_checkpoint(cut.run_dir / "checkpoints" / "last.pth")["train_state"]["step"] == 33
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    resumed = run(resume=cut.run_dir)
    assert resumed.exit_code == 0
    assert "resumed at epoch 1, step 33" in run.said
    assert equal(weights(whole.checkpoint), weights(resumed.checkpoint))

    def losses(result):
        return [r["Train/Loss"] for r in MetricsFile(result.run_dir / "metrics.jsonl").read()]

    assert losses(whole) == losses(resumed)


def test_a_finished_run_can_be_extended_but_not_turned_into_another(run, demos):
    first = run(train={"num_epochs": 2})
    longer = run(resume=first.run_dir, overrides=["train.num_epochs=3"])
    assert longer.results["epoch"] == 3
    assert equal(weights(longer.checkpoint), weights(run().checkpoint))
    with pytest.raises(ConfigError, match="train.batch_size: cannot change in a resumed run"):
        run(resume=first.run_dir, overrides=["train.batch_size=3"])
    with pytest.raises(CheckpointError, match="not a run folder"):
        run(resume=first.run_dir / "checkpoints")
    demos.unlink()
    write_demos(demos, seed=1)
    with pytest.raises(
        CheckpointError, match=r"demos.hdf5: has changed since the run began \(.*sha256"
    ):
        run(resume=first.run_dir)


def test_a_run_is_resumed_where_its_dataset_has_moved_to(run, demos, tmp_path):
    first = run(train={"num_epochs": 2})
    moved = demos.rename(tmp_path / "moved.hdf5")
    with pytest.raises(ConfigError, match="if it was moved, say where it is now: --dataset"):
        run(resume=first.run_dir)
    other, before = write_demos(demos, seed=1), (first.run_dir / "config.json").read_bytes()
    with pytest.raises(CheckpointError, match="demos.hdf5: has changed since the run began"):
        train(resume=first.run_dir, dataset=other)
    assert (first.run_dir / "config.json").read_bytes() == before
    other.unlink()
    longer = train(resume=first.run_dir, dataset=moved, overrides=["train.num_epochs=3"])
    assert longer.results["epoch"] == 3
    again = train(resume=first.run_dir, overrides=["train.num_epochs=4"])  # its place was noted
    assert again.results["epoch"] == 4


@pytest.mark.parametrize("key", ["obs/pos", "rewards"])
def test_resume_with_other_observations_or_rewards_is_refused(run, demos, key):
    first = run(train={"num_epochs": 1})
    with h5py.File(demos, "r+") as file:
        for demo in file["data"].values():
            demo[key][...] = 1000
    with pytest.raises(CheckpointError, match=r"has changed.*observations, rewards or other"):
        run(resume=first.run_dir, overrides=["train.num_epochs=2"])


def test_resume_of_a_run_that_noted_actions_only(run):
    first = run(train={"num_epochs": 1})
    ckpt = torch.load(first.run_dir / "checkpoints" / "last.pth", weights_only=True)
    for dataset in ckpt["provenance"]["datasets"]:
        for key in ("content_version", "content_sha256", "demos_sha256"):
            del dataset[key]
    save_checkpoint(ckpt, first.run_dir / "checkpoints" / "last.pth")
    longer = run(resume=first.run_dir, overrides=["train.num_epochs=2"])
    assert longer.results["epoch"] == 2
    assert "observations and rewards were not noted" in run.said


def test_resume_after_a_filter_key_was_added(run, demos):
    first = run(train={"num_epochs": 1})
    add_filter_key(demos, Target(None, demos), "few", Selection(first=2))
    assert run(resume=first.run_dir, overrides=["train.num_epochs=2"]).results["epoch"] == 2


def test_resume_without_a_folder_takes_the_newest(run, demos, tmp_path):
    config = config_dict(demos)
    with pytest.raises(CheckpointError, match="no run to resume"):
        train(config, output_dir=tmp_path / "runs", resume=True, quiet=True)
    run()
    newest = run(train={"num_epochs": 2}).run_dir
    assert train(config, output_dir=tmp_path / "runs", resume=True, quiet=True).run_dir == newest


def test_periodic_checkpoints_and_retention(run):
    result = run(
        experiment={"save": {"every_n_epochs": 1, "keep_last": 2, "epochs": [1]}},
        train={"num_epochs": 5},
    )
    names = sorted(path.name for path in (result.run_dir / "checkpoints").iterdir())
    assert names == ["epoch_1.pth", "epoch_4.pth", "epoch_5.pth", "last.pth"]
    assert (
        load_checkpoint(result.run_dir / "checkpoints" / "epoch_4.pth")["train_state"]["epoch"] == 4
    )


def test_saving_can_be_switched_off(run):
    result = run(experiment={"save": {"enabled": False}})
    assert list((result.run_dir / "checkpoints").iterdir()) == []
    assert result.checkpoint is None


def test_evaluations_in_the_background_and_the_best_checkpoint(run):
    result = run(
        experiment={"rollout": {"enabled": True, "rate": 2}, "render_video": True},
        train={"num_epochs": 3},
    )
    assert result.exit_code == 0
    records = [
        r for r in MetricsFile(result.run_dir / "metrics.jsonl").read() if r["kind"] == "rollout"
    ]
    # Epoch 2 is due; 3 is the last one and always evaluated.
    assert sorted(r["epoch"] for r in records) == [2, 3]
    assert [r["step"] for r in records] == [20 * r["epoch"] for r in records]
    final = result.results["final"]
    assert (final["epoch"], final["episodes"]) == (3, 4)
    assert final["environments"][0]["per_episode"][0]["seed"] == 100000
    best = load_checkpoint(result.run_dir / "checkpoints" / "best.pth")
    assert best["train_state"]["epoch"] == result.results["best"]["epoch"]
    assert not list((result.run_dir / "checkpoints").glob("rollout_*"))
    assert (result.run_dir / "videos" / "epoch_3.mp4").stat().st_size > 0
    assert "success, final" in "\n".join(result.summary)


def test_evaluations_in_this_process(run):
    result = run(
        experiment={"rollout": {"enabled": True, "num_workers": 0}, "save": {"enabled": False}},
        train={"num_epochs": 2},
    )
    without = run(train={"num_epochs": 2})
    assert sorted(result.results["final"]) and result.results["final"]["epoch"] == 2
    # Training did not notice: the loss of both runs is the same to the last bit.
    assert result.results["train_loss"] == without.results["train_loss"]


def test_a_failed_evaluation_is_told_and_training_goes_on(run, demos):
    demos.unlink()
    write_demos(demos, meta=env_meta(raise_at=list(range(100000, 100004))))
    result = run(experiment={"rollout": {"enabled": True, "num_workers": 0}})
    assert result.results["epoch"] == 3
    assert result.exit_code == 1
    assert "no episode could be played" in result.results["evaluation_failures"][0]
    assert "evaluation of epoch 1 failed" in run.said


def test_several_environments(run):
    result = run(
        experiment={
            "rollout": {"enabled": True, "num_workers": 0},
            "additional_envs": ["point_mass:PointMassFar-v0"],
        },
        train={"num_epochs": 1},
    )
    (record,) = (
        r for r in MetricsFile(result.run_dir / "metrics.jsonl").read() if r["kind"] == "rollout"
    )
    assert record["Rollout/Horizon/point_mass:PointMassFar-v0"] == 30.0
    rates = [record[f"Rollout/Success_Rate/point_mass:PointMass{x}-v0"] for x in ("", "Far")]
    assert record["Rollout/Success_Rate"] == sum(rates) / 2
    ends = [f"Rollout/Success_Rate_At_End/point_mass:PointMass{x}-v0" for x in ("", "Far")]
    assert [record[tag] for tag in ends] == rates  # episodes end at success
    names = [e["env"] for e in result.results["final"]["environments"]]
    assert names == ["point_mass:PointMass-v0", "point_mass:PointMassFar-v0"]


def test_an_evaluation_that_a_signal_cut_is_done_after_the_resume(run, demos, monkeypatch):
    demos.unlink()
    write_demos(demos, meta=env_meta(step_s=0.5))
    rollout = {"enabled": True, "rate": 2, "n": 1, "horizon": 8}
    advance = Console.advance

    def interrupted(self, done):
        if done == 45:
            os.kill(os.getpid(), signal.SIGINT)
        advance(self, done)

    with monkeypatch.context() as patch:
        patch.setattr(Console, "advance", interrupted)
        cut = run(experiment={"rollout": rollout})
    assert cut.exit_code == 130
    waiting = cut.run_dir / "checkpoints" / "rollout_epoch_2.pth"
    assert waiting.is_file()
    resumed = run(resume=cut.run_dir, overrides=["experiment.rollout.horizon=1"])
    assert resumed.exit_code == 0
    records = MetricsFile(cut.run_dir / "metrics.jsonl").read()
    assert [r["epoch"] for r in records if r["kind"] == "rollout"] == [2, 3]
    assert not waiting.exists()


def test_early_stopping_at_the_target(run):
    result = run(
        experiment={
            "rollout": {"enabled": True, "num_workers": 0},
            "early_stopping": {"enabled": True, "target": 0.0},
        },
        train={"num_epochs": 50},
    )
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
    with pytest.raises(
        TrainingError,
        match=r"step 29 \(epoch 2\): the loss is nan, not finite; its batch: demo_0 st",
    ):
        run()
    (results,) = tmp_path.glob("runs/point/*/results.json")
    assert json.loads(results.read_text())["status"].startswith("failed: step 29")
    monkeypatch.setattr(imitate.train.checkpoints, "SAVING_SHARE", 1e9)
    rolled = run(train={"on_bad_loss": "rollback"})
    assert "went back to step 20" in run.said
    ckpt = load_checkpoint(rolled.checkpoint)["train_state"]
    # Batches 20 to 29 were left out, then 30, which is call 31.
    assert (ckpt["rollbacks"], ckpt["skipped_batches"]) == (2, 11)
    assert rolled.results["epoch"] == 3
    assert all(bool(torch.isfinite(w).all()) for w in weights(rolled.checkpoint).values())


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
    with pytest.raises(
        TrainingError, match="No space left on device.*last.pth is intact"
    ) as caught:
        run()
    assert "--resume" in str(caught.value)
    assert load_checkpoint(saved[0])["train_state"]["epoch"] == 2


def test_weights_to_start_from(run, tmp_path):
    first = run()
    second = run(
        experiment={"ckpt_path": str(first.checkpoint), "name": "second"},
        algo={"optim_params": {"policy": {"learning_rate": {"initial": 1e-12}}}},
    )
    before, after = weights(first.checkpoint), weights(second.checkpoint)
    assert all(torch.allclose(before[k], after[k], atol=1e-6) for k in before)
    with pytest.raises(CheckpointError, match="experiment.ckpt_path: the weights of .* do not fit"):
        run(experiment={"ckpt_path": str(first.checkpoint)}, algo={"actor_layer_dims": [8]})


def test_what_cannot_work_is_said_before_anything_is_made(run, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ConfigError, match="wandb is not installed"):
        run(experiment={"logging": {"log_wandb": True}})
    with pytest.raises(ConfigError, match="'rollback' needs checkpoints"):
        run(experiment={"save": {"enabled": False}}, train={"on_bad_loss": "rollback"})
    with pytest.raises(ConfigError, match="no such demonstration file"):
        train(config_dict(), dataset=tmp_path / "none.hdf5")
    with pytest.raises(ConfigError, match="--config"):
        train()
    with pytest.raises(DatasetError, match="nothing_here"):
        run(train={"hdf5_filter_key": "nothing_here"})
    assert not (tmp_path / "runs").exists()


def test_an_output_folder_that_cannot_be_made(demos, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be created"):
        train(config_dict(demos), output_dir=tmp_path / "file", quiet=True)
