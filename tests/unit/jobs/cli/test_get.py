"""Tables of jobs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from hvd_elastic_ext.jobs.cli.get import Changes, age, shown
from hvd_elastic_ext.jobs.cli.options import name_of, printed
from hvd_elastic_ext.jobs.reading.states import JobStatus, PodStatus

POD = PodStatus("digits-worker-0", "worker", "Pending", False, "", "2026-01-01T00:00:00Z", "0/3 nodes are available")
SEEN = JobStatus("digits", "MPIJob", "Pending", "", 2, 1, 8, "2026-01-01T00:00:00Z", "reg/train:1", (POD,))
NOW = 1767225600 + 90.0


def test_a_job_and_its_pods_are_two_tables() -> None:
    lines = shown([SEEN], "", alone=True, now=NOW).splitlines()
    assert lines[0].split() == ["NAME", "KIND", "STATE", "READY", "WORKERS", "AGE", "MESSAGE"]
    assert lines[1].split() == ["digits", "MPIJob", "Pending", "0/2", "1-8", "90s"]
    assert lines[2] == ""
    assert lines[4].split()[:5] == ["digits-worker-0", "worker", "Pending", "no", "90s"]
    assert lines[4].endswith("0/3 nodes are available")


def test_one_job_says_what_it_waits_for() -> None:
    why = "pods are forbidden: exceeded quota: small"
    lines = shown([replace(SEEN, message=why)], "", alone=True, now=NOW).splitlines()
    assert lines[1].endswith(why)
    assert why not in shown([replace(SEEN, message=why)], "", alone=False, now=NOW)


def test_all_jobs_are_one_table_and_no_job_is_none() -> None:
    assert len(shown([SEEN, SEEN], "", alone=False, now=NOW).splitlines()) == 3
    assert shown([], "", alone=False, now=NOW) == ""
    assert "reg/train:1" in shown([SEEN], "wide", alone=False, now=NOW)


def test_other_forms_are_for_programs() -> None:
    one = json.loads(shown([SEEN], "json", alone=True, now=NOW))
    assert (one["name"], one["asked"], one["pods"][0]["why"]) == ("digits", 2, POD.why)
    assert json.loads(shown([], "json", alone=False, now=NOW)) == []
    assert yaml.safe_load(shown([SEEN], "yaml", alone=True, now=NOW)) == one
    assert shown([SEEN], "name", alone=False, now=NOW) == "mpijob/digits\n"


@pytest.mark.parametrize(
    ("ago", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (200_000, "2d"), (-5, "0s")]
)
def test_an_age_is_short(ago: int, text: str) -> None:
    assert age("2026-01-01T00:00:00Z", 1767225600 + ago) == text
    assert age("", 0) == "?"


def test_jobs_of_all_namespaces_have_theirs_first() -> None:
    lines = shown([replace(SEEN, namespace="team")], "", alone=False, everywhere=True, now=NOW).splitlines()
    assert [line.split()[:3] for line in lines] == [["NAMESPACE", "NAME", "KIND"], ["team", "digits", "MPIJob"]]


def test_objects_are_printed_as_kubectl_does() -> None:
    body = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "a"}}
    plain = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "b"}}
    assert [name_of(each) for each in (body, plain)] == ["mpijob.kubeflow.org/a", "secret/b"]
    assert json.loads(printed([body], "json")) == body
    assert json.loads(printed([body, plain], "json"))["kind"] == "List"
    assert list(yaml.safe_load_all(printed([body, plain], "yaml"))) == [body, plain]


# --- --watch


HEADINGS = ("POD", "PHASE", "AGE")


def test_only_rows_that_change_in_more_than_their_age_are_shown_again() -> None:
    seen = Changes()
    first = list(seen.lines([(HEADINGS, [("pod-long", "Running", "1s"), ("b", "Pending", "1s")])]))
    assert first == ["POD       PHASE    AGE\n", "pod-long  Running  1s\n", "b         Pending  1s\n"]
    assert list(seen.lines([(HEADINGS, [("pod-long", "Running", "3s"), ("b", "Pending", "3s")])])) == []
    assert list(seen.lines([(HEADINGS, [("pod-long", "Running", "5s"), ("b", "Running", "5s")])])) == [
        "b         Running  5s\n"
    ]


def test_a_row_that_goes_is_shown_once_as_gone_and_may_come_back() -> None:
    seen = Changes()
    row = ("a", "Running", "1s")
    assert len(list(seen.lines([(HEADINGS, [row])]))) == 2
    assert list(seen.lines([(HEADINGS, [])])) == ["a    Gone     1s\n"]
    assert list(seen.lines([(HEADINGS, [])])) == []
    assert list(seen.lines([(HEADINGS, [row])])) == ["a    Running  1s\n"]


def test_jobs_of_one_name_in_two_namespaces_are_two() -> None:
    seen = Changes()
    headings = ("NAMESPACE", "NAME", "STATE")
    assert len(list(seen.lines([(headings, [("a", "x", "Pending"), ("b", "x", "Pending")])]))) == 3
    assert list(seen.lines([(headings, [("a", "x", "Pending"), ("b", "x", "Running")])])) == [
        "b          x     Running\n"
    ]
