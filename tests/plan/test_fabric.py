"""Which address of a node the others reach it by."""

from __future__ import annotations

from dataclasses import replace

from apps.diagnosis.findings.links import twins
from apps.facts.values import Address, Hca, Interface, RailPing
from apps.plan.checks.fabric import check
from apps.plan.fabric import Fabric, fabric_address
from apps.plan.step import Problem
from tests.plan.sheets import Sheet, pair, qwen35

HEAD, SECOND = pair()["spark-1a32"], pair()["spark-5be3"]


def chosen(sheet: Sheet, *peers: Sheet) -> Fabric:
    found = fabric_address(sheet, peers)
    assert isinstance(found, Fabric), found
    return found


def test_both_choose_the_first_function_of_the_cabled_port() -> None:
    head, second = chosen(HEAD, SECOND), chosen(SECOND, HEAD)
    assert (head.address, second.address) == ("192.168.200.12", "192.168.200.13")
    assert head.interface == second.interface == "enp1s0f0np0"
    assert head.hcas == ("roceP2p1s0f0", "rocep1s0f0"), "both twins, none of the port without a cable"
    assert not head.link_local


def test_never_the_management_network_even_when_it_is_shared() -> None:
    both = tuple(
        replace(
            sheet,
            interfaces=(Interface("enP7s7", True, 1500, 10000, True, (Address(f"10.1.230.{octet}", 24),)),),
        )
        for octet, sheet in ((180, HEAD), (181, SECOND))
    )
    found = fabric_address(both[0], both[1:])
    assert isinstance(found, Problem) and found.name == "fabric_down" and "no private IPv4" in found.evidence


def test_other_device_names_work() -> None:
    made = [
        replace(
            sheet,
            interfaces=(Interface("eth7", True, 9000, 200000, True, (Address(f"10.9.9.{octet}", 24),)),),
            fabric=(Hca("mlx5_2", 1, "ACTIVE", netdev="eth7"), Hca("mlx5_0", 1, "DOWN", netdev="eth8")),
        )
        for octet, sheet in ((1, HEAD), (2, SECOND))
    ]
    assert chosen(*made).hcas == ("mlx5_2",)


def test_all_nodes_take_the_same_subnet_whatever_the_order() -> None:
    third = replace(
        SECOND,
        node="spark-aaaa",
        interfaces=(Interface("enp1s0f0np0", True, 9000, None, True, (Address("192.168.201.14", 24),)),),
    )
    everyone = (HEAD, SECOND, third)
    found = [chosen(one, *(other for other in everyone if other is not one)) for one in everyone]
    assert [place.address for place in found] == ["192.168.201.12", "192.168.201.13", "192.168.201.14"]


def test_link_local_is_the_last_resort_and_public_none() -> None:
    def with_addresses(sheet: Sheet, *addresses: Address) -> Sheet:
        return replace(sheet, interfaces=(Interface("enp1s0f0np0", True, 9000, None, True, addresses),))

    one = with_addresses(HEAD, Address("169.254.1.1", 16), Address("192.168.7.1", 24))
    two = with_addresses(SECOND, Address("169.254.1.2", 16), Address("192.168.7.2", 24))
    assert chosen(one, two).address == "192.168.7.1"
    one = with_addresses(HEAD, Address("169.254.1.1", 16))
    two = with_addresses(SECOND, Address("169.254.1.2", 16))
    assert chosen(one, two).link_local
    one = with_addresses(HEAD, Address("8.8.8.1", 24))
    two = with_addresses(SECOND, Address("8.8.8.2", 24))
    assert isinstance(fabric_address(one, (two,)), Problem)


def test_an_interface_whose_name_begins_another_is_named_exactly() -> None:
    found = HEAD.interfaces or ()
    more = replace(HEAD, interfaces=(*found, Interface("enp1s0f0np0.100", True)))
    assert chosen(more, SECOND).nccl_interface == "=enp1s0f0np0"
    assert chosen(HEAD, SECOND).nccl_interface == "enp1s0f0np0"


def test_twins() -> None:
    groups = [[hca.name for hca in group] for group in twins(HEAD)]
    assert groups == [["roceP2p1s0f0", "rocep1s0f0"], ["roceP2p1s0f1", "rocep1s0f1"]]


def test_broken_addresses_are_no_crash() -> None:
    odd = (Address("not-an-address", 24), Address("192.168.1.1", None), Address("fe80::1", 64, "inet6", True))
    sheet = replace(HEAD, interfaces=(Interface("enp1s0f0np0", True, 9000, None, True, odd),))
    assert isinstance(fabric_address(sheet, (SECOND,)), Problem)
    empty = replace(HEAD, interfaces=None, fabric=None)
    assert isinstance(fabric_address(empty, (SECOND,)), Problem)


def test_a_rail_that_drops_full_frames_is_told_for_the_interface_that_is_taken() -> None:
    def told(interface: str) -> set[str]:
        ping = RailPing(interface, "192.168.200.13", 9000, "too_long", 1500)
        return {one.name for one in check(qwen35(), [replace(HEAD, rails=(ping,)), SECOND])}

    assert "fabric_blocked" in told("enp1s0f0np0")
    assert "fabric_blocked" not in told("enP2p1s0f0np0")
