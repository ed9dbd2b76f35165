#!/bin/sh
# All checks. Every one runs, also after another failed, so that one look shows everything that is wrong.
cd "$(dirname "$0")/.." || exit 1
PATH="$PWD/.venv/bin:$PATH"
export PATH
failed=""
# State of its own, as on a machine that was never used; the settings below are those of an installation behind TLS.
VAR=$(mktemp -d)
export VAR
trap 'rm -rf "$VAR"' EXIT
unset PORT HOST ORIGINS DATABASE_URL REDIS_URL

part() { # part NAME COMMAND…
    name=$1
    shift
    echo "check: $name"
    "$@" || failed="$failed $name"
}

part ruff ruff check .
part format ruff format --check .
part mypy mypy apps sparkweb scripts manage.py
part imports lint-imports
part spelling codespell
part templates djlint --lint --quiet templates
part migrations python manage.py makemigrations --check --dry-run
part deployment env HOST=127.0.0.1 ORIGINS=https://sparkweb.example python manage.py check --deploy --fail-level WARNING

if [ -n "$failed" ]; then
    echo "check: failed:$failed" >&2
    exit 1
fi
echo "check: all passed"
