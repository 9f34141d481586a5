"""Corrections of a learned model: known functions for rewards and ends, and a reward penalty where the model is unsure.

Yu, Thomas, Yu, Ermon, Zou, Levine, Finn, Ma, "MOPO: Model-based Offline Policy Optimization", NeurIPS 2020
(arXiv:2005.13239): rewards are lowered by a weight times the uncertainty of the step, so that neither plans nor
imagined transitions lead away from the data.

    disagreement  mean over dimensions of the standard deviation of the members' next states
    std           largest norm, over members, of the predicted standard deviation of change and reward (MOPO)

Both are in units of the standard deviations of the data's changes. In plans, members follow their own predictions, so
that their disagreement also contains the disagreement of earlier steps.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.base.own_networks import own_object
from imitate.algo.slots.dynamics import Dynamics, PredictedStep
from imitate.config import AlgoSection, BaseConfig, Section
from imitate.errors import ConfigError
from imitate.models.preprocess import Preprocess

OwnFunction = Annotated[str | None, Field(pattern=r"^[^:\s]+:[A-Za-z_][\w.]*$")]


class UncertaintyConfig(Section):
    """Penalty of rewards where the model is unsure."""

    weight: float = Field(
        0.0,
        ge=0,
        description="weight of the uncertainty that is subtracted from predicted rewards; 0: no penalty",
    )
    kind: Literal["disagreement", "std"] = Field(
        "disagreement",
        description="measure of the model's uncertainty: the disagreement of its members, or the standard deviation "
        "that they predict",
    )


class OutcomesConfig(AlgoSection):
    """Options of an algorithm with a learned model (``dynamics``): known rewards, known ends, uncertainty penalty."""

    uncertainty: UncertaintyConfig = Field(UncertaintyConfig())
    reward: OwnFunction = Field(
        None,
        description="known reward: 'module:function' of observations {key: (N, ...)}, actions (N, A) and next "
        "observations, in the units of the data, that returns (N,); null: the model predicts rewards",
    )
    ends: OwnFunction = Field(
        None,
        description="known episode ends: 'module:function' with the arguments of reward, that returns (N,) true or "
        "false; null: the model predicts ends",
    )

    def problems_of_outcomes(self, model: Any, config: BaseConfig) -> list[str]:
        """Return messages for settings that need a model, do not suit ``model``, or conflict with ``train.reward``."""
        unsure, scaling = self.uncertainty, config.train.reward
        found = {
            f"train.reward.scale is {scaling.scale:g} and shift {scaling.shift:g}, but algo.reward is in the units of "
            "the data: set them to 1 and 0": (
                self.reward is not None and (scaling.scale, scaling.shift) != (1.0, 0.0)
            ),
            "algo.dynamics is null, but algo.reward, ends or uncertainty need a model: set it": (
                model is None and bool(self.reward or self.ends or unsure.weight)
            ),
            "algo.uncertainty.kind is 'std', but the members predict no standard deviation: set "
            "algo.dynamics.distribution to 'gaussian'": bool(
                model is not None
                and unsure.weight
                and unsure.kind == "std"
                and model.get("distribution", None) == "deterministic"
            ),
            "algo.uncertainty.kind is 'disagreement', but algo.dynamics.members is 1: set it to 5": bool(
                model is not None
                and unsure.weight
                and unsure.kind == "disagreement"
                and model.get("members", None) == 1
            ),
        }
        return [words for words, holds in found.items() if holds]


class Outcomes:
    """Correction of the rewards and ends that a model predicts.

    Args:
        config: section of the algorithm.
        model: the model.
        preprocess: function that returns the algorithm's preprocessing, used to convert states and actions to the units
            of the data for the user's functions.

    Raises:
        EnvError: the configuration names a function that is not trusted.
    """

    def __init__(
        self, config: OutcomesConfig, model: Dynamics, preprocess: Callable[[], Preprocess]
    ) -> None:
        self._model, self._preprocess = model, preprocess
        self._unsure = config.uncertainty
        self._reward = own_object("algo.reward", config.reward) if config.reward else None
        self._ends = own_object("algo.ends", config.ends) if config.ends else None

    def __call__(self, states: Tensor, actions: Tensor, predicted: PredictedStep) -> PredictedStep:
        """Return the corrected predictions for actions (M, N, A) in states (M, N, D)."""
        rewards, ends = predicted.rewards, predicted.ends
        if self._reward is not None or self._ends is not None:
            known = self._inputs(states, actions, predicted.states)
            if self._reward is not None:
                rewards = self._numbers("reward", self._reward(*known), rewards)
            if self._ends is not None:
                ends = self._numbers("ends", self._ends(*known), ends)
        if self._unsure.weight > 0:
            rewards = rewards - self._unsure.weight * self._uncertainty(predicted)
        return predicted._replace(rewards=rewards, ends=ends)

    def _uncertainty(self, predicted: PredictedStep) -> Tensor:
        """Return the uncertainty (N,) of the predictions by the M members."""
        if self._unsure.kind == "std":
            if predicted.std is None:
                raise ConfigError(
                    f"algo.uncertainty.kind: {type(self._model).__name__} predicts no std: set it to 'disagreement'"
                )
            return predicted.std.amax(0)
        return (predicted.states.std(0, correction=0) / self._model.scale).mean(-1)

    def _inputs(
        self, states: Tensor, actions: Tensor, following: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """Return observations, actions and next observations (M N, ...) in the units of the data."""
        preprocess, rows = self._preprocess(), actions.flatten(0, 1)

        def raw(prepared: Tensor) -> dict[str, Tensor]:
            obs = self._model.obs_of(prepared.flatten(0, 1))
            return {key: preprocess.unnormalize_obs(key, value) for key, value in obs.items()}

        now = raw(states)
        return now, preprocess.unnormalize_actions(rows, now), raw(following)

    @staticmethod
    def _numbers(name: str, found: object, like: Tensor) -> Tensor:
        """Return a function's result in the shape (M, N). Raises ConfigError if it has another size."""
        if not isinstance(found, Tensor) or found.numel() != like.numel():
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(
                f"algo.{name}: returned {got} for {like.numel()} steps: return a tensor ({like.numel()},)"
            )
        return torch.as_tensor(found, dtype=like.dtype, device=like.device).view_as(like)


def outcomes_of(
    config: Any, model: Dynamics, preprocess: Callable[[], Preprocess]
) -> Outcomes | None:
    """Create the correction that an algorithm's section requests; None if it requests none."""
    if not isinstance(config, OutcomesConfig):
        return None
    wanted = config.reward or config.ends or config.uncertainty.weight > 0
    return Outcomes(config, model, preprocess) if wanted else None
