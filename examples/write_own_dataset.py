"""Record demonstrations of your own robot into a file that imitate trains on.

python examples/write_own_dataset.py own.hdf5

`record` is the complete recording loop. The robot here is a point on a table that is pushed to a goal; replace
`PointRobot` by your robot, and `Teacher` by the person who guides it. See docs/own_data.md.
"""

import sys

import numpy as np

from imitate.data import DatasetWriter, check_dataset

RATE_HZ = 10.0


def record(robot, teacher, path, num_episodes, horizon=60):
    """Write the file and return the names of the demos that succeeded."""
    good = []
    env_meta = {"env_name": "PointRobot", "type": 4, "env_kwargs": {}}  # 4: a real robot
    with DatasetWriter(path, env_meta, control_freq=RATE_HZ) as writer:
        for _ in range(num_episodes):
            obs = (
                robot.reset()
            )  # {"position": (2,), "goal": (2,), "camera_image": (32, 32, 3) uint8}
            writer.start_episode()
            for _ in range(horizon):
                action = teacher.act(obs)
                after = robot.step(action)  # returns after 1 / RATE_HZ seconds
                done = robot.is_done()
                writer.append(obs=obs, action=action, reward=float(done), terminal=done)
                obs = after  # the observation of a step is the one before its action
                if done or teacher.gives_up:
                    break
            verdict = teacher.verdict(done)  # the person's verdict: success, failure or discard
            if verdict == "discard":
                writer.discard_episode()
                continue
            # From here on the episode is on disk, even if this program crashes.
            name = writer.finish_episode(
                success=verdict == "success", language="push the point to the goal"
            )
            if verdict == "success":
                good.append(name)
        held_out = max(1, len(good) // 10)
        writer.add_filter_key("train", good[:-held_out])
        writer.add_filter_key("valid", good[-held_out:])
    return good


class PointRobot:
    """A substitute for your robot: observations are a dict of arrays, actions are in [-1, 1]."""

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


class Teacher:
    """A substitute for the person with the joystick: every fifth episode fails, every tenth is discarded."""

    def __init__(self):
        self.episode = 0
        self.gives_up = False

    def act(self, obs):
        aim = -obs["goal"] if self.episode % 5 == 4 else obs["goal"]
        return np.clip(5 * (aim - obs["position"]), -1, 1)

    def verdict(self, done):
        self.episode += 1
        if self.episode % 10 == 0:
            return "discard"
        return "success" if done else "failure"


def main(path: str, num_episodes: int = 25) -> int:
    """Record and check the dataset; print and return the number of successes."""
    good = record(PointRobot(seed=0), Teacher(), path, num_episodes)
    check_dataset(path, modalities={"position": "low_dim", "camera_image": "rgb"})
    print(f"{path}: {len(good)} successes")
    return len(good)


if __name__ == "__main__":
    main(sys.argv[1])
