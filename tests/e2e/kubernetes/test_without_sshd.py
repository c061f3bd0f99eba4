"""The same job without sshd, as ``docs/kubernetes.md`` changes it: agents come into pods through the API server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import yaml

from hvd_elastic_ext.agent.prestop import REASON
from tests.e2e.kubernetes.mpijob import LONGEST_S, MANIFEST, Body, ClusterJob, host
from tests.support import manifests, marks
from tests.support.kube.containers import Main, command
from tests.support.nethosts import NetHosts

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "kubernetes.md"
ACCOUNT: Final = "/run/secrets/kubernetes.io/serviceaccount"
FIRST, SECOND = (f"digits-worker-{number}" for number in range(2))
LONG: Final = ("--blacklist-cooldown-range", "600", "600")
"""Longer than any test: whoever is held back by it is not seen again."""


class JobWithoutSshd(ClusterJob):
    """There is none in its pods, and nothing that the launcher could log in with."""

    rights = (*ClusterJob.rights, "exec.yaml")

    def written(self) -> list[Body]:
        return changed(MANIFEST)

    def main(self) -> Main:
        return command(self.worker["command"])

    def environment(self) -> dict[str, str]:
        """A pod's, whose account is mounted."""
        assert self.kube.ca_file is not None
        self.kube.execs.create_too = True
        token = self.kube.access.issue_for("default", "hvd-launcher-digits")
        files = {"token": token, "namespace": "default", "ca.crt": self.kube.ca_file.read_text()}
        write = f'mkdir -p {ACCOUNT} && printf %s "$2" >{ACCOUNT}/"$1"'
        for name, content in files.items():
            done = self.network.launcher.run(["sh", "-c", write, "sh", name, content])
            assert done.returncode == 0, done.output
        return {
            "KUBECONFIG": "",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.kube.port),
        }


def changed(name: str) -> list[Body]:
    """A manifest with the document's lines."""
    text = (manifests.FOLDER / name).read_text(encoding="utf-8")
    for before, after in changes():
        text, count = re.subn(rf"(?m)^( *(?:- |command: )){re.escape(before)}$", rf"\g<1>{after}", text)
        assert count == 1, before
    found: list[Body] = json.loads(json.dumps(list(yaml.safe_load_all(text))))
    return found


def changes() -> list[tuple[str, str]]:
    """What the document has instead of what stands in the job's file."""
    section = DOCUMENT.read_text(encoding="utf-8").partition("### Without sshd\n")[2].partition("\n###")[0]
    found = re.findall(r"^\| \w+ \| `(.+)` \| `(.+)` \|$", section, re.MULTILINE)
    assert len(found) == 3
    return found


@pytest.fixture
def job(nethosts: Callable[..., NetHosts], tmp_path: Path) -> JobWithoutSshd:
    return JobWithoutSshd(tmp_path, nethosts(2, sshd=False))


@pytest.mark.parametrize("name", [MANIFEST, "mpijob-older.yaml", "statefulset.yaml"])
def test_the_lines_that_the_document_changes_stand_in_each_of_the_files_that_it_names(name: str) -> None:
    assert [problem for each in changed(name) for problem in manifests.problems(each)] == []


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_pods_without_sshd_leave_by_their_hook_without_losing_a_step_and_others_take_their_place(
    job: JobWithoutSshd,
) -> None:
    with job.run_on(*LONG):
        job.trains(2)
        lives_are_their_agents(job)
        deleted_before_everybodys_eyes(job, SECOND)
        deleted_while_nobody_watches(job, SECOND)
        job.check_uninterrupted(host(FIRST))
    job.check_steps()
    assert not job.kubelets.killed
    assert not job.events("fenced", "lost")
    assert "Traceback" not in job.process.stderr + job.daemon.output


def lives_are_their_agents(job: JobWithoutSshd) -> None:
    """Everything that runs in a pod runs under what was brought there, or is what stands there as process 1."""
    assert {pod.name for pod, _, _ in job.kube.execs.commands} == {FIRST, SECOND}
    for pod in (FIRST, SECOND):
        lines = [marks.command_line(pid) for pid in job.kubelets.container(pod).pids()]
        assert not any("sshd" in line for line in lines), lines
        assert any("trainee" in line for line in lines), lines


def deleted_before_everybodys_eyes(job: JobWithoutSshd, pod: str) -> None:
    uid, before, since = job.uid(pod), len(job.notices(pod)), time.monotonic()
    job.kube.delete("pods", pod)
    left = job.resized_without(pod, since=since)
    assert (left.get("cause"), left.get("steps_lost")) == ("hosts removed", 0)
    assert left.t < job.ended(uid)
    (notice,) = (each for each in job.notices(pod)[before:] if each.get("reason") == "pod is being deleted")
    assert left.mono < notice.get("deadline") <= since + 30 + LONGEST_S
    comes_back(job, pod, uid)


def deleted_while_nobody_watches(job: JobWithoutSshd, pod: str) -> None:
    """All that is heard of it is what its own hook tells its agent: the daemon and the launcher reach no API server."""
    uid, before, since = job.uid(pod), len(job.notices(pod)), time.monotonic()
    with job.kube.down():
        job.kube.delete("pods", pod)
        left = job.resized_without(pod, since=since)
        assert (left.get("cause"), left.get("steps_lost")) == ("hosts removed", 0)
        assert left.t < job.ended(uid)
        (notice, signalled) = job.notices(pod)[before:]
        assert notice.get("reason") == REASON
        assert left.mono < notice.get("deadline") <= since + 25 + LONGEST_S
        assert signalled.get("reason") == "its agent was sent SIGTERM"
        job.trains(1)
    comes_back(job, pod, uid)


def comes_back(job: JobWithoutSshd, pod: str, uid: str) -> None:
    """As another host: what is held against the former one would hold longer than the test."""
    job.trains(2)
    assert job.uid(pod) != uid
    assert job.kubelets.hooks[uid] == 0
    assert job.causes()[-1] == "hosts added"
