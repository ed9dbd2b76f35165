#!/bin/sh
# Names the system packages that some tests use and this machine has not, with the line that installs them.
packages=""
lacks() { # lacks PROGRAM PACKAGE WHAT
    for place in $(echo "$PATH:/usr/sbin:/sbin" | tr ':' ' '); do
        [ -x "$place/$1" ] && return
    done
    echo "test: $1 is not installed; $3 will be skipped" >&2
    packages="$packages $2"
}
lacks chromium chromium "the browser tests"
lacks sshd openssh-server "the tests with a real OpenSSH server"
lacks ip iproute2 "the tests in network namespaces"
lacks unshare util-linux "the tests in namespaces"
lacks ps procps "the tests that look at processes"
for shell in busybox ksh mksh; do
    lacks "$shell" "$shell" "the tests of our scripts in that shell"
done
PATH=$PATH:$(echo /usr/lib/postgresql/*/bin | tr ' ' ':')
lacks initdb postgresql "the tests on PostgreSQL (make test-postgres)"
if [ -n "$packages" ]; then
    [ "$(id -u)" = 0 ] && sudo="" || sudo="sudo "
    echo "test: to run them too: ${sudo}apt-get install -y$packages" >&2
fi
