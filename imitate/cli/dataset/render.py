"""``imitate dataset render``: render images from recorded simulator states."""

import json
import re
import sys
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.dataset.curate import First, Names, names_of
from imitate.cli.options import (
    FAILED,
    INTERRUPTED,
    NAMES,
    AsJson,
    FilterKey,
    On,
    Overwrite,
    Quiet,
    Resume,
    StepTimeout,
    Workers,
    number_of_workers,
    opened,
)
from imitate.cli.progress import Progress
from imitate.collect.render import RenderReport
from imitate.collect.render import render as draw
from imitate.data.edit.selection import Selection
from imitate.envs.cameras import DEFAULT_SIZE, Camera
from imitate.errors import UserError, nearest
from imitate.system.processes import LOCAL
from imitate.system.text import counted


class Segmentation(str, Enum):
    """Unit that gets a number of its own in a segmentation image: object instance, object class or geom."""

    instance = "instance"
    class_ = "class"
    element = "element"


class RenderStorage(str, Enum):
    """Compression of the images in the file."""

    raw = "raw"
    gzip = "gzip"
    lzf = "lzf"
    jpeg = "jpeg"


def render(
    file: Annotated[
        Path, typer.Argument(help="HDF5 file of robosuite demonstrations with states.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="HDF5 file to write.")],
    cameras: Annotated[
        str, typer.Option("--cameras", metavar=NAMES, help="Names: agentview,robot0_eye_in_hand.")
    ] = "agentview,robot0_eye_in_hand",
    size: Annotated[
        str,
        typer.Option(
            "--size",
            help="Image size in pixels: 84, HEIGHTxWIDTH (120x160), or by camera: "
            "agentview=128,robot0_eye_in_hand=84.",
        ),
    ] = str(DEFAULT_SIZE),
    depth: Annotated[
        bool,
        typer.Option(
            "--depth",
            help="Also write depth images in metres as <camera>_depth, (H, W, 1) float32.",
        ),
    ] = False,
    segmentation: Annotated[
        Segmentation | None,
        typer.Option(
            "--segmentation",
            help="Also write segmentation images as <camera>_segmentation, (H, W, 1): numbers of object instances, "
            "classes or elements, whose names are in the demo's attribute camera_info.",
        ),
    ] = None,
    workers: Workers = None,
    on: On = LOCAL,
    storage: Annotated[
        RenderStorage,
        typer.Option(
            "--storage",
            help="raw: fastest to read; gzip, lzf: smaller and lossless; jpeg: smallest, "
            "lossy, only for colour images.",
        ),
    ] = RenderStorage.raw,
    jpeg_quality: Annotated[
        int,
        typer.Option(
            "--jpeg-quality",
            min=1,
            max=100,
            help="JPEG quality, from 1 to 100, with --storage jpeg.",
        ),
    ] = 95,
    filter_key: FilterKey = None,
    demos: Names = None,
    first: First = None,
    keep_obs: Annotated[
        bool,
        typer.Option(
            "--keep-obs/--only-images",
            help="Copy the recorded observations into the new file, or write only the images.",
        ),
    ] = True,
    next_obs: Annotated[
        bool,
        typer.Option(
            "--next-obs/--no-next-obs",
            help="Also write next_obs, which doubles the size. Without it, training uses the "
            "obs of the following step.",
        ),
    ] = False,
    step_timeout_s: StepTimeout = 60.0,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Render camera images from the recorded states of robosuite demonstrations.

    All other data are copied unchanged. With --on ray the simulators run on a cluster
    (docs/cluster.md); only this process reads and writes files.

    Exit code 1: some demos could not be rendered; they are listed and are not in the new file.
    """
    kind = segmentation.value if segmentation else None
    views = _cameras(names_of(cameras) or [], size, depth, kind)
    with Progress(None, "step", "render", quiet=quiet) as bar:

        def start(steps: int) -> None:
            bar.reach(0, total=steps)

        try:
            with opened(on, name="imitate-render") as backend:
                report = draw(
                    file,
                    out,
                    views,
                    selection=Selection(filter_key, names_of(demos), first=first),
                    keep_obs=keep_obs,
                    next_obs=next_obs,
                    workers=number_of_workers(workers, backend, sys.maxsize, 1),
                    storage=storage.value,
                    jpeg_quality=jpeg_quality,
                    resume=resume,
                    step_timeout_s=step_timeout_s,
                    overwrite=overwrite,
                    on_start=start,
                    on_demo=lambda _, steps: bar.advance(steps),
                    backend=backend,
                )
        except KeyboardInterrupt:
            bar.close()
            typer.echo(f"stopped; resume with --resume; {out} was not written", err=True)
            raise typer.Exit(INTERRUPTED) from None
    typer.echo(json.dumps(asdict(report)) if json_ else _as_text(report))
    if report.lost:
        raise typer.Exit(FAILED)


def _cameras(
    names: list[str], text: str, depth: bool, segmentation: str | None
) -> tuple[Camera, ...]:
    sizes = _sizes(names, text)
    return tuple(Camera(name, *sizes[name], depth, segmentation) for name in dict.fromkeys(names))


def _sizes(names: list[str], text: str) -> dict[str, tuple[int, int]]:
    if "=" not in text:
        return dict.fromkeys(names, _pair(text))
    sizes = dict.fromkeys(names, (DEFAULT_SIZE, DEFAULT_SIZE))
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in sizes:
            raise UserError(f"--size: '{name}' is not among --cameras; {nearest(name, names)}")
        sizes[name] = _pair(value)
    return sizes


def _pair(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9][0-9]*)(?:x([1-9][0-9]*))?", text.strip())
    if found is None:
        raise UserError(
            f"--size is '{text}': expected pixels, such as 84, or HEIGHTxWIDTH, such as 120x160"
        )
    return int(found[1]), int(found[2] or found[1])


def _as_text(report: RenderReport) -> str:
    rate = report.images / report.seconds if report.seconds else 0.0
    earlier = f" ({report.resumed} of the interrupted run)" if report.resumed else ""
    if report.resumed == report.demos and not report.steps:
        earlier = ", complete already"
    lines = [
        f"{report.path}: {counted(report.demos, 'demo')}{earlier}",
        f"  observations     {', '.join(report.keys)}",
        f"  drawn            {counted(report.images, 'image')} of {counted(report.steps, 'state')} in "
        f"{report.seconds:.0f} s ({rate:.0f}/s)",
        f"  size             {report.size_mb:.1f} MB",
    ]
    if report.recorded_with not in (None, report.drawn_with):
        lines.append(
            f"  robosuite        {report.recorded_with} recorded, {report.drawn_with} drew"
        )
    if report.differences:
        key, value = max(report.differences.items(), key=lambda item: item[1])
        lines.append(
            f"  recorded obs     differ from the simulator's by at most {value:.2g} ({key})"
        )
    lines += [f"  lost             {demo}: {reason}" for demo, reason in report.lost.items()]
    return "\n".join(lines)
