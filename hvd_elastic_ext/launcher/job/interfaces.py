"""This machine's network interfaces: whether a name is its own, and the route to other hosts."""

from __future__ import annotations

import ipaddress
import socket

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
