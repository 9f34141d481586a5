#!/usr/bin/env bash
# A dataset of LeRobot goes through a file of ours and back, and LeRobot itself replays and loads what comes back.
#
#   bash tools/interop/lerobot_data.sh                  # LeRobot 0.6.1
#
# LeRobot goes into an environment of its own: 5 GB and some minutes. It is made in a temporary folder and removed at the
# end, unless LEROBOT_ENV names a folder to keep it in. The conversions run in the environment whose Python is $PYTHON (by
# default .venv here). LEROBOT_PYTHON makes the environment: 3.12 or later. Exit code 1: something is not as it was; 3:
# LeRobot cannot be installed.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
LEROBOT="${LEROBOT:-lerobot[dataset]==0.6.1}"
LEROBOT_PYTHON="${LEROBOT_PYTHON:-python3.12}"

FOLDER="$(mktemp -d)"
trap 'rm -rf "$FOLDER"' EXIT
ENV="${LEROBOT_ENV:-$FOLDER/env}"
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$FOLDER/hf" SVT_LOG=1 OMP_NUM_THREADS=1 PYTHONPATH="$ROOT"

if [ ! -x "$ENV/bin/python" ]; then
    "$LEROBOT_PYTHON" -m venv "$ENV" || { echo "lerobot: no $LEROBOT_PYTHON here: set LEROBOT_PYTHON" >&2; exit 3; }
fi
if ! "$ENV/bin/python" -m pip install --quiet --disable-pip-version-check "$LEROBOT" > "$FOLDER/pip.log" 2>&1; then
    tail -n 3 "$FOLDER/pip.log" >&2
    echo "lerobot: '$LEROBOT' cannot be installed here: nothing was compared" >&2
    exit 3
fi
PACKAGES="$("$ENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
cp "$ROOT/tools/interop/lerobot_robot_fakearm.py" "$PACKAGES/"
mkdir -p "$PACKAGES/lerobot_robot_fakearm-1.0.dist-info"
printf 'Metadata-Version: 2.1\nName: lerobot_robot_fakearm\nVersion: 1.0\n' \
    > "$PACKAGES/lerobot_robot_fakearm-1.0.dist-info/METADATA"

cd "$ROOT"
data() { "$ENV/bin/python" tools/interop/lerobot_data.py "$@"; }
convert() { "$PYTHON" -m imitate.cli.main dataset convert "$@" > "$FOLDER/convert.log" || { cat "$FOLDER/convert.log" >&2; exit 1; }; }

data write "$FOLDER/there" 2> "$FOLDER/log" || { cat "$FOLDER/log" >&2; exit 1; }
convert "$FOLDER/there" "$FOLDER/demos.hdf5"
convert "$FOLDER/demos.hdf5" "$FOLDER/back" --to lerobot
data compare "$FOLDER/there" "$FOLDER/back" 2> "$FOLDER/log" || { tail -n 5 "$FOLDER/log" >&2; exit 1; }
for set in there back; do
    "$ENV/bin/lerobot-replay" --robot.type=fakearm --robot.id=fake --robot.joints=3 --robot.out="$FOLDER/$set.json" \
        --dataset.repo_id=local/set --dataset.root="$FOLDER/$set" --dataset.episode=1 --play_sounds=false \
        > "$FOLDER/replay.log" 2>&1 || { tail -n 5 "$FOLDER/replay.log" >&2; exit 1; }
done
cmp "$FOLDER/there.json" "$FOLDER/back.json"
echo "lerobot-replay sends the same actions of both: $(wc -c < "$FOLDER/back.json") bytes"
