"""Reading of compressed frames from a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from imitate.data.file.encoded_frames import video_form
from imitate.data.file.image_codec import storage_of
from imitate.data.file.image_files import DamagedFrameError, decode_images
from imitate.data.file.video_frames import frames_from


class FrameReader:
    """Reader of one array's frames; a video is continued if the next reading begins where the last one ended.

    Args:
        array: array of compressed frames.

    Attributes:
        encoding: 'jpeg', 'png' or 'video'.

    Raises:
        ValueError, KeyError: the attributes are damaged.
    """

    def __init__(self, array: h5py.Dataset) -> None:
        self._array = array
        self.encoding, frame = storage_of(array)
        self._frame = frame or ()
        self._video = video_form(array, self._frame) if self.encoding == "video" else None
        self._following: tuple[int, Iterator[NDArray[np.uint8]]] | None = None

    def read(
        self, start: int = 0, stop: int | None = None, threads: Executor | None = None
    ) -> NDArray[np.uint8]:
        """Decode frames ``start`` to ``stop``: (stop - start, H, W, 3).

        Raises:
            DamagedFrameError: a frame cannot be decoded; its number is counted from ``start``.
        """
        begin, end, _ = slice(start, stop).indices(len(self._array))
        if self._video is None:
            return decode_images(self._array[begin:end], self._frame, self.encoding, threads)
        return self._from_video(begin, max(begin, end))

    def _from_video(self, begin: int, end: int) -> NDArray[np.uint8]:
        assert self._video is not None
        following, self._following = self._following, None
        if following is not None and following[0] == begin:
            frames = following[1]
        else:
            frames = frames_from(_Packets(self._array), self._video, begin)
        values = np.empty((end - begin, *self._frame), dtype=np.uint8)
        count = 0
        try:
            for count, frame in enumerate(islice(frames, end - begin), 1):
                values[count - 1] = frame
        except ValueError as error:
            raise DamagedFrameError(count, str(error)) from error
        if count < end - begin:
            raise DamagedFrameError(count, "the video ends before it")
        if end < len(self._array):
            self._following = end, frames
        return values


class _Packets(Sequence[Any]):
    """Packets of an array, read some at a time."""

    def __init__(self, array: h5py.Dataset, block: int = 16) -> None:
        self._array, self._size = array, block
        self._first, self._cells = 0, np.empty(0, dtype=object)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, number: Any) -> Any:
        if not self._first <= number < self._first + len(self._cells):
            self._first, self._cells = number, self._array[number : number + self._size]
        return self._cells[number - self._first]
