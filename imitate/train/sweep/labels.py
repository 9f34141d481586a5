"""Short names of settings in legends and tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from imitate.config.axes import short_name
from imitate.errors import UserError, nearest
from imitate.train.style import algorithm_name

if TYPE_CHECKING:
    from imitate.train.sweep.curves import Curve, Setting

LONGEST = 30
"""Letters of a label, and of a value that has a column in a table."""
MOST_KEYS = 2
"""Keys in a label that differ."""


def labelled(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings with a label of at most `LONGEST` letters each, all different.

    It is the name of the sweep's folder or of the experiment, else the algorithm's. Where several settings share it,
    the values in which they differ follow, at most `MOST_KEYS`; of a single sweep they are enough.
    """
    bases = [_base(setting.curves) for setting in settings]
    alone = len(set(bases)) == 1 and all(curve.sweep for s in settings for curve in s.curves)
    labels = []
    for setting, base in zip(settings, bases, strict=True):
        cell = _cell(setting)
        if alone and cell:
            labels.append(cell)
        elif bases.count(base) == 1:
            labels.append(base or _of_algorithm(setting))
        else:
            labels.append(f"{base} {cell or value_words(setting.values)}".strip())
    return told_apart(settings, labels)


def renamed(settings: Sequence[Setting], names: Iterable[str]) -> list[Setting]:
    """Return the settings with labels of the user's: ``NAME=TEXT`` for each.

    Raises:
        UserError: there is no such label.
    """
    texts: dict[str, str] = {}
    for name in names:
        old, equals, text = name.rpartition("=")
        if not equals or not text:
            raise UserError(f"--label {name}: wanted NAME=TEXT, such as lift_bc=BC")
        if old not in {setting.label for setting in settings}:
            raise UserError(
                f"--label {name}: no line has the name '{old}'; "
                f"{nearest(old, [setting.label for setting in settings])}"
            )
        texts[old] = text
    return [replace(s, label=texts.get(s.label, s.label)) for s in settings]


def told_apart(settings: Sequence[Setting], labels: Sequence[str]) -> list[Setting]:
    """Return the settings with labels of at most `LONGEST` letters; equal ones get a number."""
    labels, made = [_shortened(label) for label in labels], []
    for number, (setting, label) in enumerate(zip(settings, labels, strict=True)):
        if labels.count(label) > 1:
            short = label[: LONGEST - 4].rstrip()
            label = f"{short} #{1 + labels[:number].count(label)}"
        made.append(replace(setting, label=label))
    return made


def value_words(values: Mapping[str, Any]) -> str:
    """Return the first values as text, such as ``batch_size=64, seq_length=10``."""
    if list(values) == ["algo_name"]:
        return algorithm_name(words(values["algo_name"]))
    first = list(values.items())[:MOST_KEYS]
    return ", ".join(f"{short_name(key, values)}={_last_part(words(v))}" for key, v in first)


def words(value: Any) -> str:
    """Format a value as in JSON, without the quotes of a text."""
    return value if isinstance(value, str) else json.dumps(value)


def cell_of(run: str) -> str:
    """Return the values in the name of a sweep's run but its seed; the runs of one setting share them."""
    parts = [part for part in run.split(",") if part.split("=")[0] not in ("seed", "train.seed")]
    return ", ".join(parts)


def origin(curve: Curve) -> tuple[str, str]:
    """Return what the runs of one setting share: the sweep and its cell, or the experiment's name."""
    if curve.sweep:
        return curve.sweep, cell_of(curve.folder.parent.name)
    return str(curve.config.get("experiment", {}).get("name", curve.label)), ""


def _base(curves: Sequence[Curve]) -> str:
    """Return the name that the runs of a setting share, or an empty text."""
    names = {origin(curve)[0] for curve in curves}
    return names.pop() if len(names) == 1 else ""


def _cell(setting: Setting) -> str:
    cells = {origin(curve)[1] for curve in setting.curves}
    text = cells.pop() if len(cells) == 1 else ""
    key, _, value = text.partition("=")
    return algorithm_name(value) if key == "algo_name" and "," not in value else text


def _of_algorithm(setting: Setting) -> str:
    if setting.values:
        return value_words(setting.values)
    first = setting.curves[0]
    return first.folder.parent.parent.name or str(first.config.get("algo_name", "all"))


def _last_part(text: str) -> str:
    return text.rstrip("/").rpartition("/")[2] if "/" in text and "{" not in text else text


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3].rstrip(" ,_=") + "..."
