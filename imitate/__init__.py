"""imitate: robot demonstrations to deployed policies.

The public names are imported on first use, so that ``import imitate`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from imitate.system.version import __version__

_HOMES = {
    "Algo": "imitate.algo.base.algo",
    "RolloutPolicy": "imitate.policy.rollout_policy",
    "SequenceDataset": "imitate.data.batches.sequence_dataset",
    "algo_factory": "imitate.algo.base.factory",
    "load_config": "imitate.config",
    "policy_from_checkpoint": "imitate.policy.loading",
    "register_algo_factory_func": "imitate.algo.base.factory",
}

if TYPE_CHECKING:
    from imitate.algo.base.algo import Algo
    from imitate.algo.base.factory import algo_factory, register_algo_factory_func
    from imitate.config import load_config
    from imitate.data.batches.sequence_dataset import SequenceDataset
    from imitate.policy.loading import policy_from_checkpoint
    from imitate.policy.rollout_policy import RolloutPolicy

__all__ = [
    "Algo",
    "RolloutPolicy",
    "SequenceDataset",
    "__version__",
    "algo_factory",
    "load_config",
    "policy_from_checkpoint",
    "register_algo_factory_func",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'imitate' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
