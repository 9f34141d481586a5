"""Choice of a run's device and of its floating-point precision."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from imitate.config import Config
from imitate.errors import ConfigError
from imitate.models.precision import has_fast_bf16


def choose_device(train: Any) -> tuple[torch.device, str]:
    """Return the device that `train.device` and `train.cuda` select on this machine, and a sentence to print.

    Raises:
        ConfigError: `train.device` names a device that this machine lacks.
    """
    if train.device is not None:
        return _named(train.device), f"device: {train.device} (train.device)"
    if not train.cuda:
        return torch.device("cpu"), "device: cpu (train.cuda is false)"
    if torch.cuda.is_available():
        return torch.device("cuda"), f"device: cuda ({torch.cuda.get_device_name()})"
    if torch.backends.mps.is_available():
        return torch.device("mps"), "device: mps"
    return torch.device("cpu"), "device: cpu (train.cuda is true, but torch sees no GPU here)"


def with_precision(config: Config, device: torch.device) -> Config:
    """Return the configuration with the precision ``auto`` replaced by bf16 if that is possible, else by fp32."""
    if config.train.precision != "auto":
        return config
    return config.with_overrides({"train.precision": precisions(config, device)[-1]})


def precisions(config: Config, device: torch.device) -> tuple[str, ...]:
    """Return the possible precisions: fp32, and bf16 if both device and algorithm support it."""
    if has_fast_bf16(device):
        with suppress(ConfigError):
            config.with_overrides({"train.precision": "bf16"})
            return ("fp32", "bf16")
    return ("fp32",)


@contextmanager
def device_in_use(device: torch.device) -> Iterator[None]:
    """Context in which this CUDA device is the current one, and cuDNN's autotuning is on.

    Code that names no device, such as the thread that pins memory, would otherwise also initialize the first GPU. cuDNN
    tries its algorithms on each new shape and keeps the fastest: batches have one or two shapes, and the last digits
    may differ from run to run. Autotuning is off if ``torch.backends.cudnn.deterministic`` is set.
    """
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, not cudnn.deterministic
    try:
        with torch.cuda.device(device):
            yield
    finally:
        cudnn.benchmark = before


def _named(name: str) -> torch.device:
    kind, _, number = name.partition(":")
    if kind == "cuda":
        count = torch.cuda.device_count()
        if int(number or 0) >= count:
            raise ConfigError(
                f"train.device: {name} was requested, but torch sees {count} CUDA devices here; "
                "choose another or leave it null"
            )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            "train.device: mps was requested, but torch has no MPS device here; use cpu"
        )
    return torch.device(name)
