"""Measurement of how well an uncertainty distinguishes demonstrations like the training's from other demonstrations."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data import DatasetFile
from imitate.errors import DatasetError, UserError
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.policy.uncertainty import UNCERTAIN
from imitate.system.instructions import TASK_ATTRS, instruction_of
from imitate.system.statistics import Estimate, auroc

MEASURES = ("uncertainty", "entropy")
"""Names of a policy's extras that are uncertainties, (B,)."""
Series = Sequence[NDArray[np.float64]]


@dataclass(frozen=True)
class Separation:
    """Measure of how well an uncertainty separates usual demos (like the training's) from other demos.

    Attributes:
        measure: name of the uncertainty.
        auroc: probability that a step of the other demos is more uncertain than a step of the usual ones, with its
            interval over demos.
        usual, other: number of demos of both kinds.
        usual_steps, other_steps: number of steps of both kinds of demos.
        usual_above, other_above: fractions of the steps above the 95 % quantile of the checkpoint's calibration; None
            if the checkpoint has no calibration.
    """

    measure: str
    auroc: Estimate
    usual: int
    other: int
    usual_steps: int
    other_steps: int
    usual_above: float | None
    other_above: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "auroc": self.auroc._asdict()}


def uncertainties(
    policy: RolloutPolicy, path: str | Path, filter_key: str | None = None
) -> dict[str, list[NDArray[np.float64]]]:
    """Return the uncertainties (T,) of each demo by measure; the policy sees the demo's observations step by step.

    Raises:
        UserError: the policy reports no uncertainty, or needs a goal.
        DatasetError: the file lacks one of the policy's observations.
    """
    if policy.goal_keys:
        raise UserError(
            f"the policy takes goals ({', '.join(policy.goal_keys)}), which demonstration files do not contain: "
            "choose a policy without goals"
        )
    found: dict[str, list[NDArray[np.float64]]] = {}
    with DatasetFile(path) as file:
        for demo in file.demos(filter_key):
            missing = [key for key in policy.obs_keys if not file.has(demo, f"obs/{key}")]
            if missing:
                raise DatasetError(
                    f"{path}: {demo} lacks the observation '{missing[0]}' of the policy: choose a file that has it"
                )
            obs = {key: file.read(demo, f"obs/{key}") for key in policy.obs_keys}
            policy.start_episode(instruction_of(file.attrs(demo, TASK_ATTRS), None))
            steps: dict[str, list[float]] = {}
            for step in range(file.length(demo)):
                policy({key: values[step] for key, values in obs.items()})
                for name in MEASURES:
                    if name in policy.last_extras:
                        steps.setdefault(name, []).append(float(policy.last_extras[name][0]))
            for name, values in steps.items():
                found.setdefault(name, []).append(np.array(values))
    if not found:
        raise UserError(
            f"{policy.algo.global_config.algo_name} reports no uncertainty: {UNCERTAIN}"
        )
    return found


def separation(policy: RolloutPolicy, measure: str, usual: Series, other: Series) -> Separation:
    """Compare the uncertainties (T,) of usual demos with the uncertainties of other demos; see :class:`Separation`."""
    above: list[float | None] = [None, None]
    if policy.calibration is not None and measure == "uncertainty":
        threshold = policy.calibration.threshold(0.95)
        above = [float((np.concatenate(kind) > threshold).mean()) for kind in (usual, other)]
    return Separation(
        measure,
        auroc(usual, other),
        len(usual),
        len(other),
        sum(map(len, usual)),
        sum(map(len, other)),
        *above,
    )
