"""The page docs/coverage.md, from the list docs/coverage.json."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

LIST = Path(__file__).parents[1] / "docs" / "coverage.json"
HEAD = """# Coverage of other toolkits

Rows of the references of ALF, SRL and DI-engine. A row is *covered* if a test shows it that fails for a broken version,
*partly* if something is left, which the row names. The replacement that breaks a version, and its test, are in the
[last table](#proofs); `python -m benchmarks.covered` tries all of them.

The page for those who come from there: [ALF, DI-engine, SRL](from_other_rl.md).
"""


def coverage_page() -> str:
    """Return the text of the page."""
    listed = json.loads(LIST.read_text(encoding="utf-8"))
    proofs = listed["proofs"]
    parts = [HEAD, *(_group(group, proofs) for group in listed["groups"].values())]
    rows = [
        f"| {name} | `{proof['at']}` | `{_code(proof['old'])}` → `{_code(proof['new'])}` | `{proof['test']}` |"
        for name, proof in proofs.items()
    ]
    head = "## Proofs\n\n| proof | file | replacement | the test that fails |\n|---|---|---|---|\n"
    return "\n".join([*parts, head + "\n".join(rows) + "\n"])


def state_of(row: dict[str, Any]) -> str:
    """Return the state of a row: "covered", "partly" or "not here"."""
    if "by" not in row:
        return "not here"
    return "partly" if "lacks" in row else "covered"


def _group(group: dict[str, Any], proofs: dict[str, Any]) -> str:
    rows = group["rows"]
    counts = Counter(map(state_of, rows.values()))
    words = ", ".join(f"{counts[state]} {state}" for state in ("covered", "partly", "not here"))
    table = ["| there | state | here | proofs | what is not here |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        by = row.get("by", [])
        places = ", ".join(dict.fromkeys(f"`{proofs[each]['at']}`" for each in by))
        cells = (f"`{name}`", state_of(row), places, ", ".join(by), row.get("lacks", ""))
        table.append(f"| {' | '.join(cells)} |")
    text = "\n".join(table)
    return f"## {group['title']}\n\n{words} ([source]({group['source']})).\n\n{text}\n"


def _code(text: str) -> str:
    """Return source code as the content of one table cell."""
    return " ".join(text.split()).replace("|", "\\|")
