#!/usr/bin/env bash
# Builds the documentation into site/: static files that any web server can serve. A broken link, a missing reference
# or a page without a place in the navigation is an error.
#
#   bash scripts/docs.sh             build site/<version>/ and the list of versions
#   bash scripts/docs.sh serve       build, and show it at http://127.0.0.1:8000 (PORT=... for another port)
#
# SITE_URL=https://example.org/docs names the address of site/, so that the page for unknown addresses, 404.html,
# finds its style and its links below any path; without it that page is made for the server's root.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"

build() {
    local version
    version="$("$PY" -c 'from imitate.system.version import __version__; print(__version__)')"
    say "Building the documentation of version $version (mkdocs build --strict)"
    SITE_URL="${SITE_URL:+${SITE_URL%/}/$version/}" build_docs "site/$version"
    "$PY" scripts/site_versions.py site "$version"
    note "site/$version/index.html; copy the folder site/ to a web server"
}

main() {
    local word="${1:-build}"
    case "$word" in
        build | serve) ;;
        *) fail "unknown word '$word': bash scripts/docs.sh [build | serve]" ;;
    esac
    cd "$ROOT"
    install_package docs
    build
    [ "$word" = build ] || "$PY" -m http.server --bind 127.0.0.1 --directory site "${PORT:-8000}"
}

main "$@"
