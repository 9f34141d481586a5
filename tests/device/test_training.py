"""Whole trainings on a device that is not the CPU: the loop itself hardly ever waits for it."""

import numpy as np
import pytest
import torch

from imitate.policy.checkpoint import load_checkpoint
from imitate.train import trainer
from tests.demo_files import episode, write_demos
from tests.device.simulated_gpu import NAME
from tests.tiny import tiny_tree
from tests.train.conftest import PENDULUM, online_tree


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

    def demonstration():
        images = rng.integers(0, 256, (15, 16, 16, 3), np.uint8)
        obs = {"pos": rng.normal(size=(15, 3)), "image": images}
        return episode(15, obs, rng.uniform(-1, 1, (15, 2)), "terminal")

    made = [demonstration() for _ in range(12)]
    masks = {"train": range(9), "valid": range(9, 12)}
    return write_demos(tmp_path / "demos.hdf5", made, PENDULUM, masks)


def demonstrations(demos, steps, **train):
    core = {"backbone_class": "ShallowConv", "feature_dimension": 8}
    masks = {"hdf5_filter_key": "train", "hdf5_validation_filter_key": "valid"}
    return tiny_tree(
        obs={"pos": 3, "image": (3, 16, 16)},
        data=demos,
        experiment={"epoch_every_n_steps": steps, "validate": True},
        train={"num_epochs": 1, "seq_length": 2, **masks, **train},
        observation={"encoder": {"rgb": {"core_class": "VisualCore", "core_kwargs": core}}},
    )


def online(name, env, steps, **online):
    short = {"epoch_every_n_steps": steps}
    return online_tree(name, env, online=online, experiment=short, train={"num_epochs": 1})


def waits_of(transfers, config, tmp_path, **kwargs):
    transfers.waits.clear()
    result = trainer.train(config, output_dir=tmp_path, quiet=True, **kwargs)
    assert result.exit_code == 0
    assert result.results["device"].startswith(NAME)
    return sum(transfers.waits.values())


@pytest.mark.parametrize("data_on_device", [False, True])
def test_steps_on_demonstrations_do_not_wait(on_device, demos, tmp_path, data_on_device):
    def waits(steps):
        config = demonstrations(demos, steps, data_on_device=data_on_device)
        return waits_of(on_device, config, tmp_path)

    assert waits(6) == waits(3)


def test_updates_of_sac_wait_for_nothing_but_their_actions(on_device, tmp_path):
    def waits(steps):
        config = online("sac", "Pendulum-v1", steps, warmup_steps=10, update_ratio=0.5)
        return waits_of(on_device, config, tmp_path)

    few, many = waits(20), waits(40)
    assert many - few <= 20  # an action for each step; ten updates more


def test_ppo(on_device, tmp_path):
    config = online("ppo", "CartPole-v1", 64, num_envs=2, collect_steps=16, warmup_steps=0)
    waits_of(on_device, config, tmp_path)


def test_a_run_goes_from_the_cpu_to_the_device(transfers, monkeypatch, demos, tmp_path):
    first = trainer.train(demonstrations(demos, 4, device="cpu"), output_dir=tmp_path, quiet=True)
    chosen = (torch.device(NAME), "device: simulated")
    monkeypatch.setattr(trainer, "choose_device", lambda _: chosen)
    result = trainer.train(resume=first.run_dir, overrides=["train.num_epochs=2"], quiet=True)
    assert (result.results["epoch"], result.results["device"]) == (2, NAME)


@pytest.mark.cuda
def test_compiled_networks_accumulate_the_gradients_of_all_parts(demos, tmp_path):
    """A CUDA graph writes the gradients of each part of a batch into the memory of those of the part before."""

    def weights_after(**train):
        config = demonstrations(demos, 4, gradient_accumulation=4, device="cuda", **train)
        result = trainer.train(config, output_dir=tmp_path, quiet=True)
        assert result.exit_code == 0
        return load_checkpoint(result.run_dir / "checkpoints" / "last.pth")["model"]["nets"]

    plain, compiled = weights_after(), weights_after(compile=True)
    assert plain.keys() == compiled.keys()
    for name, weight in plain.items():
        torch.testing.assert_close(compiled[name], weight, atol=1e-5, rtol=1e-3)
