"""Preprocessing steps for images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import interpolate

from imitate.errors import ConfigError
from imitate.functional.images import IMAGE_MODALITIES
from imitate.models.preprocessing.step import PreprocessStep, Space, Spec


class Resize(PreprocessStep):
    """Resize images by bilinear interpolation between the centres of pixels.

    Args:
        size: height and width in pixels.
        antialias: average over all pixels that a pixel of the smaller image covers, as image libraries do; False: use
            the four nearest pixels, as OpenCV does.
        observations: image keys; None: all of them.
    """

    invertible = False
    # true for statistics per channel, except for the smoothing by interpolation
    keeps_statistics = True

    def __init__(
        self,
        size: Sequence[int],
        antialias: bool = True,
        observations: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if len(size) != 2 or any(int(side) < 1 for side in size):
            raise ConfigError(f"resize: size is {size}; expected [height, width] in pixels")
        self.size = (int(size[0]), int(size[1]))
        self.antialias = bool(antialias)
        self._chosen = None if observations is None else tuple(observations)
        self._resized: frozenset[str] = frozenset()

    def bind(self, spec: Spec) -> Spec:
        """Return the spec of the step's output."""
        images = [key for key, space in spec.obs.items() if space.modality in IMAGE_MODALITIES]
        for key in self._chosen or ():
            space = spec.space(key, self.name)
            if key not in images:
                raise ConfigError(
                    f"{self.name}: observation '{key}' is {space.modality}; expected one of "
                    f"{', '.join(IMAGE_MODALITIES)}"
                )
        if not images:
            raise ConfigError(
                f"{self.name}: no observation is an image; expected one under rgb or depth"
            )
        resized = images if self._chosen is None else self._chosen
        changed = {key: spec.obs[key].shape for key in resized}
        self._resized = frozenset(key for key, shape in changed.items() if shape[1:] != self.size)
        return spec.with_obs(
            {
                key: Space((shape[0], *self.size), spec.obs[key].modality)
                for key, shape in changed.items()
            }
        )

    def acts_on(self, key: str) -> bool:
        """Return true for the chosen images whose size differs."""
        return key in self._resized

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """Resize images ``(*B, C, H, W)``."""
        flat = value.flatten(0, -4) if value.dim() > 3 else value[None]
        resized = interpolate(flat, self.size, mode="bilinear", antialias=self.antialias)
        return resized.view(*value.shape[:-2], *self.size)

    def inverse_obs(self, key: str, value: Tensor) -> Tensor:
        """Return the image unchanged: its units are already those of the data, and lost pixels cannot be restored."""
        return value
