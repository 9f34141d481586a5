"""Translate a demonstration file of another robosuite version to the installed one, and check it by replay."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from imitate.collect.replay import Replay, replay_some
from imitate.data import DatasetFile
from imitate.data.edit.rewrite import FileChanges, rewrite
from imitate.data.edit.target import Target
from imitate.data.file.confined import ConfinedFile
from imitate.envs.migration import (
    ROBOSUITE,
    Change,
    installed_robosuite,
    migrate_env_args,
    migrate_model_xml,
)
from imitate.errors import DatasetError, EnvError
from imitate.system.extras import install_command

RECORDED_ENV_ARGS = "recorded_env_args"
"""Attribute of ``data``: the environment's description at the time of the recording."""


@dataclass
class MigrationReport:
    """Report of a migration.

    Attributes:
        path: the written file, or the file that a run without ``--dry-run`` would write.
        robosuite: the version to which it is translated.
        changes: changes of ``env_args``.
        scenes: number of demos by change of their ``model_file``.
        demos: number of demos in the file.
        replays: results of the checked demos.
        not_checked: reason why no demo was checked, or '' if some were.
        written: true if a file was written.
    """

    path: str
    robosuite: str
    changes: list[Change]
    scenes: dict[str, int] = field(default_factory=dict)
    demos: int = 0
    replays: dict[str, Replay] = field(default_factory=dict)
    not_checked: str = ""
    written: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def migrate_file(
    source: Path,
    target: Target | None,
    *,
    check: int = 3,
    on_demo: Callable[[int, int], None] = lambda done, total: None,
) -> MigrationReport:
    """Write a copy whose environment and scenes fit the installed robosuite; nothing else in it changes.

    Args:
        source: a demonstration file.
        target: the copy, or None to only list and check the changes.
        check: number of demos to replay, spread over the file.
        on_demo: called with the number of finished demos and of all demos.

    Raises:
        DatasetError: the file cannot be read, is not robosuite's, or the copy cannot be written.
        EnvError: the description cannot be translated, or robosuite does not take the translation.
    """
    with DatasetFile(source) as file:
        old = file.env_meta
        version = installed_robosuite()
        if old.get("type") != ROBOSUITE:
            raise DatasetError(
                f"{source}: env_args['type'] is {old.get('type')!r}: only robosuite's (1) have versions to translate"
            )
        if version is None:
            raise EnvError(f"robosuite is not installed; do: {install_command('robosuite')}")
        new, changes = migrate_env_args(old)
        report = MigrationReport(str(target.path if target else source), version, changes)
        scenes = _scenes(file, report)
        if not changes and not scenes:
            return report
        report.replays = replay_some(file, new, check)
        if not report.replays:
            report.not_checked = "the demos have no states" if check else "not wanted"
    if target is not None:
        attrs = {"env_args": json.dumps(new), RECORDED_ENV_ARGS: json.dumps(old)}
        with target.writing() as part:
            rewrite(source, part, FileChanges(attrs=attrs), on_demo)
            with ConfinedFile(part, "r+") as copy:
                for demo, scene in scenes.items():
                    copy["data"][demo].attrs["model_file"] = scene
        report.written = True
    return report


def _scenes(file: DatasetFile, report: MigrationReport) -> dict[str, str]:
    """Return the scenes that change, by demo."""
    scenes = {}
    counts: Counter[str] = Counter()
    for demo in file.demos():
        report.demos += 1
        old = file.attrs(demo).get("model_file")
        if old is None:
            continue
        try:
            new, changes = migrate_model_xml(str(old))
        except EnvError as error:
            raise EnvError(f"{file.path}: {demo}: {error}") from error
        if changes:
            scenes[demo] = new
            counts += changes
    report.scenes = dict(counts)
    return scenes
