#!/bin/sh
# postgres.sh [PYTEST ARGUMENTS]: starts a PostgreSQL of its own in a scratch folder, runs the tests that use a database on
# it, and ends it. Without arguments: every such folder. postgres.sh -- COMMAND… runs that instead, with DATABASE_URL set.
# PostgreSQL refuses root, so as root it runs as user postgres.
set -eu
cd "$(dirname "$0")/.."
bin=""
for folder in $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -t/ -k5 -n) ${PG_BIN:-}; do
    [ -x "$folder/initdb" ] && bin=$folder
done
if [ -z "$bin" ]; then
    [ "$(id -u)" = 0 ] && sudo="" || sudo="sudo "
    echo "postgres: no PostgreSQL server here; install it: ${sudo}apt-get install -y postgresql" >&2
    exit 1
fi
folder=$(mktemp -d /tmp/sparkweb-postgres-XXXXXX)
as=""
if [ "$(id -u)" = 0 ]; then
    chown postgres "$folder"
    as="runuser -u postgres --"
fi
stop() {
    $as "$bin/pg_ctl" -D "$folder/data" -m immediate -w stop >/dev/null 2>&1 || true
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT TERM HUP

# Nothing in it is kept, so nothing waits for a disk. A free port is chosen here; should another take it, the start says so.
$as "$bin/initdb" -D "$folder/data" --username=sparkweb --auth=trust --encoding=UTF8 --locale=C.UTF-8 --no-sync >"$folder/initdb.log" 2>&1 \
    || { cat "$folder/initdb.log" >&2; exit 1; }
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
$as "$bin/pg_ctl" -D "$folder/data" -w -l "$folder/data/log" -o "-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories=$folder \
 -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=300" start >/dev/null \
    || { cat "$folder/data/log" >&2; exit 1; }
echo "postgres: $("$bin/postgres" --version) on port $port"

DATABASE_URL=postgres://sparkweb@127.0.0.1:$port/postgres
PATH=$bin:$PATH
export DATABASE_URL PATH
if [ "${1:-}" = -- ]; then
    shift
    "$@"
    exit
fi
# Everything but what never opens a database.
[ $# -gt 0 ] || set -- tests/test_routes.py tests/audit tests/people tests/api tests/runs tests/live tests/web tests/watch tests/story tests/stack tests/production
.venv/bin/python -m pytest -n "${JOBS:-$(nproc)}" "$@"
