#!/usr/bin/env bash
# LeRobot itself acts with the policies that `imitate convert-checkpoint --to lerobot` writes.
#
#   bash tools/interop/lerobot_policies.sh                  # LeRobot 0.4.4 and 0.6.1
#   bash tools/interop/lerobot_policies.sh 0.3.3            # another release: up to 0.3 the layout lerobot-0.3
#
# Each release goes into an environment of its own in a temporary folder: 5 GB and some minutes each. LEROBOT_ENVS names a
# folder to keep them in. The policies are written by the environment whose Python is $PYTHON (by default .venv here).
# From 0.6 on lerobot-rollout runs an exported policy, and one of plugins/lerobot_policy_imitate, on an arm without hardware.
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

rollouts() {  # lerobot-rollout with an arm that has no hardware: an exported policy, and one of the plug-in
    local env="$1" packages
    "$env/bin/python" -m pip install --quiet --disable-pip-version-check "lerobot[dataset]==$2" h5py "pydantic>=2.10" \
        "typer>=0.20" tensorboard matplotlib "imageio[ffmpeg]" > "$FOLDER/pip.log" 2>&1 || { tail -n 3 "$FOLDER/pip.log" >&2; exit 3; }
    "$env/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps plugins/lerobot_policy_imitate \
        > "$FOLDER/pip.log" 2>&1 || { tail -n 3 "$FOLDER/pip.log" >&2; exit 3; }
    packages="$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    cp tools/interop/lerobot_robot_fakearm.py "$packages/"
    mkdir -p "$packages/lerobot_robot_fakearm-1.0.dist-info"
    printf 'Metadata-Version: 2.1\nName: lerobot_robot_fakearm\nVersion: 1.0\n' \
        > "$packages/lerobot_robot_fakearm-1.0.dist-info/METADATA"
    for name in act bc; do
        local camera=()
        [ "$name" = bc ] || camera=("--robot.image=[64,72,3]")
        PYTHONPATH="$ROOT" "$env/bin/lerobot-rollout" --policy.path="$FOLDER/policies/rollouts/$name" --robot.type=fakearm \
            --robot.id=fake "${camera[@]}" --robot.out="$FOLDER/$name.json" --duration=3 --fps=10 --play_sounds=false \
            --return_to_initial_position=false --device=cpu > "$FOLDER/rollout.log" 2>&1 \
            || { tail -n 5 "$FOLDER/rollout.log" >&2; exit 1; }
        "$env/bin/python" tools/interop/lerobot_sent.py "$FOLDER/policies/rollouts/first.json" "$name" "$FOLDER/$name.json"
    done
}

cd "$ROOT"
PYTHONPATH="$ROOT" "$PYTHON" tools/interop/lerobot_policies.py "$FOLDER/policies"
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
    "$ENV/bin/python" tools/interop/lerobot_acts.py "$FOLDER/policies"
    case "$version" in 0.[0-5].*) continue ;; esac # lerobot-rollout came with 0.6
    rollouts "$ENV" "$version"
done; done
