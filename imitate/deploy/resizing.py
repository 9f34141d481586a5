"""Resize camera images to the size in the demonstrations, as the preprocessing step ``resize`` does in training.

The filter is bilinear and averages over all pixels that a smaller image's pixel covers: pillow's ``BILINEAR``, which
differs from :class:`imitate.models.preprocessing.steps.Resize` by at most one of 255 levels and needs no torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.deploy.schema import Schema
from imitate.errors import UserError

IMAGE_KINDS = ("rgb", "depth")
_PILLOW_CHANNELS = (1, 3)
"""Numbers of channels that Pillow resizes independently; of four channels it would weight three by the fourth."""


def resized(image: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Resize an image.

    Args:
        image: (H, W, C), uint8 or floats.
        size: height and width in pixels.

    Returns:
        (height, width, C) of the same dtype; the image itself if it already has the size.
    """
    if image.shape[:2] == size:
        return image
    if image.dtype == np.uint8 and image.shape[2] in _PILLOW_CHANNELS:
        small: NDArray[Any] = _by_pillow(image, size).reshape(*size, image.shape[2])
        return small
    channels = [
        _by_pillow(image[..., number].astype(np.float32), size) for number in range(image.shape[2])
    ]
    together = np.stack(channels, axis=-1)
    if np.issubdtype(image.dtype, np.integer):
        together = np.rint(together)
    whole: NDArray[Any] = together.astype(image.dtype)
    return whole


def _by_pillow(image: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    from PIL import Image

    single = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    picture = Image.fromarray(np.ascontiguousarray(single))
    height, width = size
    small: NDArray[Any] = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
    return small


class Resizer:
    """Resizes the images of observations to the sizes that a policy expects.

    Args:
        schema: schema of the policy.
    """

    def __init__(self, schema: Schema) -> None:
        observed = {**schema.goals, **schema.observations}
        self._sizes = {
            key: (spec.shape[0], spec.shape[1])
            for key, spec in observed.items()
            if spec.kind in IMAGE_KINDS and len(spec.shape) == 3
        }

    def __call__(self, ob: Mapping[str, ArrayLike]) -> dict[str, ArrayLike]:
        """Return the observation with resized images; other values stay unchanged.

        Raises:
            UserError: an image has another aspect ratio, so that it would be distorted.
        """
        return {key: self._fitted(key, value) for key, value in ob.items()}

    def _fitted(self, key: str, value: ArrayLike) -> ArrayLike:
        size, image = self._sizes.get(key), np.asarray(value)
        if size is None or image.ndim != 3 or image.shape[:2] == size:
            return value
        height, width = image.shape[:2]
        # Rounding to whole pixels may change a side by half a pixel in either image.
        allowed = max(max(height, width) / 2, max(size))
        if abs(height * size[1] - width * size[0]) > allowed:
            raise UserError(
                f"image '{key}' has {height} x {width} pixels, but {size[0]} x {size[1]} in the demonstrations: "
                "resizing "
                "would distort it; crop it in the robot's observe() as it was cropped for the demonstrations"
            )
        return resized(image, size)


class ResizedPolicy:
    """Policy that resizes the images of observations to the sizes in its demonstrations.

    Args:
        policy: policy with the interface of :class:`imitate.RolloutPolicy`; attributes not defined here are its own.
        schema: schema of the policy.
    """

    def __init__(self, policy: Any, schema: Schema) -> None:
        self._policy, self._resizer = policy, Resizer(schema)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def __call__(
        self, ob: Mapping[str, ArrayLike], goal: Mapping[str, ArrayLike] | None = None
    ) -> Any:
        """Return the action for an observation."""
        return self._policy(self._resizer(ob), None if goal is None else self._resizer(goal))

    def predict_chunk(self, history: Sequence[Mapping[str, ArrayLike]], **rest: Any) -> Any:
        """Predict the chunk for a history, see :meth:`imitate.RolloutPolicy.predict_chunk`."""
        return self._policy.predict_chunk([self._resizer(ob) for ob in history], **rest)
