"""``imitate info``: describe a dataset, a checkpoint, a bundle or a run folder."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.options import AsJson
from imitate.config.data_paths import url_of
from imitate.data.file.journal import unfinished_words
from imitate.deploy.bundle.archive import is_bundle
from imitate.errors import UserError, printable
from imitate.system.missing import no_such
from imitate.system.recognition import INDEX_NAME, diagnosis, lerobot_policy, recognise

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_ZIP_SIGNATURE = b"PK\x03\x04"
_REPORTS = {"run": "run", "lerobot-dataset": "lerobot", "shards": "shards"}


def command(
    path: Annotated[
        Path,
        typer.Argument(
            help="Demonstration file, dataset folder, checkpoint, bundle, run folder or folder of runs (the newest "
            "run is described); or the URL of a demonstration file or of a folder of shards."
        ),
    ],
    json_: AsJson = False,
) -> None:
    """Describe a dataset, a checkpoint, a bundle or a run."""
    from imitate.system.run_folder import to_json

    url = url_of(path)
    if url is not None:
        from imitate.data.shards.folder import local_file, shards_at

        name = "dataset" if shards_at(url) is None else "shards"
        path = local_file(url) if name == "dataset" else path
    else:
        path = _newest_run(path.parent if path.name == INDEX_NAME else path)
        name = _kind(path)
    kind = import_module(f"imitate.cli.reports.{name}")
    report = kind.describe(path)
    lines = kind.lay_out(report)
    typer.echo(to_json(report, indent=2) if json_ else printable("\n".join(lines)))


def _newest_run(path: Path) -> Path:
    """Return the newest run of a folder of runs, also of a name below ``runs``; any other path as it is."""
    from imitate.system.run_folder import RUNS, runs_in

    if not path.exists() and (RUNS / path).is_dir():
        path = RUNS / path
    if not path.is_dir() or (path / "config.json").is_file():
        return path
    return (runs_in(path) or [path])[-1]


def _kind(path: Path) -> str:
    """Return the module of ``imitate.cli.reports`` that describes the kind of file at a path."""
    found = recognise(path)
    if path.is_dir() and found is not None and found.kind in _REPORTS:
        return _REPORTS[found.kind]
    if found is None and (path / "config.json").is_file():
        return "run"  # the module's report describes what is wrong with the file
    if lerobot_policy(path) is not None:
        return "checkpoint"
    if path.is_file():
        with path.open("rb") as file:
            signature = file.read(len(_HDF5_SIGNATURE))
        if signature == _HDF5_SIGNATURE or path.suffix in (".hdf5", ".h5"):
            return "dataset"
        if is_bundle(path):
            return "bundle"
        if path.suffix in (".zip", ".npz") and found is None and _is_dataset(path):
            return "dataset"
        if found is None and (
            signature.startswith(_ZIP_SIGNATURE) or path.suffix in (".pth", ".pt", ".ckpt")
        ):
            return "checkpoint"
    if found is None and _is_dataset(path):
        return "dataset"
    raise UserError((diagnosis(path) if path.exists() else None) or _unknown(path))


def _is_dataset(path: Path) -> bool:
    """Return True for a dataset of another format, which is read by converting it."""
    from imitate.data.formats.cached import convertible_format

    return path.exists() and convertible_format(path) is not None


def _unknown(path: Path) -> str:
    if not path.exists():
        left = unfinished_words(path)
        return f"{path}: there is no such file; {left}" if left else no_such(path, "file or folder")
    if path.is_dir():
        from imitate.system.run_folder import only_name

        only_name(path)
        return (
            f"{path}: is neither a run nor a dataset of a known format: "
            "name a run (<output_dir>/<name>/<time>), a dataset or a file; write recordings of another layout with "
            "imitate.data.DatasetWriter (docs/own_data.md#recordings-of-another-layout)"
        )
    return (
        f"{path}: is neither a demonstration file nor a checkpoint: "
        "name a demonstration file, a checkpoint or a run folder"
    )
