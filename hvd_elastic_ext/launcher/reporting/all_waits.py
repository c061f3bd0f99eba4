"""What a job waits for, before it trains and while it trains: the table of all waits, their lines and the status line.

Each wait is a function beside its capability. It decides nothing. Lines come at the pace of
:mod:`hvd_elastic_ext.core.pace`; ``--wait-lines`` changes how rare they become if training does not wait for their
subject. The status line of a terminal and ``hvd-elastic status`` show all waits at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from hvd_elastic_ext.core.events import MAX_SHARES
from hvd_elastic_ext.core.pace import WAIT, Lines
from hvd_elastic_ext.launcher.checkpoints import save_then_stop
from hvd_elastic_ext.launcher.custody import custody
from hvd_elastic_ext.launcher.departures import clean_exits, shutdown
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.driver.words import SOON_S, Wait, first_few, line, log_wait
from hvd_elastic_ext.launcher.health import ends, link_loss, pace, silence, strikes
from hvd_elastic_ext.launcher.health.pace import next_line_hint
from hvd_elastic_ext.launcher.membership import (
    adoption,
    calls,
    forming,
    host_list,
    in_place_or_restarted,
    processes,
    reports,
    shortage,
    spares,
)
from hvd_elastic_ext.launcher.membership.processes import starting

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.health.host_requests import Starting

log = logging.getLogger(__name__)


Waits: TypeAlias = "Callable[[JobState], Wait | None]"
"""What the job waits for there; None if for nothing."""


class While(NamedTuple):
    """While ``holds``, only ``waits`` are asked, and no later row."""

    holds: Callable[[JobState], bool]
    waits: tuple[Waits, ...]


WAITS: Final[tuple[Waits | While, ...]] = (
    While(lambda job: job.ending, (save_then_stop.waits_at_the_end, shutdown.waits_for_scripts, shutdown.waits)),
    While(lambda job: job.before_exit.why is not None, (save_then_stop.waits_before_exit,)),
    While(lambda job: job.adoption.until is not None, (adoption.waits,)),
    link_loss.waits,
    custody.waits,
    ends.waits,  # processes with an error that have not ended
    in_place_or_restarted.waits,  # a world ends so that the next one can begin
    clean_exits.waits,
    While(
        lambda job: not job.standing,
        (save_then_stop.waits_before_sleep, processes.waits, save_then_stop.waits_to_sleep, shortage.waits),
    ),
    While(lambda job: not job.formed, (shutdown.waits_for_scripts, forming.waits_to_form)),
    silence.waits,
    save_then_stop.waits_after_last_checkpoint,
    shutdown.waits_for_scripts,
    forming.waits_for_first_step,
)
"""All that a job can wait for, in this order: the first row that finds something counts.

Another wait is a function beside its capability, and a row here.
"""


def status(job: JobState) -> str:
    """What the job does at this moment, in one short line for a terminal."""
    wait = waits_for(job, brief=False)
    if wait is not None:
        return line(wait, job.now)
    members = job.roster.present(job.world.members)
    parts = [f"world {job.generation}", f"size {len(members)}", *calls.in_progress(members)]
    if step := max((worker.step for worker in members), default=0):
        parts.append(f"step {step}")
    times = [worker.step_s for worker in members if worker.step_s]
    if (pause := pace.pause_of(job)) is not None:
        parts.append(f"{pause.text}; {pace.what_follows(job, pause)}")
    elif times:
        parts.append(f"{1 / max(times):.3g} steps/s")
    if shares := reports.shares(job):
        parts.append(f"share of each rank: {_percentages([share for _, share in sorted(shares.items())])}")
    if job.world.trains_alone is not None:
        parts.append("EACH RANK TRAINS ALONE (`hvd-elastic events` says why)")
    parts += calls.lines(job)
    if newcomers := {host: one for host, one in starting(job, job.now).items() if not one.outside}:
        parts.append(f"starting: {first_few([f'{host} ({one.brief})' for host, one in newcomers.items()])}")
    if any(counts := spares.counted(job)):
        parts.append(f"spares: {counts}")
    if (wanted := job.scaling.wanted) is not None and wanted != len({life.seat.host for life in job.world.members}):
        parts.append(f"hosts asked for: {wanted}")
    if blocked := [*strikes.blocked(job), *strikes.blocked_spares(job)]:
        parts.append(f"blocked: {first_few(blocked)}")
    if needed := host_list.needed_unlisted(job):
        parts.append(f"not listed, but needed until another host can take its place: {first_few(needed)}")
    if refused := host_list.list_refused(job):
        parts.append(refused)
    if job.scaling.reason:
        parts.append(f"autoscale: {job.scaling.reason}")
    return ", ".join(parts)


def _percentages(shares: Sequence[float]) -> str:
    return " ".join(f"{100 * share:.3g}%" for share in shares[:MAX_SHARES]) + " …" * (len(shares) > MAX_SHARES)


def waits_for(job: JobState, *, brief: bool = True) -> Wait | None:
    """What the job waits for; None if it trains, or waits for nothing. ``brief``: as in :func:`strikes.blocked`."""
    wait = _first(job, WAITS)
    return wait if brief or wait is None or not wait.in_full else wait._replace(what=wait.in_full)


def _first(job: JobState, rows: Sequence[Waits | While]) -> Wait | None:
    for row in rows:
        if not isinstance(row, While):
            if (wait := row(job)) is not None:
                return wait
        elif row.holds(job):
            return _first(job, row.waits)
    return None


def slow_starts(job: JobState) -> dict[str, Starting]:
    """Of :func:`starting`, what takes :data:`SOON_S` or more while the job trains. Cheap if there is none."""
    roster = job.roster
    if len(roster.workers) <= len(job.world.members) and all(agent.last_message_at for agent in roster.agents.values()):
        return {}
    return {host: one for host, one in starting(job, job.now).items() if one.since_s >= SOON_S}


def lacking(job: JobState) -> list[str]:
    """What a job that trains lacks of its listed hosts, and until when."""
    found = []
    if refused := host_list.list_refused(job):
        found.append(f"{refused}; the hosts before it are kept until it is corrected")
    if blocked := [*strikes.blocked(job, brief=True, for_good=False), *strikes.blocked_spares(job, brief=True)]:
        found.append(f"blocked: {first_few(blocked)}")
    return found


def plan(job: JobState) -> Plan:
    """Log the wait that the last look has left, at its pace."""
    wait = waits_for(job)
    if wait is None:
        job.log_wait = None
        _log_slow_starts(job)
        _log_needed(job)
        _log_lacking(job)
        return NOTHING
    if job.log_wait is None:
        job.log_wait = Lines(job.now if wait.since is None else wait.since)
    if job.log_wait.due(job.now, wait.why):
        log_wait(wait, job.now)
    return Plan(job.log_wait.next_at(wait.why))


def _log_slow_starts(job: JobState) -> None:
    """Log each host with a start beside the training that is not ready, with its limit."""
    found, now = slow_starts(job), job.now
    job.log_beside = {host: lines for host, lines in job.log_beside.items() if host in found}
    for host, one in found.items():
        job.log_beside.setdefault(host, Lines(now - one.since_s))
    if due := _due(job, job.log_beside):
        hosts = first_few([f"{host}: {found[host]}" for host in due])
        log.info("beside the training: %s%s", hosts, _again(job, job.log_beside, due), extra=WAIT)


def _log_needed(job: JobState) -> None:
    """Log each host that is not listed any more, and why it does not leave."""
    needed = host_list.needed_unlisted(job)
    job.log_needed = {host: lines for host, lines in job.log_needed.items() if host in needed}
    for host, since in needed.items():
        job.log_needed.setdefault(host, Lines(since))
    if due := _due(job, job.log_needed):
        log.info(
            "no longer listed, but still in use: %s; without it the world is below --min-np %d; no limit: it "
            "leaves when another host can take its place%s",
            first_few(due),
            job.options.limits.least,
            _again(job, job.log_needed, due),
            extra=WAIT,
        )


def _due(job: JobState, lines: dict[str, Lines]) -> list[str]:
    """Hosts about which a line is due now."""
    return [host for host, each in lines.items() if each.due(job.now, most_s=job.options.wait_lines_s)]


def _again(job: JobState, lines: dict[str, Lines], hosts: list[str]) -> str:
    """When the next line about one of these hosts comes, if that is late."""
    return next_line_hint(min(lines[host].next_at(most_s=job.options.wait_lines_s) for host in hosts) - job.now)


def _log_lacking(job: JobState) -> None:
    """Log which hosts are blocked for a time, and that the newest list is refused. The beginning of each was logged."""
    ledger, most_s = job.faults.ledger, job.options.wait_lines_s
    if job.ending or (not host_list.list_refused(job) and ledger.next_release(job.now) is None):
        job.log_lacking = None
        return
    if job.log_lacking is None:
        job.log_lacking = Lines(job.now)
    if not (found := lacking(job)):
        return
    text = "; ".join(found)
    if job.log_lacking.due(job.now, text, most_s=most_s):
        again = next_line_hint(job.log_lacking.next_at(text, most_s=most_s) - job.now)
        log.info("while the job trains: %s%s", text, again, extra=WAIT)
