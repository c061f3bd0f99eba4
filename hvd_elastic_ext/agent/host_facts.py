# ruff: noqa: PTH118, PTH123, PTH208 - pathlib takes long to load
"""Facts about the host and this interpreter that the launcher checks before it starts a process there.

All are found without the libraries that are made for it: an agent starts in milliseconds, and those load slowly or, for
devices, would occupy one.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.io.process_tree import stat_of

PACKAGES: Final = ("horovod", "torch", "hvd-elastic-ext", "numpy")

_SIOCGIFADDR: Final = 0x8915


def versions() -> dict[str, str | None]:
    """Return the version of each package that training needs; None for one that is not installed.

    They are read from the names of the installers' metadata folders, because
    ``importlib.metadata`` alone takes longer to load than this whole agent.
    """
    by_package: dict[str, str | None] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            package, version = _distribution(name)
            if version is not None:
                by_package.setdefault(package, version)
    return {package: by_package.get(_plain(package)) or _slowly(package) for package in PACKAGES}


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
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # the interface has no IPv4 address
                continue
            addresses[name] = socket.inet_ntoa(answer[20:24])
    return addresses


def through(address: str, by_interface: dict[str, str]) -> str | None:
    """Return the interface that a connection uses, of those whose addresses are known. ``address``: its local one."""
    for name, own in by_interface.items():
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
    by_interface = interfaces()
    return {
        "python": sys.version.split()[0],
        "versions": versions(),
        "hostname": socket.gethostname(),
        "addresses": list(resolved),
        "resolving": problem,
        "interfaces": by_interface,
        "via": through(address, by_interface),
        "devices": devices(),
        "boot": boot_s(),
    }


# --- devices ---------------------------------------------------------------------------------------------


GIVEN: Final = ("HVD_ELASTIC_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Variables that name the devices. The first one that is set counts."""
LONGEST: Final = 4096
"""Most characters of such a value. A longer one is not a list of one host's devices."""

_GPUS: Final = "proc/driver/nvidia/gpus"


def devices(environ: Mapping[str, str] = os.environ, *, root: str = "/") -> str:
    """Name this host's devices as ``CUDA_VISIBLE_DEVICES`` does, in CUDA's order; empty if there are none."""
    given = next((environ[name] for name in GIVEN if name in environ), None)
    text = ",".join(_found(environ, root)) if given is None else given
    return text if len(text) <= LONGEST else ""


def _found(environ: Mapping[str, str], root: str) -> list[str]:
    names = _listdir(os.path.join(root, "dev"))
    nodes = {name for name in names if name.startswith("nvidia") and name.removeprefix("nvidia").isdigit()}
    gpus = [gpu for gpu in _described(root) if f"nvidia{gpu.get('Device Minor')}" in nodes]
    ids = [gpu.get("GPU UUID", "") for gpu in gpus]
    alike = len({gpu.get("Model") for gpu in gpus}) == 1 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    # Device numbers change when a device fails, so UUIDs are better. But CUDA sorts devices
    # of different models in its own order, and only numbers follow that order.
    if alike and len(ids) == len(nodes) and all(name.startswith("GPU-") and "?" not in name for name in ids):
        return ids
    return [str(number) for number in range(len(nodes))]


def _described(root: str) -> list[dict[str, str]]:
    """The driver's data for each device, sorted by bus address, which is CUDA's order for devices of one model."""
    folder = os.path.join(root, _GPUS)
    gpus = []
    for name in sorted(_listdir(folder)):
        try:
            with open(os.path.join(folder, name, "information"), encoding="utf-8", errors="replace") as file:
                pairs = [line.partition(":") for line in file]
        except OSError:
            continue
        gpus.append({key.strip(): value.strip() for key, _, value in pairs})
    return gpus


def _listdir(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
