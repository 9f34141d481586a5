"""Versions of the documentation in a folder: the list for the site's selector, and the page that leads to the newest.

python scripts/site_versions.py site 0.1.0     # site/versions.json and site/index.html; 0.1.0 was built just now
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

REDIRECT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>imitate</title>
<meta http-equiv="refresh" content="0; url={version}/">
<a href="{version}/">Documentation of version {version}</a>
</html>
"""


def versions_in(site: Path) -> list[str]:
    """Return the names of the folders of ``site`` that are versions, newest first."""
    found = [path.parent.name for path in site.glob("*/index.html")]
    return sorted((name for name in found if re.match(r"\d", name)), key=_key, reverse=True)


def _key(version: str) -> tuple[tuple[int, ...], bool, str]:
    """Return a key for sorting; 1.0.0rc1 comes before 1.0.0."""
    numbers = re.match(r"[\d.]+", version)
    release = numbers[0] if numbers else ""
    more = version.removeprefix(release)
    return tuple(int(number) for number in re.findall(r"\d+", release)), not more, more


def write(site: Path, built: str) -> None:
    """Write ``versions.json`` and an ``index.html`` that leads to the newest version.

    Raises:
        SystemExit: ``built`` is not a folder of ``site`` with a page in it.
    """
    names = versions_in(site)
    if built not in names:
        raise SystemExit(f"{site / built} has no index.html: build it first (bash scripts/docs.sh)")
    listed = [
        {"version": name, "title": name, "aliases": ["latest"] if name == names[0] else []}
        for name in names
    ]
    (site / "versions.json").write_text(json.dumps(listed, indent=2) + "\n")
    (site / "index.html").write_text(REDIRECT.format(version=names[0]))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    write(Path(sys.argv[1]), sys.argv[2])
