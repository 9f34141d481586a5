"""Simulated robots in real time: robosuite tasks or gymnasium environments with the interface of a robot.

The simulator runs in its own thread and takes one step each control period, even without a new action, like the real
world. So late policies, slow servers and lost connections have the same effect as on a robot.

A person who teleoperates can watch the scene in MuJoCo's viewer.
"""

import contextlib
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.robot import Guidance, Observation, Robot, Teleoperator
from imitate.envs.cameras import Size
from imitate.envs.env import Env
from imitate.envs.experts import find_expert
from imitate.envs.experts.expert import Style
from imitate.envs.make import make_env
from imitate.errors import EnvError, RobotError, UserError
from imitate.system import clock


class SceneWindow:
    """A window that shows a robosuite scene; all calls must be made in the thread that steps the environment.

    The window draws in its own thread. If the person closes the window, it stays closed until the next episode, whose
    model gets a new window.
    """

    def __init__(self) -> None:
        self._viewer: Any = None
        self._model: Any = None

    def show(self, env: Env) -> None:
        """Show the environment's current state in the window.

        Raises:
            EnvError: the environment is not from robosuite, or no window can be opened.
        """
        scene = getattr(env, "base_env", None)
        if scene is None or not hasattr(scene, "sim"):
            raise EnvError(
                "view shows only robosuite's environments, but this one has no MuJoCo scene: leave view "
                "out"
            )
        model, data = scene.sim.model._model, scene.sim.data._data
        if model is not self._model:
            self.close()
            self._viewer, self._model = _opened(model, data), model
        if self._viewer.is_running():
            self._viewer.sync()

    def close(self) -> None:
        """Close the window."""
        viewer, self._viewer, self._model = self._viewer, None, None
        if viewer is not None:
            with contextlib.suppress(Exception):  # the person may have closed the window
                viewer.close()


def _opened(model: Any, data: Any) -> Any:
    import glfw
    import mujoco.viewer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usable = glfw.init()  # without a display MuJoCo would end the process
    try:
        if not usable:
            raise RuntimeError("GLFW finds no display")
        viewer = mujoco.viewer.launch_passive(model, data, show_left_ui=False, show_right_ui=False)
    except RuntimeError as error:
        raise EnvError(
            f"no window can be opened: {error}: view needs a display (DISPLAY, "
            "WAYLAND_DISPLAY), and on macOS mjpython instead of python"
        ) from error
    with viewer.lock():
        viewer.opt.geomgroup[0] = 0  # hide the shapes for collisions
        viewer.cam.lookat[:] = (0.0, 0.0, 1.0)
        viewer.cam.distance, viewer.cam.azimuth, viewer.cam.elevation = 2.0, 0.0, -30.0
    return viewer


Value = TypeVar("Value")
_START_S = 120.0


class SimulatedRobot(Robot):
    """Environment that behaves as a robot in real time.

    Args:
        env_meta: ``env_args`` of a demonstration file or checkpoint.
        rate_hz: control steps per second; None means the environment's ``control_freq``, or 20 if it has none.
        seed: seed of the first episode; each :meth:`reset` uses the next one.
        obs_keys: observation keys to return, or None for all.
        hold_action: (A,) action executed by :meth:`hold` and while no action arrives. None means zeros within the
            limits, which keep the pose if actions are changes. A robosuite gripper, the last action dimension, keeps
            its command.
        in_step: true to step the simulator only when an action is sent; for tests.
        view: true to show a robosuite scene in a window; needs a display.
        cameras: cameras of a robosuite scene, observed as ``<camera>_image``: names, or the size of the images by name,
            as the side in pixels or (height, width); missing sizes are taken from ``env_meta``, or else 84.

    A terminated environment does not step until :meth:`reset`.
    """

    def __init__(
        self,
        env_meta: Mapping[str, Any],
        rate_hz: float | None = None,
        seed: int = 0,
        obs_keys: tuple[str, ...] | None = None,
        hold_action: ArrayLike | None = None,
        in_step: bool = False,
        view: bool = False,
        cameras: Sequence[str] | Mapping[str, Size] = (),
    ) -> None:
        self.env_meta = dict(env_meta)
        self._cameras = cameras
        self._keys, self._seed, self.in_step = obs_keys, seed, in_step
        self._first_seed = seed
        own = (env_meta.get("env_kwargs") or {}).get("control_freq")
        self.rate_hz = float(rate_hz or own or 20.0)
        self._hold_given = hold_action
        self._window = SceneWindow() if view else None
        self._keeps_gripper = env_meta.get("type") == 1
        self._work: SimpleQueue[Callable[[Env], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._next: NDArray[np.float64] | None = None
        self._now: Observation | None = None
        self._solved = self._over = False
        self._reward = 0.0
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    # ---- life ------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Start the simulator and its first episode.

        Raises:
            EnvError: the environment cannot be made.
        """
        ready: Future[Env] = Future()
        self._thread = threading.Thread(
            target=self._live, args=(ready,), name="simulator", daemon=True
        )
        self._thread.start()
        env = ready.result(_START_S)
        low, high = np.asarray(env.action_low, float), np.asarray(env.action_high, float)
        self.limits = ActionLimits(low=low, high=high)
        hold = np.zeros(env.action_dim) if self._hold_given is None else self._hold_given
        self._rest = np.clip(np.asarray(hold, dtype=np.float64), low, high)
        first = self.reset()
        self.observation_shapes = {key: np.shape(value) for key, value in first.values.items()}

    def close(self) -> None:
        """End the simulator."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(10)
            self._thread = None

    def reset(self) -> Observation:
        """Begin the next episode, whose seed is one larger."""

        def begin(env: Env) -> Observation:
            obs, _ = env.reset(seed=self._seed)
            self._seed += 1
            self._next, self._solved = None, bool(env.is_success().get("task", False))
            self._over, self._reward = False, 0.0
            self._hold = self._rest.copy()
            if self._window is not None:
                self._window.show(env)
            return self._seen(obs)

        return self.call(begin)

    def reset_to(self, start: int) -> Observation:
        """Begin an episode with ``start`` as seed; the same number gives the same initial state."""
        self._seed = self._first_seed + start
        return self.reset()

    # ---- the robot -------------------------------------------------------------------------------

    def observe(self) -> Observation:
        """Return the newest observation of the simulator."""
        with self._lock:
            failure, now = self._failure, self._now
        if failure is not None:
            raise RobotError(
                f"the simulator failed: {type(failure).__name__}: {failure}"
            ) from failure
        if now is None:
            raise RobotError("the simulated robot is not connected: call connect() first")
        return now

    def send(self, action: NDArray[np.float64]) -> None:
        """Set the action of the simulator's next step."""
        wanted = np.array(action, dtype=np.float64)
        with self._lock:
            self._next = wanted
            if self._keeps_gripper:
                self._hold[-1] = wanted[-1]
        if self.in_step:
            self.call(lambda env: self._step(env, wanted))

    def hold(self) -> None:
        """Execute the holding action in the simulator's next step."""
        self.send(self._hold.copy())

    def stop(self) -> None:
        """Execute the holding action in all following steps, until an action is sent."""
        with self._lock:
            self._next = None

    def pose(self, observation: Observation) -> NDArray[np.float64] | None:
        """Return the holding action, which keeps the pose."""
        return self._hold.copy()

    def success(self) -> bool:
        """Return True if the task has been solved since :meth:`reset`."""
        return self._solved

    def ended(self) -> bool:
        """Return True if the environment has terminated."""
        return self._over

    def reward(self) -> float:
        """Return the sum of the environment's rewards since the last call."""
        with self._lock:
            reward, self._reward = self._reward, 0.0
        return reward

    def call(self, function: Callable[[Env], Value]) -> Value:
        """Call a function with the environment, in the simulator's thread between two steps; return the result."""
        answer: Future[Value] = Future()

        def work(env: Env) -> None:
            try:
                answer.set_result(function(env))
            except BaseException as error:
                answer.set_exception(error)

        if self._thread is None or not self._thread.is_alive():
            raise RobotError("the simulated robot is not connected: call connect() first")
        self._work.put(work)
        return answer.result(_START_S)

    # ---- the simulator's thread ------------------------------------------------------------------

    def _live(self, ready: Future[Env]) -> None:
        try:
            env = make_env(
                self.env_meta,
                obs_keys=self._keys,
                camera_names=list(self._cameras) or None,
                camera_size=self._cameras if isinstance(self._cameras, Mapping) else None,
            )
        except BaseException as error:
            ready.set_exception(error)
            return
        self.env_meta = env.serialize()
        ready.set_result(env)
        try:
            self._run(env)
        except BaseException as error:
            with self._lock:
                self._failure = error
        finally:
            if self._window is not None:
                self._window.close()
            with contextlib.suppress(Exception):
                env.close()

    def _run(self, env: Env) -> None:
        period = 1.0 / (self.rate_hz or 20.0)
        due = clock.now() + period
        while True:
            try:
                left_s = None if self.in_step else max(due - clock.now(), 0.0)
                work = clock.get(self._work, left_s)
            except Empty:
                if self._now is not None:
                    with self._lock:
                        action, self._next = self._next, None
                    self._step(env, self._hold if action is None else action)
                due = max(due + period, clock.now())
                continue
            if work is None:
                return
            work(env)
            due = max(due, clock.now())

    def _step(self, env: Env, action: NDArray[np.float64]) -> None:
        if self._over:
            assert self._now is not None
            self._seen(self._now.values)
            return
        obs, reward, self._over, _, info = env.step(action)
        with self._lock:
            self._reward += reward
        self._solved |= bool(info.get("success", False))
        self._seen(obs)
        if self._window is not None:
            self._window.show(env)

    def _seen(self, obs: Mapping[str, Any]) -> Observation:
        seen = Observation({key: np.asarray(value) for key, value in obs.items()}, clock.now())
        with self._lock:
            self._now = seen
        return seen


class ExpertTeleoperator(Teleoperator):
    """Scripted expert as a teleoperator, for robosuite tasks that have an expert.

    Args:
        task: robosuite's name of the task.
        seed: seed of the expert's style, which is drawn for each episode.
        steps_after: number of control steps after success before the expert presses ``success``.
        patience: number of control steps after which the expert presses ``failure``; None for the expert's horizon.
        watches: number of control steps at the beginning of an episode in which only the policy acts.
    """

    def __init__(
        self,
        task: str,
        seed: int = 0,
        steps_after: int = 5,
        patience: int | None = None,
        watches: int = 0,
    ) -> None:
        self._expert = find_expert(task)
        self._random = np.random.default_rng(seed)
        self._after, self._watches = steps_after, watches
        self._patience = patience or self._expert.horizon
        self._robot: Robot | None = None
        self.start_episode()

    def start_episode(self) -> None:
        """Draw a new style of the expert, and reset the counters."""
        self._now = self._expert(Style.sample(self._random))
        self._steps = self._solved_for = 0

    def connect(self, robot: Robot) -> None:
        """Store the robot, which reports whether the task is solved."""
        self._robot = robot

    def guide(self, observation: Observation) -> Guidance:
        """Return the expert's action (None while only the policy acts), and at the end ``success`` or ``failure``."""
        if self._robot is None:
            raise UserError("the expert is not connected to a robot")
        self._steps += 1
        acts = self._steps > self._watches
        action = np.clip(self._now.act(dict(observation.values)), -1.0, 1.0) if acts else None
        self._solved_for = self._solved_for + 1 if self._robot.success() else 0
        event = None
        if self._solved_for > self._after:
            event = "success"
        elif self._steps >= self._patience:
            event = "failure"
        if event is None:
            return Guidance(action)
        self.start_episode()
        return Guidance(action, frozenset({event}))
