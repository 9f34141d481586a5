"""Equations in docs/algorithms, with the code of the methods that compute them.

An equation of a page is a title, the methods that compute it, and a formula or a sentence:

    **TD target** · `SAC._target`

    $$
    y = r + \\gamma V(s')
    $$

On the site (mkdocs.yml, ``hooks``) the code of each method unfolds below its equation.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
FILES = {"cal_ql": "cql"}
"""Names of the modules of algorithms whose module is not named after the algorithm."""
_EQUATION = re.compile(
    r"^\*\*(?P<title>[^*\n]+)\*\* · (?P<names>`[\w.]+`(?:, `[\w.]+`)*)\n\n"
    r"(?P<text>\$\$\n.*?\n\$\$|[^\n]+(?:\n[^\n]+)*)",
    re.MULTILINE | re.DOTALL,
)


class Equation(NamedTuple):
    """An equation of a page."""

    title: str
    names: list[str]
    """Names of methods and functions: `SAC._target` in the algorithm's file, or a whole dotted path."""
    end: int
    """Position in the page's text at which the equation ends."""


def equations(page: str) -> Iterator[Equation]:
    """Return the equations of a page, in order."""
    for match in _EQUATION.finditer(page):
        yield Equation(match["title"], re.findall(r"`([\w.]+)`", match["names"]), match.end())


def code_of(algo_name: str, name: str) -> Any:
    """Return the method, function or class of this name.

    Args:
        algo_name: the page's algorithm; names without a module are in its file.
        name: ``SAC._target``, or with its module ``imitate.functional.losses.masked_mean``.

    Raises:
        AttributeError: the name does not exist.
    """
    module = f"imitate.algo.{FILES.get(algo_name, algo_name)}"
    parts = name.split(".")
    if parts[0] == "imitate":
        depth = next(i for i, part in enumerate(parts) if i > 1 and not _is_module(parts[: i + 1]))
        module, parts = ".".join(parts[:depth]), parts[depth:]
    found: Any = import_module(module)
    for part in parts:
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    return inspect.unwrap(getattr(found, "__func__", found))


def _is_module(parts: list[str]) -> bool:
    path = ROOT.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def source_block(algo_name: str, name: str) -> str:
    """Return a folded block with the code of a method."""
    found = code_of(algo_name, name)
    path = Path(inspect.getsourcefile(found) or "").resolve().relative_to(ROOT)
    code = textwrap.dedent(inspect.getsource(found)).rstrip()
    body = textwrap.indent(f"```python\n{code}\n```", "    ")
    return f'??? quote "{name}, {path.as_posix()}"\n\n{body}\n'


def with_code(algo_name: str, page: str) -> str:
    """Return the page with the code of its methods below each equation."""
    text, last = "", 0
    for equation in equations(page):
        blocks = "\n".join(source_block(algo_name, name) for name in equation.names)
        text += f"{page[last : equation.end]}\n\n{blocks}"
        last = equation.end
    return text + page[last:]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add the code of methods to the pages of algorithms. (A hook of MkDocs.)"""
    path = Path(page.file.src_path)
    if path.parent.name != "algorithms" or path.stem == "index":
        return markdown
    return with_code(path.stem, markdown)
