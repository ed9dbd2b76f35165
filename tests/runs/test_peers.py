"""To whom a probe sends full frames: the plan's other nodes, by what is known of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from apps.inventory import services as inventory
from apps.inventory.models import Credential, Node
from apps.runs import working
from tests.plan import sheets as made


def peers(*names: str) -> dict[str, list[str]]:
    plan: Any = SimpleNamespace(nodes=names)
    return working._peers(plan)


@pytest.mark.django_db
def test_the_other_end_of_each_rail_once_it_is_known() -> None:
    key = Credential.objects.create(name="key", kind="generated", public_key="", sealed_private_key="")
    head, second = (
        Node.objects.create(name=sheet.node, address="10.0.0.1", user="aurora", credential=key)
        for sheet in made.pair().values()
    )
    assert peers(head.name, second.name) == {}
    for row, sheet in zip((head, second), made.pair().values(), strict=True):
        inventory.store_sheet(row, sheet)
    told = peers(head.name, second.name)
    assert set(told) == {head.name, second.name}
    assert "enp1s0f0np0 192.168.200.13" in told[head.name]
    assert "enp1s0f0np0 192.168.200.12" in told[second.name]
    assert peers(head.name) == {}
