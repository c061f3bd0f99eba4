"""Worker pods: the pod of a host name, requests to an API server, and the meaning of its answers."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.io.kube.pods import Outcome, container_of, exec_path, outcome
from tests.support.kube import bodies


@given(st.lists(st.text(min_size=1), min_size=1))
def test_words_arrive_as_they_are(words: list[str]) -> None:
    query = parse_qs(urlsplit(exec_path("ns", "w-0", "main", words)).query, keep_blank_values=True)
    assert query["command"] == words
    assert query["container"] == ["main"]
    assert query["stdin"] == query["stdout"] == query["stderr"] == ["true"]
    assert "tty" not in query


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
