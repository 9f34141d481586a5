"""Episodes in lockstep: one process per environment, one batched policy call for all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from imitate.crew import Lost
from imitate.envs.cameras import sizes_of
from imitate.envs.env import ever
from imitate.envs.vector import HungCopiesError, make_vector_env
from imitate.errors import EnvError, NotFiniteError
from imitate.evaluate.episodes import check_action_size, check_obs_shapes
from imitate.evaluate.named_rewards import RewardSums
from imitate.evaluate.result import EpisodeResult, LostEpisodes, failed_episode, hopeless, in_order
from imitate.evaluate.settings import EpisodePlan
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.processes import MAKE, Beat, cpu_model
from imitate.system.seeding import preserved_rng, seed_everything


@dataclass
class _Slot:
    """Episode that one environment is playing; index -1 if none is left."""

    index: int
    sums: RewardSums
    success: bool | None = None
    total: float = 0.0
    length: int = 0


def play_lockstep(
    policy: RolloutPolicy,
    plan: EpisodePlan,
    on_episode: Callable[[EpisodeResult], None],
    beat: Beat | None = None,
) -> list[EpisodeResult]:
    """Play all episodes of a plan; each environment takes the next one as soon as its own ends.

    A policy that samples draws for all environments at once, so its results depend on the number of environments; the
    initial states and the results of a deterministic policy do not. If an environment takes longer for a step than
    `step_timeout_s`, all are made again and their episodes played once more; the second time they count as failed.

    Raises:
        EnvError: policy and environment do not fit each other, or the environment cannot be made.
        EvaluationError: environments hang and no episode could be played.
    """
    results: dict[int, EpisodeResult] = {}
    losses = LostEpisodes(plan)
    tell = beat or (lambda call: None)

    def ended(index: int, answer: EpisodeResult | Lost) -> bool:
        episode = losses.episode(index, answer)
        if episode is not None:
            results[index] = episode
            on_episode(episode)
        return hopeless(results, plan.settings.give_up_after)

    while len(results) < plan.settings.episodes and not hopeless(
        results, plan.settings.give_up_after
    ):
        left = [index for index in range(plan.settings.episodes) if index not in results]
        lockstep = _Lockstep(policy, plan, left, ended, tell)
        try:
            with _copies(policy, plan, len(lockstep.slots), tell) as venv:
                lockstep.run(venv)
        except HungCopiesError as error:
            hung = [lockstep.slots[copy].index for copy in error.copies]
            for index in (index for index in hung if index >= 0):
                losses.add(index, error.reason, results)
                ended(index, Lost(error.reason))
    return in_order(results, plan.settings.give_up_after)


@contextmanager
def _copies(policy: RolloutPolicy, plan: EpisodePlan, num_envs: int, tell: Beat) -> Iterator[Any]:
    """Make the environments and check that they fit the policy, with the random seeds of an evaluation."""
    tell(MAKE)
    venv = make_vector_env(
        plan.env_meta,
        num_envs,
        obs_keys=policy.obs_keys,
        camera_size=sizes_of(policy.raw_shapes),
        autoreset_mode=AutoresetMode.DISABLED,
        step_timeout_s=plan.step_timeout_s,
    )
    tell("")
    try:
        _check_fit(policy, plan.env_meta, venv)
        with preserved_rng():
            seed_everything(plan.settings.seed)
            yield venv
    finally:
        venv.close()


class _Lockstep:
    def __init__(
        self,
        policy: RolloutPolicy,
        plan: EpisodePlan,
        numbers: Sequence[int],
        ended: Callable[[int, EpisodeResult], bool],
        tell: Beat,
    ) -> None:
        self.policy, self.plan, self.ended, self.tell = policy, plan, ended, tell
        self.numbers = iter(numbers)
        num_envs = min(plan.settings.workers, len(numbers))
        self.slots = [self._slot() for _ in range(num_envs)]
        self.enough = False

    def _slot(self) -> _Slot:
        return _Slot(next(self.numbers, -1), RewardSums(self.plan.named))

    def run(self, venv: Any) -> None:
        obs = self._reset(venv, np.ones(len(self.slots), dtype=bool))
        while any(slot.index >= 0 for slot in self.slots) and not self.enough:
            try:
                actions = self.policy(self._with_idle_filled(obs), batched_ob=True)
            except NotFiniteError as error:
                obs = self._next_episodes(venv, self._failed(error))
                continue
            obs, rewards, terminated, truncated, info = venv.step(actions)
            self.policy.observe(rewards)
            # A sign of life of this worker; ``venv`` itself detects hanging copies of the environment.
            self.tell("")
            for i, slot in enumerate(self.slots):
                slot.sums.add(rewards[i], _info_of(info, i) if self.plan.named else {})
            success = _successes(info, len(self.slots))
            if any(success):
                finite = self._finite(obs).tolist()
                success = [now and good for now, good in zip(success, finite, strict=True)]
            over = np.array(
                [
                    self._advance(
                        slot,
                        float(rewards[i]),
                        success[i],
                        bool(terminated[i] or truncated[i]),
                    )
                    for i, slot in enumerate(self.slots)
                ]
            )
            if over.any():
                obs = self._next_episodes(venv, over)

    def _with_idle_filled(self, obs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace the observations of idle environments by copies from the first environment that plays an episode."""
        idle = [i for i, slot in enumerate(self.slots) if slot.index < 0]
        if idle:
            live = next(i for i, slot in enumerate(self.slots) if slot.index >= 0)
            for value in obs.values():
                value[idle] = value[live]
        return obs

    def _finite(self, obs: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return a mask of rows with finite observations, because a broken simulator may report success."""
        try:
            self.policy.check(obs, batched_ob=True)
        except NotFiniteError as error:
            return ~np.array(error.rows)
        return np.ones(len(self.slots), dtype=bool)

    def _failed(self, error: NotFiniteError) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Record the episodes whose observation or action is not finite; return the mask of their environments."""
        bad = np.array(error.rows)
        for slot, is_bad in zip(self.slots, bad, strict=True):
            if is_bad and slot.index >= 0:
                self._record(failed_episode(self.plan, slot.index, str(error)))
        return bad

    def _next_episodes(
        self, venv: Any, over: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> Mapping[str, Any]:
        """Begin the next episodes in the masked environments; return all environments' observations."""
        for i in np.flatnonzero(over):
            self.slots[i] = self._slot()
        return self._reset(venv, over)

    def _reset(self, venv: Any, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Mapping[str, Any]:
        """Start the episodes of the masked environments; those without an episode are also reset and then ignored."""
        seeds = [self.plan.seed_of(max(slot.index, 0)) for slot in self.slots]
        obs, _ = venv.reset(seed=seeds, options={"reset_mask": mask})
        self.policy.start_episode(self.plan.lang, mask=mask)
        return dict(obs)

    def _advance(self, slot: _Slot, reward: float, success: bool | None, ended: bool) -> bool:
        """Count one step; return true if the environment needs a reset."""
        if slot.index < 0:
            return ended
        slot.total += reward
        slot.length += 1
        slot.success = ever(slot.success, success)
        over = ended or slot.length >= self.plan.horizon
        if not over and not (slot.success and self.plan.settings.terminate_on_success):
            return False
        seed = self.plan.seed_of(slot.index)
        episode = EpisodeResult(slot.index, seed, slot.success, slot.total, slot.length, success)
        self._record(replace(episode, cpu=cpu_model(), rewards=slot.sums.totals()))
        return True

    def _record(self, episode: EpisodeResult) -> None:
        self.enough = self.ended(episode.index, episode) or self.enough


def _check_fit(policy: RolloutPolicy, env_meta: Mapping[str, Any], venv: Any) -> None:
    name = str(env_meta.get("env_name"))
    if policy.goal_keys:
        raise EnvError(
            f"environment '{name}': mode 'vector' plays no goal-conditioned policies; use mode 'processes'"
        )
    check_action_size(policy, name, int(venv.single_action_space.shape[0]))
    spaces = venv.single_observation_space.spaces
    check_obs_shapes(policy, name, {key: space.shape for key, space in spaces.items()})


def _info_of(info: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the numbers in the info of one environment."""
    return {
        key: value[number]
        for key, value in info.items()
        if isinstance(value, np.ndarray) and info.get(f"_{key}", {number: False})[number]
    }


def _successes(info: Mapping[str, Any], num_envs: int) -> list[bool | None]:
    """Return the success of each environment, None where it is unknown."""
    known = np.broadcast_to(info.get("_success", "success" in info), num_envs)
    values = np.broadcast_to(info.get("success", False), num_envs)
    return [
        bool(value) if is_known else None for value, is_known in zip(values, known, strict=True)
    ]
