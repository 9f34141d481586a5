"""HTML and SVG as values. Everything that is not markup is escaped, so that no text of a file becomes a tag.

The module also contains the page's style sheet and the script that sorts its tables.
"""

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


STYLE = """
:root { color-scheme: light dark; --page: #f6f6f3; --card: #fcfcfb; --ink: #0b0b0b; --soft: #52514e; --faint: #76746e;
  --grid: #e7e6e0; --axis: #c3c2b7; --line: #dddcd5; --accent: #2a78d6; --wash: #2a78d622; --bad: #c8332f;
  --warn: #9a6a00; --good: #0b7d0b; --bad-wash: #d03b3b14; --warn-wash: #fab21920; --good-wash: #0ca30c18;
  --info-wash: #2a78d612; --c1: #eb6834; --c2: #1b9a68; --c3: #7a4fd0; --c4: #b7860b; }
@media (prefers-color-scheme: dark) { :root { --page: #121211; --card: #1c1c1a; --ink: #f4f4f1; --soft: #c3c2b7;
  --faint: #96948c; --grid: #2e2e2b; --axis: #4a4a45; --line: #34342f; --accent: #5a9eea; --wash: #5a9eea30;
  --bad: #f07b76; --warn: #f0b440; --good: #5cc65c; --bad-wash: #d03b3b2e; --warn-wash: #fab21922;
  --good-wash: #0ca30c2a; --info-wash: #3987e526; --c1: #f0845a; --c2: #35b583; --c3: #a58bef; --c4: #d5a52f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 0 0 4px; }
p { margin: 4px 0; } .note, .path { color: var(--faint); font-size: 13.5px; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 18px 0 0; font-size: 14px; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin-top: 18px; }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 16px 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 8px 16px 9px;
  min-width: 104px; } .tile b { display: block; font-size: 23px; line-height: 1.25; font-weight: 650; }
.tile span { color: var(--faint); font-size: 13px; } .tile.error b { color: var(--bad); }
.tile.warning b { color: var(--warn); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 3px 24px; margin: 0 0 10px;
  font-size: 14px; } dl div { display: flex; gap: 12px; } dt { color: var(--faint); flex: 0 0 96px; }
dd { margin: 0; overflow-wrap: anywhere; }
.grid { display: flex; flex-wrap: wrap; gap: 18px 28px; margin-top: 12px; } .small > figure { width: 232px; }
.grid.small { gap: 18px 20px; } .starts > figure { width: 310px; }
figure { margin: 0; max-width: 100%; } .grid + figure { margin-top: 22px; }
.grid + figure figcaption { max-width: none; }
figcaption { font-size: 13.5px; margin-bottom: 2px; max-width: 460px; } figcaption b { margin-right: 8px; }
figcaption > span { color: var(--faint); font-size: 12.5px; } .small figcaption { min-height: 58px; }
.small figcaption b { display: block; } .plain { color: var(--soft); max-width: 420px; }
svg { display: block; max-width: 100%; height: auto; overflow: visible; } svg text { fill: var(--faint);
  font-size: 11px; font-variant-numeric: tabular-nums; } .tick { text-anchor: middle; } .tick.y { text-anchor: end; }
.label { text-anchor: middle; } .grid-line, .grid line, svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis { stroke: var(--axis); stroke-width: 1; } .bar { fill: var(--accent); } .bar:hover { opacity: .7; }
.track { fill: var(--grid); } svg .limit { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 4 3; }
.band { fill: var(--wash); } .curve { fill: none; stroke: var(--accent); stroke-width: 2; stroke-linejoin: round; }
.way { fill: none; stroke: var(--accent); stroke-width: 1.1; stroke-opacity: .5; } .way.failed { stroke: var(--bad);
  stroke-opacity: .8; } .way:hover { stroke-width: 3; stroke-opacity: 1; }
.start { fill: var(--card); stroke: var(--accent); stroke-width: 1.4; } .start.failed { stroke: var(--bad); }
.end { fill: var(--accent); stroke: var(--card); stroke-width: .6; } .end.failed { fill: var(--bad); }
.curve.c1 { stroke: var(--c1); } .curve.c2 { stroke: var(--c2); } .curve.c3 { stroke: var(--c3); }
.curve.c4 { stroke: var(--c4); } .key { display: inline-block; width: 12px; height: 12px; border-radius: 3px;
  margin: 0 5px -1px 0; background: var(--accent); } .key.failed { background: var(--bad); }
.key.c1 { background: var(--c1); } .key.c2 { background: var(--c2); } .key.c3 { background: var(--c3); }
.key.c4 { background: var(--c4); } figcaption span span { margin-right: 10px; }
.legend .key.failed { margin-left: 14px; }
.scroll { overflow-x: auto; margin-top: 10px; } table { border-collapse: collapse; font-size: 13.5px; width: 100%;
  font-variant-numeric: tabular-nums; } th, td { text-align: left; padding: 4px 12px 4px 0; white-space: nowrap;
  border-bottom: 1px solid var(--grid); } th { color: var(--faint); font-weight: 600; cursor: pointer;
  user-select: none; } th:hover { color: var(--ink); } th[aria-sort=ascending]::after { content: " ▲"; font-size: 9px; }
th[aria-sort=descending]::after { content: " ▼"; font-size: 9px; } .num { text-align: right; }
td { max-width: 380px; overflow: hidden; text-overflow: ellipsis; }
h3 { font-size: 14px; margin: 14px 0 0; }
details { margin-top: 10px; font-size: 13.5px; } summary { cursor: pointer; color: var(--soft); }
.finding { border-left: 4px solid var(--accent); background: var(--info-wash); border-radius: 0 8px 8px 0;
  padding: 8px 14px; margin-top: 10px; overflow-wrap: anywhere; } .finding.error { border-color: var(--bad);
  background: var(--bad-wash); } .finding.warning { border-color: var(--warn); background: var(--warn-wash); }
.finding b { margin-right: 8px; } .places { color: var(--soft); font-size: 13px; } .badge { font-weight: 650;
  font-size: 13px; margin-right: 10px; color: var(--accent); } .badge.error { color: var(--bad); }
.badge.warning { color: var(--warn); } .well { color: var(--good); background: var(--good-wash); border-radius: 8px;
  padding: 8px 14px; margin-top: 10px; } pre { margin: 6px 0 2px; padding: 7px 11px; background: var(--card);
  border: 1px solid var(--line); border-radius: 6px; font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; } .code { background: var(--warn-wash); color: var(--warn);
  border-radius: 4px; padding: 0 6px; margin-right: 4px; font-size: 12.5px; }
.films { display: flex; flex-wrap: wrap; gap: 12px 26px; margin: 6px 0 18px; } .film { display: flex; gap: 4px; }
.film img { max-width: 168px; border-radius: 4px; display: block; } .films span { color: var(--faint);
  font-size: 12.5px; } footer { color: var(--faint); font-size: 13px; margin-top: 22px; }
@media (max-width: 640px) { main { padding: 18px 12px; } section { padding: 14px; } .film img { max-width: 30vw; } }
@media print { :root { --page: #fff; --card: #fff; } body { font-size: 12px; } main { max-width: none; padding: 0; }
  nav { display: none; } section { border: 0; border-top: 1px solid #bbb; border-radius: 0; padding: 12px 0; }
  figure, .finding, tr, .tile { break-inside: avoid; } h2 { break-after: avoid; } }
"""

SCRIPT = """
const order = (a, b) => { const x = parseFloat(a), y = parseFloat(b);
  return isNaN(x) || isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y; };
const units = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
const value = cell => { const words = cell.textContent.replaceAll("\\u2212", "-").replace("< ", "").trim();
  const [count, unit] = words.split(" "); return unit in units ? String(count * units[unit]) : words; };
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const sort = at => { const down = heads[at].ariaSort === "ascending";
    heads.forEach(head => head.removeAttribute("aria-sort"));
    heads[at].setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => order(value(a.cells[at]), value(b.cells[at])));
    body.append(...(down ? rows.reverse() : rows)); };
  heads.forEach((head, at) => { head.addEventListener("click", () => sort(at));
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(at); }); });
}
"""
