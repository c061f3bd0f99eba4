"""Where hosts find the launcher: real sockets on loopback addresses, of which Linux has sixteen million."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence

import pytest

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.agents.server import Control
from hvd_elastic_ext.launcher.driver.roster import Agent
from hvd_elastic_ext.launcher.job import addresses as module
from hvd_elastic_ext.launcher.job.addresses import LOOPBACK, Addresses, Route, route_to, there

ELSEWHERE = "127.0.0.77"
"""The address that other machines reach, for these tests."""
FACTS = {"interfaces": {"lo": LOOPBACK, "eth0": ELSEWHERE}, "via": "lo"}


@contextlib.asynccontextmanager
async def addresses(given: Sequence[str] = ()) -> AsyncIterator[Addresses]:
    control = Control("job", bytes(32), incarnation=1, on_event=lambda event: None)
    try:
        yield Addresses(control, given=given, rsh=None, versions={})
    finally:
        await control.stop()


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> contextlib.AbstractAsyncContextManager[Addresses]:
    """Hosts with names that begin with "far" are reached through another interface."""

    def way(host: str, *, given: Sequence[str] = (), local: bool = False) -> Route:
        return Route("eth0", ELSEWHERE) if host.startswith("far") else route_to(host, given=given, local=local)

    monkeypatch.setattr(module, "route_to", way)
    return addresses()


async def listens(address: str, port: int) -> bool:
    with socket.socket() as knocking:
        knocking.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(knocking, (address, port))
        except ConnectionRefusedError:
            return False
        return True


async def test_the_port_is_opened_to_others_when_the_first_of_them_is_started_and_to_nobody_else(
    reach: Addresses,
) -> None:
    await reach.begin("localhost")
    address, port = await reach.address("localhost")
    assert address == LOOPBACK
    assert await listens(LOOPBACK, port)
    assert not await listens(ELSEWHERE, port)
    assert await reach.address("far") == (ELSEWHERE, port)
    assert await listens(LOOPBACK, port)
    assert await listens(ELSEWHERE, port)
    assert not await listens("127.0.0.78", port)


async def test_a_port_that_is_taken_elsewhere_becomes_another_one_there(reach: Addresses) -> None:
    await reach.begin("localhost")
    _, port = await reach.address("localhost")
    with socket.create_server((ELSEWHERE, port)):
        address, other = await reach.address("far")
    assert (address, other) != (ELSEWHERE, port)
    assert await listens(ELSEWHERE, other)
    assert await reach.address("far2") == (ELSEWHERE, other)


async def test_an_address_that_is_gone_is_an_error_of_that_host(reach: Addresses) -> None:
    await reach.begin("localhost")
    with pytest.raises(OSError, match=r"."):
        reach._control.listen("192.0.2.1")


async def test_local_processes_use_another_interface_while_there_are_hosts_elsewhere(reach: Addresses) -> None:
    await reach.begin("localhost")
    await reach.address("localhost")
    assert not reach.see(["localhost"])
    assert reach.environment("localhost", FACTS) == {"HOROVOD_GLOO_IFACE": "lo"}
    await reach.address("far")
    assert reach.see(["localhost", "far"])
    assert not reach.see(["localhost", "far"])
    assert reach.environment("localhost", FACTS) == {"HOROVOD_GLOO_IFACE": "eth0"}
    assert reach.environment("far", {"via": "ens3"}) == {"HOROVOD_GLOO_IFACE": "ens3"}
    assert reach.see(["localhost"])
    assert reach.environment("localhost", FACTS) == {"HOROVOD_GLOO_IFACE": "lo"}


async def test_an_interface_outwards_stays_while_somebody_is_reached_through_it(reach: Addresses) -> None:
    for host in ("localhost", "far", "farther"):
        await (reach.begin if host == "localhost" else reach.address)(host)
    assert reach.see(["localhost", "farther"])
    assert not reach.see(["far", "localhost", "farther"])
    assert not reach.see(["far", "localhost"])  # both are reached through the same interface
    assert reach.outward == "eth0"


async def test_a_host_that_was_tried_and_has_not_come_changes_nothing_for_this_machine(reach: Addresses) -> None:
    here = {"hostname": "me", "addresses": ["127.0.1.1"], **FACTS}
    await reach.begin("far")  # the first one of the list is tried first
    await reach.address("far")
    await reach.address("localhost")
    assert reach.unfit("localhost", {"localhost": here}) is None
    assert not reach.see(["localhost"])
    assert reach.environment("localhost", here) == {"HOROVOD_GLOO_IFACE": "lo"}


async def test_this_machines_name_may_lead_to_loopback_until_there_are_others(reach: Addresses) -> None:
    here = {"hostname": "me", "addresses": ["127.0.1.1"]}
    other = {"hostname": "far", "addresses": ["10.0.0.2"]}
    await reach.begin("localhost")
    await reach.address("localhost")
    assert reach.unfit("localhost", {"localhost": here}) is None
    await reach.address("far")
    found = reach.unfit("far", {"localhost": here, "far": other})
    assert found is not None
    assert found.startswith("the launcher's own machine cannot work with others: its own name 'me' leads to")
    assert reach.unfit("localhost", {"localhost": here}) is None  # it was left out, and is about to leave
    assert reach.unfit("far", {"far": other}) is None
    late = reach.unfit("localhost", {"localhost": here, "far": other})
    assert late is not None
    assert late.startswith("its own name 'me' leads to 127.0.1.1")


def test_who_is_there_has_come_and_was_not_told_to_go() -> None:
    on_its_way, in_it, lost, going = (Agent(Host(name, 1), 0.0) for name in ("a", "b", "c", "d"))
    for agent in (in_it, lost, going):
        agent.last_message_at, agent.joined, agent.facts = 5.0, agent is not lost, {"hostname": agent.host.name}
    going.finishing = True
    assert there([on_its_way, in_it, lost, going]) == {"b": {"hostname": "b"}, "c": {"hostname": "c"}}


async def test_an_interface_that_was_named_and_is_not_there_is_one_line() -> None:
    async with addresses(given=["nic9"]) as reach:
        with pytest.raises(JobFailed, match=r"nic9 has no IPv4 address here.*lo"):
            await reach.begin("localhost")


def test_the_way_to_a_loopback_name_or_to_any_name_under_rsh_local_is_loopback() -> None:
    assert route_to("127.0.0.5") == ("lo", LOOPBACK)
    assert route_to("no-such-host.invalid", local=True) == ("lo", LOOPBACK)
