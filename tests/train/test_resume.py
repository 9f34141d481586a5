"""kill -9 at random moments, then resume: the weights end bit-equal to those of a run that was left alone."""

import json
import multiprocessing
import random
import shutil
import signal
import time

import pytest
import torch

from imitate.errors import CheckpointError
from imitate.policy.checkpoint import load_checkpoint
from imitate.run_folder import RunFolder
from imitate.train.metrics import MetricsFile
from imitate.train.resume import last_state
from imitate.train.trainer import train

from .conftest import config_dict, env_meta, write_demos

KILLS = 5
EPOCHS = 60


def sections():
    """Everything that has a state: sampled latents, a schedule, validation, early stopping, dropped last batches."""
    return {
        "experiment": {
            "validate": True,
            "early_stopping": {"enabled": True, "metric": "valid_loss", "patience": 1000},
        },
        "train": {
            "num_epochs": EPOCHS,
            "hdf5_filter_key": "train",
            "hdf5_validation_filter_key": "valid",
        },
        "algo": {
            "vae": {"enabled": True},
            "optim_params": {
                "policy": {"learning_rate": {"scheduler_type": "cosine", "warmup_steps": 10}}
            },
        },
    }


ONE_LAYER = {"layer_dims": [16]}
VAE = {"vae": {"encoder_layer_dims": [16], "decoder_layer_dims": [16]}}
RECURRENT = {"rnn": {"hidden_dim": 8, "num_layers": 1}, "actor_layer_dims": []}
ALGO = {
    # Two learned weights, targets, and a warm start that ends on the way.
    "cql": {
        "actor": {"layer_dims": [16], "bc_start_steps": 500},
        "critic": {"layer_dims": [16], "num_random_actions": 2},
    },
    "iql": {"actor": ONE_LAYER, "critic": ONE_LAYER},
    "td3_bc": {"actor": ONE_LAYER, "critic": ONE_LAYER},
    # Averaged weights.
    "diffusion_policy": {
        "horizon": {"prediction_horizon": 8, "action_horizon": 4},
        "ddpm": {"num_train_timesteps": 5, "num_inference_timesteps": 5},
        "unet": {"down_dims": [8, 16], "diffusion_step_embed_dim": 8, "n_groups": 4},
    },
    # Several parts: random subgoals and the average of one part; targets of another.
    "hbc": {
        "actor_use_random_subgoals": True,
        "planner": VAE,
        "actor": {**RECURRENT, "ema": {"enabled": True}},
    },
    "iris": {
        "value_planner": {
            "planner": VAE,
            "value": {"critic": {**ONE_LAYER, "num_action_samples": 2}, "action_sampler": VAE},
            "num_samples": 3,
        },
        "actor": RECURRENT,
    },
}


def tree_of(algo_name, demos):
    """BC has a VAE; the others are above."""
    tree = config_dict(demos, **sections())
    if algo_name == "bc":
        return tree
    if algo_name in ("diffusion_policy", "hbc", "iris"):
        tree["experiment"]["epoch_every_n_steps"] = 5  # their steps are the slowest
    actor = tree["observation"]
    planner = {"modalities": {**actor["modalities"], "subgoal": {"low_dim": ["pos"]}}}
    value = {"modalities": {"obs": {"low_dim": ["pos"]}}}
    if algo_name == "hbc":
        tree["observation"] = {"planner": planner, "actor": actor}
    elif algo_name == "iris":
        parts = {"planner": planner, "value": value}
        tree["observation"] = {"value_planner": parts, "actor": actor}
    elif algo_name == "diffusion_policy":
        tree["train"] |= {"seq_length": 8, "frame_stack": 2}
        tree["experiment"]["validation_epoch_every_n_steps"] = 2  # each samples chunks
    return {**tree, "algo_name": algo_name, "algo": ALGO[algo_name]}


@pytest.fixture(scope="module")
def start():
    """Starts a training in a process of its own, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["imitate.train.trainer"])

    def begin(config, output_dir, resume):
        arguments = {"resume": resume} if resume else {"config": config, "output_dir": output_dir}
        process = context.Process(target=train, kwargs={**arguments, "quiet": True})
        process.start()
        return process

    return begin


def lines(run_dir):
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def wait_for_progress(process, output_dir, before):
    """Until the run has logged more epochs than before; its folder."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.exitcode is None:
        folders = list(output_dir.glob("point/*"))
        if folders and lines(folders[0]) > before:
            return folders[0]
        time.sleep(0.002)
    raise AssertionError(f"no progress; exit code {process.exitcode}")


def wait_for_checkpoint(process, run_dir):
    """Until there is something to resume from."""
    deadline = time.monotonic() + 120
    while not (run_dir / "checkpoints" / "last.pth").is_file():
        assert process.exitcode is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


def assert_equal_trees(first, second):
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert_equal_trees(value, second[key])
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    else:
        assert first == second


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo_name", "network"),
    [
        ("bc", "policy"),
        ("cql", "critic"),
        ("iql", "vf"),
        ("td3_bc", "actor"),
        ("diffusion_policy", "policy"),
        ("hbc", "planner/goal_network"),
        ("iris", "value/critic"),
    ],
)
def test_five_kills_and_the_weights_are_those_of_an_undisturbed_run(
    demos, tmp_path, start, algo_name, network
):
    tree = tree_of(algo_name, demos)
    whole = train(tree, output_dir=tmp_path / "whole", quiet=True)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tree))

    moments = random.Random(7)
    run_dir, kills = None, 0
    while kills < KILLS:
        before = 0 if run_dir is None else lines(run_dir)
        process = start(config, tmp_path / "killed", run_dir)
        # Counted in epochs rather than seconds, so that a fast processor does not reach the end before the kills.
        run_dir = wait_for_progress(process, tmp_path / "killed", before + moments.randrange(4))
        if kills == KILLS - 1:
            # On a busy machine all moments before may have come before the first save.
            wait_for_checkpoint(process, run_dir)
        time.sleep(moments.uniform(0, 0.02))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, (
            "it ended before it was killed: make the run longer"
        )
        kills += 1
    progress = load_checkpoint(run_dir / "checkpoints" / "last.pth")["train_state"]["epoch"]
    assert 0 < progress < EPOCHS
    resumed = train(resume=run_dir, quiet=True)

    steps = EPOCHS * tree["experiment"]["epoch_every_n_steps"]
    first, second = load_checkpoint(whole.checkpoint), load_checkpoint(resumed.checkpoint)
    assert first["train_state"]["step"] == second["train_state"]["step"] == steps
    for name, weight in first["model"]["nets"].items():
        assert torch.equal(weight, second["model"]["nets"][name]), name
    for name in ("ema", "emas"):
        assert_equal_trees(first["model"].get(name), second["model"].get(name))
    for name, optimizer in first["model"]["optimizers"].items():
        other = second["model"]["optimizers"][name]["state"]
        for key, state in optimizer["state"].items():
            assert torch.equal(state["exp_avg_sq"], other[key]["exp_avg_sq"]), name
    records = [MetricsFile(result.run_dir / "metrics.jsonl").read() for result in (whole, resumed)]
    numbers = [
        [
            (r["epoch"], r["Train/Loss"], r["Valid/Loss"], r[f"Train/Optimizer/{network}_lr"])
            for r in run
        ]
        for run in records
    ]
    assert numbers[0] == numbers[1]
    assert [epoch for epoch, *_ in numbers[1]] == list(range(1, EPOCHS + 1))
    leftovers = [
        path.name for path in (run_dir / "checkpoints").iterdir() if "partial" in path.name
    ]
    assert leftovers == []


def test_a_damaged_last_checkpoint_falls_back_to_a_periodic_one(demos, tmp_path):
    tree = config_dict(demos, experiment={"save": {"every_n_epochs": 2}})
    folder = RunFolder(train(tree, output_dir=tmp_path, quiet=True).run_dir)
    data = folder.last.read_bytes()
    folder.last.unlink()
    folder.last.write_bytes(data[: len(data) // 2])
    assert last_state(folder)["train_state"]["epoch"] == 2
    (folder.checkpoints / "epoch_2.pth").unlink()
    with pytest.raises(CheckpointError, match="last.pth"):
        last_state(folder)
    folder.last.unlink()
    assert last_state(folder) is None


def test_a_run_that_was_killed_before_its_first_checkpoint_writes_no_line_twice(demos, tmp_path):
    folder = RunFolder(train(config_dict(demos), output_dir=tmp_path, quiet=True).run_dir)
    folder.last.unlink()
    train(resume=folder.path, quiet=True)
    assert [record["epoch"] for record in MetricsFile(folder.metrics).read()] == [1, 2, 3]


def test_a_copy_of_a_run_without_its_empty_folders_is_resumed(demos, tmp_path):
    folder = RunFolder(train(config_dict(demos), output_dir=tmp_path, quiet=True).run_dir)
    shutil.rmtree(folder.checkpoints)
    folder.videos.rmdir()
    train(resume=folder.path, quiet=True)
    assert folder.last.is_file()


def test_a_run_with_returns_that_are_not_finite_is_resumed(tmp_path, importable_env):
    data = write_demos(tmp_path / "demos.hdf5", meta=env_meta(nan_reward=True))
    rollout = {"enabled": True, "n": 1, "horizon": 3, "num_workers": 0}
    tree = config_dict(data, experiment={"rollout": rollout}, train={"num_epochs": 1})
    part = train(tree, output_dir=tmp_path, quiet=True)
    resumed = train(resume=part.run_dir, overrides=["train.num_epochs=2"], quiet=True)
    rollouts = [
        r for r in MetricsFile(RunFolder(part.run_dir).metrics).read() if r["kind"] == "rollout"
    ]
    assert resumed.exit_code == 0 and [r["Rollout/Return"] for r in rollouts] == [None, None]
    assert any("return not finite" in line for line in resumed.summary)
