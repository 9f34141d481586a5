"""Conversion of gymnasium environments' actions and single-array observations to the form of this package."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.formats.base import ConversionReport
from imitate.errors import DatasetError
from imitate.system.images import image_layout, in_layout

_MOST_CHOICES = 10_000


def named_obs(values: NDArray[Any], old: str, report: ConversionReport) -> tuple[str, NDArray[Any]]:
    """Return name and values of a single-array observation: 'image' for frames (T, H, W, C), else 'flat'.

    Args:
        values: (T, ...); frames with channels first are transposed.
        old: name in the file.
        report: receives the new name and the change of the layout.
    """
    layout = image_layout(values.shape[1:], values.dtype)
    if layout is not None:
        report.renamed[old] = "obs/image"
        return "image", turned(values, layout, "obs/image", report)
    report.renamed[old] = "obs/flat"
    return "flat", values.reshape(len(values), -1)


def turned(
    values: NDArray[Any], layout: str | None, key: str, report: ConversionReport
) -> NDArray[Any]:
    """Convert images (T, ...) in a layout of :func:`image_layout` to (T, H, W, C), and report the change."""
    if layout == "CHW":
        report.changed[key] = "channels first -> (T, H, W, C)"
    elif layout == "HW":
        report.changed[key] = "(T, H, W) -> (T, H, W, 1)"
    return in_layout(values, layout)


def choices_of(actions: NDArray[Any], where: str) -> int | None:
    """Return the number of discrete actions.

    The result is None if actions are not indices, because they are not integers or there are several per step.

    Args:
        actions: (N,) or (N, A) actions of a whole dataset.
        where: file and array of the actions, for the error message.

    Raises:
        DatasetError: the actions are integers but not indices.
    """
    if actions.dtype.kind not in "iub" or actions.size != len(actions) or actions.size == 0:
        return None
    if actions.min() < 0 or actions.max() >= _MOST_CHOICES:
        raise DatasetError(
            f"{where} contains {actions.min()} to {actions.max()}, which are not indices of "
            "actions: the file is damaged"
        )
    return int(actions.max()) + 1


def action_rows(
    actions: NDArray[Any], choices: int | None, report: ConversionReport
) -> NDArray[Any]:
    """Convert actions to (T, A).

    Indices become one-hot rows, which this package's gymnasium environments accept and policies can learn.
    """
    if choices is None:
        return actions.reshape(len(actions), -1)
    report.changed["actions"] = f"index -> one-hot of {choices}"
    return one_hot(actions, choices)


def one_hot(index: NDArray[Any], choices: int) -> NDArray[Any]:
    """Return (T, choices) float32 with 1 at each index.

    Raises:
        DatasetError: there are more choices than in any intact dataset, or an index is out of range.
    """
    number = index.reshape(-1).astype(np.int64)
    if choices > _MOST_CHOICES or (number.size and not 0 <= number.min() <= number.max() < choices):
        raise DatasetError(
            f"indices {number.min(initial=0)} to {number.max(initial=0)} of {choices} choices (at most "
            f"{_MOST_CHOICES} are read): the dataset is damaged"
        )
    rows: NDArray[Any] = np.zeros((len(number), choices), dtype=np.float32)
    rows[np.arange(len(number)), number] = 1
    return rows
