"""``imitate dataset convert``: convert a dataset to another format."""

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.options import AsJson, Overwrite
from imitate.data.formats import registry
from imitate.data.formats.base import ConversionReport, NamedDemo, OpenedDataset, Options
from imitate.data.formats.convert import convert as run
from imitate.system.text import ProgressBar


class ImageStorage(str, Enum):
    """How images are stored in HDF5."""

    raw = "raw"
    gzip = "gzip"
    lzf = "lzf"
    jpeg = "jpeg"
    as_source = "as-source"


def _show_formats(wanted: bool) -> None:
    if not wanted:
        return
    for name in registry.names():
        found = registry.find(name)
        ways = "read, write" if found.write is not None else "read"
        typer.echo(f"{name:<18}{ways:<13}{found.summary}")
    raise typer.Exit()


def convert(
    source: Annotated[Path, typer.Argument(help="File or folder to read; it is not changed.")],
    target: Annotated[Path, typer.Argument(help="File or folder to write.")],
    from_format: Annotated[
        str | None, typer.Option("--from", help="Format of the source; detected by default.")
    ] = None,
    to_format: Annotated[
        str | None,
        typer.Option("--to", help="Format to write; by default according to the target's suffix."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    env: Annotated[
        str | None,
        typer.Option("--env", help="Gymnasium environment of the data, if the file names none."),
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            "--horizon",
            min=1,
            help="Number of steps after which episodes of the data count as timed out.",
        ),
    ] = None,
    fps: Annotated[
        float | None,
        typer.Option(
            "--fps", min=0.001, help="Actions per second, if the source does not contain it."
        ),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option("--language", help="Language instruction to store, if the source has none."),
    ] = None,
    action_shift: Annotated[
        int | None,
        typer.Option(
            "--action-shift",
            min=0,
            help="From ALOHA: number of steps by which observations lag behind their actions; the conversion "
            "removes the lag. Default: 1 for recordings of a real robot, 0 for simulated ones.",
        ),
    ] = None,
    flip_images: Annotated[
        bool | None,
        typer.Option(
            "--flip-images/--keep-images",
            help="Rotate images by 180 degrees, or keep them as they are; "
            "default: rotate if the source stores them upside down (LIBERO).",
        ),
    ] = None,
    video: Annotated[
        str | None,
        typer.Option(
            "--video",
            metavar="CODEC",
            help="To LeRobot: store images as h264 or av1 videos, which are smaller but "
            "slightly lossy; default: PNGs.",
        ),
    ] = None,
    images: Annotated[
        ImageStorage | None,
        typer.Option(
            "--images",
            help="To HDF5: raw, gzip and lzf are lossless; jpeg is slightly lossy, with a "
            "tenth of the size or less; as-source (the default from LeRobot) copies "
            "LeRobot's videos, JPEGs and PNGs unchanged, and stores other lossy sources "
            "as jpeg and all else raw. raw is the default from other formats; robomimic "
            "reads it.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            help="Number of processes that render observations of raw recordings from their states; default: 1.",
        ),
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            "--action", help="From LeRobot: name of the feature that contains the actions."
        ),
    ] = None,
    skip_incomplete: Annotated[
        bool,
        typer.Option(
            "--skip-incomplete", help="From LeRobot: leave out episodes whose files are missing."
        ),
    ] = False,
    _formats: Annotated[
        bool,
        typer.Option(
            "--formats", callback=_show_formats, is_eager=True, help="List the formats and stop."
        ),
    ] = False,
) -> None:
    """Convert a dataset, and report which data were kept, renamed, synthesised and dropped."""
    options = Options(
        env=env,
        horizon=horizon,
        fps=fps,
        language=language,
        action_shift=action_shift,
        flip_images=flip_images,
        video=video,
        images=images.value if images else None,
        workers=workers,
        action=action,
        skip_incomplete=skip_incomplete or None,
    )
    with ProgressBar(desc="convert", unit="demo", leave=False, disable=None) as bar:

        def show(_: str, count: int | None) -> None:
            bar.total = count
            bar.update()

        report = run(
            source,
            target,
            from_format=from_format,
            to_format=to_format,
            options=options,
            overwrite=overwrite,
            replay=_replay,
            on_demo=show,
        )
    typer.echo(json.dumps(report.to_dict(), indent=2) if as_json else "\n".join(report.lines()))


def _replay(
    source: OpenedDataset, options: Options, report: ConversionReport
) -> Iterator[NamedDemo]:
    from imitate.collect.replay import replayed  # imported late: the module needs a simulator

    return replayed(source, options, report)
