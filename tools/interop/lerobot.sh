#!/usr/bin/env bash
# LeRobot's own package reads what we write, and we read what it writes.
#
#   bash tools/interop/lerobot.sh
#
# LeRobot goes into an environment of its own in a temporary folder, which is removed at the end. It takes torch, h5py
# and PyAV from the environment whose Python is $PYTHON (by default .venv here), and stands in for what else it imports
# and does not need for this (lerobot_stand_ins.py). Exit code 3: the package cannot be installed here.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
LEROBOT="lerobot==0.4.4"
NEEDS=("datasets>=4,<4.2" "huggingface_hub<0.36" "pandas<3" "draccus==0.10.0" "deepdiff<9" "jsonlines" "pyserial")

FOLDER="$(mktemp -d)"
trap 'rm -rf "$FOLDER"' EXIT
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$FOLDER/hf" SVT_LOG=1

"$PYTHON" -m venv "$FOLDER/env"
"$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$(echo "$FOLDER"/env/lib/python3*/site-packages)/imitate.pth"
PIP=("$FOLDER/env/bin/python" -m pip install --quiet --disable-pip-version-check)
if ! { "${PIP[@]}" --no-deps "$LEROBOT" && "${PIP[@]}" "${NEEDS[@]}"; } > "$FOLDER/pip.log" 2>&1; then
    tail -n 3 "$FOLDER/pip.log" >&2
    echo "lerobot: the package '$LEROBOT' or what it needs cannot be installed here: nothing was compared" >&2
    exit 3
fi

cd "$ROOT"
"$PYTHON" tools/interop/lerobot_round.py write "$FOLDER"
reads() { "$FOLDER/env/bin/python" tools/interop/lerobot_reads_ours.py "$FOLDER/demos.hdf5" "$@"; }
reads "$FOLDER/png"
reads "$FOLDER/h264" --loss 2
reads "$FOLDER/av1" --loss 3
"$FOLDER/env/bin/python" tools/interop/lerobot_writes.py "$FOLDER/theirs" 2> "$FOLDER/log" || { cat "$FOLDER/log" >&2; exit 1; }
"$PYTHON" tools/interop/lerobot_round.py read "$FOLDER"
