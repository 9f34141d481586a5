#!/usr/bin/env bash
# Checks for a machine with an NVIDIA GPU: the tests marked 'cuda', then the speed of training steps on the GPU.
#
#   bash scripts/gpu_check.sh                         both; writes gpu_check/gpu.json and gpu_check/gpu.md
#   bash scripts/gpu_check.sh --robomimic PEER/bin/python --sb3 PEER/bin/python    beside other toolkits
#   bash scripts/gpu_check.sh --dry --cases bc        on the CPU, without the tests: shows that it runs
#   PY=PATH bash scripts/gpu_check.sh                 with an interpreter that has imitate, in place of .venv
#
# Arguments go to `python -m benchmarks gpu` (--help lists them). OUT is the folder of the results.
# Exit code: 0; 1 where a test or a variant failed or a wanted number was missed; 2 where there is no GPU.
set -euo pipefail
given="${PY:-}"
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
OUT="${OUT:-$ROOT/gpu_check}"

main() {
    cd "$ROOT"
    if [ -n "$given" ]; then
        PY="$given"
    else
        install_package simulator,dev
    fi
    local tested=0 measured=0
    if [[ " $* " != *" --dry "* ]]; then
        if ! "$PY" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
            printf '\nerror: torch sees no CUDA device here: nothing was tried (--dry shows on the CPU that it runs)\n' >&2
            exit 2
        fi
        say "Tests marked 'cuda'"
        "$PY" -m pytest -n 0 -q --set all -m cuda tests </dev/null || tested=$?
    fi
    say "Training steps"
    "$PY" -m benchmarks gpu --json "$OUT/gpu.json" --markdown "$OUT/gpu.md" "$@" || measured=$?
    note "figures: $OUT/gpu.json, $OUT/gpu.md"
    [ "$tested" = 0 ] || fail "tests marked 'cuda' failed: see above"
    exit "$measured"
}

main "$@"
