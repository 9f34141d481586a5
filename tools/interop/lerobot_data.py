"""Part of lerobot_data.sh that runs in LeRobot's environment.

python lerobot_data.py write FOLDER        a dataset with joint names, efforts, a video and a camera in the tables
python lerobot_data.py compare FIRST NEXT  load both, compare features and values; exits with an error at a difference
"""

import sys

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

JOINTS = [f"j{number}.pos" for number in range(3)]
IMAGE = ["height", "width", "channels"]
FEATURES = {
    "action": {"dtype": "float32", "shape": (3,), "names": JOINTS},
    "observation.state": {"dtype": "float32", "shape": (3,), "names": JOINTS},
    "observation.effort": {"dtype": "float32", "shape": (3,), "names": ["j0.nm", "j1.nm", "j2.nm"]},
    "observation.images.top": {"dtype": "video", "shape": (96, 128, 3), "names": IMAGE},
    "observation.images.wrist": {"dtype": "image", "shape": (48, 64, 3), "names": IMAGE},
}
LENGTHS = (20, 15)


def frame(height, width, step):
    """Return an image of a moving ramp, (height, width, 3) uint8."""
    ramp = np.add.outer(np.arange(height), 2 * np.arange(width)) + 3 * step
    return np.stack([ramp % 256, ramp // 2 % 256, (ramp + 90) % 256], -1).astype(np.uint8)


def write(root):
    dataset = LeRobotDataset.create(
        "local/set", fps=30, features=FEATURES, root=root, robot_type="fakearm"
    )
    random = np.random.default_rng(0)
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            numbers = random.uniform(-50, 50, (3, 3)).astype(np.float32)
            dataset.add_frame(
                {
                    "action": numbers[0],
                    "observation.state": numbers[1],
                    "observation.effort": numbers[2],
                    "observation.images.top": frame(96, 128, step),
                    "observation.images.wrist": frame(48, 64, step),
                    "task": f"task {episode}",
                }
            )
        dataset.save_episode()
    dataset.finalize()


def compare(first, second):
    there, back = (LeRobotDataset("local/set", root=root) for root in (first, second))
    kept = ("names", "shape")
    for name, feature in there.features.items():
        assert all(back.features[name][key] == feature[key] for key in kept), name
    assert list(back.features) == list(there.features), list(back.features)
    assert len(there) == len(back) == sum(LENGTHS)
    for row in range(len(there)):
        one, other = there[row], back[row]
        assert one.keys() == other.keys(), one.keys() ^ other.keys()
        for key in one:
            if key == "task":
                assert one[key] == other[key]
                continue
            # frames of videos are floats, equal up to the rounding of a pixel
            np.testing.assert_allclose(one[key], other[key], atol=0.5 / 255, err_msg=key)
    sys.stdout.write(
        f"LeRobot: {len(there)} frames and {len(there.features)} features as they were\n"
    )


if __name__ == "__main__":
    {"write": write, "compare": compare}[sys.argv[1]](*sys.argv[2:])
