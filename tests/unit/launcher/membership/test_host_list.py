"""An empty list of hosts, which is accepted once nothing runs."""

from __future__ import annotations

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.driver.events import HostsChanged
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.membership import host_list
from tests.unit.launcher.state_changes import changes, happen, small_job

GOES = HostsChanged(HostSet.of({"a": 1}), {"c": ("spot", None)})


def gone(job: JobState) -> None:
    """No agent is connected, and no process runs."""
    job.roster.agents.clear()
    for worker in list(job.roster.workers.values()):
        job.roster.remove(worker)


def test_an_empty_list_takes_back_the_notices_of_the_list_before() -> None:
    """Defect: when a host of that name was to go again later, no notice was recorded."""
    job = small_job()
    happen(job, GOES, HostsChanged(HostSet()), gone)
    assert job.fleet.empty_list_refused
    host_list.plan(job)
    assert not job.fleet.hosts
    assert (job.notices.listed, job.notices.departing, job.notices.announced) == (frozenset(), {}, {})
    assert any("Record notice host=c" in line for line in changes(job, lambda: happen(job, GOES)))
