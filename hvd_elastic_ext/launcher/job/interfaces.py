"""This machine's network interfaces: whether a name is its own, and the way to other hosts."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import psutil


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


def interface_towards(hosts: Sequence[str]) -> str | None:
    """Name the interface through which ``hosts`` are reached, or None if nothing can be said.

    The loopback interface when every host is a loopback name; else the one that
    the route to the first other resolvable host leaves through. No packet is
    sent: connecting a datagram socket only asks the kernel for the route.
    """
    by_address = {address: name for name, address in interface_addresses().items()}
    loopback = None
    for host in hosts:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 9))
                own = probe.getsockname()[0]
        except OSError:
            continue
        if not ipaddress.ip_address(own).is_loopback:
            return by_address.get(own)
        # A loopback route to one of this machine's own outer addresses is still that interface's.
        address = socket.gethostbyname(host)
        if not ipaddress.ip_address(address).is_loopback:
            return by_address.get(address)
        loopback = by_address.get("127.0.0.1")
    return loopback
