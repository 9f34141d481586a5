"""Writing of a dataset with LeRobot's package: images in the tables, a camera as video, three episodes of two tasks.

python lerobot_writes.py FOLDER
"""

import sys

import lerobot_stand_ins
import numpy as np

lerobot_stand_ins.install()

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402

FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    "action": {"dtype": "float32", "shape": (3,), "names": None},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "observation.images.wrist": {
        "dtype": "image",
        "shape": (32, 48, 3),
        "names": ["height", "width", "channels"],
    },
    "observation.images.top": {
        "dtype": "video",
        "shape": (64, 64, 3),
        "names": ["height", "width", "channels"],
    },
}


def main(root):
    dataset = LeRobotDataset.create(
        "local/dataset", fps=10, features=FEATURES, root=root, robot_type="so100", vcodec="h264"
    )
    for episode, length in enumerate((4, 3, 5)):
        for step in range(length):
            level = 60 * episode + 10 * step
            dataset.add_frame(
                {
                    "observation.state": np.array([episode, step], np.float32),
                    "action": np.array([episode, step, 0.5], np.float32),
                    "next.reward": np.array([step == length - 1], np.float32),
                    "observation.images.wrist": np.full((32, 48, 3), level, np.uint8),
                    "observation.images.top": np.full((64, 64, 3), level, np.uint8),
                    "task": f"task {episode % 2}",
                }
            )
        dataset.save_episode()
    dataset.finalize()


if __name__ == "__main__":
    main(sys.argv[1])
