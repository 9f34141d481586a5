"""Disk space by key."""

from __future__ import annotations

import h5py
import numpy as np

from imitate.data.report.markup import Html, number, percent, section, size, table
from imitate.data.report.subject import Subject
from imitate.data.report.svg import share_bar
from imitate.system.wording import counted

_FEW = 8
_ATTRIBUTES = "attributes of the demos"


def storage(subject: Subject) -> Html:
    """Return a table of the disk space by key."""
    stored, raw, forms = _sizes(subject)
    if not stored:
        return Html("")
    whole = sum(stored.values())
    rows = []
    for key in sorted(stored, key=lambda key: -stored[key]):
        share = stored[key] / max(1, whole)
        saved = f"{number(raw[key] / stored[key])} ×" if stored[key] and key in raw else "–"
        rows.append(
            (
                key,
                forms.get(key, "text"),
                share_bar(share, percent(share)),
                percent(share),
                size(stored[key]),
                saved,
            )
        )
    words = "all demos" if subject.is_whole else f"the {counted(len(subject.sample), 'demo')} read"
    note = f"{size(whole)} in arrays and attributes of {words}; compression is raw size by stored size."
    header = ("key", "one step", "", "share", "stored", "compression")
    return section("storage", "Size by key", table(header, rows, left=3), note=note)


def _sizes(subject: Subject) -> tuple[dict[str, int], dict[str, int], dict[str, str]]:
    stored: dict[str, int] = {}
    raw: dict[str, int] = {}
    forms: dict[str, str] = {}
    for demo in subject.sample:
        for key, form in demo.arrays.items():
            array = subject.file.array(demo.name, key)
            with subject.file.reading(f"demo '{demo.name}', '{key}'"):
                stored[key] = stored.get(key, 0) + _stored(array)
            raw[key] = raw.get(key, 0) + int(np.prod(form.shape)) * form.dtype.itemsize
            shape = " × ".join(map(str, form.step)) or "number"
            forms[key] = f"{shape} {form.dtype}"
        texts = sum(len(str(value)) for value in subject.file.attrs(demo.name).values())
        stored[_ATTRIBUTES] = stored.get(_ATTRIBUTES, 0) + texts
    return stored, raw, forms


def _stored(array: h5py.Dataset) -> int:
    """Return the number of bytes on the disk; for individually compressed frames, estimated from a few of them."""
    if h5py.check_vlen_dtype(array.dtype) is None:
        return int(array.id.get_storage_size())
    some = range(0, array.shape[0], max(1, array.shape[0] // _FEW))
    return int(np.mean([len(array[step]) for step in some])) * array.shape[0] if some else 0
