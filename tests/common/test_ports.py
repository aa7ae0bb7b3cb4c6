"""Addresses that others can use."""

from __future__ import annotations

import socket

import pytest

from common.ports import ANYWHERE, address_of, own_address, reachable_host


@pytest.mark.parametrize("bound", sorted(ANYWHERE))
def test_who_listens_everywhere_is_reached_at_an_address_of_this_machine(bound: str) -> None:
    """0.0.0.0 in a discovery would send Prometheus to itself."""
    host = reachable_host(bound)
    assert host not in ANYWHERE
    with socket.create_server((host, 0)) as listening, socket.create_connection(listening.getsockname(), timeout=5):
        pass


def test_one_address_is_kept_as_it_is() -> None:
    """Whoever binds to the loopback does not want to be reached from elsewhere."""
    assert reachable_host("127.0.0.1") == "127.0.0.1"


def test_addresses_are_written_as_urls_have_them() -> None:
    """An IPv6 address is full of colons, so it is put in brackets."""
    assert (address_of("10.0.0.1", 9100), address_of("::1", 9100)) == ("10.0.0.1:9100", "[::1]:9100")


def test_a_machine_without_a_route_goes_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a network namespace without a route there is no address to be seen."""
    monkeypatch.setattr("common.ports.ELSEWHERE", ("255.255.255.255", 9))  # refused by the kernel: no broadcasts
    assert own_address() == socket.gethostname()
