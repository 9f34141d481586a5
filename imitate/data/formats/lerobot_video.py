"""Camera videos of a LeRobot dataset in the order of the episodes, decoded or as their packets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.encoded_frames import EncodedFrames
from imitate.data.formats.extras import extra
from imitate.data.formats.lerobot_packets import PacketReader
from imitate.data.formats.lerobot_tables import Tables
from imitate.data.formats.report import Report
from imitate.errors import DatasetError


class Cameras:
    """All cameras; each keeps its file open and continues where it stopped.

    Args:
        tables: of the dataset.
        report: gets a line for each camera.
        encoded: copy the packets where that gives the same frames.
    """

    def __init__(self, tables: Tables, report: Report, *, encoded: bool = False) -> None:
        self._tables, self._report = tables, report
        self._readers: dict[str, _Reader] = {}
        self._packets: dict[str, PacketReader] = {}
        for key, feature in tables.features.items():
            if feature.get("dtype") != "video":
                continue
            if _is_depth(feature):
                report.dropped[key] = "a depth video, whose colours are distances: not decoded"
                continue
            self._readers[key] = _Reader(tables.fps, tuple(feature.get("shape", ())))
            if encoded:
                self._packets[key] = PacketReader(tables.fps, tuple(feature.get("shape", ())))

    def frames(self, episode: int, length: int) -> dict[str, NDArray[Any] | EncodedFrames]:
        """Return the images of an episode: feature -> (T, H, W, 3) uint8."""
        return {key: self._frames(key, episode, length) for key in self._readers}

    def _frames(self, key: str, episode: int, length: int) -> NDArray[Any] | EncodedFrames:
        path, start_s = self._place(key, episode)
        if key in self._packets:
            packets = self._packets[key].read(path, start_s, length)
            if packets is not None:
                self._report.keep(f"video packets of {key}")
                return packets
            self._report.note(
                f"{key}: an episode does not begin with a key frame, or its packets alone give other colours: its "
                "frames are compressed anew"
            )
        self._report.changed[key] = "video -> (T, H, W, 3) uint8"
        return self._readers[key].read(path, start_s, length)

    def _place(self, key: str, episode: int) -> tuple[Path, float]:
        """Return the file, and the second at which the episode begins in it."""
        info, tables = self._tables.info, self._tables
        pattern = str(info["video_path"])
        if not tables.is_v3:
            size = int(info.get("chunks_size", 1000))
            name = pattern.format(
                episode_chunk=episode // size, video_key=key, episode_index=episode
            )
            return tables.path / name, 0.0
        row = tables.rows_of_episodes[episode]
        name = pattern.format(
            video_key=key,
            chunk_index=row[f"videos/{key}/chunk_index"],
            file_index=row[f"videos/{key}/file_index"],
        )
        return tables.path / name, float(row[f"videos/{key}/from_timestamp"])

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
        self._frames: Iterator[tuple[int, Any]] = iter(())
        self._next = 0

    def read(self, path: Path, start_s: float, length: int) -> NDArray[Any]:
        start = round(start_s * self._fps)
        if path != self._path or start < self._next:
            self._open(path)
        found: list[NDArray[Any]] = []
        while len(found) < length:
            following = next(self._frames, None)
            if following is None:
                raise DatasetError(
                    f"{path}: ends {length - len(found)} frames before the episode that begins at {start_s:.3f} s: "
                    "the video is cut short; download it again"
                )
            number, frame = following
            self._next = number + 1
            if number >= start:
                found.append(frame.to_ndarray(format="rgb24"))
        return np.stack(found)

    def _open(self, path: Path) -> None:
        self.close()
        if not path.is_file():
            raise DatasetError(f"{path}: is missing: the dataset is incomplete; download it again")
        self._container = extra("av", "lerobot").open(str(path))
        self._path, self._next = path, 0
        stream = self._container.streams.video[0]
        if self._shape and not {stream.height, stream.width} <= set(self._shape):
            raise DatasetError(
                f"{path}: its frames are {stream.height} x {stream.width}, but 'meta/info.json' says "
                f"{self._shape}: one of the two is damaged; download them again"
            )
        self._frames = (
            (round(float(frame.pts * stream.time_base) * self._fps), frame)
            for frame in self._container.decode(stream)
        )

    def close(self) -> None:
        if self._container is not None:
            self._container.close()
        self._container, self._path = None, None
