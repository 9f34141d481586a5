"""Statistics of values inside the pipeline, after earlier steps have changed the data."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from imitate.errors import ConfigError
from imitate.models.fitting import MeasuredStats, PartlyMeasured, Statistics
from imitate.models.preprocessing.step import PreprocessStep, Spec
from imitate.system.images import IMAGE_MODALITIES


class Sample(NamedTuple):
    """A batch of raw windows.

    Attributes:
        obs: (B, T, ...) observations by key.
        actions: (B, K, D) as stored.
        reference: observations to which the actions are relative, (B, D) or (B, K, D) by key.
        real: (B, K) bool, false for actions after the end of a demonstration.
    """

    obs: dict[str, Tensor]
    actions: Tensor
    reference: dict[str, Tensor]
    real: Tensor


Samples = Callable[[Collection[str]], Iterable[Sample]]
"""Function of observation keys that returns windows of the training data with these observations."""


def statistics_before(
    steps: Sequence[PreprocessStep],
    number: int,
    spec: Spec,
    statistics: Statistics,
    samples: Samples | None,
) -> Statistics:
    """Compute the statistics of a step's input.

    Args:
        steps: steps of the pipeline.
        number: index of the step.
        spec: spec of the step's input.
        statistics: statistics of the data.
        samples: returns windows, for keys that an earlier step has changed; None if the data are not available.
    """
    measured = _Measured(steps[:number], spec, samples)
    return {
        "obs": PartlyMeasured(statistics.get("obs", {}), measured.obs),
        "actions": PartlyMeasured(statistics.get("actions", {}), measured.actions),
    }


class _Measured:
    """Measures statistics of values after the given steps have changed them."""

    def __init__(
        self,
        steps: Sequence[PreprocessStep],
        spec: Spec,
        samples: Samples | None,
    ) -> None:
        self._steps = steps
        self._spec = spec
        self._samples = samples

    def obs(self, key: str) -> MeasuredStats | None:
        """Compute the statistics of an observation, or return None if no earlier step changed its values."""
        steps = [step for step in self._steps if step.acts_on(key)]
        if all(step.keeps_statistics for step in steps):
            return None
        values = []
        modality = self._spec.obs[key].modality
        for sample in self._windows(key, (key,)):
            value = sample.obs[key].flatten(0, 1)
            for step in steps:
                value = step.forward_obs(key, value)
            if modality in IMAGE_MODALITIES:  # each pixel is one sample per channel
                value = value.movedim(1, -1).flatten(0, -2)
            # statistics of scans have the layout (L, C) of the file
            values.append(value.mT if modality == "scan" else value)
        return MeasuredStats.of(torch.cat(values))

    def actions(self, key: str) -> MeasuredStats | None:
        """Compute the statistics of an action key, or return None if no earlier step changed its values."""
        steps = [step for step in self._steps if step.changes_actions]
        if all(step.keeps_statistics for step in steps):
            return None
        values = []
        for sample in self._windows(key, {name for step in steps for name in step.references}):
            actions = sample.actions.float()
            for step in steps:
                actions = step.measured_actions(actions, sample.reference)
            parts = torch.split(actions, list(self._spec.actions.values()), -1)
            values.append(parts[list(self._spec.actions).index(key)][sample.real])
        return MeasuredStats.of(torch.cat(values))

    def _windows(self, key: str, obs_keys: Collection[str]) -> Iterable[Sample]:
        if self._samples is None:
            raise ConfigError(
                f"train.preprocess: a step changes '{key}' before the normalization, which must be fitted to samples "
                "of the changed data: give samples"
            )
        return self._samples(obs_keys)
