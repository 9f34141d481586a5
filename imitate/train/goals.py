"""Goal-conditioned online RL: requirements of hindsight relabelling on algorithm and environment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from imitate.config import Config
from imitate.envs.env import Env
from imitate.errors import ConfigError, EnvError
from imitate.online.hindsight import ACHIEVED, DESIRED, GOALS, GoalRewards, Hindsight

SETTING = "train.online.hindsight.enabled"


def stored_keys(config: Config) -> tuple[str, ...]:
    """Return the observations that a replay buffer keeps: the policy's and, for hindsight, the goals."""
    goals = GOALS if config.train.online.hindsight.enabled else ()
    return tuple(sorted({*config.all_obs_keys, *goals}))


def goals_alike(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the key that provides each observation's statistics: desired goals use those of achieved goals."""
    return dict.fromkeys(GOALS, GOALS) if config.train.online.hindsight.enabled else {}


def check_hindsight(config: Config) -> None:
    """Refuse hindsight relabelling if the configuration does not support it.

    Raises:
        ConfigError: the algorithm does not replay single steps, or does not observe the goals.
    """
    if not config.train.online.hindsight.enabled:
        return
    name = config.algo_name
    needs = config.algo.data_needs(config)
    wanted = needs.transitions
    if wanted is None:
        raise ConfigError(
            f"{SETTING}: {name} has no replay buffer: set it to false, or take sac, td3, ddpg "
            "or dqn"
        )
    if wanted.n_step != 1:
        raise ConfigError(
            f"{SETTING}: the rewards of {wanted.n_step} steps in a row were earned on the way to another goal: "
            "set algo.n_step to 1"
        )
    if not needs.environment_rewards or wanted.infinite_horizon:
        raise ConfigError(
            f"{SETTING}: {name} does not learn from the environment's rewards: set it to false"
        )
    if needs.returns is not None:
        raise ConfigError(
            f"{SETTING}: {name} needs returns of whole episodes, which have one goal: set it to false"
        )
    modality = config.observation.modality_of("obs").get(DESIRED)
    if modality != "low_dim":
        seen = "does not observe it" if modality is None else f"has it under {modality}"
        raise ConfigError(
            f"{SETTING}: the policy must observe '{DESIRED}', a vector, but {seen}: name it "
            "in observation.modalities.obs.low_dim"
        )


def make_hindsight(config: Config, env: Env, shapes: Mapping[str, tuple[int, ...]]) -> Hindsight:
    """Build hindsight in an environment, with a copy of it that computes rewards.

    Args:
        config: checked by :func:`check_hindsight`.
        env: the environment; it is kept and never stepped again.
        shapes: shape of one step of each stored observation.

    Raises:
        EnvError: its rewards differ from those of its ``compute_reward`` for several goals at once.
    """
    online = config.train.online
    if shapes[ACHIEVED] != shapes[DESIRED] or len(shapes[DESIRED]) != 1:
        raise EnvError(
            f"{env.name}: goals must be vectors of one size, but '{ACHIEVED}' has shape "
            f"{shapes[ACHIEVED]} and '{DESIRED}' {shapes[DESIRED]}: set {SETTING} to false"
        )
    ends = online.hindsight.ends_at_goal
    return Hindsight(
        _rewards_of(env),
        online.hindsight.share,
        online.hindsight.strategy,
        online.end_at_success if ends is None else ends,
    )


def _rewards_of(env: Env) -> GoalRewards:
    """Return the reward function, after two steps and all their goals have confirmed it."""
    rewards: GoalRewards | None = getattr(env, "goal_rewards", None)
    if rewards is None:
        raise EnvError(
            f"{env.name}: hindsight needs a goal environment of gymnasium, with "
            f"compute_reward: set {SETTING} to false"
        )
    env.reset(seed=0)
    middle = np.clip(np.zeros(env.action_dim), env.action_low, env.action_high)
    seen, earned = [], []
    for _ in range(2):
        obs, reward, *_ = env.step(middle)
        seen.append(obs)
        earned.append(reward)
    achieved = np.stack([obs[ACHIEVED] for obs in (*seen, *seen)]).astype(np.float32)
    desired = np.stack([obs[DESIRED] for obs in seen] + [obs[ACHIEVED] for obs in seen[::-1]])
    desired = desired.astype(np.float32)
    many = np.asarray(rewards(achieved, desired))
    if many.shape != (4,):
        raise EnvError(
            f"{env.name}: compute_reward gives an array of shape {many.shape} for 4 goals, "
            "expected (4,): it must accept arrays (B, G)"
        )
    one = np.array([float(rewards(achieved[i : i + 1], desired[i : i + 1])[0]) for i in range(4)])
    if not np.allclose(many, one, atol=1e-5):
        raise EnvError(
            f"{env.name}: compute_reward gives {many.tolist()} for 4 goals, but {one.tolist()} for one after another"
        )
    if not np.allclose(many[:2], earned, atol=1e-4):
        raise EnvError(
            f"{env.name}: steps gave the rewards {earned}, but compute_reward gives "
            f"{many[:2].tolist()}: hindsight needs rewards that depend on goals alone; set "
            f"{SETTING} to false"
        )
    return rewards
