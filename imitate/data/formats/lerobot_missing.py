"""Missing files of a LeRobot dataset: the reasons, and the episodes and cameras that can still be used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from imitate.errors import DatasetError
from imitate.system.recognition import diagnosis, is_lfs_pointer
from imitate.system.text import counted

NAMED = 8
"""Largest number of episodes in a message."""
COMPLETE = "complete"
"""Filter key of the demos that have all cameras."""
INCOMPLETE = "incomplete"
"""Attribute of the group ``data``: description of the missing images."""


def is_there(file: Path) -> bool:
    """Return true if a file exists and is not just a pointer of Git LFS."""
    return file.is_file() and not is_lfs_pointer(file)


def absence(file: Path, root: Path) -> str:
    """Return the reason why :func:`is_there` is false for a file of a dataset, and the remedy."""
    if is_lfs_pointer(file):
        return str(diagnosis(file))
    folder = root
    for part in file.relative_to(root).parts[:-1]:
        if not (folder / part).is_dir():
            others = [place.name for place in folder.iterdir() if place.is_dir()]
            near = get_close_matches(part, others)
            if near:
                return (
                    f"{file}: is missing: there is no folder '{folder / part}', but there is '{near[0]}': rename it, "
                    "or correct the path in 'meta/info.json'"
                )
            break
        folder /= part
    return f"{file}: is missing: download it again"


def check_there(file: Path, root: Path) -> None:
    """Refuse a file that is missing.

    Raises:
        DatasetError: the file is missing; the message has the remedy, and the way to use the other episodes.
    """
    if not is_there(file):
        raise DatasetError(
            f"{absence(file, root)}, or use the complete episodes alone: `imitate dataset convert {root} NEW.hdf5 "
            "--skip-incomplete`"
        )


@dataclass(frozen=True)
class MissingVideos:
    """Videos of a dataset that do not exist.

    Attributes:
        cameras: features of which all videos are missing.
        episodes: missing features by episode, without those in ``cameras``.
        words: description of the missing videos, or "" if nothing is missing.
    """

    cameras: frozenset[str]
    episodes: Mapping[int, Sequence[str]]
    words: str


def missing_videos(
    files: Mapping[str, Mapping[int, Path]], root: Path, numbers: Sequence[int]
) -> MissingVideos:
    """Search for missing videos.

    Args:
        files: path of the video by camera and episode.
        root: the dataset's folder.
        numbers: the dataset's episodes.
    """
    there = {file: is_there(file) for places in files.values() for file in places.values()}
    cameras, episodes, words = set(), dict[int, list[str]](), []
    for key, places in files.items():
        lacking = [number for number, file in places.items() if not there[file]]
        if not lacking:
            continue
        which = f"{len(lacking)} of {counted(len(numbers), 'episode')} ({few(lacking)})"
        if len(lacking) == len(numbers):
            cameras.add(key)
            which = "no episode"
        for number in lacking if key not in cameras else ():
            episodes.setdefault(number, []).append(key)
        verb = "has a" if key in cameras else "have no"
        words.append(f"{which} {verb} video of '{key}' ({absence(places[lacking[0]], root)})")
    return MissingVideos(frozenset(cameras), episodes, "; ".join(words))


def few(numbers: Sequence[int]) -> str:
    """Format the numbers of the first few episodes of a list, for a message."""
    return ", ".join(map(str, numbers[:NAMED])) + (" ..." if len(numbers) > NAMED else "")
