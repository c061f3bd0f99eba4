"""Worker pods: which one a host name means, how it is reached, and what is said when it is not."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.pods import ROLE, Kubectl, Pod, exit_code, pod_of, remedy
from hvd_elastic_ext.launcher.transports import UNREACHABLE, Ended, ToPods

CARRIERS = Path(__file__).parents[2] / "support" / "fake_carriers.py"


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
        ("Job-0", "'Job-0' is no name of a pod"),
        ("job_0", "'job_0' is no name of a pod"),
        ("a.b.N.svc", "'N' is no name of a pod or namespace"),
        ("--kubeconfig=x", "starts with '-'"),
        ("a b", "white space"),
        ("", "is empty"),
    ],
)
def test_a_name_of_no_pod_is_refused_in_one_line(host: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        pod_of(host)
    assert "\n" not in str(refusal.value)


@given(st.text(max_size=40) | st.from_regex(r"[a-z0-9.-]{1,40}", fullmatch=True))
def test_no_host_name_is_ever_an_option_or_a_command(host: str) -> None:
    try:
        command = Kubectl(Path("/")).command(host, ["true"])
    except ValueError:
        return
    before = command[: command.index("--")]
    assert before[:3] == ["kubectl", "exec", "-i"]
    assert not any(word.startswith("-") for word in before[3:] if word != "-n")
    assert command[-1] == "true"


def test_the_command_says_the_namespace_only_where_the_name_does() -> None:
    kubectl = Kubectl(Path("/my job"), "/opt/kube/kubectl")
    assert kubectl.command("w-0", ["x"])[:5] == ["/opt/kube/kubectl", "exec", "-i", "w-0", "--"]
    assert kubectl.command("w-0.s.ns.svc", ["x"])[3:7] == ["-n", "ns", "w-0", "--"]
    assert "/my job" in kubectl.command("w-0", ["x"])


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("command terminated with exit code 127", 127),
        ("command terminated with exit code 1 ", 1),
        ("command terminated", None),
        ("my command terminated with exit code 3", None),
    ],
)
def test_an_exit_code_is_told_in_one_way(line: str, code: int | None) -> None:
    assert exit_code(line) == code


def test_what_is_known_of_a_failure_is_said_with_it() -> None:
    assert ROLE in remedy('Error from server (Forbidden): pods "w-0" is forbidden: User "x" cannot create …')
    assert "names of pods" in remedy('Error from server (NotFound): pods "w-0" not found')
    assert "needs kubectl" in remedy("kubectl: No such file or directory")
    assert remedy("error: something else") == "error: something else"
    assert remedy("") == "kubectl exec ended without a word"


# --- with a kubectl that runs commands here ---------------------------------------------------------


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the pods that there are, by namespace."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nexec {sys.executable} {CARRIERS} kubectl "$@"\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_PODS", str(tmp_path / "pods"))
    for namespace in ("jobs", "ns1"):
        (tmp_path / "pods" / namespace).mkdir(parents=True)
    return tmp_path / "pods"


@pytest.fixture
def agent(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "agent"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


def launched(host: str, python: str = "true") -> tuple[Ended, list[str]]:
    remarks: list[str] = []

    async def act() -> Ended:
        launch = await ToPods(python=python).start(host, b"x\n", remark=remarks.append)
        return await asyncio.wait_for(launch.wait(), 60)

    return asyncio.run(act()), remarks


def test_which_container_kubectl_has_chosen_is_no_news(pods: Path, agent: Callable[[str], str]) -> None:
    (pods / "ns1" / "w-0").touch()
    ended, remarks = launched("w-0.job.ns1.svc", agent("echo hello"))
    assert ended == Ended(0, reached=True, last_words="hello")
    assert remarks == ["hello"]


def test_a_pod_that_is_not_there_is_named(pods: Path) -> None:
    (pods / "ns1" / "w-0").touch()
    ended, _ = launched("w-0")  # of the launcher's own namespace
    assert (ended.code, ended.reached) == (UNREACHABLE, False)
    assert 'pods "w-0" not found; with --rsh pod' in ended.last_words


def test_a_launcher_that_may_not_is_told_which_rule_it_lacks(pods: Path) -> None:
    (pods / "jobs" / "w-0").write_text("forbidden")
    ended, _ = launched("w-0")
    assert (ended.code, ended.reached) == (UNREACHABLE, False)
    assert 'cannot create resource "pods/exec"' in ended.last_words
    assert ended.last_words.endswith(ROLE)


def test_a_container_that_is_gone_is_unreachable(pods: Path) -> None:
    (pods / "jobs" / "w-0").write_text("gone")
    ended, _ = launched("w-0")
    assert ended == Ended(
        UNREACHABLE, reached=False, last_words='error: unable to upgrade connection: container not found ("worker")'
    )


def test_a_lost_connection_is_no_end_of_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho hvd-elastic-host-reached\necho 'error: lost connection to pod' >&2\nexit 1\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ended, _ = launched("w-0")
    assert ended == Ended(UNREACHABLE, reached=True, last_words="error: lost connection to pod")
