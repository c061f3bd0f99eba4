"""Facts about the host and this interpreter that the launcher checks before it starts a process there."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import time
from typing import Any, Final

from hvd_elastic_ext.agent.devices import devices
from hvd_elastic_ext.io.process_tree import stat_of

PACKAGES: Final = ("horovod", "torch", "hvd-elastic-ext", "numpy")

_SIOCGIFADDR: Final = 0x8915


def versions() -> dict[str, str | None]:
    """Return the version of each package that training needs; None for one that is not installed.

    They are read from the names of the installers' metadata folders, because
    ``importlib.metadata`` alone takes longer to load than this whole agent.
    """
    found: dict[str, str | None] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 - pathlib takes long to load
        except OSError:
            continue
        for name in names:
            package, version = _distribution(name)
            if version is not None:
                found.setdefault(package, version)
    return {package: found.get(_plain(package)) or _slowly(package) for package in PACKAGES}


def _distribution(name: str) -> tuple[str, str | None]:
    for ending in (".dist-info", ".egg-info"):
        if name.endswith(ending):
            package, _, version = name.removesuffix(ending).partition("-")
            return _plain(package), version.partition("-")[0] or None
    return name, None


def _plain(package: str) -> str:
    return package.lower().replace("-", "_").replace(".", "_")


def _slowly(package: str) -> str | None:
    """Return the same in a slow way, for unusual installations and missing packages."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of each network interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # the interface has no IPv4 address
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def through(address: str, known: dict[str, str]) -> str | None:
    """Return which of the ``known`` interfaces a connection uses. ``address``: its local address."""
    for name, own in known.items():
        if own == address or (address.startswith("127.") and own.startswith("127.")):
            return name
    return None


def boot_s() -> float:
    """Seconds since this process was started, with the time for the interpreter and imports."""
    ticks = int(stat_of("self")[19])
    return round(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 3)


def of_code(wanted: bytes) -> dict[str, Any]:
    """Return the facts about the files that must be the same on all hosts, if the launcher names such files."""
    if not wanted:
        return {}
    from hvd_elastic_ext.io.code.checksum import looked_at

    return {"code": looked_at(wanted)}


def gather(address: str, *, resolved: tuple[str, ...], problem: str | None) -> dict[str, Any]:
    """Return all facts. ``resolved``: the addresses of this host's own name, or the ``problem`` with them."""
    known = interfaces()
    return {
        "python": sys.version.split()[0],
        "versions": versions(),
        "hostname": socket.gethostname(),
        "addresses": list(resolved),
        "resolving": problem,
        "interfaces": known,
        "via": through(address, known),
        "devices": devices(),
        "boot": boot_s(),
    }
