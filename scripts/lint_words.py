"""Find stilted language in pages, docstrings, comments, error messages and help texts, and wide code on pages.

    python scripts/lint_words.py             # all files; exit code 1 if something is found
    python scripts/lint_words.py PATH ...    # these files and folders

Prints ``file:line: the words: the advice``. `CONTRIBUTING.md` describes how sentences are written here.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PLACES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs"),
    *("imitate", "benchmarks", "scripts", "tools", "examples", "plugins", "tests"),
)
HELP = ("help", "description", "epilog", "short_help")
"""Names of keyword arguments whose text a user reads."""


class Rule(NamedTuple):
    """A pattern of refused words, with advice."""

    words: re.Pattern[str]
    advice: str


RULES = (
    Rule(re.compile(r"\btold\b(?!:)", re.IGNORECASE), "write 'reported', 'given' or 'named'"),
    Rule(re.compile(r"\blies\b", re.IGNORECASE), "write 'is', 'is stored' or 'is in'"),
    Rule(re.compile(r"\brests\b", re.IGNORECASE), "write 'waits', 'is still' or 'stops'"),
    Rule(re.compile(r"\bwhat [^.:;]{1,60} (?:is|are) to (?:say|do|be)\b"), "name the thing"),
    Rule(re.compile(r"(?<!if )\bthere (?:is|are) none\b"), "write 'if there is none', or name it"),
)
OPENING = Rule(
    re.compile(r"(?:What|Who|Those|Whether|That of|Of (?:the|a|an|all|each|one|its|two))\b"),
    "begin with a noun for a thing, a verb for a function",
)
"""Rule for the beginning of a docstring."""


class Text(NamedTuple):
    """A text of a file and the line on which it begins."""

    line: int
    words: str
    docstring: bool = False


def texts_of_page(page: str) -> Iterator[Text]:
    """Return the lines of a page, without code and links."""
    fenced = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield Text(number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", line))


_WIDTH = 80
_WORDS = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
_LISTED = re.compile(r" *(?:[*-]|\d+\.) ")


def wide_code(page: str) -> Iterator[int]:
    """Return the numbers of code lines of more than 80 characters that could be broken.

    Outputs (blocks of ``text``) are as a terminal shows them, and a quoted word of a command may be long.
    """
    fence, listed, indented = "", False, False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fence = "" if fence else line.strip("` ") or "code"
            continue
        if not fence and line.strip():
            listed = bool(_LISTED.match(line)) or (listed and line.startswith(" "))
            indented = line.startswith("    ") and not listed
        code = line if fence else line[4:]
        is_code = (fence or indented) and not fence.startswith("text")
        if is_code and len(code) > _WIDTH and max(map(len, _WORDS.findall(code))) < 60:
            yield number


def texts_of_module(source: str) -> Iterator[Text]:
    """Return docstrings, comments, and the texts of errors and options."""
    # Finding comments takes longest, so it is done only if a rule matches somewhere.
    if any(rule.words.search(source) for rule in RULES):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield Text(token.start[0], token.string)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise):
            yield from _strings(node)
        elif isinstance(node, ast.keyword) and node.arg in HELP:
            yield from _strings(node.value)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            words = node.value.value
            yield Text(node.lineno, words if isinstance(words, str) else "", docstring=True)


def _strings(node: ast.AST) -> Iterator[Text]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield Text(part.lineno, part.value)


def findings(texts: Iterator[Text]) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the refused words and the advice for each finding."""
    for text in texts:
        opening = OPENING.words.match(text.words.lstrip()) if text.docstring else None
        if opening:
            yield text.line, f"'{opening[0]} ...' begins a docstring", OPENING.advice
        for number, line in enumerate(text.words.splitlines()):
            for rule in RULES:
                for match in rule.words.finditer(line):
                    yield text.line + number, f"'{match[0]}'", rule.advice


def files(places: list[Path]) -> Iterator[Path]:
    """Return the pages and modules at these paths."""
    for place in places:
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        yield from (path for path in found if path.suffix in (".md", ".py"))


def main(arguments: list[str]) -> int:
    """Print the findings; return 1 if there are any."""
    places = [Path(one) for one in arguments] or [ROOT / place for place in PLACES]
    count = 0
    for path in files(places):
        text = path.read_text(encoding="utf-8")
        texts = texts_of_page(text) if path.suffix == ".md" else texts_of_module(text)
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        found = set(findings(texts))
        if path.suffix == ".md":
            found |= {(line, "wide code", f"{_WIDTH} characters fit") for line in wide_code(text)}
        for line, words, advice in sorted(found):
            print(f"{shown}:{line}: {words}: {advice}")  # noqa: T201
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
