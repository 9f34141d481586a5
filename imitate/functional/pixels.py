"""Unit of an image's values, by the type of the recorded images. Needs no torch, because bundles import it."""

from __future__ import annotations

from imitate.errors import UserError

IMAGE_MODALITIES = ("rgb", "depth")


def image_type(dtype: object) -> str:
    """Return the type of an image's values: 'uint8', 'integer' (other sizes, or a mask) or 'float'."""
    name = str(dtype).removeprefix("torch.")
    return name if name == "uint8" else "float" if "float" in name else "integer"


def image_divisor(modality: str, recorded: str | None, given: str, key: str) -> float:
    """Return the number by which an image is divided before it is given to a network.

    Depth keeps the unit of the data: only images that were recorded as uint8 are divided by 255, whatever type arrives
    later.

    Args:
        modality: 'rgb' or 'depth'.
        recorded: :func:`image_type` of the training data; None if it is not known.
        given: :func:`image_type` of the image.
        key: name of the observation, for the error message.

    Raises:
        UserError: the values cannot be in the unit of the recorded ones.
    """
    if modality == "rgb":
        return 1.0 if given == "float" else 255.0
    if recorded is not None and given != recorded and not (given == "float" != recorded):
        raise UserError(
            f"image '{key}' has values of type {given}, but the training data had {recorded}: give it in the unit and "
            "type of the recording"
        )
    return 255.0 if given == "uint8" else 1.0
