"""A stand-in for robosuite's tasks: their observations and actions, without physics.

A hand moves to an object in microseconds a step. Commands of the documentation run with ``table_world:Lift-v0`` where
a page has ``Lift``, and so on.
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

REACHED = 0.1
SIDE = 84
TASKS = ("Lift", "Stack", "PickPlaceCan")


class Table(gymnasium.Env):
    """Move the hand to the object within 40 steps. Reward: 1 where it is reached, which ends the episode.

    Args:
        render_mode: None or ``rgb_array``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    action_space = Box(-1, 1, (7,), np.float32)

    def __init__(self, render_mode=None):
        sizes = {
            "robot0_eef_pos": 3,
            "robot0_eef_quat": 4,
            "robot0_eef_quat_site": 4,
            "robot0_gripper_qpos": 2,
            "object": 10,
        }
        spaces = {key: Box(-2, 2, (size,), np.float64) for key, size in sizes.items()}
        self.render_mode, self.observation_space = render_mode, Dict(spaces)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.hand, self.object = self.np_random.uniform(-0.5, 0.5, (2, 3))
        return self.observe(), {}

    def step(self, action):
        self.hand = np.clip(self.hand + 0.1 * np.clip(action[:3], -1, 1), -2, 2)
        success = bool(np.linalg.norm(self.object - self.hand) < REACHED)
        return self.observe(), float(success), success, False, {"success": success}

    def observe(self):
        return {
            "robot0_eef_pos": self.hand.copy(),
            "robot0_eef_quat": np.array([0.0, 0.0, 0.0, 1.0]),
            "robot0_eef_quat_site": np.array([0.0, 0.0, 0.0, 1.0]),
            "robot0_gripper_qpos": np.zeros(2),
            "object": np.concatenate([self.object, [0, 0, 0, 1], self.object - self.hand]),
        }

    def render(self):
        shade = int(63 * (2 + self.hand[0]))
        return np.full((SIDE, SIDE, 3), shade, np.uint8)

    def get_sim_state(self):
        return np.concatenate([self.hand, self.object])

    def set_sim_state(self, state):
        self.hand, self.object = np.split(np.array(state), 2)
        return self.observe()


for task in TASKS:
    gymnasium.register(f"{task}-v0", entry_point=Table, max_episode_steps=40)


class Expert:
    """Go straight to the object. One is made for each episode."""

    horizon = 40
    motion_axes = 3
    instruction = "move to the object"
    env_kwargs = {}
    dense_kwargs = None
    acts_as_person = False

    def __init__(self, env_name):
        self.env_name = env_name

    def __call__(self, style):
        self.style = style
        return self

    def act(self, obs):
        motion = np.clip(5 * (obs["object"][:3] - obs["robot0_eef_pos"]), -1, 1)
        return np.concatenate([motion, np.zeros(4)])


def expert_of(env_name):
    """The expert of an environment of this package: the entry point."""
    if env_name in {f"table_world:{task}-v0" for task in TASKS}:
        return Expert(env_name)
    from imitate.errors import EnvError

    raise EnvError(f"{env_name} has no expert here")
