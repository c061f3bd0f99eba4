"""A job as ``hvd-elastic submit`` makes it: with its own account, rights and words, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.mpijob import ClusterJob
from tests.support.jobs import example, rendered
from tests.support.nethosts import NetHosts

Body = dict[str, Any]


class Submitted(ClusterJob):
    rights = ()

    def written(self) -> list[Body]:
        options = ("--settle", "1")
        return list(rendered(example("mpijob", discover_image="", run_options=options)).objects)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_submitted_job_trains_with_its_own_rights_and_grows(
    nethosts: Callable[..., NetHosts], tmp_path: Path
) -> None:
    job = Submitted(tmp_path, nethosts(3, sshd=False))
    with job.run_on():
        job.trains(2)
        job.workers.scale(3)
        job.trains(3)
    assert not job.kube.all("clusterroles")
