"""The figures of the structure are right on a small package, and a figure above its limit ends the check with 1."""

from benchmarks.house import measure_house
from benchmarks.imports import import_graph
from benchmarks.structure import main, measure

FILES = {
    "pyproject.toml": """
[[tool.importlinter.contracts]]
name = "down"
layers = ["package.train", "package.online | package.evaluation", "package.algo", "package.errors"]

[[tool.importlinter.contracts]]
name = "down inside"
containers = ["package.train"]
layers = ["run", "setup"]
""",
    "package/algo/base/algo.py": '''
class Algo:
    """Contract."""

    # a comment
    def act(self):
        """Docstring."""

        return 1
''',
    "package/algo/base.py": "class Base(Algo):\n    pass\n",
    "package/algo/first.py": '@register("first", Section)\nclass First(Base[Section]):\n    pass\n',
    "package/algo/second.py": "from package.algo.first import First\nfrom imitate.algo.first import First\n"
    '@register("second", Section)\nclass Second(First):\n    pass\n',
    "package/errors.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.train.run import run\n",
    "package/evaluation/play.py": "import package.online.ring\n",  # beside it
    "package/online/ring.py": "def f():\n    from package.train import run\n",
    "package/train/run.py": "from package.train import setup\ndef f(x):\n    return isinstance(x, (int, First))\n",
    "package/train/setup.py": "from package.train.run import x\nclass First:\n    pass\n",
    "tests/test_first.py": "def test():\n    assert algo._loss() + self._own + super()._act() + step._replace()\n",
}


def test_figures_of_a_small_package(tmp_path, capsys):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    package = tmp_path / "package"
    found = measure(package)
    assert (found.deepest, found.deepest_names) == (3, ["Second"])
    assert found.across_papers == ["Second < First"]
    assert found.imports_of_algorithms == ["second > first"]
    assert found.contract_code_lines == 3
    assert found.isinstance_outside == ["package/train/run.py:3"]
    assert (found.files, found.private_uses) == (4, 1)
    assert found.import_circles == ["package.train.run, package.train.setup"]
    assert found.imports_upwards == [
        "package.errors > package.train.run",
        "package.evaluation.play > package.online.ring",
        "package.online.ring > package.train.run",
        "package.train.setup > package.train.run",  # of the second contract
    ]
    assert main(["--check"], tmp_path / "package") == 1
    problems = capsys.readouterr().out
    assert "deepest: 3, at most 2 allowed" in problems
    assert "imports upwards: 4, at most 0 allowed" in problems
    assert "contract code lines" not in problems
    house = measure_house(package, import_graph(package), ["tests"])
    # evaluation imports online, and that train.
    assert (house.rooms, house.floors, house.arrows) == (5, 3, 3)
    assert (house.python_files, house.small_files, house.longest_file) == (9, 9, 5)
    assert house.code_lines == {"package": 25, "tests": 2}
    assert house.import_percent == round(100 * 8 / 25, 1)
    assert house.one_importer == 3
    assert house.repeated_classes == [
        "First in package.algo.first and package.train.setup: give one another name"
    ]
