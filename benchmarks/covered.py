"""Tests of docs/coverage.json: each passes, and fails when the replacement that its entry names is made in the source.

    python -m benchmarks.covered [NAME ...]

The replacements are made in a copy of the repository, one after the other. Prints the proofs whose test passes all the
same, fails without the replacement, or cannot be run; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium  # noqa: F401 - loaded once for all forks
import h5py  # noqa: F401
import pytest
import torch  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "docs" / "coverage.json"


def main() -> int:
    """Run the proofs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of proofs; by default all")
    names = parser.parse_args().names
    proofs = json.loads(LIST.read_text(encoding="utf-8"))["proofs"]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        tracked = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
        subprocess.run(
            ["cp", "--parents", "-t", folder, *filter(None, tracked.decode().split("\0"))],
            cwd=ROOT,
            check=True,
        )
        copy, chosen = Path(folder), names or [*proofs]
        healthy = exit_code(copy, *{proofs[name]["test"] for name in chosen}) == 0
        for name in chosen:
            proof = proofs[name]
            fails = not healthy and exit_code(copy, proof["test"])
            problem = f"{proof['test']} fails as it is" if fails else tried(copy, proof)
            wrong += bool(problem)
            print(f"{name}: {problem or 'fails as it should'}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} proofs hold")
    return int(wrong > 0)


def tried(folder: Path, proof: dict[str, str]) -> str:
    """Return what is wrong with a proof, or an empty text."""
    path = folder / proof["at"]
    text = path.read_text(encoding="utf-8")
    if (times := text.count(proof["old"])) != 1:
        return f"{proof['at']} has {proof['old']!r} {times} times, not once"
    path.write_text(text.replace(proof["old"], proof["new"]), encoding="utf-8")
    code = exit_code(folder, proof["test"])
    path.write_text(text, encoding="utf-8")
    if code == 0:
        return f"{proof['test']} passes with {proof['new']!r}"
    return "" if code == 1 else f"{proof['test']} cannot be run: pytest ends with exit code {code}"


def exit_code(folder: Path, *tests: str) -> int:
    """Run tests in a fork, which has the packages loaded already; return pytest's exit code, 1 if a test fails."""
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
        os._exit(int(pytest.main([*options, *tests])))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
