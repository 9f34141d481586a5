"""``imitate dataset split | filter | subset | merge | delete | rename-key | stats``: edit demonstration files."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from imitate.cli.options import NAMES, AsJson, FilterKey, Overwrite, Seed
from imitate.cli.reports.layout import table
from imitate.data.edit import edits
from imitate.data.edit.edits import add_filter_key, failures_among
from imitate.data.edit.edits import split as split_file
from imitate.data.edit.merge import environments_left_out
from imitate.data.edit.merge import merge as merge_files
from imitate.data.edit.selection import Selection
from imitate.data.edit.summary import summarize, summarize_shards
from imitate.data.edit.target import Target
from imitate.data.shards.folder import local_file, shards_at
from imitate.errors import DatasetError, UserError, printable
from imitate.system.text import ProgressBar, counted

File = Annotated[Path, typer.Argument(help="HDF5 file of demonstrations, or a LeRobot folder.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="File to write.")]
InPlace = Annotated[
    bool,
    typer.Option(
        "--in-place",
        help="Change FILE itself instead of writing --out; the old file is kept as FILE.bak.",
    ),
]
MasksInPlace = Annotated[
    bool,
    typer.Option(
        "--in-place",
        help="Change FILE itself instead of writing --out; its demos are neither changed nor copied.",
    ),
]
ReplaceMasks = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace existing filter keys of the same name, and an existing file --out.",
    ),
]
Names = Annotated[
    str | None,
    typer.Option(
        "--demos",
        metavar=NAMES,
        help="Use only these demos, given by names and ranges such as demo_3,demo_7-demo_9.",
    ),
]
Without = Annotated[
    str | None,
    typer.Option(
        "--without", metavar=NAMES, help="Demos to leave out, such as demo_3,demo_7-demo_9."
    ),
]
First = Annotated[
    int | None,
    typer.Option(
        "--first", min=1, help="Use at most this many of the demos that the other options leave."
    ),
]
DrawSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        min=0,
        help="Draw the demos of --first at random with this seed; default: take the first ones.",
    ),
]
Success = Annotated[
    bool | None,
    typer.Option(
        "--success/--failure",
        help="Use only successful demos, or only failed ones, according to the demo's attribute success or else to "
        "rewards of 0 and 1.",
    ),
]
MinLength = Annotated[
    int | None,
    typer.Option("--min-length", min=0, help="Use only demos of at least this number of steps."),
]
MaxLength = Annotated[
    int | None,
    typer.Option("--max-length", min=0, help="Use only demos of at most this number of steps."),
]
MinReturn = Annotated[
    float | None,
    typer.Option(
        "--min-return", help="Use only demos whose sum of rewards is at least this value."
    ),
]
MaxReturn = Annotated[
    float | None,
    typer.Option("--max-return", help="Use only demos whose sum of rewards is at most this value."),
]


class ActionMode(str, Enum):
    """Rescaling of the actions: to [-1, 1], or to mean 0 and standard deviation 1."""

    min_max = "min_max"
    gaussian = "gaussian"


def mount(app: typer.Typer) -> None:
    """Add the commands of this file to ``imitate dataset``."""
    app.command("split")(split)
    app.command("filter")(filter_)
    app.command("subset")(subset)
    app.command("merge")(merge)
    app.command("delete")(delete)
    app.command("rename-key")(rename_key)
    app.command("stats")(stats)
    app.command("normalize-actions")(normalize_actions)


def split(
    file: File,
    out: Out = None,
    in_place: MasksInPlace = False,
    overwrite: ReplaceMasks = False,
    ratio: Annotated[
        float,
        typer.Option(
            "--ratio", help="Share of the demos that go into the filter key valid, from 0 to 1."
        ),
    ] = 0.1,
    seed: Seed = 0,
    filter_key: FilterKey = None,
    success: Success = None,
) -> None:
    """Split the demos at random into the filter keys train and valid.

    Existing filter keys with these names, such as a recorder's, are replaced only with --overwrite.
    """
    target = target_of(file, out, in_place, overwrite, keeps_old=False)
    with progress("split", "MB") as on_mb:
        masks = split_file(
            file,
            target,
            ratio=ratio,
            seed=seed,
            filter_key=filter_key,
            success=success,
            overwrite=overwrite,
            on_mb=on_mb,
        )
    counts = ", ".join(f"{name} {len(demos)}" for name, demos in masks.items())
    typer.echo(f"{target.path}: {counts}")
    train = next(iter(masks))
    failures = failures_among(target.path, masks[train]) if success is None else 0
    if failures:
        typer.echo(
            f"note: {failures} of the demos in {train} failed; --success leaves them out", err=True
        )


def filter_(
    file: File,
    name: Annotated[str, typer.Argument(help="Name of the filter key to write.")],
    out: Out = None,
    in_place: MasksInPlace = False,
    overwrite: ReplaceMasks = False,
    filter_key: FilterKey = None,
    demos: Names = None,
    without: Without = None,
    success: Success = None,
    min_length: MinLength = None,
    max_length: MaxLength = None,
    min_return: MinReturn = None,
    max_return: MaxReturn = None,
    first: First = None,
    seed: DrawSeed = None,
) -> None:
    """Write a filter key with the demos that fulfil all conditions."""
    target = target_of(file, out, in_place, overwrite, keeps_old=False)
    selection = Selection(
        filter_key,
        names_of(demos),
        success,
        min_length,
        max_length,
        min_return,
        max_return,
        first,
        seed,
        names_of(without) or (),
    )
    with progress("filter", "MB") as on_mb:
        chosen = add_filter_key(file, target, name, selection, overwrite=overwrite, on_mb=on_mb)
    typer.echo(f"{target.path}: {name} {len(chosen)}")


def subset(
    file: File,
    out: Out = None,
    in_place: InPlace = False,
    overwrite: Overwrite = False,
    filter_key: FilterKey = None,
    demos: Names = None,
    without: Without = None,
    success: Success = None,
    min_length: MinLength = None,
    max_length: MaxLength = None,
    min_return: MinReturn = None,
    max_return: MaxReturn = None,
    first: First = None,
    seed: DrawSeed = None,
) -> None:
    """Keep only the demos that fulfil all conditions, in a new file or in place."""
    target = target_of(file, out, in_place, overwrite)
    selection = Selection(
        filter_key,
        names_of(demos),
        success,
        min_length,
        max_length,
        min_return,
        max_return,
        first,
        seed,
        names_of(without) or (),
    )
    with progress("subset") as on_demo:
        chosen = edits.subset(file, target, selection, on_demo)
    typer.echo(f"{target.path}: {counted(len(chosen), 'demo')}")


def merge(
    files: Annotated[list[Path], typer.Argument(help="HDF5 files or LeRobot folders.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")],
    overwrite: Overwrite = False,
    common_keys: Annotated[
        bool,
        typer.Option(
            "--common-keys",
            help="Leave out arrays that some demos lack, such as the images of a camera.",
        ),
    ] = False,
    any_env: Annotated[
        bool,
        typer.Option(
            "--any-env",
            help="Merge demos of different environments; the new file names only the "
            "environment of the first file.",
        ),
    ] = False,
) -> None:
    """Write the demos of several files into one."""
    target = Target(out, overwrite=overwrite)
    if any(file.exists() and out.exists() and out.samefile(file) for file in files):
        raise UserError(f"{out}: is one of the input files: name another with --out")
    with progress("merge") as on_demo:
        names = merge_files(
            files, target, common_keys=common_keys, any_env=any_env, on_demo=on_demo
        )
    renamed = any(old != new for part in names for old, new in part.items())
    typer.echo(
        f"{target.path}: {counted(sum(map(len, names)), 'demo')} of {counted(len(files), 'file')}"
        + (", renumbered because some had the same name" if renamed else "")
    )
    lost = environments_left_out(files)
    if lost:
        typer.echo(
            printable(
                f"note: {target.path} names only the environment of {files[0]}, in which "
                f"policies are evaluated and demos are replayed; {', '.join(lost)} is lost. "
                "To keep all, train on a list of files (train.data)"
            ),
            err=True,
        )


def delete(
    file: File,
    out: Out = None,
    in_place: InPlace = False,
    overwrite: Overwrite = False,
    demos: Names = None,
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys",
            metavar=NAMES,
            help="Arrays or groups to leave out, such as obs/object,next_obs.",
        ),
    ] = None,
) -> None:
    """Delete demos or arrays, in a new file or in place."""
    target = target_of(file, out, in_place, overwrite)
    with progress("delete") as on_demo:
        edits.delete(
            file, target, demos=names_of(demos) or (), keys=names_of(keys) or (), on_demo=on_demo
        )
    typer.echo(f"{target.path}: written without {', '.join(filter(None, (demos, keys)))}")


def rename_key(
    file: File,
    old: Annotated[str, typer.Argument(help="Array to rename, such as obs/object.")],
    new: Annotated[str, typer.Argument(help="New name, such as obs/object_state.")],
    out: Out = None,
    in_place: InPlace = False,
    overwrite: Overwrite = False,
) -> None:
    """Rename an array; for obs/NAME also next_obs/NAME is renamed."""
    target = target_of(file, out, in_place, overwrite)
    with progress("rename-key") as on_demo:
        renamed = edits.rename_keys(file, target, {old: new}, on_demo)
    pairs = ", ".join(f"{old} -> {new}" for old, new in renamed.items())
    typer.echo(f"{target.path}: {pairs}")


_MOST_DIMENSIONS = 2**16
"""Largest number of dimensions of an array whose statistics are shown; each takes half a kilobyte of memory."""


def stats(
    file: File,
    filter_key: FilterKey = None,
    keys: Annotated[
        str | None, typer.Option("--keys", metavar=NAMES, help="Arrays: actions,obs/object.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Show mean, standard deviation, minimum and maximum per key and dimension (images: per channel)."""
    shards = shards_at(file)
    if shards is not None:
        found = summarize_shards(shards, filter_key=filter_key, keys=names_of(keys))
    else:
        with progress("stats", "key") as on_key:
            found = summarize(
                local_file(file), filter_key=filter_key, keys=names_of(keys), on_key=on_key
            )
    for key, s in found.items():
        if len(s.mean) > _MOST_DIMENSIONS:
            raise DatasetError(
                f"{file}: '{key}' has {len(s.mean):,} dimensions, more than can be shown: name others with --keys"
            )
    if json_:
        names = ("mean", "std", "min", "max")
        plain = {key: {n: getattr(s, n).tolist() for n in names} for key, s in found.items()}
        typer.echo(json.dumps(plain))
        return
    rows = [
        (key if i == 0 else "", str(i), *(f"{value:.5g}" for value in values))
        for key, s in found.items()
        for i, values in enumerate(zip(s.mean, s.std, s.min, s.max, strict=True))
    ]
    typer.echo("\n".join(table(("key", "", "mean", "std", "min", "max"), rows)))


def normalize_actions(
    file: File,
    out: Out = None,
    in_place: InPlace = False,
    overwrite: Overwrite = False,
    mode: Annotated[
        ActionMode,
        typer.Option(
            "--mode", help="min_max: scale to [-1, 1]; gaussian: scale to mean 0 and std 1."
        ),
    ] = ActionMode.min_max,
    undo: Annotated[
        bool,
        typer.Option(
            "--undo",
            help="Undo an earlier rescaling: restore the actions as the robot received them.",
        ),
    ] = False,
) -> None:
    """Rescale the actions per dimension, for other programs; --undo restores them.

    The file records offset and scale. For training, leave the actions unchanged and set
    train.action_config.actions.normalization: the policy then undoes the scaling itself.
    """
    from imitate.data.edit import edits

    target = target_of(file, out, in_place, overwrite)
    with progress("normalize-actions") as on_demo:
        if undo:
            scale = edits.undo(file, target, on_demo)
        else:
            scale = edits.normalize_actions(file, target, mode=mode.value, on_demo=on_demo)
    done = "no longer rescaled" if undo else f"rescaled ({scale.mode})"
    typer.echo(f"{target.path}: actions {done}, {len(scale.scale)} dimensions")


def target_of(
    file: Path, out: Path | None, in_place: bool, overwrite: bool, *, keeps_old: bool = True
) -> Target:
    """Return the file to write; with ``keeps_old``, a file changed in place is kept as a backup.

    Raises:
        UserError: neither or both of ``--out`` and ``--in-place`` are given.
    """
    if (out is None) == (not in_place):
        kept = f" (the old one is kept as {file.name}.bak)" if keeps_old else ""
        place = "" if file.is_dir() else f", or add --in-place{kept}"
        raise UserError(f"{file}: no output file: name a new file with --out{place}")
    return Target(out, source=file, overwrite=overwrite)


def names_of(text: str | None) -> list[str] | None:
    """Return the names in a comma-separated text."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@contextmanager
def progress(what: str, unit: str = "demo") -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal, and nothing in a log."""
    with ProgressBar(desc=what, unit=unit, disable=None, leave=False, delay=0.5) as bar:

        def advance(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield advance
