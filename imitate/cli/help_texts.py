"""Complete the help texts: add examples to each sub-command, show summaries in full, and keep tables."""

from typing import Any

EXAMPLES: dict[str, tuple[str, ...]] = {
    "dataset split": (
        "imitate dataset split demos.hdf5 --in-place --ratio 0.1",
        "imitate dataset split demos.hdf5 --out split.hdf5 --filter-key success",
    ),
    "dataset filter": (
        "imitate dataset filter demos.hdf5 short --max-length 200 --success --in-place",
        "imitate dataset filter demos.hdf5 twenty --first 20 --seed 1 --out filtered.hdf5",
    ),
    "dataset subset": ("imitate dataset subset demos.hdf5 --first 50 --success --out fifty.hdf5",),
    "dataset merge": (
        "imitate dataset merge monday.hdf5 tuesday.hdf5 --out week.hdf5",
        "imitate dataset merge own.hdf5 LEROBOT_FOLDER --out both.hdf5 --common-keys --any-env",
    ),
    "dataset shard": (
        "imitate dataset shard demos.hdf5 --out demos/ --per-shard 1000",
        "imitate dataset shard monday.hdf5 tuesday.hdf5 --out s3://bucket/week --per-shard 200",
    ),
    "dataset index": ("imitate dataset index demos/",),
    "dataset delete": (
        "imitate dataset delete demos.hdf5 --demos demo_3,demo_7-demo_9 --out kept.hdf5",
        "imitate dataset delete demos.hdf5 --keys next_obs --out smaller.hdf5",
    ),
    "dataset rename-key": (
        "imitate dataset rename-key demos.hdf5 obs/object obs/object_state --out renamed.hdf5",
    ),
    "dataset stats": (
        "imitate dataset stats demos.hdf5 --keys actions,obs/object",
        "imitate dataset stats demos.hdf5 --filter-key train --json",
    ),
    "dataset normalize-actions": (
        "imitate dataset normalize-actions demos.hdf5 --out scaled.hdf5",
        "imitate dataset normalize-actions scaled.hdf5 --undo --out commands.hdf5",
    ),
    "dataset doctor": (
        "imitate dataset doctor demos.hdf5",
        "imitate dataset doctor demos.hdf5 --fix --only nan,duplicate --out repaired.hdf5",
    ),
    "dataset report": ("imitate dataset report demos.hdf5 --out demos.html --open",),
    "dataset migrate-env": (
        "imitate dataset migrate-env old.hdf5 --dry-run",
        "imitate dataset migrate-env old.hdf5 --out migrated.hdf5 --check 3",
    ),
    "dataset set-env": ("imitate dataset set-env own.hdf5 --env myarm.envs:Reach-v0 --in-place",),
    "dataset actions": (
        "imitate dataset actions demos.hdf5 --to absolute --out absolute.hdf5 --check 3",
        "imitate dataset actions demos.hdf5 --action-dict --out with_rotations.hdf5",
    ),
    "dataset convert": (
        "imitate dataset convert LEROBOT_FOLDER demos.hdf5 --images as-source",
        "imitate dataset convert demos.hdf5 LEROBOT_FOLDER --to lerobot --video h264",
        "imitate dataset convert --formats",
    ),
    "dataset download": (
        "imitate dataset download --list",
        "imitate dataset download robomimic/lift/ph/low_dim --out datasets",
    ),
    "dataset embed": ("imitate dataset embed demos.hdf5 --out instructions.npz",),
    "dataset finish": ("imitate dataset finish demos.hdf5.partial",),
    "dataset render": (
        "imitate dataset render demos.hdf5 --out images.hdf5 --cameras agentview --size 84 --workers 2",
    ),
    "dataset playback": (
        "imitate dataset playback demos.hdf5 --first 5 --video demos.mp4",
        "imitate dataset playback own.hdf5 --by obs-images --video demos.mp4",
    ),
    "dataset recover": ("imitate dataset recover demos.hdf5",),
}
"""Example command lines by sub-command, for commands that do not define their own."""


def examples(*lines: str) -> str:
    """Return the end of a command's help: the example command lines.

    A line with only a backspace character prevents click from re-wrapping the lines after it.
    """
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def complete(command: Any, name: str) -> None:
    """Add examples to a click command and its sub-commands, and a summary that lists show in full.

    In docstrings the backspace character that protects a table is written as a backslash and the letter b.

    Args:
        command: the click command; changed.
        name: its full name, such as 'dataset split'.
    """
    if command.help:
        command.help = command.help.replace("\\b\n", "\b\n")
        command.short_help = command.short_help or _summary(command.help)
    if name in EXAMPLES and not command.epilog:
        command.epilog = examples(*EXAMPLES[name])
    for below, child in getattr(command, "commands", {}).items():
        complete(child, f"{name} {below}")


def _summary(text: str) -> str:
    """Return the first sentence of a help text."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".") + "."
