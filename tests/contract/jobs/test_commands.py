"""The commands, as a user gives them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from urllib3.util import connection

from hvd_elastic_ext import cli
from hvd_elastic_ext.jobs.cli import get
from hvd_elastic_ext.jobs.cluster import changes
from hvd_elastic_ext.jobs.cluster.api import Cluster
from tests.contract.jobs.test_changes import made

NOWHERE = ["--selector", "hvd-elastic-ext/nowhere=yes", "--launcher-selector", "hvd-elastic-ext/nowhere=yes"]


def test_a_job_is_submitted_seen_scaled_suspended_resumed_and_deleted(
    config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = ["--kubeconfig", str(config)]

    def said(*words: str, code: int = 0, after: tuple[str, ...] = ()) -> str:
        assert cli.main([*words, *where, *after]) == code, capfd.readouterr().err
        return capfd.readouterr().out

    submit = [
        "submit",
        "digits",
        "--kind",
        "statefulset",
        "--image",
        "example.org/none:1",
        *NOWHERE,
        "--max-workers",
        "4",
    ]
    assert "job.batch/digits created\n" in said(*submit, after=("--", "python", "/t.py"))
    assert "digits" in said("list")
    assert said("scale", "digits", "3") == "digits scaled to 3\n"
    assert json.loads(said("get", "digits", "-o", "json"))["asked"] == 3
    assert said("suspend", "digits") == "job.batch/digits suspended\n"
    assert said("wait", "digits", "--for=running", "--timeout", "0", code=1) == ""
    assert said("resume", "digits") == "job.batch/digits resumed\n"
    assert said("delete", "digits") == "jobs/digits deleted\n"
    assert said("wait", "digits", "--for=deleted", "--timeout", "60s") == "digits: Gone\n"
    said("get", "digits", code=1)  # as kubectl has it


def test_all_requests_of_a_command_share_one_connection(
    cluster: Cluster, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    connect = connection.create_connection

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return connect(*args, **kwargs)

    monkeypatch.setattr(connection, "create_connection", counted)
    words = ["submit", "digits", "--kind", "statefulset", "--image", "example.org/none:1", *NOWHERE]
    assert cli.main([*words, "--kubeconfig", str(config), "--", "python", "/t.py"]) == 0
    assert len(made) == 1


@pytest.mark.parametrize(
    ("kind", "told"),
    [("mpijob", "its launcher has no --checkpoint-dir"), ("pytorchjob", "has no launcher that makes a checkpoint")],
)
def test_who_suspends_a_job_that_stores_nothing_is_told(
    cluster: Cluster, config: Path, capfd: pytest.CaptureFixture[str], kind: str, told: str
) -> None:
    made(cluster, kind)
    assert cli.main(["suspend", "digits", "--kubeconfig", str(config)]) == 0
    assert told in capfd.readouterr().err


def test_scale_without_a_cluster_is_that_of_a_launcher_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["scale", "digits", "3"]) == 2
    assert "no job was started here" in capfd.readouterr().err


def test_a_diff_that_cannot_be_made_is_none_that_differs(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    submit = ["submit", "digits", "--kind", "statefulset", "--image", "example.org/none:1", "--diff"]
    end = ["--kubeconfig", str(config), "--", "python", "/t.py"]
    assert cli.main([*submit, *end]) == 1
    broken = config.with_name("broken")
    broken.write_text(re.sub(r"server: \S+", "server: http://127.0.0.1:1", config.read_text()))
    assert cli.main([*submit, *end[:1], str(broken), *end[2:]]) == 2


@pytest.mark.usefixtures("unattended")
def test_a_watch_shows_what_changes_and_ends_with_the_job(config: Path, cluster: Cluster) -> None:
    made(cluster, "statefulset")
    lines: list[str] = []

    def sleep(_: float) -> None:
        if len(lines) == 3:
            changes.scale(cluster, "digits", 4)
        else:
            changes.delete(cluster, "digits")

    assert get.watch(cluster, "digits", wide=False, write=lines.append, sleep=sleep) == 0
    said = [line.split()[:4] for line in lines]
    assert said[0] == ["NAME", "KIND", "STATE", "READY"]
    assert said[1:] == [
        ["digits", "Job", "Pending", "0/2"],
        ["POD", "ROLE", "PHASE", "READY"],
        ["digits", "Job", "Pending", "0/4"],
        ["digits", "Job", "Gone", "0/4"],
    ]
