"""Whole trainings upon a frozen policy."""

import numpy as np
import pytest

from imitate import algo_factory, load_config, policy_from_checkpoint
from imitate.algo.residual import Residual
from imitate.errors import ConfigError
from imitate.train.start import adopt_frozen
from imitate.train.trainer import train
from tests.train.test_online_run import records, tree


def upon(name, path, **online):
    nets = {"actor": {"layer_dims": [8]}, "critic": {"layer_dims": [8]}}
    section = {**nets, "base": {"checkpoint": None if path is None else str(path)}}
    online = {"warmup_steps": 50, "warmup_policy": "policy", "update_ratio": 0.1, **online}
    experiment = {"epoch_every_n_steps": 100, "rollout": {"horizon": 50}}
    config = tree("td3", experiment=experiment, train={"num_epochs": 1, "online": online})
    return {**config, "algo_name": name, "algo": section}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A policy of Pendulum, of another algorithm."""
    config = tree("td3", train={"num_epochs": 1, "obs_normalization": "mean_std"})
    result = train(config, output_dir=tmp_path_factory.mktemp("base"), quiet=True)
    return result.run_dir / "checkpoints/last.pth"


def actions(path):
    policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=path)
    return [policy({"flat": np.array(x)})[0] for x in ([1.0, 0.0, 3.0], [-0.6, 0.8, -1.0])]


@pytest.mark.parametrize(("name", "workers"), [("residual", 0), ("ibrl", 1)])
def test_it_learns_online_and_its_checkpoint_is_whole(tmp_path, base, name, workers):
    path = tmp_path / "moved.pth"
    path.write_bytes(base.read_bytes())
    # Until something is learned, it is the frozen policy.
    untaught = train(
        upon(name, path, warmup_steps=100), output_dir=tmp_path / "untaught", quiet=True
    )
    checkpoint = untaught.run_dir / "checkpoints/last.pth"
    assert actions(checkpoint) == pytest.approx(actions(base), abs=1e-5)
    config = upon(name, path, num_workers=workers, collect_steps=10)
    config["train"]["num_epochs"] = 2
    result = train(config, output_dir=tmp_path, quiet=True)
    path.unlink()
    assert len(actions(result.run_dir / "checkpoints/last.pth")) == 2
    again = train(resume=result.run_dir, overrides=["train.num_epochs=3"], quiet=True)
    assert again.exit_code == 0


def test_ppo_learns_beside_it(tmp_path, base):
    online = {"num_envs": 2, "num_workers": 1, "collect_steps": 50, "warmup_steps": 0}
    experiment = {"epoch_every_n_steps": 100, "rollout": {"horizon": 50}}
    config = tree("ppo", experiment=experiment, train={"num_epochs": 2, "online": online})
    section = {"base": {"checkpoint": str(base)}, "rollout_epochs": 1, "imitation": {"decay": 0.5}}
    result = train(
        {**config, "algo_name": "ppo_bc", "algo": section}, output_dir=tmp_path, quiet=True
    )
    weights = [record["Train/Imitation_Weight"] for record in records(result)]
    assert weights == [1.0, 0.5]
    assert len(actions(result.run_dir / "checkpoints/last.pth")) == 2


def test_a_policy_must_be_named(tmp_path):
    with pytest.raises(ConfigError, match="algo.base.checkpoint: is null: name the checkpoint"):
        train(upon("residual", None), output_dir=tmp_path, quiet=True)


def test_a_frozen_policy_is_adopted_by_an_algorithm_that_does_not_declare_it(base, monkeypatch):
    monkeypatch.setattr(Residual, "frozen", None)
    config = load_config(upon("residual", base))
    algo = algo_factory("residual", config, {"flat": (3,)}, 1)
    assert not algo.base.description.numel()
    adopt_frozen(algo)
    assert algo.base.description.numel()
