"""What goes wrong on the way: nobody can reach the node any more, a wrong password, two people, somebody else's change."""

from __future__ import annotations

import time

import pytest

from apps.audit.models import Entry
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.runs import provisioning
from apps.runs.models import Passing, Run
from tests.provision.conftest import ADMIN, HEAD, LOGIN, OPERATOR, SECOND, SUDO, ended, text_of

pytestmark = pytest.mark.django_db(transaction=True)
FABRIC = {"ticks": {SECOND: ["fabric"]}}


def test_a_node_that_nobody_reaches_puts_its_network_back_alone(pair):
    pair.bare("networkd")
    before, files = pair.lab.root(SECOND), pair.files()
    pair.lab.fault(SECOND, "strands")
    run = ended(pair.start(**FABRIC, revert_s=8), 120)
    assert (run.state, run.reason) == ("failed", "fabric_reverted"), (run.reason, run.evidence, text_of(run)[-2000:])
    assert (before / "var/lib/sparkweb/fabric").read_text() == "reverted\n"
    assert {name for name in pair.files() if not name.startswith("var/lib/sparkweb")} == set(files) - {
        "var/lib/sparkweb"
    }
    pair.probe()
    links = {one.name: one for one in pair.sheet().interfaces or ()}
    assert links["enp1s0f0np0"].up is False and links["enP2p1s0f0np0"].mtu == 1500
    # what is left of the record goes with a restore, and then everything is as it was
    back = pair.restored()
    assert back.state == "succeeded", (back.reason, back.evidence)
    assert pair.files() == files


def test_a_run_that_ends_before_its_word_leaves_the_old_network(pair):
    pair.bare()
    run = pair.start(**FABRIC, revert_s=6)
    until = time.monotonic() + 60
    state = pair.lab.root(SECOND) / "var/lib/sparkweb/fabric"
    while time.monotonic() < until and not state.exists():
        time.sleep(0.02)
    from apps.runs import services

    services.cancel(ADMIN, Run.objects.get(pk=run.pk), reason="enough")
    run = ended(run, 60)
    assert run.state in ("cancelled", "succeeded")
    if run.state == "cancelled" and state.read_text() != "kept\n":
        while time.monotonic() < until and state.read_text() != "reverted\n":
            time.sleep(0.2)
        assert state.read_text() == "reverted\n"


def test_a_wrong_sudo_password_changes_nothing(pair):
    pair.bare()
    files = pair.files()
    run = ended(pair.start(passwords={f"once:sudo:{SECOND}": "not this"}))
    assert (run.state, run.reason) == ("failed", "sudo_denied"), run.evidence
    assert "nothing was changed" in run.evidence and "not this" not in text_of(run)
    assert pair.files() == files
    assert not Passing.objects.exists()
    entry = Entry.objects.filter(action="node:provisioned").latest("pk")
    assert (entry.outcome, entry.after["reason"]) == ("failed", "sudo_denied")
    with pytest.raises(Refused) as missing:
        pair.start(passwords={})
    assert missing.value.field == f"passwords.{SECOND}.sudo"


def test_two_operators_at_once(pair):
    pair.bare()
    first = pair.start()
    with pytest.raises(Refused) as held:
        pair.start()
    assert held.value.reason == "node_reserved" and f"run {first.pk}" in held.value.detail
    assert ended(first, 90).state == "succeeded"


def test_a_step_that_was_refused_is_left_out(pair):
    pair.bare()
    run = pair.done(ticks={SECOND: ["clock", "linger"]})
    sheet = pair.sheet()
    assert sheet.setup.ntp and sheet.setup.lingers
    assert sheet.docker.problem == "docker_denied" and sheet.privileges.sudo == "password"
    assert not [step for step in run.steps.all() if step.key.startswith("provision.docker")]


def test_without_sudo_a_node_is_used_as_it_is(pair):
    pair.bare()
    sheet = pair.sheet()
    from dataclasses import replace

    inventory.store_sheet(
        pair.second, replace(sheet, taken_at=sheet.taken_at + 1, privileges=replace(sheet.privileges, sudo="none"))
    )
    made = provisioning.preview(pair.wish(nodes=[SECOND]))
    steps = [step for stage in made.plan.stages for step in stage.steps]
    assert {step.kind for step in steps} == {"note"} and not made.passwords
    assert any("may not use sudo" in step.why for step in steps)
    assert [problem.name for problem in made.plan.problems] == ["sudo_denied"]


def test_what_somebody_changed_since_is_not_put_back(pair):
    pair.bare()
    pair.done(ticks={SECOND: ["limits", "clock"]})
    file = pair.lab.root(SECOND) / "etc/security/limits.d/60-sparkweb.conf"
    file.write_text(file.read_text() + "# mine\n")
    back = pair.restored()
    assert (back.state, back.reason) == ("failed", "changed_since"), back.evidence
    assert file.read_text().endswith("# mine\n")
    assert not inventory.latest_sheet(pair.second).setup.ntp  # undone newest first: the clock was put back by then
    file.unlink()
    assert pair.restored().state == "succeeded"


def test_the_first_key_comes_in_with_a_password(pair):
    pair.bare(login=LOGIN)
    key = inventory.make_credential(ADMIN, name="another")
    type(pair.second).objects.filter(pk=pair.second.pk).update(credential=key)
    probe = ended(provisioning_probe(pair))
    assert probe.reason == "ssh_auth"
    wish = {"nodes": [SECOND], "key": [SECOND]}
    made = provisioning.preview(wish)
    assert key.public_key in made.plan.stages[0].steps[0].script

    def start(password: str) -> Run:
        return ended(
            provisioning.start(
                ADMIN, wish, digest=made.plan.digest, reason="new", passwords={f"once:login:{SECOND}": password}
            )
        )

    wrong = start("guessed")
    assert (wrong.state, wrong.reason) == ("failed", "ssh_auth") and "guessed" not in text_of(wrong)
    right = start(LOGIN)
    assert right.state == "succeeded", (right.reason, right.evidence, text_of(right))
    assert not Passing.objects.exists() and LOGIN not in text_of(right)
    authorized = pair.lab.root(SECOND) / "home/aurora/.ssh/authorized_keys"
    assert authorized.read_text() == key.public_key + "\n"
    assert pair.sheet().machine.user == "aurora"
    back = provisioning.preview_restore([SECOND], with_key=True)
    run = provisioning.start_restore(
        ADMIN, [SECOND], digest=back.plan.digest, reason="gone", with_key=True, passwords={f"once:sudo:{SECOND}": SUDO}
    )
    assert ended(run).state == "succeeded" and authorized.read_text() == ""


def provisioning_probe(pair):
    from apps.runs import services

    return services.probe(OPERATOR, [pair.second])


def test_what_is_only_done_when_asked(pair):
    """Nodes that open each other, a small measurement, and packages for a node without internet, through the other one."""
    pair.bare()
    files = {name: pair.files(name) for name in (HEAD, SECOND)}
    ticks = {name: ["fabric", "peers", "measure"] for name in (HEAD, SECOND)}
    ticks[SECOND] += ["earlyoom", "gpuclock"]
    run = pair.done(ticks=ticks, internet=HEAD)
    text = text_of(run)
    assert "Gb/s over one TCP connection" in text and "8972 bytes reach 192.168.200.12 undivided" in text
    assert "Setting up earlyoom" in text and "earlyoom runs" in text
    units = pair.sheet().setup.units
    assert units == {"earlyoom.service": "active", "sparkweb-gpu-clock.service": "active"}
    for name, other in ((HEAD, SECOND), (SECOND, HEAD)):
        ssh = pair.lab.root(name) / "home/aurora/.ssh"
        public = (pair.lab.root(other) / "home/aurora/.ssh/sparkweb_nodes.pub").read_text().split()[1]
        assert f"restrict,port-forwarding ssh-ed25519 {public} sparkweb-nodes" in (ssh / "authorized_keys").read_text()
        assert "ssh-ed25519" in (ssh / "sparkweb_nodes_hosts").read_text()
    assert not [title for title in pair.lab.state()["nodes"][SECOND]["processes"].values() if "ssh -" in title]
    again = provisioning.preview(pair.wish(ticks=ticks, internet=HEAD))
    assert all(
        step.kind == "note"
        for stage in again.plan.stages
        for step in stage.steps
        if step.undo and "peer" not in step.key
    )
    back = pair.restored()
    assert back.state == "succeeded", (back.reason, back.evidence, text_of(back)[-2000:])
    assert {name: pair.files(name) for name in (HEAD, SECOND)} == files
