"""Estimates of a training's duration and of its fastest settings, from first updates on a few demos."""

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from imitate.config import Config, load_config
from imitate.config.from_data import num_epochs
from imitate.config.observation import ObservationConfig
from imitate.data import ShuffledBatches
from imitate.data.batches.build import training_sources
from imitate.data.shards.data_files import data_files
from imitate.models.observation import ObservationEncoder
from imitate.system.memory import gigabytes
from imitate.system.seeding import preserved_rng, torch_threads
from imitate.system.text import counted
from imitate.train.batch_source import make_loader
from imitate.train.console import duration
from imitate.train.devices import choose_device, precisions
from imitate.train.features import feature_seconds, put_blank_features
from imitate.train.setup import Setup, build, resolve

DEMOS = 4
MOST_BYTES = 4e8
"""Largest total size of the observations in a trial's demos; if the longest demo is larger, there is no trial."""
TRIAL_BYTES = 1e9
"""Memory limit for the images of a trial update; larger updates are measured on fewer samples."""
UPDATES = 5
MOST_S = 8.0
FIRST_S = 20.0
"""A second update is run only if the first took fewer seconds; then the first, a warm-up, does not count."""
MARGIN = 1.1
"""The simpler setting (fp32, fewer threads) is chosen unless another one is faster by this factor."""


@dataclass(frozen=True)
class _Trial:
    """Configuration of a whole training, and of a short part that is quick to measure."""

    whole: Config
    part: Config
    device: torch.device
    samples: int


def forecast(tree: dict[str, Any]) -> str:
    """Build the algorithm, run the first updates on a few demos, and estimate the time of the whole training.

    Args:
        tree: a configuration with one data file; evaluation and validation are not counted.

    Raises:
        UserError: the configuration cannot be built from the data.
    """
    trial = _trial(tree)
    if trial is None:
        return f"not measured, because a single demo has more than {gigabytes(int(MOST_BYTES))}"
    config = trial.whole
    batch, part = config.train.batch_size, trial.part.train.batch_size
    updates, a_row = _measured(trial.part, trial.device)
    seconds = statistics.median(updates) * batch / part
    once = a_row * trial.samples
    total = seconds * _updates(config, trial.samples) + once
    by = f"{seconds:.2g} s per update, measured on the first ones here; without rollouts"
    if part < batch:
        by += f"; measured on {part} of its {batch} samples, to save memory"
    if once > 0:
        by += (
            f"; {duration(once)} of it for the features of frozen encoders, which are computed once"
        )
    return f"about {duration(total)} on {trial.device} ({by})"


def fastest(tree: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Run the first updates with each precision and, on a CPU, several numbers of threads.

    Args:
        tree: as for :func:`forecast`.

    Returns:
        the fastest values for the section ``train``, and a text with the shortest update time of each variant.
    """
    trial = _trial(tree)
    if trial is None:
        return {}, f"nothing, because a single demo has more than {gigabytes(int(MOST_BYTES))}"
    most, on_cpu = torch.get_num_threads(), trial.device.type == "cpu"
    threads = sorted({1, max(1, most // 2), most}) if on_cpu else [trial.whole.train.num_threads]
    seconds = {}
    for precision, count in product(precisions(trial.whole, trial.device), threads):
        values = {"train.precision": precision, "train.num_threads": count}
        taken, _ = _measured(trial.part.with_overrides(values), trial.device)
        seconds[precision, count] = min(taken)
    least = min(seconds.values())
    precision, count = next(one for one in seconds if seconds[one] <= MARGIN * least)
    times = ", ".join(f"{1e3 * s:.3g} ms with {_named(*one)}" for one, s in seconds.items())
    chosen = {"precision": precision} | ({} if count is None else {"num_threads": count})
    return chosen, f"{_named(precision, count)}; an update takes {times}"


def _named(precision: str, threads: int | None) -> str:
    return precision if threads is None else f"{precision} and {counted(threads, 'thread')}"


def _trial(tree: dict[str, Any]) -> _Trial | None:
    """Reduce a training to a few demos and a batch that fits in memory; return None if one demo is too large."""
    config = load_config(tree)
    with data_files(config) as files:
        config = resolve(config, None, None, files)
        (source,) = training_sources(config, files)
        file = files.open(source.path)
        demos = source.chosen(file)
        lengths = sorted((file.length(demo) for demo in demos), reverse=True)
        a_step = sum(
            int(np.prod(file.shape(demos[0], f"obs/{key}")[1:])) for key in config.all_obs_keys
        )
        shapes = {
            key: tuple(file.shape(demos[0], f"obs/{key}")[1:])
            for key, modality in config.observation.modalities_of_all().items()
            if modality == "rgb"
        }
    few = min(DEMOS, int(MOST_BYTES // max(1, lengths[0] * a_step)))
    if few == 0:
        return None
    device, _ = choose_device(config.train)
    small = {
        "train.data.0.demo_limit": few,
        "experiment.validate": False,
        "train.batch_size": _affordable(tree, config, shapes),
    }
    return _Trial(config, config.with_overrides(small), device, sum(lengths))


def _affordable(tree: dict[str, Any], config: Config, shapes: dict[str, tuple[int, ...]]) -> int:
    """Return the batch size that fits in a trial's memory: the configured one, unless images are large."""
    for step in tree["train"].get("preprocess") or ():
        if step.get("step") == "resize":
            shapes = {key: (*step["size"], shape[2]) for key, shape in shapes.items()}
    share = TRIAL_BYTES / max(image_memory(tree, shapes), 1.0)
    return max(1, min(config.train.batch_size, int(share * config.train.batch_size)))


def _updates(config: Config, samples: int) -> int:
    """Return the number of updates of a whole training."""
    size = config.train.batch_size
    a_pass = max(1, samples // size)
    an_epoch = config.experiment.epoch_every_n_steps or a_pass
    epochs = config.train.num_epochs or num_epochs(samples, size, an_epoch)
    return int(epochs * an_epoch)


def _measured(config: Config, device: torch.device) -> tuple[list[float], float]:
    """Measure the seconds of updates, and of one row's features if the training caches them.

    The first update warms up and counts only if it is the only one.
    """
    with preserved_rng(), torch_threads(config.train.num_threads):
        return _seconds(build(config, device), device)


def _seconds(setup: Setup, device: torch.device) -> tuple[list[float], float]:
    config = setup.config
    batches = ShuffledBatches(len(setup.train_set), config.train.batch_size, config.train.seed)
    loader = iter(make_loader(setup.train_set, batches, 0, device))
    algo = setup.algo
    cached = config.train.cache_features
    a_row = feature_seconds(algo, setup.train_set) if cached else 0.0
    taken: list[float] = []
    algo.set_train()
    began = time.perf_counter()
    while len(taken) <= UPDATES and time.perf_counter() - began < (
        MOST_S if taken[1:] else FIRST_S
    ):
        start = time.perf_counter()
        raw = next(loader)
        if cached:
            put_blank_features(algo, setup.train_set, raw)
        info = algo.train_on_batch(algo.process_batch_for_training(raw), 1)
        float(next(iter(info.values())))  # waits until the device has finished the update
        taken.append(time.perf_counter() - start)
    return taken[1:] or taken, a_row


LARGE = 2e9
"""Number of bytes above which smaller images are proposed."""
_SMALLEST = 64
_FLOAT = 4
_COPIES = 2
"""Number of copies of a batch's images besides the network's activations: floats, and gradients or crops."""
_PASSES = 3
"""Forward passes that take as long as the forward and backward pass of an update."""
_PER_CORE = 4e10
"""Rough number of operations per second and CPU core; it is high, so that the estimated time is a lower bound."""


def image_memory(tree: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Estimate the bytes that an update needs for images and for their encoders' stored activations.

    Args:
        tree: a configuration.
        shapes: (H, W, C) of each camera as the encoders see it.
    """
    kept, _, images = _for_one_image(tree, shapes)
    numbers = sum(math.prod(shape) for shape in shapes.values())
    return float(images * (kept + _COPIES * _FLOAT * numbers))


def image_seconds(tree: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Estimate the seconds that the image encoders need in an update on this machine's CPU, without running one.

    The arguments are those of :func:`image_memory`.
    """
    _, operations, images = _for_one_image(tree, shapes)
    return _PASSES * images * operations / (_PER_CORE * torch.get_num_threads())


def _for_one_image(
    tree: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int, int, int]:
    """Return bytes of activations and operations of a forward pass, and the number of images in an update.

    The first two are for one image of each camera; the last is for each camera.
    """
    config = load_config(dict(tree))
    if not shapes or not isinstance(config.observation, ObservationConfig):
        return 0, 0, 0
    network = config.observation.encoder.to_dict()
    channels_first = {key: (c, h, w) for key, (h, w, c) in shapes.items()}
    rnn = getattr(config.algo, "rnn", None)
    steps = config.train.seq_length if getattr(rnn, "enabled", False) else 1
    images = config.train.batch_size * config.train.frame_stack * steps
    with preserved_rng(), FlopCounterMode(display=False) as counter:
        encoder = ObservationEncoder(
            channels_first, dict.fromkeys(shapes, "rgb"), network, load_pretrained=False
        ).eval()  # in training mode, batch normalization fails on a batch of one
        kept = _kept(encoder, channels_first)
    return kept, counter.get_total_flops(), images


def _kept(encoder: ObservationEncoder, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Measure the bytes of activations kept for the gradient, for one image of each camera."""
    own = {weight.untyped_storage().data_ptr() for weight in encoder.parameters()}
    sizes: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        out = encoder({key: torch.zeros(1, *shape) for key, shape in shapes.items()})
    del out
    return sum(sizes.values())


def smaller(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return half the size of an image, with no side below 64."""
    height, width = shape[:2]
    return max(_SMALLEST, height // 2), max(_SMALLEST, width // 2)
