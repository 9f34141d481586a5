#!/usr/bin/env bash
# Our vision transformers give the tokens of transformers' own, on files that it saves with random weights.
#
#   bash tools/interop/vision.sh
#
# transformers goes into an environment of its own in a temporary folder, which is removed at the end, beside the packages
# of $PYTHON (by default .venv here). Exit code 1: tokens differ; 3: transformers cannot be installed here.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
FOLDER="$(mktemp -d)"
trap 'rm -rf "$FOLDER"' EXIT
export OMP_NUM_THREADS=1 PYTHONPATH="$ROOT" HF_HUB_OFFLINE=1

"$PYTHON" -m venv "$FOLDER/env"
"$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$(echo "$FOLDER"/env/lib/python3*/site-packages)/zz_base.pth"
"$FOLDER/env/bin/python" -m pip install --quiet --disable-pip-version-check "transformers>=5,<6" > "$FOLDER/pip.log" 2>&1 \
    || { tail -n 3 "$FOLDER/pip.log" >&2; exit 3; }
cd "$ROOT"
"$FOLDER/env/bin/python" tools/interop/vision.py "$FOLDER/files" 2> "$FOLDER/log" || { tail -n 5 "$FOLDER/log" >&2; exit 1; }
