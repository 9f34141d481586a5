"""Video packets of an episode, and the frames in them.

The packets are copied from a video file without re-encoding, so the frames equal those of the file. Decoding begins at
a packet that needs no other (a key frame); in LeRobot's videos every second packet is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.errors import DatasetError
from imitate.system.extras import missing

_DECODERS = {"av1": ("libdav1d", "av1")}
"""Decoders to try first, because FFmpeg's default decoder of a codec may need a GPU."""
CODECS = frozenset({"h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mjpeg", "ffv1"})
"""Codecs that a file may name; of FFmpeg's others some open devices, and many are hardly ever used."""
_COLOURS = ("colorspace", "color_range", "color_primaries", "color_trc")


@dataclass(frozen=True)
class VideoForm:
    """Information that a decoder needs in addition to the packets.

    Attributes:
        codec: FFmpeg's name of the codec, such as 'h264'.
        shape: (H, W, 3) shape of a frame.
        setup: the stream's parameters (FFmpeg's extradata).
        keys: (T,) bool, true for packets that need no other.
        order: (T,) number of the frame that each packet contains, because packets are in the order of decoding.
        colours: FFmpeg's numbers of colour space, range, primaries and transfer.
    """

    codec: str
    shape: tuple[int, ...]
    setup: bytes
    keys: NDArray[np.bool_]
    order: NDArray[np.int64]
    colours: tuple[int, ...] = ()

    def before(self, frame: int) -> int:
        """Return the number of the last packet from which a frame and all later ones can be decoded."""
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
    decoder = _decoder(av, form)
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
            yield frame.to_ndarray(format="rgb24")

    for at in range(form.before(start), len(form.order)):
        yield from shown(packets[at], int(form.order[at]))
    yield from shown(None, len(form.order))


def _av() -> Any:
    try:
        return import_module("av")
    except ImportError as error:
        error.name = error.name or "av"
        raise DatasetError(f"its images are a video: {missing('lerobot', error)}") from error


def _decoder(av: Any, form: VideoForm) -> Any:
    if form.codec not in CODECS:
        raise DatasetError(
            f"its images are a video of codec '{form.codec[:40]}'; those that are read are {', '.join(sorted(CODECS))}"
        )
    for name in _DECODERS.get(form.codec, (form.codec,)):
        with suppress(ValueError):  # FFmpeg was built without this decoder
            decoder = av.CodecContext.create(name, "r")
            break
    else:
        raise DatasetError(
            f"its images are a video of codec '{form.codec}', which the installed PyAV cannot decode: pip install -U av"
        )
    if form.setup:
        decoder.extradata = form.setup
    # return frames in the order of packets, without waiting for later ones
    if (np.diff(form.order) > 0).all():
        decoder.flags |= av.codec.context.Flags.low_delay
    for name, value in zip(_COLOURS, form.colours, strict=False):
        with suppress(AttributeError, ValueError):
            setattr(decoder, name, value)
    return decoder


def colours_of(stream: Any) -> tuple[int, ...]:
    """Return the colours of a video stream, for :attr:`VideoForm.colours`."""
    return tuple(int(getattr(stream.codec_context, name, 2) or 0) for name in _COLOURS)
