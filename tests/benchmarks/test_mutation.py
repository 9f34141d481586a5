"""Mutation testing: which faults are made, which tests belong to them, and the command."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import mutation_map
from benchmarks.mutants import called_at_import, mutants
from benchmarks.mutation import ROOMS, Module, Verdict, draw, files_of, newly_alive, report

ROOT = Path(__file__).resolve().parents[2]


def names(source):
    return [mutant.name for mutant in mutants(source)]


def run(folder, *words):
    command = [sys.executable, *map(str, words)]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"}
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


EXPRESSIONS = """
a < b : a <= b : a >= b | a == b : a != b | a is None : a is not None
a + b : a - b | a and b : a or b | not a : a | -a : a | a.min(0) : a.max(0) : 1
True : False | 3 : 4 | 0.5 : 0.6 | 1e-08 : 1e-05
b if a else c : b if not a else c | 'text' | a.reshape(b, -1) | a[-1] : 1 : 2
"""


@pytest.mark.parametrize("row", EXPRESSIONS.strip().replace("\n", " | ").split(" | "))
def test_faults_of_an_expression(row):
    expression, *changed = row.split(" : ")
    found = [name.split(" -> ")[1] for name in names(f"x = {expression}")]
    assert sorted(found) == sorted(changed)


def test_faults_of_statements():
    source = """
def f(x, y: int = 1) -> int:
    '''Half of 2.'''
    x.y = x
    if x:
        raise ValueError(f"{x + 1}")
    x.add_(1)
    if y:
        return False
    return x if all(zip(x, y, strict=True)) else 0
"""
    assert names(source) == [
        "f: 1 -> 2",
        "f: x.y = x -> pass",
        "f: if x: -> if not x:",
        "f: raise ValueError(f'{x + 1}') -> pass",
        "f: x.add_(1) -> pass",
        "f: 1 -> 2 (number 2)",
        "f: if y: -> if not y:",
        "f: False -> True",
        "f: return x if all(zip(x, y, strict=True)) else 0 -> return None",
        "f: x if all(zip(x, y, strict=True)) else 0 -> x if not all(zip(x, y, strict=True)) else 0",
        "f: all(zip(x, y, strict=True)) -> any(zip(x, y, strict=True))",
        "f: 0 -> 1",
    ]


def test_flipped_signs():
    made = mutants("def f(x):\n    x.y -= 2\n    return -x + x.sum(-1) * 3 - min(x)\n")
    assert [mutant.name for mutant in made if mutant.is_flipped_sign] == [
        "f: x.y -= 2 -> x.y += 2",
        "f: -x + x.sum(-1) * 3 - min(x) -> -x + x.sum(-1) * 3 + min(x)",
        "f: -x + x.sum(-1) * 3 -> -x - x.sum(-1) * 3",
        "f: -x -> x",
    ]


def test_faults_outside_of_a_body_have_no_function_and_annotations_and_fields_have_none():
    source = "class A:\n    LIMIT = 3\n    def f(self, x=1):\n        return 2\n"
    assert [mutant.function for mutant in mutants(source)] == [(), (), ("A", "f"), ("A", "f")]
    assert names('x: Literal[3]\n__all__ = [1]\ny: int = Field(3, ge=0)\n"""1 + 1"""\n') == []


def test_each_mutant_differs_from_the_source_and_compiles():
    source = (ROOT / "imitate/algo/slots/exploration.py").read_text()
    made = mutants(source)
    assert len(made) == len({mutant.name for mutant in made}) > 10
    assert all(compile(mutant.tree, "mutant", "exec") for mutant in made)
    assert ast.unparse(ast.parse(source)) not in {ast.unparse(mutant.tree) for mutant in made}


def test_tests_of_lines_are_the_fastest_and_those_near_the_module_within_a_budget():
    found = mutation_map.Reach(
        seconds={"slow": 3.0, "fast": 1.0, "other": 0.1, "endless": 9.0, "far": 0.5},
        lines={"slow": 0b110, "fast": 0b100, "other": 0b1, "endless": 0b111, "far": 0b100},
        near={"slow", "fast", "other"},
    )
    assert found.tests(0b100, at_most=5, budget=10) == ["far", "fast", "slow"]
    assert found.tests(0b100, at_most=5, budget=4.2) == ["fast", "slow"]
    assert found.tests(0, at_most=2, budget=10) == ["other", "far", "fast"]


PROGRAM = """
import json, os
from benchmarks.line_recorder import line_recorder, record_children
recorder = line_recorder(os.getcwd())
record_children(recorder, os.getcwd(), also_this=False)
from own import f
recorder.enter("a"); f(0); assert recorder.enter("b") == "a"; f(1); f(1)
print(json.dumps({name: sum(files.values()) for name, files in recorder.take().items()}))
recorder.enter("c"); f(1)
if os.fork() == 0:
    os.environ["IMITATE_TEST"] = "child"; f(0); os._exit(0)
os.wait()
"""


def test_lines_are_those_of_the_name_that_was_entered(tmp_path):
    """In an interpreter of its own: another tracer may run here."""
    own = tmp_path / "own.py"
    own.write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")
    done = run(tmp_path, "-c", PROGRAM)
    assert json.loads(done.stdout) == {"": 0b10, "a": 0b10100, "b": 0b1100}, done.stderr
    (child,) = tmp_path.glob("*.json")
    assert json.loads(child.read_text()) == {"test": "child", "lines": {str(own): 0b10100}}


def test_lines_of_a_source_that_has_changed_since(tmp_path, monkeypatch):
    monkeypatch.setattr(mutation_map, "ROOT", tmp_path)
    lines = {"a": f"{0b10:x}", "b": f"{0b11100:x}"}
    seconds = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    entry = {"digest": "other", "seconds": seconds, "started": ["c"]}
    entry |= {"sources": {"imitate/b.py": "old"}, "lines": {"imitate/b.py": lines}}
    for name, text in {
        "tests/test_a.py": "from imitate import b",
        "imitate/b.py": "new\none\ntwo\nTHREE\nmore\nfour\n",
        "map/sources/old": "one\ntwo\nthree\nfour\n",
        "map/tests/test_a.py.json": json.dumps(entry),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = mutation_map.reach("imitate/b.py", tmp_path / "map")
    # Line 1 is line 2 now, with the new one before it; of lines 2 to 4 the third has become two.
    # The third test has started a process, whose lines may be any; the fourth may read a constant.
    assert found.lines == {"a": 0b110, "b": 0b1111000, "c": -1, "d": 0}
    assert found.near == {"a", "b", "c", "d"}
    assert "d" in found.tests(0, 5, 10) and "d" not in found.tests(0b10, 5, 10)


def test_files_that_name_a_module(tmp_path):
    def near(file, text=""):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
        return mutation_map.names(tmp_path / file, "imitate/deploy/robot/loop.py")

    assert near("tests/deploy/robot/test_loop.py") and near(
        "tests/deploy/robot/test_loop_faults.py"
    )
    assert near("tests/test_a.py", "from imitate.deploy.robot import (\n    limits,\n    loop,\n)")
    assert near("tests/test_b.py", "PROGRAM = 'import imitate.deploy.robot.loop'")
    assert not near("tests/cli/test_loop.py") and not near(
        "tests/test_c.py", "imitate.deploy.robot.loops"
    )


def test_the_report_counts_timeouts_as_killed_and_equivalent_ones_not():
    statuses = {"a": "killed", "b": "timeout", "c": "survived", "d": "equivalent", "e": "killed"}
    verdicts = [Verdict("g", "m", name, 1, status) for name, status in statuses.items()]
    found = report(verdicts)
    assert found["groups"]["g"] == {"mutants": 4, "killed": 3, "percent": 75.0, "seconds": 0.0}
    # In a later run "a" survives, and a new one.
    later = [Verdict("g", "m", name, 2, "survived") for name in ("a", "f")]
    assert [verdict.name for verdict in newly_alive(found, later)] == ["a"]


def test_modules_are_drawn_by_the_seed():
    first, again, other = ({module.name for module in draw(3, seed)} for seed in (1, 1, 2))
    assert first == again != other and len(first) == 3
    assert all((ROOT / "imitate" / room).is_dir() for room in ROOMS)


def test_a_module_that_no_test_names_has_the_tests_of_its_package():
    files = [
        f"tests/{name}.py"
        for name in ("policy/test_chunks", "data/file/test_confined", "data/file/test_writer")
    ]
    assert files_of(Module("policy.checks"), files) == files[:1]
    assert files_of(Module("data.file.confined"), files) == files[1:2]


def test_every_equivalent_mutant_has_a_reason():
    known = json.loads((ROOT / "benchmarks/equivalent_mutants.json").read_text())
    assert all(reason for of_module in known.values() for reason in of_module.values())
    assert all((ROOT / Module(name).source).is_file() for name in known)


@pytest.mark.nightly
def test_the_command(tmp_path):
    words = ["-m", "benchmarks.mutation", "--map", tmp_path / "map", "--modules"]
    out = ["functional.losses", "--json", tmp_path / "out.json"]
    done = run(ROOT, *words, *out, "--record", "--sample", "3", "--seed", "2")
    assert "3 of     3 killed" in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["mutants"]
    assert all("tests/" in entry["killer"] for entry in found)
    # Nothing of the three is left to try: the figures are of all three.
    done = run(ROOT, *words, *out, "--again", tmp_path / "out.json")
    assert "3 of     3 killed" in done.stdout, done.stdout + done.stderr
    assert "known are functional.losses" in run(ROOT, *words, "functional.loses").stderr


def test_functions_that_an_import_calls():
    source = """
@first.of(second())
class A(third(), key=lambda: fourth()):
    x: int = fifth()
    @sixth
    def f(self, y=seventh()):
        eighth()
"""
    names = {"of", "second", "third", "fifth", "sixth", "seventh"}
    assert called_at_import(source) == names
