"""configs/paper is what its script writes, can be trained, and trains a step on files of the same layout."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from imitate.config import load_config
from imitate.config.readiness import check_trainable
from imitate.train.trainer import train
from tests.demo_files import episode, write_demos
from tests.loading import load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "paper"
OBJECT_DIM, LENGTH, SIZE = 10, 24, 84


FILES = load("scripts/paper_configs.py").files()


def test_folder_is_what_the_script_writes():
    found = {
        str(path.relative_to(FOLDER))[: -len(".json")]: json.loads(path.read_text())
        for path in FOLDER.rglob("*.json")
    }
    assert found == FILES
    # 9 task and data pairs with 7 policies, 7 of one arm with 4 diffusion policies.
    assert len(found) == 9 * 7 + 7 * 4


@pytest.mark.parametrize("name", FILES)
def test_can_be_trained(name):
    check_trainable(load_config(FOLDER / f"{name}.json"))


def demos_for(path, config):
    """Demonstrations with all that a configuration reads."""
    rng = np.random.default_rng(0)
    modalities = config.observation.modality_of("obs")
    size = 240 if "sideview_image" in modalities else SIZE
    arms = 2 if "robot1_eef_pos" in modalities else 1
    dims = {"eef_pos": 3, "eef_quat": 4, "gripper_qpos": 2, "object": OBJECT_DIM}

    def values(key):
        if modalities[key] == "rgb":
            return rng.integers(0, 256, (LENGTH, size, size, 3), dtype=np.uint8)
        dim = dims[key.partition("_")[2] if key.startswith("robot") else key]
        return rng.normal(size=(LENGTH, dim)).astype(np.float32)

    def uniform(size):
        return rng.uniform(-1, 1, (LENGTH, size)).astype(np.float32)

    def demo():
        sizes = {"abs_pos": 3, "abs_rot_6d": 6, "gripper": 1}
        steps = {f"action_dict/{key}": uniform(size) for key, size in sizes.items()}
        obs = {key: values(key) for key in modalities}
        return episode(LENGTH, obs, uniform(7 * arms), "terminal", steps=steps)

    masks = {"train": [0, 1, 2], "valid": [3]}
    return write_demos(path, [demo() for _ in range(4)], filter_keys=masks)


SMALL = {
    "hbc": [],
    "cql": ["train.batch_size=16"],
    "unet": ["algo.unet.down_dims=[16,32]"],
    "transformer": ["algo.transformer.num_layers=1"],
}
STEPPED = [
    *(f"what_matters/square_ph/{name}" for name in ("bc", "bc_rnn", "bcq", "cql", "hbc", "iris")),
    "what_matters/square_mh/bcq",
    "what_matters/square_mh/iris",
    "what_matters/transport_mh/bc_rnn",
    "what_matters/transport_ph/hbc",
    "what_matters/lift_ph/bc_rnn_image",
    "diffusion_policy/square_ph/state_unet",
    "diffusion_policy/square_ph/state_transformer",
    "diffusion_policy/can_mh/image_unet",
]


def train_a_step(name, folder):
    """The checkpoint of one update and one validation, on demonstrations made for this configuration."""
    config = load_config(FOLDER / f"{name}.json")
    overrides = [
        "train.num_epochs=1",
        "train.cuda=false",
        "train.batch_size=2",
        "experiment.epoch_every_n_steps=1",
        "experiment.validation_epoch_every_n_steps=1",
        "experiment.rollout.enabled=false",
        "experiment.logging.log_tb=false",
        *(line for part, lines in SMALL.items() if name.endswith(part) for line in lines),
    ]
    result = train(
        FOLDER / f"{name}.json",
        dataset=demos_for(folder / "demos.hdf5", config),
        output_dir=folder / "runs",
        overrides=overrides,
        quiet=True,
    )
    assert result.exit_code == 0
    return result.checkpoint


@pytest.mark.nightly
@pytest.mark.parametrize("name", STEPPED)
def test_trains_a_step(name, tmp_path):
    assert train_a_step(name, tmp_path).is_file()


if __name__ == "__main__":  # all of them: python -m tests.scripts.test_paper_configs
    for number, one in enumerate(FILES, start=1):
        with tempfile.TemporaryDirectory() as place:
            assert train_a_step(one, Path(place)).is_file()
        sys.stdout.write(f"{number}/{len(FILES)} {one}: trained a step\n")
