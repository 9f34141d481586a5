"""Selection of the tests that a change affects, for `scripts/test.sh quick --changed`.

    python -m benchmarks.reached              changes since the branch left main; on main, uncommitted ones
    python -m benchmarks.reached --base REV   changes since that commit

It prints arguments of pytest, one per line: files of tests that have changed, and the tests that execute changed lines
of the package by the map of ``python -m benchmarks.mutation --record tests``. A module that is not in the map is
reached by the test files that name it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from benchmarks import mutation_map

ROOT = Path(__file__).resolve().parents[1]
DEAREST_S, BUDGET_S = 2.0, 60.0
"""Largest CPU seconds of a test, and of all tests of one module."""
HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", help="commit that the change began from")
    base = parser.parse_args().base or _base()
    named = _git("diff", "--name-only", "--diff-filter=d", base, "--", "*.py").split()
    new = _git("ls-files", "--others", "--exclude-standard", "--", "*.py").split()
    tests = {path for path in [*named, *new] if path.startswith("tests/") and "/test_" in path}
    for source in [*named, *new]:
        if source.startswith("imitate/"):
            tests.update(reached(source, changed_lines(_git("diff", "-U0", base, "--", source))))
    print("\n".join(sorted(tests)))
    return 0


def changed_lines(diff: str) -> int:
    """Return the changed lines of a file after the change, as bits; for a deletion, the lines around it."""
    found = 0
    for start, count in HUNK.findall(diff):
        first, number = int(start), int(count or 1)
        found |= ((1 << number) - 1) << first if number else 3 << first
    return found


def reached(source: str, changed: int) -> list[str]:
    """Return the tests that execute changed lines of a module; without a map, the test files that name it."""
    known = mutation_map.reach(source)
    if known.lines:
        return known.tests(changed, DEAREST_S, BUDGET_S)
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if mutation_map.names(path, source)
    ]
    note = f"{source}: not in the map of tests: those that name it, {len(files)} files"
    print(note, file=sys.stderr)
    return files


def _base() -> str:
    head, main_branch = _git("rev-parse", "HEAD").strip(), _git("rev-parse", "main").strip()
    return "HEAD" if head == main_branch else _git("merge-base", "HEAD", "main").strip()


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
