"""Accepts an empty list of hosts that was refused while processes ran on them."""

from __future__ import annotations

import logging

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.departures import notices
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.membership.hosts import publish
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)


def plan(job: JobState) -> Plan:
    """Accept an empty list once no agent is connected and no process runs."""
    roster = job.roster
    if (
        job.fleet.empty_list_refused
        and not roster.workers
        and not any(agent.joined for agent in roster.agents.values())
    ):
        job.fleet.empty_list_refused = False
        log.warning("no host is published, and no agent answers: the hosts are gone")
        publish(job, HostSet())
        notices.published(job, {})
    return NOTHING
