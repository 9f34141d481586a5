"""Frames of an episode as they are compressed: a JPEG or PNG each, or the packets of a video.

In a file they are an array ``(T,)`` of variable-length uint8 with the attributes ``encoding`` ('jpeg', 'png', 'video')
and ``shape`` = [H, W, 3], that of a decoded frame, in RGB. A video has further ones, see :class:`VideoForm`: ``codec``,
``setup`` (bytes), ``keys`` (a bit for each packet), ``colours``, and ``order`` (a signed byte for each packet: number
of its frame less its own) where that is not 0 throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from imitate.data.file.image_files import decode_images
from imitate.data.file.video_frames import VideoForm, frames_from

ENCODINGS = ("jpeg", "png", "video")
VIDEO_ATTRS = ("codec", "setup", "keys", "colours", "order")
"""Further attributes of a video."""
_MAX_PACKETS = 60_000
"""HDF5 holds 64 KiB in an attribute, such as the byte per packet of ``order``."""


@dataclass(frozen=True, eq=False)
class EncodedFrames:
    """Compressed frames that may stand for an array (T, H, W, 3) of uint8 in an episode; numpy decodes them.

    Attributes:
        encoding: one of :data:`ENCODINGS`.
        cells: (T,) bytes of an image file, or of a packet.
        frame: (H, W, 3).
        video: what decoders of a video need.
    """

    encoding: str
    cells: Sequence[bytes]
    frame: tuple[int, ...]
    video: VideoForm | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, H, W, 3)."""
        return (len(self.cells), *self.frame)

    ndim = 4
    dtype = np.dtype(np.uint8)

    @property
    def size(self) -> int:
        """Numbers in all frames."""
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        return len(self.cells)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if self.video is not None:
            return np.stack(list(frames_from(self.cells, self.video, 0))).astype(dtype or np.uint8)
        return decode_images(self.cells, self.frame, self.encoding).astype(dtype or np.uint8)


def write_encoded(group: h5py.Group, key: str, frames: EncodedFrames) -> None:
    """Write frames as they are; videos must be such that :func:`can_be_written` is true."""
    array = group.create_dataset(key, (len(frames),), dtype=h5py.vlen_dtype(np.uint8))
    array.attrs["encoding"] = frames.encoding
    array.attrs["shape"] = frames.frame
    for step, cell in enumerate(frames.cells):
        array[step] = np.frombuffer(cell, dtype=np.uint8)
    if frames.video is not None:
        _write_form(array, frames.video)


def _write_form(array: h5py.Dataset, form: VideoForm) -> None:
    shift = form.order - np.arange(len(form.order))
    array.attrs["codec"] = form.codec
    if form.setup:
        array.attrs["setup"] = np.frombuffer(form.setup, dtype=np.uint8)
    array.attrs["keys"] = np.packbits(form.keys)
    array.attrs["colours"] = np.array(form.colours, dtype=np.int32)
    if shift.any():
        array.attrs["order"] = shift.astype(np.int8)


def video_form(array: h5py.Dataset, frame: tuple[int, ...]) -> VideoForm:
    """Return what a file says of a video.

    Raises:
        KeyError, ValueError: an attribute is missing or has another size.
    """
    count = int(array.shape[0])
    keys = np.unpackbits(np.asarray(array.attrs["keys"], dtype=np.uint8), count=count).astype(bool)
    shift = np.asarray(array.attrs.get("order", np.zeros(count)), dtype=np.int64)
    if shift.shape != (count,):
        raise ValueError(f"the attribute 'order' has {shift.size} numbers for {count} packets")
    return VideoForm(
        codec=str(array.attrs["codec"]),
        shape=frame,
        setup=np.asarray(array.attrs.get("setup", ()), dtype=np.uint8).tobytes(),
        keys=keys,
        order=np.arange(count) + shift,
        colours=tuple(int(value) for value in np.ravel(array.attrs.get("colours", ()))),
    )


def can_be_written(form: VideoForm) -> bool:
    """Return true if a video begins with a key frame and fits the attributes of an array."""
    shift = form.order - np.arange(len(form.order))
    return bool(
        len(form.order) <= _MAX_PACKETS
        and form.keys[0]
        and np.abs(shift).max(initial=0) < 128
        and np.array_equal(np.sort(form.order), np.arange(len(form.order)))
    )
