# ruff: noqa: PTH118, PTH123, PTH208 - pathlib takes long to load
"""Finds this host's devices for training without a library, which would be slow and would occupy a device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

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
    found = []
    for name in sorted(_listdir(folder)):
        try:
            with open(os.path.join(folder, name, "information"), encoding="utf-8", errors="replace") as file:
                pairs = [line.partition(":") for line in file]
        except OSError:
            continue
        found.append({key.strip(): value.strip() for key, _, value in pairs})
    return found


def _listdir(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
