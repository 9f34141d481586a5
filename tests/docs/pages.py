"""Code in the pages of the documentation."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
)


PROGRAMS = (
    *("imitate", "python", "pip", "bash", "ray", "torchrun", "srun", "git"),
    *("export", "echo", "cat", "mkdir", "for", "done"),
)
"""First words of indented lines that are commands."""


class Command(NamedTuple):
    page: str
    line: int
    words: list[str]

    def __str__(self):
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def blocks(page, language):
    """The text of each block of a page in a language, such as ``json``."""
    return re.findall(
        rf"^```{language}\b[^\n]*\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    )


TUTORIAL = re.compile(
    r"^<!-- tutorial -->$.*?^<!-- end of the tutorial -->$", re.DOTALL | re.MULTILINE
)
"""Part of a page whose blocks tests/examples/test_tutorials.py runs."""


def python_blocks(page):
    """The text of each Python block of a page, without those of its tutorial."""
    guide = TUTORIAL.sub("", (ROOT / page).read_text())
    return re.findall(r"^```python\b[^\n]*\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)


def commands(*programs):
    """Command lines of all pages that begin with one of the programs; what a shell does with them is left out."""
    return [one for page in PAGES for one in _commands_of(page) if one.words[0] in programs]


def shell_lines(page, fenced=True, tutorial=False):
    """Commands of a page without its tutorial, in order: indented lines that begin with a program, and shell blocks.

    Args:
        page: its path.
        fenced: false leaves out those of shell blocks.
        tutorial: true takes those of the tutorial, else it is left out.
    """
    whole = (ROOT / page).read_text()
    part = "".join(TUTORIAL.findall(whole)) if tutorial else TUTORIAL.sub("", whole)
    return [
        text
        for _, text, in_block in _code_lines(part.splitlines())
        if text
        and not text.startswith("#")
        and (fenced if in_block else text.split(" ")[0] in PROGRAMS)
    ]


def _commands_of(page):
    lines = (ROOT / page).read_text().splitlines()
    for number, text, _ in _code_lines(lines):
        words = _words(text)
        if words:
            yield Command(page, number, words)


def _code_lines(lines):
    """Number and text of each line of code, with its continuation lines; true if it is fenced, not indented."""
    fence, whole, begun = None, "", 0
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fence = None if fence is not None else line.strip().strip("`")
            continue
        shell = fence in ("bash", "console", "sh") if fence is not None else line.startswith("    ")
        if not shell:
            whole = ""
            continue
        begun = begun if whole else number
        whole += line.strip().removeprefix("$ ")
        if whole.endswith("\\"):
            whole = whole[:-1]
            continue
        yield begun, whole, fence is not None
        whole = ""


def _words(text):
    """The words of the first command of a line; none for an outline such as ``[--out JSON]``."""
    if re.search(r"\s\[|\.\.\.|…|\$\(", text.partition(" #")[0]):
        return []
    try:
        reader = shlex.shlex(text, posix=True, punctuation_chars="|;&")
        reader.whitespace_split = True
        words = list(reader)
    except ValueError:  # a line of prose with an apostrophe
        return []
    end = next((i for i, word in enumerate(words) if set(word) <= set("|;&>")), len(words))
    return words[:end]
