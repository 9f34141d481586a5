"""Paths of the demonstration files of a configuration."""

import re
from pathlib import Path

from imitate.config.config import Config
from imitate.config.train import DatasetConfig
from imitate.errors import ConfigError
from imitate.system.recognition import INDEX_NAME, diagnosis

_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)")
_MAX_FILES = 10_000


class MissingFileError(ConfigError):
    """Error: a file that a configuration names does not exist.

    Attributes:
        path: the path as given in the configuration.
    """

    def __init__(self, path: str, words: str) -> None:
        super().__init__(words)
        self.path = path


def located_data(config: Config) -> tuple[DatasetConfig, ...]:
    """Return the entries of ``train.data`` with absolute paths.

    A relative path is searched in the working directory, then in the folder of the JSON file. Datasets of other
    formats, which may be folders, keep their paths: :class:`imitate.data.DatasetFile` converts them when it opens them.
    The path of an index of shards is replaced by the path of its folder, and a range such as ``{000..127}`` is expanded
    to one entry per number. URLs are not changed.

    Raises:
        ConfigError: no data are given, or a file is in neither folder (then :class:`MissingFileError`).
    """
    if not config.train.data:
        raise ConfigError(
            "train.data: no demonstrations given: name an HDF5 file there or with --dataset"
        )
    return tuple(
        entry.model_copy(update={"path": _located(path, f"train.data.{i}.path", config.folder)})
        for i, entry in enumerate(config.train.data)
        for path in expanded(entry.path)
    )


def expanded(path: str) -> list[str]:
    """Expand a path with a range of numbers, such as ``shard_{000..127}.hdf5``, to the list of its paths.

    A path without a range is returned as a list of one.
    """
    match = _RANGE.search(path)
    if match is None:
        return [path]
    first, last = match.groups()
    if len(first) != len(last) and len(first) > 1 and first.startswith("0"):
        raise ConfigError(
            f"{path}: the first number has {len(first)} digits, the last one {len(last)}: write both with as many "
            f"digits as the names have, such as {{{first:0>{len(last)}}..{last}}}"
        )
    if not int(first) <= int(last) < int(first) + _MAX_FILES:
        raise ConfigError(
            f"{path}: wanted an ascending range of at most {_MAX_FILES} numbers, such as {{000..127}}"
        )
    width = len(first) if len(first) == len(last) else 0
    return [
        f"{path[: match.start()]}{number:0{width}}{path[match.end() :]}"
        for number in range(int(first), int(last) + 1)
    ]


def url_of(path: str | Path) -> str | None:
    """Return the URL of a path, or None if the path is on this machine. A slash lost in a ``Path`` is restored.

    For the URL of an index of shards, the URL of its folder is returned.
    """
    match = _URL.fullmatch(str(path))
    if match is None:
        return None
    protocol, rest = match.groups()
    slashes = ":///" if protocol == "file" else "://"
    return f"{protocol}{slashes}{rest}".removesuffix(f"/{INDEX_NAME}").rstrip("/")


def _located(path: str, key: str, folder: Path | None) -> str:
    url = url_of(path)
    if url is not None:
        return url
    found = _locate(path, key, folder)
    return str(found.parent if found.name == INDEX_NAME else found)


def located_file(config: Config, key: str) -> Path:
    """Return the absolute path of the file named by the dotted key ``key``, searched in the same folders as data."""
    section, _, name = key.partition(".")
    return _locate(str(config[section][name]), key, config.folder)


def _locate(path: str, key: str, folder: Path | None) -> Path:
    relative = Path(path).expanduser()
    tried = [Path.cwd() / relative] + (
        [folder / relative] if folder and not relative.is_absolute() else []
    )
    for place in tried:
        if place.exists():
            return place.resolve()
    known = diagnosis(path)
    if known is not None:
        raise ConfigError(f"{key}: {known}")
    places = " nor ".join(str(place) for place in dict.fromkeys(tried))
    raise MissingFileError(
        path, f"{key}: no file {places}: correct the path, or collect or download the data first"
    )
