"""Jobs under a real systemd of the user's own: they outlive a login that logind ends, and end exactly when they are cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from apps.remote import hostkeys
from apps.remote.jobs import NodeJobs
from apps.remote.ssh import connect
from apps.remote.transport import Endpoint
from scripts.real_nodes import Nodes
from tests.real.product import HEAD

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
# A child that hides: a session of its own, its parent gone, nothing of ours in its environment.
HIDES = "setsid -f env -i /bin/sleep 4711; sleep 4712"


@pytest.fixture
def door(clean: Nodes) -> Iterator[Endpoint]:
    """The head as its user, whose systemd stays after a logout."""
    clean.inside(HEAD, "loginctl", "enable-linger", "spark")
    bare = Endpoint(HEAD, clean.head.address, clean.head.port, clean.head.user, clean.private_key)
    found = hostkeys.scan(bare)
    pins = tuple((key.type, key.base64) for key in found)
    yield Endpoint(HEAD, clean.head.address, clean.head.port, clean.head.user, clean.private_key, host_keys=pins)
    clean.inside(HEAD, "loginctl", "disable-linger", "spark")
    clean.inside(HEAD, "pkill", "-u", "spark", "sleep", check=False)


def until(check: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.2)


def sleeping(nodes: Nodes) -> list[str]:
    """Control groups of the processes of `HIDES`."""
    script = "for p in $(pgrep -f 'sleep 471[12]'); do grep -h -e systemd -e '^0::' /proc/$p/cgroup; done"
    return [line for line in nodes.inside(HEAD, "sh", "-c", script, check=False).splitlines() if line]


def test_a_job_has_a_scope_outlives_its_login_and_ends_exactly(clean: Nodes, door: Endpoint) -> None:
    with connect(door) as first:
        NodeJobs(first).start("scopes-1", HIDES)
        until(lambda: len(sleeping(clean)) >= 2)
        assert all("sparkweb-job-scopes-1-" in line for line in sleeping(clean)), sleeping(clean)
    clean.inside(
        HEAD,
        "sh",
        "-c",
        "loginctl --no-legend list-sessions | awk '$3 == \"spark\" {print $1}' | xargs -r -n1 loginctl terminate-session",
        check=False,
    )
    time.sleep(1)
    with connect(door) as second:
        jobs = NodeJobs(second)
        assert jobs.look([("scopes-1", 0)], limit=0)[0].state == "running", "logind ended the job with the login"
        assert jobs.cancel("scopes-1", grace_s=2).state == "exited"
        assert sleeping(clean) == [], "who hid from session and environment was found by its control group"
        units = second.run("XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user list-units --no-legend 'sparkweb-*'")
        assert b"sparkweb-" not in units.stdout
