"""What happened to a job: the cluster's events and the journal in its launcher's pod, in one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.jobs.cli import events
from hvd_elastic_ext.jobs.cluster import making
from hvd_elastic_ext.jobs.cluster.api import Cluster
from tests.support.jobs import example, rendered
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.kube.server import KubeServer

__all__ = ["kube"]

MINE = {"hvd-elastic-job": "digits"}
JOURNAL = [
    {"t": 1767225610.0, "mono": 10.0, "generation": 0, "event": "started", "run": "a", "job": "digits"},
    {
        "t": 1767225612.0,
        "mono": 12.0,
        "generation": 1,
        "event": "resized",
        "cause": "start",
        "added": [],
        "removed": [],
        "hosts": {"digits-worker-0": 1, "digits-worker-1": 1},
        "size": 2,
    },
    {
        "t": 1767225640.0,
        "mono": 40.0,
        "generation": 2,
        "event": "resized",
        "cause": "hosts removed",
        "added": [],
        "removed": ["digits-worker-1"],
        "hosts": {"digits-worker-0": 1},
        "size": 1,
        "downtime_s": 0.5,
    },
]


def event(name: str, about: str, reason: str, why: str, at: str, **more: Any) -> dict[str, Any]:
    kind = "Pod" if "-" in about else "MPIJob"
    return {
        "metadata": {"name": name},
        "involvedObject": {"kind": kind, "name": about},
        "reason": reason,
        "message": why,
        "lastTimestamp": at,
        **more,
    }


@pytest.fixture
def cluster(kube: KubeServer, tmp_path: Path) -> Cluster:
    made = Cluster(Access(str(kube.kubeconfig(tmp_path / "config"))))
    making.create(made, list(rendered(example("mpijob")).objects))
    kube.put("pods", bodies.pod("digits-launcher-x", labels={**MINE, "hvd-elastic-role": "launcher"}))
    kube.put("pods", bodies.pod("digits-worker-0", labels=MINE))
    late = "2026-01-01T00:00:39Z"
    kube.put("events", event("a", "digits-worker-1", "TaintManagerEviction", "marked for\ndeletion", late, count=3))
    kube.put("events", event("b", "digits", "HostsExcluded", "digits-worker-7 (not ready)", "2026-01-01T00:00:20Z"))
    kube.put("events", event("c", "digitsother-worker-0", "Killing", "not ours", late))
    kube.put("events", event("d", "digits-2-worker-0", "Killing", "another job's", late))
    return made


@pytest.fixture
def journal(kube: KubeServer, tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in JOURNAL))
    kube.execs.place = lambda _, __, words: [*words[:-1], str(path)]
    return path


EXPECTED = [
    ("job", "started", "", "the launcher was started"),
    ("job", "resized", "+digits-worker-0 +digits-worker-1", "start; 0 → 2"),
    ("cluster", "HostsExcluded", "", "digits-worker-7 (not ready)"),
    ("cluster", "TaintManagerEviction", "digits-worker-1", "marked for deletion (x3)"),
    ("job", "resized", "-digits-worker-1", "hosts removed; 2 → 1"),
]


def test_pods_and_worlds_are_one_story_by_time(cluster: Cluster, kube: KubeServer, journal: Path) -> None:
    container = dict(kube.get("pods", "digits-launcher-x")["spec"]["containers"][0])
    container["args"] = ["-np", "2", "--state-dir=/var/lib/hvd/digits", "python", "t.py"]
    kube.change("pods", "digits-launcher-x", {"spec": {"containers": [container]}})
    found = events.of_job(cluster, "digits")
    assert [each[1:] for each in found.lines] == EXPECTED
    assert found.missing == []
    (command,) = (words for _, _, words in kube.execs.commands)
    assert command[0] == "tail"
    assert command[-2:] == ["--", "/var/lib/hvd/digits/journal.jsonl"]


def test_without_a_journal_it_is_what_the_launcher_said_and_that_is_told(cluster: Cluster, kube: KubeServer) -> None:
    kube.change("pods", "digits-launcher-x", {"status": {"phase": "Failed"}})
    kube.logs.write("digits-launcher-x", "hvd-elastic: world 1: size 2", "[0]<stdout>:hvd-elastic: no")
    found = events.of_job(cluster, "digits")
    assert [each.why for each in found.lines if each.source == "job"] == ["world 1: size 2"]
    assert found.missing == ["the journal: the pod digits-launcher-x does not run; its output has less"]


def test_a_journal_that_cannot_be_read_is_told_with_the_reason(cluster: Cluster, kube: KubeServer) -> None:
    found = events.of_job(cluster, "digits")
    assert [each.source for each in found.lines] == ["cluster", "cluster"]
    assert "No such file or directory" in found.missing[0]


def test_the_command_prints_the_table_and_json(
    cluster: Cluster, journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--kubeconfig", str(tmp_path / "config")]
    assert cli.main(["events", "digits", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TIME", "FROM", "EVENT", "WHO", "WHY"]
    assert lines[1].split()[:3] == ["2026-01-01T00:00:10Z", "job", "started"]
    assert cli.main(["events", "digits", *where, "-o", "json"]) == 0
    assert [each["source"] for each in json.loads(capsys.readouterr().out)] == [each[0] for each in EXPECTED]
    assert cli.main(["events", "nobody", *where]) == 1
