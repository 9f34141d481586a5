"""``imitate dataset``: look at demonstration files, check them, and make others from them."""

import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from imitate.cli.dataset import curate, quality, rewriting
from imitate.cli.dataset.convert import convert
from imitate.cli.dataset.curate import First, Names, names_of
from imitate.cli.dataset.render import render
from imitate.cli.options import AsJson, Overwrite, Quiet, StepTimeout
from imitate.cli.progress import Progress
from imitate.cli.reports.layout import SOLVED, table
from imitate.collect.playback import PlaybackReport
from imitate.collect.playback import playback as play
from imitate.config.data_paths import url_of
from imitate.data import DatasetFile
from imitate.data.download.catalogue import (
    Downloaded,
    PublicFile,
    chosen,
    download_public,
    load_catalogue,
)
from imitate.data.download.download import RETRIES
from imitate.data.file.journal import is_being_written, journal_of, roll_back, unfinished_words
from imitate.data.file.writer import finish_partial
from imitate.data.shards.index import ShardIndex, write_index
from imitate.errors import DatasetError, UserError
from imitate.system.instructions import instruction_of
from imitate.system.missing import no_such
from imitate.system.plain_files import fresh, replaced
from imitate.system.recognition import INDEX_NAME
from imitate.system.text import DownloadBar, counted


def download(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names from the catalogue, or patterns: robomimic/lift/ph/low_dim or 'robomimic/*/ph/*'."
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the catalogue and stop.")] = False,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Folder for the downloaded files, which keep the folders and names of "
            "the catalogue.",
        ),
    ] = Path("datasets"),
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="Base URL of another server that has the files under the same paths, such as a "
            "mirror.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    retries: Annotated[
        int,
        typer.Option(
            "--retries",
            min=0,
            help="Number of consecutive attempts without progress before the download fails.",
        ),
    ] = RETRIES,
    as_json: AsJson = False,
) -> None:
    """Download public demonstrations of robomimic and MimicGen.

    An interrupted download is kept as FILE.part; the same command resumes it. Sizes and checksums are compared with the
    catalogue if it contains them.
    """
    catalogue = load_catalogue(base_url=url)
    if list_:
        shown = chosen(catalogue, names) if names else catalogue
        typer.echo(_as_json(shown) if as_json else "\n".join(_listing(shown)))
        return
    if not names:
        raise UserError(
            "no files are named: give names (imitate dataset download robomimic/lift/ph/low_dim), or see --list"
        )
    results = []
    for file in chosen(catalogue, names):
        if not as_json and file.licence is None:
            typer.echo(
                f"{file.name}: the publisher states no licence: ask before you pass it on", err=True
            )
        with DownloadBar(file.name, leave=False) as bar:
            result = download_public(file, out / file.place, overwrite, retries, bar.received)
        results.append(result)
        if not as_json:
            typer.echo("\n".join(_outcome(file, result)))
    if as_json:
        typer.echo(json.dumps([vars(result) for result in results], indent=2))


def _outcome(file: PublicFile, result: Downloaded) -> list[str]:
    came = "was there already" if result.fetched_bytes == 0 else "downloaded"
    if result.resumed_at and result.fetched_bytes:
        came = f"downloaded from byte {result.resumed_at} on"
    lines = [f"{result.path}: {came}, {_size(result.size_bytes)}, verified by {result.verified}"]
    if result.verified != "sha256":
        what = "size and HDF5 structure" if result.verified == "size" else "HDF5 structure"
        lines.append(
            f"  no checksum is known for this file: verified by {what} only; its SHA-256 is {result.sha256}"
        )
    lines.append(
        f"  licence {file.licence or 'not stated'}; evaluation horizon {file.horizon} steps"
    )
    return lines


def _listing(files: Sequence[PublicFile]) -> list[str]:
    rows = [
        (
            file.name,
            _size(file.size_bytes)
            if file.size_bytes is not None
            else (f"~ {_size(file.about_bytes)}" if file.about_bytes is not None else "?"),
            "yes" if file.sha256 else "no",
            file.licence or "not stated",
            file.note or "",
        )
        for file in files
    ]
    return list(table(("name", "size", "checksum", "licence", ""), rows))


def _as_json(files: Sequence[PublicFile]) -> str:
    return json.dumps(
        [{**vars(file), "place": str(file.place)} for file in files],
        indent=2,
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def shard(
    files: Annotated[list[Path], typer.Argument(help="HDF5 files or LeRobot folders.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder to write the shards into, or its URL.")
    ],
    per_shard: Annotated[
        int, typer.Option("--per-shard", min=1, help="Number of demos per shard.")
    ] = 1000,
    quiet: Quiet = False,
) -> None:
    """Split files into shards with an index: a folder that can be used as one dataset.

    The same command resumes an interrupted one. Nothing is overwritten.
    """
    from imitate.data.edit.shard import shard_files

    with Progress(None, "demo", "shard", quiet=quiet) as bar:
        made = shard_files(
            files, out, per_shard, on_demo=lambda done, total: bar.reach(done, total=total)
        )
    typer.echo(f"{url_of(out) or out}: {_words(made)}")


def index(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder with HDF5 files of demonstrations, which become the shards."),
    ],
    overwrite: Overwrite = False,
) -> None:
    """Write the index of a folder's HDF5 files, so that the folder can be used as one dataset."""
    path = folder / INDEX_NAME
    if path.exists() and not overwrite:
        raise UserError(f"{path}: exists already: to replace it, add --overwrite")
    typer.echo(f"{folder}: {_words(write_index(folder))}")


def _words(index: ShardIndex) -> str:
    lengths = list(index.lengths())
    return (
        f"{counted(len(index.shards), 'shard')}, {counted(len(lengths), 'demo')}, {counted(sum(lengths), 'step')}, "
        f"{sum(shard.bytes for shard in index.shards) / 1e6:.1f} MB"
    )


def embed(
    files: Annotated[
        list[Path], typer.Argument(help="Demonstrations whose instructions are embedded.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Table to write, an .npz file.")],
    encoder: Annotated[
        str,
        typer.Option("--encoder", help="Text model: a name at Hugging Face, or a folder."),
    ] = "openai/clip-vit-large-patch14",
    text: Annotated[
        list[str] | None,
        typer.Option("--text", help="Further instruction to embed; may be repeated."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Compute a table of embedding vectors for the instructions of demonstrations.

    Name the table in `train.language_embeddings` and list `lang_emb` under `observation.modalities.obs.low_dim`.
    Training, and acting with instructions in the table, then need no text model.
    Needs `pip install 'transformers>=4.40'`.
    """
    from imitate.policy.language import TransformersText  # late: the module imports torch

    if out.exists() and not overwrite:
        raise UserError(f"{out}: exists already: choose another --out, or add --overwrite")
    texts = sorted({*_instructions(files), *(text or ())})
    vectors = TransformersText(encoder).embed(texts)
    with replaced(out) as part, fresh(part) as file:
        np.savez(file, instructions=np.array(texts), embeddings=vectors, encoder=np.array(encoder))
    typer.echo(f"{out}: {len(texts)} instructions, vectors of {vectors.shape[1]}")


def _instructions(files: list[Path]) -> set[str]:
    given_words: set[str] = set()
    for path in files:
        with DatasetFile(path) as file:
            of_demos = {instruction_of(file.attrs(demo)) for demo in file.demos()}
        if None in of_demos:
            raise DatasetError(
                f"{path}: some demos have neither the attribute 'language' nor 'task_id': add one of them to these "
                "demos, or leave the file out and give each instruction (the values of train.data[].lang) with "
                "--text"
            )
        given_words |= {said for said in of_demos if said is not None}
    return given_words


def recover(
    file: Annotated[Path, typer.Argument(help="File whose change in place was interrupted.")],
) -> None:
    """Undo an interrupted change of a file.

    If a change in place (split, set-env, delete ... --in-place) is killed, it leaves FILE.journal. This command
    restores FILE to its state before the change. A journal that belongs to another file, for example after a copy over
    FILE, is moved aside.
    """
    file = file.expanduser()
    if not file.is_file():
        left = unfinished_words(file)
        raise DatasetError(f"{file}: {left}" if left else no_such(file))
    if is_being_written(file):
        raise DatasetError(f"{file}: another process is changing it: wait for it or stop it")
    if not journal_of(file).exists():
        typer.echo(f"{file}: there is nothing to recover")
        return
    try:
        was = roll_back(file)
    except OSError as error:
        raise DatasetError(f"{file}: cannot be recovered ({error.strerror})") from error
    typer.echo(
        f"{file}: {'is as it was before the change' if was else 'there was nothing to recover'}"
    )


def finish(
    partial: Annotated[
        Path,
        typer.Argument(help="The .partial file of a recording, or the name of its final file."),
    ],
) -> None:
    """Make a demonstration file from an interrupted recording.

    Complete episodes are kept; the interrupted one is lost. FILE.partial becomes FILE.
    """
    count = finish_partial(partial)
    file = partial.with_suffix("") if partial.suffix == ".partial" else partial
    typer.echo(f"{file}: {count} {'episode' if count == 1 else 'episodes'}")


app = typer.Typer(
    help="Examine, edit, convert and play back demonstration files.", no_args_is_help=True
)
curate.mount(app)
quality.mount(app)
rewriting.mount(app)
app.command()(shard)
app.command()(index)


class FrameSource(str, Enum):
    """Source of the video's frames: recorded states, executed actions or recorded images."""

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
    demos: Names = None,
    first: First = None,
    by: Annotated[
        FrameSource | None,
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
            help="Environment to open instead of the file's: a gymnasium name (module:Name-v0), a robosuite task, or "
            "a JSON file of env_args.",
        ),
    ] = None,
    camera: Annotated[
        str | None,
        typer.Option(
            "--camera",
            help="Camera to show; default: agentview, or else the first camera among the "
            "observations.",
        ),
    ] = None,
    size: Annotated[
        int, typer.Option("--size", min=2, help="Height and width of a frame in pixels.")
    ] = 256,
    skip: Annotated[
        int, typer.Option("--skip", min=1, help="Draw one frame every this many steps.")
    ] = 2,
    step_timeout_s: StepTimeout = 60.0,
    quiet: Quiet = False,
) -> None:
    """Show demonstrations as a video."""
    env_meta = None if env is None else _environment(file, env)
    with Progress(None, "demo", "playback", quiet=quiet) as bar:
        report = play(
            file,
            video,
            demos=names_of(demos),
            first=first,
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
    from imitate.evaluate.environments import named_env

    with DatasetFile(file) as read:
        own = read.env_meta
    return named_env(env, own)


def _summary(report: PlaybackReport) -> str:
    lines = [f"{report.video}: {counted(report.frames, 'frame')}"]
    for demo, divergence in report.divergence.items():
        outcome = SOLVED[report.success[demo]]
        lines.append(
            f"  {demo}: {outcome}, largest difference from the recorded states {divergence:.2g}"
        )
    return "\n".join(lines)
