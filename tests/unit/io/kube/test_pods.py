"""Worker pods: the pod of a host name, requests to an API server, and the meaning of its answers."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.io.kube.pods import (
    ROLE,
    Outcome,
    Pod,
    container_of,
    exec_path,
    outcome,
    pod_of,
    refusal,
    words_in,
)
from tests.support.kube import bodies


@pytest.mark.parametrize(
    ("host", "pod"),
    [
        ("job-worker-0", Pod("job-worker-0")),
        ("job-worker-0.job.ns1.svc", Pod("job-worker-0", "ns1")),
        ("job-worker-0.job.ns1.svc.cluster.local", Pod("job-worker-0", "ns1")),
        ("job-worker-0.job", Pod("job-worker-0")),
        ("3d-job", Pod("3d-job")),
    ],
)
def test_a_host_name_means_the_pod_that_it_begins_with(host: str, pod: Pod) -> None:
    assert pod_of(host) == pod


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("10.0.0.7", "is an address; with --rsh pod hosts have names of pods"),
        ("Job-0", "'Job-0' is not the name of a pod"),
        ("job_0", "'job_0' is not the name of a pod"),
        ("a.b.N.svc", "'N' is not the name of a pod or namespace"),
        ("../secrets", "is not a valid name"),
        ("a?container=x", "is not a valid name"),
        ("a b", "white space"),
        ("", "is empty"),
    ],
)
def test_a_name_of_no_pod_is_refused_in_one_line(host: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refused:
        pod_of(host)
    assert "\n" not in str(refused.value)


@given(st.text(max_size=40) | st.from_regex(r"[a-z0-9./?%-]{1,40}", fullmatch=True))
def test_no_host_name_asks_for_anything_but_a_command_in_a_pod(host: str) -> None:
    try:
        pod = pod_of(host)
    except ValueError:
        return
    url = urlsplit(exec_path(pod.namespace or "default", pod.name, "worker", ["true"]))
    assert url.path.split("/") == [
        *("", "api", "v1", "namespaces", pod.namespace or "default", "pods", pod.name, "exec"),
    ]
    assert parse_qs(url.query)["command"] == ["true"]
    assert not url.fragment


@given(st.lists(st.text(min_size=1), min_size=1))
def test_words_arrive_as_they_are(words: list[str]) -> None:
    query = parse_qs(urlsplit(exec_path("ns", "w-0", "main", words)).query, keep_blank_values=True)
    assert query["command"] == words
    assert query["container"] == ["main"]
    assert query["stdin"] == query["stdout"] == query["stderr"] == ["true"]
    assert "tty" not in query


def test_a_directory_may_have_any_name() -> None:
    command = words_in(Path("/my 'job'; true"), ["python", "-c", "x"])
    assert command[:2] == ["sh", "-c"]
    assert command[4:] == ["/my 'job'; true", "python", "-c", "x"]


# --- the place in a pod -----------------------------------------------------------------------------


def pod(*containers: str, default: str = "", phase: str = "Running") -> bodies.Body:
    named = {"kubectl.kubernetes.io/default-container": default} if default else {}
    return bodies.pod("w-0", phase=phase, annotations=named, containers=[{"name": name} for name in containers])


def test_agents_run_in_the_container_that_the_pod_names_or_in_its_first() -> None:
    assert container_of(pod("worker", "istio-proxy")) == "worker"
    assert container_of(pod("istio-proxy", "worker", default="worker")) == "worker"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (pod("worker", phase="Failed"), "it has ended: its phase is Failed"),
        (pod("worker", phase="Succeeded"), "it has ended: its phase is Succeeded"),
        (pod("a", "b", default="c"), "names 'c'; its containers: a, b"),
        (pod(), "it has no containers"),
        ({}, "it has no containers"),
        ({"metadata": None, "spec": None, "status": None}, "it has no containers"),
    ],
)
def test_a_pod_in_which_nothing_can_run_says_so(body: bodies.Body, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        container_of(body)


# --- the meaning of answers -------------------------------------------------------------------------


def status(**fields: object) -> bytes:
    return json.dumps({"kind": "Status", "status": "Failure", **fields}).encode()


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (403, status(reason="Forbidden", message="no"), f"the API server says 403 Forbidden; {ROLE}: no"),
        (404, status(reason="NotFound", message='pods "a" not found'), "with --rsh pod hosts have names of pods"),
        (401, status(reason="Unauthorized", message="Unauthorized"), "its token is missing or has expired"),
        (400, status(reason="BadRequest", message="x"), "the API server says 400 BadRequest: x"),
        (502, b"<html>\nbad\n gateway", "the API server says 502: <html> bad gateway"),
        (500, b"", "the API server says 500"),
        (500, b'["odd"]', 'the API server says 500: ["odd"]'),
        (503, b"\xff" * 5000, "the API server says 503: "),
    ],
)
def test_a_refusal_is_told_in_one_line_with_what_helps(code: int, body: bytes, said: str) -> None:
    line = refusal(code, body)
    assert said in line
    assert "\n" not in line
    assert len(line) < 900


def exited(code: object) -> bytes:
    return status(reason="NonZeroExitCode", details={"causes": [{"reason": "ExitCode", "message": code}]})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"metadata":{},"status":"Success"}', Outcome(0)),
        (exited("3"), Outcome(3)),
        (exited("137"), Outcome(137)),
        (status(message="container not found"), Outcome(None, "container not found")),
        (status(message="odd", details={"causes": ["x", None]}), Outcome(None, "odd")),
        (exited("many"), Outcome(None, exited("many").decode())),
        (b"", Outcome(None, "it ended for an unknown reason")),
        (b"\x00[1", Outcome(None, "\x00[1")),
    ],
)
def test_the_end_of_a_command_is_a_code_or_a_reason(data: bytes, expected: Outcome) -> None:
    assert outcome(data) == expected


def test_an_image_without_a_shell_is_told_what_it_lacks() -> None:
    why = 'failed to exec: "sh": executable file not found in $PATH'
    assert outcome(status(message=why)).why == f"{why}; the container's image needs a sh"
