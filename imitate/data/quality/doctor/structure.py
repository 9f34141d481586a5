"""Checks of the layout: demos, arrays, lengths, types, counts, filter keys, demos that are in the file twice."""

import hashlib
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from imitate.data.edit.rewrite import Rows
from imitate.data.file.action_scale import NO_ATTRIBUTES, recorded_scale
from imitate.data.file.faults import odd_lengths
from imitate.data.formats.lerobot_missing import INCOMPLETE
from imitate.data.quality.doctor.finding import Finding, Level, Place, Remedy, counted
from imitate.data.quality.doctor.survey import DemoSteps, FileLayout
from imitate.errors import DatasetError

_SCALARS = ("rewards", "dones", "terminals", "timeouts")


def check_demos(layout: FileLayout) -> Iterator[Finding]:
    """Find demos that cannot be opened or have no actions or steps; or report that there is no demo."""
    if not layout.demos and not layout.broken:
        yield Finding(
            "no_demos", Level.error, "there is no demo under 'data'", advice="collect some first"
        )
    for name, reason in layout.broken.items():
        yield Finding("unreadable", Level.error, reason, [Place(name)], Remedy(drop_demos=[name]))
    without = [demo.name for demo in layout.demos if "actions" not in demo.arrays]
    if without:
        yield Finding(
            "no_actions",
            Level.error,
            f"{counted(len(without), 'has have')} no 'actions'",
            [Place(name, "actions") for name in without],
            Remedy(drop_demos=without),
        )
    empty = [d.name for d in layout.demos if "actions" in d.arrays and d.length == 0]
    if empty:
        yield Finding(
            "empty_demo",
            Level.error,
            f"{counted(len(empty), 'has have')} no step",
            [Place(name) for name in empty],
            Remedy(drop_demos=empty),
        )


def reason(error: DatasetError, layout: FileLayout) -> str:
    """Return an error's message without the path, which the report contains anyway."""
    return str(error).removeprefix(f"{layout.file.path}: ")


def check_env(layout: FileLayout) -> Iterator[Finding]:
    """Check that the environment is described, so that policies can be evaluated in it."""
    advice = "write the attribute 'env_args' of group 'data': JSON with env_name, type, env_kwargs"
    try:
        meta = layout.file.env_meta
    except DatasetError as error:
        yield Finding("env_args", Level.error, reason(error, layout), advice=advice)
        return
    missing = [key for key in ("env_name", "type", "env_kwargs") if key not in meta]
    if missing:
        what = f"'env_args' lacks {', '.join(missing)}: no policy of this file can be evaluated"
        yield Finding("env_args", Level.warning, what, advice=advice)


def check_action_scale(layout: FileLayout) -> Iterator[Finding]:
    """Check that actions are the robot's commands."""
    try:
        scale = recorded_scale(layout.file)
    except DatasetError as error:
        yield Finding("rescaled_actions", Level.error, reason(error, layout))
        return
    if scale is not None:
        yield Finding(
            "rescaled_actions",
            Level.warning,
            f"'actions' are rescaled ({scale.mode}), not the commands sent to the robot: training on them is refused",
            [Place(key="actions")],
            Remedy(values={"actions": scale.to_commands}, attrs=NO_ATTRIBUTES),
        )


def check_counts(layout: FileLayout) -> Iterator[Finding]:
    """Check the attributes ``num_samples`` and ``total``."""
    wrong = [
        (demo, demo.said_length)
        for demo in layout.demos
        if demo.length and demo.said_length != demo.length
    ]
    if wrong:
        demo, said = wrong[0]
        yield Finding(
            "num_samples",
            Level.error if any(said is not None for _, said in wrong) else Level.info,
            f"attribute 'num_samples' of {counted(len(wrong))} is wrong: {said} for length {demo.length} of "
            f"'{demo.name}'",
            [Place(demo.name) for demo, _ in wrong],
            Remedy(),
        )
    total, said = sum(demo.length for demo in layout.demos), layout.file.file_attrs.get("total")
    if said is not None and said != total and not layout.broken:
        what = f"attribute 'total' is {said}, but the demos' lengths add up to {total}"
        yield Finding("total", Level.info, what, remedy=Remedy())


def check_keys(layout: FileLayout) -> Iterator[Finding]:
    """Check that all demos have the same arrays."""
    demos = [demo for demo in layout.demos if demo.length]
    for key in layout.steps:
        having = [demo.name for demo in demos if key in demo.arrays]
        lacking = [demo.name for demo in demos if key not in demo.arrays]
        if not lacking or key == "actions":
            continue
        few = len(lacking) <= len(having)
        remedy = Remedy(drop_demos=lacking) if few else Remedy(drop_keys=[key])
        yield Finding(
            "missing_key",
            Level.error,
            f"'{key}' is in {counted(len(having))} and not in {len(lacking)}",
            [Place(name, key) for name in (lacking if few else having)],
            remedy,
        )


def check_complete(layout: FileLayout) -> Iterator[Finding]:
    """Report images that were missing in a dataset of another format."""
    missing = str(layout.file.file_attrs.get(INCOMPLETE, ""))
    if missing:
        advice = (
            "train on what is there: imitate config init with --skip-incomplete or --images none"
        )
        yield Finding("incomplete", Level.warning, missing, advice=advice)


def check_shapes(layout: FileLayout) -> Iterator[Finding]:
    """Check that a step has the same shape in all demos, and that rewards and terminals are one number per step."""
    for key, usual in layout.steps.items():
        other = [d for d in layout.demos if key in d.arrays and d.arrays[key].step != usual.step]
        if other:
            demo = other[0]
            yield Finding(
                "shape",
                Level.error,
                f"a step of '{key}' has shape {usual.step}, but {demo.arrays[key].step} in '{demo.name}'",
                [Place(demo.name, key) for demo in other],
                Remedy(drop_demos=[demo.name for demo in other]),
            )
        if key in _SCALARS and np.prod(usual.step) != 1:
            yield Finding(
                "shape",
                Level.error,
                f"a step of '{key}' has shape {usual.step}: expected one number",
                [Place(key=key)],
                Remedy(drop_keys=[key]),
                "write one number per step",
            )


def check_lengths(layout: FileLayout) -> Iterator[Finding]:
    """Check that all arrays of a demo have one row per step."""
    places, rows, worst = [], {}, ""
    for demo in layout.demos:
        lengths = {key: form.shape[0] for key, form in demo.per_step().items()}
        wrong = [key for key, length in lengths.items() if length != demo.length]
        if not wrong or not demo.length:
            continue
        places += [Place(demo.name, key) for key in wrong]
        kept = np.arange(min(lengths.values()))
        rows[demo.name] = Rows(kept, kept)
        worst = worst or f"{lengths[wrong[0]]} rows of '{wrong[0]}' in '{demo.name}'"
        worst += "" if "steps" in worst else f", which has {demo.length} steps"
    if not places:
        return
    lost = [name for name, kept in rows.items() if len(kept.done) == 0]
    yield Finding(
        "lengths",
        Level.error,
        f"arrays of {counted(len(rows))} differ in length: {worst}",
        places,
        Remedy(rows={n: r for n, r in rows.items() if n not in lost}, drop_demos=lost),
        "write the arrays again from the recording, because the file does not show which rows are missing",
    )


def check_dtypes(layout: FileLayout) -> Iterator[Finding]:
    """Check that values are numbers and have the same type in all demos."""
    for key, usual in layout.steps.items():
        having = [demo for demo in layout.demos if key in demo.arrays]
        if any(not demo.arrays[key].is_numeric for demo in having):
            what = f"'{key}' holds {usual.dtype}, not numbers"
            remedy = None if key == "actions" else Remedy(drop_keys=[key])
            yield Finding(
                "dtype", Level.error, what, [Place(key=key)], remedy, "write it as float32"
            )
            continue
        other = [demo for demo in having if demo.arrays[key].dtype != usual.dtype]
        if other:
            wide = np.result_type(*(demo.arrays[key].dtype for demo in having))
            all_floats = all(demo.arrays[key].dtype.kind == "f" for demo in having)
            yield Finding(
                "dtype",
                # a training converts all these types to float32
                Level.info if all_floats else Level.warning,
                f"'{key}' is {usual.dtype}, but {other[0].arrays[key].dtype} in '{other[0].name}'",
                [Place(demo.name, key) for demo in other],
                Remedy(values={key: partial(np.asarray, dtype=wide)}),
            )


def check_image_layout(layout: FileLayout) -> Iterator[Finding]:
    """Check that images are (H, W, C)."""
    for key, usual in layout.steps.items():
        if usual.is_channel_first:
            yield Finding(
                "image_layout",
                Level.error,
                f"images of '{key}' are {usual.step}, channels first: expected (H, W, C)",
                [Place(key=key)],
                Remedy(
                    values={key: lambda values: np.ascontiguousarray(np.moveaxis(values, 1, 3))}
                ),
            )


def check_length_outliers(layout: FileLayout) -> Iterator[Finding]:
    """Find demos far shorter or longer than the others, which may have ended too early or too late."""
    demos = [demo for demo in layout.demos if demo.length]
    odd = odd_lengths([demo.length for demo in demos])
    found = {kind: [demos[number] for number in numbers] for kind, numbers in odd.items()}
    median = float(np.median([demo.length for demo in demos])) if demos else 0.0
    for kind, level in (("short", Level.warning), ("long", Level.info)):
        if found[kind]:
            lengths = {demo.length for demo in found[kind]}
            span = " - ".join(map(str, sorted({min(lengths), max(lengths)})))
            names = [demo.name for demo in found[kind]]
            failed = sum(_fails(layout, name) for name in names)
            yield Finding(
                f"{kind}_demos",
                level,
                f"{counted(len(names), 'is are')} very {kind}: {span} steps, the median is {median:.0f}"
                + (f"; {failed} failed" if failed else ""),
                [Place(name) for name in names],
                advice=_look_at(layout, names, kind),
            )


def _fails(layout: FileLayout, demo: str) -> bool:
    try:
        return layout.file.success(demo) is False
    except DatasetError:
        return False


def _look_at(layout: FileLayout, demos: list[str], kind: str) -> str:
    """Return two commands as advice: one shows some of the demos, one makes a filter key of all others.

    A person has to decide whether these demos are wrong.
    """
    file = str(layout.file.path)
    usual = [demo.length for demo in layout.demos if demo.length and demo.name not in demos]
    limit = f"--min-length {min(usual)}" if kind == "short" else f"--max-length {max(usual)}"
    play = (
        f"imitate dataset playback {shlex.quote(file)} --demos {shlex.quote(','.join(demos[:4]))}"
    )
    keep = f"imitate dataset filter {shlex.quote(file)} usual {limit} --in-place"
    return f"look at them: {play} --video look.mp4; to train on the others: {keep}"


CHECKS = (
    check_demos,
    check_env,
    check_action_scale,
    check_counts,
    check_keys,
    check_complete,
    check_shapes,
    check_lengths,
    check_dtypes,
    check_image_layout,
    check_length_outliers,
)


def check_masks(layout: FileLayout) -> Iterator[Finding]:
    """Check that masks contain only demos of the file, without repetitions."""
    try:
        masks = layout.file.filter_keys()
    except DatasetError as error:
        yield Finding(
            "masks",
            Level.error,
            reason(error, layout),
            advice="write the masks again with imitate dataset split",
        )
        return
    known = {demo.name for demo in layout.demos} | set(layout.broken)
    for key, demos in masks.items():
        kept = [demo for demo in dict.fromkeys(demos) if demo in known]
        strange = sorted(set(demos) - known)
        if strange:
            what = f"filter key '{key}' names {counted(len(strange))} that the file does not have: {_some(strange)}"
            yield Finding("mask_unknown", Level.error, what, remedy=Remedy(masks={key: kept}))
        elif not demos:
            what = f"filter key '{key}' is empty"
            yield Finding("mask_empty", Level.warning, what, remedy=Remedy(masks={key: []}))
        elif len(kept) < len(demos):
            twice = [demo for demo, count in Counter(demos).items() if count > 1]
            what = f"filter key '{key}' names demos twice: {_some(twice)}"
            yield Finding("mask_twice", Level.warning, what, remedy=Remedy(masks={key: kept}))
    yield from _overlaps(masks)


def _overlaps(masks: dict[str, list[str]]) -> Iterator[Finding]:
    """Find demos that are used for both training and validation."""
    for key, demos in masks.items():
        partner = f"{key.removesuffix('valid')}train"
        if not key.endswith("valid") or partner not in masks:
            continue
        both = sorted(set(demos) & set(masks[partner]))
        if both:
            held_out = set(demos)
            rest = [demo for demo in masks[partner] if demo not in held_out]
            yield Finding(
                "mask_overlap",
                Level.error,
                f"filter keys '{partner}' and '{key}' share {counted(len(both))}: {_some(both)}",
                remedy=Remedy(masks={partner: rest}),
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")


class Duplicates:
    """Search for equal demos, by digests of the actions and of the first and last observations other than images."""

    def __init__(self) -> None:
        self._digests: dict[str, Any] = {}

    def see(self, piece: DemoSteps) -> None:
        """Add a piece to a demo's digest."""
        if piece.large is not None:
            return
        digest = self._digests.setdefault(piece.demo, hashlib.sha256())
        for key in sorted(piece.small):
            values = piece.small[key]
            if key.startswith("obs/"):
                values = values[[0, -1]]
            elif key != "actions":
                continue
            digest.update(values.tobytes())

    def findings(self) -> Iterator[Finding]:
        """Return a finding for each demo that repeats an earlier one."""
        first: dict[bytes, str] = {}
        again: dict[str, str] = {}
        for demo, digest in self._digests.items():
            original = first.setdefault(digest.digest(), demo)
            if original != demo:
                again[demo] = original
        if again:
            pairs = ", ".join(f"'{demo}' equals '{of}'" for demo, of in list(again.items())[:3])
            yield Finding(
                "duplicate",
                Level.warning,
                f"{counted(len(again), 'repeats repeat')} others: {pairs}{' ...' if len(again) > 3 else ''}",
                [Place(demo) for demo in again],
                Remedy(drop_demos=list(again)),
            )
