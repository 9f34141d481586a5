"""Figures of the code's structure: depth and bases of the algorithms' classes, and the amount of code to read.

    python -m benchmarks.structure [--json FILE] [--frames] [--check]

The figures come from the source, so they are the same on every machine. With ``--frames`` small trainings
are run, whose frames from ``train()`` to an optimizer's step are counted. With ``--check`` the command ends with
exit code 1 if a figure is above its limit.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.house import code_lines, measure_house
from benchmarks.imports import circles, contracts, import_graph, upwards

PACKAGE = Path(__file__).resolve().parent.parent / "imitate"
CONTRACT = "Algo"
DOCUMENTED = {"_replace", "_asdict", "_exit"}
"""Names that the standard library documents as public: those of named tuples, and ``os._exit``."""
REGISTERING = {"register", "register_algo_factory_func", "register_learner"}
LIMITS = {
    "deepest": 2,
    "across_papers": 0,
    "imports_of_algorithms": 0,
    "contract_code_lines": 175,
    "isinstance_outside": 0,
    "private_uses": 71,
    "import_circles": 0,
    "imports_upwards": 0,
    "rooms": 17,
    "floors": 10,
    "arrows": 90,
    "longest_file": 450,
    "import_percent": 9.0,
    "one_importer": 76,
    "repeated_classes": 0,
    "frames_of_bc": 4,
    "frames_of_iql": 6,
    "frames_of_sac": 6,
}
"""Largest value of each figure, or largest number of its entries."""


@dataclass(frozen=True)
class Structure:
    """Figures of the structure.

    Attributes:
        deepest: largest number of classes from the contract (not counted) to an algorithm (counted).
        deepest_names: the algorithms of this depth.
        across_papers: algorithms derived from another algorithm's class, as ``name < base``.
        imports_of_algorithms: imports of one algorithm's file by another's, as ``name > other``.
        contract_code_lines: code lines of the class of the contract.
        isinstance_outside: places outside of ``imitate/algo`` that test for an algorithm's class.
        files: Python files in ``imitate/algo``.
        lines: their physical lines.
        private_uses: uses of another object's private members in the tests.
        import_circles: groups of modules that import each other, as ``a, b, c``.
        imports_upwards: imports against the layers of ``pyproject.toml``, as ``importer > imported``.
    """

    deepest: int
    deepest_names: list[str]
    across_papers: list[str]
    imports_of_algorithms: list[str]
    contract_code_lines: int
    isinstance_outside: list[str]
    files: int
    lines: int
    private_uses: int
    import_circles: list[str]
    imports_upwards: list[str]


def measure(package: Path = PACKAGE) -> Structure:
    """Read the package, its tests, and the layers in the ``pyproject.toml`` beside it."""
    trees = {path.stem: ast.parse(path.read_text()) for path in (package / "algo").rglob("*.py")}
    bases, homes = _classes(trees)
    algorithms = {stem for stem, tree in trees.items() if _registers(tree)}
    depths = {name: _depth(name, bases) for name in bases if homes[name] in algorithms}
    depths = {name: depth for name, depth in depths.items() if depth > 0}
    deepest = max(depths.values())
    graph = import_graph(package)
    return Structure(
        deepest=deepest,
        deepest_names=sorted(name for name, depth in depths.items() if depth == deepest),
        across_papers=sorted(
            f"{name} < {base}"
            for name in depths
            for base in bases[name]
            if depths.get(base) and homes[base] != homes[name]
        ),
        imports_of_algorithms=sorted(_imports(trees, algorithms)),
        contract_code_lines=_code_lines(package / "algo" / "base" / "algo.py", CONTRACT),
        isinstance_outside=sorted(_isinstance_calls(package, set(depths))),
        files=len(trees),
        lines=sum(len(path.read_text().splitlines()) for path in (package / "algo").rglob("*.py")),
        private_uses=sum(_private_uses(p) for p in (package.parent / "tests").rglob("*.py")),
        import_circles=[", ".join(circle) for circle in circles(graph)],
        imports_upwards=sorted(
            found
            for layers in contracts(package.parent / "pyproject.toml")
            for found in upwards(graph, layers)
        ),
    )


def _classes(trees: dict[str, ast.Module]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the names of the bases of each class, and its file."""
    bases: dict[str, list[str]] = {}
    homes: dict[str, str] = {}
    for stem, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [_name(base) for base in node.bases]
                homes[node.name] = stem
    return bases, homes


def _name(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):  # ActorCritic[TD3Config]
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _depth(name: str, bases: dict[str, list[str]]) -> int:
    """Return the number of classes from the contract down to this one; 0 if it is not derived from it."""
    if name == CONTRACT:
        return 0
    found = [_depth(base, bases) for base in bases.get(name, []) if _derived(base, bases)]
    return 1 + max(found) if found else 0


def _derived(name: str, bases: dict[str, list[str]]) -> bool:
    return name == CONTRACT or any(_derived(base, bases) for base in bases.get(name, []))


def _registers(tree: ast.Module) -> bool:
    """Return true if a file registers an algorithm."""
    return any(
        isinstance(decorator, ast.Call) and _name(decorator.func) in REGISTERING
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        for decorator in node.decorator_list
    )


def _imports(trees: dict[str, ast.Module], algorithms: set[str]) -> Iterator[str]:
    for stem in algorithms:
        for node in ast.walk(trees[stem]):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            other = (module or "").removeprefix("imitate.algo.")
            if other in algorithms and other != stem:
                yield f"{stem} > {other}"


def _code_lines(path: Path, class_name: str) -> int:
    """Return the number of a class's lines that are neither blank, nor comments, nor docstrings."""
    text = path.read_text()
    tree = ast.parse(text)
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == class_name)
    return len(code_lines(text, tree) & set(range(found.lineno, (found.end_lineno or 0) + 1)))


def _isinstance_calls(package: Path, names: set[str]) -> Iterator[str]:
    """Return the calls of isinstance with an algorithm's class, as ``file:line``."""
    names = names | {"OnPolicy", "ActorCritic", "FrozenPolicy"}
    for path in package.rglob("*.py"):
        if (package / "algo") in path.parents:
            continue
        text = path.read_text()
        if not any(name in text for name in names):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and _name(node.func) == "isinstance":
                found = {
                    _name(part) for part in ast.walk(node.args[1]) if isinstance(part, ast.expr)
                }
                if found & names:
                    yield f"{path.relative_to(package.parent)}:{node.lineno}"


def _private_uses(path: Path) -> int:
    """Return uses of attributes with a leading underscore, except of ``self``, ``cls``, ``super()``, torch, Python."""
    text = path.read_text()
    if "._" not in text:
        return 0
    return sum(
        isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in DOCUMENTED
        and _name(node.value) not in {"self", "cls"}
        and _root(node) not in {"torch", "aten", "threading", "atexit"}
        and not (isinstance(node.value, ast.Call) and _name(node.value.func) == "super")
        for node in ast.walk(ast.parse(text))
    )


def _root(node: ast.expr) -> str | None:
    """Return the name at the beginning of a chain of attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return _name(node)


def exceeded(figures: dict[str, Any]) -> list[str]:
    """Describe each figure that is above its limit."""
    found = []
    for name, limit in LIMITS.items():
        value = figures.get(name, 0)
        count = len(value) if isinstance(value, list) else value
        if count > limit:
            found.append(f"{name.replace('_', ' ')}: {count}, at most {limit} allowed ({value})")
    return found


def main(arguments: list[str] | None = None, package: Path = PACKAGE) -> int:
    """Print the figures, or write them as JSON; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--frames", action="store_true", help="count frames in small trainings")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a limit is exceeded")
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = asdict(measure(package))
    figures |= asdict(
        measure_house(
            package, import_graph(package), () if options.check else ("benchmarks", "tests")
        )
    )
    if options.frames:
        from benchmarks.frames import measured_frames  # imports the trainer, which takes seconds

        figures |= {f"frames_of_{name}": way for name, way in measured_frames().items()}
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if options.check:
        problems = exceeded(figures)
        print("\n".join(problems) or "The structure is within its limits.")
        return int(bool(problems))
    for name, value in figures.items():
        words = f"{len(value)}: {', '.join(value) or 'none'}" if isinstance(value, list) else value
        print(f"{name.replace('_', ' '):24} {words}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
