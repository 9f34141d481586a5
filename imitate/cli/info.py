"""``imitate info``: what an HDF5 file, a checkpoint or a run folder holds."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from imitate.errors import UserError

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_ZIP_SIGNATURE = b"PK\x03\x04"


def command(
    path: Annotated[
        Path,
        typer.Argument(help="HDF5 file, checkpoint, run folder or folder of runs (its newest)."),
    ],
    json_: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show what an HDF5 file, a checkpoint or a run holds."""
    from imitate.train.run_folder import to_json

    path = _newest_run(path)
    kind = import_module(f"imitate.cli.reports.{_kind(path)}")
    report = kind.describe(path)
    typer.echo(to_json(report, indent=2) if json_ else "\n".join(kind.lay_out(report)))


def _newest_run(path: Path) -> Path:
    """A folder of runs stands for its newest run; any other path for itself."""
    if not path.is_dir() or (path / "config.json").is_file():
        return path
    from imitate.train.run_folder import runs_in

    return (runs_in(path) or [path])[-1]


def _kind(path: Path) -> str:
    if path.is_dir():
        if (path / "config.json").is_file():
            return "run"
        raise UserError(
            f"{path}: a folder without config.json, so not a run; name a run (<output_dir>/<name>/<time>) or a file"
        )
    if not path.is_file():
        raise UserError(f"{path}: there is no such file or folder")
    with path.open("rb") as file:
        signature = file.read(len(_HDF5_SIGNATURE))
    if signature.startswith(_ZIP_SIGNATURE) or path.suffix in (".pth", ".pt", ".ckpt"):
        return "checkpoint"
    if signature == _HDF5_SIGNATURE or path.suffix in (".hdf5", ".h5"):
        return "dataset"
    raise UserError(
        f"{path}: neither an HDF5 file nor a checkpoint (it begins {signature!r}); "
        "name a demonstration file, a checkpoint or a run folder"
    )
