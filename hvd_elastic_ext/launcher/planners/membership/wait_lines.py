"""Logs what a job waits for, before it trains and while it trains. It decides nothing.

Lines come every :data:`LOG_PERIOD_S`. After half a minute, ``--wait-lines`` makes lines rarer if training does not wait
for their subject. The status line of a terminal and ``hvd-elastic status`` show all waits at any time.
"""

from __future__ import annotations

import logging

from hvd_elastic_ext.launcher.rules.health.pace import log_again_s, next_line_hint
from hvd_elastic_ext.launcher.state.facts import health
from hvd_elastic_ext.launcher.state.facts.waits import (
    LOG_PERIOD_S,
    first_few,
    lacking,
    log_wait,
    slow_starts,
    waits_for,
)
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)


def plan(job: JobState) -> Plan:
    """Log the wait that the last look has left, for the first time after :data:`LOG_PERIOD_S`."""
    wait = waits_for(job)
    if wait is None:
        job.log_wait_at = None
        _log_slow_starts(job)
        _log_needed(job)
        _log_lacking(job)
        return NOTHING
    lasts = wait.since is not None and job.now - wait.since >= LOG_PERIOD_S
    due = lasts if job.log_wait_at is None else job.now >= job.log_wait_at
    if due:
        log_wait(wait, job.now)
    if due or job.log_wait_at is None:
        job.log_wait_at = job.now + LOG_PERIOD_S
    return Plan(job.log_wait_at)


def _log_slow_starts(job: JobState) -> None:
    """Log each host with a start beside the training that is not ready, with its limit."""
    found = slow_starts(job)
    job.log_beside_at = {host: at for host, at in job.log_beside_at.items() if host in found}
    most_s = job.options.wait_lines_s
    due = [host for host in found if job.now >= job.log_beside_at.get(host, 0.0)]
    job.log_beside_at.update({host: job.now + log_again_s(found[host].since_s, most_s) for host in due})
    if due:
        again = next_line_hint(max(found[host].since_s for host in due), most_s)
        log.info("beside the training: %s%s", first_few([f"{host}: {found[host]}" for host in due]), again)


def _log_lacking(job: JobState) -> None:
    """Log which hosts are left out for a time, and that the newest list is refused. The beginning of each was
    logged.
    """
    fleet, ledger, most_s = job.fleet, job.faults.ledger, job.options.wait_lines_s
    if job.ending or (fleet.list_refused is None and ledger.next_release(job.now) is None):
        job.log_lacking = None
        return
    since, due_at = job.log_lacking or (job.now, job.now + LOG_PERIOD_S)
    if job.now >= due_at:
        if found := lacking(job):
            log.info("while the job trains: %s%s", "; ".join(found), next_line_hint(job.now - since, most_s))
        due_at = job.now + log_again_s(job.now - since, most_s)
    job.log_lacking = since, due_at


def _log_needed(job: JobState) -> None:
    """Log each host that is not listed any more, and why it does not leave."""
    needed = health.needed_unlisted(job)
    lasts_s = {host: job.now - since for host, since in needed.items() if job.now - since >= LOG_PERIOD_S}
    job.log_needed_at = {host: at for host, at in job.log_needed_at.items() if host in lasts_s}
    most_s = job.options.wait_lines_s
    due = [host for host in lasts_s if job.now >= job.log_needed_at.get(host, 0.0)]
    job.log_needed_at.update({host: job.now + log_again_s(lasts_s[host], most_s) for host in due})
    if due:
        log.info(
            "no longer listed, but still in use: %s; without it the world is below --min-np %d; no limit: it "
            "leaves when another host can take its place%s",
            first_few(due),
            job.options.limits.least,
            next_line_hint(max(lasts_s[host] for host in due), most_s),
        )
