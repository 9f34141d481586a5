"""OGBench's point mazes (Park et al., ICLR 2025, arXiv:2410.20092), by the names of their datasets.

:mod:`imitate.envs.worlds.ogbench` registers ``ogbench:pointmaze-medium-navigate-v0`` and the like with gymnasium: the
maze with five tasks, each a start and a goal; the environment can also record the maze's dataset.

* The observation ``flat`` (2,) is the position. An action (2,) in [-1, 1] changes the position by a fifth of its value,
  ten times per second. The goal of an episode is a position, ``info["goal"]`` of the reset. An episode succeeds and
  ends within a distance of 1 from the goal.
* An episode with seed s has task 1 + s mod 5, or with ``-task3`` before ``-v0`` always task 3.
* After :meth:`OGBenchMaze.play` the environment records a dataset: a planner walks from cell to cell, with the noise of
  the authors' script, to goals that are drawn one after another (``navigate``), or to a goal that is four cells away
  (``stitch``). Success then does not end an episode.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from imitate.envs.env import Array

MAZES = ("medium", "large", "giant", "teleport")
KINDS = ("navigate", "stitch")
NUM_TASKS = 5
NOISE = 0.5
"""Standard deviation of the noise of the planner's actions."""
STITCHED = 4
"""Number of steps from cell to cell between start and goal in an episode of a ``stitch`` dataset."""

Cell = tuple[int, int]


@dataclass(frozen=True)
class Maze:
    """A dataset of OGBench with a point mass in a maze.

    Attributes:
        size: the package's maze, such as ``medium``.
        kind: ``navigate`` or ``stitch``.
        task: number of the task, 1 to 5, or None for all in turn.
    """

    size: str
    kind: str
    task: int | None

    @property
    def name(self) -> str:
        """OGBench's name of the dataset, with the task."""
        task = "" if self.task is None else f"-task{self.task}"
        return f"pointmaze-{self.size}-{self.kind}{task}-v0"

    @property
    def steps(self) -> int:
        """Number of steps of a recorded episode."""
        if self.kind == "stitch":
            return 200
        return 2000 if self.size == "giant" else 1000


DATASETS = {
    maze.name: maze
    for maze in (Maze(*parts) for parts in product(MAZES, KINDS, (None, *range(1, NUM_TASKS + 1))))
}
"""Datasets of the mazes by name."""


class OGBenchMaze(gymnasium.Env[Array, Array]):
    """A point mass in a maze, or the recording of its dataset; see :mod:`imitate.envs.worlds.ogbench_maze`.

    Args:
        name: name of the dataset.
        render_mode: ``rgb_array`` if ``render`` will be called.

    Attributes:
        inner: OGBench's environment.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - gymnasium's
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, name: str, render_mode: str | None = None) -> None:
        self.render_mode, self._maze = render_mode, DATASETS[name]
        env_id = f"pointmaze-{self._maze.size}-v0"
        self.inner: Any = gymnasium.make(env_id).unwrapped
        self._longest = gymnasium.spec(env_id).max_episode_steps or 0
        self._steps, self._plays = 0, False

    def play(self) -> None:
        """Record the dataset from the next reset on, with actions from :meth:`oracle_action`."""
        self._plays = True

    def oracle_action(self) -> Array:
        """Return the action (2,) towards the next cell on the way to the goal, in [-1, 1], with noise."""
        here = self.inner.get_xy()
        cell, _ = self.inner.get_oracle_subgoal(here, self.inner.cur_goal_xy)
        way = cell - here
        noise = np.random.normal(0, NOISE, 2)  # noqa: NPY002 - in the order of the authors' script
        action: Array = np.clip(way / (np.linalg.norm(way) + 1e-6) + noise, -1.0, 1.0)
        return action

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode. numpy's global generator is seeded: the package draws start, goal and teleports from it."""
        super().reset(seed=seed)
        if seed is not None:
            np.random.seed(seed % 2**32)  # noqa: NPY002
        self._steps = 0
        if self._plays:
            chosen: dict[str, Any] = {"task_info": self._journey()}
        elif self._maze.task is None and seed is None:
            chosen = {"task_id": int(self.np_random.integers(NUM_TASKS)) + 1}
        else:
            chosen = {"task_id": self._maze.task or 1 + (seed or 0) % NUM_TASKS}
        obs, info = self.inner.reset(seed=seed, options=chosen)
        return obs.astype(np.float32), {"goal": info["goal"].astype(np.float32)}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Apply one action; while a dataset of ``navigate`` is recorded, draw another goal after success."""
        self._steps += 1
        obs, reward, terminated, _, info = self.inner.step(action)
        success = bool(info["success"])
        outcome = {"success": success}
        if not self._plays:
            over = self._steps >= self._longest
            return obs.astype(np.float32), float(reward), bool(terminated), over, outcome
        if success and self._maze.kind == "navigate":
            cell = _any_of(corners(self.inner.maze_map))
            self.inner.set_goal(goal_xy=self.inner.add_noise(self.inner.ij_to_xy(cell)))
        return obs.astype(np.float32), float(reward), False, False, outcome

    def _journey(self) -> dict[str, Cell]:
        """Draw the cells of start and goal of a recorded episode."""
        maze = self.inner.maze_map
        start = _any_of(np.argwhere(maze == 0))
        if self._maze.kind == "navigate":
            return {"init_ij": start, "goal_ij": _any_of(corners(maze))}
        near = cells_away(maze, start, STITCHED)
        return {"init_ij": start, "goal_ij": _any_of(near) if len(near) else start}

    def get_sim_state(self) -> NDArray[np.float64]:
        """Return the state (4,): position and velocity."""
        return np.concatenate([self.inner.data.qpos, self.inner.data.qvel])

    def set_sim_state(self, state: NDArray[np.float64]) -> Array:
        """Set the point mass to a state of :meth:`get_sim_state`; return the observation."""
        self.inner.set_state(*np.split(state, 2))
        seen: Array = self.inner.get_ob()
        return seen.astype(np.float32)

    def render(self) -> Any:
        """Draw one frame, (200, 200, 3) uint8."""
        return self.inner.render()

    def close(self) -> None:
        """Free the simulator."""
        self.inner.close()


def corners(maze: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the free cells (N, 2) inside a maze (0 marks a free cell), without cells in straight corridors."""
    free = maze == 0
    up, down, left, right = (
        np.roll(free, shift, axis) for shift, axis in ((1, 0), (-1, 0), (1, 1), (-1, 1))
    )
    corridor = (up & down & ~left & ~right) | (left & right & ~up & ~down)
    return np.argwhere(free & ~corridor)


def cells_away(maze: NDArray[np.int64], start: Cell, steps: int) -> NDArray[np.int64]:
    """Return the free cells (N, 2) of a maze to which the shortest way from ``start`` has ``steps`` steps."""
    free, found = maze == 0, np.zeros(maze.shape, bool)
    found[start] = True
    edge = found
    for _ in range(steps):
        moved = (np.roll(edge, shift, axis) for shift in (1, -1) for axis in (0, 1))
        edge = np.any(list(moved), axis=0) & free & ~found
        found = found | edge
    return np.argwhere(edge)


def _any_of(cells: NDArray[np.int64]) -> Cell:
    """Draw a cell from numpy's global generator."""
    row, column = cells[np.random.randint(len(cells))]  # noqa: NPY002
    return int(row), int(column)


for _name in DATASETS:
    gymnasium.register(
        _name, f"{__name__}:OGBenchMaze", kwargs={"name": _name}, disable_env_checker=True
    )
