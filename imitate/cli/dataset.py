"""``imitate dataset``: show, check, edit and convert demonstration files."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from imitate.cli import actions, curate, doctor, migrate_env, report, set_env, shard
from imitate.cli.convert import convert
from imitate.cli.download import download
from imitate.cli.embed import embed
from imitate.cli.finish import finish
from imitate.cli.progress import Progress
from imitate.cli.recover import recover
from imitate.cli.render import render
from imitate.simulation.playback import PlaybackReport
from imitate.simulation.playback import playback as play
from imitate.system.wording import counted

app = typer.Typer(
    help="Examine, edit, convert and play back demonstration files.", no_args_is_help=True
)
curate.mount(app)
doctor.mount(app)
report.mount(app)
migrate_env.mount(app)
set_env.mount(app)
actions.mount(app)
shard.mount(app)


class Source(str, Enum):
    """Source of the frames."""

    states = "states"
    actions = "actions"
    obs_images = "obs-images"


@app.callback()
def dataset() -> None:
    """Examine, edit, convert and play back demonstration files."""


app.command()(convert)
app.command()(download)
app.command()(embed)
app.command()(finish)
app.command()(recover)
app.command()(render)


@app.command()
def playback(
    file: Annotated[Path, typer.Argument(help="HDF5 file of demonstrations, or a LeRobot folder.")],
    video: Annotated[Path, typer.Option("--video", help="Video file (.mp4) to write.")],
    demos: Annotated[
        str | None,
        typer.Option(
            "--demos",
            help="Number of demos from the beginning, or names: demo_3,demo_7. Default: all.",
        ),
    ] = None,
    by: Annotated[
        Source | None,
        typer.Option(
            "--by",
            help="states: show the recorded states; actions: execute the recorded actions "
            "and measure the distance from the recorded states; obs-images: show the "
            "recorded images. Default: states, or obs-images for a file of a real robot.",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            help="Environment that replaces the file's: a gymnasium name (module:Name-v0), a "
            "robosuite task, or a JSON file of env_args.",
        ),
    ] = None,
    camera: Annotated[
        str | None,
        typer.Option("--camera", help="Camera; default: agentview or the first observed one."),
    ] = None,
    size: Annotated[int, typer.Option("--size", min=2, help="Side of a frame in pixels.")] = 256,
    skip: Annotated[
        int, typer.Option("--skip", min=1, help="Draw one frame every this many steps.")
    ] = 2,
    step_timeout_s: Annotated[
        float,
        typer.Option(
            "--step-timeout-s",
            min=0.001,
            help="Seconds after which a call of the simulator counts as hung (making it: five times as long).",
        ),
    ] = 60.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
) -> None:
    """Show demonstrations as a video."""
    env_meta = None if env is None else _environment(file, env)
    with Progress(None, "demo", "playback", quiet=quiet) as bar:
        report = play(
            file,
            video,
            demos=_wanted(demos),
            by=None if by is None else by.value,
            env_meta=env_meta,
            camera=camera,
            size=size,
            skip=skip,
            on_demo=lambda _: bar.advance(),
            on_count=lambda count: bar.reach(0, total=count),
            step_timeout_s=step_timeout_s,
        )
    typer.echo(_summary(report))


def _environment(file: Path, env: str) -> dict[str, Any]:
    from imitate.data import DatasetFile
    from imitate.evaluation.environments import named_env

    with DatasetFile(file) as read:
        own = read.env_meta
    return named_env(env, own)


def _wanted(demos: str | None) -> int | list[str] | None:
    if demos is None:
        return None
    return int(demos) if demos.isdigit() else [name.strip() for name in demos.split(",")]


def _summary(report: PlaybackReport) -> str:
    lines = [f"{report.video}: {counted(report.frames, 'frame')}"]
    for demo, divergence in report.divergence.items():
        outcome = "solved" if report.success[demo] else "not solved"
        lines.append(
            f"  {demo}: {outcome}, largest difference from the recorded states {divergence:.2g}"
        )
    return "\n".join(lines)
