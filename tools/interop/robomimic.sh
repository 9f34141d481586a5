#!/usr/bin/env bash
# robomimic's own package loads what we export, and acts as our policies do.
#
#   bash tools/interop/robomimic.sh                            # robomimic 0.3.0, from the package index
#   ROBOMIMIC=/a/checkout bash tools/interop/robomimic.sh      # and 0.5, a git checkout of it
#
# Each goes into an environment of its own in a temporary folder, which is removed at the end. It takes torch and h5py
# from the environment whose Python is $PYTHON (by default .venv here), and stands in for what else it imports and does
# not need to act (robomimic_acts.py). diffusion_policy is compared where diffusers 0.11.1 can be installed.
# Exit code 3: robomimic 0.3.0 cannot be installed here.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="${PYTHON:-$ROOT/.venv/bin/python}"
DIFFUSERS=("diffusers==0.11.1" "huggingface_hub==0.23.4" "importlib_metadata" "zipp" "filelock" "regex" "requests"
    "packaging" "pyyaml" "fsspec" "tqdm" "urllib3" "idna" "certifi" "charset_normalizer")

FOLDER="$(mktemp -d)"
trap 'rm -rf "$FOLDER"' EXIT

"$PYTHON" -m venv "$FOLDER/env"
"$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$(echo "$FOLDER"/env/lib/python3*/site-packages)/imitate.pth"
PIP=("$FOLDER/env/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps)
if ! "${PIP[@]}" "robomimic==0.3.0" > "$FOLDER/pip.log" 2>&1; then
    tail -n 3 "$FOLDER/pip.log" >&2
    echo "robomimic: the package cannot be installed here: nothing was compared" >&2
    exit 3
fi

cd "$ROOT"
diffusion=""
if [ -n "${ROBOMIMIC:-}" ] && "${PIP[@]}" --target "$FOLDER/diffusers" "${DIFFUSERS[@]}" > "$FOLDER/pip.log" 2>&1; then
    diffusion="--diffusion"
fi
"$PYTHON" tools/interop/robomimic_exports.py "$FOLDER" $diffusion
"$FOLDER/env/bin/python" tools/interop/robomimic_acts.py "$FOLDER/robomimic-0.3"
if [ -n "${ROBOMIMIC:-}" ]; then
    PYTHONPATH="$ROBOMIMIC:$FOLDER/diffusers" "$FOLDER/env/bin/python" tools/interop/robomimic_acts.py "$FOLDER/robomimic-0.5"
fi
