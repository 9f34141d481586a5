"""Size of the package: its subpackages and their layers, files, code lines, imports, and repeated class names.

A room is a folder or a module directly below the package, and a floor is a layer of rooms.
A code line is neither blank, nor a comment, nor a docstring.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.imports import Graph, circles, statements

SMALL = 60
"""Code lines below which a file is small."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class House:
    """Figures of a whole package.

    Attributes:
        rooms: number of rooms.
        floors: number of rooms on the longest chain of imports between them.
        arrows: number of pairs of rooms of which one imports the other.
        python_files: number of Python files in the package.
        small_files: number of files, except ``__init__.py``, with fewer than :data:`SMALL` code lines.
        longest_file: number of code lines in the longest file.
        code_lines: number of code lines in the package and in folders beside it.
        import_percent: percentage of the package's code lines that are imports.
        one_importer: number of modules that a single other file imports.
        repeated_classes: public classes of the same name in several modules, with these modules.
    """

    rooms: int
    floors: int
    arrows: int
    python_files: int
    small_files: int
    longest_file: int
    code_lines: dict[str, int]
    import_percent: float
    one_importer: int
    repeated_classes: list[str]


def measure_house(package: Path, graph: Graph, beside: Sequence[str] = ()) -> House:
    """Read the package, and count the code lines of folders beside it too."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
    lines = {path: code_lines(path.read_text(), tree) for path, tree in trees.items()}
    total = sum(map(len, lines.values()))
    imports = sum(len(lines[path] & _import_lines(tree)) for path, tree in trees.items())
    rooms = _rooms(graph)
    classes: dict[str, list[str]] = {}
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, []).append(_module(package, path))
    importers = Counter(other for others in graph.values() for other in others)
    small = [path for path in trees if path.name != "__init__.py" and len(lines[path]) < SMALL]
    return House(
        rooms=len(rooms),
        floors=_floors(rooms),
        arrows=sum(map(len, rooms.values())),
        python_files=len(trees),
        small_files=len(small),
        longest_file=max(map(len, lines.values())),
        code_lines={
            package.name: total,
            **{name: _total(package.parent / name) for name in beside},
        },
        import_percent=round(100 * imports / max(total, 1), 1),
        one_importer=sum(importers[name] == 1 for name in _modules(package)),
        repeated_classes=[
            f"{name} in {' and '.join(modules)}: give one another name"
            for name, modules in sorted(classes.items())
            if len(modules) > 1
        ],
    )


def _module(package: Path, path: Path) -> str:
    return ".".join(path.relative_to(package.parent).with_suffix("").parts)


def _modules(package: Path) -> Iterator[str]:
    for path in package.rglob("*.py"):
        if path.name != "__init__.py":
            yield _module(package, path)


def _total(folder: Path) -> int:
    texts = (path.read_text() for path in folder.rglob("*.py"))
    return sum(len(code_lines(text, ast.parse(text))) for text in texts)


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that are neither blank, nor comments, nor docstrings."""
    prose = {
        line
        for node in [tree, *statements(tree)]
        if isinstance(node, _DOCUMENTED)
        for part in node.body
        if isinstance(part, ast.Expr)
        and isinstance(part.value, ast.Constant)
        and isinstance(part.value.value, str)
        for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)
    }
    numbered = enumerate(map(str.strip, text.splitlines()), 1)
    return {number for number, line in numbered if line and line[0] != "#"} - prose


def _import_lines(tree: ast.Module) -> set[int]:
    return {
        line
        for node in statements(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _rooms(graph: Graph) -> dict[str, set[str]]:
    """Return the rooms that each room imports; the package's ``__init__`` and ``__main__`` do not count as rooms."""
    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        room = _room(name)
        if room:
            found.setdefault(room, set()).update(filter(None, map(_room, others)))
    return {room: others - {room} for room, others in found.items()}


def _room(module: str) -> str:
    room = f"{module}..".split(".")[1]
    return "" if room == "__main__" else room


def _floors(rooms: Mapping[str, set[str]]) -> int:
    """Return the number of rooms on the longest chain; rooms of a cycle are on one floor, and each of them counts."""
    group = {room: frozenset({room}) for room in rooms}
    for circle in circles(rooms):
        group.update(dict.fromkeys(circle, frozenset(circle)))
    heights: dict[frozenset[str], int] = {}

    def height(rooms_here: frozenset[str]) -> int:
        if rooms_here not in heights:
            below = {group[other] for room in rooms_here for other in rooms[room]} - {rooms_here}
            heights[rooms_here] = len(rooms_here) + max(map(height, below), default=0)
        return heights[rooms_here]

    return max(map(height, group.values()), default=0)
