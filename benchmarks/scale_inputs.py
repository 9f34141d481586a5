"""Measured inputs of :mod:`benchmarks.scale`: CPU seconds on one thread, the fastest of several rounds."""

from __future__ import annotations

import json
import os
import pickle
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.demos import OBS_KEYS, made_up
from benchmarks.online_step import sac_updates
from benchmarks.trained import make_setup
from imitate import algo_factory, load_config
from imitate.data import DatasetFile
from imitate.envs import make_env
from imitate.policy.rollout_policy import RolloutPolicy

TASK = {"type": 1, "env_name": "Lift", "env_kwargs": {}}
ROUNDS = 5
CAMERAS = ["agentview", "robot0_eye_in_hand"]
START = (
    "import torch; from imitate.envs import make_env; import imitate.policy.loading; "
    "env = make_env({'type': 1, 'env_name': 'Lift', 'env_kwargs': {}}); env.reset(seed=0)"
)


def measured() -> dict[str, Any]:
    """Return all figures; takes some minutes."""
    torch.set_num_threads(1)
    states, images = _env_s(None, 80), _env_s(CAMERAS, 15)
    update = sac_updates()
    update(3)
    return {
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load": list(os.getloadavg()),
        },
        "unit": "CPU seconds",
        "env_s": states[0],
        "reset_s": states[1],
        "image_env_s": images[0],
        "image_reset_s": images[1],
        "act_s": _act_s(),
        "update_s": _cpu_s(lambda: update(40)) / 40,
        "weights_bytes": _weights_bytes(),
        "start_s": _start_s(),
    }


def _env_s(cameras: list[str] | None, steps: int) -> tuple[float, float]:
    """Return CPU seconds of a step and of a reset."""
    env = make_env(TASK, camera_names=cameras, camera_size=84) if cameras else make_env(TASK)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-0.3, 0.3, (steps, env.action_dim))
    spent = _cpu_s(lambda: [env.step(action) for action in actions]) / steps
    reset = _cpu_s(lambda: [env.reset(seed=seed) for seed in range(3)]) / 3
    env.close()
    return spent, reset


def _act_s() -> float:
    with tempfile.TemporaryDirectory() as folder:
        data = made_up(Path(folder, "made_up.hdf5"), [42] * 4)
        setup = make_setup(data, recurrent=False)
        low, high = (setup.shape_metadata[key] for key in ("action_low", "action_high"))
        policy = RolloutPolicy(setup.algo, low, high)
        with DatasetFile(data) as file:
            obs = {key: file.read(file.demos()[0], f"obs/{key}")[0] for key in OBS_KEYS}
    policy.start_episode()
    policy(obs)
    return _cpu_s(lambda: [policy(obs) for _ in range(500)]) / 500


def _weights_bytes() -> int:
    """Return the size of a SAC actor of 256 x 256, as collectors get it."""
    tree = {
        "algo_name": "sac",
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }
    algo = algo_factory("sac", load_config(tree), {"flat": (19,)}, 7)
    actor = {key: value.numpy() for key, value in algo.nets["actor"].state_dict().items()}
    return len(pickle.dumps(actor, protocol=pickle.HIGHEST_PROTOCOL))


def _start_s() -> float:
    spent = []
    for _ in range(ROUNDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", START], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


def _cpu_s(call: Callable[[], Any]) -> float:
    """Return the CPU seconds of the fastest of several calls: what else the machine does only adds to them."""
    spent = []
    for _ in range(ROUNDS):
        began = time.process_time()
        call()
        spent.append(time.process_time() - began)
    return min(spent)


def found_or_measured(path: Path, *, anew: bool) -> dict[str, Any]:
    """Return the figures in a file, which is written first where there is none or `anew` is wanted."""
    if anew or not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(measured(), indent=2) + "\n")
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures
