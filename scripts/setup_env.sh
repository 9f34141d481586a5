# Sourced by the other scripts: the Python environment .venv and the OpenGL library.
#
# Nothing but python3 (3.10 or later) with venv is taken for granted: no compiler, no Python headers, no screen.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
PY="$VENV/bin/python"

say() { printf '\n== %s\n' "$*"; }
note() { printf '   %s\n' "$*"; }
fail() { printf '\nerror: %s\n' "$*" >&2; exit 1; }

# Runs a command quietly; its output is shown only if it fails.
quietly() {
    local log status=0
    log="$(mktemp)"
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if [ "$status" -ne 0 ]; then
        tail -n 40 "$log" >&2
    fi
    rm -f "$log"
    return "$status"
}

make_venv() {
    if [ -x "$PY" ] && "$PY" -m pip --version >/dev/null 2>&1; then
        return
    fi
    local python="${PYTHON:-python3}"
    command -v "$python" >/dev/null || fail "there is no $python; install Python 3.10 or later, or set PYTHON to one"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        fail "$("$python" --version) is too old: Python 3.10 or later is needed; set PYTHON to one (PYTHON=python3.12 bash $0)"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python has no venv module; on Debian or Ubuntu: apt-get install -y python3-venv"
    say "Making .venv with $("$python" --version)"
    rm -rf "$VENV"
    quietly "$python" -m venv "$VENV" || fail "$python -m venv failed"
}

# install_package EXTRAS: this package, editable, with the named extras; with the extra "simulator" also the simulators.
#
# robosuite itself goes in without its dependency list. That list has packages which only its keyboard and screen use;
# one of them has to be compiled, another needs a desktop's libGL. The extra "simulator" of pyproject.toml
# lists what it does need without a screen. Meta-World and gym-aloha go in the same way:
# they pin an older mujoco, and what is used of them runs with this one.
install_package() {
    local extras="$1" packages="" wanted stamp
    [[ ",$extras," != *,simulator,* ]] || packages="robosuite metaworld gym-aloha"
    make_venv
    stamp="$VENV/.installed-${extras//,/-}"
    wanted="$(cd "$ROOT" && "$PY" - pyproject.toml constraints.txt scripts/setup_env.sh <<'PYTHON'
import hashlib, pathlib, sys
print(hashlib.sha256(b"".join(pathlib.Path(name).read_bytes() for name in sys.argv[1:])).hexdigest())
PYTHON
)"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        return
    fi
    say "Installing imitate[$extras]${packages:+, ${packages// /, }} into .venv (the first time: a few minutes)"
    (
        cd "$ROOT"
        export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
        quietly "$PY" -m pip install -e ".[$extras]" -c constraints.txt || exit 1
        for package in $packages; do
            if ! "$PY" -m pip show --quiet "$package" 2>/dev/null; then
                quietly "$PY" -m pip install --no-deps "$package" -c constraints.txt || exit 1
            fi
        done
    ) || fail "the installation failed; see above"
    printf '%s' "$wanted" >"$stamp"
}

# build_docs FOLDER: the site of docs/ as static files.
build_docs() {
    # MkDocs Material prints a notice about MkDocs 2 unless this is set.
    NO_MKDOCS_2_WARNING=1 quietly "$PY" -m mkdocs build --strict --site-dir "$1" ||
        fail "the documentation does not build; each WARNING above is an error"
}

has_gl() { "$PY" -c 'import sys; from imitate.envs.rendering import find_gl_backend; sys.exit(find_gl_backend() is None)'; }

find_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

# Sets HAVE_BROWSER to 1 or 0: whether there is a browser to look at pages with. Installs Debian's where it can.
ensure_browser() {
    HAVE_BROWSER=1
    find_browser >/dev/null && return
    local install="apt-get install -y --no-install-recommends chromium"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        say "Installing chromium"
        quietly apt-get update || true
        quietly $install || true
        find_browser >/dev/null && return
    fi
    HAVE_BROWSER=0
    say "no chromium: the report's browser test does not run. To have it:"
    note "sudo $install"
}

# Sets HAVE_GL to 1 or 0: whether MuJoCo can draw off-screen. Installs a software renderer where it can.
ensure_gl() {
    HAVE_GL=1
    has_gl && return
    local install="apt-get install -y --no-install-recommends"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        say "Installing an off-screen OpenGL library"
        quietly apt-get update || true
        quietly $install libosmesa6 || quietly $install libegl1 libgl1 libopengl0 libgl1-mesa-dri || true
        has_gl && return
    fi
    HAVE_GL=0
    say "No off-screen OpenGL library was found: going on without images and video. To have them:"
    note "sudo $install libosmesa6      (or libegl1; other systems: Mesa's OSMesa or EGL)"
}
