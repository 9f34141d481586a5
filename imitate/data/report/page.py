"""The page: a single file that needs no other files and makes no requests."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.metadata import version
from pathlib import Path

from imitate.data.curate.target import Target
from imitate.data.dataset_file import DatasetFile
from imitate.data.file.extents import Extents
from imitate.data.report.actions import actions
from imitate.data.report.episodes import demo_table, episodes
from imitate.data.report.images import thumbnails
from imitate.data.report.markup import Html, el, join, text
from imitate.data.report.motion import initial_states, trajectories
from imitate.data.report.observations import observations
from imitate.data.report.overview import doctor, head
from imitate.data.report.storage import storage
from imitate.data.report.style import SCRIPT, STYLE
from imitate.data.report.subject import Progress, Subject, subject_of
from imitate.errors import DatasetError

_SECTIONS = (
    doctor,
    episodes,
    trajectories,
    initial_states,
    actions,
    thumbnails,
    observations,
    storage,
    demo_table,
)
_TITLE = re.compile(r'<section id="(\w+)"><h2>(.*?)</h2>')


def write_report(
    path: str | Path,
    target: Target,
    *,
    filter_key: str | None = None,
    max_demos: int = 200,
    on_demo: Progress = lambda done, total: None,
) -> Subject:
    """Write a page about a demonstration file, atomically.

    Args:
        path: the HDF5 file.
        target: the page to write.
        filter_key: only the demos of this mask; None: all.
        max_demos: read the values of at most this number of demos, evenly spread, and of at most 2 GB.
        on_demo: called with the number of processed demos and the number of all demos.

    Returns:
        the subject of the page; its file is closed.

    Raises:
        DatasetError: the file cannot be read, there is no such filter key, or the page cannot be written.
    """
    if target.path.exists() and Path(path).exists() and target.path.samefile(path):
        raise DatasetError(f"{path}: is the file that is read: name another with --out")
    with DatasetFile(path) as file, Extents(file) as extents:
        subject = subject_of(extents, filter_key=filter_key, max_demos=max_demos, on_demo=on_demo)
        with target.writing() as part:
            part.write_text(page(subject), encoding="utf-8")
    return subject


def page(subject: Subject) -> str:
    """Return the whole page."""
    parts = [build(subject) for build in _SECTIONS]
    links = [
        el("a", Html(title), href=f"#{anchor}")
        for part in parts
        for anchor, title in _TITLE.findall(part)
    ]
    body = el(
        "main",
        head(subject),
        el("nav", *links),
        *parts,
        el(
            "footer",
            f"Written by imitate {version('imitate')}: imitate dataset report {subject.file.path}",
        ),
    )
    # security policy: only our script runs, and no address is contacted, whatever a file contains
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(STYLE)}'; script-src '{_digest(SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    top = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{subject.file.path.name}: demonstrations"),
        el("link", rel="icon", href="data:,"),
        el("style", Html(STYLE)),
    )
    script = el("script", Html(SCRIPT))
    return "<!DOCTYPE html>\n" + el("html", top, el("body", join([body, script])), lang=text("en"))


def _digest(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
