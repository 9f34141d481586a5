"""Load a dataset that we wrote with LeRobot's own package, and compare it with the demonstrations it was made of.

LeRobot wants other versions of torch and numpy, so it gets an environment of its own:

    python -m venv lerobot_env && lerobot_env/bin/pip install lerobot h5py
    imitate dataset convert demos.hdf5 demos_lerobot --to lerobot
    lerobot_env/bin/python tests/interop/lerobot_reads_ours.py demos.hdf5 demos_lerobot

Prints the number of compared frames; exits with an error at the first difference.
"""

import json
import re
import sys

import h5py
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset


def natural(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)]


def main(source, root):
    dataset = LeRobotDataset("local/dataset", root=root)
    row = 0
    with h5py.File(source, "r") as file:
        task = json.loads(file["data"].attrs["env_args"]).get("env_name", "")
        for name in sorted(file["data"], key=natural):
            demo = file["data"][name]
            for step in range(len(demo["actions"])):
                item = dataset[row]
                np.testing.assert_array_equal(
                    item["action"].numpy().ravel(), demo["actions"][step].astype(np.float32)
                )
                for key, values in demo["obs"].items():
                    feature = f"observation.images.{key.removesuffix('_image')}"
                    if feature in item:
                        frame = item[feature].permute(1, 2, 0).numpy() * 255
                        np.testing.assert_array_equal(np.rint(frame), values[step])
                assert item["task"] == demo.attrs.get("language", task), (name, item["task"])
                assert int(item["frame_index"]) == step
                row += 1
    assert row == len(dataset), (row, len(dataset))
    sys.stdout.write(f"{row} frames are equal\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
