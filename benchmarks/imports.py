"""Analysis of a package's imports: cycles, and imports of higher layers.

All imports in a file count, also those inside functions and under ``TYPE_CHECKING``. The layers are those of
import-linter's contracts in ``pyproject.toml``, and the graph is that of its library, grimp.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grimp
from setuptools.config.pyprojecttoml import load_file

Graph = Mapping[str, set[str]]
"""Set of the modules that each module imports, by dotted path."""
Layers = Sequence[Sequence[str]]
"""Layers from the top, each with the dotted paths of packages or modules that must not import each other."""


@cache
def import_graph(package: Path) -> dict[str, set[str]]:
    """Read the imports between the modules of a package."""
    with patch("sys.path", [str(package.parent), *sys.path]):
        graph = grimp.build_graph(package.name, cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def circles(graph: Graph) -> list[list[str]]:
    """Find the groups of modules that import each other, directly or indirectly; groups and members are sorted."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph
    }
    return [list(group) for group in sorted(groups) if group]


def upwards(graph: Graph, layers: Layers) -> list[str]:
    """List the imports of a higher layer or of a neighbour on the same one, as ``importer > imported``.

    Modules outside all layers are left out.
    """
    places = {path: (floor, path) for floor, paths in enumerate(layers) for path in paths}
    found = []
    for name, others in graph.items():
        for other in others:
            below, above = _place(name, places), _place(other, places)
            if below and above and below != above and above[0] <= below[0]:
                found.append(f"{name} > {other}")
    return sorted(found)


def contracts(pyproject: Path) -> list[Layers]:
    """Read the layers of import-linter's contracts, one entry for each contract and container."""
    settings = load_file(pyproject)["tool"]["importlinter"]
    return [layers for contract in settings["contracts"] for layers in _layers(contract)]


def _layers(contract: Mapping[str, Any]) -> Iterator[Layers]:
    for container in contract.get("containers", [""]):
        prefix = f"{container}." if container else ""
        yield [[prefix + part.strip() for part in layer.split("|")] for layer in contract["layers"]]


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Return all statements of a module or statement, also those within others, without their expressions."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from statements(child)


def _reached(graph: Graph, start: str) -> set[str]:
    """Return the modules that a module imports, directly or indirectly."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(graph[name])
    return found


def _place(name: str, places: Mapping[str, tuple[int, str]]) -> tuple[int, str] | None:
    """Return the layer of a module, which is that of the longest path above it."""
    while name:
        if name in places:
            return places[name]
        name = name.rpartition(".")[0]
    return None
