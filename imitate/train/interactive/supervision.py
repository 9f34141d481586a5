"""Supervised episodes of a policy: an expert labels actions, or a person takes over.

They are played in this process, or in worker processes if the supervisor can be pickled. Episode ``index`` of a round
has its own seeds, ``[seed, round, index, attempt]``, so that episodes are the same in any process and for any number of
workers.

Each step is recorded with ``policy_actions``, the policy's action; ``executed_actions``, the executed action;
``actions``, the action to learn, which is the label if there is one, else the executed action; ``labelled``, 1 if there
is a label; ``interventions``, 1 if the supervisor acted.

A supervisor that is named on the command line can be sent to workers: each builds a copy from the name.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.crew import Crew, Limits, Lost
from imitate.crew.crew import AHEAD
from imitate.data.file.episode import Episode
from imitate.envs import Env, make_env
from imitate.envs.env import Obs, ever, success_in, watched
from imitate.envs.experts import Style, find_expert
from imitate.errors import ConfigError, EnvError, RobotError, TrainingError, UserError
from imitate.policy.loading import CheckpointFile, PolicySource, policy_from_checkpoint
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.processes import STEP_TIMEOUT_S, Beat
from imitate.system.trust import typed_object
from imitate.system.user_code import error_words

Action = NDArray[np.float64]


class Word(NamedTuple):
    """Decision of a supervisor at one step.

    Attributes:
        label: (A,) the correct action, or None if there is no label.
        takes_over: true to execute ``label`` instead of the policy's action.
    """

    label: Action | None = None
    takes_over: bool = False


class DiscardedError(Exception):
    """Raised if a person discarded the episode."""


class Supervisor(Protocol):
    """Observer of a policy's episode that may label steps and take over the control."""

    def start_episode(self, seed: int) -> None:
        """Begin a new episode, with a seed for random draws."""

    def watch(self, obs: Obs, wanted: Action, rank: float | None = None) -> Word:
        """Return a decision for an observation and the policy's action (A,).

        ``rank`` is the quantile of the policy's uncertainty, if it has one (``RolloutPolicy.uncertainty_rank``).
        """


Expert = Callable[[Obs], Any]
"""Function from an observation to the right action (A,); ``start_episode(seed)`` and, at steps without a label,
``follow(obs)`` are called if it has them."""

Hand = Callable[[Obs, Action], Any]
"""Function from an observation and the policy's action to an action (A,) while a person controls the robot, else
None."""


class ScriptedExpert:
    """Scripted expert of a task without random variation, so that labels do not contradict each other."""

    def __init__(self, env_name: str) -> None:
        still = np.zeros(3)
        style = Style(speed=0.65, hover_m=0.075, grasp_offset_m=still, detour_m=still[:2])
        self._new = partial(find_expert(env_name), style)
        self._expert = self._new()

    def start_episode(self, seed: int) -> None:
        """Make a new expert, because it may remember the progress of the task."""
        self._expert = self._new()

    def __call__(self, obs: Obs) -> Action:
        """Return the action (A,)."""
        return np.asarray(self._expert.act(obs), dtype=np.float64)


class PolicyExpert:
    """A trained policy as an expert, such as one with more observations than the learning policy."""

    def __init__(self, policy: RolloutPolicy) -> None:
        self._policy = policy

    def start_episode(self, seed: int) -> None:
        """Reset the memory of the last episode."""
        self._policy.start_episode()

    def __call__(self, obs: Obs) -> Action:
        """Return the action (A,) of a new plan: later actions of a chunk were planned from an earlier state."""
        self._policy.cut_plan()
        return self._policy(obs)

    def follow(self, obs: Obs) -> None:
        """Observe a step without acting, so that the policy's memory has no gaps."""
        self._policy(obs)


class Labels:
    """Supervisor of DAgger: labels each step, and acts with probability ``beta``.

    With ``ask_above`` only the steps are labelled at which the policy is unsure, as in EnsembleDAgger (Menda,
    Driggs-Campbell, Kochenderfer, IROS 2019, arXiv:1807.08364) and ThriftyDAgger (Hoque et al., CoRL 2021,
    arXiv:2109.08273). Departure from both: thresholds are quantiles of the uncertainty in demonstrations, and neither
    the distance to the expert's action nor a risk of failure is a reason to ask.

    Args:
        expert: gives the labels.
        beta: probability that the expert acts at a labelled step.
        every: the expert labels every n-th step; neighbouring states are similar, so their labels add little.
        ask_above: quantile of the policy's uncertainty from which a step is labelled, or None to label all of them. An
            unsure policy stays so for many steps, so this saves most labels together with ``every``.
    """

    def __init__(
        self, expert: Expert, beta: float, every: int = 1, ask_above: float | None = None
    ) -> None:
        self._expert, self._beta, self._every = expert, beta, every
        self._ask_above = ask_above
        self._rng: np.random.Generator
        self._step: int

    def start_episode(self, seed: int) -> None:
        """Begin a new episode, with a seed for the expert's turns."""
        self._rng, self._step = np.random.default_rng([seed, 1]), 0
        _tell(self._expert, seed)

    def watch(self, obs: Obs, wanted: Action, rank: float | None = None) -> Word:
        """Return a label if one is due, which is executed with probability ``beta``; otherwise an empty decision."""
        step, self._step = self._step, self._step + 1
        if step % self._every or self._is_sure(rank):
            follow = getattr(self._expert, "follow", None)
            if follow is not None:
                follow(obs)
            return Word()
        label = np.asarray(self._expert(obs), dtype=np.float64).reshape(wanted.shape)
        return Word(label, bool(self._rng.random() < self._beta))

    def _is_sure(self, rank: float | None) -> bool:
        if self._ask_above is None:
            return False
        if rank is None:
            raise ConfigError(
                "--ask-above: the policy's checkpoint has no uncertainties of demonstrations: train one that has, or "
                "leave it out"
            )
        return rank < self._ask_above


class TakesOver:
    """Supervisor of HG-DAgger: labels only the steps in which it acts."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand

    def start_episode(self, seed: int) -> None:
        """Announce a new episode to ``hand``, with a seed for random draws."""
        _tell(self._hand, seed)

    def watch(self, obs: Obs, wanted: Action, rank: float | None = None) -> Word:
        """Return the person's action, to execute and to learn, or an empty decision if the person does not act."""
        given = self._hand(obs, wanted)
        if given is None:
            return Word()
        return Word(np.asarray(given, dtype=np.float64).reshape(wanted.shape), takes_over=True)


class Vigilant:
    """Scripted person: takes over after the policy was wrong for some steps, lets go after it was right for some steps.

    Args:
        expert: gives the actions of the person.
        tolerance: largest difference in any action dimension at which the policy counts as right.
        patience: consecutive steps before taking over, and before letting go.
    """

    def __init__(self, expert: Expert, *, tolerance: float = 0.5, patience: int = 5) -> None:
        self._expert, self._tolerance, self._patience = expert, tolerance, patience
        self._holds: bool
        self._count: int

    def start_episode(self, seed: int) -> None:
        """Begin an episode, in which the policy controls the robot first."""
        self._holds, self._count = False, 0
        _tell(self._expert, seed)

    def __call__(self, obs: Obs, wanted: Action) -> Action | None:
        """Return the expert's action (A,) while the expert controls the robot, else None."""
        action = np.asarray(self._expert(obs), dtype=np.float64)
        is_wrong = float(np.abs(action - wanted).max()) > self._tolerance
        self._count = self._count + 1 if is_wrong != self._holds else 0
        if self._count >= self._patience:
            self._holds, self._count = not self._holds, 0
        return action if self._holds else None


def _tell(who: object, seed: int) -> None:
    """Announce a new episode to an expert that has ``start_episode``."""
    begin = getattr(who, "start_episode", None)
    if begin is not None:
        begin(seed)


def supervised_episode(
    env: Env,
    policy: RolloutPolicy,
    supervisor: Supervisor,
    *,
    seed: int,
    horizon: int,
    hold_steps: int = 8,
    round_number: int = 0,
    states: bool = True,
) -> Episode:
    """Play one episode of a policy under supervision.

    The policy observes each step, also while the supervisor acts. After the supervisor acted, the policy's running
    chunk is dropped, so that it plans from the robot's new state. A person may also act inside the environment, such as
    with the input device of a robot: ``info["intervened"]`` and ``info["executed_action"]`` then determine what is
    recorded.

    Args:
        env: environment with the observations of policy and supervisor; the policy's are recorded.
        policy: policy in evaluation mode.
        supervisor: supervisor that observes each step.
        seed: seed of the environment, the policy and the supervisor.
        horizon: number of steps after which the episode ends.
        hold_steps: further steps after the first success, before the episode ends.
        round_number: round number to record.
        states: true to also record the simulator's states.

    Raises:
        DiscardedError: ``info["discarded"]`` marks the episode as void.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        obs, _ = env.reset(seed=seed)
        policy.start_episode()
        supervisor.start_episode(seed)
        start = env.get_state() if states else {}
        rows: list[dict[str, Any]] = []
        stop, ended = horizon, False
        solved: bool | None = None
        while len(rows) < stop and not ended:
            wanted = policy(obs)
            rank = policy.uncertainty_rank
            word = supervisor.watch(obs, wanted, None if rank is None else float(rank[0]))
            label = wanted if word.label is None else word.label
            executed = label if word.takes_over else wanted
            if word.takes_over:
                policy.cut_plan()
            row = {
                "obs": {key: obs[key] for key in policy.obs_keys},
                "actions": label,
                "executed_actions": executed,
                "policy_actions": wanted,
                "labelled": word.label is not None,
                "interventions": word.takes_over,
                "round": round_number,
            }
            if states:
                row["states"] = env.get_state()["states"]
            obs, reward, terminated, truncated, info = env.step(executed)
            policy.observe(reward)
            if info.get("discarded"):
                raise DiscardedError
            if "executed_action" in info:
                row["executed_actions"] = np.asarray(info["executed_action"], dtype=np.float64)
            if info.get("intervened"):
                policy.cut_plan()
                row.update(actions=row["executed_actions"], labelled=True, interventions=True)
            elif word.label is None:
                row["actions"] = row["executed_actions"]
            success = success_in(info)
            if success and stop == horizon:
                stop = min(horizon, len(rows) + 1 + hold_steps)
            ended = bool(terminated or truncated)
            rows.append({**row, "rewards": reward, "terminals": bool(success or terminated)})
            solved = ever(solved, success)
    return _episode(rows, start, solved)


def _episode(rows: list[dict[str, Any]], start: dict[str, Any], solved: bool | None) -> Episode:
    """Convert the steps to an episode of the file."""
    series = {key: np.stack([row[key] for row in rows]) for key in rows[0] if key != "obs"}
    timeouts = np.zeros(len(rows), dtype=bool)
    timeouts[-1] = not series["terminals"][-1]
    attrs = {name: start[key] for name, key in _ATTRS.items() if start.get(key)}
    attrs |= {} if solved is None else {"success": solved}
    return Episode(
        obs={key: np.stack([row["obs"][key] for row in rows]) for key in rows[0]["obs"]},
        actions=series["actions"],
        rewards=series["rewards"],
        terminals=series["terminals"],
        timeouts=timeouts,
        states=series.get("states"),
        attrs={**attrs, "round": int(rows[0]["round"])},
        steps={
            "labelled": series["labelled"].astype(np.uint8),
            "interventions": series["interventions"].astype(np.uint8),
            "policy_actions": series["policy_actions"],
            "executed_actions": series["executed_actions"],
            "round": series["round"].astype(np.int32),
        },
    )


_ATTRS = {"model_file": "model", "ep_meta": "ep_meta"}


SCRIPTED = "scripted"


@dataclass(frozen=True)
class LabelsOf:
    """Makes the supervisors of DAgger's rounds, with an expert given by name.

    Attributes:
        expert: ``scripted``, a checkpoint, or ``module:function``.
        env_name: name of the environment.
        beta: in round k the expert acts with probability ``beta**k`` at labelled steps.
        every: the expert labels every n-th step.
        ask_above: quantile of the policy's uncertainty from which a step is labelled, or None to label all of them.
    """

    expert: str
    env_name: str
    beta: float
    every: int = 1
    ask_above: float | None = None

    def __call__(self, number: int) -> Supervisor:
        """Return the supervisor of a round."""
        expert = named_expert(self.expert, self.env_name)
        return Labels(expert, self.beta**number, self.every, self.ask_above)


@dataclass(frozen=True)
class CorrectionsOf:
    """Makes the supervisors of HG-DAgger's rounds, with an expert that acts while the policy errs.

    Attributes:
        expert: see :class:`LabelsOf`.
        env_name: name of the environment.
    """

    expert: str
    env_name: str

    def __call__(self, number: int) -> Supervisor:
        """Return the supervisor of a round."""
        return TakesOver(Vigilant(named_expert(self.expert, self.env_name)))


def named_expert(name: str, env_name: str) -> Expert:
    """Return a new expert: ``scripted``, the policy of a checkpoint, or an imported ``module:function``.

    Raises:
        ConfigError: the expert does not exist.
    """
    if name == SCRIPTED:
        return ScriptedExpert(env_name)
    path = Path(name).expanduser()
    if path.exists():
        policy, _ = policy_from_checkpoint(device="cpu", ckpt_path=path)
        return PolicyExpert(policy)
    expert: Expert = imported(name, "--expert")
    return expert


def imported(name: str, option: str) -> Any:
    """Import ``module:attribute``; if it is a class, make an object.

    Raises:
        ConfigError: the attribute does not exist; the message names the option.
    """
    try:
        found = typed_object(name)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise ConfigError(
            f"{option}: '{name}' is neither a file nor module:function that can be imported ({error})"
        ) from None
    return found() if isinstance(found, type) else found


MAX_FAILURES = 10
_log = logging.getLogger(__name__)

SuperviseRound = Callable[[int], Supervisor]
"""Function from a round's number (from 1) to its supervisor; picklable if workers play the episodes."""


@dataclass(frozen=True)
class Scene:
    """Settings that all episodes share.

    Attributes:
        env_meta: env_args of the environment.
        obs_keys: keys of the policy's observations.
        seed: seed of the episodes.
        horizon: steps per episode.
        hold_steps: further steps after the first success, before the episode ends.
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
        beat: called with the name of each call of the environment, as a sign of life; None without a watcher.
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
    """Episode that a worker is asked to play.

    Attributes:
        number: number of the round.
        index: index of the episode in the round.
        policy: checkpoint of the last round's policy.
        states: true to also record the simulator's states.
        attempt: number of the first attempt, which determines the seeds; after lost workers it is larger than 0.
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
        step_timeout_s: longest time of a call of the environment (making the environment: five times as long); a
            slower worker is ended.
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

        An episode whose worker dies or hangs is played again by another worker, first with the same seeds, then with
        new ones.

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
    """Queue of episodes that no worker plays yet; the :class:`Crew` takes the next one after each result.

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
