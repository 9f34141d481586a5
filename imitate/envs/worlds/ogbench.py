"""OGBench's manipulation tasks (Park et al., ICLR 2025, arXiv:2410.20092), by the names of their datasets.

Importing this module registers ``ogbench:cube-single-play-singletask-task2-v0`` and the like with gymnasium. Such an
environment is a task with a known reward, and can also record the task's dataset. Without ``-task2`` the task is the
package's default.

* The environment equals ``cube-single-singletask-task2-v0`` of the package: observations ``flat``, actions (5,) in [-1,
  1], 20 per second; the reward of a state is minus the number of objects that are not in place; success ends an
  episode.
* After :meth:`OGBenchEnv.play` the environment records a dataset: an oracle of the package moves objects to random
  targets, one after another, with the noise of the authors' script. ``play`` follows a plan, ``noisy`` is a closed loop
  with random actions in between. Rewards and success are those of the task, for the state before each action, as
  ``ogbench.relabel_utils`` computes them; success then does not end an episode.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from imitate.envs.env import Array
from imitate.envs.rendering import prepare_gl
from imitate.envs.worlds import ogbench_maze
from imitate.errors import EnvError
from imitate.system.extras import missing

prepare_gl()  # dm_control chooses its OpenGL back end when it is imported
try:
    import ogbench  # the import registers its environments
    from ogbench.manipspace.oracles.markov.button_markov import ButtonMarkovOracle
    from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle
    from ogbench.manipspace.oracles.markov.drawer_markov import DrawerMarkovOracle
    from ogbench.manipspace.oracles.markov.window_markov import WindowMarkovOracle
    from ogbench.manipspace.oracles.plan.button_plan import ButtonPlanOracle
    from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle
    from ogbench.manipspace.oracles.plan.drawer_plan import DrawerPlanOracle
    from ogbench.manipspace.oracles.plan.window_plan import WindowPlanOracle
except ImportError as error:
    raise EnvError(f"ogbench: {missing('ogbench', error)}") from error

__all__ = ["DATASETS", "OGBenchEnv", "ogbench"]

WORLDS = (
    *(f"cube-{count}" for count in ("single", "double", "triple", "quadruple", "octuple")),
    "scene",
    *(f"puzzle-{size}" for size in ("3x3", "4x4", "4x5", "4x6")),
)
KINDS = ("play", "noisy")
TASKS = (None, 1, 2, 3, 4, 5)
NOISE = 0.1
"""Noise of the oracles' plans, and upper bound of an episode's action noise in ``noisy`` datasets."""
_STACKING = {
    "cube-single": (0.0, 0.0),
    "cube-double": (0.0, 0.25),
    "cube-triple": (0.05, 0.35),
    "cube-quadruple": (0.1, 0.5),
    "cube-octuple": (0.0, 0.35),
}
"""Range from which the probability that a target is on top of another cube is drawn for each episode."""
_ANYWHERE = (0.5, 0.5)
_NOISY_AXES = np.array([1.0, 1.0, 1.0, 3.0, 10.0])
_RANDOM_ACTIONS = {"puzzle": 0.2}
"""Probability of a random action in ``noisy`` datasets, for scenes in which it is not 0.1."""
_FIRST_CUBE = slice(14, 17)
_ENDLESS = 10**9


@dataclass(frozen=True)
class Dataset:
    """A dataset of OGBench with the rewards of one task.

    Attributes:
        world: the package's scene, such as ``cube-single``.
        kind: ``play`` or ``noisy``.
        task: number of the task, 1 to 5, or None for the default one.
    """

    world: str
    kind: str
    task: int | None

    @property
    def suffix(self) -> str:
        """Suffix of the names of dataset and environment."""
        return "singletask" + ("" if self.task is None else f"-task{self.task}") + "-v0"

    @property
    def name(self) -> str:
        """OGBench's name of the dataset."""
        return f"{self.world}-{self.kind}-{self.suffix}"

    @property
    def steps(self) -> int:
        """Number of steps of a recorded episode."""
        return 1000

    @property
    def random_actions(self) -> float:
        """Probability of a random action while the dataset is recorded."""
        return _RANDOM_ACTIONS.get(self.world.split("-")[0], 0.1) if self.kind == "noisy" else 0.0


TASKS_OF_SCENES = {
    dataset.name: dataset
    for dataset in (Dataset(*parts) for parts in product(WORLDS, KINDS, TASKS))
}
DATASETS: dict[str, Dataset | ogbench_maze.Maze] = {**TASKS_OF_SCENES, **ogbench_maze.DATASETS}
"""Datasets of all scenes and mazes by name."""


class OGBenchEnv(gymnasium.Env[Array, Array]):
    """A task of OGBench, or the recording of its dataset; see :mod:`imitate.envs.worlds.ogbench`.

    Args:
        name: name of the dataset.
        render_mode: ``rgb_array`` if ``render`` will be called.

    Attributes:
        inner: OGBench's environment of the task.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - gymnasium's

    def __init__(self, name: str, render_mode: str | None = None) -> None:
        self.render_mode, self._dataset = render_mode, TASKS_OF_SCENES[name]
        task = f"{self._dataset.world}-{self._dataset.suffix}"
        self.inner: Any = gymnasium.make(task).unwrapped
        self._longest = gymnasium.spec(task).max_episode_steps or 0
        shape = self.inner.observation_space.shape
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (5,), np.float32)
        self._player: _Player | None = None
        self._steps = 0
        self._info: dict[str, Any] = {}

    def play(self) -> None:
        """Record the dataset from the next reset on, with actions from :meth:`oracle_action`."""
        if self._player is None:
            self._player = _Player(self._dataset)

    def oracle_action(self) -> Array:
        """Return the oracle's action (5,) in the current state, in [-1, 1], with noise."""
        assert self._player is not None, "call play() first"
        return self._player.action()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode. While a dataset is recorded, numpy's global generator is seeded, because oracles use it."""
        super().reset(seed=seed)
        self._steps = 0
        obs, self._info = self.inner.reset(seed=seed, options=options)
        if self._player is not None:
            obs, self._info = self._player.reset(seed)
        return obs.astype(np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Apply one action (5,); return observation, reward, terminated, truncated and info."""
        self._steps += 1
        if self._player is None:
            obs, reward, terminated, _, self._info = self.inner.step(action)
            over = self._steps >= self._longest
            info = {"success": self._info["success"]}
            return obs.astype(np.float32), float(reward), bool(terminated), over, info
        obs, self._info = self._player.step(action)
        names = ("prev_qpos", "prev_qvel", "prev_button_states")
        reward = self.task_reward(*(self._info[name] for name in names if name in self._info))
        return obs.astype(np.float32), reward, False, False, {"success": reward == 0.0}

    def task_reward(self, qpos: Array, qvel: Array, buttons: Array | None = None) -> float:
        """Return the task's reward for a state; only valid after the first reset.

        Args:
            qpos: (Q,) positions.
            qvel: (V,) velocities.
            buttons: (B,) states of the buttons, or None in a scene without buttons.
        """
        if buttons is not None:
            self.inner.set_state(qpos, qvel, buttons)
        else:  # the reward depends only on the cubes' positions
            self.inner.data.qpos[:] = qpos
        return float(self.inner.compute_reward())

    def get_sim_state(self) -> NDArray[np.float64]:
        """Return the state: positions, velocities and, if there are buttons, their states."""
        names = ("qpos", "qvel", "button_states")
        return np.concatenate([self._info[name] for name in names if name in self._info])

    def set_sim_state(self, state: NDArray[np.float64]) -> Array:
        """Set the task's scene to a state of :meth:`get_sim_state`; return the observation."""
        qpos, qvel, buttons = np.split(state, np.cumsum([self.inner.model.nq, self.inner.model.nv]))
        more = (buttons.astype(np.int64),) if len(buttons) else ()
        self.inner.set_state(qpos, qvel, *more)
        seen: Array = self.inner.compute_observation()
        return seen.astype(np.float32)

    def render(self) -> Any:
        """Draw one frame, (200, 200, 3) uint8."""
        return (self.inner if self._player is None else self._player.env).render()

    def close(self) -> None:
        """Free the simulators."""
        self.inner.close()
        if self._player is not None:
            self._player.env.close()


class _Player:
    """Scene for recording a dataset: targets that change, and the oracles that move objects to them.

    Random numbers come from numpy's global generator, in the order of the authors' script.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._outer = gymnasium.make(
            f"{dataset.world}-v0",
            terminate_at_goal=False,
            mode="data_collection",
            max_episode_steps=_ENDLESS,
        )
        self.env: Any = self._outer.unwrapped
        self._oracles = self._made()
        self._oracle: Any = None
        self._obs: Any = None
        self._info: dict[str, Any] = {}
        self._stacking = self._noise = 0.0

    def _made(self) -> dict[str, Any]:
        """Return the oracles by kind of object."""
        world, plans = self._dataset.world, self._dataset.kind == "play"
        keys: dict[str, Any] = (
            {"noise": NOISE, "noise_smoothing": 0.5} if plans else {"min_norm": 0.4}
        )
        cube, button, drawer, window = (
            (CubePlanOracle, ButtonPlanOracle, DrawerPlanOracle, WindowPlanOracle)
            if plans
            else (CubeMarkovOracle, ButtonMarkovOracle, DrawerMarkovOracle, WindowMarkovOracle)
        )
        if world.startswith("cube"):
            return {"cube": cube(env=self._outer, **keys)}
        if world.startswith("puzzle"):
            return {"button": button(env=self._outer, gripper_always_closed=True, **keys)}
        longest = {} if plans else {"max_step": 100}
        others = {"button": button, "drawer": drawer, "window": window}
        return {
            "cube": cube(env=self._outer, **keys, **longest),
            **{name: oracle(env=self._outer, **keys) for name, oracle in others.items()},
        }

    def reset(self, seed: int | None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode; return observation and info."""
        if seed is not None:
            np.random.seed(seed % 2**32)  # noqa: NPY002 - the oracles draw from this generator
        self._obs, self._info = self.env.reset(seed=seed)
        self._stacking = np.random.uniform(*_STACKING.get(self._dataset.world, _ANYWHERE))  # noqa: NPY002
        if self._dataset.kind == "noisy":
            self._noise = np.random.uniform(0, NOISE)  # noqa: NPY002
        self._aim(self._obs, self._info)
        return self._obs, self._info

    def _aim(self, obs: Any, info: dict[str, Any]) -> None:
        """Begin to move an object to the current target."""
        self._oracle = self._oracles[info["privileged/target_task"]]
        self._oracle.reset(obs, info)

    def action(self) -> Array:
        """Return the oracle's action (5,) with noise."""
        if np.random.rand() < self._dataset.random_actions:  # noqa: NPY002
            return np.random.uniform(-1.0, 1.0, 5)  # noqa: NPY002
        action = np.array(self._oracle.select_action(self._obs, self._info))
        if self._dataset.kind == "noisy":
            action = action + np.random.normal(0, self._noise * _NOISY_AXES)  # noqa: NPY002
        clipped: Array = np.clip(action, -1.0, 1.0)
        return clipped

    def step(self, action: Array) -> tuple[Array, dict[str, Any]]:
        """Apply an action; if the oracle is done with the target, draw the next one.

        Raises:
            RuntimeError: the cube of ``scene`` has left the part of the table that is visible, so that the episode has
                to be replaced, as in the authors' script.
        """
        self._obs, _, _, _, self._info = self.env.step(action)
        if self._oracle.done:
            self._aim(*self.env.set_new_target(p_stack=self._stacking))
        if self._dataset.world == "scene" and _is_lost(self._info["prev_qpos"][_FIRST_CUBE]):
            raise RuntimeError(
                "the cube has left the visible part of the table: record the episode again with "
                "another seed"
            )
        return self._obs, self._info


def _is_lost(cube: Array) -> bool:
    """Return true if a cube (3,) is too far right, or too far left and not in the drawer."""
    _, y, z = cube
    return bool(y >= 0.29 or (y <= -0.3 and not 0.06 <= z <= 0.08))


for _name in TASKS_OF_SCENES:
    gymnasium.register(
        _name, f"{__name__}:OGBenchEnv", kwargs={"name": _name}, disable_env_checker=True
    )
