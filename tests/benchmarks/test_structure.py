"""The structure's figures: right on a small package, and no worse than they are."""

from benchmarks.structure import measure

ALGO = '''
class Algo:
    """Contract."""

    # a comment
    def act(self):
        """Docstring."""

        return 1
'''
FIRST = """
@register("first", Section)
class First(Base[Section]):
    pass
"""
FIRST_ALONE = FIRST.replace("Base[Section]", "Algo")
SECOND = """
from imitate.algo.first import First

@register("second", Section)
class Second(First):
    pass
"""


LAYERS = """
[[tool.importlinter.contracts]]
name = "down"
layers = ["package.train", "package.online | package.evaluation", "package.algo", "package.errors"]

[[tool.importlinter.contracts]]
name = "down inside"
containers = ["package.train"]
layers = ["run", "setup"]
"""


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_figures_of_a_small_package(tmp_path):
    (tmp_path / "pyproject.toml").write_text(LAYERS)
    write(
        tmp_path,
        package__algo__algo=ALGO,
        package__algo__base="class Base(Algo):\n    pass\n",
        package__algo__first=FIRST,
        package__algo__second=SECOND,
        package__train__run="def f(x):\n    return isinstance(x, (int, First))\n",
        tests__test_first="def test():\n    assert algo._loss() + self._own + super()._act() + step._replace()\n",
    )
    found = measure(tmp_path / "package")
    assert found.deepest == 3 and found.deepest_names == ["Second"]
    assert found.across_papers == ["Second < First"]
    assert found.imports_of_algorithms == ["second > first"]
    assert found.contract_code_lines == 3
    assert found.isinstance_outside == ["package/train/run.py:2"]
    assert found.files == 4 and found.private_uses == 1
    assert found.import_circles == found.imports_upwards == []


# ---- imports -------------------------------------------------------------------------------------


def imports_of(folder, **files):
    """Figures of a package with an algorithm and these files."""
    (folder / "pyproject.toml").write_text(LAYERS)
    write(folder, package__algo__algo=ALGO, package__algo__first=FIRST_ALONE, **files)
    found = measure(folder / "package")
    return found.import_circles, found.imports_upwards


IN_A_FUNCTION = "def f():\n    from package.train import {}\n"
FOR_TYPES = (
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.train.{0} import {0}\n"
)


def test_circles_by_way_of_functions_and_types(tmp_path):
    circle, _ = imports_of(
        tmp_path,
        package__train__a="import package.train.b\n",
        package__train__b=IN_A_FUNCTION.format("c"),
        package__train__c=FOR_TYPES.format("a"),
        package__train__d="from package.train.a import a\n",
        package__train__e="from package.train.d import d\n",
    )
    assert circle == ["package.train.a, package.train.b, package.train.c"]


def test_a_package_in_a_circle_with_its_module(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from package.x import y\n")
    circle, _ = imports_of(tmp_path, package__x="import package\n")
    assert circle == ["package, package.x"]


def test_imports_upwards(tmp_path):
    _, found = imports_of(
        tmp_path,
        package__errors=FOR_TYPES.format("run"),  # from the lowest layer to the highest
        package__algo__helper="from package.algo import algo\nimport package.errors\n",
        package__evaluation__play="import package.online.ring\n",  # beside it
        package__online__ring=IN_A_FUNCTION.format("run"),
        package__train__run="from package.train import setup\nimport package.online.ring\n",
        package__train__setup="from package.train.run import x\n",
    )
    assert found == [
        "package.errors > package.train.run",
        "package.evaluation.play > package.online.ring",
        "package.online.ring > package.train.run",
        "package.train.setup > package.train.run",  # of the second contract
    ]


def test_the_structure_gets_no_worse():
    found = measure()
    assert found.deepest <= 2
    assert found.across_papers == []
    assert found.imports_of_algorithms == []
    assert found.contract_code_lines <= 170
    assert found.isinstance_outside == []
    assert found.private_uses < 60
    assert found.import_circles == []
    assert found.imports_upwards == []
