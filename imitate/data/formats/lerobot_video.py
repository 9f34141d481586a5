"""Reading of the camera videos of a LeRobot dataset, as decoded frames or packets, and encoding of new videos.

A row's frame is found by time: it is the frame nearest to the row's ``timestamp`` plus the episode's
``from_timestamp``, counted from the first frame of the file, at most half a period away. If there is no such frame, the
row is refused, because a frame from another moment would be wrong: frames may be lost, or the rate may differ.

Packets are copied without decoding. Encoded files contain several episodes, one after the other.

Encoding is lossy: colours are halved in resolution (yuv420p) and compressed. As in LeRobot, every second frame of an
episode is a key frame, including the first, so that single frames are found fast.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.encoded_frames import (
    EncodedFrames,
    VideoForm,
    can_be_written,
    colours_of,
    frames_from,
    rgb_of,
)
from imitate.data.formats.base import ConversionReport, extra
from imitate.data.formats.frames import stacked
from imitate.data.formats.lerobot_missing import MissingVideos, check_there, missing_videos
from imitate.data.formats.lerobot_tables import Tables
from imitate.errors import DatasetError, nearest
from imitate.system.processes import scheduled_as_before
from imitate.system.text import counted

NEAR = 0.51
"""Largest distance of a row from its frame, in periods: half a period, plus the deviation of rates such as 29.97 from
30.
"""


def seconds_of(item: Any, stream: Any) -> float:
    """Return the time of a frame or packet in a stream.

    Raises:
        DatasetError: the frame or packet has no time.
    """
    if item.pts is None:
        raise DatasetError(
            "a frame of the video has no time: the file is damaged; download it again"
        )
    return float(item.pts * stream.time_base)


_CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm", ".avi": "avi"}


def opened_video(path: Path) -> Any:
    """Open a video in the container format that its name's ending determines.

    If FFmpeg guessed the format, it could take a text for a list of other files and addresses.
    """
    form = _CONTAINERS.get(path.suffix.lower())
    if form is None:
        raise DatasetError(f"{path}: its ending is none of {', '.join(_CONTAINERS)}: rename it")
    container = extra("av", "lerobot").open(str(path), format=form)
    for stream in container.streams.video:
        stream.codec_context.thread_count = 1  # see rgb_of
    return container


class PacketReader:
    """Reader of the videos of one camera. The file stays open, and the next read continues after the last one.

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
        self._last_s = np.inf  # time of the last packet read, relative to the first one
        self._agrees: dict[Path, bool] = {}

    def read(self, path: Path, times: NDArray[np.float64]) -> EncodedFrames | None:
        """Return the packets of an episode, or None if they are not sufficient for decoding the episode.

        They are not sufficient if the episode does not begin with a key frame, if there is not exactly one packet per
        row, or if decoding the packets alone gives other colours than decoding the file.

        Args:
            path: path of the video.
            times: (T,) times of the rows, in seconds since the file's first frame.
        """
        near = NEAR / self._fps
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
        """Return true if the first frame, decoded from the packets alone, equals the frame decoded from the file."""
        assert frames.video is not None
        with opened_video(path) as container, suppress(ValueError):
            stream = container.streams.video[0]
            for frame in container.decode(stream):
                if abs(seconds_of(frame, stream) - self._first_s - start_s) <= NEAR / self._fps:
                    own = next(frames_from(frames.cells, frames.video, 0))
                    return np.array_equal(rgb_of(frame), own)
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


_ADVICE = "take the episode out of the dataset, or encode its video anew with a frame for each row"
NEAREST_S = 1e-6
"""Difference of distances in seconds below which two frames count as equally near to a row."""


class VideoCameras:
    """Reader of the videos of all cameras.

    Args:
        tables: tables of the dataset.
        report: report that gets a line for each camera.
        encoded: true to copy packets without decoding if they give the same frames.
    """

    def __init__(self, tables: Tables, report: ConversionReport, *, encoded: bool = False) -> None:
        self._tables, self._report = tables, report
        self._readers: dict[str, _Reader] = {}
        self._packets: dict[str, PacketReader] = {}
        self._starts: dict[str, dict[Path, list[float]]] = {}
        self._repeated: dict[str, int] = {}
        for key, feature in tables.features.items():
            if feature.get("dtype") != "video":
                continue
            if _is_depth(feature):
                report.dropped[key] = "a depth video, whose colours are distances: not decoded"
                continue
            self._readers[key] = _Reader(tables.fps, tuple(feature.get("shape", ())))
            if encoded:
                self._packets[key] = PacketReader(tables.fps, tuple(feature.get("shape", ())))

    def missing(self) -> MissingVideos:
        """Search for videos that do not exist."""
        numbers = self._tables.numbers
        files = {
            key: {number: self._file(key, number) for number in numbers} for key in self._readers
        }
        return missing_videos(files, self._tables.path, numbers)

    def frames(
        self, episode: int, times: NDArray[np.float64], without: Collection[str] = ()
    ) -> dict[str, NDArray[Any] | EncodedFrames]:
        """Return the images of an episode by feature: (T, H, W, 3) uint8.

        Args:
            episode: number of the episode.
            without: features that are not read.
            times: (T,) times of the episode's rows in seconds since the episode's beginning in each video.

        Raises:
            DatasetError: a video has no frame for a row; the message names the row.
        """
        return {
            key: self._frames(key, episode, times) for key in self._readers if key not in without
        }

    def _frames(
        self, key: str, episode: int, times: NDArray[np.float64]
    ) -> NDArray[Any] | EncodedFrames:
        path, start_s, stop_s = self._place(key, episode)
        check_there(path, self._tables.path)
        if stop_s is not None and not times[-1] <= stop_s - start_s - NEAR / self._tables.fps:
            raise DatasetError(
                f"{path}: episode {episode} has {counted(len(times), 'row')}, to {times[-1]:.3f} s, but its part "
                f"of the video goes from {start_s:.3f} to {stop_s:.3f} s: frames were lost; {_ADVICE}"
            )
        places = start_s + times
        if key in self._packets:
            packets = self._packets[key].read(path, places)
            if packets is not None:
                self._report.keep(f"video packets of {key}")
                return packets
            self._report.note(
                f"{key}: the packets of an episode cannot be copied, because the first is no key frame, "
                "there is not one for each row, or they decode to other colours: its frames are "
                "compressed again"
            )
        self._report.changed[key] = "video -> (T, H, W, 3) uint8"
        frames, repeated = self._readers[key].read(path, places, f"episode {episode}")
        self._note_repeated(key, repeated)
        return frames

    def _note_repeated(self, key: str, repeated: int) -> None:
        if repeated == 0:
            return
        self._repeated[key] = self._repeated.get(key, 0) + repeated
        self._report.doubts[key] = (
            f"the nearest picture in time is that of the row before in {counted(self._repeated[key], 'row')}: the "
            "video runs slower than the rows"
        )

    def _place(self, key: str, episode: int) -> tuple[Path, float, float | None]:
        """Return an episode's video file, and the times in seconds at which it begins and ends (None if unknown)."""
        path = self._file(key, episode)
        if not self._tables.is_v3:
            return path, 0.0, None
        row = self._tables.rows_of_episodes[episode]
        start_s = float(row[f"videos/{key}/from_timestamp"])
        starts = self._starts_of(key)[path]
        after = bisect_right(starts, start_s)
        if after > 1 and starts[after - 2] == start_s:
            raise DatasetError(
                f"{path}: two episodes begin at {start_s:.3f} s, one of them episode {episode}: 'meta/episodes' "
                "is damaged; download it again"
            )
        period = (
            1 / self._tables.fps
        )  # some writers store the time of the last frame instead of the end
        stop_s = float(row.get(f"videos/{key}/to_timestamp") or np.inf) + period
        ends = [stop_s, *starts[after : after + 1]]
        return path, start_s, min(ends) if np.isfinite(min(ends)) else None

    def _file(self, key: str, episode: int) -> Path:
        tables = self._tables
        if not tables.is_v3:
            size = int(tables.info.get("chunks_size", 1000))
            chunk = episode // size
            return tables.place(
                "video_path", episode_chunk=chunk, video_key=key, episode_index=episode
            )
        row = tables.rows_of_episodes[episode]
        numbers = {name: row[f"videos/{key}/{name}"] for name in ("chunk_index", "file_index")}
        return tables.place("video_path", video_key=key, **numbers)

    def _starts_of(self, key: str) -> dict[Path, list[float]]:
        """Return the times in seconds at which episodes begin in each file, in order."""
        if key not in self._starts:
            found: dict[Path, list[float]] = {}
            for number, row in self._tables.rows_of_episodes.items():
                start_s = float(row[f"videos/{key}/from_timestamp"])
                found.setdefault(self._file(key, number), []).append(start_s)
            self._starts[key] = {path: sorted(starts) for path, starts in found.items()}
        return self._starts[key]

    def close(self) -> None:
        """Close the files."""
        for reader in self._readers.values():
            reader.close()
        for packets in self._packets.values():
            packets.close()


def _is_depth(feature: dict[str, Any]) -> bool:
    found = {**(feature.get("video_info") or {}), **(feature.get("info") or {})}
    return bool(found.get("is_depth_map") or found.get("video.is_depth_map"))


class _Reader:
    def __init__(self, fps: float, shape: tuple[int, ...]) -> None:
        self._fps, self._shape = fps, shape
        self._path: Path | None = None
        self._container: Any = None
        self._frames: Iterator[tuple[float, Any]] = iter(())
        self._here: tuple[float, Any] | None = None
        self._ahead: tuple[float, Any] | None = None

    def read(self, path: Path, times: NDArray[np.float64], whose: str) -> tuple[NDArray[Any], int]:
        """Return the nearest frame for each of the ascending times (T,), and the number of repeated frames."""
        if path != self._path or self._here is None or self._here[0] > times[0]:
            self._open(path)
        repeated = 0

        def images() -> Iterator[NDArray[Any]]:
            nonlocal repeated
            last, image = None, np.empty(0, dtype=np.uint8)
            for row, time in enumerate(times):
                at, frame = self._nearest(time, path)
                if not abs(at - time) <= NEAR / self._fps:
                    raise DatasetError(self._miss(path, whose, row, time, at))
                if at == last:
                    repeated += 1
                else:
                    image = rgb_of(frame)
                last = at
                yield image

        return stacked(images(), len(times), f"{path}: {whose}"), repeated

    def _nearest(self, time: float, path: Path) -> tuple[float, Any]:
        while self._ahead is not None:
            if self._here is not None and not self._is_nearer(time):
                break
            self._here, self._ahead = self._ahead, next(self._frames, None)
        if self._here is None:
            raise DatasetError(f"{path}: has no frame: download it again")
        return self._here

    def _is_nearer(self, time: float) -> bool:
        """Return true if the next frame is at least as near to a time as the current one."""
        assert self._here is not None and self._ahead is not None
        return abs(self._ahead[0] - time) <= abs(self._here[0] - time) + NEAREST_S

    def _miss(self, path: Path, whose: str, row: int, time: float, at: float) -> str:
        if self._ahead is None and time > at:
            return (
                f"{path}: ends at {at:.3f} s, but row {row} of {whose} is at {time:.3f} s: the video is cut short, "
                f"or runs faster than the rows; {_ADVICE}"
            )
        return (
            f"{path}: has no frame for row {row} of {whose}, at {time:.3f} s: the nearest is at {at:.3f} s: frames "
            f"were lost, or the video has another rate than the rows; {_ADVICE}"
        )

    def _open(self, path: Path) -> None:
        self.close()
        self._container = opened_video(path)
        self._path = path
        stream = self._container.streams.video[0]
        if self._shape and not {stream.height, stream.width} <= set(self._shape):
            raise DatasetError(
                f"{path}: its frames are {stream.height} x {stream.width}, but 'meta/info.json' says "
                f"{self._shape}: one of the two is damaged; download them again"
            )
        self._frames = _timed(self._container.decode(stream), stream)
        self._here, self._ahead = None, next(self._frames, None)

    def close(self) -> None:
        if self._container is not None:
            self._container.close()
        self._container, self._path, self._here, self._ahead = None, None, None, None


def _timed(frames: Iterator[Any], stream: Any) -> Iterator[tuple[float, Any]]:
    """Yield frames with their times in seconds since the first frame."""
    first: float | None = None
    for frame in frames:
        seconds = seconds_of(frame, stream)
        first = seconds if first is None else first
        yield seconds - first, frame


VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
FILE_MB = 200
CODECS = {
    "h264": ("libx264", {"crf": "18", "g": "2", "preset": "fast"}),
    "av1": ("libsvtav1", {"crf": "30", "g": "2"}),
}
"""Encoder and its settings by the value of ``--video``; the settings of av1 are LeRobot's."""
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
    """Writer of the video files of one camera.

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
        self._frames = self._bytes = 0  # index of the next frame in the current file

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
