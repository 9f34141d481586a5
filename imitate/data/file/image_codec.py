"""Writing and reading of images in a file: uncompressed, compressed without loss, or as one JPEG per step.

For arrays of JPEGs, PNGs and video packets see :mod:`imitate.data.file.encoded_frames`.
"""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Any, Literal, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from imitate.data.file.encoded_frames import (
    ENCODINGS,
    DamagedFrameError,
    EncodedFrames,
    decode_images,
    frames_from,
    video_form,
    write_encoded,
)

ImageStorage = Literal["raw", "gzip", "lzf", "jpeg"]
STORAGES: tuple[ImageStorage, ...] = ("raw", "gzip", "lzf", "jpeg")

# For 84 x 84 frames, windows of ten steps are read fastest from chunks of 4 to 16 frames, and single steps from chunks
# of one frame. A chunk of four frames takes half the space of four chunks.
_CHUNK_FRAMES = 4
_CHUNK_BYTES = 2**18


class Storage(NamedTuple):
    """Storage of an array in the file.

    Attributes:
        kind: 'raw' (contiguous); 'gzip', 'lzf' or another filter; 'chunked' without a filter; 'jpeg', 'png', 'video'.
        frame: shape of a decoded frame for 'jpeg', 'png' and 'video'; None for all others.
    """

    kind: str
    frame: tuple[int, ...] | None = None


def storage_of(array: h5py.Dataset) -> Storage:
    """Return how an array is stored.

    Raises:
        ValueError: the array is marked as compressed frames but has another form.
    """
    encoding = array.attrs.get("encoding")
    if h5py.check_vlen_dtype(array.dtype) == np.uint8 and encoding in ENCODINGS:
        frame = tuple(int(size) for size in np.ravel(array.attrs["shape"]))
        if len(frame) != 3 or frame[2] != 3 or min(frame) < 1 or len(array.shape) != 1:
            raise ValueError(f"the attribute 'shape' of the frames is {frame}, not (H, W, 3)")
        return Storage(str(encoding), frame)
    if array.chunks is None:
        return Storage("raw")
    filters = array.id.get_create_plist().get_nfilters()
    return Storage(str(array.compression or "filtered") if filters else "chunked")


def write_images(
    group: h5py.Group,
    key: str,
    values: NDArray[Any] | EncodedFrames,
    storage: ImageStorage,
    quality: int,
) -> None:
    """Write ``values`` (T, ...) as the array ``key``; 'jpeg' means gzip for arrays other than uint8 (T, H, W, 3).

    Frames that are already compressed are not re-encoded.
    """
    if isinstance(values, EncodedFrames):
        write_encoded(group, key, values)
        return
    if storage == "raw":
        group.create_dataset(key, data=values)
        return
    if storage == "jpeg" and values.dtype == np.uint8 and values.ndim == 4 and values.shape[3] == 3:
        array = group.create_dataset(key, (len(values),), dtype=h5py.vlen_dtype(np.uint8))
        array.attrs["encoding"] = "jpeg"
        array.attrs["shape"] = values.shape[1:]
        for step, image in enumerate(values):
            array[step] = encode_jpeg(image, quality)
        return
    frame_bytes = max(1, values[0].nbytes)
    frames = max(1, min(_CHUNK_FRAMES, _CHUNK_BYTES // frame_bytes, len(values)))
    group.create_dataset(
        key,
        data=values,
        chunks=(frames, *values.shape[1:]),
        compression="lzf" if storage == "lzf" else "gzip",
    )


def encode_jpeg(image: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    """Encode an RGB image (H, W, 3) as a JPEG, with colours at full resolution."""
    data = io.BytesIO()
    Image.fromarray(image).save(data, "JPEG", quality=quality, subsampling=0)
    return np.frombuffer(data.getvalue(), dtype=np.uint8)


class FrameReader:
    """Reader of one array's frames; the decoder of a video continues if a read begins where the last read ended.

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
            raise DamagedFrameError(count, "the video ends before this frame")
        if end < len(self._array):
            self._following = end, frames
        return values


class _Packets(Sequence[Any]):
    """Sequence of the packets in an array, which are read in small groups."""

    def __init__(self, array: h5py.Dataset, block: int = 16) -> None:
        self._array, self._size = array, block
        self._first, self._cells = 0, np.empty(0, dtype=object)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, number: Any) -> Any:
        if not self._first <= number < self._first + len(self._cells):
            self._first, self._cells = number, self._array[number : number + self._size]
        return self._cells[number - self._first]
