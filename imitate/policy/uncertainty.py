"""Calibration of a policy's uncertainty: the values that are usual in demonstrations not used for training.

The unit of an uncertainty has no meaning for a person, so thresholds are given as quantiles. With n steps of held-out
demonstrations, the threshold for the quantile q is the ceil((n + 1) q)-th smallest uncertainty of these steps. Another
step from the same distribution exceeds the threshold with a probability of at most 1 - q, for any policy and any
distribution (split conformal prediction: Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", 2005;
Angelopoulos and Bates, arXiv:2107.07511). Steps of one demonstration are not independent, so the bound holds on average
over many demonstrations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.errors import CheckpointError, UserError

MOST_STEPS = 1000
"""Largest number of demonstration steps whose uncertainties are stored in a checkpoint."""


UNCERTAIN = (
    "train bc_ensemble, or flow_policy, diffusion_policy or act with algo.uncertainty_samples"
)
"""Advice in messages for a policy without an uncertainty."""


@dataclass(frozen=True)
class Calibration:
    """Uncertainties of a policy in demonstrations.

    Attributes:
        values: (n,) uncertainties, ascending.
        held_out: true if the policy did not learn from these demonstrations; otherwise new steps exceed a threshold
            more often than its quantile says.
    """

    values: NDArray[np.float64]
    held_out: bool = True

    @classmethod
    def of(cls, values: ArrayLike, held_out: bool) -> Calibration:
        """Return the calibration of unsorted uncertainties."""
        return cls(np.sort(np.asarray(values, dtype=np.float64).ravel()), held_out)

    def threshold(self, quantile: float) -> float:
        """Return the uncertainty that new steps exceed with a probability of at most ``1 - quantile``.

        The threshold is infinite if there are too few steps for this quantile.

        Raises:
            UserError: the quantile is not in (0, 1].
        """
        if not 0.0 < quantile <= 1.0:
            raise UserError(f"the quantile is {quantile:g}; wanted a number above 0, at most 1")
        # 100 * 0.07 is 7.000000000000001; without the subtraction it would be rounded up to 8
        number = math.ceil((len(self.values) + 1) * quantile - 1e-9)
        return math.inf if number > len(self.values) else float(self.values[number - 1])

    def rank(self, uncertainty: ArrayLike) -> NDArray[np.float64]:
        """Return the largest quantile whose threshold each uncertainty exceeds, in the shape of ``uncertainty``."""
        below: NDArray[np.float64] = np.searchsorted(self.values, uncertainty) / (
            len(self.values) + 1
        )
        return below

    def words(self, quantile: float) -> str:
        """Describe the threshold for a quantile and its coverage in one line."""
        steps = f"{len(self.values)} {'held-out' if self.held_out else 'training'} steps"
        return (
            f"threshold {self.threshold(quantile):.3g}, the {100 * quantile:g} % quantile of {steps}: at most "
            f"{100 * (1 - quantile):.3g} % of further steps like these are above it"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as the part ``calibration`` of a checkpoint."""
        import torch

        values = torch.as_tensor(self.values, dtype=torch.float64)
        return {"values": values, "held_out": self.held_out}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any] | None, source: str | Path) -> Calibration | None:
        """Read the part ``calibration`` of a checkpoint; None if the checkpoint has none.

        Raises:
            CheckpointError: a value is not a finite number; the message begins with ``source``, the checkpoint's name.
        """
        if not saved:
            return None
        values = saved["values"].double().cpu().numpy()
        if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
            raise CheckpointError(
                f"{source}: 'calibration.values' of the checkpoint must be a vector of finite numbers"
            )
        return cls.of(values, bool(saved["held_out"]))
