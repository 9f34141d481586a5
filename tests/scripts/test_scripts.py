"""The scripts of a clone: their arguments, and the quickstart's report. That they work is shown by running them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.loading import load

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"


def bash(*args, cwd=ROOT, **environ):
    return subprocess.run(
        ["bash", *map(str, args)],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    "name", ["setup_env.sh", "test.sh", "docs.sh", "quickstart.sh", "gpu_check.sh"]
)
def test_the_shell_can_read_them(name):
    done = bash("-n", SCRIPTS / name)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_step_is_refused_before_anything_is_installed(tmp_path):
    done = bash(SCRIPTS / "test.sh", "tset", cwd=tmp_path)
    assert done.returncode == 1
    assert "unknown step 'tset'; steps are: quick, nightly, lint, types" in done.stderr


def test_an_unknown_word_is_refused_before_the_documentation_is_built(tmp_path):
    done = bash(SCRIPTS / "docs.sh", "biuld", cwd=tmp_path)
    assert done.returncode == 1
    assert "unknown word 'biuld': bash scripts/docs.sh [build | serve]" in done.stderr
    assert "Installing" not in done.stdout


def source_setup(tmp_path, command, **environ):
    """Run a command after sourcing setup_env.sh of a copied, otherwise empty clone."""
    scripts = tmp_path / "clone" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "setup_env.sh").write_text((SCRIPTS / "setup_env.sh").read_text())
    return bash("-c", f"set -euo pipefail; source '{scripts}/setup_env.sh'; {command}", **environ)


def fake_python(tmp_path, body):
    path = tmp_path / "python-stand-in"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


PYTHONS = {
    "there is no python-of-nowhere": None,
    "Python 3.9.18 is too old: Python 3.10 or later is needed": (
        '[ "$1" = --version ] && echo "Python 3.9.18" && exit 0; exit 1'
    ),
    "apt-get install -y python3-venv": 'case "$2" in *ensurepip*) exit 1;; esac; exit 0',
}
"""Answers of the scripts to a Python that does this, or is not there."""


@pytest.mark.parametrize("answer", PYTHONS)
def test_a_python_that_is_of_no_use(tmp_path, answer):
    body = PYTHONS[answer]
    python = "python-of-nowhere" if body is None else fake_python(tmp_path, body)
    done = source_setup(tmp_path, "make_venv", PYTHON=python)
    assert done.returncode == 1
    assert answer in done.stderr


def test_a_quiet_command_speaks_when_it_fails(tmp_path):
    done = source_setup(tmp_path, "quietly sh -c 'echo fine'; quietly sh -c 'echo broken; exit 3'")
    assert done.returncode == 3
    assert (done.stdout, done.stderr) == ("", "broken\n")


def test_quickstart_report(tmp_path, capsys):
    (tmp_path / "train.json").write_text(
        json.dumps(
            {
                "algo": "BC",
                "checkpoint": "runs/best.pth",
                "datasets": [{"num_demos": 200}],
                "packages": {"torch": "2.13.0"},
                "seeds": {"train": 1, "rollout": 100000},
                "times": {"train_cpu_s": 4.5},
            }
        )
    )
    evaluation = {
        "env": "Lift",
        "episodes": 2,
        "success_rate": 0.5,
        "success_rate_95": [0.0945, 0.9055],
        "per_episode": [{"seed": 1000}, {"seed": 1001}],
    }
    (tmp_path / "eval.json").write_text(json.dumps({"evaluations": [evaluation]}))
    (tmp_path / "times.tsv").write_text("collect\t30\ntrain\t20\nevaluate\t40\n")
    load("scripts/quickstart_report.py").main(tmp_path)
    printed = capsys.readouterr().out
    assert "Lift: 50 % success over 2 episodes (95 % interval 9 - 91 %)" in printed
    assert "ckpt_path='runs/best.pth'" in printed
    assert "none: no OpenGL library" in printed
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["success_rate"] == 0.5
    assert results["seeds"] == {"train": 1, "rollout": 100000, "evaluation": [1000, 1001]}
    assert results["times_s"] == {"collect": 30, "train": 20, "evaluate": 40, "total": 90}
    assert results["video"] is None


SETUP = """
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
PY="$ROOT/python"
say() { echo "== $*"; }
note() { echo "   $*"; }
fail() { echo "error: $*" >&2; exit 1; }
install_package() { :; }
ensure_gl() { HAVE_GL="${GL:-1}"; }
ensure_browser() { HAVE_BROWSER=1; }
VENV="$ROOT"
build_docs() { [ "${DOCS:-0}" = 0 ] || fail "the documentation does not build"; }
"""
PYTEST = """
echo "$*" >>calls
case "$*" in "-m pytest"*"--alone without"*) exit "$TOGETHER";; "-m pytest"*) exit "$ALONE";;
*words*) exit "${WORDS:-0}";; esac
"""


def run_tests_step(tmp_path, *args, step="tests", **environ):
    """scripts/test.sh with a stand-in for Python: the end of the script, and the arguments of pytest."""
    scripts = tmp_path / "clone" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "test.sh").write_text((SCRIPTS / "test.sh").read_text())
    (scripts / "setup_env.sh").write_text(SETUP)
    python = scripts.parent / "python"
    python.write_text(f"#!/bin/sh\n{PYTEST}")
    python.chmod(0o755)
    for name in ("ruff", "mypy", "lint-imports"):
        (tool := python.parent / "bin" / name).parent.mkdir(exist_ok=True)
        tool.write_text(f"#!/bin/sh\necho {name} $*; exit ${{{name.replace('-', '_').upper()}:-0}}")
        tool.chmod(0o755)
    done = bash(scripts / "test.sh", step, *args, **environ)
    calls = scripts.parent / "calls"
    return done, calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize(
    ("together", "alone", "code", "runs"),
    [
        (0, 0, 0, 2),
        (1, 0, 1, 2),
        (0, 1, 1, 2),
        (1, 1, 1, 2),
        (0, 5, 0, 2),  # 5: nothing was selected
        (5, 0, 0, 2),
        (5, 5, 5, 2),
        (5, 1, 1, 2),
        (0, 4, 4, 2),
        (2, 0, 2, 1),  # interrupted
        (3, 0, 3, 1),
        (4, 0, 4, 1),
    ],
)
def test_the_nightly_step_fails_where_either_of_its_runs_does(
    tmp_path, together, alone, code, runs
):
    codes = {"TOGETHER": str(together), "ALONE": str(alone)}
    done, calls = run_tests_step(tmp_path, "tests/cli", step="nightly", **codes)
    assert done.returncode == code, done.stdout + done.stderr
    assert len(calls) == runs
    assert all("tests/cli" in call for call in calls)


def test_tests_run_in_a_process_more_than_cores_and_those_alone_in_one(tmp_path):
    options = ("-n", "4", "--random-order", "3")
    codes = {"GL": "0", "TOGETHER": "0", "ALONE": "0"}
    _, (together, alone) = run_tests_step(tmp_path, *options, step="nightly", **codes)
    number = min(os.cpu_count() + 1, 8)
    assert f"--dist worksteal -n {number} --durations=10 -m not (render)" in together
    assert together.endswith("--set nightly --alone without -n 4 --random-order 3")
    assert (
        alone == "-m pytest --set nightly --alone only -m not (render) -n 4 --random-order 3 -n 0"
    )


@pytest.mark.parametrize(
    ("step", "chosen"),
    [("tests", "--durations=10"), ("times", "--times times.json"), ("coverage", "--cov=imitate")],
)
def test_each_step_chooses_its_tests(tmp_path, step, chosen):
    _, calls = run_tests_step(tmp_path, "tests/cli", step=step, TOGETHER="0", ALONE="0")
    assert all(chosen in call and call.split()[-1] in ("tests/cli", "0") for call in calls)


@pytest.mark.parametrize(
    ("step", "codes", "code", "said"),
    [
        ("all", {}, 0, "All passed"),
        ("all", {"RUFF": "1"}, 1, "ruff"),
        ("all", {"ALONE": "4"}, 4, "lint-imports"),
        ("all", {"MYPY": "1"}, 1, "failed beside the tests"),
        ("all", {"LINT_IMPORTS": "1"}, 1, "failed beside the tests"),
        ("all", {"DOCS": "1"}, 1, "the documentation does not build"),
        ("quick", {}, 0, "Structure"),
        ("quick", {"WORDS": "1"}, 1, "failed beside the tests"),
        ("quick", {"TOGETHER": "4"}, 4, "Structure"),
    ],
)
def test_all_of_it_fails_where_one_step_does(tmp_path, step, codes, code, said):
    done, _ = run_tests_step(tmp_path, step=step, **{"TOGETHER": "0", "ALONE": "0", **codes})
    assert done.returncode == code
    assert said in done.stdout + done.stderr


def test_the_gpu_check_says_that_there_is_no_gpu(tmp_path):
    blind = fake_python(tmp_path, "exit 1")  # torch.cuda.is_available() is false
    done = bash(SCRIPTS / "gpu_check.sh", PY=blind, OUT=str(tmp_path / "out"))
    assert done.returncode == 2
    assert "torch sees no CUDA device here" in done.stderr


def test_a_dry_gpu_check_hands_its_arguments_on_and_ends_as_the_benchmark_does(tmp_path):
    python = fake_python(tmp_path, 'echo "$@"; exit 1')
    done = bash(SCRIPTS / "gpu_check.sh", "--dry", "--cases", "bc", PY=python, OUT="/tmp/out")
    assert done.returncode == 1
    wanted = (
        "-m benchmarks gpu --json /tmp/out/gpu.json --markdown /tmp/out/gpu.md --dry --cases bc"
    )
    assert wanted in done.stdout
    assert "pytest" not in done.stdout
