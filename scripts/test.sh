#!/usr/bin/env bash
# Everything that must hold: format and lint, types, import layers, the documentation's site, tests.
#
#   bash scripts/test.sh                  all of it: what a change needs
#   bash scripts/test.sh quick            before a commit: lint, and the units in a few minutes
#   bash scripts/test.sh quick --changed  of these, the tests that reach what has changed since main
#   bash scripts/test.sh nightly          the tests marked 'nightly': rare things at great cost
#   bash scripts/test.sh lint             one step: lint | types | layers | docs | tests
#   bash scripts/test.sh times            the tests step, and the CPU seconds of each test: a table, and times.json
#   bash scripts/test.sh coverage         the tests step, and which lines it ran
#   bash scripts/test.sh tests tests/cli  the tests step, with arguments for pytest
#   bash scripts/test.sh tests tests/cli/test_eval.py::test_x   a test that is named runs whatever its marks
#   bash scripts/test.sh tests --random-order 3    all tests in another order; a seed
#   bash scripts/test.sh tests -n 0       in one process (a debugger, output as it is printed: also -s)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"

# Tests start hundreds of processes; without bytecode on the disk each of them compiles every module anew.
unset PYTHONDONTWRITEBYTECODE

ONE_STEP='from imitate.envs import make_env; env = make_env({"env_name": "Lift", "type": 1}); env.reset(); env.step([0.0] * 7)'
NOTHING_FOUND=5  # pytest's exit code where no test is selected

run_pytest() {
    local folder="${TMPDIR:-/tmp}/imitate tests $UID" # a name with spaces, as users have them
    mkdir -p "$folder"
    TMPDIR="$folder" "$PY" -m pytest "$@" </dev/null
}

step_format() {
    say "Format (ruff format --check)"
    "$VENV/bin/ruff" format --check .
    say "Lint (ruff check)"
    "$VENV/bin/ruff" check .
}

step_words() {
    say "Words (scripts/lint_words.py)"
    "$PY" scripts/lint_words.py &&
        say "Structure (python -m benchmarks.structure --check)" &&
        "$PY" -m benchmarks.structure --check
}

step_lint() {
    step_format
    step_words
}

step_types() {
    say "Types (mypy --strict)"
    "$VENV/bin/mypy"
}

step_layers() {
    say "Import layers (import-linter)"
    "$VENV/bin/lint-imports"
}

# Many tests wait: for a cluster, for a process that they started. Another process of pytest works meanwhile.
processes() {
    local cores
    cores="$(getconf _NPROCESSORS_ONLN)"
    echo $((cores + 1 < 8 ? cores + 1 : 8)) # each takes up to 2 GB
}

step_docs() {
    say "Documentation (mkdocs build --strict)"
    local site
    site="$(mktemp -d)"
    trap "rm -rf '$site'" EXIT
    build_docs "$site"
}

# Sets MARKS to what this machine cannot run; in CI that is an error.
find_marks() {
    local left_out=()
    ensure_gl
    if [ "$HAVE_GL" = 0 ]; then
        [ "${CI:-}" != true ] || fail "rendering tests cannot run here, and in CI nothing is left out"
        note "the tests marked 'render' are left out"
        left_out+=(render)
    fi
    ensure_browser
    if [ "$HAVE_BROWSER" = 0 ]; then
        [ "${CI:-}" != true ] || fail "the browser test cannot run here, and in CI nothing is left out"
        left_out+=(browser)
    fi
    local names="${left_out[*]-}"
    MARKS=()
    [ -z "$names" ] || MARKS=(-m "not (${names// / or })")
}

# step_tests [OPTIONS OF pytest...]
step_tests() {
    find_marks
    say "Tests (pytest), in several processes"
    run_pytest --dist worksteal -n "$(processes)" --durations=10 ${MARKS[@]+"${MARKS[@]}"} "$@"
}

step_checks() {
    step_words && step_types && step_layers && step_docs
}

# beside CHECKS TESTS [ARGUMENTS...]: a step that uses one core runs beside the tests, which come first where both need
# it, and is printed behind them.
beside() {
    local step="$1" printed checks tests=0
    shift
    printed="$(mktemp)"
    { renice -n 10 "$BASHPID" >/dev/null && "$step"; } >"$printed" 2>&1 &
    checks=$!
    "$@" || tests=$?
    wait "$checks" || { cat "$printed"; fail "a check failed beside the tests: see above"; }
    cat "$printed"
    rm -f "$printed"
    return "$tests"
}

step_all() {
    step_format
    beside step_checks compile_and_test
}

# What is compiled once is compiled first, rather than in each process that runs tests: in a new checkout all assertions
# by pytest, and functions of robosuite by numba, which takes 20 s.
compile_and_test() {
    local compiled
    say "Words, types, import layers and documentation beside the tests"
    "$PY" -c "$ONE_STEP" >/dev/null 2>&1 &
    compiled=$!
    [ -d tests/__pycache__ ] || run_pytest --collect-only --quiet --quiet >/dev/null 2>&1 || true
    wait "$compiled" || true
    step_tests
}

step_nightly() {
    local together=0 alone=0
    step_tests --set nightly --alone without "$@" || together=$?
    case "$together" in
        0 | 1 | "$NOTHING_FOUND") ;;
        *) exit "$together" ;;
    esac
    say "Tests that need the machine to themselves"
    run_pytest --set nightly --alone only ${MARKS[@]+"${MARKS[@]}"} "$@" -n 0 || alone=$?
    [ "$together" != 1 ] || fail "tests failed: see the end of the first list"
    [ "$alone" != "$NOTHING_FOUND" ] || alone="$together"
    [ "$alone" = 0 ] || exit "$alone"
}

step_quick() {
    say "Units, and the contracts of a few configurations (pytest)"
    if [ "${1:-}" = --changed ]; then
        shift
        local chosen
        mapfile -t chosen < <("$PY" -m benchmarks.reached)
        [ "${#chosen[@]}" != 0 ] || { note "no test reaches what has changed"; return; }
        set -- "${chosen[@]}" "$@"
    fi
    run_pytest --set quick --alone without --dist worksteal -n "$(getconf _NPROCESSORS_ONLN)" "$@"
}

step_times() {
    say "CPU seconds of each test"
    find_marks
    run_pytest --times times.json --dist worksteal -n "$(processes)" ${MARKS[@]+"${MARKS[@]}"} "$@"
}

step_coverage() {
    find_marks
    run_pytest --cov=imitate --cov-report=term -n "$(processes)" ${MARKS[@]+"${MARKS[@]}"} "$@"
}

main() {
    local step="${1:-all}"
    case "$step" in
        all | quick | nightly | lint | types | layers | docs | tests | times | coverage) shift || true ;;
        *) fail "unknown step '$step'; steps are: quick, nightly, lint, types, layers, docs, tests, times, coverage (none: what a change needs)" ;;
    esac
    cd "$ROOT"
    install_package simulator,dev
    case "$step" in
        all)
            step_all
            say "All passed"
            ;;
        quick)
            step_format
            beside step_words step_quick "$@"
            ;;
        *) "step_$step" "$@" ;;
    esac
}

main "$@"
