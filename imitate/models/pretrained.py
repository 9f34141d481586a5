"""Loading of pretrained weights into trunks, and preparation of their images. No code in a file is run."""

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from imitate.errors import ConfigError
from imitate.system.torch_archive import file_fault

Weights = dict[str, Tensor]

PRETRAINED_KEY = _KEY = "backbone_kwargs.pretrained"
_FIRST = "conv1.weight"
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_WAYS = (
    f"install a torchvision that fits this torch and allow a download, or give the path of a file in {_KEY} "
    "(.pth or .safetensors with torchvision's names)"
)


def pretrained_weights(
    source: bool | str, torchvision_name: str, sha256: str | None = None
) -> tuple[Weights, str]:
    """Return the weights with torchvision's names, and a description of their origin.

    Args:
        source: true for torchvision's ImageNet weights, or a path.
        torchvision_name: torchvision's name of the network.
        sha256: checksum that a file must have; None to skip the check.
    """
    if isinstance(source, str):
        path = Path(source).expanduser()
        return _by_torchvisions_names(read_weights(path, sha256), path), str(path)
    return _from_torchvision(torchvision_name), f"torchvision's {torchvision_name}"


def fill(trunk: nn.Module, weights: Weights, source: str) -> None:
    """Load the weights of a whole ResNet into its trunk, in place.

    If the first convolution has other input channels besides colours, only the weights of the colours are loaded;
    without colour channels, no weights of this convolution are loaded. Statistics are not loaded into layers without
    statistics.

    Raises:
        ConfigError: the weights belong to another network.
    """
    state = trunk.state_dict()
    for name, value in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        given = weights.get(name)
        if given is None:
            raise ConfigError(
                f"{_KEY}: {source} lacks '{name}', which {type(trunk).__name__} has; use weights of the same type of "
                "network"
            )
        if (
            name == _FIRST
            and given.shape[0] == value.shape[0]
            and given.shape[2:] == value.shape[2:]
        ):
            channels = given.shape[1]
            if value.shape[1] >= channels:
                value[:, :channels] = given
        elif given.shape == value.shape:
            value.copy_(given)
        else:
            raise ConfigError(
                f"{_KEY}: '{name}' in {source} is {tuple(given.shape)}, but {type(trunk).__name__} needs "
                f"{tuple(value.shape)}; use weights of the same type of network"
            )
    unknown = [n for n in weights if n not in state and not _left_out(n)]
    if unknown:
        raise ConfigError(
            f"{_KEY}: {source} has '{unknown[0]}', which {type(trunk).__name__} does not have; use weights of the "
            "same type of network"
        )


def _left_out(name: str) -> bool:
    return name.startswith("fc.") or name.endswith(_STATISTICS)


def _from_torchvision(name: str) -> Weights:
    try:
        from torchvision.models import get_weight
    except (ImportError, RuntimeError, OSError) as error:
        raise ConfigError(
            f"{_KEY} is true, but torchvision cannot be imported ({_first_line(error)}): {_WAYS}"
        ) from error
    kind = name.replace("resnet", "ResNet")
    try:
        return dict(get_weight(f"{kind}_Weights.IMAGENET1K_V1").get_state_dict(progress=False))
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"{_KEY} is true, but torchvision could not fetch the weights of {name} ({_first_line(error)}): {_WAYS}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(2**20):
                digest.update(block)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise _missing(path) from error
        raise ConfigError(f"{_KEY}: cannot read {path}; check its permissions") from error
    return digest.hexdigest()


def _missing(path: Path) -> ConfigError:
    return ConfigError(
        f"{_KEY}: there is no file {path}; docs/encoders.md has the commands that fetch published weights"
    )


def read_weights(path: Path, sha256: str | None = None) -> Mapping[str, Any]:
    """Read a file of weights without running code from it.

    Args:
        path: a .safetensors file, or a file of ``torch.save``.
        sha256: checksum that the file must have; None to skip the check.

    Raises:
        ConfigError: the file cannot be read, has another checksum, or could run code.
    """
    if not path.is_file():
        raise _missing(path)
    if sha256 is not None and (found := checksum(path)) != sha256.lower():
        raise ConfigError(
            f"{_KEY}: {path} has the SHA-256 {found}, but backbone_kwargs.pretrained_sha256 is "
            f"{sha256}: give the original file, or set pretrained_sha256 to null"
        )
    try:
        if path.suffix == ".safetensors":
            return read_safetensors(path)
        if (words := file_fault(path)) is not None:
            raise ConfigError(f"{_KEY}: {path} cannot be read ({words}); copy it again")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"{_KEY}: {path} was refused: it is not a file of weights, or contains Python objects "
            "that could run code when loaded; save only the state_dict"
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError, OSError) as error:
        raise ConfigError(f"{_KEY}: {path} cannot be read ({_first_line(error)})") from error
    if not isinstance(content, Mapping):
        raise ConfigError(
            f"{_KEY}: {path} contains a {type(content).__name__}; expected a state_dict"
        )
    return content


def read_safetensors(path: Path) -> Weights:
    """Read the tensors of a .safetensors file.

    Raises:
        ValueError: the path is not a regular file, or the file is truncated or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():  # reading a pipe could wait forever
        raise ValueError("is not a regular file")
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError(f"truncated or damaged: {error}") from error


def without_wrapper(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state_dict within a file's content, which may be a training's dict that contains it."""
    for wrapper in ("state_dict", "model", "r3m"):
        if isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    return content


def _by_torchvisions_names(content: Mapping[str, Any], path: Path) -> Weights:
    """Return the weights with torchvision's names, by removing a prefix such as R3M's ``module.convnet.``."""
    content = without_wrapper(content)
    firsts = [name for name in content if name.endswith(_FIRST) and ".layer" not in f".{name}"]
    if len(firsts) != 1:
        raise ConfigError(
            f"{_KEY}: {path} has {len(firsts)} weights named '{_FIRST}' at the start of a network, expected one; "
            "its names must be torchvision's"
        )
    prefix = firsts[0].removesuffix(_FIRST)
    return {
        name.removeprefix(prefix): value
        for name, value in content.items()
        if name.startswith(prefix) and isinstance(value, Tensor)
    }


class ColourStatistics(NamedTuple):
    """Mean and standard deviation of red, green and blue in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = ColourStatistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class InputImages(nn.Module):
    """Resize images and normalize their colours.

    Args:
        channels: number of channels; the first three are colours if there are three or more.
        size: side of a square in pixels; None to keep the size.
        colours: statistics by which colours are normalized, or None. Images without colours are not normalized.
        mode: interpolation, 'bilinear' or 'bicubic', with antialiasing.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, channels: int, size: int | None, colours: ColourStatistics | None, mode: str
    ) -> None:
        super().__init__()
        self.size, self.mode = size, mode
        self.normalizes = colours is not None and channels >= 3
        if colours is not None and self.normalizes:
            others = channels - 3
            mean, std = (*colours.mean, *[0.0] * others), (*colours.std, *[1.0] * others)
            self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
            self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Resize ``(B, C, H, W)`` to ``(B, C, size, size)`` and normalize colours."""
        if self.size is not None and x.shape[-2:] != (self.size, self.size):
            x = interpolate(x, (self.size, self.size), mode=self.mode, antialias=True)
            if self.normalizes:
                x = x.clamp(0.0, 1.0)  # bicubic interpolation exceeds the range
        return (x - self.mean) / self.std if self.normalizes else x
