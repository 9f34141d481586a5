#!/usr/bin/env bash
# Everything that must hold: format and lint, types, import layers, the documentation's site, tests.
#
#   bash scripts/test.sh                  all of it
#   bash scripts/test.sh lint             one step: lint | types | layers | docs | tests
#   bash scripts/test.sh coverage         the tests step, and which lines it ran; slower, so not part of "all"
#   bash scripts/test.sh tests tests/cli  the tests step, with arguments for pytest
#   bash scripts/test.sh tests --random-order 3    all tests in another order; a seed
#   bash scripts/test.sh tests -n 0       in one process (a debugger, output as it is printed: also -s)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"

# Tests start hundreds of processes; without bytecode on the disk each of them compiles every module anew.
unset PYTHONDONTWRITEBYTECODE

NOTHING_FOUND=5  # pytest's exit code where no test is selected

run_pytest() { "$PY" -m pytest "$@" </dev/null; }

step_lint() {
    say "Format (ruff format --check)"
    "$VENV/bin/ruff" format --check .
    say "Lint (ruff check)"
    "$VENV/bin/ruff" check .
    say "Structure (python -m benchmarks.structure --check)"
    "$PY" -m benchmarks.structure --check
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

step_coverage() { step_tests --cov=imitate "$@"; }

step_docs() {
    say "Documentation (mkdocs build --strict)"
    local site
    site="$(mktemp -d)"
    trap "rm -rf '$site'" EXIT
    build_docs "$site"
}

step_tests() {
    local measured=0
    if [ "${1:-}" = --cov=imitate ]; then
        measured=1
        shift
    fi
    local left_out=(cuda) # scripts/gpu_check.sh runs these
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
    local marks="${left_out[*]-}" common=(--durations=10)
    local many=(-n "$(processes)") one=(-n 0)
    [ -z "$marks" ] || common+=(-m "not (${marks// / or })")
    if [ "$measured" = 1 ]; then
        many+=(--cov=imitate --cov-report=)
        one+=(--cov=imitate --cov-append)
    fi
    say "Tests (pytest), in several processes"
    local together=0 alone=0
    run_pytest --alone without --dist worksteal "${many[@]}" "${common[@]}" "$@" || together=$?
    case "$together" in
        0 | 1 | "$NOTHING_FOUND") ;;
        *) exit "$together" ;;
    esac
    say "Tests that need the machine to themselves"
    run_pytest --alone only "${common[@]}" "$@" "${one[@]}" || alone=$?
    [ "$together" != 1 ] || fail "tests failed: see the end of the first list"
    [ "$alone" != "$NOTHING_FOUND" ] || alone="$together"
    [ "$alone" = 0 ] || exit "$alone"
}

main() {
    local step="${1:-all}"
    case "$step" in
        all | lint | types | layers | docs | tests | coverage) shift || true ;;
        *) fail "unknown step '$step'; steps are: lint, types, layers, docs, tests, coverage (none: all but coverage)" ;;
    esac
    cd "$ROOT"
    install_package simulator,dev
    if [ "$step" = all ]; then
        step_lint
        step_types
        step_layers
        step_docs
        step_tests
        say "All passed"
    else
        "step_$step" "$@"
    fi
}

main "$@"
