"""The commands, as a user gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_elastic_ext import cli

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
    said("get", "digits", code=2)


def test_scale_without_a_cluster_is_that_of_a_launcher_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["scale", "digits", "3"]) == 2
    assert "no job was started here" in capfd.readouterr().err
