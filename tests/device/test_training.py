"""Whole trainings on a device that is not the CPU: the loop itself hardly ever waits for it."""

import numpy as np
import pytest
import torch

from imitate.data.file.writer import DatasetWriter, Episode
from imitate.policy.checkpoint import load_checkpoint
from imitate.train import trainer
from tests.device.simulated_gpu import NAME

PER_EPOCH = ("log_info", "loss_guard", "validation", "metrics")


@pytest.fixture
def on_device(monkeypatch, transfers):
    """`train` runs on the simulated device."""
    chosen = (torch.device(NAME), "device: simulated")
    monkeypatch.setattr(trainer, "choose_device", lambda _: chosen)
    return transfers


@pytest.fixture
def demos(tmp_path):
    """A file of twelve demonstrations, the last of which are held out."""
    rng = np.random.default_rng(0)
    with DatasetWriter(tmp_path / "demos.hdf5", {"env_name": "None-v0", "type": 2}) as writer:
        names = []
        for _ in range(12):
            actions = rng.uniform(-1, 1, (15, 2))
            ends = np.arange(15) == 14
            episode = Episode(
                obs={
                    "pos": rng.normal(size=(15, 3)),
                    "image": rng.integers(0, 256, (15, 16, 16, 3), np.uint8),
                },
                actions=actions,
                rewards=ends.astype(np.float32),
                terminals=ends,
                timeouts=np.zeros(15, bool),
            )
            names.append(writer.append_episode(episode))
        writer.add_filter_key("train", names[:9])
        writer.add_filter_key("valid", names[9:])
    return tmp_path / "demos.hdf5"


def tree(steps, epochs, **train):
    return {
        "algo_name": "bc",
        "experiment": {
            "name": "run",
            "epoch_every_n_steps": steps,
            "logging": {"log_tb": False},
            "rollout": {"enabled": False},
            "render_video": False,
        },
        "train": {"batch_size": 16, "num_epochs": epochs, "num_threads": 1, **train},
        "algo": {"actor_layer_dims": [8]},
        "observation": {"modalities": {"obs": {"low_dim": ["pos"], "rgb": ["image"]}}},
    }


def demonstrations(demos, steps, epochs, **train):
    config = tree(steps, epochs, data=str(demos), seq_length=2, hdf5_filter_key="train", **train)
    config["experiment"]["validate"] = True
    config["train"]["hdf5_validation_filter_key"] = "valid"
    core = {
        "core_class": "VisualCore",
        "core_kwargs": {"backbone_class": "ShallowConv", "feature_dimension": 8},
    }
    config["observation"]["encoder"] = {"rgb": core}
    return config


def online(name, env, steps, epochs, warmup_steps):
    online = {"env": env, "warmup_steps": warmup_steps, "update_ratio": 0.5, "buffer_size": 200}
    config = tree(steps, epochs, online=online)
    config["algo_name"], config["algo"] = name, {}
    config["observation"] = {"modalities": {"obs": {"low_dim": ["flat"]}}}
    if name == "ppo":
        config["train"]["online"] = {"env": env, "num_envs": 2, "collect_steps": 16}
        config["algo"] = {"rollout_epochs": 2}
    return config


def waits_of(transfers, config, tmp_path, **kwargs):
    transfers.waits.clear()
    result = trainer.train(config, output_dir=tmp_path, quiet=True, **kwargs)
    assert result.exit_code == 0
    assert result.results["device"].startswith(NAME)
    return sum(transfers.waits.values())


@pytest.mark.parametrize("data_on_device", [False, True])
def test_steps_on_demonstrations_do_not_wait(on_device, demos, tmp_path, data_on_device):
    def waits(steps):
        config = demonstrations(demos, steps, 1, data_on_device=data_on_device)
        return waits_of(on_device, config, tmp_path)

    assert waits(12) == waits(3)


def test_updates_of_sac_wait_for_nothing_but_their_actions(on_device, tmp_path):
    def waits(steps):
        return waits_of(on_device, online("sac", "Pendulum-v1", steps, 1, 10), tmp_path)

    few, many = waits(20), waits(40)
    assert many - few <= 20  # an action for each step; ten updates more


def test_ppo(on_device, tmp_path):
    waits_of(on_device, online("ppo", "CartPole-v1", 64, 2, 0), tmp_path)


def test_a_run_goes_from_the_cpu_to_the_device(transfers, monkeypatch, demos, tmp_path):
    first = trainer.train(
        demonstrations(demos, 4, 1, device="cpu"), output_dir=tmp_path, quiet=True
    )
    chosen = (torch.device(NAME), "device: simulated")
    monkeypatch.setattr(trainer, "choose_device", lambda _: chosen)
    result = trainer.train(resume=first.run_dir, overrides=["train.num_epochs=2"], quiet=True)
    assert (result.results["epoch"], result.results["device"]) == (2, NAME)


@pytest.mark.cuda
def test_compiled_networks_accumulate_the_gradients_of_all_parts(demos, tmp_path):
    """A CUDA graph writes the gradients of each part of a batch into the memory of those of the part before."""

    def weights_after(**train):
        config = demonstrations(demos, 4, 1, gradient_accumulation=4, device="cuda", **train)
        result = trainer.train(config, output_dir=tmp_path, quiet=True)
        assert result.exit_code == 0
        return load_checkpoint(result.run_dir / "checkpoints" / "last.pth")["model"]["nets"]

    plain, compiled = weights_after(), weights_after(compile=True)
    assert plain.keys() == compiled.keys()
    for name, weight in plain.items():
        torch.testing.assert_close(compiled[name], weight, atol=1e-5, rtol=1e-3)
