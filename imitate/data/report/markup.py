"""HTML and SVG as values. Everything that is not markup is escaped, so that no text of a file becomes a tag."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_EMPTY = frozenset(("img", "link", "meta", "line", "rect", "circle", "path"))


class Html(str):
    """Text that is markup."""


def text(value: object) -> Html:
    """Return any value as text of a page; control characters are replaced."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(_CONTROL.sub("\ufffd", str(value)), quote=True))


def join(parts: Iterable[object]) -> Html:
    """Concatenate several parts; None is skipped."""
    return Html("".join(text(part) for part in parts if part is not None))


def el(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element.

    Args:
        name: name of the tag.
        *children: text or markup; None is skipped.
        **attributes: ``class_`` becomes ``class``, other underscores become hyphens; None is skipped.
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            value = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value
            words.append(f'{key.rstrip("_").replace("_", "-")}="{text(value)}"')
    opening = " ".join(words)
    if name in _EMPTY and not children:
        return Html(f"<{opening}/>")
    return Html(f"<{opening}>{join(children)}</{name}>")


def table(header: Sequence[object], rows: Iterable[Sequence[object]], *, left: int = 1) -> Html:
    """Return a table that is sorted by a click on a header; the first ``left`` columns are text, the others numbers."""
    sides = [None if at < left else "num" for at in range(len(header))]
    head = [
        el("th", name, class_=side, scope="col", tabindex="0")
        for name, side in zip(header, sides, strict=True)
    ]
    body = [
        el("tr", *(el("td", cell, class_=side) for cell, side in zip(row, sides, strict=True)))
        for row in rows
    ]
    whole = el("table", el("thead", el("tr", *head)), el("tbody", *body), class_="sortable")
    return el("div", whole, class_="scroll")


def section(anchor: str, title: str, *parts: object, note: str | None = None) -> Html:
    """Return a section of the page with a heading and an explanation."""
    lead = el("p", note, class_="note") if note else None
    return el("section", el("h2", title), lead, *parts, id=anchor)


def figure(drawing: object, title: object, caption: object = None) -> Html:
    """Return a drawing with its title."""
    head = el("figcaption", el("b", title), el("span", caption) if caption else None)
    return el("figure", head, drawing)


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with ``digits`` significant digits; None becomes a dash."""
    return "–" if value is None else f"{value:.{digits}g}".replace("-", "−")


def size(num_bytes: float) -> str:
    """Format a number of bytes in a suitable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def percent(share: float) -> str:
    """Format a fraction in percent; a positive one is never shown as 0 %."""
    if 0 < share < 0.001:
        return "<\u00a00.1\u00a0%"
    if 0.999 < share < 1:
        return ">\u00a099.9\u00a0%"
    return f"{100 * share:.1f}".removesuffix(".0") + "\u00a0%"
