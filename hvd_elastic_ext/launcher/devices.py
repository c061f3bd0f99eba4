"""Which device a slot has, and which local rank. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Seating(NamedTuple):
    """``device`` is None where the host names no devices: its processes then choose by local rank."""

    local_rank: int
    device: str | None


def device_map(slots_on_host: int, bad_slots: Collection[int], devices: Sequence[str] = ()) -> dict[int, Seating]:
    """Give each good slot of a host its local rank and its device.

    A slot keeps its number and its device for good: ``devices[i]`` (an entry of
    ``CUDA_VISIBLE_DEVICES``, say) belongs to slot ``i`` whichever others are
    missing. Local ranks are dense over the good slots, as Gloo demands. A new
    process is shown only its own device; one that runs keeps what it has.

    Raises ``ValueError`` if there are devices, but fewer than slots.
    """
    if devices and len(devices) < slots_on_host:
        raise ValueError(f"{slots_on_host} slots and only {len(devices)} devices; every slot needs one of its own")
    good = [slot for slot in range(slots_on_host) if slot not in bad_slots]
    return {slot: Seating(rank, devices[slot] if devices else None) for rank, slot in enumerate(good)}
