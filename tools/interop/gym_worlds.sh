#!/usr/bin/env bash
# A policy in LeRobot's layout plays PushT and ALOHA: observations have other names than the policy's.
#
#   bash tools/interop/gym_worlds.sh                 # both
#   bash tools/interop/gym_worlds.sh pusht           # PushT alone: seconds; ALOHA renders 480 x 640 pixels
#
# gym-pusht and gym-aloha want packages that robosuite cannot live with (OpenCV for numpy 2, another MuJoCo), so they go into
# an environment of their own, beside the packages of $PYTHON (by default .venv here), in a temporary folder; GYM_WORLDS_ENV
# names a folder to keep it in. Exit code 1: something is not as expected; 3: a package cannot be installed.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
FOLDER="$(mktemp -d)"
trap 'rm -rf "$FOLDER"' EXIT
ENV="${GYM_WORLDS_ENV:-$FOLDER/env}"
export OMP_NUM_THREADS=1 PYTHONPATH="$ROOT" MUJOCO_GL="${MUJOCO_GL:-egl}"

if [ ! -x "$ENV/bin/python" ]; then
    "$PYTHON" -m venv "$ENV"
    "$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        > "$("$ENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_base.pth"
    # dm_control 1.0.41 is for MuJoCo 3.8.1. Newer releases of pymunk lack what PushT calls.
    "$ENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps gym-pusht gym-aloha 'pymunk<7' pygame shapely \
        dm_control==1.0.41 mujoco==3.8.1 dm-env dm-tree labmaze lxml cffi pyopengl glfw > "$FOLDER/pip.log" 2>&1 \
        || { tail -n 3 "$FOLDER/pip.log" >&2; exit 3; }
fi
cd "$ROOT"
[ "$#" -gt 0 ] || set -- pusht aloha
for world in "$@"; do
    "$ENV/bin/python" tools/interop/gym_worlds.py "$world" "$FOLDER/$world"
done
