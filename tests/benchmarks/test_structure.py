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
SECOND = """
from imitate.algo.first import First

@register("second", Section)
class Second(First):
    pass
"""


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_figures_of_a_small_package(tmp_path):
    write(
        tmp_path,
        package__algo__algo=ALGO,
        package__algo__base="class Base(Algo):\n    pass\n",
        package__algo__first=FIRST,
        package__algo__second=SECOND,
        package__train__run="def f(x):\n    return isinstance(x, (int, First))\n",
        tests__test_first="def test():\n    assert algo._loss() + self._own\n",
    )
    found = measure(tmp_path / "package")
    assert found.deepest == 3 and found.deepest_names == ["Second"]
    assert found.across_papers == ["Second < First"]
    assert found.imports_of_algorithms == ["second > first"]
    assert found.contract_code_lines == 3
    assert found.isinstance_outside == ["package/train/run.py:2"]
    assert found.files == 4 and found.private_uses == 1


def test_the_structure_gets_no_worse():
    found = measure()
    assert found.deepest <= 4
    assert set(found.across_papers) <= {"PPOBC < PPO"}
    assert found.isinstance_outside == ["imitate/train/start.py:54"]  # a network's class
    assert set(found.imports_of_algorithms) <= {
        *("bcq > bc", "hbc > gl", "iris > bcq", "iris > gl", "ppo_bc > ppo"),
    }
