"""An example of an environment and its scripted expert in a separate package.

A point on a table moves to a goal. Replace it by your simulator or robot. After

    pip install --no-deps --no-build-isolation -e examples/point_world

every command accepts ``point_world:Reach-v0``, and ``imitate collect`` finds its expert.
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

REACHED = 0.1
"""Distance at which the goal counts as reached; the table is 2 by 2."""


class Reach(gymnasium.Env):
    """Move to the goal within 40 steps. The reward is 1 in the step that reaches it, which ends the episode."""

    observation_space = Dict(
        {"position": Box(-2, 2, (2,), np.float64), "goal": Box(-1, 1, (2,), np.float64)}
    )
    action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        return self.observe(), {}

    def step(self, action):
        self.position = np.clip(self.position + 0.1 * np.clip(action, -1, 1), -2, 2)
        success = bool(np.linalg.norm(self.goal - self.position) < REACHED)
        return self.observe(), float(success), success, False, {"success": success}

    def observe(self):
        return {"position": self.position.copy(), "goal": self.goal.copy()}

    # Optional: states that can be read and set, so that recorded episodes can be played back and compared.
    def get_sim_state(self):
        return np.concatenate([self.position, self.goal])

    def set_sim_state(self, state):
        self.position, self.goal = np.split(np.array(state), 2)
        return self.observe()


gymnasium.register("Reach-v0", entry_point=Reach, max_episode_steps=40)


class Expert:
    """An expert that goes straight to the goal; a new one is made for each episode."""

    env_name = "point_world:Reach-v0"
    horizon = 40
    motion_axes = 2
    instruction = "move to the goal"
    env_kwargs = {}
    dense_kwargs = None
    acts_as_person = False

    def __init__(self, style=None):
        self.style = style

    def act(self, obs):
        return np.clip(5 * (obs["goal"] - obs["position"]), -1, 1)


def expert_of(env_name):
    """Return the expert of an environment of this package; the package's entry point."""
    if env_name == Expert.env_name:
        return Expert
    from imitate.errors import EnvError

    raise EnvError(f"{env_name} has no expert; expected {Expert.env_name}")


def label(obs):
    """Return the expert's action, for ``imitate dagger --expert point_world:label``."""
    return Expert().act(obs)
