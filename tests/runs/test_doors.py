"""What people meet at a door that does not open: the reason from the table, in words, with nothing changed. Real sshd."""

from __future__ import annotations

import socket
import threading

import pytest
from django.db import connection

from apps.audit.models import Entry
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.inventory.models import HostKey, Node
from apps.runs import services
from apps.runs.models import Run
from tests.openssh import free_port
from tests.runs.conftest import ADMIN, OPERATOR, add_node, ended

pytestmark = pytest.mark.django_db(transaction=True)


def enrol(server=None, **changes):
    key = changes.get("credential") or inventory.make_credential(
        ADMIN,
        name=f"key {Node.objects.count()} {Run.objects.count()}",
        private_key=server.private_key if server else "",
    )
    fields = {
        "name": "spark-1",
        "address": "127.0.0.1",
        "port": server.port if server else 22,
        "user": "root",
        "credential": key,
        "jump": None,
        **changes,
    }
    return services.enrol(ADMIN, **fields)


def refused(**changes) -> Refused:
    with pytest.raises(Refused) as no:
        enrol(**changes)
    assert no.value.remedy and no.value.detail and "Traceback" not in no.value.evidence
    assert not Node.objects.filter(name=changes.get("name", "spark-1")).exists()
    return no.value


def test_unknown_host(worker):
    assert refused(address="no-such-host.invalid").reason == "dns"


def test_refused_port(worker):
    no = refused(port=free_port())
    assert no.reason == "ssh_refused" and "refused" in no.evidence.lower() and no.field == "port"


def test_something_that_is_not_ssh(worker):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        no = refused(port=silent.getsockname()[1])
    assert no.reason in ("ssh_busy", "ssh_timeout")


def test_a_web_server_is_no_ssh_server(worker):
    with socket.create_server(("127.0.0.1", 0)) as web:

        def answer():
            connection, _ = web.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        no = refused(port=web.getsockname()[1])
    assert (no.reason, no.field) == ("not_ssh", "port")
    assert "does not speak SSH" in no.detail and "HTTP/1.1 400" in no.evidence


def test_dead_jump_host(worker, openssh):
    server = openssh.start("jump")
    jump = add_node(server)
    server.stop()
    no = refused(name="behind", jump=jump)
    assert no.reason == "jump_unreachable" and no.field == "jump"


def test_behind_a_jump_host_that_has_no_way(worker, openssh):
    jump = add_node(openssh.start("jump"))
    assert refused(name="behind", jump=jump, port=free_port()).reason == "ssh_refused"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a b"),
        ("name", "-x"),
        ("name", "x" * 64),
        ("address", ""),
        ("address", "a;reboot"),
        ("address", "-oProxyCommand=x"),
        ("port", 0),
        ("port", "ssh"),
        ("port", 70000),
        ("user", ""),
        ("user", "root; id"),
        ("user", "-l"),
    ],
)
def test_malformed_fields_are_named(worker, field, value):
    with pytest.raises(Refused) as no:
        enrol(**{field: value})
    assert no.value.reason == "bad_input" and no.value.field == field and no.value.remedy
    assert not Run.objects.exists() and not Node.objects.exists()


@pytest.mark.parametrize("what", ["key", "user"])
def test_wrong_key_and_wrong_user_are_said_by_the_probe(worker, openssh, what):
    server = openssh.start("spark-1")
    if what == "key":
        key = inventory.make_credential(ADMIN, name="another")
        node = services.enrol(
            ADMIN,
            name="spark-1",
            address="127.0.0.1",
            port=server.port,
            user=server.endpoint().user,
            credential=key,
            jump=None,
        )
    else:
        node = enrol(server, user="nobody-here")
    node = inventory.confirm_host_key(ADMIN, node, sha256=node.host_keys.first().sha256)
    run = ended(services.probe(OPERATOR, [node]))
    assert (run.state, run.reason) == ("failed", "ssh_auth"), run.evidence
    node.refresh_from_db()
    assert node.unreachable_reason == "ssh_auth" and node.unreachable_since is not None and not node.sheets.exists()


def test_a_changed_host_key_stops_the_node_until_an_admin_settles_it(worker, openssh):
    server = openssh.start("spark-1", kinds=("ed25519",))
    node = add_node(server)
    ended(services.probe(ADMIN, [node]))
    server.stop()
    for old in server.folder.glob("host_*"):
        old.unlink()
    openssh.start("spark-1", kinds=("ed25519",), port=server.port)
    run = ended(services.probe(ADMIN, [node]))
    assert (run.state, run.reason) == ("failed", "host_key_changed"), run.evidence
    node.refresh_from_db()
    assert node.state == "stopped"
    assert Entry.objects.filter(action="node:host_key_mismatch").exists()
    with pytest.raises(Refused) as no:
        services.probe(ADMIN, [node])
    assert no.value.reason == "host_key_changed"
    ended(services.rescan(ADMIN, node))
    shown = node.host_keys.get(state=HostKey.State.REFUSED)
    with pytest.raises(Refused):
        inventory.confirm_host_key(ADMIN, node, sha256=shown.sha256)
    node = inventory.repin_host_key(ADMIN, node, sha256=shown.sha256, reason="reinstalled")
    assert ended(services.probe(ADMIN, [node])).state == "succeeded"


def test_an_unconfirmed_node_is_not_probed(worker, openssh):
    node = enrol(openssh.start("spark-1"))
    with pytest.raises(Refused) as no:
        services.probe(ADMIN, [node])
    assert no.value.reason == "host_key_unknown"
    with pytest.raises(Refused) as no:
        inventory.confirm_host_key(ADMIN, node, sha256="SHA256:AAAA")
    assert no.value.field == "sha256"


def test_without_a_worker_nobody_waits(transactional_db):
    with pytest.raises(Refused) as no:
        enrol()
    assert (no.value.reason, no.value.status) == ("no_worker", 503)


def test_one_dead_node_does_not_delay_the_other(worker, openssh):
    first, second = openssh.start("spark-1"), openssh.start("spark-2")
    nodes = [add_node(first), add_node(second)]
    second.freeze()
    run = ended(services.probe(ADMIN, nodes), 90)
    second.thaw()
    assert run.state == "failed"
    assert {s.node.name: s.state for s in run.steps.all()} == {"spark-1": "succeeded", "spark-2": "failed"}
    assert nodes[0].sheets.exists()


def test_the_same_key_enrols_once(worker, openssh):
    """Again, at once from two sides, and with other words: one look at the door, one node, or a refusal that names the key."""
    server = openssh.start("spark-1")
    key = inventory.make_credential(ADMIN, name="lab", private_key=server.private_key)
    made: list[Node] = []

    def ask() -> None:
        made.append(enrol(server, credential=key, idempotency_key="k"))
        connection.close()

    both = [threading.Thread(target=ask) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    ask()
    assert len(made) == 3 and len({node.pk for node in made}) == 1
    assert Node.objects.count() == 1 and Run.objects.filter(story="scan").count() == 1
    assert Entry.objects.filter(action="node:added").count() == 1
    with pytest.raises(Refused) as no:
        enrol(server, credential=key, idempotency_key="k", name="spark-2")
    assert (no.value.reason, no.value.field) == ("idempotency_key_reused", "Idempotency-Key")

    shut = free_port()
    looks = []
    for _ in range(2):
        with pytest.raises(Refused) as no:
            enrol(credential=key, name="spark-3", port=shut, idempotency_key="shut")
        looks.append((no.value.reason, no.value.field, Run.objects.filter(story="scan").count()))
    assert looks == [("ssh_refused", "port", 2)] * 2
