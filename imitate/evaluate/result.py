"""Results of episodes, played or lost, and of evaluations; the files from which interrupted evaluations are resumed."""

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from imitate.config.from_data import rollout_horizon
from imitate.crew import Lost
from imitate.crew.crew import TRIES
from imitate.envs.env import success_in
from imitate.errors import ConfigError, EvaluationError
from imitate.evaluate.named_rewards import RewardMeans, RewardSpec, reward_means
from imitate.evaluate.settings import EpisodePlan, Lateness
from imitate.system.plain_files import (
    appended,
    json_value,
    lines_of,
    lock,
    parsed_json,
    read_text,
)
from imitate.system.run_folder import to_json, write_text
from imitate.system.statistics import Estimate, Rate, d4rl_score, estimate, rate_of

LONG_DEMO = 0.6
"""Demonstrations longer than this share of the horizon count as about as long as the horizon."""
HOPELESS = 4
"""Number of lost episodes without a played one after which the evaluation ends."""

GUARD = 'a script that trains or evaluates must do so under `if __name__ == "__main__":`: its processes import it'
ENDING = ".episodes"
"""Suffix of the file of episodes, added to the name of the table."""
SAME = "settings"
"""Key, in an entry of the table, of everything that the result depends on."""
_LONGEST_LINE = 2**20
_MOST_BYTES, _MOST_VALUES = 2**28, 2**24
"""Largest size in bytes of a table of evaluations (about a million episodes), and largest number of values in it."""


@dataclass(frozen=True)
class EpisodeResult:
    """Result of one episode.

    Attributes:
        success: true if the task was solved at any step, None if the environment does not report it.
        success_at_end: true if the task was solved at the last step, or None.
        error: reason why the episode could not be played; it then counts as failed.
        first_error: reason why the first try failed; all else describes the second try.
        cpu: model of the processor that played it, or None if unknown.
        agents: return and success of each agent if there are several; the episode's return is then their sum, and it
            succeeds if all do.
        rewards: sums of the named rewards of the policy's training, or None without any.
    """

    index: int
    seed: int
    success: bool | None
    episode_return: float
    length: int
    success_at_end: bool | None
    frames: int = 0
    error: str | None = None
    render_error: str | None = None
    first_error: str | None = None
    cpu: str | None = field(default=None, compare=False)
    agents: dict[str, dict[str, float | bool | None]] | None = None
    rewards: dict[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; an unknown success is null."""
        needed = {field.name for field in fields(self) if field.default is MISSING}
        own = asdict(self)
        return {key: own[key] for key in own if key in needed or own[key] is not None}


def failed_episode(plan: EpisodePlan, index: int, error: str) -> EpisodeResult:
    """Return the record of an episode that could not be played."""
    return EpisodeResult(
        index,
        plan.seed_of(index),
        success=False,
        episode_return=0.0,
        length=0,
        success_at_end=False,
        error=error,
    )


def timed(start: float) -> float:
    """Return the seconds since `start` (time.perf_counter), to the millisecond."""
    return round(time.perf_counter() - start, 3)


def hopeless(results: dict[int, EpisodeResult], give_up_after: int | None) -> bool:
    """Return true if the first `give_up_after` episodes have all been played and all failed."""
    if give_up_after is None:
        return False
    first = [results.get(index) for index in range(give_up_after)]
    return all(episode is not None and episode.success is False for episode in first)


def in_order(results: dict[int, EpisodeResult], give_up_after: int | None) -> list[EpisodeResult]:
    """Sort episodes by index; keep only the first if the evaluation was hopeless.

    So its result does not depend on timing.
    """
    if hopeless(results, give_up_after):
        return [results[index] for index in range(give_up_after or 0)]
    return [results[index] for index in sorted(results)]


@dataclass(frozen=True)
class EvalResult:
    """Episodes of an evaluation and their summary.

    Attributes:
        planned: episodes requested; fewer were played if the evaluation was given up as hopeless.
        longest_demo: steps of the longest demonstration that the policy learned from, or None if unknown.
        late: delay of the predictions, or None if there was none.
        named: named rewards of the policy's training.
    """

    env_name: str
    checkpoint: str | None
    episodes: tuple[EpisodeResult, ...]
    planned: int
    horizon: int
    seed: int
    mode: str
    workers: int
    wall_s: float
    video: str | None = None
    warnings: tuple[str, ...] = ()
    longest_demo: int | None = None
    late: Lateness | None = None
    named: tuple[RewardSpec, ...] = ()

    @property
    def success(self) -> list[bool | None]:
        """Success of each episode, None where it is unknown."""
        return [episode.success for episode in self.episodes]

    @cached_property
    def rate(self) -> Rate | None:
        """Success rate, or None if the environment reports no success in the episodes that were played."""
        if self._played and all(episode.success is None for episode in self._played):
            return None
        return rate_of(self.success)

    @property
    def _played(self) -> list[EpisodeResult]:
        return [episode for episode in self.episodes if episode.error is None]

    @property
    def returns(self) -> list[float]:
        """Sum of rewards of each episode."""
        return [episode.episode_return for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        """Environment steps of each episode."""
        return [episode.length for episode in self.episodes]

    @property
    def seeds(self) -> list[int]:
        """Environment seed of each episode."""
        return [episode.seed for episode in self.episodes]

    @property
    def success_rate(self) -> float | None:
        """Share of successful episodes, or None if it is unknown."""
        return None if self.rate is None else self.rate.value

    @property
    def success_rate_at_end(self) -> float | None:
        """Share of episodes whose last step was a success, or None if it is unknown."""
        at_end = rate_of(episode.success_at_end for episode in self.episodes)
        return None if self.rate is None or at_end is None else at_end.value

    @cached_property
    def over_episodes(self) -> Estimate:
        """Mean return of the episodes that were played, with Student's t interval and standard deviation.

        Interval and deviation are None if each return only repeats the episode's success, 0 or 1, because the success
        rate already has an interval; also if a return is not finite.
        """
        returns = [episode.episode_return for episode in self._played]
        if returns and all(map(math.isfinite, returns)) and not self.repeats_success:
            return estimate(returns)
        mean = fmean(returns) if returns else math.nan
        return Estimate(mean, None, None, None, len(returns))

    @property
    def repeats_success(self) -> bool:
        """True if the return of each episode is its success, 0 or 1."""
        return all(episode.episode_return == episode.success for episode in self._played)

    @property
    def mean_return(self) -> float:
        """Mean sum of rewards of the episodes that were played."""
        return self.over_episodes.value

    @property
    def d4rl_score(self) -> float | None:
        """D4RL's normalized score, or None for an environment without one."""
        return d4rl_score(self.env_name, self.mean_return)

    @property
    def agents(self) -> dict[str, tuple[float, float | None]]:
        """Mean return and success rate of each agent, if there are several; an unknown rate is None."""
        played = [episode.agents for episode in self.episodes if episode.agents is not None]
        found: dict[str, tuple[float, float | None]] = {}
        for name in played[0] if played else ():
            own = [each[name] for each in played]
            rate = rate_of(success_in(agent) for agent in own)
            mean = fmean(float(agent["return"] or 0.0) for agent in own)
            found[name] = mean, None if rate is None else rate.value
        return found

    @cached_property
    def rewards(self) -> list[RewardMeans]:
        """Named rewards of the policy's training, over the episodes that were played."""
        played = self._played
        sums = [episode.rewards or {} for episode in played]
        return reward_means(self.named, sums, [episode.length for episode in played])

    @property
    def mean_length(self) -> float:
        """Mean number of steps."""
        return fmean(self.lengths)

    @property
    def gave_up(self) -> bool:
        """True if the evaluation was stopped as hopeless."""
        return len(self.episodes) < self.planned

    @property
    def not_played(self) -> int:
        """Number of episodes that could not be played in two tries; they count as failures and have no return."""
        return len(self.episodes) - len(self._played)

    @property
    def cpu_models(self) -> list[str]:
        """Models of the processors that played the episodes, if known."""
        return sorted({episode.cpu for episode in self.episodes if episode.cpu is not None})

    @property
    def out_of_time(self) -> int:
        """Number of failed episodes that ended at the horizon."""
        return sum(length >= self.horizon for length in self._failed)

    @property
    def ended_by_env(self) -> int | None:
        """Most steps of a failed episode, if the environment ended all failed ones before the horizon, else None."""
        longest = max(self._failed, default=self.horizon)
        return longest if longest < self.horizon else None

    @property
    def _failed(self) -> list[int]:
        """Steps of the failed episodes that were played."""
        known = [] if self.rate is None else self._played
        return [episode.length for episode in known if not episode.success]

    def horizon_note(self, option: str) -> str | None:
        """Return a note if the horizon may be too short: most failures end at it, and demonstrations are about as long.

        Args:
            option: option that sets a longer horizon, such as ``--horizon ``.
        """
        failures = 0 if self.rate is None else self.rate.n - self.rate.successes
        if self.longest_demo is None or self.longest_demo < LONG_DEMO * self.horizon:
            return None
        if not self.out_of_time or 2 * self.out_of_time < failures:
            return None
        return (
            f"{self.out_of_time} of {failures} failures ended at the horizon of {self.horizon}; demonstrations last up "
            f"to {self.longest_demo} steps: {option}{rollout_horizon([self.longest_demo])}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; an unknown success is null."""
        agents = {
            name: {"mean_return": mean, "success_rate": rate}
            for name, (mean, rate) in self.agents.items()
        }
        rewards = {each.spec.name: each.to_dict() for each in self.rewards}
        return {
            "env": self.env_name,
            "checkpoint": self.checkpoint,
            "episodes": len(self.episodes),
            "planned_episodes": self.planned,
            "successes": None if self.rate is None else self.rate.successes,
            "success_rate": self.success_rate,
            "success_rate_95": None if self.rate is None else list(self.rate.interval),
            "success_rate_at_end": self.success_rate_at_end,
            "mean_return": self.mean_return,
            "return_std": self.over_episodes.std,
            "mean_return_95": None
            if self.over_episodes.low is None
            else list(self.over_episodes[1:3]),
            **({} if self.d4rl_score is None else {"d4rl_score": self.d4rl_score}),
            "mean_length": self.mean_length,
            **({"rewards": rewards} if rewards else {}),
            **({"agents": agents} if agents else {}),
            "horizon": self.horizon,
            "out_of_time": self.out_of_time,
            "longest_demo": self.longest_demo,
            "seed": self.seed,
            "mode": self.mode,
            "workers": self.workers,
            "cpu_models": self.cpu_models,
            **({} if self.late is None else asdict(self.late)),
            "wall_s": self.wall_s,
            "video": self.video,
            "gave_up": self.gave_up,
            "not_played": self.not_played,
            "warnings": list(self.warnings),
            "per_episode": [episode.to_dict() for episode in self.episodes],
        }


class LostEpisodes:
    """The lost episodes of one evaluation.

    Args:
        plan: plan of the episodes.
    """

    def __init__(self, plan: EpisodePlan) -> None:
        self._env_name, self._plan = label(plan.env_meta), plan
        self._reasons: dict[int, list[str]] = {}

    def add(
        self, index: int, reason: str, results: Mapping[int, EpisodeResult], *, begun: bool = True
    ) -> None:
        """Record the loss of an episode.

        Args:
            index: index of the episode.
            reason: reason of the loss, as text.
            results: finished episodes.
            begun: false if the process ended before it did anything.

        Raises:
            EvaluationError: episodes are lost one after the other and none was ever played.
        """
        self._reasons.setdefault(index, []).append(reason)
        lost = sum(map(len, self._reasons.values()))
        if lost < HOPELESS or not all(episode.error for episode in results.values()):
            return
        if not begun:
            raise EvaluationError(f"every evaluation process ended as it began ({reason}); {GUARD}")
        raise EvaluationError(
            f"environment '{self._env_name}': all {lost} attempts to play an episode failed; "
            f"the last one: {reason}; run imitate check-env to see the fault"
        )

    def episode(self, index: int, answer: EpisodeResult | Lost) -> EpisodeResult | None:
        """Return the episode's final result: played, or failed; None if it must be tried again."""
        reasons = self._reasons.get(index, [])
        if not isinstance(answer, Lost):
            first = reasons[0] if reasons else None
            return replace(answer, first_error=first) if first else answer
        if len(reasons) < TRIES:
            return None
        words = f"environment '{self._env_name}': {reasons[-1]}, in {TRIES} tries"
        return failed_episode(self._plan, index, words)


class EpisodeLog:
    """A file with a JSON line per episode, beside a table of evaluations; entries of the table replace it.

    An episode that could not be played is not recorded: another try may succeed. The open file is locked, so that no
    other process writes the same table.

    Args:
        table: path of the table.
    """

    def __init__(self, table: Path) -> None:
        self.path = table.with_name(f"{table.name}{ENDING}")
        self._found: dict[str, dict[int, EpisodeResult]] = {}
        self._file: TextIO | None = None

    def read(self) -> None:
        """Open the file and read its episodes; an incomplete last line is ignored.

        Raises:
            ConfigError: another process has the file open.
        """
        self._opened()
        for line in lines_of(self.path, _LONGEST_LINE):
            entry = _entry(line)
            if entry is not None:
                key, episode = entry
                self._found.setdefault(key, {})[episode.index] = episode

    def find(self, key: str) -> tuple[EpisodeResult, ...]:
        """Return the episodes of an evaluation that were read.

        Args:
            key: unique key of the evaluation.
        """
        return tuple(self._found.get(key, {}).values())

    def add(self, key: str, episode: EpisodeResult) -> None:
        """Write an episode; a kill -9 after this call does not lose it."""
        if episode.error is not None:
            return
        file = self._opened()
        file.write(to_json({"evaluation": key, "episode": episode.to_dict()}) + "\n")
        file.flush()

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it if all of its evaluations are finished, or it is empty."""
        file, self._file = self._file, None
        if file is None:
            return
        with file:  # close it, which releases the lock, only after it is removed
            if remove or not os.fstat(file.fileno()).st_size:
                self.path.unlink(missing_ok=True)

    def _opened(self) -> TextIO:
        """Return the file, open and locked, after removing an incomplete last line."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = appended(self.path)
            try:
                _lock(file, self.path)
            except ConfigError:
                file.close()
                raise
            self._file = file
            if size := os.fstat(file.fileno()).st_size:
                with self.path.open("rb") as written:
                    written.seek(size - 1)
                    if written.read(1) != b"\n":
                        file.write("\n")
        return self._file


def _lock(file: TextIO, path: Path) -> None:
    """Keep other processes out until the file is closed or this process has ended.

    Raises:
        ConfigError: another process has the file open, or has just removed it.
    """
    is_free = False
    with suppress(BlockingIOError):
        lock(file, needed=False)
        is_free = os.fstat(file.fileno()).st_nlink > 0
    if not is_free:
        raise ConfigError(
            f"{path.with_name(path.name.removesuffix(ENDING))}: another process is writing it: wait for it, or choose "
            "another name"
        )


def _entry(line: bytes) -> tuple[str, EpisodeResult] | None:
    try:
        entry = json_value(line)
        return str(entry["evaluation"]), episode_from_dict(entry["episode"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def episode_from_dict(entry: Mapping[str, Any]) -> EpisodeResult:
    """Make an episode's result from the dictionary of :meth:`EpisodeResult.to_dict`."""
    names = {field.name for field in fields(EpisodeResult)}
    own = {key: value for key, value in entry.items() if key in names}
    if own["episode_return"] is None:  # JSON has no NaN, so null was written
        own["episode_return"] = math.nan
    return EpisodeResult(**own)


class ResultsFile:
    """A JSON file ``{"evaluations": [...]}``, with the entries of ``imitate eval --out``.

    Episodes of unfinished evaluations are in a file beside it (:class:`EpisodeLog`).

    Args:
        path: path of the file.
        resume: true to keep the evaluations and episodes in the file.

    Raises:
        ConfigError: the file exists but is not resumed or has another format, or another process is writing it.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self._entries: list[dict[str, Any]] = []
        self._log = EpisodeLog(path)
        for there in (path, self._log.path):
            if there.exists() and there.stat().st_size and not resume:
                raise ConfigError(
                    f"{there}: exists already; choose another name, or continue it with --resume"
                )
        self._log.read()
        if not path.exists():
            return
        try:
            tree = parsed_json(read_text(path, _MOST_BYTES), str(path), _MOST_VALUES)
            self._entries = [dict(entry) for entry in tree["evaluations"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._log.close(remove=False)
            raise ConfigError(
                f"{path}: is not a table of evaluations ({type(error).__name__}: {error}); "
                "choose another name"
            ) from error

    def find(self, same: Mapping[str, Any]) -> EvalResult | None:
        """Return the result of an earlier evaluation.

        Args:
            same: everything that the result depends on, see :attr:`imitate.evaluate.job.EvalJob.identity`.
        """
        for entry in self._entries:
            if entry.get(SAME) == same:
                try:
                    return result_from_dict(entry)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise ConfigError(
                        f"{self.path}: contains an evaluation that cannot be read "
                        f"({type(error).__name__}: {error}); choose another name"
                    ) from error
        return None

    def add(self, same: Mapping[str, Any], result: EvalResult) -> None:
        """Append a result to the table and write its file.

        Args:
            same: everything that the result depends on, as of :meth:`find`.
            result: result of the evaluation.
        """
        self._entries.append({**result.to_dict(), SAME: dict(same)})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, to_json({"evaluations": self._entries}, indent=2) + "\n")

    def earlier(self, same: Mapping[str, Any]) -> tuple[EpisodeResult, ...]:
        """Return the episodes of an evaluation that was interrupted."""
        return self._log.find(_key(same))

    def keeper(self, same: Mapping[str, Any]) -> Callable[[EpisodeResult], None]:
        """Return a function that stores the episodes of an evaluation until it has a result."""
        return partial(self._log.add, _key(same))

    def close(self, *, is_over: bool) -> None:
        """Close the file of episodes.

        Args:
            is_over: true if all evaluations have a result, so that the episodes are no longer needed.
        """
        self._log.close(remove=is_over)


def result_from_dict(entry: Mapping[str, Any]) -> EvalResult:
    """Make an evaluation's result from the dictionary of :meth:`EvalResult.to_dict`."""
    own = {key: entry[key] for key in _names(Lateness) if key in entry}
    return EvalResult(
        env_name=entry["env"],
        checkpoint=entry["checkpoint"],
        episodes=tuple(episode_from_dict(episode) for episode in entry["per_episode"]),
        planned=entry["planned_episodes"],
        horizon=entry["horizon"],
        seed=entry["seed"],
        mode=entry["mode"],
        workers=entry["workers"],
        wall_s=entry["wall_s"],
        video=entry["video"],
        warnings=tuple(entry["warnings"]),
        longest_demo=entry["longest_demo"],
        late=Lateness(**own) if own else None,
        named=tuple(
            RewardSpec(name, "", each.get("at_least"), each.get("at_most"))
            for name, each in entry.get("rewards", {}).items()
        ),
    )


def _key(same: Mapping[str, Any]) -> str:
    """Return a key made of everything that a result depends on."""
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def label(env_meta: Mapping[str, Any]) -> str:
    """Return the name under which an environment's results are shown."""
    return str(env_meta.get("key") or env_meta.get("env_name", "?"))


def file_name(text: str) -> str:
    """Replace the characters of a label that a file name may not contain."""
    return re.sub(r"[^\w.-]+", "_", text)
