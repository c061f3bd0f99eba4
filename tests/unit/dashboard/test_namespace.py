"""Jobs of a namespace in the list: what is told of each, and how often the API server is asked."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.dashboard.jobs import Jobs
from hvd_elastic_ext.dashboard.namespace import LEAST_PAUSE_S, Namespace, rows
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.jobs.cluster import changes
from hvd_elastic_ext.jobs.reading.states import JobStatus, PodStatus
from tests.support.clock import ManualClock

LAUNCHER = PodStatus("digits-launcher-abc", "launcher", "Running", True, "n1", "2026-01-01T00:00:00Z", "")
WORKER = PodStatus("digits-worker-0", "worker", "Running", True, "n1", "2026-01-01T00:00:00Z", "")


def seen(state: str = "Running", pods: tuple[PodStatus, ...] = (LAUNCHER, WORKER)) -> JobStatus:
    return JobStatus("digits", "MPIJob", state, "", 2, 1, 8, "2026-01-01T00:00:00Z", "reg/train:1", pods)


def test_a_job_is_told_with_its_kind_state_size_age_and_how_to_see_more() -> None:
    [row] = rows([seen()], "ml")
    assert (row["name"], row["kind"], row["state"], row["ready"], row["asked"]) == ("digits", "MPIJob", "Running", 1, 2)
    assert row["created"] == "2026-01-01T00:00:00Z"
    for words in (
        "`hvd-elastic events digits -n ml`",
        "`hvd-elastic run --dashboard 8265 …`",
        "`kubectl port-forward -n ml digits-launcher-abc 8265`",
        "`hvd-elastic logs digits -n ml`",
    ):
        assert words in row["do"]


@pytest.mark.parametrize("job", [seen("Failed"), seen("Pending", (WORKER,)), seen("Succeeded", ())])
def test_where_no_launcher_runs_there_is_no_page_to_go_to(job: JobStatus) -> None:
    [row] = rows([job], "ml")
    assert row["do"] == "Its journal is not read here: `hvd-elastic events digits -n ml` tells what happened."
    assert row["failed"] == (job.state == "Failed")


class Cluster:
    namespace = "ml"


def test_a_cluster_is_asked_seldom_and_its_last_answer_stays_with_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = ManualClock(), list[float]()
    answers: list[object] = [[seen()], ApiError(Reason.SILENT, "no answer from the API server: timed out"), []]

    def all_of(_: object) -> object:
        asked.append(clock.mono())
        answer = answers[len(asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(changes, "all_of", all_of)
    namespace = Namespace(Cluster(), mono=clock.mono)
    assert [namespace.answer()["jobs"][0]["name"] for _ in range(3)] == ["digits"] * 3
    assert len(asked) == 1
    clock.advance(LEAST_PAUSE_S)
    told = namespace.answer()
    assert (told["problem"], len(told["jobs"])) == ("no answer from the API server: timed out", 1)
    clock.advance(LEAST_PAUSE_S)
    assert namespace.answer() == {"namespace": "ml", "jobs": [], "problem": ""}


def test_without_a_job_here_there_is_a_list_if_a_namespace_is_named(tmp_path) -> None:
    with pytest.raises(UsageError, match="no job has a journal"):
        Jobs([], tmp_path)
    jobs = Jobs([], tmp_path, may_be_none=True)
    assert jobs.all() == []
    with pytest.raises(UsageError, match="no job has a journal here"):
        jobs.get("")
