"""Compressed frames of an episode: one JPEG or PNG each, or the packets of a video.

In a file they are an array ``(T,)`` of variable-length uint8 with the attributes ``encoding`` ('jpeg', 'png', 'video')
and ``shape`` = [H, W, 3] of a decoded RGB frame. A video has further attributes, see :class:`VideoForm`: ``codec``,
``setup`` (bytes), ``keys`` (one bit per packet), ``colours``, and ``order`` (one signed byte per packet: the number of
its frame minus its own number), unless that is always 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from imitate.data.file.image_files import decode_images
from imitate.data.file.video_frames import CODECS, VideoForm, frames_from

ENCODINGS = ("jpeg", "png", "video")
VIDEO_ATTRS = ("codec", "setup", "keys", "colours", "order")
"""Additional attributes of a video."""
_MAX_PACKETS = 60_000
"""Largest number of packets. HDF5 limits an attribute, such as ``order`` with a byte per packet, to 64 KiB."""


@dataclass(frozen=True, eq=False)
class EncodedFrames:
    """Compressed frames that may replace an array (T, H, W, 3) of uint8 in an episode; numpy decodes them.

    Attributes:
        encoding: one of :data:`ENCODINGS`.
        cells: (T,) bytes of an image file, or of a packet.
        frame: (H, W, 3) shape of a frame.
        video: information that the decoder of a video needs.
    """

    encoding: str
    cells: Sequence[bytes]
    frame: tuple[int, ...]
    video: VideoForm | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (T, H, W, 3) of all decoded frames."""
        return (len(self.cells), *self.frame)

    ndim = 4
    dtype = np.dtype(np.uint8)

    @property
    def size(self) -> int:
        """Number of values in all frames."""
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        return len(self.cells)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if self.video is not None:
            return np.stack(list(frames_from(self.cells, self.video, 0))).astype(dtype or np.uint8)
        return decode_images(self.cells, self.frame, self.encoding).astype(dtype or np.uint8)


def write_encoded(group: h5py.Group, key: str, frames: EncodedFrames) -> None:
    """Write frames without re-encoding; a video must fulfil :func:`can_be_written`."""
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
    """Return a file's information on a video.

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
    """Return true if a video is of a usual codec, begins with a key frame and its information fits into attributes."""
    shift = form.order - np.arange(len(form.order))
    return bool(
        form.codec in CODECS
        and len(form.order) <= _MAX_PACKETS
        and form.keys[0]
        and np.abs(shift).max(initial=0) < 128
        and np.array_equal(np.sort(form.order), np.arange(len(form.order)))
    )
