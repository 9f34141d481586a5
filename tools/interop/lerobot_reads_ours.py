"""Test that LeRobot's package loads a dataset written by imitate with the values of the original demonstrations.

    python lerobot_reads_ours.py DEMOS.hdf5 FOLDER [--loss LEVELS]

It prints the number of compared frames, and exits with an error at the first difference. ``--loss`` is the allowed
difference of a frame's mean pixel, for datasets with videos; 0 by default. See lerobot.sh.
"""

import argparse
import json
import re
import sys

import h5py
import lerobot_stand_ins
import numpy as np

lerobot_stand_ins.install()

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402


def natural(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)]


def compare(item, demo, step, loss):
    """Compare a frame with a step; return the number of compared images."""
    action = demo["actions"][step].astype(np.float32)
    np.testing.assert_array_equal(item["action"].numpy().ravel(), action)
    images = 0
    for key, values in demo["obs"].items():
        feature = f"observation.images.{key.removesuffix('_image')}"
        if feature in item:
            frame = np.rint(item[feature].permute(1, 2, 0).numpy() * 255)
            assert np.abs(frame - values[step]).mean() <= loss, (demo.name, key, step)
            images += 1
    assert int(item["frame_index"]) == step
    return images


def main(source, root, loss):
    dataset = LeRobotDataset("local/dataset", root=root, video_backend="pyav")
    row = images = 0
    with h5py.File(source, "r") as file:
        named = json.loads(file["data"].attrs["env_args"]).get("env_name", "")
        for name in sorted(file["data"], key=natural):
            demo = file["data"][name]
            for step in range(len(demo["actions"])):
                item = dataset[row]
                images += compare(item, demo, step, loss)
                assert item["task"] == demo.attrs.get("language", named), (name, item["task"])
                row += 1
    assert row == len(dataset), (row, len(dataset))
    sys.stdout.write(f"LeRobot reads ours: {row} frames with {images} images are as they were\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("root")
    parser.add_argument("--loss", type=float, default=0.0)
    args = parser.parse_args()
    main(args.source, args.root, args.loss)
