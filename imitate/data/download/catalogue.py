"""Public demonstration files: their catalogue, which is part of the installed package, and their download."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin, urlsplit

from imitate.data.dataset_file import DatasetFile
from imitate.data.download.download import RETRIES, Download, OnBytes, sha256_of
from imitate.errors import DatasetError, UserError, nearest

VERSION = 1
_ACTIONS = "`imitate dataset actions --to absolute --action-dict` makes it"


@dataclass(frozen=True)
class PublicFile:
    """One downloadable file.

    Attributes:
        name: name, such as ``robomimic/lift/ph/low_dim``.
        url: address of the file.
        place: path below the folder of downloads.
        licence: licence of the data; None if the publisher states none.
        size_bytes: exact size; None if unknown.
        about_bytes: rounded size, if the exact size is unknown.
        sha256: checksum; None if unknown.
        horizon: number of steps of an evaluation episode, as used by the publisher.
        note: remarks on the file.
    """

    name: str
    url: str
    place: PurePosixPath
    licence: str | None
    size_bytes: int | None
    about_bytes: int | None
    sha256: str | None
    horizon: int
    note: str | None = None


def catalogue_path() -> Path:
    """Return the path of the catalogue: in the installed package, or at the root of a clone."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "catalogue.json"
    return installed if installed.is_file() else package.parent / "datasets" / "catalogue.json"


def load_catalogue(path: Path | None = None, base_url: str | None = None) -> list[PublicFile]:
    """Read all files of the catalogue, in order.

    Args:
        path: path of the catalogue; None for the package's catalogue.
        base_url: address of another server with the same paths; None for the server in the catalogue.
    """
    path = catalogue_path() if path is None else path
    tree = json.loads(path.read_text(encoding="utf-8"))
    if tree["version"] != VERSION:
        raise UserError(
            f"{path}: the catalogue has version {tree['version']}, but this imitate reads version "
            f"{VERSION}: upgrade imitate"
        )
    files = []
    for entry in tree["files"]:
        source = tree["sources"][entry["source"]]
        base = source["base_url"] if base_url is None else base_url.rstrip("/") + "/"
        folder = PurePosixPath(entry["name"]).parent
        files.append(
            PublicFile(
                name=entry["name"],
                url=urljoin(base, entry["path"]),
                place=folder / PurePosixPath(entry["path"]).name,
                licence=source["licence"],
                size_bytes=entry["size_bytes"],
                about_bytes=entry["about_bytes"],
                sha256=entry["sha256"],
                horizon=entry["horizon"],
                note=entry.get("note"),
            )
        )
    return files


def download_advice(path: str) -> str | None:
    """Return advice for a missing file: the command that downloads it, or the commands that make it from another file.

    Returns None if the catalogue has no file of this task and kind.

    Args:
        path: path such as ``datasets/lift/ph/low_dim_v15.hdf5``: the task, the kind of demonstrations, the name.
    """
    wanted = PurePosixPath(path.replace("\\", "/"))
    beside = [file for file in load_catalogue() if file.place.parts[-3:-1] == wanted.parts[-3:-1]]
    same = [file for file in beside if file.place.name == wanted.name]
    if len(wanted.parts) < 3 or not beside:
        return None
    if same:
        return (
            f"`imitate dataset download {same[0].name}` downloads it: then give "
            f"--dataset {PurePosixPath('datasets') / same[0].place}"
        )
    from_images = wanted.name.startswith("image")
    step = "`imitate dataset render` makes the images" if from_images else _ACTIONS
    source = next((file for file in beside if file.name.endswith("/low_dim")), beside[0])
    return f"`imitate dataset download {source.name}` downloads its demonstrations; then {step}"


def chosen(files: Sequence[PublicFile], names: Sequence[str]) -> list[PublicFile]:
    """Return the files with these names; ``*`` matches any characters, as in ``robomimic/*/ph/low_dim``.

    Raises:
        UserError: a name matches no file; the message lists the nearest names.
    """
    found: dict[str, PublicFile] = {}
    for name in names:
        fitting = [file for file in files if fnmatchcase(file.name, name)]
        if not fitting:
            below = [file.name for file in files if file.name.startswith(name.rstrip("/") + "/")]
            near = (
                f"did you mean '{name.rstrip('/')}/*' ({len(below)} files)?"
                if below
                else nearest(name, (file.name for file in files))
            )
            raise UserError(
                f"'{name}' is not in the catalogue; {near[:300]} (imitate dataset download --list)"
            )
        found.update((file.name, file) for file in fitting)
    return list(found.values())


@dataclass(frozen=True)
class Downloaded:
    """Result of a download.

    Attributes:
        verified: the check that was made: 'sha256', or 'size' or 'structure' if no checksum is known.
        resumed_at: number of bytes that an earlier attempt had downloaded.
        fetched_bytes: number of bytes downloaded now; 0 if the file already existed.
    """

    name: str
    path: str
    size_bytes: int
    sha256: str
    verified: str
    resumed_at: int
    fetched_bytes: int


def download_public(
    file: PublicFile,
    target: Path,
    overwrite: bool = False,
    retries: int = RETRIES,
    on_bytes: OnBytes = lambda count, total: None,
) -> Downloaded:
    """Download a file of the catalogue, or verify the existing file.

    Args:
        file: entry of the catalogue, with size and checksum if known.
        target: the file to write.
        overwrite: true to replace a file with other content when the download is complete.
        retries: number of successive attempts without a byte after which the download fails.
        on_bytes: function for a progress bar, see :class:`imitate.data.download.download.Download`.

    Raises:
        DatasetError: the download fails, the content differs from the catalogue's, or ``target`` exists with other
            content.
    """
    if urlsplit(file.url).scheme not in ("http", "https"):
        raise DatasetError(f"{file.url}: not an address that begins with http:// or https://")
    existed = target.exists() and not overwrite
    run = Download(file.url, target, file.size_bytes, file.about_bytes, file.sha256)
    if not existed:
        run.check = lambda part: _check_structure(part, file.url)
        run.retries, run.on_bytes = retries, on_bytes
        run.run()
    size = target.stat().st_size
    digest = sha256_of(target) if existed or file.sha256 is None else file.sha256
    if (file.size_bytes or size, file.sha256 or digest) != (size, digest):
        raise DatasetError(
            f"{target}: exists already, with other content ({size} bytes, SHA-256 {digest}) than '{file.name}' "
            f"({file.size_bytes or '?'} bytes, SHA-256 {file.sha256 or '?'}): move it away, or replace it with "
            "--overwrite"
        )
    if existed:
        _check_structure(target, str(target))
    verified = "sha256" if file.sha256 else "size" if file.size_bytes else "structure"
    return Downloaded(file.name, str(target), size, digest, verified, run.resumed_at, run.received)


def _check_structure(path: Path, shown: str) -> None:
    """Refuse a file that is not an HDF5 file with a demo that has actions."""
    with DatasetFile(path) as file:
        demos = file.demos()
        if not demos:
            raise DatasetError(f"{shown}: contains no demo")
        file.length(demos[0])
