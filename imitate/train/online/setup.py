"""Setup of online RL: everything that training in an environment needs, built from the configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from imitate.algo.base.allocation import AllocationLimit
from imitate.algo.base.factory import algo_factory
from imitate.algo.base.relative import check_relative
from imitate.algo.slots.reward_weights import sources_of
from imitate.config import Config
from imitate.config.observation import AUTO
from imitate.data.batches.build import training_sources
from imitate.data.shards.data_files import DataFiles, data_files
from imitate.envs import make_env
from imitate.envs.env import Env, first_observation, num_agents
from imitate.envs.make import is_robot
from imitate.envs.migration import fitted
from imitate.errors import ConfigError, EnvError
from imitate.evaluate.environments import GYMNASIUM, laid_over, named_robot
from imitate.models.preprocess import Preprocess
from imitate.system.images import image_type
from imitate.system.text import ACTION_MASK, MASK, PART
from imitate.system.trust import ROBOT, check_trusted
from imitate.train.devices import with_precision
from imitate.train.observations import observed_of, with_auto
from imitate.train.online.curriculum import stage_metas
from imitate.train.online.goals import check_hindsight, stored_keys, subgoals
from imitate.train.online.normalization import fixed_rewards, with_rewards_as_before
from imitate.train.online.steps import Array
from imitate.train.setup import Setup, package_versions
from imitate.train.start import adopt_frozen, start_from
from imitate.train.training_data import FileShare, shares_of


@dataclass(frozen=True)
class EnvSpec:
    """Observations and actions of an environment.

    Attributes:
        meta: its env_args.
        obs_shapes: shape of one step of each observation that the policy sees.
        image_types: data type of each image.
        stored_shapes: shapes of all observations that a replay buffer keeps.
        image_keys: keys of uint8 images.
        low, high: (A,) limits of actions.
        num_choices: number of discrete choices, one-hot in the first values of an action; 0 if actions are continuous.
        gives_mask: true if it has an observation ``action_mask``, which marks the allowed choices.
        num_agents: number of agents in one copy; each agent is one lane.
    """

    meta: dict[str, Any]
    obs_shapes: dict[str, tuple[int, ...]]
    image_types: dict[str, str]
    stored_shapes: dict[str, tuple[int, ...]]
    image_keys: tuple[str, ...]
    low: Array
    high: Array
    num_choices: int
    gives_mask: bool = False
    num_agents: int = 1

    @property
    def action_dim(self) -> int:
        """Size A of an action."""
        return len(self.low)

    @property
    def num_continuous(self) -> int:
        """Number of continuous values of an action, besides its discrete choice."""
        return self.action_dim - self.num_choices


@dataclass(frozen=True)
class OnlineSetup(Setup):
    """A :class:`Setup` without a dataset, and the environment to learn in.

    Attributes:
        env: observations and actions of the environment.
        make: makes a copy of the environment (of the last stage if there is a curriculum).
        stages: env_args of the stages of a curriculum; empty without one.
    """

    env: EnvSpec
    make: Callable[[], Env]
    stages: tuple[dict[str, Any], ...] = ()

    def at_stage(self, meta: dict[str, Any]) -> OnlineSetup:
        """Return the same setup for another stage of the environment."""
        keys = stored_keys(self.config)
        return replace(self, make=functools.partial(make_env, meta, obs_keys=keys, team=True))

    @property
    def num_lanes(self) -> int:
        """Number of lanes in all copies of the environment."""
        return self.config.train.online.num_envs * self.env.num_agents


def online_env_meta(config: Config, files: DataFiles | None = None) -> dict[str, Any]:
    """Return the env_args that ``train.online.env`` names.

    Args:
        config: resolved configuration.
        files: its data files; None to open them here and close them at the end.

    Raises:
        ConfigError: the key is null and there are no demonstrations.
    """
    wanted = config.train.online.env
    meta: dict[str, Any]
    if isinstance(wanted, str) and wanted.startswith(ROBOT):
        meta = named_robot(wanted)
    elif isinstance(wanted, str):
        meta = {"env_name": wanted, "type": GYMNASIUM, "env_kwargs": {}}
    elif wanted is not None:
        meta = wanted.to_dict()
    elif config.train.data:
        with data_files(config, files) as files:
            meta = files.outline(config.train.data[0].path).env_meta
    else:
        raise ConfigError(
            "train.online.env: is null, and there are no demonstrations: name an "
            "environment, such as 'Pendulum-v1'"
        )
    meta = laid_over(meta, config.experiment.env_meta_update_dict.to_dict())
    if any(source.startswith(PART) for source in sources_of(config.algo)):
        meta = {**meta, "reward_parts": True}
    if config.train.online.wrappers:
        discount = config.algo.get("discount", 1.0)
        listed = [
            each.described(discount, subgoals(config, each.of, files) if each.needs_points else ())
            for each in config.train.online.wrappers
        ]
        meta = {**meta, "wrappers": listed}
    check_trusted(meta)
    return fitted(meta)


def look_at(meta: dict[str, Any], config: Config) -> EnvSpec:
    """Make the environment once and read its observations and actions.

    Raises:
        EnvError: an observation of the configuration is missing.
    """
    keys = stored_keys(config)
    env = make_env(meta, obs_keys=keys, team=True)
    try:
        obs = first_observation(env)
        meta = env.serialize() if is_robot(meta) else meta  # adds the robot's own control rate
        for key in keys:
            if key not in obs:
                raise EnvError(
                    f"observation.modalities: {env.name} has no observation '{key}', but {', '.join(obs)}"
                )
        return EnvSpec(
            meta=meta,
            obs_shapes={key: np.shape(obs[key]) for key in config.all_obs_keys},
            image_types={
                key: image_type(np.asarray(obs[key]).dtype)
                for key in config.all_obs_keys
                if np.ndim(obs[key]) == 3
            },
            stored_shapes={key: np.shape(obs[key]) for key in keys},
            image_keys=tuple(key for key in keys if np.asarray(obs[key]).dtype == np.uint8),
            low=np.asarray(env.action_low, dtype=np.float64),
            high=np.asarray(env.action_high, dtype=np.float64),
            num_choices=int(getattr(env, "num_choices", 0)),
            gives_mask=bool(getattr(env, "gives_mask", False)),
            num_agents=num_agents(env),
        )
    finally:
        env.close()


def _first_look(meta: dict[str, Any], config: Config) -> EnvSpec:
    """Return observations and actions of an environment; report unsupported actions before missing observations.

    Raises:
        ConfigError: the algorithm does not support the actions.
        EnvError: an observation of the configuration is missing.
    """
    try:
        return look_at(meta, config)
    except EnvError:
        if not is_robot(meta):
            env = make_env(meta, team=True)
            choices, size = int(getattr(env, "num_choices", 0)), len(env.action_low)
            env.close()
            _with_choices(config, meta, choices, size - choices)
        raise


def build_online(
    config: Config,
    device: torch.device,
    *,
    resumed: bool = False,
    stored: int | None = None,
    files: DataFiles | None = None,
) -> OnlineSetup:
    """Make the environment once, read its observations and actions, and build the algorithm for them.

    Args:
        config: resolved configuration.
        device: device of the algorithm's networks.
        resumed: true if weights will come from a checkpoint of the run.
        stored: number of weights in that checkpoint, which limit the size of the networks; None if unknown.
        files: its data files; None to open them here and close them at the end.
    """
    with data_files(config, files) as files:
        return _built(config, device, files, resumed=resumed, stored=stored)


def with_own_observations(config: Config, files: DataFiles | None = None) -> Config:
    """Return the configuration with ``"auto"`` replaced by the environment's observations if no data replaced it."""
    if AUTO not in config.all_obs_keys:
        return config
    meta = online_env_meta(config, files)
    env = make_env(meta, team=True)
    try:
        forms = {
            key: (np.shape(value), np.asarray(value).dtype)
            for key, value in first_observation(env).items()
            if key != ACTION_MASK
        }
    finally:
        env.close()
    return with_auto(config, observed_of([(str(meta["env_name"]), forms)]))


def _built(
    config: Config, device: torch.device, files: DataFiles, *, resumed: bool, stored: int | None
) -> OnlineSetup:
    if config.experiment.epoch_every_n_steps is None:
        raise ConfigError(
            "experiment.epoch_every_n_steps: is null, but there is no pass over data: "
            "set the environment steps of an epoch"
        )
    horizon = config.train.online.horizon or config.experiment.rollout.horizon
    if horizon is not None:
        values = config.algo.values_from_horizon(horizon)
        config = config.with_overrides({f"algo.{key}": value for key, value in values.items()})
    if not resumed:
        config = with_own_observations(with_rewards_as_before(config), files)
    check_hindsight(config)
    _check_demonstrations(config)
    meta = online_env_meta(config, files)
    _check_robot(meta, config)
    stages = stage_metas(config, meta)
    if stages:  # an evaluation must end within its stage, so none runs in the background
        meta = stages[-1]
        config = config.with_overrides({"experiment.rollout.background": False})
    env = _first_look(meta, config)
    meta = env.meta
    masked = config.observation.mask_key() or ACTION_MASK in config.all_obs_keys
    if env.gives_mask and not masked and not resumed:
        config = config.with_overrides({f"observation.modalities.obs.{MASK}": [ACTION_MASK]})
        env = look_at(meta, config)
    choices = (env.num_choices, env.num_continuous)
    config = with_precision(_with_choices(config, meta, *choices), device)
    _check_mask(config, env)
    _check_stages(stages, env, config)
    preprocess = _preprocess(config, env)
    check_relative(config, preprocess)
    with nullcontext() if stored is None else AllocationLimit(stored):
        algo = algo_factory(
            config.algo_name, config, preprocess.obs_shapes, preprocess.action_dim, device
        )
    algo.preprocess = preprocess.to(device)
    if algo.experience == "rollout" and (meta.get("env_kwargs") or {}).get("take_over"):
        raise ConfigError(
            f"algo_name: {config.algo_name} learns from its own actions alone, not from those "
            "of a person who takes over: choose an algorithm with a replay buffer (rlpd, sac), or omit take_over"
        )
    if algo.experience == "replay":
        fixed_rewards(config)  # raises an error before the run folder is made
    if not resumed:
        adopt_frozen(algo, meta)
        start_from(algo, config.experiment)
    return OnlineSetup(
        config=config,
        device=device,
        train_set=None,
        valid_set=None,
        algo=algo,
        env_metas=(meta,),
        language=None,
        shape_metadata={
            "raw_shapes": {key: list(shape) for key, shape in env.obs_shapes.items()},
            "action_dims": {"actions": env.action_dim},
            "action_low": env.low,
            "action_high": env.high,
            "control_freq": (meta.get("env_kwargs") or {}).get("control_freq"),
        },
        provenance={"datasets": [], "packages": package_versions()},
        shares=_shares(config, files),
        env=env,
        stages=stages,
        make=functools.partial(make_env, meta, obs_keys=stored_keys(config), team=True),
    )


def _shares(config: Config, files: DataFiles) -> tuple[FileShare, ...]:
    """Return the parts of the files that are demonstrations."""
    if not config.train.data:
        return ()
    return shares_of(config, training_sources(config, files), files)


def _check_demonstrations(config: Config) -> None:
    online = config.train.online
    if (online.demo_ratio > 0 or online.pretrain_updates > 0) and not config.train.data:
        raise ConfigError(
            "train.online: demo_ratio and pretrain_updates need demonstrations: name them in train.data or by --dataset"
        )


def _check_robot(meta: dict[str, Any], config: Config) -> None:
    """Refuse settings that need several copies of the robot, or that may interrupt it in any step.

    Raises:
        ConfigError: such a setting is chosen; the message names its key and value.
    """
    online = config.train.online
    if not is_robot(meta):
        return
    name = meta_name(meta)
    for key, value, wanted in (
        ("num_envs", online.num_envs, 1),
        ("num_workers", online.num_workers, 0),
        ("hindsight.enabled", online.hindsight.enabled, False),
    ):
        if value != wanted:
            raise ConfigError(
                f"train.online.{key}: {value}, but {name} is a single robot, controlled by "
                f"this process: set it to {wanted}"
            )


def _with_choices(
    config: Config, meta: dict[str, Any], num_choices: int, num_continuous: int
) -> Config:
    """Set the number of discrete choices in the configuration, for algorithms with such a key.

    Args:
        config: the configuration.
        meta: env_args of the environment.
        num_choices: number of choices of its actions; 0 if actions are continuous.
        num_continuous: number of continuous values of its actions.

    Raises:
        ConfigError: the algorithm does not support the actions, or the configuration has another number of choices.
    """
    name = meta_name(meta)
    taken = f"{name} takes one of {num_choices} choices"
    if "num_choices" not in config.algo:
        if num_choices:
            raise ConfigError(
                f"algo_name: {config.algo_name} needs continuous actions, but {taken}: choose ppo, dqn or sac"
            )
        return config
    seen = {"algo.num_choices": num_choices}
    if "num_continuous" in config.algo:
        seen["algo.num_continuous"] = num_continuous
    elif num_choices and num_continuous:
        raise ConfigError(
            f"algo_name: {config.algo_name} needs either discrete or continuous actions, but {taken} and "
            f"{num_continuous} numbers: choose sac"
        )
    for key, number in seen.items():
        given = config.algo[key.removeprefix("algo.")]
        if given not in (None, number):
            raise ConfigError(
                f"{key}: {given}, but {name} has {number}: leave it out, or set it to {number}"
            )
    return config.with_overrides(seen)


def _check_stages(stages: tuple[dict[str, Any], ...], env: EnvSpec, config: Config) -> None:
    """Raise ConfigError if a stage of a curriculum has other observations or actions than the last one."""
    for number, meta in enumerate(stages[:-1], 1):
        stage = look_at(meta, config)
        for name in ("obs_shapes", "num_choices", "num_agents", "low", "high"):
            found, wanted = getattr(stage, name), getattr(env, name)
            if not np.array_equal(found, wanted) if name in ("low", "high") else found != wanted:
                raise ConfigError(
                    f"train.online.curriculum: stage {number} of {len(stages)} has {name} {found}, the last one "
                    f"{wanted}: the policy needs the same in all stages"
                )


def _check_mask(config: Config, env: EnvSpec) -> None:
    """Raise ConfigError if the action mask does not fit the actions."""
    key = config.observation.mask_key()
    if key is None:
        return
    shape = env.obs_shapes[key]
    if not env.num_choices:
        raise ConfigError(
            f"observation.modalities.obs.{MASK}: '{key}' masks choices, but the actions of {meta_name(env.meta)} are "
            "continuous: omit it"
        )
    if shape != (env.num_choices,):
        raise ConfigError(
            f"observation.modalities.obs.{MASK}: '{key}' of {meta_name(env.meta)} has shape {shape}, wanted one number "
            f"for each of its {env.num_choices} choices, ({env.num_choices},)"
        )


def meta_name(meta: dict[str, Any]) -> str:
    """Return the environment's name."""
    return str(meta.get("env_name", "?"))


def _preprocess(config: Config, env: EnvSpec) -> Preprocess:
    """Build a Preprocess that scales continuous actions to [-1, 1] by their limits and leaves the rest unchanged."""
    affine: dict[str, Any] = {}
    bounded = bool(np.isfinite(env.low).all() and np.isfinite(env.high).all())
    if bounded and env.num_continuous:
        middle, half = (env.high + env.low) / 2, (env.high - env.low) / 2
        middle[: env.num_choices], half[: env.num_choices] = 0.0, 1.0
        affine["actions"] = (torch.as_tensor(middle), torch.as_tensor(half))
    return Preprocess(
        env.obs_shapes,
        config.observation.modalities_of_all(),
        {"actions": env.action_dim},
        action_affine=affine,
        obs_clip=config.train.obs_clip,
        steps=[entry.to_dict() for entry in config.train.preprocess],
        image_types=env.image_types,
    )
