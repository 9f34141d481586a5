"""Compressed frames of an episode: one JPEG or PNG per frame, or the packets of a video.

In a file they are an array ``(T,)`` of variable-length uint8 with the attributes ``encoding`` ('jpeg', 'png', 'video')
and ``shape`` = [H, W, 3] of a decoded RGB frame. A video has further attributes, see :class:`VideoForm`: ``codec``,
``setup`` (bytes), ``keys`` (one bit per packet), ``colours``, and ``order`` (one signed byte per packet: the index of
its frame minus the index of the packet), unless all are 0.

The packets of a video are copied from a video file without re-encoding, so the frames equal those of the file. Decoding
begins at a packet that needs no other (a key frame); in LeRobot's videos every second packet is a key frame.
"""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from imitate.errors import DatasetError
from imitate.system.extras import missing

_JPEG_QUALITY = 95
_NOT_DECODED = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class DamagedFrameError(ValueError):
    """Error for a JPEG or PNG that cannot be decoded.

    Attributes:
        frame: index of the image among the frames to decode.
    """

    def __init__(self, frame: int, reason: str) -> None:
        super().__init__(reason)
        self.frame = frame


def decode_images(
    frames: Sequence[Any] | NDArray[Any],
    shape: tuple[int, ...],
    encoding: str = "jpeg",
    threads: Executor | None = None,
) -> NDArray[np.uint8]:
    """Decode JPEGs or PNGs (bytes or uint8 arrays) to RGB images (T, H, W, 3); ``shape`` is the shape of each.

    Raises:
        DamagedFrameError: a frame is not an image of this encoding and shape.
    """
    kind = encoding.upper()
    if len(
        frames
    ):  # checked before memory is allocated, because the shape may come from a damaged file
        _opened(0, frames[0], shape, kind)
    images = np.empty((len(frames), *shape), dtype=np.uint8)

    def decode(frame: int) -> None:
        image = _opened(frame, frames[frame], shape, kind)
        try:
            images[frame] = np.asarray(image.convert("RGB"))
        except _NOT_DECODED as error:
            raise DamagedFrameError(frame, str(error)) from error

    for _ in (map if threads is None else threads.map)(decode, range(len(frames))):
        pass
    return images


def _opened(frame: int, data: Any, shape: tuple[int, ...], kind: str) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(bytes(data)), formats=(kind,))
    except _NOT_DECODED as error:
        raise DamagedFrameError(frame, f"not a {kind} file") from error
    if image.size != (shape[1], shape[0]):
        raise DamagedFrameError(
            frame, f"its size is {image.size[1]} x {image.size[0]}, not {shape[0]} x {shape[1]}"
        )
    return image


def encode_image(image: NDArray[np.uint8], encoding: str) -> NDArray[np.uint8]:
    """Encode an RGB image (H, W, 3) as a 'png', or as a 'jpeg' with colours at full resolution."""
    data = io.BytesIO()
    options: dict[str, Any] = (
        {} if encoding == "png" else {"quality": _JPEG_QUALITY, "subsampling": 0}
    )
    Image.fromarray(np.ascontiguousarray(image)).save(data, encoding.upper(), **options)
    return np.frombuffer(data.getvalue(), dtype=np.uint8)


_DECODERS = {"av1": ("libdav1d", "av1")}
"""Decoders to try first, because FFmpeg's default decoder of a codec may need a GPU."""
CODECS = frozenset({"h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mjpeg", "ffv1"})
"""Codecs that a file may name; other codecs of FFmpeg are hardly used, and some of them open devices."""
COLOURS = ("colorspace", "color_range", "color_primaries", "color_trc")


@dataclass(frozen=True)
class VideoForm:
    """Information that a decoder needs in addition to the packets.

    Attributes:
        codec: FFmpeg's name of the codec, such as 'h264'.
        shape: (H, W, 3) shape of a frame.
        setup: the stream's parameters (FFmpeg's extradata).
        keys: (T,) bool, true for key frames, whose packets can be decoded without other packets.
        order: (T,) index of the frame that each packet contains, because packets are in the order of decoding.
        colours: FFmpeg's numbers of colour space, range, primaries and transfer.
    """

    codec: str
    shape: tuple[int, ...]
    setup: bytes
    keys: NDArray[np.bool_]
    order: NDArray[np.int64]
    colours: tuple[int, ...] = ()

    def before(self, frame: int) -> int:
        """Return the index of the last packet from which a frame and all later frames can be decoded."""
        starts = np.flatnonzero(self.keys & (self.order <= frame))
        return int(starts[-1]) if len(starts) else 0


def frames_from(packets: Sequence[Any], form: VideoForm, start: int) -> Iterator[NDArray[np.uint8]]:
    """Decode frames (H, W, 3) from number ``start`` on, in order.

    Args:
        packets: (T,) bytes or uint8 arrays, read one by one when needed.
        form: information on the stream.
        start: number of the first frame.

    Raises:
        ValueError: the packets are damaged.
    """
    av = _av()
    decoder = decoder_of(av, form)
    number = start

    def shown(data: Any, at: int) -> Iterator[NDArray[np.uint8]]:
        nonlocal number
        packet = None if data is None else av.Packet(bytes(data))
        if packet is not None:
            packet.pts, packet.time_base = at, Fraction(1)
        try:
            frames = decoder.decode(packet)
        except av.error.FFmpegError as error:
            raise ValueError(f"video packet {at}: {error.strerror}") from error
        for frame in frames:
            if frame.pts is not None and frame.pts < start:
                continue
            if frame.pts != number or (frame.height, frame.width) != form.shape[:2]:
                raise ValueError(
                    f"the video gives frame {frame.pts} of {frame.height} x {frame.width}; expected frame {number} "
                    f"of {form.shape[0]} x {form.shape[1]}"
                )
            number += 1
            yield rgb_of(frame)

    for at in range(form.before(start), len(form.order)):
        yield from shown(packets[at], int(form.order[at]))
    yield from shown(None, len(form.order))


def rgb_of(frame: Any) -> NDArray[np.uint8]:
    """Return the image (H, W, 3) of a frame of PyAV.

    FFmpeg is used without threads here and in the decoders, because a forked process that frees a decoder or frame
    would wait forever for threads that it does not have.
    """
    try:
        image: NDArray[np.uint8] = frame.to_ndarray(format="rgb24", threads=1)
    except TypeError:  # older releases of PyAV convert without threads
        image = frame.to_ndarray(format="rgb24")
    return image


def _av() -> Any:
    try:
        return import_module("av")
    except ImportError as error:
        error.name = error.name or "av"
        raise DatasetError(f"its images are a video: {missing('lerobot', error)}") from error


def decoder_of(av: Any, form: VideoForm) -> Any:
    """Return an open decoder of PyAV for a video; raise DatasetError for an unknown codec."""
    if form.codec not in CODECS:
        raise DatasetError(
            f"its images are a video of codec '{form.codec[:40]}', but only these codecs are read: "
            f"{', '.join(sorted(CODECS))}"
        )
    for name in _DECODERS.get(form.codec, (form.codec,)):
        with suppress(ValueError):  # FFmpeg was built without this decoder
            decoder = av.CodecContext.create(name, "r")
            break
    else:
        raise DatasetError(
            f"its images are a video of codec '{form.codec}', which the installed PyAV cannot decode: pip install -U av"
        )
    decoder.thread_count = 1  # see rgb_of
    if form.setup:
        decoder.extradata = form.setup
    # return frames in the order of packets, without waiting for later packets
    if (np.diff(form.order) > 0).all():
        decoder.flags |= av.codec.context.Flags.low_delay
    for name, value in zip(COLOURS, form.colours, strict=False):
        with suppress(AttributeError, ValueError):
            setattr(decoder, name, value)
    return decoder


def colours_of(stream: Any) -> tuple[int, ...]:
    """Return the colours of a video stream, for :attr:`VideoForm.colours`."""
    return tuple(int(getattr(stream.codec_context, name, 2) or 0) for name in COLOURS)


ENCODINGS = ("jpeg", "png", "video")
VIDEO_ATTRS = ("codec", "setup", "keys", "colours", "order")
"""Additional attributes of a video."""
_MAX_PACKETS = 60_000
"""Largest number of packets. HDF5 limits an attribute, such as ``order`` with a byte per packet, to 64 KiB."""


@dataclass(frozen=True, eq=False)
class EncodedFrames:
    """Compressed frames that may replace an array (T, H, W, 3) of uint8 in an episode; ``np.asarray`` decodes them.

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
    """Read the information that the decoder of a video needs from the attributes of an array.

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
    """Return true if a video has a supported codec, begins with a key frame, and its parameters fit into attributes."""
    shift = form.order - np.arange(len(form.order))
    return bool(
        form.codec in CODECS
        and len(form.order) <= _MAX_PACKETS
        and form.keys[0]
        and np.abs(shift).max(initial=0) < 128
        and np.array_equal(np.sort(form.order), np.arange(len(form.order)))
    )
