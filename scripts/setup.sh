#!/bin/sh
# setup.sh LOCK: makes .venv and installs what LOCK lists, by hash; does nothing when that was done before.
# PYTHON names an interpreter (3.11 or newer). Else it is the system's own where that will do: Debian and Ubuntu build theirs with
# optimisation, what pyenv and the like build often has none and takes 1.5 times as long for everything.
# What is missing is named with the line that installs it.
set -eu
cd "$(dirname "$0")/.."
lock=$1
python=${PYTHON:-python3}
own=/usr/bin/python3
if [ -z "${PYTHON:-}" ] && "$own" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$own
fi
installed=.venv/installed-$(basename "$lock")

missing=""
need() { missing="$missing $1"; }
command -v git >/dev/null 2>&1 || need git
if ! "$python" -c '' >/dev/null 2>&1; then
    [ "$python" = python3 ] || { echo "setup: PYTHON=$python does not run; name a Python 3.11 or newer" >&2; exit 1; }
    need "python3 python3-venv"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "setup: $python is $("$python" -V 2>&1); sparkweb needs Python 3.11 or newer." >&2
    echo "setup: Debian 12 and Ubuntu 24.04 have it: apt-get install python3 python3-venv, or name one: make setup PYTHON=…" >&2
    exit 1
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    need python3-venv
fi
if [ -n "$missing" ]; then
    echo "setup: missing on this machine:$missing" >&2
    [ "$(id -u)" = 0 ] && sudo="" || sudo="sudo "
    echo "setup: install with: ${sudo}apt-get install -y$missing" >&2
    exit 1
fi

# A .venv that was moved, or whose creation was interrupted, answers with another prefix or not at all.
if [ "$(.venv/bin/python -c 'import sys, pip; print(sys.prefix)' 2>/dev/null || true)" != "$PWD/.venv" ]; then
    echo "setup: making .venv with $("$python" -V 2>&1)"
    rm -rf .venv
    "$python" -m venv .venv
fi

# The development lock holds all of the other, in the same versions.
for done in "$installed" .venv/installed-requirements-dev.lock; do
    wanted=$(basename "${done#.venv/installed-}")
    if cmp -s "$wanted" "$done"; then
        case $lock in "$wanted" | requirements.lock) exit 0 ;; esac
    fi
done

# --no-compile: modules are compiled when they are first used, most never are.
echo "setup: installing $lock (about a minute)"
started=$(date +%s)
log=.venv/install.log
if ! .venv/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off --no-compile --require-hashes \
    --only-binary :all: -r "$lock" >"$log" 2>&1; then
    grep -v '^WARNING: Location' "$log" | tail -n 12 >&2
    echo "setup: installing failed; above is the end of $PWD/$log. What was fetched is kept: run it again." >&2
    exit 1
fi
cp "$lock" "$installed"
echo "setup: done in $(($(date +%s) - started)) s"
