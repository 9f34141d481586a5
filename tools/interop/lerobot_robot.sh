#!/usr/bin/env bash
# LeRobot's own robot and teleoperation device, driven by `imitate record`, `run`, `serve` and `replay`.
#
#   bash tools/interop/lerobot_robot.sh
#
# LeRobot's drivers talk to servos that are simulated behind a pseudo-terminal: there is no hardware. LeRobot goes into
# an environment of its own, with what imitate needs but without a simulator: 5 GB and some minutes the first time. It
# is made in a temporary folder and removed at the end, unless LEROBOT_ENV names a folder to keep it in. The policy is
# trained and served by the environment whose Python is $PYTHON (by default .venv here), where LeRobot is not.
# LEROBOT_PYTHON makes the environment: 3.12 or later. Exit code 1: the drive failed; 3: LeRobot cannot be installed.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
LEROBOT="${LEROBOT:-lerobot[feetech]==0.6.1}"
LEROBOT_PYTHON="${LEROBOT_PYTHON:-python3.12}"

FOLDER="$(mktemp -d)"
trap 'rm -rf "$FOLDER"' EXIT
ENV="${LEROBOT_ENV:-$FOLDER/env}"
export HF_HUB_OFFLINE=1 HF_HOME="$FOLDER/hf"

if [ ! -x "$ENV/bin/python" ]; then
    "$LEROBOT_PYTHON" -m venv "$ENV" || { echo "lerobot: no $LEROBOT_PYTHON here: set LEROBOT_PYTHON" >&2; exit 3; }
fi
wanted() {  # what imitate needs, as its pyproject.toml says
    "$ENV/bin/python" - "$ROOT/pyproject.toml" <<'PY'
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
print(*project["dependencies"], *project["optional-dependencies"]["deploy"], sep="\n")
PY
}
wanted > "$FOLDER/wanted.txt"
if ! "$ENV/bin/python" -m pip install --quiet --disable-pip-version-check "$LEROBOT" -r "$FOLDER/wanted.txt" \
    > "$FOLDER/pip.log" 2>&1; then
    tail -n 3 "$FOLDER/pip.log" >&2
    echo "lerobot: '$LEROBOT' cannot be installed here: nothing was driven" >&2
    exit 3
fi
# The camera is a plug-in, which LeRobot finds by the name of its distribution.
PACKAGES="$("$ENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
cp "$ROOT/tools/interop/lerobot_camera_stripes.py" "$PACKAGES/"
mkdir -p "$PACKAGES/lerobot_camera_stripes-1.0.dist-info"
printf 'Metadata-Version: 2.1\nName: lerobot_camera_stripes\nVersion: 1.0\n' \
    > "$PACKAGES/lerobot_camera_stripes-1.0.dist-info/METADATA"

mkdir "$FOLDER/drive"
cd "$ROOT"
PYTHONPATH="$ROOT" "$PYTHON" tools/interop/lerobot_robot.py "$FOLDER/drive" "$ENV/bin/python"
