"""kill -9 at random moments, then resume: the weights end bit-equal to those of a run that was left alone."""

import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import imitate.algo
from imitate.errors import CheckpointError
from imitate.policy.checkpoint import load_checkpoint
from imitate.system.run_folder import RunFolder
from imitate.train.metrics import MetricsFile
from imitate.train.resume import last_state
from imitate.train.trainer import train
from tests import demo_files, fork_server
from tests.tiny import merged, tiny_tree

from .conftest import PENDULUM, config_dict, env_meta, online_tree, write_demos

KILLS = 2
EPOCHS = 20


ALGO = {
    "bc": {
        "vae": {"enabled": True},
        "ema": {"enabled": True},
        "optim_params": {
            "policy": {"learning_rate": {"scheduler_type": "cosine", "warmup_steps": 10}}
        },
        "auxiliary": {
            "shared": {"type": "inverse", "encoder": "policy"},
            "latent": {"type": "vae", "target_kld_per_dim": 1.0},
        },
    },
    "bc_ensemble": {"particles": {"rule": "minmax"}},
    "cql": {"actor": {"bc_start_steps": 75}},  # a warm start that ends on the way
    "hbc": {"actor_use_random_subgoals": True, "actor": {"ema": {"enabled": True}}},
}


REPLAY = {
    **dict.fromkeys(
        ("sac", "td3", "ddpg", "tqc", "taac", "mdq", "dqn", "mbrl", "tdmpc2", "muzero"), ("", False)
    ),
    **dict.fromkeys(("rlpd", "sqil", "dac"), ("", True)),
    **{"residual": ("bc", False), "ibrl": ("bc", True), "dsrl": ("flow_policy", False)},
}
"""With a replay buffer: the policy that they improve, and whether they have demonstrations."""
ROLLOUT = {
    **dict.fromkeys(("a2c", "ppo", "ppg", "merlin"), ("", False)),
    **dict.fromkeys(("gail", "airl"), ("", True)),
    **{"ppo_bc": ("bc", False), "reinflow": ("flow_policy", False)},
}
"""With their own last steps, in the same way."""
BOUNDED = {"task": {}, "upright": {"weight": 0.0, "at_least": 1.0}}  # the bound is never kept
NOVELTY = {"novelty": {"type": "rnd", "reward": 0.1}}
ALGO_ONLINE = {
    "sac": {"rewards": BOUNDED, "auxiliary": {**NOVELTY, "curiosity": {"type": "icm"}}},
    "ppo": {"rewards": BOUNDED, "auxiliary": NOVELTY},
    "mbrl": {"planner": {"horizon": 3, "population": 8, "elites": 2, "iterations": 2}},
    "merlin": {"rollout_epochs": 1},
    "muzero": {"search": {"simulations": 4}},
    "tdmpc2": {
        "planner": {"horizon": 3, "population": 8, "elites": 2, "iterations": 2},
        "policy_plans": 2,
    },
}
SAME = ("epoch", "Train/Loss", "Valid/Loss", "Metrics/AverageReturn", "Train/Updates")
TOWARDS_GOALS = ("crl", "gcbc", "gciql", "gcivl", "hbc", "hiql", "iris")


def tree_of(algo_name, demos):
    """Everything that has a state: latents, a schedule, averages, validation, early stopping, dropped last batches."""
    return tiny_tree(
        algo_name,
        obs={"pos": 2} if algo_name in ("hiql", "iris") else {"goal": 2, "pos": 2},
        goal=("pos",) if algo_name in TOWARDS_GOALS else (),
        data=demos,
        experiment={
            **{"name": "point", "epoch_every_n_steps": 5, "validation_epoch_every_n_steps": 2},
            **{"validate": True, "save": {"every_n_seconds": 0.01}},
            "early_stopping": {"enabled": True, "metric": "valid_loss", "patience": 1000},
        },
        train={
            **{"num_epochs": EPOCHS, "hdf5_filter_key": "train"},
            "hdf5_validation_filter_key": "valid",
            "online": {"enabled": False},
        },
        algo=ALGO.get(algo_name, {}),
    )


def lines(run_dir):
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def train_until_killed(arguments, output_dir, epochs, pause_s):
    """Train in this process, which kills itself once so many epochs are logged, and a checkpoint is there.

    Not from outside, where a busy machine might let the training come to its end first.
    """

    def kill():
        while True:
            for run_dir in output_dir.glob("point/*"):
                is_saved = (run_dir / "checkpoints" / "last.pth").is_file()
                if is_saved and lines(run_dir) >= epochs:
                    time.sleep(pause_s)
                    os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.005)

    threading.Thread(target=kill, daemon=True).start()
    train(**arguments, output_dir=output_dir, quiet=True)


def assert_equal_trees(first, second):
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert_equal_trees(value, second[key])
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    else:
        assert first == second


OFFLINE = (
    *("act", "awac", "bc_ensemble", "bcq", "cal_ql", "causal_bc", "cql", "crl", "diffusion_policy"),
    *(
        "dt",
        "flow_policy",
        "fql",
        "gcbc",
        "gciql",
        "gcivl",
        "gl",
        "hbc",
        "hiql",
        "ifql",
        "iql",
        "iris",
    ),
    *("mbrl", "qc", "rebrac", "td3_bc", "tdmpc2", "vq_bet"),
)


def trained(arguments, folder):
    """The folder of a run in a process of its own: rounding may differ from one that has computed much else."""
    process = fork_server.context().Process(
        target=train, kwargs={**arguments, "output_dir": folder, "quiet": True}
    )
    process.start()
    process.join(600)
    assert process.exitcode == 0
    return RunFolder(*folder.glob("point/*"))


def killed_and_resumed(tree, folder):
    """The folders of a run that was left alone, and of one that was killed twice and resumed."""
    epochs = tree["train"]["num_epochs"]
    config = folder / "config.json"
    config.write_text(json.dumps(tree))
    whole = trained({"config": config}, folder / "whole")
    moments, output_dir = random.Random(7), folder / "killed"
    arguments, run_dir = {"config": config}, None
    for _ in range(KILLS):
        done = (lines(run_dir) if run_dir else 0) + moments.randrange(1, 1 + epochs // 4)
        process = fork_server.context().Process(
            target=train_until_killed,
            args=(arguments, output_dir, done, moments.uniform(0, 0.02)),
        )
        process.start()
        process.join(600)
        assert process.exitcode == -signal.SIGKILL
        (run_dir,) = output_dir.glob("point/*")
        arguments = {"resume": run_dir}
    progress = load_checkpoint(RunFolder(run_dir).last)["train_state"]["epoch"]
    assert 0 < progress < epochs
    return whole, trained(arguments, output_dir)


def assert_alike(whole, resumed, steps):
    first, second = load_checkpoint(whole.last), load_checkpoint(resumed.last)
    assert first["train_state"]["step"] == second["train_state"]["step"] == steps
    for name, weight in first["model"]["nets"].items():
        assert torch.equal(weight, second["model"]["nets"][name]), name
    for name in ("ema", "emas"):
        assert_equal_trees(first["model"].get(name), second["model"].get(name))
    for name, optimizer in first["model"]["optimizers"].items():
        other = second["model"]["optimizers"][name]["state"]
        for key, state in optimizer["state"].items():
            assert torch.equal(state["exp_avg_sq"], other[key]["exp_avg_sq"]), name
    numbers = [
        [
            {k: v for k, v in record.items() if k in SAME or k.endswith("_lr")}
            for record in MetricsFile(run.metrics).read()
        ]
        for run in (whole, resumed)
    ]
    assert numbers[0] == numbers[1]
    epochs = [record["epoch"] for record in numbers[1]]
    assert epochs == list(range(1, len(epochs) + 1))
    assert not [path for path in resumed.checkpoints.iterdir() if "partial" in path.name]


def test_each_algorithm_is_killed():
    files = {path.stem for path in Path(imitate.algo.__file__).parent.glob("[a-z]*.py")}
    assert files <= {"bc", *OFFLINE, *REPLAY, *ROLLOUT}


@pytest.mark.slow("a training that is started three times, beside one that is left alone")
@pytest.mark.parametrize(
    "algo_name", ["bc", *(pytest.param(name, marks=pytest.mark.nightly) for name in OFFLINE)]
)
def test_kills_and_the_weights_are_those_of_an_undisturbed_run(demos, tmp_path, algo_name):
    tree = tree_of(algo_name, demos)
    assert_alike(
        *killed_and_resumed(tree, tmp_path), EPOCHS * tree["experiment"]["epoch_every_n_steps"]
    )


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    """Demonstrations of Pendulum, and policies of it, by algorithm."""
    folder = tmp_path_factory.mktemp("pendulum")
    rng = np.random.default_rng(0)
    obs = [rng.normal(size=(30, 3)).astype(np.float32) for _ in range(4)]
    episodes = [
        demo_files.episode(30, {"flat": x}, np.clip(x[:, :1], -1, 1), "timeout") for x in obs
    ]
    data = demo_files.write_demos(folder / "demos.hdf5", episodes, PENDULUM)
    short = {"experiment": {"epoch_every_n_steps": 5}, "train": {"num_epochs": 1}}

    def policy(name):
        tree = tiny_tree(name, obs={"flat": 3}, data=data, **short)
        return train(tree, output_dir=folder, quiet=True).checkpoint

    return {"data": data, "bc": policy("bc"), "flow_policy": policy("flow_policy")}


@pytest.mark.nightly
@pytest.mark.parametrize("algo_name", [*REPLAY, *ROLLOUT])
def test_online_kills_and_the_weights_are_those_of_an_undisturbed_run(
    pendulum, tmp_path, algo_name
):
    replayed = algo_name in REPLAY
    base, with_demos = (REPLAY if replayed else ROLLOUT)[algo_name]
    algo = merged(
        ALGO_ONLINE.get(algo_name, {}),
        {"base": {"checkpoint": str(pendulum[base])}} if base else {},
    )
    online = (
        {"warmup_steps": 50}
        if replayed
        else {"collect_steps": 50, "num_envs": 2, "warmup_steps": 0}
    )
    # An episode under way is begun anew after a kill, so epochs end with episodes; no pole falls within five steps.
    env, horizon = ("CartPole-v1", 5) if algo_name == "dqn" else ("Pendulum-v1", 50)
    tree = online_tree(
        algo_name,
        env=env,
        experiment={
            **{"name": "point", "epoch_every_n_steps": 50 if replayed else 100},
            **{"rollout": {"horizon": horizon}, "save": {"every_n_seconds": 0.01}},
        },
        train={"num_epochs": 8, "data": str(pendulum["data"]) if with_demos else None},
        algo=algo,
        online=online,
    )
    assert_alike(*killed_and_resumed(tree, tmp_path), 8 * tree["experiment"]["epoch_every_n_steps"])


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


def test_a_copy_without_checkpoints_and_empty_folders_is_resumed_and_no_line_is_twice(
    demos, tmp_path
):
    """As of a run that was killed before its first checkpoint."""
    tree = config_dict(demos, train={"num_epochs": 2})
    folder = RunFolder(train(tree, output_dir=tmp_path, quiet=True).run_dir)
    shutil.rmtree(folder.checkpoints)
    folder.videos.rmdir()
    train(resume=folder.path, quiet=True)
    assert [record["epoch"] for record in MetricsFile(folder.metrics).read()] == [1, 2]
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
