"""robomimic's configurations, as its classes write them (its templates), train here."""

import json
from pathlib import Path

import pytest
import torch

from imitate.config import load_config
from imitate.train.setup import build, resolve
from imitate.train.trainer import train

# `config_factory(algo_name).dump()` of robomimic 0.5.0.
TEMPLATES = json.loads(
    (Path(__file__).parent / "fixtures" / "robomimic_0.5_configs.json").read_text()
)
SMALL = {
    "cql": ["train.batch_size=8"],
    "diffusion_policy": ["algo.unet.down_dims=[16,32]"],
}


@pytest.fixture(params=TEMPLATES)
def small(request, demo_file):
    """Name, data and overrides of one of them."""
    # That of td3_bc is for D4RL, whose observation is one vector.
    data = demo_file(length=30, obs_dims={"flat": 17} if request.param == "td3_bc" else None)
    overrides = [
        "train.cuda=false",
        "train.num_epochs=1",
        "train.batch_size=4",
        "experiment.epoch_every_n_steps=2",
        "experiment.rollout.enabled=false",
        "experiment.logging.log_tb=false",
        *SMALL.get(request.param, ()),
    ]
    return TEMPLATES[request.param], data, overrides


def test_its_algorithm_is_built_for_data(small):
    template, data, overrides = small
    setup = build(resolve(load_config(template, overrides), data, None), torch.device("cpu"))
    assert setup.algo.ac_dim == 7 and len(setup.train_set) > 0


@pytest.mark.nightly
def test_trains_an_epoch(small, tmp_path):
    template, data, overrides = small
    result = train(template, dataset=data, output_dir=tmp_path, overrides=overrides, quiet=True)
    assert result.exit_code == 0
    assert result.checkpoint.is_file()
