"""Former paths of modules and classes: ``import imitate.train.dagger`` gives the module that now lies elsewhere.

Code, notebooks and pickles of users name modules by their path. The finder below answers for each path in
:data:`MOVED` with the module itself, so that classes and functions are the same objects under both names. A module
that lacks a class of earlier versions asks :func:`former_class`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGES = {
    "imitate.collection": "imitate.simulation",
    "imitate.policy.robomimic": "imitate.interop.robomimic",
}
"""Present path by former path of packages, whose modules have moved with them."""
_MODULES = {
    "algo": {"bc_config": "algo.bc", "bc_transformer": "algo.bc"},
    "config": {"transitions": "config.data_needs"},
    "interop": {"robomimic.weights": "interop.weights"},
    "policy": {"robomimic.exporting": "policy.export"},
    "online": {"env_check": "checks.env", "supervision": "interactive.supervision"},
    "train": {
        "acting_check": "checks.acting",
        "algo_check": "checks.algo",
        "contracts": "checks.contracts",
        "dagger": "interactive.dagger",
        "env_trial": "evaluation.env_trial",
        "environments": "evaluation.environments",
        "episode_losses": "evaluation.episode_losses",
        "episode_pool": "evaluation.episode_pool",
        "episodes": "evaluation.episodes",
        "errors": "errors",
        "eval_result": "evaluation.eval_result",
        "evaluation": "evaluation.evaluate",
        "fqe": "evaluation.fqe",
        "fqe_data": "evaluation.fqe_data",
        "mosaic": "evaluation.mosaic",
        "online_run": "train.online_parts",
        "overlay": "evaluation.overlay",
        "run_folder": "run_folder",
        "seeding": "seeding",
        "update_check": "checks.update",
        "vector_episodes": "evaluation.vector_episodes",
    },
}
_DATA = {
    "file": "action_scale cache confined episode extents faults fields fingerprint image_codec "
    "journal observed step_forms writer",
    "batches": "agreement buffers build demo_language file_rows frame_cache free_memory gathering placement returns "
    "rewards sampling sequence_dataset statistics step_numbers step_weights store transitions windows",
}

MOVED = {
    **PACKAGES,
    **{
        f"imitate.{package}.{old}": f"imitate.{new}"
        for package, modules in _MODULES.items()
        for old, new in modules.items()
    },
    "imitate.data.hdf5_format": "imitate.data.dataset_file",
    **{
        f"imitate.data.{name}": f"imitate.data.{room}.{name}"
        for room, names in _DATA.items()
        for name in names.split()
    },
}
"""Present path by former path, packages among them."""


CLASSES = {
    "imitate.algo.a2c.RecurrentA2C": "imitate.algo.a2c.A2C",
    "imitate.algo.airl.AIRL": "imitate.algo.ppo.PPO",
    "imitate.algo.bcq.BCQCriticConfig": "imitate.algo.rl_sections.BCQCriticConfig",
    "imitate.algo.bcq.BCQOptimParams": "imitate.algo.rl_sections.BCQOptimParams",
    "imitate.algo.bcq.DistributionalConfig": "imitate.algo.rl_sections.DistributionalConfig",
    "imitate.algo.gail.GAIL": "imitate.algo.ppo.PPO",
    "imitate.algo.gl.GLOptimParams": "imitate.algo.sections.GLOptimParams",
    "imitate.algo.gl.MeanSubgoalConfig": "imitate.algo.sections.MeanSubgoalConfig",
    "imitate.algo.ppo.RecurrentPPO": "imitate.algo.ppo.PPO",
    "imitate.algo.sections.HorizonConfig": "imitate.algo.denoising.HorizonConfig",
}
"""Present path by former path of classes: the class of this name, or the one that does its work."""


def former_class(module: str, name: str) -> Any:
    """Return a class of earlier versions; the ``__getattr__`` of the module that had it.

    Raises:
        AttributeError: the module had no such class.
    """
    present = CLASSES.get(f"{module}.{name}")
    if present is None:
        raise AttributeError(f"module '{module}' has no attribute '{name}'")
    warnings.warn(f"{module}.{name} is now {present}", DeprecationWarning, stacklevel=2)
    home, _, new_name = present.rpartition(".")
    return getattr(import_module(home), new_name)


def present_path(path: str) -> str | None:
    """Return the present path of a module that has moved, alone or with its package; None if it has not."""
    if path in MOVED:
        return MOVED[path]
    package, _, name = path.rpartition(".")
    return f"{MOVED[package]}.{name}" if package in PACKAGES else None


class _Finder:
    """Finder and loader of modules under their former paths."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if present_path(name) is None else ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make an empty module, which :meth:`exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        present = present_path(module.__name__)
        assert present is not None
        warnings.warn(f"{module.__name__} is now {present}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(present)


def install() -> None:
    """Let Python find modules under their former paths.

    The finder goes first: it has to answer before a folder of compiled files that an older version has left.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
