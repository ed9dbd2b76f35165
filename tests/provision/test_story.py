"""A Spark out of its box becomes a node through the product, over real SSH, and goes back to what it was."""

from __future__ import annotations

import pytest

from apps.deployments import services as deployments
from apps.facts.sheet import Sheet
from apps.inventory import services as inventory
from apps.recipes.models import Recipe
from apps.recipes.services import current_version, load_shipped
from apps.remote.pool import Pool
from apps.runs import provisioning, services
from tests.provision.conftest import ADMIN, HEAD, SECOND, ended, text_of

pytestmark = pytest.mark.django_db(transaction=True)
# make lab-test plays the first two on real nodes.
OWNERS = (
    pytest.param("", marks=pytest.mark.long),
    pytest.param("networkd", marks=pytest.mark.long),
    "networkmanager",
    "netplan",
)


def links(sheet: Sheet) -> dict[str, tuple[object, ...]]:
    return {
        one.name: (one.up, one.mtu, tuple(f"{a.ip}/{a.prefix}" for a in one.addresses if a.family == "inet"))
        for one in sheet.interfaces or ()
        if one.name in ("enp1s0f0np0", "enP2p1s0f0np0")
    }


@pytest.mark.parametrize("owner", OWNERS)
def test_a_port_that_was_down_ends_active_and_goes_back(pair, owner):
    pair.bare(owner)
    before, files = pair.sheet(), pair.files()
    assert links(before) == {"enp1s0f0np0": (False, 1500, ()), "enP2p1s0f0np0": (True, 1500, ("169.254.77.13/16",))}
    run = pair.done()
    after = pair.sheet()
    assert links(after) == {
        "enp1s0f0np0": (True, 9000, ("192.168.200.11/24",)),
        "enP2p1s0f0np0": (True, 9000, ("192.168.201.11/24",)),
    }, text_of(run)
    assert [hca.state for hca in after.fabric if hca.name.endswith("f0")] == ["ACTIVE", "ACTIVE"]
    assert after.docker.problem is None and "nvidia" in after.docker.runtimes
    assert after.setup.ntp and after.setup.lingers and after.privileges.sudo == "some" and after.privileges.drop_caches

    again = provisioning.preview(pair.wish())
    steps = [step for stage in again.plan.stages for step in stage.steps]
    assert {step.kind for step in steps} == {"note"}, [step.title for step in steps if step.kind != "note"]
    assert all("because" in step.why for step in steps)
    assert again.passwords == ()

    back = pair.restored()
    assert back.state == "succeeded", (back.reason, back.evidence, text_of(back)[-3000:])
    assert pair.files() == files
    assert links(pair.sheet()) == links(before)
    assert SECOND in back.plan["nodes"]


def test_a_new_group_counts_for_every_worker(pair):
    """sshd asks for groups once a connection, and each worker process has warm ones of its own."""
    pair.bare()
    other = Pool()
    try:

        def told() -> list[str]:
            pair.second.refresh_from_db()
            return other.get(inventory.endpoint(pair.second)).run("id -nG").stdout.decode().split()

        assert "docker" not in told()
        pair.done(ticks={SECOND: ["docker"]})
        assert "docker" in told()
        pair.restored()
        assert "docker" not in told()
    finally:
        other.close()


def test_a_group_that_somebody_gave_by_hand_is_seen_by_the_next_probe(pair):
    pair.bare()
    assert pair.sheet().docker.problem == "docker_denied"
    group = pair.lab.root(SECOND) / "etc/group"
    group.write_text(
        "".join(
            f"{line}aurora\n" if line.startswith("docker:") else f"{line}\n" for line in group.read_text().splitlines()
        )
    )
    pair.probe()
    assert pair.sheet().docker.problem is None


def test_qwen_launches_over_the_fabric_that_was_just_set_up(pair):
    pair.bare("netplan")
    pair.done()
    load_shipped()
    version = current_version(Recipe.objects.get(slug="qwen3.5-122b-a10b-fp8"))
    deployment = deployments.create(
        ADMIN, name="qwen3.5-122b", body=version.body, nodes=[HEAD, SECOND], recipe_version=version
    )
    wanted = services.preview(ADMIN, deployment, story="launch")
    asked = [item for problem in wanted.problems if problem.severity == "consent" for item in problem.clear]
    clear = services.clear_from([{**item, "disable": False} for item in asked])
    plan = services.preview(ADMIN, deployment, story="launch", clear=clear)
    assert not plan.refused, plan.refused
    run = services.start(ADMIN, deployment, story="launch", digest=plan.digest, reason="over it", clear=clear)
    run = ended(run, 150)
    assert run.state == "succeeded", (run.reason, run.evidence, text_of(run)[-2000:])
    assert "192.168.200.11" in text_of(run)  # the second node's new address, as Ray and the engine say it
