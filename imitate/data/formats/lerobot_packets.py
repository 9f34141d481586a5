"""Packets of a LeRobot dataset's videos, copied in the order of the episodes without decoding them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from imitate.data.file.encoded_frames import EncodedFrames, can_be_written
from imitate.data.file.video_frames import VideoForm, colours_of, frames_from
from imitate.data.formats.extras import extra


class PacketReader:
    """The videos of one camera; the file stays open, and reading continues where it stopped.

    Args:
        fps: frames per second.
        shape: of a frame, as ``meta/info.json`` says it.
    """

    def __init__(self, fps: float, shape: tuple[int, ...]) -> None:
        self._fps, self._shape = fps, shape
        self._path: Path | None = None
        self._container: Any = None
        self._packets: Iterator[Any] = iter(())
        self._next = 0
        self._agrees: dict[Path, bool] = {}

    def read(self, path: Path, start_s: float, length: int) -> EncodedFrames | None:
        """Return the packets of an episode; None where they alone do not give its frames.

        That is the case where the episode does not begin with a key frame, or where the packets alone give other
        colours than the file.
        """
        start = round(start_s * self._fps)
        if not path.is_file():
            return None  # the error is that of decoding it
        if path != self._path or start < self._next:
            self._open(path)
        stream = self._container.streams.video[0]
        if self._shape and not {stream.height, stream.width} <= set(self._shape):
            return None
        cells: list[bytes] = []
        keys, order = [], []
        while len(cells) < length:
            packet = next(self._packets, None)
            if packet is None or packet.pts is None:
                return None
            number = round(float(packet.pts * stream.time_base) * self._fps)
            if number >= start:
                cells.append(bytes(packet))
                keys.append(packet.is_keyframe)
                order.append(number - start)
        self._next = start + length
        form = VideoForm(
            codec=stream.codec_context.codec.canonical_name,
            shape=(stream.height, stream.width, 3),
            setup=bytes(stream.codec_context.extradata or b""),
            keys=np.array(keys),
            order=np.array(order),
            colours=colours_of(stream),
        )
        if max(order) >= length:  # packets of the next episode came between: it is to have them
            self.close()
        if not can_be_written(form):
            return None
        frames = EncodedFrames("video", cells, form.shape, form)
        if path not in self._agrees:
            self._agrees[path] = self._is_equal(frames, path, start)
        return frames if self._agrees[path] else None

    def _is_equal(self, frames: EncodedFrames, path: Path, start: int) -> bool:
        """Compare the first frame as the packets give it with that of the file."""
        assert frames.video is not None
        with extra("av", "lerobot").open(str(path)) as container, suppress(ValueError):
            stream = container.streams.video[0]
            for frame in container.decode(stream):
                if round(float(frame.pts * stream.time_base) * self._fps) == start:
                    own = next(frames_from(frames.cells, frames.video, 0))
                    return np.array_equal(frame.to_ndarray(format="rgb24"), own)
        return False

    def _open(self, path: Path) -> None:
        self.close()
        self._container = extra("av", "lerobot").open(str(path))
        self._path, self._next = path, 0
        stream = self._container.streams.video[0]
        self._packets = (packet for packet in self._container.demux(stream) if packet.size)

    def close(self) -> None:
        """Close the file."""
        if self._container is not None:
            self._container.close()
        self._container, self._path = None, None
