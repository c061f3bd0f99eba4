"""Which seats should have a process: slots of published hosts, without blocked and departing hosts and surplus slots.

If there are more than the largest world takes, some hosts are preferred: to prefer others, such as the cheapest, change
``preference`` in :func:`seats`. :func:`check_start` ends a job that cannot start anywhere, with the reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.departures import notices
from hvd_elastic_ext.launcher.driver.actions import NOTHING
from hvd_elastic_ext.launcher.health import strikes
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.loopless import why_unjoined_failed
from hvd_elastic_ext.launcher.membership import spares
from hvd_elastic_ext.launcher.membership.host_list import follow_slots
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.health.ledger import HealthLedger, HealthRecord
    from hvd_elastic_ext.launcher.membership.world_change import WorldLimits

log = logging.getLogger(__name__)


@lru_cache(maxsize=1 << 16)
def _seats(host: str, slots: tuple[int, ...]) -> tuple[Seat, ...]:
    """The seats of one host. They are the same objects for each list, because they are keys of many tables."""
    return tuple([Seat(host, slot) for slot in slots])


def seats(
    hosts: Sequence[tuple[Host, Sequence[int]]],
    limits: WorldLimits,
    taken: Callable[[], Mapping[Seat, Stage]] = dict,
    holders: Callable[[], frozenset[str]] = frozenset,
) -> tuple[Seat, ...]:
    """Seats that should be filled; ``hosts``: most senior first, with their usable slots.

    As many as the largest world may have. Of more seats the ``taken`` ones come first, the most advanced before the
    others, so a host that comes back does not replace its replacement. While no process trains, the ``holders`` of the
    newest commit come first. Below the smallest world all seats are wanted. ``taken`` and ``holders`` are called only
    if there are more seats.
    """
    every = tuple([seat for host, slots in hosts for seat in _seats(host.name, tuple(slots))])
    size = limits.size(len(every), begun=True)
    if not size or size == len(every):
        return every
    stages = taken()
    needed = frozenset() if Stage.LIVE in stages.values() else holders()

    def preference(offer: tuple[Host, Seat]) -> tuple[bool, int]:
        """The lowest value is chosen first; of equal ones, the most senior seat."""
        host, seat = offer
        return host.name not in needed, spares.NEARNESS[stages.get(seat)]

    first = sorted(((host, Seat(host.name, slot)) for host, slots in hosts for slot in slots), key=preference)
    chosen = frozenset(seat for _, seat in first[:size])
    return tuple(seat for seat in every if seat in chosen)


# --- may the job start at all?


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


# --- planner


SEPARATE: Final = (
    "no process asked for a world: {} programs have run, each by itself. If the script trains, each of them has "
    "trained a model of its own: call hvd.init() or elastic.init(); train in a function with @elastic.run if "
    "hvd_elastic_ext.torch is imported; or give --engine torchrun to a script that torchrun runs"
)
REFUSED: Final = ": exit code 2"
"""The end of a process whose script does not know an option: ``argparse``, and most programs, exit like that."""


def plan(job: JobState) -> Plan:
    """Find the wanted seats, and among the others those of spares."""
    usable, with_notice = _usable(job), notices.by_agents(job)
    go = with_notice.keys() | job.scaling.leaving
    staying = [(host, slots) for host, slots in usable if host.name not in go] if go else usable
    follow_slots(job, staying)
    spares.end_misplaced(job)
    job.wanted = seats(
        spares.offers(job, staying), job.options.limits, job.roster.taken, job.roster.commits.newest_hosts
    )
    spares.find(job, staying)
    return NOTHING


def check_start(job: JobState) -> Plan:
    """Before the first world: end the job if programs that do not need a world are done, or if no process can start."""
    if job.world.begun or job.world.members:
        return NOTHING
    wanted, hosts = job.wanted, job.fleet.hosts
    if wanted and job.loopless.done_unjoined >= set(wanted):
        every = job.options.limits.size(hosts.slots, begun=True)
        job.fail(_unjoined_failed(job, wanted=every))
        job.outcome.finishing = job.outcome.failure is None
        if job.outcome.finishing and len(wanted) > 1:
            log.warning("%s", SEPARATE.format(len(wanted)))
    elif wanted or notices.by_agents(job) or job.faults.first is None or not hosts:
        return NOTHING
    elif not (job.options.woken or job.has_trained):  # such a job sleeps on, or waits for hosts
        why = why_cannot_start(job.now, hosts.hosts, job.faults.ledger, fixed=job.options.fixed_hosts)
        if why is not None:
            hint = job.options.misplaced if job.faults.first.endswith(REFUSED) else None
            job.fail(
                JobFailed("; ".join(filter(None, (f"no process started training: {job.faults.first}", why, hint))))
            )
    return NOTHING


def _usable(job: JobState) -> list[tuple[Host, tuple[int, ...]]]:
    """Each host's slots that may work.

    Once training has begun, and if no slot is left, the block of one host is ended.
    """
    if (again := strikes.lift_one_block(job)) is not None:
        strikes.note_lifted(job, again)
    return job.faults.usable(job.fleet.hosts, job.now)


def _unjoined_failed(job: JobState, *, wanted: int) -> JobFailed | None:
    """Why a program that does not need a world has failed on the published hosts; None if it has not. ``wanted``: the
    number of processes that have to end well.
    """
    hosts = set(job.fleet.hosts.names)
    why = why_unjoined_failed(
        [end for seat, end in job.loopless.never_joined.items() if seat.host in hosts], wanted=wanted
    )
    return None if why is None else JobFailed(why)
