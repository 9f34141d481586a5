"""robomimic's configurations, as its classes write them (its templates), train here."""

import json
from pathlib import Path

import pytest

from imitate.train.trainer import train

# `config_factory(algo_name).dump()` of robomimic 0.5.0.
TEMPLATES = json.loads(
    (Path(__file__).parent / "fixtures" / "robomimic_0.5_configs.json").read_text()
)
SMALL = {
    "cql": ["train.batch_size=8"],
    "diffusion_policy": ["algo.unet.down_dims=[16,32]"],
}


@pytest.mark.parametrize("algo_name", TEMPLATES)
def test_trains_an_epoch(algo_name, demo_file, tmp_path):
    # That of td3_bc is for D4RL, whose observation is one vector.
    data = demo_file(length=30, obs_dims={"flat": 17} if algo_name == "td3_bc" else None)
    result = train(
        TEMPLATES[algo_name],
        dataset=data,
        output_dir=tmp_path / "runs",
        overrides=[
            "train.cuda=false",
            "train.num_epochs=1",
            "train.batch_size=4",
            "experiment.epoch_every_n_steps=2",
            "experiment.rollout.enabled=false",
            "experiment.logging.log_tb=false",
            *SMALL.get(algo_name, ()),
        ],
        quiet=True,
    )
    assert result.exit_code == 0
    assert result.checkpoint.is_file()
