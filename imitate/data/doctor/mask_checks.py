"""Checks of the filter keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from imitate.data.doctor.finding import Finding, Level, Remedy, counted
from imitate.data.doctor.layout import Layout
from imitate.data.doctor.structure import reason
from imitate.errors import DatasetError


def check_masks(layout: Layout) -> Iterator[Finding]:
    """Check that masks contain only demos of the file, without repetitions."""
    try:
        masks = layout.file.filter_keys()
    except DatasetError as error:
        yield Finding(
            "masks", Level.error, reason(error, layout), advice="write the masks again with split"
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
