"""Encoding of camera videos for a LeRobot dataset: several episodes per file, one after the other.

Encoding is lossy: colours are halved in resolution (yuv420p) and compressed. As in LeRobot, every second frame of an
episode is a key frame, including the first, so that single frames are found fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.formats.base import extra
from imitate.errors import DatasetError, nearest
from imitate.system.processes import scheduled_as_before

VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
FILE_MB = 200
CODECS = {
    "h264": ("libx264", {"crf": "18", "g": "2", "preset": "fast"}),
    "av1": ("libsvtav1", {"crf": "30", "g": "2"}),
}
"""Encoder and settings by the name given to ``--video``; those of av1 are LeRobot's."""
_PIXELS = "yuv420p"


def check_codec(name: str) -> None:
    """Refuse an unknown codec of ``--video``.

    Raises:
        DatasetError: the codec is unknown.
    """
    if name not in CODECS:
        raise DatasetError(
            f"--video is '{name}', which is not a known codec; {nearest(name, CODECS)}"
        )


class VideoEncoder:
    """Video files of one camera.

    Args:
        path: the dataset's folder.
        key: name of the feature.
        codec: name in :data:`CODECS`.
        fps: frames per second.
        chunk_files: files per folder.
        file_mb: size in MB above which a file gets no further episode.
    """

    def __init__(
        self, path: Path, key: str, codec: str, fps: int, chunk_files: int, file_mb: float = FILE_MB
    ) -> None:
        self._av = extra("av", "lerobot")
        self._path, self._key, self._fps = path, key, fps
        self._codec, self._chunk_files, self._file_mb = codec, chunk_files, file_mb
        self._file: Path | None = None
        self._container: Any = None
        self._stream: Any = None
        self._number = -1
        self._frames = self._bytes = 0  # index in the current file

    def append(self, frames: NDArray[np.uint8]) -> dict[str, int | float]:
        """Encode an episode (T, H, W, 3); return its location in the form of ``meta/episodes``.

        Raises:
            DatasetError: the codec cannot encode such frames.
        """
        if self._file is None or self._bytes > self._file_mb * 2**20:
            self._next_file(*frames.shape[1:3])
        start = self._frames
        self._mux(self._frame(image, is_first=not at) for at, image in enumerate(frames))
        chunk, file = divmod(self._number, self._chunk_files)
        place = {
            "chunk_index": chunk,
            "file_index": file,
            "from_timestamp": start / self._fps,
            "to_timestamp": self._frames / self._fps,
        }
        return {f"videos/{self._key}/{name}": value for name, value in place.items()}

    def _frame(self, image: NDArray[np.uint8], *, is_first: bool) -> Any:
        frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame.pts, frame.time_base = self._frames, Fraction(1, self._fps)
        if is_first:  # a key frame, so that each episode can be decoded without the previous one
            frame.pict_type = self._av.video.frame.PictureType.I
        self._frames += 1
        return frame

    def _mux(self, frames: Iterable[Any]) -> None:
        try:
            with scheduled_as_before():
                for frame in frames:
                    packets = self._stream.encode(frame)
                    self._bytes += sum(packet.size for packet in packets)
                    self._container.mux(packets)
        except self._av.error.ExternalError as error:
            size = f"{self._stream.height} x {self._stream.width}"
            raise DatasetError(
                f"{self._file}: '{self._codec}' cannot encode frames of {size} ({error.strerror}): sides of an "
                "even number of pixels are sure to work; choose another codec, or leave out --video"
            ) from error

    def _next_file(self, height: int, width: int) -> None:
        self.finish()
        self._number += 1
        self._frames = self._bytes = 0
        chunk, file = divmod(self._number, self._chunk_files)
        self._file = self._path / VIDEO_PATH.format(
            video_key=self._key, chunk_index=chunk, file_index=file
        )
        self._file.parent.mkdir(parents=True, exist_ok=True)
        encoder, settings = CODECS[self._codec]
        self._container = self._av.open(str(self._file), "w")
        self._stream = self._container.add_stream(encoder, rate=self._fps, options=dict(settings))
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = _PIXELS
        self._stream.time_base = Fraction(1, self._fps)

    def info(self) -> dict[str, Any]:
        """Return the entry of ``meta/info.json`` for the feature's videos."""
        return {
            "video.height": self._stream.height,
            "video.width": self._stream.width,
            "video.codec": self._codec,
            "video.pix_fmt": _PIXELS,
            "video.is_depth_map": False,
            "video.fps": self._fps,
            "video.channels": 3,
            "has_audio": False,
        }

    def finish(self) -> None:
        """Flush the encoder, and close the file."""
        if self._container is not None:
            with scheduled_as_before():
                self._container.mux(self._stream.encode())
        self.close()

    def close(self) -> None:
        """Close the file without flushing the encoder."""
        if self._container is not None:
            container, self._container = self._container, None
            container.close()
