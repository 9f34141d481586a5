"""Choice of environments, for a training and for every command, their trial before a training, and their opponents.

One rule: ``--env`` wins, then ``experiment.env_meta_update_dict``, then the ``env_args`` of the file or checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imitate.envs.cameras import sizes_of
from imitate.envs.env import Array, Obs, lanes_of, watched
from imitate.envs.experts import EXPERTS
from imitate.envs.make import REAL_ROBOT, can_be_made, is_robot, make_env
from imitate.envs.migration import ROBOSUITE, fitted
from imitate.errors import ConfigError, EnvError, UserError
from imitate.system.instructions import LANGUAGE_KEY
from imitate.system.plain_files import read_json
from imitate.system.processes import Beat
from imitate.system.recognition import recognise
from imitate.system.trust import (
    RANDOM,
    ROBOT,
    SIMULATED,
    Named,
    check_trusted,
    in_cluster,
    in_networks,
    in_warmup,
    is_simulated,
    refuse,
    trust,
    trust_env,
    unknown,
    untrusted,
)
from imitate.system.user_code import error_words

if TYPE_CHECKING:
    from imitate.config import Config, DatasetConfig
    from imitate.data.shards.data_files import DataFiles
    from imitate.envs.pettingzoo_env import Opponent
    from imitate.envs.spaces import ActionSpace
    from imitate.policy.rollout_policy import RolloutPolicy

NO_ROLLOUTS = "--set experiment.rollout.enabled=false"

GYMNASIUM = 2


GYMNASIUM_ID = re.compile(r":|-v\d+$")
"""Names that only gymnasium uses: ``module:Name-v0``, ``Name-v0``."""


def named_env(text: str, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the env_args of ``--env``.

    Args:
        text: a gymnasium name (``module:Name-v0`` imports the module), a robosuite task, a robot (``robot:NAME``), a
            JSON file of env_args, or an HDF5 file or LeRobot folder of demonstrations, whose environment is used.
        own: env_args of the data or of the checkpoint; another environment of the same simulator keeps their arguments.

    Raises:
        ConfigError: a file contains no env_args.
        EnvError: a file names a module that is not trusted.
    """
    own, path = own or {}, Path(text).expanduser()
    if text.startswith(ROBOT):
        return named_robot(text, own)
    if path.suffix in (".hdf5", ".h5") or (path.is_dir() and recognise(path) is not None):
        from imitate.data.shards.data_files import DataFiles

        with DataFiles() as files:
            return _of_a_file(files.outline(path).env_meta)
    if path.suffix == ".json":
        return _of_a_file(_env_args_in(path))
    kind = GYMNASIUM
    if not GYMNASIUM_ID.search(text) and own.get("type") != GYMNASIUM:
        kind = ROBOSUITE if own.get("type") == ROBOSUITE or text in EXPERTS else GYMNASIUM
    if own.get("type") == kind:
        return {**own, "env_name": text}
    kept = {"wrappers": own["wrappers"]} if "wrappers" in own else {}
    return {"env_name": text, "type": kind, "env_kwargs": {}, **kept}


def named_robot(text: str, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the env_args of ``robot:NAME``.

    Args:
        text: the name; ``robot:sim`` runs ``own`` in real time, ``robot:sim:ENV`` another environment.
        own: env_args of the data or of the checkpoint; returned if they describe the same robot.

    Raises:
        ConfigError: ``robot:sim`` without an environment.
    """
    own = own or {}
    if own.get("env_name") == text:
        return dict(own)
    kwargs: dict[str, Any] = {}
    rate = (own.get("env_kwargs") or {}).get("control_freq")
    if is_simulated(text):
        env = text.removeprefix(SIMULATED).removeprefix(":")
        simulated = named_env(env, own) if env else dict(own)
        if simulated.get("type") in (REAL_ROBOT, None):
            raise ConfigError(f"{text}: no environment given: name one, such as {SIMULATED}:Lift")
        text, kwargs["options"] = f"{SIMULATED}:{simulated['env_name']}", {"env_meta": simulated}
        rate = (simulated.get("env_kwargs") or {}).get("control_freq")
    if rate is not None:
        kwargs["control_freq"] = rate
    return {"env_name": text, "type": REAL_ROBOT, "env_kwargs": kwargs}


def at_rate(env_meta: Mapping[str, Any], rate_hz: float | None) -> dict[str, Any]:
    """Return env_args of a robot with the control rate of its data if they contain none; return others unchanged."""
    kwargs = env_meta.get("env_kwargs") or {}
    if not is_robot(env_meta) or rate_hz is None or kwargs.get("control_freq") is not None:
        return dict(env_meta)
    return {**env_meta, "env_kwargs": {**kwargs, "control_freq": rate_hz}}


def laid_over(own: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """Apply changes to env_args; arguments of one simulator are not passed to another."""
    from imitate.config.section import merged

    if update.get("type", own.get("type")) != own.get("type"):
        own = {key: own[key] for key in own if key not in ("env_kwargs", "env_version")}
    return merged(dict(own), dict(update))


def named_env_of(config: Config, text: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the env_args of ``--env``, with a configuration's changes, unless these name an environment themselves."""
    update = config.experiment.env_meta_update_dict.to_dict()
    named = named_env(text, own)
    if "env_name" in update or "type" in update:
        return named
    return laid_over(named, update)


def with_env(config: Config, text: str, files: DataFiles | None = None) -> Config:
    """Return the configuration of a training that uses the environment ``--env``.

    Args:
        config: the configuration, with absolute data paths.
        text: see :func:`named_env`.
        files: the configuration's data files; None to open them here and close them at the end.
    """
    own: Mapping[str, Any] = {}
    rate = None
    if config.train.data:
        from imitate.data.shards.data_files import data_files

        with data_files(config, files) as files:
            outline = files.outline(config.train.data[0].path)
        own, rate = outline.env_meta, outline.control_freq
    named = at_rate(named_env_of(config, text, own), rate)
    changes: dict[str, Any] = {
        "experiment.env_meta_update_dict": named,
        "experiment.env": None,
        "experiment.additional_envs": None,
    }
    online = config.train.online
    if online.enabled and (online.env is not None or not config.train.data):
        changes["train.online.env"] = named
    return config.with_overrides(changes)


def _of_a_file(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the env_args of a file if the user trusts their module; naming the file is not enough."""
    check_trusted(meta)
    return meta


def _env_args_in(path: Path) -> dict[str, Any]:
    try:
        meta = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON ({error}); expected env_args") from error
    if not isinstance(meta, dict):
        raise ConfigError(f"{path}: wanted an object with env_name, type and env_kwargs")
    return meta


def environments(
    config: Config, tasks: Sequence[str] = (), files: DataFiles | None = None
) -> tuple[dict[str, Any], ...]:
    """Return the environments of the files with `eval`, with the configuration's changes, each once.

    Args:
        config: the configuration, with absolute data paths.
        tasks: instructions of a policy that is conditioned on language; each environment is then returned once for
            every instruction in its file that the policy knows.
        files: the configuration's data files; None to open them here and close them at the end.

    Returns:
        the env_args of each environment. If there are several, `key` is a distinct name of each. `lang` is the
        instruction.
    """
    from imitate.data.shards.data_files import data_files

    metas: list[dict[str, Any]] = []
    keys: list[str] = []
    entries = config.train.data or ()
    with data_files(config, files) as files:
        for entry in [entry for entry in entries if entry.eval] or entries[:1]:
            for key, meta in _of_file(entry, config, tasks, files):
                if meta not in metas:
                    metas.append(meta)
                    keys.append(key)
    if len(metas) == 1:
        return tuple(metas)
    return tuple(
        {**meta, "key": key} for meta, key in zip(metas, _distinct(keys, metas), strict=True)
    )


def trust_named(config: Config, env: str | None = None) -> None:
    """Trust the environments and networks named by ``--env`` and by the configuration that the user gives."""
    for named in (env, *_named(config)):
        trust_env(named)
    further = (*in_cluster(config.cluster.on), *_functions(config))
    trust(*(named.name for named in further))


def check_named(config: Config, typed: Iterable[str] = ()) -> None:
    """Check the environments and the cluster of a configuration from a file, such as a checkpoint, before training.

    Args:
        config: the configuration, in which the user's changes are already made.
        typed: the user's changes, as ``key=value``; the environments, functions and cluster that they name are trusted.

    Raises:
        EnvError: the configuration names a module or cluster that the user does not trust.
    """
    _trust_typed(config, typed)
    for named in _named(config):
        check_trusted(_described(named))
    refuse("algo", unknown(_functions(config)))
    check_cluster(config, typed)


def _trust_typed(config: Config, typed: Iterable[str]) -> None:
    """Trust the environments, networks and functions that the user's changes of a configuration name in full."""
    online = config.train.online
    for text in typed:
        key, _, value = (part.strip() for part in text.partition("="))
        if key in ("train.online.env", "experiment.env"):
            named = online.env if key == "train.online.env" else config.experiment.env
            trust_env(named if named is None or isinstance(named, str) else named.to_dict())
        elif key == "train.online.warmup_policy":
            trust(*(found.name for found in in_warmup(online.warmup_policy)))
        elif key.startswith("algo."):
            tree: Any = value
            for part in reversed(key.split(".")[1:]):
                tree = {part: tree}
            trust(*(found.name for found in in_networks(tree)))


def check_cluster(config: Config, typed: Iterable[str] = ()) -> None:
    """Check the cluster of a configuration from a file; see :func:`check_named`."""
    if not any(text.partition("=")[0].strip() in ("cluster", "cluster.on") for text in typed):
        refuse(config.cluster.on, unknown(in_cluster(config.cluster.on)))


def untrusted_in(config: Config) -> list[Named]:
    """Return the names in a configuration that are not in the user's own list."""
    found = [name for env in _named(config) for name in untrusted(_described(env), lasting=True)]
    further = [*in_cluster(config.cluster.on), *_functions(config)]
    return found + unknown(further, lasting=True)


def _functions(config: Config) -> list[Named]:
    """Return the user's own functions and networks that a configuration names."""
    return in_networks(config.algo.to_dict()) + in_warmup(config.train.online.warmup_policy)


def _described(named: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    return named if isinstance(named, Mapping) else {"env_name": named}


def _named(config: Config) -> list[str | dict[str, Any] | None]:
    """Return the environments that a configuration names: ids, env_args, changes of env_args."""
    experiment, online = config.experiment, config.train.online.env
    own = online if online is None or isinstance(online, str) else online.to_dict()
    changes = experiment.env_meta_update_dict.to_dict()
    stages = config.train.online.curriculum.stages
    further = [{"env_kwargs": stage.env_kwargs.to_dict()} for stage in stages]
    return [own, changes, experiment.env, *(experiment.additional_envs or ()), *further]


def _of_file(
    entry: DatasetConfig, config: Config, tasks: Sequence[str], files: DataFiles
) -> list[tuple[str, dict[str, Any]]]:
    """Return name and env_args of each environment that a file names."""
    from imitate.data.formats.base import UNKNOWN_ENV

    experiment = config.experiment
    own_meta = files.outline(entry.path).env_meta
    meta = laid_over(own_meta, experiment.env_meta_update_dict.to_dict())
    found = files.instructions(entry.path, entry.lang) if tasks else set()
    instructions = [task for task in tasks if task in found]
    names = [experiment.env or meta.get("env_name"), *(experiment.additional_envs or ())]
    if experiment.rollout.enabled:
        meta = fitted(meta)
        for name in names:
            if name == UNKNOWN_ENV and meta.get("type") == GYMNASIUM:
                raise EnvError(
                    f"{entry.path}: does not name its environment: add --set experiment.env=NAME; "
                    f"to train without rollouts: {NO_ROLLOUTS}"
                )
            check_trusted({"env_name": name})
    own = entry.key if len(names) == 1 else None
    return [
        (own or str(name), {**meta, "env_name": name, **lang})
        for name in names
        for lang in ([{"lang": task} for task in instructions] or [{}])
    ]


def _distinct(keys: Sequence[str], metas: Sequence[dict[str, Any]]) -> list[str]:
    """Make names distinct by the instruction, or else by a number."""
    names = [
        f"{key}: {meta['lang']}" if keys.count(key) > 1 and "lang" in meta else key
        for key, meta in zip(keys, metas, strict=True)
    ]
    return [
        f"{name} {names[: i + 1].count(name)}" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]


@dataclass(frozen=True)
class EnvTrial:
    """Trial of an environment by one reset and one step; picklable.

    Attributes:
        env_meta: its env_args.
        obs_shapes: shape of one step of each observation that the policy takes, as recorded.
        action_dim: size of the policy's actions.
    """

    env_meta: dict[str, Any]
    obs_shapes: dict[str, tuple[int, ...]]
    action_dim: int

    def play(self, beat: Beat | None = None) -> None:
        """Make the environment, compare it with the data, take a step, close it; ``beat`` receives each call.

        Raises:
            EnvError: the environment cannot be made, fails, or does not fit the data.
        """
        name = str(self.env_meta.get("env_name", "?"))
        try:
            self._play(name, beat)
        except UserError as error:
            raise EnvError(f"{error}; to train without rollouts: {NO_ROLLOUTS}") from error
        except (Exception, SystemExit) as error:  # an environment may raise any exception
            raise EnvError(
                f"environment '{name}' fails ({error_words(error)}); run imitate check-env to see the fault; "
                f"to train without rollouts: {NO_ROLLOUTS}"
            ) from error

    def _play(self, name: str, beat: Beat | None) -> None:
        keys, sizes = tuple(self.obs_shapes), sizes_of(self.obs_shapes)
        env = watched(
            partial(make_env, self.env_meta, obs_keys=keys, camera_size=sizes, team=True),
            beat,
        )
        try:
            lanes = lanes_of(env)
            obs = lanes.reset(seed=0)[0][0]
            self._compare(name, {key: tuple(np.shape(obs[key])) for key in obs}, env.action_dim)
            low, high = np.asarray(env.action_low), np.asarray(env.action_high)
            bounded = np.isfinite(low) & np.isfinite(high)
            middle = np.zeros(len(low))
            middle[bounded] = (low[bounded] + high[bounded]) / 2
            lanes.step(np.tile(middle, (len(lanes.agents), 1)))
        finally:
            env.close()

    def _compare(self, name: str, found: Mapping[str, tuple[int, ...]], action_dim: int) -> None:
        for key, wanted in self.obs_shapes.items():
            if key not in found:
                raise EnvError(
                    f"environment '{name}' gives no observation '{key}', but {', '.join(found)}"
                )
            if found[key] != wanted:
                raise EnvError(
                    f"environment '{name}' gives observation '{key}' of shape {found[key]}, "
                    f"but the data have {wanted}"
                )
        if action_dim != self.action_dim:
            raise EnvError(
                f"environment '{name}' takes actions of {action_dim} numbers, but the data "
                f"have {self.action_dim}"
            )


def trials(
    shapes: Mapping[str, tuple[int, ...]],
    action_dim: int,
    env_metas: Sequence[Mapping[str, Any]],
    *,
    serves_language: bool,
) -> list[EnvTrial]:
    """Make a trial for each environment that a training is evaluated in.

    Args:
        shapes: shapes of the observations of the policy that will act in them, as recorded.
        action_dim: number of action dimensions, as sent to the environment.
        env_metas: env_args of each task; tasks that differ only in ``key`` and ``lang`` share a trial.
        serves_language: true if the policy's instruction comes with the task, not from the environment.
    """
    given = {
        key: shape for key, shape in shapes.items() if not (serves_language and key == LANGUAGE_KEY)
    }
    metas = {
        repr({key: value for key, value in meta.items() if key not in ("key", "lang")}): meta
        for meta in env_metas
    }
    return [EnvTrial(dict(meta), given, action_dim) for meta in metas.values()]


def simulated(env_metas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return only the env_args of environments whose simulator is supported."""
    return [meta for meta in env_metas if can_be_made(meta)]


def opponent_of(policy: str, space: ActionSpace) -> Opponent:
    """Make an opponent for one agent.

    Args:
        policy: path of a checkpoint, or "random" for random actions.
        space: action space of the agent.

    Raises:
        EnvError: there is no such checkpoint, or its actions have another size.
    """
    if policy == RANDOM:
        return RandomOpponent(space)
    if not Path(policy).exists():
        raise EnvError(
            f"env_kwargs['opponents']: there is no checkpoint '{policy}': correct the path, or write '{RANDOM}'"
        )
    from imitate.policy.loading import policy_from_checkpoint

    loaded, _ = policy_from_checkpoint(ckpt_path=policy, device="cpu")
    size = loaded.algo.preprocess.actions.sent_dim
    if size != space.dim:
        raise EnvError(
            f"env_kwargs['opponents']: the policy of {policy} gives actions of {size} numbers, but its agents take "
            f"{space.dim}: name a policy of this environment"
        )
    return PolicyOpponent(loaded)


class PolicyOpponent:
    """Opponent with a fixed policy and its own policy state."""

    def __init__(self, policy: RolloutPolicy) -> None:
        self._policy = policy

    def start_episode(self) -> None:
        """Begin an episode: reset the state of the policy."""
        self._policy.start_episode()

    def __call__(self, obs: Obs) -> Array:
        """Return the policy's action."""
        return self._policy(obs)


class RandomOpponent:
    """Opponent with uniform random actions within the limits; the sequence is the same in each episode."""

    def __init__(self, space: ActionSpace) -> None:
        self._low = np.where(np.isfinite(space.low), space.low, -1.0)
        self._high = np.where(np.isfinite(space.high), space.high, 1.0)
        self._choices = space.num_choices
        self.start_episode()

    def start_episode(self) -> None:
        """Begin an episode: restart the sequence of random numbers."""
        self._rng = np.random.default_rng(0)

    def __call__(self, obs: Obs) -> Array:
        """Return a random action; of discrete choices one that the mask allows."""
        action = self._rng.uniform(self._low, self._high)
        if self._choices and "action_mask" in obs:
            action[: self._choices] -= 2.0 * (np.asarray(obs["action_mask"]) < 0.5)
        return np.asarray(action)
