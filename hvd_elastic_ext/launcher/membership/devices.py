"""The device of a slot, the local rank of its process, and the order of the host's devices that the process sees. Pure.

The ``i``-th device belongs to slot ``i``, whichever others are missing. Scripts choose a device by local rank
(``torch.cuda.set_device(hvd.local_rank())``), and local ranks have no gaps. So each *new* process sees the devices in
such an order that the one at its local rank belongs to its slot. A running process keeps device and local rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.messages.slot_protocol import DEVICE
from hvd_elastic_ext.launcher.membership.rendezvous import slot_number

DEVICES: Final = "HVD_ELASTIC_DEVICES"
"""Names a host's devices, as ``CUDA_VISIBLE_DEVICES`` does, and overrides what its agent finds; empty: no devices."""
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class StartedWith(NamedTuple):
    """What a process has chosen its device by. Its agent keeps it as a note, for the next launcher."""

    local_rank: int
    slot: int | None
    """The slot whose device it has: its own, or that for which a spare stands. None: unknown."""

    def note(self) -> str:
        """What its agent keeps."""
        return f"{self.local_rank}/{self.slot}"


def noted(note: str) -> StartedWith | None:
    """Read :meth:`StartedWith.note`; None for other text. Earlier launchers noted no slot: there it is unknown."""
    rank, given, number = note.partition("/")
    local_rank, slot = slot_number(rank), slot_number(number) if given else None
    return None if local_rank is None or (given and slot is None) else StartedWith(local_rank, slot)


def local_ranks(slots: Iterable[int], living: Mapping[int, int]) -> dict[int, int]:
    """Give each of a host's ``slots`` in use the local rank that its process starts with.

    ``living``: by slot, those of processes that live; they keep theirs. Any
    other slot gets its own number if that is free and dense, else the lowest one that is.
    """
    wanted = list(slots)
    found = {slot: living[slot] for slot in wanted if slot in living}
    free = dict.fromkeys(number for number in range(len(wanted)) if number not in set(found.values()))
    for slot in wanted:
        if slot not in found and slot in free:
            del free[slot]
            found[slot] = slot
    for slot in wanted:
        if slot not in found:
            found[slot] = next(iter(free))
            del free[found[slot]]
    return found


def devices_of(env: Mapping[str, str], facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Devices of a host: those that the processes' environment names, else those that its agent found. Empty if there
    are none, or if one name occurs twice (CUDA does not take a device twice).
    """
    names = named(str(env.get(DEVICES, env.get(VISIBLE, facts.get("devices", "")))))
    return names if len(set(names)) == len(names) else ()


def named(text: str) -> tuple[str, ...]:
    """Read a list of devices. Entries after the first invalid one are ignored, as CUDA does."""
    names: list[str] = []
    for entry in map(str.strip, text.split(",")):
        if not entry or entry.startswith("-") or entry == "NoDevFiles":
            break
        names.append(entry)
    return tuple(names)


def shown(
    devices: Sequence[str], slot: int, *, local_ranks: Mapping[int, int], blocked: Collection[int]
) -> tuple[str, ...]:
    """Order the devices for a new process of ``slot``: the one at its local rank belongs to its slot.

    ``local_ranks``: of all used slots of the host; their devices are at these places, if possible. Devices of
    ``blocked`` slots are left out: a broken one can keep CUDA from starting.
    """
    good = [device for number, device in enumerate(devices) if number not in blocked or number == slot]
    places: list[str | None] = [None] * len(good)
    for each, rank in sorted(local_ranks.items(), key=lambda item: item[0] != slot):
        if each not in blocked and rank < len(places) and places[rank] is None:
            places[rank] = devices[each]
    rest = iter([device for device in good if device not in places])
    return tuple(next(rest) if device is None else device for device in places)


def device_env(
    env: Mapping[str, str],
    facts: Mapping[str, Any],
    *,
    slot: int,
    slots: int,
    local_ranks: Mapping[int, int],
    blocked: Collection[int],
) -> dict[str, str]:
    """The environment of a new process of ``slot``, one of a host's ``slots``, for devices; empty if there are too few.

    ``env``: its other environment; ``facts``: the report of its host's agent. The list of visible devices is set only
    if it differs from the usual one.
    """
    devices = devices_of(env, facts)
    if len(devices) < max(slots, slot + 1):
        return {}
    order = shown(devices, slot, local_ranks=local_ranks, blocked=blocked)
    variables = {DEVICE: devices[slot]}
    return variables if order == devices and DEVICES not in env else {**variables, VISIBLE: ",".join(order)}
