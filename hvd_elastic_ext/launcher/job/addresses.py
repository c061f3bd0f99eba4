"""On which address of this machine a host finds the launcher, and by which interface it finds its peers.

The launcher listens only where agents connect: on loopback until the first host elsewhere is started, and on the same
port everywhere if it is free. Processes change the interface they use only when such a host has connected: one that
cannot be reached changes nothing.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

from hvd_elastic_ext.core.engines import DEFAULT, ENGINES
from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.io.threads.background_calls import BackgroundCalls
from hvd_elastic_ext.launcher.agents.environment import interface_of, unfit

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.agents.server import Control
    from hvd_elastic_ext.launcher.driver.roster import Agent


LOOPBACK: Final = "127.0.0.1"
ANYWHERE: Final = "192.0.2.1"
"""Any host elsewhere (RFC 5737), for the route to a host with a name that only ssh understands."""
PACKAGES: Final = ("horovod", "torch", "hvd-elastic-ext")
"""Must be of the same version on all hosts."""
HOROVOD: Final = PACKAGES[0]


class Route(NamedTuple):
    """An interface of this machine (None if it is not known) and its address."""

    interface: str | None
    address: str


class Addresses:
    """See the module's docstring. ``given``: ``--network-interfaces``; ``rsh``: ``--rsh``.

    ``versions``: what hosts must have, by package; ``code``: the checksum of the code that they must have, if any.
    """

    def __init__(
        self,
        control: Control,
        *,
        given: Sequence[str],
        rsh: str | None,
        versions: Mapping[str, str | None],
        code: str = "",
    ) -> None:
        self._control = control
        self._given = tuple(given)
        self._rsh = rsh
        self._versions = versions
        self._code = code
        self._near: dict[str, bool] = {}
        self._outward: dict[str, str | None] = {}
        """By host that does not come in over loopback, the interface through which it is reached."""
        self.outward: str | None = None
        """Interface through which hosts elsewhere are reached, while there are some."""
        self._inward: str | None = None
        self._lookups = BackgroundCalls()

    async def begin(self, first: str) -> None:
        """Listen at the address for the host ``first``. Raises ``JobFailed`` if no given interface exists."""
        own = interface_addresses()
        if self._given and not any(name in own for name in self._given):
            raise JobFailed(
                f"network interface: {self._given[0]} has no IPv4 address here; name one that every host has "
                f"with --network-interfaces (this machine has: {', '.join(sorted(own))})"
            )
        await self._control.start((await self._route(first)).address)

    async def address(self, host: str) -> tuple[str, int]:
        """Where ``host`` is to connect to; listened on from now on. Raises ``OSError`` if that cannot be."""
        route = await self._route(host)
        return route.address, self._control.listen(route.address)

    def is_near(self, host: str) -> bool:
        """Whether a host is this machine, as its name said when it was last asked for its address."""
        return self._near.get(host, False)

    def see(self, there: Iterable[str]) -> bool:
        """Note which hosts are present: see :func:`there`. True if this changes :meth:`environment`."""
        before, used = self.outward, [self._outward[host] for host in there if host in self._outward]
        if self.outward not in used:
            self.outward = used[0] if used else None
        return self.outward != before

    def environment(self, host: str, facts: Mapping[str, Any]) -> dict[str, str]:
        """What processes of ``host`` need to find their peers. See :meth:`see`."""
        outward = self.outward or self._inward
        name = interface_of(facts, here=self.is_near(host), outward=outward, given=self._given)
        return {} if name is None else {"HOROVOD_GLOO_IFACE": name}

    def peer_address(self, host: str, facts: Mapping[str, Any]) -> str:
        """The address at which agents of other hosts reach that of ``host``: on the interface that processes use."""
        name = self.environment(host, facts).get("HOROVOD_GLOO_IFACE") or facts.get("via")
        known = facts.get("interfaces")
        return str(known[name]) if isinstance(known, dict) and name in known else LOOPBACK

    def unfit(self, host: str, facts: Mapping[str, Mapping[str, Any]]) -> str | None:
        """Why ``host`` cannot take part, and what to do about it; None if it can. ``facts``: of all hosts."""
        # If all came in over loopback, all are this machine.
        on_one_machine = not any(name in self._outward for name in facts)
        problem = unfit(facts.get(host, {}), self._versions, on_one_machine=on_one_machine, code=self._code)
        if problem is not None or self.is_near(host):
            return problem
        # A name that leads to loopback does harm as soon as there are other machines.
        ours = (unfit(each, {}, on_one_machine=on_one_machine) for name, each in facts.items() if self.is_near(name))
        found = next(filter(None, ours), None)
        return None if found is None else f"the launcher's own machine cannot work with others: {found}"

    async def _route(self, host: str) -> Route:
        route, named_here = await self._lookups.call(functools.partial(self._look_up, host))
        self._near[host] = self._rsh == "local" or named_here
        if route.address == LOOPBACK:
            self._outward.pop(host, None)
            self._inward = route.interface
        else:
            self._outward[host] = route.interface
        return route

    def _look_up(self, host: str) -> tuple[Route, bool]:
        """The route, and whether the name is this machine's. Takes as long as the resolver does."""
        route = route_to(host, given=self._given, local=self._rsh == "local")
        return route, self._rsh is None and is_this_machine(host)


def there(agents: Iterable[Agent]) -> dict[str, Mapping[str, Any]]:
    """Facts by host, of agents that have connected and do not finish; a connection may be lost at present. Pure."""
    return {agent.host.name: agent.facts for agent in agents if agent.last_message_at and not agent.finishing}


def versions_here(engine: str = DEFAULT) -> dict[str, str | None]:
    """The version that each of :data:`PACKAGES` has on this machine; None where it is absent.

    Without Horovod where another engine forms worlds: hosts may or may not have it.
    """
    return {package: _version(package) for package in PACKAGES if package != HOROVOD or ENGINES[engine].needs_horovod}


def route_to(host: str, *, given: Sequence[str] = (), local: bool = False) -> Route:
    """The route to ``host``, through a given interface if one is there. ``local``: every host is this machine."""
    own = interface_addresses()
    name = next((name for name in given if name in own), None)
    if name is None:
        name = interface_towards(LOOPBACK if local else host) or interface_towards(ANYWHERE)
    return Route(name, own.get(name or "", LOOPBACK))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# --- interfaces of this machine


def is_this_machine(host: str) -> bool:
    """True for a name or address of this machine, all of 127.0.0.0/8 included; False if it does not resolve."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return False
    return ipaddress.ip_address(address).is_loopback or address in interface_addresses().values()


def interface_addresses() -> dict[str, str]:
    """IPv4 address of each network interface that has one."""
    return {
        name: entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    }


def interface_towards(host: str) -> str | None:
    """Name the interface that the route to ``host`` leaves through; None if it is unknown.

    No packet is sent: connecting a datagram socket only asks the kernel for the route.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            own = probe.getsockname()[0]
        if ipaddress.ip_address(own).is_loopback:
            # The route to one of this machine's own outer addresses is loopback, too, and means that interface.
            own = socket.gethostbyname(host)
    except OSError:
        return None
    if ipaddress.ip_address(own).is_loopback:
        own = "127.0.0.1"
    return {address: name for name, address in interface_addresses().items()}.get(own)
