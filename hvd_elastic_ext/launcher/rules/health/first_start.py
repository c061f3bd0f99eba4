"""Whether a job without a world may still start while all of its hosts are blocked. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, HealthRecord

_UNKNOWN_NAME: Final = re.compile(
    r"could not resolve hostname .*(not known|does not resolve|no address associated|nodename nor servname)",
    re.IGNORECASE,
)
"""ssh's messages for a name that no name server knows; they depend on the C library. If a name server is down, ssh
prints other messages.
"""
_NO_SSH: Final = "ssh: No such file"
"""The program ssh is missing."""


def why_cannot_start(now: float, hosts: Sequence[Host], ledger: HealthLedger, *, fixed: bool) -> str | None:
    """Why no process can ever start on ``hosts``, all of which are blocked; None if one may start later.

    Empty if the faults are the reason: errors of the script repeat. A host that cannot be reached, or whose processes
    were silent, is tried again after its cooldown. ``fixed``: no other host is ever published, so a name that does not
    resolve is an error.
    """
    by_hand = [host for host in hosts if any(ledger.records[each].held_back(now) for each in ledger.subjects(host))]
    if any(_is_silent(now, host, ledger) for host in hosts):
        return None  # a busy machine, not the script
    out = [_unreachable(now, host, ledger) for host in hosts if host not in by_hand]
    if by_hand and all(out):
        return None  # it may be cleared
    if not all(out):
        return ""
    if all(record is not None and record.detail.startswith(_NO_SSH) for record in out):
        return "install ssh on this machine"
    if not fixed or not all(record is not None and _UNKNOWN_NAME.search(record.detail) for record in out):
        return None
    names = ", ".join(host.name for host in hosts)
    return f"no name server knows {names}, and no other host can come: correct the name in -H or in the hostfile"


def _unreachable(now: float, host: Host, ledger: HealthLedger) -> HealthRecord | None:
    """The record that blocks the whole host because it cannot be reached."""
    found = (ledger.records[subject] for subject in ledger.subjects(host) if subject.kind in ("host", "pod"))
    return next((record for record in found if record.in_cooldown(now) and record.cause is Cause.UNREACHABLE), None)


def _is_silent(now: float, host: Host, ledger: HealthLedger) -> bool:
    """Whether it is blocked because processes there were silent."""
    found = (ledger.records[subject] for subject in ledger.records if subject.concerns(host, subject.slot))
    return any(record.in_cooldown(now) and record.cause is Cause.SILENT for record in found)
