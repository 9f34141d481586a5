"""CPU time of a prediction, of the imports and of loading, for a policy in a bundle and for the same policy in torch.

    python -m benchmarks.bundle

Whole predictions are compared: a policy of chunks predicts a chunk in each call (``predict_chunk``), which in an
episode happens once in ``execute`` steps. Weights are random; times do not depend on them. The figures are medians of
rounds in turn, with one thread.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import compare, timed
from benchmarks.row import Row, table
from imitate import algo_factory, load_config, policy_from_checkpoint
from imitate.deploy import BundlePolicy
from imitate.deploy.bundle.exporting import export_policy
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint

SHAPES = {
    "object": (10,),
    "robot0_eef_pos": (3,),
    "robot0_eef_quat": (4,),
    "robot0_gripper_qpos": (2,),
    "agentview_image": (3, 84, 84),
    "robot0_eye_in_hand_image": (3, 84, 84),
}
ACTIONS = 7
POLICIES = {
    "bc": "robosuite/lift/bc",
    "act": "robosuite/lift/act",
    "bc_image": "robosuite/lift/bc_image",
    "flow_policy": "robosuite/lift/flow_policy",
    "diffusion_policy": "robosuite/lift/diffusion_policy",
}
CALLS = {"bc": 1000, "act": 100, "bc_image": 50, "flow_policy": 100, "diffusion_policy": 10}
GOALS = ("bc", "act", "bc_image")
MOST_OF_EAGER, LARGEST_DIFFERENCE, LOAD_S = 0.5, 1e-5, 0.5


def main() -> None:
    """Measure and print a table."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in POLICIES for row in rows_of(name, Path(folder))]
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs, torch {torch.__version__}"
    )
    print(table("bundle", rows))


def rows_of(name: str, folder: Path, rounds: int = 7) -> list[Row]:
    """Measure one policy."""
    checkpoint, bundle = folder / f"{name}.pth", folder / f"{name}.zip"
    _write_checkpoint(POLICIES[name], checkpoint)
    eager, _ = policy_from_checkpoint(device="cpu", ckpt_path=checkpoint)
    difference = export_policy(eager, bundle).difference
    exported = BundlePolicy(bundle)
    generator = np.random.default_rng(0)
    ob = {key: _observed(eager.algo.preprocess, key, generator) for key in eager.obs_keys}
    calls = {"eager": _prediction(eager, ob), "bundle": _prediction(exported, ob)}
    spent = compare({who: timed(call) for who, call in calls.items()}, CALLS[name], rounds)
    share = spent["bundle"].cpu_s / spent["eager"].cpu_s
    note = f"{1e3 * spent['bundle'].cpu_s:.3g} of {1e3 * spent['eager'].cpu_s:.3g} CPU ms"
    goal = name in GOALS
    load = "from imitate.deploy import BundlePolicy; BundlePolicy({!r})"
    torch_load = "from imitate import policy_from_checkpoint as p; p(device='cpu', ckpt_path={!r})"
    seconds = _started(load, bundle)
    return [
        Row(f"{name}: prediction", share, "of torch", MOST_OF_EAGER if goal else None, True, note=note),
        Row(f"{name}: difference", difference, "", LARGEST_DIFFERENCE, True),
        Row(
            f"{name}: import and load",
            seconds,
            "CPU s",
            LOAD_S if goal else None,
            True,
            note=f"torch {_started(torch_load, checkpoint):.2g}, bundle {bundle.stat().st_size / 1e6:.1f} MB",
        ),
    ]  # fmt: skip


def _write_checkpoint(config_name: str, path: Path) -> None:
    torch.manual_seed(0)
    config = load_config(Path("configs") / f"{config_name}.json")
    config = config.with_overrides({"experiment.epoch_every_n_steps": 10})
    shapes = {key: SHAPES[key] for key in config.observation.modality_of("obs")}
    algo = algo_factory(config.algo_name, config, shapes, ACTIONS, "cpu")
    limits = {"action_low": [-1.0] * ACTIONS, "action_high": [1.0] * ACTIONS}
    save_checkpoint(checkpoint_dict(algo, env_metadata={}, shape_metadata=limits), path)


def _observed(preprocess: Any, key: str, generator: np.random.Generator) -> Any:
    shape = preprocess.raw_shapes[key]
    if preprocess.modalities[key] == "rgb":
        return generator.integers(0, 256, shape, dtype=np.uint8)
    return generator.normal(size=shape)


def _prediction(policy: Any, ob: Any) -> Callable[[int], None]:
    """Make the requested number of predictions."""
    policy.start_episode()
    policy(ob)
    if policy.planned_actions() is None:
        return lambda n: [policy(ob) for _ in range(n)] and None
    return lambda n: [policy.predict_chunk([ob]) for _ in range(n)] and None


def _started(code: str, path: Path, times: int = 3) -> float:
    """Return the CPU seconds of a new process from its start, as a median."""
    line = f"import time; {code.format(str(path))}; print(time.process_time())"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = [
        float(subprocess.check_output([sys.executable, "-c", line], env=env)) for _ in range(times)
    ]
    return statistics.median(run)


if __name__ == "__main__":
    main()
