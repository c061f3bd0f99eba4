"""Jobs from Python, on our server and, with HVD_TEST_KUBECONFIG, on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext import jobs
from hvd_elastic_ext.core.errors import UsageError
from tests.support.jobs import example


def test_a_job_is_submitted_seen_scaled_waited_for_and_deleted(config: Path) -> None:
    nowhere = {"hvd-elastic-ext/nowhere": "yes"}
    job = example("statefulset", selector=nowhere, launcher_selector=nowhere, worker_restart_policy="Never")
    assert len(jobs.submit(job, dry_run=True, kubeconfig=config)) == 1
    with pytest.raises(UsageError, match="there is no job digits"):
        jobs.get("digits", kubeconfig=config)
    (note,) = jobs.submit(job, kubeconfig=config)
    assert "--worker-restart-policy=Never" in note
    jobs.scale("digits", 4, kubeconfig=config)
    seen = jobs.get("digits", kubeconfig=config)
    assert (seen.kind, seen.asked) == ("Job", 4)
    assert [each.name for each in jobs.all_jobs(kubeconfig=config)] == ["digits"]
    assert jobs.all_jobs(labels="hvd-elastic-job=other", everywhere=True, kubeconfig=config) == []
    assert jobs.events("digits", kubeconfig=config) == []
    assert jobs.delete("digits", kubeconfig=config)
    assert jobs.wait("digits", "deleted", timeout_s=60, kubeconfig=config) == "Gone"
    assert not jobs.delete("digits", kubeconfig=config)


def test_a_job_without_a_kind_is_what_the_cluster_can_make(config: Path) -> None:
    assert jobs.submit(example(""), dry_run=True, kubeconfig=config) == ()
