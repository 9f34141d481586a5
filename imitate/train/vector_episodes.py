"""Episodes in lockstep: one process per environment, one batched policy call for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from imitate.envs.cameras import sizes_of
from imitate.envs.vector import make_vector_env
from imitate.errors import EnvError, NotFiniteError
from imitate.policy.loading import policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.train.episodes import (
    Episode,
    EpisodePlan,
    check_action_size,
    check_obs_shapes,
    failed_episode,
    hopeless,
    in_order,
)
from imitate.train.seeding import preserved_rng, seed_everything


@dataclass
class _Slot:
    """The episode that one environment is playing; index -1: none is left."""

    index: int
    success: bool = False
    total: float = 0.0
    length: int = 0


@dataclass(frozen=True)
class VectorJob:
    """A whole evaluation for one process; picklable."""

    checkpoint: str
    env_meta: dict[str, Any]
    plan: EpisodePlan
    device: str
    episodes: int
    num_envs: int
    give_up_after: int | None = None

    def play(self) -> list[Episode]:
        """Load the policy and play every episode."""
        policy, _ = policy_from_checkpoint(device=self.device, ckpt_path=self.checkpoint)
        return run_vector_episodes(
            policy,
            self.env_meta,
            self.plan,
            self.episodes,
            self.num_envs,
            give_up_after=self.give_up_after,
        )


def run_vector_episodes(
    policy: RolloutPolicy,
    env_meta: dict[str, Any],
    plan: EpisodePlan,
    episodes: int,
    num_envs: int,
    on_episode: Callable[[Episode], None] | None = None,
    give_up_after: int | None = None,
) -> list[Episode]:
    """Play episodes 0 .. episodes - 1; each environment takes the next one as soon as its own is over.

    A policy that samples draws for all environments at once, so its results depend on `num_envs`; the initial states
    and a deterministic policy's results do not.
    """
    num_envs = min(num_envs, episodes)
    venv = make_vector_env(
        env_meta,
        num_envs,
        obs_keys=policy.obs_keys,
        camera_size=sizes_of(policy.algo.preprocess.raw_shapes),
        autoreset_mode=AutoresetMode.DISABLED,
    )
    try:
        _check_fit(policy, env_meta, venv)
        with preserved_rng():
            seed_everything(plan.seed)
            lockstep = _Lockstep(
                policy, venv, plan, episodes, num_envs, on_episode, env_meta.get("lang")
            )
            return lockstep.run(give_up_after)
    finally:
        venv.close()


class _Lockstep:
    def __init__(
        self,
        policy: RolloutPolicy,
        venv: Any,
        plan: EpisodePlan,
        episodes: int,
        num_envs: int,
        on_episode: Callable[[Episode], None] | None,
        lang: str | None,
    ) -> None:
        self.policy, self.venv, self.plan = policy, venv, plan
        self.on_episode = on_episode
        self.lang = lang
        self.numbers = iter(range(episodes))
        self.slots = [_Slot(next(self.numbers)) for _ in range(num_envs)]
        self.results: dict[int, Episode] = {}

    def run(self, give_up_after: int | None) -> list[Episode]:
        obs = self._reset(np.ones(len(self.slots), dtype=bool))
        while any(slot.index >= 0 for slot in self.slots) and not hopeless(
            self.results, give_up_after
        ):
            try:
                actions = self.policy(self._with_idle_filled(obs), batched_ob=True)
            except NotFiniteError as error:
                obs = self._next_episodes(self._failed(error))
                continue
            obs, rewards, terminated, truncated, info = self.venv.step(actions)
            self.policy.observe(rewards)
            success = _successes(info, len(self.slots))
            if success.any():
                success = success & self._finite(obs)
            over = np.array(
                [
                    self._advance(
                        slot,
                        float(rewards[i]),
                        bool(success[i]),
                        bool(terminated[i] or truncated[i]),
                    )
                    for i, slot in enumerate(self.slots)
                ]
            )
            if over.any():
                obs = self._next_episodes(over)
        return in_order(self.results, give_up_after)

    def _with_idle_filled(self, obs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Show the policy, for environments that play no episode, what the first one that does gives."""
        idle = [i for i, slot in enumerate(self.slots) if slot.index < 0]
        if idle:
            live = next(i for i, slot in enumerate(self.slots) if slot.index >= 0)
            for value in obs.values():
                value[idle] = value[live]
        return obs

    def _finite(self, obs: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Rows with finite observations: a simulator that broke may call anything a success."""
        try:
            self.policy.check(obs, batched_ob=True)
        except NotFiniteError as error:
            return ~np.array(error.rows)
        return np.ones(len(self.slots), dtype=bool)

    def _failed(self, error: NotFiniteError) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Record the episodes whose observation or action is not finite; the mask of their environments."""
        bad = np.array(error.rows)
        for slot, is_bad in zip(self.slots, bad, strict=True):
            if is_bad and slot.index >= 0:
                self._record(failed_episode(self.plan, slot.index, str(error)))
        return bad

    def _next_episodes(self, over: np.ndarray[Any, np.dtype[np.bool_]]) -> Mapping[str, Any]:
        """Begin the next episodes in the masked environments; all environments' observations."""
        for i in np.flatnonzero(over):
            self.slots[i] = _Slot(next(self.numbers, -1))
        return self._reset(over)

    def _reset(self, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Mapping[str, Any]:
        """Start the episodes of the masked environments (those without one are reset too, and ignored)."""
        seeds = [self.plan.seed + max(slot.index, 0) for slot in self.slots]
        obs, _ = self.venv.reset(seed=seeds, options={"reset_mask": mask})
        self.policy.start_episode(self.lang, mask=mask)
        return dict(obs)

    def _advance(self, slot: _Slot, reward: float, success: bool, ended: bool) -> bool:
        """Count one step; whether the environment needs a reset."""
        if slot.index < 0:
            return ended
        slot.total += reward
        slot.length += 1
        slot.success = slot.success or success
        over = ended or slot.length >= self.plan.horizon
        if not over and not (slot.success and self.plan.terminate_on_success):
            return False
        seed = self.plan.seed + slot.index
        self._record(Episode(slot.index, seed, slot.success, slot.total, slot.length, success))
        return True

    def _record(self, episode: Episode) -> None:
        self.results[episode.index] = episode
        if self.on_episode is not None:
            self.on_episode(episode)


def _check_fit(policy: RolloutPolicy, env_meta: Mapping[str, Any], venv: Any) -> None:
    name = str(env_meta.get("env_name"))
    if policy.goal_keys:
        raise EnvError(
            f"environment '{name}': mode 'vector' plays no goal-conditioned policies; use mode 'processes'"
        )
    check_action_size(policy, name, int(venv.single_action_space.shape[0]))
    spaces = venv.single_observation_space.spaces
    check_obs_shapes(policy, name, {key: space.shape for key, space in spaces.items()})


def _successes(info: Mapping[str, Any], num_envs: int) -> Any:
    for key in ("success", "is_success"):
        if key in info:
            return np.asarray(info[key]).reshape(num_envs)
    raise EnvError("the vector environment's info has no 'success'; use --mode processes")
