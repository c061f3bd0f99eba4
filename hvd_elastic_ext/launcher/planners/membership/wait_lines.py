"""Logs what a job waits for, before it trains and while it trains. It decides nothing.

Lines come at the pace of :mod:`hvd_elastic_ext.core.pace`. ``--wait-lines`` changes how rare lines become if training
does not wait for their subject. The status line of a terminal and ``hvd-elastic status`` show all waits at any time.
"""

from __future__ import annotations

import logging

from hvd_elastic_ext.core.pace import Lines
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health.pace import next_line_hint
from hvd_elastic_ext.launcher.reporting.waits import WAIT, first_few, lacking, log_wait, slow_starts, waits_for
from hvd_elastic_ext.launcher.state.facts import health
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)


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
    needed = health.needed_unlisted(job)
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
    fleet, ledger, most_s = job.fleet, job.faults.ledger, job.options.wait_lines_s
    if job.ending or (fleet.list_refused is None and ledger.next_release(job.now) is None):
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
