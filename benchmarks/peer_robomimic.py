"""Benchmarks of robomimic's loader, training step and policy call, run by an interpreter that has robomimic.

    python benchmarks/peer_robomimic.py DEMOS.hdf5 [DEVICE]

The program reads JSON lines {"case": ..., "n": ...} from standard input, optionally with "data" for other
demonstrations, does n iterations of the case, and answers with a JSON line {"cpu_s": ..., "wall_s": ...}, or with
percentiles for a policy call. Images need torchvision. Missing packages that robomimic imports but low-dim behavior
cloning never calls are replaced by empty ones.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

# this file runs by itself, outside of the package
from measuring import Spent, drawn, percentiles, timed
from peer_cases import (
    CAMERAS,
    CROP,
    IMAGE_BATCH_SIZE,
    LOW_DIM,
    OFFLINE_STEPS,
    SIZE,
    answer,
    offline_name,
)

STAND_INS = (
    "torchvision",
    "diffusers",
    "transformers",
    "huggingface_hub",
    "egl_probe",
    "tensorboardX",
    "imageio",
)
OBS_KEYS = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object")
IMAGE_KEYS = (*LOW_DIM, *CAMERAS)
DATASET_KEYS = ("actions", "rewards", "dones")
BATCH_SIZE = 100
CONTEXT = 10
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"


class _Empty(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


MISSING = {n for n in STAND_INS if importlib.util.find_spec(n) is None}
sys.meta_path.append(_StandIns(MISSING))


def make_dataset(
    path: str, seq_length: int, obs_keys: tuple[str, ...] = OBS_KEYS, **more: Any
) -> Any:
    """Return robomimic's dataset in its fastest form, with every sample cached."""
    from robomimic.utils.dataset import SequenceDataset

    arguments = {
        "hdf5_path": path,
        "obs_keys": obs_keys,
        "dataset_keys": DATASET_KEYS,
        "action_keys": ("actions",),
        "action_config": {"actions": {"normalization": None}},
        "seq_length": seq_length,
        "hdf5_cache_mode": "all",
        "load_next_obs": False,
        **more,
    }
    known = inspect.signature(SequenceDataset.__init__).parameters
    return SequenceDataset(**{key: value for key, value in arguments.items() if key in known})


def make_config(kind: str) -> Any:
    """Return robomimic's template of an algorithm, or of a variant of BC: ``rnn_gmm``, ``transformer``, ``image``."""
    from robomimic.config import config_factory

    config = config_factory(kind if kind in OFFLINE_STEPS else "bc")
    with config.values_unlocked():
        config.observation.modalities.obs.low_dim = list(OBS_KEYS)
        config.train.batch_size = BATCH_SIZE
        if kind == "rnn_gmm":
            config.train.seq_length = 10
            config.algo.rnn.enabled = True
            config.algo.gmm.enabled = True
            config.algo.actor_layer_dims = ()
        if kind == "transformer":
            config.train.frame_stack = CONTEXT
            config.algo.transformer.enabled = True
            config.algo.transformer.context_length = CONTEXT
        if kind == "image":
            use_cameras(config)
    return config


def use_cameras(config: Any) -> None:
    """Set robomimic's configuration to a ResNet-18 with spatial softmax per camera and random crops."""
    config.observation.modalities.obs.low_dim = list(LOW_DIM)
    config.observation.modalities.obs.rgb = list(CAMERAS)
    rgb = config.observation.encoder.rgb
    rgb.core_class = "VisualCore"
    rgb.core_kwargs.backbone_class = "ResNet18Conv"
    rgb.core_kwargs.pool_class = "SpatialSoftmax"
    rgb.core_kwargs.feature_dimension = 64
    rgb.obs_randomizer_class = "CropRandomizer"
    rgb.obs_randomizer_kwargs.crop_height = CROP
    rgb.obs_randomizer_kwargs.crop_width = CROP


def make_model(path: str, kind: str) -> Any:
    """Return an algorithm on the device."""
    import h5py
    import robomimic.utils.obs_utils as obs_utils
    import torch
    from robomimic.algo import algo_factory

    config = make_config(kind)
    obs_utils.initialize_obs_utils_with_config(config)
    keys = IMAGE_KEYS if kind == "image" else OBS_KEYS
    with h5py.File(path, "r") as file:
        demo = file["data"][next(iter(file["data"]))]
        shapes = {key: list(demo["obs"][key].shape[1:]) for key in sorted(keys)}
        action_dim = demo["actions"].shape[1]
    shapes |= {key: [3, SIZE, SIZE] for key in CAMERAS if key in keys}
    torch.manual_seed(0)
    return algo_factory(config.algo_name, config, shapes, action_dim, torch.device(DEVICE))


def batches_of(dataset: Any, batch_size: int = BATCH_SIZE) -> Iterator[Any]:
    """Yield batches of robomimic's DataLoader without end."""
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=0, drop_last=True)
    while True:
        yield from loader


def loader_case(path: str, seq_length: int) -> Callable[[int], dict[str, float]]:
    """Return a function that draws batches."""
    return cost_of(drawn(batches_of(make_dataset(path, seq_length))))


def step_case(
    path: str, kind: str, batch_size: int = BATCH_SIZE
) -> Callable[[int], dict[str, float]]:
    """Return a function that runs training steps as robomimic's run_epoch does."""
    model = make_model(path, kind)
    statistics = None
    if kind in OFFLINE_STEPS:
        normalizes = bool(model.global_config.train.hdf5_normalize_obs)
        data = make_dataset(path, 1, load_next_obs=True, hdf5_normalize_obs=normalizes)
        statistics = data.get_obs_normalization_stats() if normalizes else None
        batches = batches_of(data, batch_size)
    elif kind == "image":
        batches = batches_of(make_dataset(path, 1, IMAGE_KEYS), IMAGE_BATCH_SIZE)
    elif kind == "transformer":
        batches = batches_of(make_dataset(path, 1, frame_stack=CONTEXT))
    else:
        batches = batches_of(make_dataset(path, 10 if kind == "rnn_gmm" else 1))
    # Steps that older versions lack.
    postprocess = getattr(
        model, "postprocess_batch_for_training", lambda batch, obs_normalization_stats: batch
    )
    after_step = getattr(model, "on_gradient_step", lambda: None)
    model.set_train()

    def iterate(n: int) -> None:
        for _ in range(n):
            batch = model.process_batch_for_training(next(batches))
            batch = postprocess(batch, obs_normalization_stats=statistics)
            model.log_info(model.train_on_batch(batch, 1))
            after_step()

    return cost_of(timed(iterate, DEVICE))


def call_case(path: str, kind: str) -> Callable[[int], dict[str, float]]:
    """Return a function that calls a policy with one observation."""
    import h5py
    from robomimic.algo import RolloutPolicy

    policy = RolloutPolicy(make_model(path, kind))
    with h5py.File(path, "r") as file:
        demo = file["data"][next(iter(file["data"]))]
        ob = {key: demo["obs"][key][0] for key in OBS_KEYS}
    policy.start_episode()
    return lambda n: percentiles(lambda: policy(ob), n)


def cost_of(run: Callable[[int], Spent]) -> Callable[[int], dict[str, float]]:
    """Return a function from a number of iterations to their cost."""
    return lambda n: asdict(run(n))


CASES: dict[str, Callable[[str], Callable[[int], dict[str, float]]]] = {
    "loader_seq1": lambda path: loader_case(path, 1),
    "loader_seq10": lambda path: loader_case(path, 10),
    "step_bc": lambda path: step_case(path, "plain"),
    "step_bc_rnn_gmm": lambda path: step_case(path, "rnn_gmm"),
    "step_bc_transformer": lambda path: step_case(path, "transformer"),
    "call_bc": lambda path: call_case(path, "plain"),
    "call_bc_rnn_gmm": lambda path: call_case(path, "rnn_gmm"),
}
for _algo_name, _sizes in OFFLINE_STEPS.items():
    for _size in _sizes:
        CASES[offline_name(_algo_name, _size)] = lambda path, name=_algo_name, size=_size: (
            step_case(path, name, size)
        )
if "torchvision" not in MISSING:
    CASES["step_image"] = lambda path: step_case(path, "image")


def serve(path: str) -> None:
    """Answer requests until standard input ends. robomimic's output goes to standard error."""
    answers = sys.stdout

    def of_request(make: Callable[[str], Any]) -> Callable[[Mapping[str, Any]], Any]:
        return lambda request: make(request.get("data", path))

    with contextlib.redirect_stdout(sys.stderr):
        import robomimic
        import torch

        torch.set_num_threads(1)
        hello = {
            "robomimic": robomimic.__version__,
            "torch": torch.__version__,
            "cases": list(CASES),
        }
        answer(hello, {case: of_request(make) for case, make in CASES.items()}, answers)


if __name__ == "__main__":
    serve(sys.argv[1])
