"""Record demonstrations of your own robot or simulator into a file that imitate trains on.

python examples/write_own_dataset.py own.hdf5

The robot here is a point on a table that is pushed to a goal; put yours in the place of `PointRobot` and of `teach`.
"""

import sys

import numpy as np

from imitate.data import DatasetWriter, check_dataset


class PointRobot:
    """Stands for your robot: observations are a dict of arrays, actions lie in [-1, 1]."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def reset(self):
        self.position, self.goal = self.random.uniform(-1, 1, (2, 2))
        return self.observe()

    def step(self, action):
        self.position = self.position + 0.1 * action
        return self.observe()

    def observe(self):
        image = np.zeros((32, 32, 3), dtype=np.uint8)  # height, width, RGB
        row, column = np.clip(16 * (self.position + 1), 0, 31).astype(int)
        image[row, column] = 255
        return {"position": self.position.copy(), "goal": self.goal.copy(), "camera_image": image}

    def is_done(self):
        return bool(np.linalg.norm(self.goal - self.position) < 0.1)


def teach(obs):
    """Stands for the person with the joystick."""
    return np.clip(5 * (obs["goal"] - obs["position"]), -1, 1)


def main(path: str, num_demos: int = 20, horizon: int = 60) -> int:
    """Write the file; the number of demos in it."""
    robot = PointRobot(seed=0)
    env_meta = {"env_name": "PointRobot", "type": 4, "env_kwargs": {}}  # 4: a real robot
    names = []
    # Each finished episode is safe on disk at once, in own.hdf5.partial; own.hdf5 appears at the end.
    with DatasetWriter(path, env_meta, control_freq=10) as writer:
        while len(names) < num_demos:
            obs = robot.reset()
            writer.start_episode()
            for _ in range(horizon):
                action = teach(obs)  # obs: what was seen before the action
                after = robot.step(action)
                done = robot.is_done()
                writer.append(obs=obs, action=action, reward=float(done), terminal=done)
                obs = after
                if done:
                    break
            if not done:
                writer.discard_episode()
                continue
            names.append(writer.finish_episode(success=True, language="push the point to the goal"))
        writer.add_filter_key("train", names[: num_demos * 9 // 10])
        writer.add_filter_key("valid", names[num_demos * 9 // 10 :])
    modalities = {"position": "low_dim", "goal": "low_dim", "camera_image": "rgb"}
    check_dataset(path, modalities=modalities)
    print(f"{path}: {len(names)} demos")
    return len(names)


if __name__ == "__main__":
    main(sys.argv[1])
