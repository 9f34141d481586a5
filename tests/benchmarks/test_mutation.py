"""Mutation testing: which faults are made, how they reach a running function, and the command."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.mutants import mutants
from benchmarks.mutation import GROUPS, Module, Verdict, killed_before, report

ROOT = Path(__file__).resolve().parents[2]


def names(source):
    return [mutant.name for mutant in mutants(source)]


@pytest.mark.parametrize(
    ("expression", "changed"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a == b", ["a != b"]),
        ("a is None", ["a is not None"]),
        ("a + b", ["a - b"]),
        ("a and b", ["a or b"]),
        ("not a", ["a"]),
        ("-a", ["a"]),
        ("a.min(0)", ["a.max(0)", "1"]),
        ("True", ["False"]),
        ("3", ["4"]),
        ("0.5", ["0.6"]),
        ("1e-08", ["1e-05"]),
        ("b if a else c", ["b if not a else c"]),
        ("'text'", []),
    ],
)
def test_faults_of_an_expression(expression, changed):
    found = [name.split(" -> ")[1] for name in names(f"x = {expression}")]
    assert sorted(found) == sorted(changed)


def test_faults_of_statements():
    source = """
def f(x, y: int = 1) -> int:
    '''Half of 2.'''
    x.y = x
    if x:
        raise ValueError(f"{x + 1}")
    x.add_(y)
    return x
"""
    assert names(source) == [
        "f: 1 -> 2",
        "f: x.y = x -> pass",
        "f: if x: -> if not x:",
        "f: raise ValueError(f'{x + 1}') -> pass",
        "f: x.add_(y) -> pass",
        "f: return x -> return None",
    ]


def test_equal_faults_of_a_function_are_numbered():
    assert names("def f(a, b):\n    a += 1\n    b[1] = a\n")[-2:] == [
        "f: b[1] = a -> pass",
        "f: 1 -> 2 (number 2)",
    ]


def test_a_fault_outside_of_a_body_has_no_function():
    source = "class A:\n    LIMIT = 3\n    def f(self, x=1):\n        return 2\n"
    assert [mutant.function for mutant in mutants(source)] == [(), (), ("A", "f"), ("A", "f")]


def test_annotations_messages_and_fields_of_sections_are_left_alone():
    assert names('x: Literal[3]\n__all__ = [1]\ny: int = Field(3, ge=0)\n"""1 + 1"""\n') == []


def test_each_mutant_differs_from_the_source_and_compiles():
    source = (ROOT / "imitate/functional/expectile.py").read_text()
    made = mutants(source)
    assert len(made) == len({mutant.name for mutant in made}) > 10
    for mutant in made:
        compile(mutant.tree, "mutant", "exec")
        assert ast.unparse(mutant.tree) != ast.unparse(ast.parse(source))


def test_tests_that_execute_the_line_are_run_the_fastest_first():
    module = Module("functional", "functional.expectile", ("tests/functional/test_expectile.py",))
    found = {
        "durations": {"slow": 3.0, "fast": 1.0, "other": 0.1},
        "lines": {"slow": [4, 5], "fast": [5], "other": [9]},
        "shared": [7],
    }
    module.learn(found)
    line, constant = mutants("K = 3\n\n\ndef f(x):\n    return -x\n\n\n")[::-1][:2]
    assert line.lines == constant.lines == (5, 5)
    assert module.tests_of(line) == ["fast", "slow"]
    (outside,) = (mutant for mutant in mutants("K = 3\n") if not mutant.function)
    assert module.tests_of(outside) == ["other", "fast", "slow"]


def test_the_report_counts_timeouts_as_killed_and_equivalent_ones_not():
    verdicts = [
        Verdict("g", "m", name, 1, status)
        for name, status in (
            *(("a", "killed"), ("b", "timeout"), ("c", "survived")),
            *(("d", "equivalent"), ("e", "killed")),
        )
    ]
    found = report(verdicts)
    assert found["groups"]["g"]["killed"] == 3 and found["groups"]["g"]["mutants"] == 4
    assert found["groups"]["g"]["percent"] == 75.0
    assert [entry["name"] for entry in found["survivors"]] == ["c"]


def test_a_second_run_counts_what_the_first_one_killed():
    module = Module("functional", "functional.expectile", ("tests/functional/test_expectile.py",))
    first = report(
        [
            Verdict("functional", module.name, name, 1, status)
            for name, status in (("a", "killed"), ("b", "timeout"), ("c", "survived"))
        ],
        [module],
    )
    assert first["sources"] == {module.name: module.digest}
    again = Verdict("functional", module.name, "c", 1, "killed")
    second = report([*killed_before(module, first), again], [module])
    assert (
        second["modules"][module.name]["killed"],
        second["groups"]["functional"]["mutants"],
    ) == (3, 3)


def test_every_module_has_tests_and_every_equivalent_mutant_a_reason():
    known = json.loads((ROOT / "benchmarks/equivalent_mutants.json").read_text())
    modules = {name: tests for of_group in GROUPS.values() for name, tests in of_group.items()}
    assert set(known) <= set(modules)
    assert all(reason for of_module in known.values() for reason in of_module.values())
    for name, tests in modules.items():
        assert any((ROOT / test).is_file() for test in tests), name
        assert len(mutants(Module("", name, tests).path.read_text())) > 1, name


def test_the_command(tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.mutation", "--modules", "functional.expectile"]
    command += ["--sample", "3", "--seed", "1", "--at-least", "0", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(out.read_text())["modules"]["functional.expectile"]
    assert counts["mutants"] == 3
    assert f"{counts['killed']} of     3 killed" in done.stdout
    # Nothing of the three is left to try, or only what survived: the figures are of all three.
    again = [*command[:5], "--again", str(out), "--json", str(tmp_path / "again.json")]
    done = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert f"{counts['killed']} of     3 killed" in done.stdout, done.stdout + done.stderr


def test_an_unknown_module_is_named():
    command = [sys.executable, "-m", "benchmarks.mutation", "--modules", "functional.nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 1
    assert "no such module; known are functional.action_masks" in done.stderr
