#!/usr/bin/env bash
# LeRobot itself acts with the policies that `imitate convert-checkpoint --to lerobot` writes.
#
#   bash tests/interop/lerobot_policies.sh                  # LeRobot 0.4.4 and 0.6.1
#   bash tests/interop/lerobot_policies.sh 0.3.3            # another release: up to 0.3 the layout lerobot-0.3
#
# Each release goes into an environment of its own in a temporary folder: 5 GB and some minutes each. LEROBOT_ENVS names a
# folder to keep them in. The policies are written by the environment whose Python is $PYTHON (by default .venv here).
# LEROBOT_PYTHON makes the environments: 3.12 or later for 0.5 and later. Exit code 1: actions differ, or a tensor is
# missing or unexpected; 3: a release cannot be installed.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
LEROBOT_PYTHON="${LEROBOT_PYTHON:-python3.12}"
FOLDER="$(mktemp -d)"
trap 'rm -rf "$FOLDER"' EXIT
ENVS="${LEROBOT_ENVS:-$FOLDER/envs}"
export HF_HUB_OFFLINE=1 HF_HOME="$FOLDER/hf" OMP_NUM_THREADS=1

cd "$ROOT"
PYTHONPATH="$ROOT" "$PYTHON" tests/interop/lerobot_policies.py "$FOLDER/policies"
for release in "${@:-0.4.4 0.6.1}"; do for version in $release; do
    ENV="$ENVS/$version"
    if [ ! -x "$ENV/bin/python" ]; then
        "$LEROBOT_PYTHON" -m venv "$ENV" || { echo "lerobot: no $LEROBOT_PYTHON here: set LEROBOT_PYTHON" >&2; exit 3; }
    fi
    if ! "$ENV/bin/python" -m pip install --quiet --disable-pip-version-check "lerobot==$version" diffusers \
        > "$FOLDER/pip.log" 2>&1; then
        tail -n 3 "$FOLDER/pip.log" >&2
        echo "lerobot: lerobot==$version cannot be installed here: nothing was compared" >&2
        exit 3
    fi
    "$ENV/bin/python" tests/interop/lerobot_acts.py "$FOLDER/policies"
done; done
