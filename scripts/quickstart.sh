#!/usr/bin/env bash
# From nothing to a deployed policy: installs into .venv, collects demonstrations of Lift in robosuite, trains behavior
# cloning on them, measures its success rate over 50 episodes, and prints the Python that deploys it.
#
#   bash scripts/quickstart.sh
#
# Everything is written under quickstart/; run it again and its results are replaced. DEMOS, EPISODES, WORKERS and SEED
# may be set in the environment.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"

DEMOS="${DEMOS:-200}"
EPISODES="${EPISODES:-50}"
SEED="${SEED:-0}"

# stage NAME COMMAND...: runs it, notes its seconds in quickstart/times.tsv.
stage() {
    local name="$1" started
    shift
    note "\$ ${*//$VENV\/bin\//}" >&2
    started="$(date +%s)"
    "$@" </dev/null || fail "$name failed; its messages are above"
    printf '%s\t%s\n' "$name" "$(($(date +%s) - started))" >>"$OUT/times.tsv"
}

main() {
    cd "$ROOT"
    install_package simulator
    ensure_gl

    OUT=quickstart
    local imitate="$VENV/bin/imitate" video=()
    local workers="${WORKERS:-$("$PY" -c 'import os; print(min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()))')}"
    [ "$HAVE_GL" = 0 ] || video=(--video "$OUT/episodes.mp4")
    mkdir -p "$OUT"
    rm -f "$OUT/times.tsv" "$OUT/eval.json" "$OUT/episodes.mp4" "$OUT/results.json"

    say "1/3  $DEMOS demonstrations of a scripted expert"
    stage collect "$imitate" collect --env Lift --num "$DEMOS" --workers "$workers" --seed "$SEED" \
        --out "$OUT/demos.hdf5" --overwrite

    say "2/3  Behavior cloning, evaluated in simulation while it trains"
    stage train "$imitate" train --config robosuite/lift/bc --dataset "$OUT/demos.hdf5" \
        --output-dir "$OUT/runs" --name bc --set train.seed="$((SEED + 1))" --quiet --json >"$OUT/train.json"

    local checkpoint
    checkpoint="$("$PY" -c 'import json, sys; print(json.load(open(sys.argv[1]))["checkpoint"])' "$OUT/train.json")"

    say "3/3  Success rate over $EPISODES episodes that it has not seen"
    stage evaluate "$imitate" eval --agent "$checkpoint" --episodes "$EPISODES" --workers "$workers" \
        --seed "$((SEED + 1000))" --out "$OUT/eval.json" ${video[@]+"${video[@]}"}

    "$PY" scripts/quickstart_report.py "$OUT"
}

main "$@"
