"""Adapter from any gymnasium environment to the interface :class:`~imitate.envs.env.Env`.

* Observations: a Box becomes ``{"flat": vector}``, or ``{"image": ...}`` for images (H, W, 3) of uint8, and for larger
  ones with 1, 3 or 4 channels, which are transposed to (H, W, C); other layouts of images are refused. A Dict stays
  unchanged, a Dict within it becomes ``outer_inner``; Discrete becomes one-hot.
* Actions: a Box is flattened, in its own range (no rescaling to [-1, 1]: data contain the environment's own actions).
  Discrete(n) has ``action_dim`` n, limits 0 and 1, and takes either n scores, of which the largest is the choice
  (one-hot in demonstrations), or one index, as a scalar or of shape (1,). A Tuple or a Dict of one Discrete(n) and one
  Box, in any order, takes a vector: n scores, then the numbers of the Box.
* Masks: the allowed choices of a discrete action are the observation ``action_mask`` (C,) of 0 and 1, from a Dict or
  from ``info["action_mask"]`` of reset and step.
* Success: ``info["success"]`` or ``info["is_success"]`` of the latest step, or an empty ``info["tasks_to_complete"]``;
  None, which is unknown, if the environment reports none of them.
* States: for MuJoCo environments (time, qpos, qvel); an environment with ``get_sim_state() -> (S,)`` and
  ``set_sim_state((S,)) -> observation`` has its own.
* Frames: ``render()``, resized to the requested size; or ``draw(camera_name, height, width)`` if it exists.
"""

import copy
import inspect
import math
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from imitate.envs.env import Array, Obs, one_reward, success_in
from imitate.envs.rendering import load_triton, prepare_gl, telling_gl_faults
from imitate.envs.spaces import ActionSpace, ObservationSpace
from imitate.errors import EnvError, nearest
from imitate.system.extras import install_command
from imitate.system.text import PART
from imitate.system.trust import EXTRAS, module_of_env

ENV_TYPE = 2
ADAPTERS = {
    "gym_aloha": "imitate.envs.worlds.aloha",
    "metaworld": "imitate.envs.worlds.metaworld",
    "ogbench": "imitate.envs.worlds.ogbench",
}
"""Adapter modules that register environments, by the module in an environment's name that they replace."""
_REFUSALS = (TypeError, ValueError, LookupError, AttributeError, AssertionError, OSError)
"""Errors that constructors raise for invalid arguments."""


def check_registered(name: str) -> None:
    """Check an environment's name before a worker process makes the environment.

    Raises:
        EnvError: the module before the ``:`` is not installed, or gymnasium has no such environment. The message names
            the package to install, or the nearest name.
    """
    module = name.rpartition(":")[0]
    if module:
        top = module.partition(".")[0]
        if find_spec(top) is None:
            raise _no_module(name, module, f"No module named '{top}'")
        return
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise _not_registered(name, error) from error


def _not_registered(name: str, error: Exception) -> EnvError:
    module, colon, own = name.rpartition(":")
    if module and hasattr(sys.modules.get(module), own):
        near = (
            f"register it in {module}: gymnasium.register(id='{own}-v0', entry_point='{name}'), "
            f"and name it {module}:{own}-v0"
        )
    else:
        near = nearest(own, gymnasium.registry)[:200].replace("mean '", f"mean '{module}{colon}")
    if not module and not near.startswith("did you mean"):
        near = f"name it with the module that registers it, as in my_package:{own}"
    reason = _first_line(error).partition(" Did you mean")[0]
    return EnvError(f"gymnasium has no environment '{name}' ({reason}); {near}")


def _no_module(name: str, module: str, reason: object) -> EnvError:
    extra = EXTRAS.get(module)
    here = module.partition(".")[0]
    if extra:
        what = install_command(extra)
    elif f"'{here}'" in str(reason) and (Path(f"{here}.py").is_file() or Path(here).is_dir()):
        what = (
            f"{here} is in this folder, which Python does not search: install it, "
            "or put PYTHONPATH=. before the command"
        )
    else:
        what = "install it, or correct the name"
    return EnvError(f"{name}: cannot be imported ({reason}); do: {what}")


class GymnasiumEnv:
    """A gymnasium environment, made by its registered name.

    Args:
        env_name: registered id, such as ``Pendulum-v1``; ``module:id`` imports the module first, if it is trusted.
        env_kwargs: keyword arguments for ``gymnasium.make``.
        obs_keys: observation keys to return; None returns all.
        render: true if ``render`` will be called.
        reward_parts: true if the environment's rewards are vectors. Their sum is then the reward, and their numbers are
            ``info["reward:0"]``, ``info["reward:1"]``, ...

    Attributes:
        num_choices: number of discrete choices in the first values of an action; 0 if actions are continuous.
    """

    def __init__(
        self,
        env_name: str,
        env_kwargs: dict[str, Any] | None = None,
        *,
        obs_keys: Sequence[str] | None = None,
        render: bool = False,
        reward_parts: bool = False,
    ) -> None:
        self.name, self._reward_parts = env_name, reward_parts
        self._kwargs = {
            key: value for key, value in (env_kwargs or {}).items() if key != "render_mode"
        }
        self._can_render = render
        self._env = self._make()
        # Stored, because reading spaces through gymnasium's wrappers takes as long as a step of a small environment.
        self._seen = ObservationSpace(env_name, self._env.observation_space, obs_keys)
        if self._seen.has_images:
            load_triton()
        self._actions = ActionSpace(env_name, self._env.action_space)
        self.action_low, self.action_high = self._actions.low, self._actions.high
        self.action_dim, self.num_choices = self._actions.dim, self._actions.num_choices
        self._info: dict[str, Any] = {}
        self._goal: Any = None

    def _make(self) -> Any:
        with telling_gl_faults():
            return self._made()

    def _made(self) -> Any:
        try:
            module, _, env_id = self.name.rpartition(":")
            if module:
                module_of_env(self.name, ADAPTERS.get(module))
            spec = gymnasium.spec(env_id)
            if self._can_render:
                self._check_draws(spec)
                load_triton()
            if self._can_render and "mujoco" in str(spec.entry_point).lower():
                prepare_gl()
            mode: dict[str, Any] = {"render_mode": "rgb_array"} if self._can_render else {}
            return gymnasium.make(env_id, **mode, **copy.deepcopy(self._kwargs))
        except gymnasium.error.DependencyNotInstalled as error:
            raise EnvError(f"{self.name}: {_first_line(error)}") from error
        except ImportError as error:
            raise _no_module(self.name, module, error) from error
        except gymnasium.error.Error as error:
            raise _not_registered(self.name, error) from error
        except _REFUSALS as error:
            is_own = not self._kwargs or (module and module not in EXTRAS)
            if is_own and not isinstance(error, TypeError):
                raise  # the environment's author needs the traceback
            raise EnvError(
                f"{self.name} does not accept its env_kwargs: {_first_line(error)}; correct env_args['env_kwargs']"
            ) from error

    def _check_draws(self, spec: Any) -> None:
        """Raise EnvError if the environment has no mode ``rgb_array`` and its constructor takes no ``render_mode``.

        Raises:
            EnvError: the environment cannot render.
        """
        point = spec.entry_point
        creator = load_env_creator(point) if isinstance(point, str) else point
        metadata = getattr(creator, "metadata", {})
        modes = (
            metadata.get("render_modes", ()) if isinstance(metadata, Mapping) else ("rgb_array",)
        )
        if "rgb_array" not in modes and not takes_keyword(creator, "render_mode"):
            raise EnvError(
                f"{self.name} cannot render: omit the video, or support render_mode='rgb_array' in it "
                "(its metadata['render_modes'], the constructor's argument, and render())"
            )

    @property
    def unwrapped(self) -> gymnasium.Env[Any, Any]:
        """The innermost environment, without gymnasium's wrappers."""
        inner: gymnasium.Env[Any, Any] = self._env.unwrapped
        return inner

    # ------------------------------------------------------------------ episodes

    def reset(self, *, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode; return observation and info, which contains ``success``."""
        raw, info = self._env.reset(seed=seed)
        self._info = dict(info)
        self._goal = self._info.get("goal")
        return self._seen.observe(raw, self._info), self._with_success()

    def step(self, action: Array) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Apply one action; return observation, reward, terminated, truncated and info, which contains ``success``."""
        raw, reward, terminated, truncated, info = self._env.step(self._actions.native(action))
        if not isinstance(terminated, bool | np.bool_) and math.prod(np.shape(terminated)) > 1:
            raise EnvError(
                f"{self.name}: the environment returns a batch (terminated has shape {tuple(np.shape(terminated))}, "
                f"the reward {tuple(np.shape(reward))}); expected one environment: make it with one copy, such as "
                "num_envs=1 in env_kwargs, and remove the first dimension in a wrapper"
            )
        self._info = dict(info)
        if self._reward_parts:
            parts = np.asarray(reward, dtype=np.float64).reshape(-1)
            self._info |= {f"{PART}{k}": float(part) for k, part in enumerate(parts)}
            reward = parts.sum()
        return (
            self._seen.observe(raw, self._info),
            one_reward(reward, self.name),
            bool(terminated),
            bool(truncated),
            self._with_success(),
        )

    def _with_success(self) -> dict[str, Any]:
        return {**self._info, "success": self._succeeded()}

    def is_success(self) -> dict[str, bool | None]:
        """Return ``{"task": success}`` as the latest ``info`` reports it; None if it is unknown."""
        return {"task": self._succeeded()}

    def _succeeded(self) -> bool | None:
        reported = success_in(self._info)
        if reported is None and "tasks_to_complete" in self._info:  # Franka Kitchen
            return not self._info["tasks_to_complete"]
        return reported

    @property
    def gives_mask(self) -> bool:
        """True if an observation or info has contained ``action_mask``; only valid after the first reset."""
        return self._seen.gives_mask

    # ------------------------------------------------------------------ goals

    def get_goal(self) -> Obs:
        """Return the goal of the running episode, an observation that reset returned as ``info["goal"]``.

        Raises:
            EnvError: the environment gave no goal.
        """
        if self._goal is None:
            raise EnvError(
                f"{self.name}: reset returns no goal, which a goal-conditioned policy needs: put an observation of "
                "the goal into its info['goal']"
            )
        return self._seen.observe(self._goal, {})

    def goal_rewards(self, achieved: Array, desired: Array) -> Array:
        """Compute rewards (B,) of achieved goals (B, G) for desired goals (B, G).

        Raises:
            EnvError: the environment has no goals, or its rewards do not depend on goals alone.
        """
        space = self._env.observation_space
        goal = space.spaces.get("desired_goal") if isinstance(space, spaces.Dict) else None
        if not isinstance(goal, spaces.Box) or not self._env.has_wrapper_attr("compute_reward"):
            raise EnvError(
                f"{self.name}: the environment has no goals: it needs the vectors 'achieved_goal' and 'desired_goal' "
                "among its observations, and compute_reward(achieved_goal, desired_goal, info)"
            )
        pairs = [g.reshape(-1, *goal.shape).astype(goal.dtype) for g in (achieved, desired)]
        try:
            return np.asarray(self._env.get_wrapper_attr("compute_reward")(*pairs, {}))
        except Exception as error:  # an environment may raise any error
            raise EnvError(
                f"{self.name}: compute_reward fails for {len(achieved)} goals at once and an empty info "
                f"({type(error).__name__}: {_first_line(error)})"
            ) from error

    # ------------------------------------------------------------------ states

    def get_state(self) -> dict[str, Any]:
        """Return ``states`` (S,): from the environment's ``get_sim_state()``, or MuJoCo's time, qpos and qvel."""
        inner = self._env.unwrapped
        if hasattr(inner, "get_sim_state"):
            return {"states": np.asarray(inner.get_sim_state(), dtype=np.float64)}
        _, data = self._simulator()
        return {"states": np.concatenate([[data.time], data.qpos, data.qvel])}

    def reset_to(self, state: dict[str, Any]) -> Obs:
        """Restore a state and start an episode from it; needs a MuJoCo environment or ``set_sim_state``."""
        inner = self._env.unwrapped
        has_own = hasattr(inner, "set_sim_state")
        if not has_own:
            self._simulator()  # raise an error before anything is reset
        self.reset()
        expected = self.get_state()["states"].shape
        states = np.asarray(state["states"], dtype=np.float64)
        if states.shape != expected:
            raise EnvError(
                f"{self.name}: the recorded state has shape {states.shape}, but the environment's has {expected}; use "
                "the environment of the recording"
            )
        if has_own:
            return self._seen.observe(inner.set_sim_state(states), self._info)
        model, data = self._simulator()
        data.time = states[0]
        data.qpos[:] = states[1 : 1 + model.nq]
        data.qvel[:] = states[1 + model.nq :]
        import mujoco

        mujoco.mj_forward(model, data)
        return self._seen.observe(self._env.unwrapped._get_obs(), self._info)

    def _simulator(self) -> tuple[Any, Any]:
        inner = self._env.unwrapped
        model, data = getattr(inner, "model", None), getattr(inner, "data", None)
        observes = _takes(getattr(inner, "_get_obs", None))
        if not (hasattr(model, "nq") and hasattr(data, "qpos") and observes):
            raise EnvError(
                f"{self.name}: the state of this environment can be neither read nor set, because it is not a MuJoCo "
                "environment: play back actions instead of states"
            )
        return model, data

    # ------------------------------------------------------------------ the rest

    def render(
        self, *, height: int = 256, width: int = 256, camera_name: str | None = None
    ) -> Array:
        """Draw one frame, resized to the requested size by repeating or dropping pixels."""
        if not self._can_render:
            raise EnvError(
                f"{self.name}: the environment was made without a renderer: make it with render=True"
            )
        inner = self._env.unwrapped
        try:
            asked = {"camera_name": camera_name, "height": height, "width": width}
            draw: Any = getattr(inner, "draw", None)
            if _takes(draw, **asked):  # an environment may have another attribute of this name
                return np.asarray(draw(**asked), dtype=np.uint8)
            frame = np.asarray(self._env.render())
        except gymnasium.error.DependencyNotInstalled as error:
            raise EnvError(f"{self.name}: {_first_line(error)}") from error
        rows = np.arange(height) * frame.shape[0] // height
        columns = np.arange(width) * frame.shape[1] // width
        return np.ascontiguousarray(frame[rows][:, columns], dtype=np.uint8)

    def serialize(self) -> dict[str, Any]:
        """Return the ``env_args`` of a demonstration file."""
        return {
            "env_name": self.name,
            "env_version": gymnasium.__version__,
            "type": ENV_TYPE,
            "env_kwargs": copy.deepcopy(self._kwargs),
            **({"reward_parts": True} if self._reward_parts else {}),
        }

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _takes(function: Any, **arguments: Any) -> bool:
    """Return True for a function that takes exactly these arguments."""
    try:
        inspect.signature(function).bind(**arguments)
    except (TypeError, ValueError):  # not a function, or one with other arguments
        return False
    return True


def takes_keyword(function: Any, name: str) -> bool:
    """Return False for a function that does not take this keyword argument."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # the signature is unknown, such as for a builtin
        return True
    return any(one.name == name or one.kind is one.VAR_KEYWORD for one in found)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
