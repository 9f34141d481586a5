"""Pictures of the initial scenes of trials, and overlays of two of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot import Observation
from imitate.system.plain_files import cleared, replaced


def images_of(observation: Observation) -> dict[str, NDArray[np.uint8]]:
    """The colour images (H, W, 3) uint8 of an observation, by key."""
    return {
        key: value
        for key, value in observation.values.items()
        if getattr(value, "ndim", 0) == 3 and value.shape[2] == 3 and value.dtype == np.uint8
    }


def save_images(
    images: Mapping[str, NDArray[np.uint8]], folder: Path, name: str
) -> dict[str, Path]:
    """Write each image as ``<folder>/<name>_<key>.png``; return paths by key."""
    paths = {}
    for key, image in images.items():
        paths[key] = folder / f"{name}_{key.replace('/', '_')}.png"
        _save(image, paths[key])
    return paths


def save_overlays(
    before: Mapping[str, Path], now: Mapping[str, NDArray[np.uint8]], folder: Path, name: str
) -> list[Path]:
    """Write pictures of two starts side by side: the first, the current one, and a blend of both.

    Args:
        before: file of the first start by key; keys whose file is missing or has another size are skipped.
        now: the current images by key.
        folder: folder of the pictures.
        name: prefix of their names.
    """
    from PIL import Image

    sheets = {}
    for key in (key for key in before if key in now):
        try:
            with Image.open(before[key], formats=("PNG",)) as picture:
                if picture.size[::-1] != now[key].shape[:2]:
                    continue
                first = np.asarray(picture.convert("RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue
        if first.shape == now[key].shape:
            sheets[key] = np.concatenate([first, now[key], blend(first, now[key])], axis=1)
    return list(save_images(sheets, folder, name).values())


def blend(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Average two images of the same shape."""
    mixed: NDArray[Any] = (first.astype(np.uint16) + second + 1) // 2
    return mixed.astype(np.uint8)


def _save(image: NDArray[np.uint8], path: Path) -> None:
    """Write a PNG atomically."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as part:
        Image.fromarray(image).save(cleared(part), format="PNG")
