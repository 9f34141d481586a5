"""Packets of a LeRobot dataset's videos, copied in the order of the episodes without decoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.encoded_frames import EncodedFrames, can_be_written
from imitate.data.file.video_frames import VideoForm, colours_of, frames_from
from imitate.data.formats.extras import extra
from imitate.errors import DatasetError

NEAR = 0.51
"""Largest distance of a row from its frame, in periods: half a period, plus the deviation of rates such as 29.97 from
30.
"""


def seconds_of(item: Any, stream: Any) -> float:
    """Return the time of a frame or packet in a stream.

    Raises:
        DatasetError: it has no time.
    """
    if item.pts is None:
        raise DatasetError(
            "a frame of the video has no time: the file is damaged; download it again"
        )
    return float(item.pts * stream.time_base)


_CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm", ".avi": "avi"}


def opened_video(path: Path) -> Any:
    """Open a video in the format of its name's ending.

    Otherwise FFmpeg takes some texts for lists of other files and addresses.
    """
    form = _CONTAINERS.get(path.suffix.lower())
    if form is None:
        raise DatasetError(f"{path}: its ending is none of {', '.join(_CONTAINERS)}: rename it")
    return extra("av", "lerobot").open(str(path), format=form)


class PacketReader:
    """Videos of one camera. The file stays open, and reading continues where it stopped.

    Args:
        fps: frames per second.
        shape: shape of a frame, as given in ``meta/info.json``.
    """

    def __init__(self, fps: float, shape: tuple[int, ...]) -> None:
        self._fps, self._shape = fps, shape
        self._path: Path | None = None
        self._container: Any = None
        self._packets: Iterator[Any] = iter(())
        self._first_s = 0.0  # time of the file's first packet
        self._last_s = np.inf  # time of the last packet that was read, relative to the first
        self._agrees: dict[Path, bool] = {}

    def read(self, path: Path, times: NDArray[np.float64]) -> EncodedFrames | None:
        """Return the packets of an episode, or None if they alone do not determine its frames.

        This is the case if the episode does not begin with a key frame, if there is not exactly one packet per row, or
        if decoding the packets alone gives other colours than the file.

        Args:
            path: path of the video.
            times: (T,) times of the rows, in seconds since the file's first frame.
        """
        near = NEAR / self._fps
        if not path.is_file():
            return None  # the error is then reported by the decoder
        if path != self._path or not times[0] - near > self._last_s:
            self._open(path)
        stream = self._container.streams.video[0]
        if self._shape and not {stream.height, stream.width} <= set(self._shape):
            return None
        cells: list[bytes] = []
        keys, found = [], []
        while len(cells) < len(times):
            packet = next(self._packets, None)
            if packet is None or packet.pts is None:
                self._last_s = np.inf
                return None
            at = seconds_of(packet, stream) - self._first_s
            self._last_s = max(self._last_s, at)
            if at >= times[0] - near:
                cells.append(bytes(packet))
                keys.append(packet.is_keyframe)
                found.append(at)
        in_order = np.argsort(found)
        if not (np.abs(np.asarray(found)[in_order] - times) <= near).all():
            return None
        form = VideoForm(
            codec=stream.codec_context.codec.canonical_name,
            shape=(stream.height, stream.width, 3),
            setup=bytes(stream.codec_context.extradata or b""),
            keys=np.array(keys),
            order=np.argsort(in_order),
            colours=colours_of(stream),
        )
        if not can_be_written(form):
            return None
        frames = EncodedFrames("video", cells, form.shape, form)
        if path not in self._agrees:
            self._agrees[path] = self._is_equal(frames, path, times[0])
        return frames if self._agrees[path] else None

    def _is_equal(self, frames: EncodedFrames, path: Path, start_s: float) -> bool:
        """Compare the first frame decoded from the packets with that of the file."""
        assert frames.video is not None
        with opened_video(path) as container, suppress(ValueError):
            stream = container.streams.video[0]
            for frame in container.decode(stream):
                if abs(seconds_of(frame, stream) - self._first_s - start_s) <= NEAR / self._fps:
                    own = next(frames_from(frames.cells, frames.video, 0))
                    return np.array_equal(frame.to_ndarray(format="rgb24"), own)
        return False

    def _open(self, path: Path) -> None:
        self.close()
        self._container = opened_video(path)
        self._path = path
        stream = self._container.streams.video[0]
        packets = (packet for packet in self._container.demux(stream) if packet.size)
        first = next(packets, None)
        self._packets = chain([] if first is None else [first], packets)
        self._first_s = 0.0 if first is None or first.pts is None else seconds_of(first, stream)
        self._last_s = -np.inf

    def close(self) -> None:
        """Close the file."""
        if self._container is not None:
            self._container.close()
        self._container, self._path = None, None
