"""Comparison of exported policies' actions in robomimic's own package; for an interpreter that has robomimic.

python robomimic_acts.py FOLDER
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import sys
import types
from pathlib import Path

import numpy as np
import torch

STAND_INS = (
    "torchvision",
    "diffusers",
    "transformers",
    "huggingface_hub",
    "egl_probe",
    "tensorboardX",
    "imageio",
    "termcolor",
    "psutil",
    "tqdm",
)
CLOSE = 1e-5


class _Empty(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of empty packages that replace those which robomimic imports but does not use for acting."""

    names = frozenset(name for name in STAND_INS if importlib.util.find_spec(name) is None)

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Empty(spec.name)

    def exec_module(self, module):
        pass


def act(path, recorded):
    """Return robomimic's actions, with frames stacked as by its FrameStackWrapper."""
    import robomimic.utils.file_utils as file_utils

    policy, ckpt = file_utils.policy_from_checkpoint(
        device=torch.device("cpu"), ckpt_path=str(path)
    )
    frames = policy.policy.global_config.train.frame_stack
    obs = {key[4:]: value for key, value in recorded.items() if key.startswith("obs/")}
    steps = len(recorded["actions"])
    if frames > 1:
        index = (np.arange(steps)[:, None] + np.arange(1 - frames, 1)).clip(min=0)
        obs = {key: value[index] for key, value in obs.items()}
    torch.manual_seed(0)
    policy.start_episode()
    with torch.no_grad():
        actions = [
            policy({key: value[step].copy() for key, value in obs.items()}) for step in range(steps)
        ]
    return type(policy.policy).__name__, np.stack(actions)


def main(folder):
    """Print a line for each file; exit with 1 if actions differ."""
    sys.meta_path.append(_StandIns())
    import robomimic

    torch.set_num_threads(1)
    worst = 0.0
    paths = sorted(Path(folder).glob("*.pth"))
    for path in paths:
        recorded = dict(np.load(path.with_suffix(".npz")))
        with contextlib.redirect_stdout(io.StringIO()):
            name, actions = act(path, recorded)
        difference = float(np.abs(actions - recorded["actions"]).max())
        worst = max(worst, difference)
        sys.stdout.write(
            f"robomimic {robomimic.__version__} {path.stem} ({name}): {difference:.1e}\n"
        )
    if not paths or not worst < CLOSE:
        sys.exit(
            f"robomimic {robomimic.__version__}: {len(paths)} files, largest difference {worst:.1e}"
        )


if __name__ == "__main__":
    main(sys.argv[1])
