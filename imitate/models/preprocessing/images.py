"""Steps on images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import interpolate

from imitate.errors import ConfigError
from imitate.functional.pixels import IMAGE_MODALITIES
from imitate.models.preprocessing.step import PreprocessStep, Space, Spec


class Resize(PreprocessStep):
    """Images at another size, by bilinear interpolation between the centres of pixels.

    Args:
        size: height and width in pixels.
        antialias: average over all pixels that a smaller image's pixel covers, as image libraries do; False uses
            the four nearest, as OpenCV does.
        observations: image keys; None: all of them.
    """

    invertible = False
    keeps_statistics = True  # per channel, except for the smoothing by interpolation

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
        """See the base class."""
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
        """Return true for the chosen images that have another size."""
        return key in self._resized

    def forward_obs(self, key: str, value: Tensor) -> Tensor:
        """``(*B, C, H, W)`` at the size."""
        flat = value.flatten(0, -4) if value.dim() > 3 else value[None]
        resized = interpolate(flat, self.size, mode="bilinear", antialias=self.antialias)
        return resized.view(*value.shape[:-2], *self.size)

    def inverse_obs(self, key: str, value: Tensor) -> Tensor:
        """Return the image as it is: its units are the data's, its lost pixels cannot be restored."""
        return value
