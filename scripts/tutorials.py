"""Run the tutorials of the documentation as a reader would, and write the outputs of their commands to the pages.

    python scripts/tutorials.py                  # all of them; rewrites the outputs on the pages
    python scripts/tutorials.py install          # the tutorial of one page

A tutorial is the part of a page of docs/ between ``<!-- tutorial -->`` and ``<!-- end of the tutorial -->``.
It consists of blocks, which are run in their order in an empty folder:

    ```python title="name.py"    a file that the reader writes (also json, toml)
    ```bash                      commands, which have to succeed
    ```text title="output"       what the commands before it printed; of long outputs the lines between are left out

The folder ``examples/`` is available, as in a clone. ``pip install -e examples/NAME`` installs for this run only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PART = re.compile(
    r"^<!-- tutorial -->$(.*?)^<!-- end of the tutorial -->$", re.MULTILINE | re.DOTALL
)
BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
INSTALL = re.compile(
    r"^pip install (?:--?[\w-]+ )*(?P<folder>examples/\w+|\./\w+|\w+)$", re.MULTILINE
)
MOST_LINES = 12
TIMEOUT_S = 900


class Block(NamedTuple):
    """A block of a page."""

    language: str
    title: str | None
    text: str
    span: tuple[int, int]


def blocks(page: str) -> Iterator[Block]:
    """Return the blocks of a page's tutorial, in order."""
    part = PART.search(page)
    begin, end = part.span() if part else (0, len(page))
    for match in BLOCK.finditer(page, begin, end):
        yield Block(match["language"], match["title"], match["text"], match.span())


def pages() -> list[Path]:
    """Return the pages that have a tutorial."""
    return [path for path in sorted(DOCS.glob("*.md")) if PART.search(path.read_text())]


def install(project: Path, site: Path) -> None:
    """Install a package as ``pip install -e`` does, in a folder of this run: its path, and its entry points."""
    text = (project / "pyproject.toml").read_text()
    (name,) = re.findall(r'^name = "([\w-]+)"', text, flags=re.MULTILINE)
    info = site / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    points = re.findall(
        r'^\[project\.entry-points\."([\w.]+)"\]\n((?:\w+ = .*\n)+)', text, flags=re.MULTILINE
    )
    lines = [
        f"[{group}]\n" + re.sub(r'^(\w+) = "([\w.:]+)".*$', r"\1 = \2", entries, flags=re.MULTILINE)
        for group, entries in points
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module in project.glob("*.py"):
        (site / module.name).write_text(module.read_text())


class Reader:
    """A reader who follows a page in an empty folder.

    Args:
        folder: the folder.
        commands: a folder with the command ``imitate`` to use; None for that of this clone.
    """

    def __init__(self, folder: Path, commands: Path | None = None) -> None:
        self.folder = folder
        self.site = folder / ".site"
        self.site.mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")
        path = [str(self.site), str(ROOT), str(folder)]
        places = [commands, self._commands(), os.environ["PATH"]]
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
            "XDG_CACHE_HOME": str(folder / ".cache"),
            "XDG_CONFIG_HOME": str(folder / ".config"),
            "PATH": os.pathsep.join(map(str, filter(None, places))),
        }

    def _commands(self) -> Path:
        """Return a folder with the command ``imitate`` of this clone."""
        folder = self.folder / ".bin"
        folder.mkdir()
        for name, words in {"imitate": "-m imitate", "python": ""}.items():
            (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (folder / name).chmod(0o755)
        return folder

    def write(self, block: Block) -> None:
        """Write the file of a block with a title."""
        path = self.folder / str(block.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)

    def run(self, commands: str) -> str:
        """Run commands and return their output.

        Raises:
            RuntimeError: a command failed.
        """
        for match in INSTALL.finditer(commands):
            install(self.folder / match["folder"], self.site)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", INSTALL.sub("true", commands)],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode} of:\n{commands}\n{done.stdout}")
        return done.stdout.replace(str(self.folder), ".")


def shown(output: str) -> str:
    """Return an output as a page shows it: without progress bars, and only the first and last of many lines."""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in output.splitlines()]
    lines = [line for line in lines if line and "it/s" not in line and "s/it" not in line]
    if len(lines) > MOST_LINES:
        half = MOST_LINES // 2
        lines = [*lines[:half], "...", *lines[-half:]]
    return "\n".join(lines) + "\n"


def followed(page: str, folder: Path, commands: Path | None = None) -> str:
    """Return the page with the outputs of this run.

    Args:
        page: text of the page.
        folder: an empty folder to work in.
        commands: see `Reader`.
    """
    reader, output, text, last = Reader(folder, commands), "", "", 0
    for block in blocks(page):
        if block.language == "bash":
            output = reader.run(block.text)
        elif block.title == "output":
            text += page[last : block.span[0]] + f'```text title="output"\n{shown(output)}```'
            last = block.span[1]
        elif block.title:
            reader.write(block)
    return text + page[last:]


def main(names: list[str]) -> int:
    """Run the tutorials of pages and write their outputs."""
    for path in pages():
        if names and path.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(followed(path.read_text(), Path(folder)))
        print(f"{path}: followed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
