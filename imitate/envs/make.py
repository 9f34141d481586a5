"""Make an environment from the env_args in a demonstration file, with its wrappers.

Wrappers add observations or change the meaning of actions. They are listed in env_args, ``"wrappers": [{"type":
"skills", "num": 5}]``, the innermost first, so that evaluations and robots of a checkpoint use the same wrappers. A
training lists them in ``train.online.wrappers``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, cast

import numpy as np

from imitate.envs.cameras import Size
from imitate.envs.env import Array, Env, Obs, success_in
from imitate.envs.migration import ROBOSUITE, fitted
from imitate.errors import EnvError, offered
from imitate.system.text import DURATION, PREVIOUS_ACTION, SKILL
from imitate.system.trust import PETTINGZOO, ROBOT, check_trusted

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
_MOST = 4096


# ---- wrappers ------------------------------------------------------------------------------------


class Wrapper:
    """Environment around an inner environment, whose other attributes it forwards.

    Attributes:
        adds: keys of the observations that the wrapper adds.
    """

    adds: ClassVar[tuple[str, ...]] = ()

    def __init__(self, env: Env, settings: Mapping[str, Any]) -> None:
        self._env, self._settings = env, dict(settings)

    def __getattr__(self, name: str) -> Any:
        if name == "_env":
            raise AttributeError(name)
        return getattr(self._env, name)

    def _begin(self, seed: int | None) -> None:
        """Prepare an episode, before its first observation."""

    def _seen(self, obs: Obs) -> Obs:
        """Return the observation of the inner environment together with the added observations."""
        return obs

    def reset(self, *, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode; return observation and info."""
        obs, info = self._env.reset(seed=seed)
        self._begin(seed)
        return self._seen(obs), info

    def reset_to(self, state: dict[str, Any]) -> Obs:
        """Restore a state of the inner environment, start an episode from it, and return the observation."""
        obs = self._env.reset_to(state)
        self._begin(None)
        return self._seen(obs)

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Apply one action; return observation, reward, terminated, truncated and info."""
        obs, reward, terminated, truncated, info = self._env.step(action)
        return self._seen(obs), reward, terminated, truncated, info

    def serialize(self) -> dict[str, Any]:
        """Return the env_args, in which this wrapper is the last one."""
        inner = self._env.serialize()
        return {**inner, "wrappers": [*inner.get("wrappers", ()), dict(self._settings)]}


class Skills(Wrapper):
    """Adds the observation ``skill``, which is drawn at the start of each episode.

    Settings: ``num`` K; ``continuous``: false to draw one of K skills, one-hot, true to draw a point on the unit sphere
    in K dimensions. An episode with seed s has the skill s mod K, so that evaluations cycle through all skills.
    """

    adds = (SKILL,)

    def __init__(self, env: Env, settings: Mapping[str, Any]) -> None:
        super().__init__(env, settings)
        self._num = count_in(settings, "num")
        self._random = np.random.default_rng(0)
        self._skill = np.zeros(self._num, np.float32)

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        if self._settings.get("continuous"):
            drawn = self._random.normal(size=self._num)
            self._skill = (drawn / np.linalg.norm(drawn)).astype(np.float32)
        else:
            number = self._random.integers(self._num) if seed is None else seed % self._num
            self._skill = np.eye(self._num, dtype=np.float32)[number]

    def _seen(self, obs: Obs) -> Obs:
        return {**obs, SKILL: self._skill.copy()}


class PreviousAction(Wrapper):
    """Adds the observation ``previous_action`` (A + 1,): the last action and 1, or zeros at an episode's start."""

    adds = (PREVIOUS_ACTION,)

    def _begin(self, seed: int | None) -> None:
        self._last = np.zeros(self._env.action_dim + 1, np.float32)

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Apply one action, and remember the executed action."""
        obs, reward, terminated, truncated, info = self._env.step(action)
        self._last = np.append(info.get("executed_action", action), 1.0).astype(np.float32)
        return self._seen(obs), reward, terminated, truncated, info

    def _seen(self, obs: Obs) -> Obs:
        return {**obs, PREVIOUS_ACTION: self._last.copy()}


class Repeated(Wrapper):
    """Lets the policy choose how often an action is repeated: its actions are [one-hot of K | numbers].

    Settings: ``num`` K; ``discount`` g. Choice k executes the numbers k times (fewer at an episode's end), and the
    reward is the sum of g^i r_i over these steps. The observation ``duration`` (1,) is the number of steps that the
    last action took.
    """

    adds = (DURATION,)

    def __init__(self, env: Env, settings: Mapping[str, Any]) -> None:
        super().__init__(env, settings)
        self.num_choices = count_in(settings, "num")
        self._discount = float(settings.get("discount", 1.0))
        if getattr(env, "num_choices", 0):
            raise EnvError(
                f"env_args['wrappers']: the wrapper 'repeated' needs continuous actions, but {env.name} takes "
                "choices: leave the wrapper out"
            )
        self.action_dim = self.num_choices + env.action_dim
        self.action_low = np.append(np.zeros(self.num_choices), env.action_low)
        self.action_high = np.append(np.ones(self.num_choices), env.action_high)

    def _begin(self, seed: int | None) -> None:
        self._duration = 0

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Execute the numbers of an action as often as its choice says."""
        total, self._duration = 0.0, 0
        for _ in range(int(np.argmax(action[: self.num_choices])) + 1):
            obs, reward, terminated, truncated, info = self._env.step(action[self.num_choices :])
            total += self._discount**self._duration * reward
            self._duration += 1
            if terminated or truncated or success_in(info):
                break
        executed = {
            key: np.append(action[: self.num_choices], value)
            for key, value in info.items()
            if key == "executed_action"
        }
        return self._seen(obs), total, terminated, truncated, {**info, **executed}

    def _seen(self, obs: Obs) -> Obs:
        return {**obs, DURATION: np.array([self._duration], np.float32)}


class Goals(Wrapper):
    """Turns an environment into one with goals, in gymnasium's convention; the goals are values of an observation.

    Settings: ``of``, the key of the vector observation that must reach the goal; ``low`` and ``high``, between which
    goals are drawn uniformly, or ``points``, of which one is drawn, such as states of demonstrations; ``tolerance``,
    the distance within which a goal is reached. The reward is 0, and the step a success, if the goal is reached,
    otherwise -1; the environment's own reward is in ``info["reward"]``. An episode with seed s always has the same
    goal.
    """

    adds = (ACHIEVED, DESIRED)

    def __init__(self, env: Env, settings: Mapping[str, Any]) -> None:
        super().__init__(env, settings)
        self._of, self._random = str(settings.get("of")), np.random.default_rng(0)
        self._tolerance = float(settings.get("tolerance", 0.1))
        self._points = _numbers_in(settings, "points", 2) if "points" in settings else None
        if self._points is None:
            self._low, self._high = (_numbers_in(settings, key, 1) for key in ("low", "high"))
        self._goal, self._reached = np.zeros(0, np.float32), False

    def _begin(self, seed: int | None) -> None:
        self._reached = False
        if seed is not None:
            self._random = np.random.default_rng(seed)
        if self._points is None:
            goal = self._random.uniform(self._low, self._high)
        else:
            goal = self._points[self._random.integers(len(self._points))]
        self._goal = goal.astype(np.float32)

    def _seen(self, obs: Obs) -> Obs:
        achieved = np.asarray(obs[self._of], np.float32)
        if achieved.shape != self._goal.shape:
            raise EnvError(
                f"env_args['wrappers']: goals have {self._goal.size} numbers, but '{self._of}' has shape "
                f"{achieved.shape}"
            )
        return {**obs, ACHIEVED: achieved, DESIRED: self._goal.copy()}

    def goal_rewards(self, achieved: Array, desired: Array) -> Array:
        """Compute rewards (B,) of achieved goals (B, G) for desired goals (B, G)."""
        distances = np.linalg.norm(achieved - desired, axis=-1)
        return np.where(distances <= self._tolerance, 0.0, -1.0).astype(np.float32)

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Apply one action; the reward is 0 if the goal is reached, otherwise -1."""
        obs, reward, terminated, truncated, info = self._env.step(action)
        seen = self._seen(obs)
        own = float(self.goal_rewards(seen[ACHIEVED][None], seen[DESIRED][None])[0])
        self._reached = own == 0.0
        return seen, own, terminated, truncated, {**info, "reward": reward, "success": own == 0.0}

    def is_success(self) -> Mapping[str, bool | None]:
        """Return ``{"task": true}`` if the goal is reached now, else ``{"task": false}``."""
        return {"task": self._reached}


_WRAPPERS: dict[str, type[Wrapper]] = {
    "goals": Goals,
    "skills": Skills,
    "previous_action": PreviousAction,
    "repeated": Repeated,
}


def count_in(settings: Mapping[str, Any], key: str) -> int:
    """Return the whole number ``key`` in a wrapper's settings; raise EnvError if it is missing or out of range."""
    value = settings.get(key)
    if type(value) is not int or not 1 <= value <= _MOST:
        raise EnvError(
            f"env_args['wrappers']: {settings.get('type')} has {key} {value!r}: write a whole number from 1 to {_MOST}"
        )
    return value


def _numbers_in(settings: Mapping[str, Any], key: str, dims: int) -> Array:
    """Return the array ``key`` with ``dims`` axes in a wrapper's settings; raise EnvError if it has other values."""
    try:
        values = np.asarray(settings.get(key), dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.ndim != dims or not values.size or not np.isfinite(values).all():
        raise EnvError(
            f"env_args['wrappers']: {settings.get('type')} has no {key}: write "
            f"{'a list of numbers' if dims == 1 else 'a list of lists of numbers'}"
        )
    return values


def wrappers_in(env_meta: Mapping[str, Any]) -> list[tuple[type[Wrapper], Mapping[str, Any]]]:
    """Return the wrappers of env_args with their settings, the innermost first.

    Raises:
        EnvError: the wrappers cannot be read.
    """
    listed = env_meta.get("wrappers") or []
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise EnvError(f"env_args['wrappers'] is {listed!r}: write a list of objects with 'type'")
    found = []
    for settings in listed:
        kind = settings.get("type") if isinstance(settings, Mapping) else settings
        if not isinstance(kind, str) or kind not in _WRAPPERS:
            raise EnvError(
                f"env_args['wrappers']: there is no wrapper {kind!r}: choose one of {', '.join(_WRAPPERS)}"
            )
        found.append((_WRAPPERS[kind], settings))
    return found


def wrapped(
    env_meta: Mapping[str, Any],
    obs_keys: Sequence[str] | None,
    make: Callable[[Sequence[str] | None], Env],
) -> Env:
    """Make an environment with the wrappers in its env_args.

    Args:
        env_meta: env_args of the environment.
        obs_keys: the observations to return; None returns all.
        make: function that makes the inner environment with the given observation keys.

    Raises:
        EnvError: the wrappers cannot be read.
    """
    wrappers = wrappers_in(env_meta)
    added = {key for kind, _ in wrappers for key in kind.adds}
    read = {str(settings["of"]) for _, settings in wrappers if "of" in settings} - added
    inner = None
    if obs_keys is not None:
        inner = [*(key for key in obs_keys if key not in added), *sorted(read - {*obs_keys})]
    env: Any = make(inner)
    for kind, settings in wrappers:
        env = kind(env, settings)
    return env  # type: ignore[no-any-return]


# ---- construction --------------------------------------------------------------------------------

_TYPES = {1: "robosuite", 2: "gymnasium"}
REAL_ROBOT = 4
ROBOTS_ROOM = "imitate.deploy.robot.robot_env"
"""Module with ``robot_env``. It belongs to a higher layer of the package, so it is imported by name when needed."""


def can_be_made(env_meta: Mapping[str, Any]) -> bool:
    """Return true if the simulator of an environment is supported."""
    return env_meta.get("type") in _TYPES


def is_real(env_meta: Mapping[str, Any]) -> bool:
    """Return True if env_args describe a real robot or no environment at all."""
    return env_meta.get("type") in (REAL_ROBOT, None) or is_robot(env_meta)


def is_robot(env_meta: Mapping[str, Any]) -> bool:
    """Return true for ``robot:NAME``, an environment that is a single robot, in one process."""
    return str(env_meta.get("env_name") or "").startswith(ROBOT)


def is_team(env_meta: Mapping[str, Any]) -> bool:
    """Return true for ``pettingzoo:MODULE``, an environment with several agents."""
    return str(env_meta.get("env_name") or "").startswith(PETTINGZOO)


def check_description(env_meta: Mapping[str, Any]) -> None:
    """Raise EnvError for env_args of an environment that cannot be made here.

    Raises:
        EnvError: the env_args describe a real robot or an unknown simulator, or name no environment.
    """
    kind = env_meta.get("type")
    if is_real(env_meta):
        what = "is 4, a real robot" if kind == REAL_ROBOT else "is missing"
        without = "name a simulated one with"
        if offered("--fqe"):
            without = (
                "without a simulator, `imitate check-deploy CHECKPOINT DEMOS.hdf5` compares a policy with recorded "
                "actions, and `imitate compare FIRST SECOND --robot NAME` two policies on the robot; or name one with"
            )
        raise EnvError(
            f"env_args['type'] {what}, so no environment can be made; {without} "
            "--env module:Name-v0, or a robot with --env robot:NAME (train, dagger, eval, dataset playback), or add it "
            "to the file: imitate dataset set-env FILE --env module:Name-v0"
        )
    if kind not in list(_TYPES):  # the type may be a list, which has no hash
        known = ", ".join(f"{key} ({name})" for key, name in _TYPES.items())
        raise EnvError(
            f"env_args['type'] is {kind!r}; environments that can be made here have {known}; "
            "register another simulator's environment with gymnasium, and write type 2 and env_name "
            "'its_module:Its-id-v0'"
        )
    if "env_name" not in env_meta:
        raise EnvError("env_args has no 'env_name': add the environment's name")


def make_env(
    env_meta: dict[str, Any],
    *,
    obs_keys: Sequence[str] | None = None,
    render: bool = False,
    camera_names: Sequence[str] | None = None,
    camera_size: Size | Mapping[str, Size] | None = None,
    team: bool = False,
) -> Env:
    """Make the environment that ``env_meta``, the ``env_args`` of a demonstration file, describes.

    Args:
        env_meta: ``env_name``, ``type`` (1 robosuite, 2 gymnasium), ``env_kwargs`` and, optionally, ``env_version``;
            descriptions of older robosuite versions are translated, which is logged. ``robot:NAME`` is a robot,
            ``pettingzoo:MODULE`` an environment with several agents (:mod:`imitate.envs.env`). ``reward_parts`` is true
            if the environment returns vectors of rewards; ``wrappers`` lists wrappers (:mod:`imitate.envs.make`).
        obs_keys: the observations to return; None returns all.
        render: true if ``render`` will be called.
        camera_names: cameras to observe (robosuite); None takes the cameras that ``obs_keys`` name.
        camera_size: side of observed images in pixels, or (height, width), or one of these by camera.
        team: true if the caller can handle several agents, by means of :func:`imitate.envs.env.lanes_of`.

    Raises:
        EnvError: the env_args are invalid, name a module that is not trusted (:mod:`imitate.system.trust`), or their
            simulator is not installed.
    """
    if env_meta.get("wrappers"):
        if is_robot(env_meta) or is_team(env_meta):
            raise EnvError(
                f"{env_meta['env_name']}: wrappers work only for a simulated environment with one agent: leave them "
                "out"
            )
        inner = {key: value for key, value in env_meta.items() if key != "wrappers"}
        make = partial(
            make_env, inner, render=render, camera_names=camera_names, camera_size=camera_size
        )
        return wrapped(env_meta, obs_keys, lambda keys: make(obs_keys=keys))
    kind = env_meta.get("type")
    if is_robot(env_meta):
        check_trusted(env_meta)
        return cast(Env, import_module(ROBOTS_ROOM).robot_env(env_meta, obs_keys))
    check_description(env_meta)
    check_trusted(env_meta)
    if kind == ROBOSUITE:
        env_meta = fitted(env_meta)
    name, kwargs = str(env_meta["env_name"]), dict(env_meta.get("env_kwargs") or {})
    if (
        kind == ROBOSUITE
    ):  # imported here, because simulators are optional and take seconds to import
        from imitate.envs.robosuite_env import RobosuiteEnv

        return RobosuiteEnv(
            name,
            kwargs,
            obs_keys=obs_keys,
            render=render,
            camera_names=camera_names,
            camera_size=camera_size,
        )
    if is_team(env_meta):
        if not team:
            raise EnvError(
                f"{name} has several agents, which only online training, imitate eval, check-env and check-algo can "
                "handle: use one of these commands, or an environment with one agent"
            )
        from imitate.envs.pettingzoo_env import PettingZooEnv

        return cast(Env, PettingZooEnv(name, kwargs, obs_keys=obs_keys, render=render))
    from imitate.envs.gymnasium_env import GymnasiumEnv

    return GymnasiumEnv(
        name,
        kwargs,
        obs_keys=obs_keys,
        render=render,
        reward_parts=bool(env_meta.get("reward_parts")),
    )
