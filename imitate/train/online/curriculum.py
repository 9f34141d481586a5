"""Curriculum of online RL: the current stage of the environment, and the decision when the next one begins."""

from collections.abc import Mapping, Sequence
from typing import Any

from imitate.config import Config
from imitate.config.online import CurriculumConfig
from imitate.errors import ConfigError
from imitate.evaluate.environments import laid_over
from imitate.evaluate.result import EvalResult, label

SUCCESS, RETURN, STAGE = "Curriculum/Success_Rate", "Curriculum/Return", "Curriculum/Stage"


def stage_metas(config: Config, meta: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the env_args of each stage; empty without a curriculum.

    Args:
        config: resolved configuration.
        meta: env_args of the environment.

    Raises:
        ConfigError: there are no evaluations by which stages could be judged.
    """
    stages = config.train.online.curriculum.stages
    if stages and not config.experiment.rollout.enabled:
        raise ConfigError(
            "train.online.curriculum: stages are judged by evaluations, but experiment.rollout.enabled is false: set "
            "it to true"
        )
    return tuple(laid_over(meta, {"env_kwargs": stage.env_kwargs.to_dict()}) for stage in stages)


class Curriculum:
    """The current stage of a training run, and the rule that begins the next one.

    Args:
        config: section ``train.online.curriculum``, with stages.
        metas: env_args of each stage.

    Attributes:
        stage: index of the current stage, from 0.
    """

    def __init__(self, config: CurriculumConfig, metas: Sequence[dict[str, Any]]) -> None:
        self.stage = 0
        self._config, self._metas = config, metas
        self._began = self._judged = 0

    @property
    def meta(self) -> dict[str, Any]:
        """The env_args of the environment to collect in."""
        return self._metas[self.stage]

    @property
    def is_last(self) -> bool:
        """True if this is the last stage."""
        return self.stage == len(self._metas) - 1

    @property
    def evaluated(self) -> tuple[dict[str, Any], ...]:
        """Labelled env_args to evaluate in; the first judges the checkpoint, the last judges the stage."""
        present = {**self.meta, "key": f"{label(self.meta)} ({self.words})"}
        if self.is_last or self._config.evaluate == "last":
            return (self._metas[-1],)
        return (present,) if self._config.evaluate == "stage" else (self._metas[-1], present)

    @property
    def words(self) -> str:
        """Describe the current stage, such as "stage 2 of 3, far"."""
        name = self._config.stages[self.stage].name
        return f"stage {self.stage + 1} of {len(self._metas)}" + (f", {name}" if name else "")

    def numbers(self, results: Sequence[EvalResult]) -> dict[str, float]:
        """Return the numbers to log of the evaluation that judges the stage."""
        judged = results[-1]
        rate = {} if judged.success_rate is None else {SUCCESS: judged.success_rate}
        return {**rate, RETURN: judged.mean_return, **self.metrics()}

    def metrics(self) -> dict[str, float]:
        """Return the metric with the current stage, counted from 1."""
        return {STAGE: float(self.stage + 1)}

    def judge(self, epoch: int, step: int, numbers: Mapping[str, float]) -> bool:
        """Begin the next stage if an evaluation shows that the current one is learned.

        Args:
            epoch: epoch of the evaluation; ignored if it was judged before.
            step: environment steps so far.
            numbers: metrics of the evaluation, including those of :meth:`numbers`.

        Returns:
            true if the next stage begins.

        Raises:
            ConfigError: the stage ends at a success rate, which the environment does not report.
        """
        if epoch <= self._judged or RETURN not in numbers:
            return False
        self._judged = epoch
        until = self._config.stages[self.stage].until
        if until.success_rate is not None and SUCCESS not in numbers:
            raise ConfigError(
                f"train.online.curriculum.stages: {self.words} has until.success_rate, but its environment reports no "
                "success: use until.mean_return"
            )
        holds = (
            until.ends,
            not self.is_last,
            step - self._began >= until.min_steps,
            until.success_rate is None or numbers[SUCCESS] >= until.success_rate,
            until.mean_return is None or numbers[RETURN] >= until.mean_return,
        )
        if not all(holds):
            return False
        self.stage, self._began = self.stage + 1, step
        return True

    def state_dict(self) -> dict[str, int]:
        """Return the state as plain numbers."""
        return {"stage": self.stage, "began": self._began, "judged": self._judged}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume from :meth:`state_dict`; if there are fewer stages now, resume in the last one."""
        self.stage = min(int(state["stage"]), len(self._metas) - 1)
        self._began, self._judged = int(state["began"]), int(state["judged"])
