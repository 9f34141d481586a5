"""Named rewards of ``algo.rewards`` in evaluations: sums over each episode, means per step, and constraints."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from imitate.envs.env import named_reward
from imitate.system.statistics import Estimate, estimate
from imitate.system.text import mean_text


class RewardSpec(NamedTuple):
    """A named reward of a policy's training.

    Attributes:
        name: its name in ``algo.rewards``.
        source: "reward", or "info:KEY".
        at_least: lower bound of its mean per step, or None.
        at_most: upper bound of its mean per step, or None.
    """

    name: str
    source: str
    at_least: float | None = None
    at_most: float | None = None


def named_rewards(algo_section: Any) -> tuple[RewardSpec, ...]:
    """Return the named rewards of a configuration's section ``algo``; empty without any."""
    entries = algo_section.get("rewards", None) or {}
    return tuple(
        RewardSpec(name, entry.source, entry.at_least, entry.at_most)
        for name, entry in entries.items()
    )


class RewardSums:
    """Sums of named rewards over one episode; a reward that a step does not report is left out."""

    def __init__(self, specs: Sequence[RewardSpec]) -> None:
        self._sources = {spec.name: spec.source for spec in specs}
        self._sums = dict.fromkeys(self._sources, 0.0)

    def add(self, reward: float, info: Mapping[str, Any]) -> None:
        """Add the reward and info of one step."""
        for name in tuple(self._sums):
            value = named_reward(self._sources[name], reward, info)
            if value is None:
                del self._sums[name]
            else:
                self._sums[name] += value

    def totals(self) -> dict[str, float] | None:
        """Return the sum of each reward, or None without any."""
        return dict(self._sums) or None


@dataclass(frozen=True)
class RewardMeans:
    """A named reward over the episodes of an evaluation.

    Attributes:
        spec: its name and bounds.
        per_step: mean per step: the total of all episodes divided by all their steps, with the interval of a ratio of
            means.
        per_episode: sum over an episode, on average over the episodes.
    """

    spec: RewardSpec
    per_step: Estimate
    per_episode: Estimate

    @property
    def meets(self) -> bool | None:
        """True if the mean per step is within the bound, None without a bound."""
        if self.spec.at_most is not None:
            return self.per_step.value <= self.spec.at_most
        return None if self.spec.at_least is None else self.per_step.value >= self.spec.at_least

    @property
    def is_certain(self) -> bool:
        """True if the whole interval is on one side of the bound."""
        low, high = self.per_step.low, self.per_step.high
        bound = self.spec.at_least if self.spec.at_most is None else self.spec.at_most
        return None not in (low, high, bound) and not low <= bound <= high  # type: ignore[operator]

    @property
    def words(self) -> str:
        """The mean per step and, with a bound, whether the policy keeps it."""
        step, spec = self.per_step, self.spec
        text = f"{spec.name} {mean_text(step.value, None, step[1:3], '95 % interval ')} per step"
        if self.meets is None:
            return text
        bound = (
            f"at most {spec.at_most:g}"
            if spec.at_most is not None
            else f"at least {spec.at_least:g}"
        )
        sure = "" if self.is_certain else ", but the interval contains the bound"
        return f"{text}, {bound}: {'kept' if self.meets else 'NOT KEPT'}{sure}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; an unknown interval is null."""
        own = {
            "per_step": self.per_step.value,
            "per_step_95": None if self.per_step.low is None else list(self.per_step[1:3]),
            "per_episode": self.per_episode.value,
            "per_episode_95": None if self.per_episode.low is None else list(self.per_episode[1:3]),
        }
        if self.meets is None:
            return own
        bounds = {"at_least": self.spec.at_least, "at_most": self.spec.at_most}
        bound = {name: value for name, value in bounds.items() if value is not None}
        return {**own, **bound, "meets": self.meets, "is_certain": self.is_certain}


def reward_means(
    specs: Sequence[RewardSpec], sums: Sequence[Mapping[str, float]], lengths: Sequence[int]
) -> list[RewardMeans]:
    """Return the means of the named rewards that all episodes report.

    Args:
        specs: the named rewards.
        sums: sums of each episode by name.
        lengths: steps of each episode, at least 1.
    """
    found = []
    for spec in specs:
        totals = [own[spec.name] for own in sums if spec.name in own]
        if not totals or len(totals) < len(sums) or not all(map(math.isfinite, totals)):
            continue
        ratio, length = sum(totals) / sum(lengths), sum(lengths) / len(lengths)
        # Linearization: the error of a ratio of means is the mean of (total - ratio * steps) / length.
        around = [
            ratio + (total - ratio * steps) / length
            for total, steps in zip(totals, lengths, strict=True)
        ]
        found.append(RewardMeans(spec, estimate(around), estimate(totals)))
    return found
