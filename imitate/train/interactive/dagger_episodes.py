"""Supervised episodes of a round: in this process, or in workers of a crew if the supervisor can be copied.

Episode ``index`` of a round has its own seeds, ``[seed, round, index, attempt]``, so that episodes are the same in
any process and for any number of workers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imitate.crew import Crew, Limits, Lost
from imitate.crew.crew import AHEAD
from imitate.data import Episode
from imitate.envs import Env, make_env
from imitate.envs.env import watched
from imitate.errors import EnvError, RobotError, TrainingError, UserError
from imitate.policy.loading import CheckpointFile, PolicySource
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.processes import STEP_TIMEOUT_S, Beat
from imitate.system.user_code import error_words
from imitate.train.interactive.supervision import DiscardedError, Supervisor, supervised_episode

MAX_FAILURES = 10
_log = logging.getLogger(__name__)

SuperviseRound = Callable[[int], Supervisor]
"""Function from a round's number (from 1) to its supervisor; picklable if workers play the episodes."""


@dataclass(frozen=True)
class Scene:
    """Settings that all episodes share.

    Attributes:
        env_meta: the environment.
        obs_keys: keys of the policy's observations.
        seed: seed of the episodes.
        horizon: steps per episode.
        hold_steps: steps after the first success.
        folder: folder of the rounds, for messages.
    """

    env_meta: dict[str, Any]
    obs_keys: tuple[str, ...]
    seed: int
    horizon: int
    hold_steps: int
    folder: str


class SupervisedPlayer:
    """Player of supervised episodes in this process, with an environment that it makes when first needed.

    Args:
        scene: settings of the episodes.
        beat: called with the name of each call of the environment.
    """

    def __init__(self, scene: Scene, beat: Beat | None = None) -> None:
        self._scene, self._beat = scene, beat
        self._env: Env | None = None

    def env(self) -> Env:
        """Return the environment with all observations, because experts may use more than the policy."""
        if self._env is None:
            keys = self._scene.obs_keys
            cameras = [key.removesuffix("_image") for key in keys if key.endswith("_image")]
            make = partial(make_env, self._scene.env_meta, camera_names=cameras or None)
            self._env = watched(make, self._beat)
        return self._env

    def close(self) -> None:
        """Close the environment."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def play(
        self,
        number: int,
        index: int,
        policy: RolloutPolicy,
        supervisor: Supervisor,
        *,
        states: bool,
        attempt: int = 0,
    ) -> Episode:
        """Play episode ``index`` of a round; after a failure of the simulator play it again with another seed.

        Raises:
            EnvError: the environment failed :data:`MAX_FAILURES` times in a row.
            TrainingError: a robot stopped.
        """
        failures = 0
        while failures < MAX_FAILURES:
            entropy = [self._scene.seed, number, index, attempt]
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0]) & 0x7FFFFFFF
            attempt += 1
            try:
                return supervised_episode(
                    self.env(),
                    policy,
                    supervisor,
                    seed=seed,
                    horizon=self._scene.horizon,
                    hold_steps=self._scene.hold_steps,
                    round_number=number,
                    states=states,
                )
            except UserError:
                raise
            except RobotError as error:  # a person must check the robot before it moves again
                raise TrainingError(
                    f"round {number}, episode {index}: {error}; to resume, repeat the command "
                    f"for {self._scene.folder}"
                ) from error
            except DiscardedError:
                _log.info("round %d, episode %d: discarded by a person", number, index)
            except Exception as error:  # a simulator may raise any exception
                failures += 1
                words = error_words(error)
                _log.warning("round %d, episode %d: %s", number, index, words)
                self._env = None
        raise EnvError(
            f"{self._scene.env_meta.get('env_name')}: failed {MAX_FAILURES} times in a row in round {number} "
            f"({words}): run imitate check-env to see the fault"
        )


@dataclass(frozen=True)
class Item:
    """Episode for a worker.

    Attributes:
        number: number of the round.
        index: index of the episode in the round.
        policy: checkpoint of the last round's policy.
        states: true to also record the simulator's states.
        attempt: number of the first attempt; earlier ones lost their workers.
    """

    number: int
    index: int
    policy: PolicySource
    states: bool
    attempt: int = 0


class Players:
    """Workers that play supervised episodes, kept from round to round; a context manager.

    Args:
        scene: settings of the episodes.
        supervise: makes the supervisor of a round in each worker; picklable.
        workers: number of workers.
        backend: back end on which they run, or None for processes on this machine.
        step_timeout_s: longest time of a call of the environment (making it: five times as long), after which its
            process is ended.
    """

    def __init__(
        self,
        scene: Scene,
        supervise: SuperviseRound,
        workers: int,
        *,
        backend: Any = None,
        step_timeout_s: float = STEP_TIMEOUT_S,
    ) -> None:
        self._scene, self._workers = scene, workers
        self._crew = Crew[Item, Episode](
            partial(prepared_episodes, scene, supervise),
            workers,
            limits=Limits(call_s=step_timeout_s),
            backend=backend,
        )

    def __enter__(self) -> Players:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._crew.__exit__(*raised)

    def episodes(
        self, number: int, first: int, last: int, checkpoint: str | Path, *, states: bool
    ) -> Iterator[Episode]:
        """Yield the episodes ``first ... last - 1`` of a round in their order.

        An episode whose worker dies or hangs is played again, with the same seeds by another worker, then with the
        next ones.

        Raises:
            EnvError: the environment cannot be made, or an episode was lost :data:`MAX_FAILURES` times.
        """
        policy = CheckpointFile(str(checkpoint)).for_workers()
        make = partial(Item, number, policy=policy, states=states)
        waiting = _Waiting(make, first, last, AHEAD * self._workers)
        early: dict[int, Episode] = {}
        for done in self._crew.as_completed(waiting):
            item, result = done.item, done.result
            if isinstance(result, Lost):
                waiting.again(item, result, self._scene.env_meta.get("env_name"))
                continue
            early[item.index] = result
            while waiting.wanted in early:
                episode = early.pop(waiting.wanted)
                waiting.wanted += 1
                yield episode


class _Waiting:
    """Queue of episodes that no worker plays yet; a crew takes the next one after each result.

    Attributes:
        wanted: episode to yield next; episodes far ahead of it wait.
    """

    def __init__(self, make: Callable[..., Item], first: int, last: int, ahead: int) -> None:
        self._make, self._last, self._ahead = make, last, ahead
        self._begun = self.wanted = first
        self._again = deque[Item]()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._again:
            return self._again.popleft()
        if self._begun >= min(self._last, self.wanted + self._ahead):
            raise StopIteration
        self._begun += 1
        return self._make(self._begun - 1)

    def again(self, item: Item, lost: Lost, env_name: Any) -> None:
        """Play an episode again with other seeds after its workers were lost.

        Raises:
            EnvError: the episode was lost too often, or it ended by an error instead of a dead or hanging worker.
        """
        where = f"{env_name}: round {item.number}, episode {item.index}: {lost.reason}"
        if not lost.died:
            raise lost.error or EnvError(where)
        if item.attempt + 1 >= MAX_FAILURES:
            raise EnvError(f"{where}; run imitate check-env to see the fault")
        _log.warning("%s; played again with another seed", where)
        attempt = item.attempt + 1
        self._again.append(self._make(item.index, attempt=attempt))


def prepared_episodes(scene: Scene, supervise: SuperviseRound, beat: Beat) -> _Worker:
    """Return the function that a worker calls with each :class:`Item`."""
    return _Worker(scene, supervise, beat)


class _Worker:
    """Function of a worker: plays the episode of an item."""

    def __init__(self, scene: Scene, supervise: SuperviseRound, beat: Beat) -> None:
        self._player, self._supervise = SupervisedPlayer(scene, beat), supervise
        self._number = 0
        self._policy: RolloutPolicy | None = None
        self._supervisor: Supervisor | None = None

    def __call__(self, item: Item) -> Episode:
        if self._policy is None or self._supervisor is None or item.number != self._number:
            self._policy = item.policy.load("cpu")
            self._supervisor = self._supervise(item.number)
            self._number = item.number
        return self._player.play(
            item.number,
            item.index,
            self._policy,
            self._supervisor,
            states=item.states,
            attempt=item.attempt,
        )

    def close(self) -> None:
        """Close the environment."""
        self._player.close()
