"""Whose sshd it is that gets the job's key and environment: real ones in namespaces, a false one among them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.integration.launcher.test_over_ssh import command
from tests.support.nethosts import NetHosts
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

MakeHosts = Callable[[int], NetHosts]
TRAINING = ("-np", "1", "--job", "job", sys.executable, "-c", "print('trained')")
SECRET = "hunter2"


class Jobs:
    """Jobs on one host, of a user whose ssh knows the hosts' keys in ``known``, with ``configuration`` besides."""

    def __init__(self, hosts: NetHosts, directory: Path, configuration: str = "", *, known: str = "") -> None:
        self.hosts, self.directory = hosts, directory
        self.heard = directory / "heard"
        self.known = directory / "user_known_hosts"
        if known:
            self.known.write_text(known)
        self.own = directory / ".hvd-elastic" / "job" / "known_hosts"
        (directory / "hosts").write_text("h1:1\n")
        hosts.launcher.configure_ssh(
            f"Host *\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.known}\n"
            f"  GlobalKnownHostsFile none\n{configuration}"
        )

    def start(self) -> AbstractContextManager[RunningProcess]:
        words = command(self.hosts, self.directory, *TRAINING)
        return self.hosts.launcher.popen(words, cwd=self.directory, env={"MY_SECRET": SECRET})

    def check_trained(self) -> None:
        with self.start() as job:
            assert job.wait(60) == 0, job.output

    def refused(self) -> str:
        """Wait until the host has failed once, and end the job. Return what it has said."""
        with self.start() as job:
            job.wait_for("h1 is blocked for .* s: ", timeout=60)
            job.terminate()
            assert job.wait(60) == 143, job.output
        assert not self.heard.exists() or self.heard.read_text() == ""
        assert "Traceback" not in job.output
        return job.output


def key_of(hosts: NetHosts, name: str) -> str:
    (line,) = [each for each in (hosts.directory / "known_hosts").read_text().splitlines() if each.startswith(name)]
    return f"{line}\n"


def test_a_new_host_is_accepted_without_a_question_and_a_changed_key_is_refused(
    nethosts: MakeHosts, tmp_path: Path
) -> None:
    hosts = nethosts(1)
    jobs = Jobs(hosts, tmp_path)
    jobs.check_trained()
    assert "ssh-ed25519" in jobs.own.read_text()
    assert not jobs.known.exists()
    hosts["h1"].impersonate(jobs.heard)
    said = jobs.refused()
    assert f"if that change was intended: ssh-keygen -R h1 -f {jobs.own}" in said
    jobs.own.unlink()  # what the remedy comes to, where the host has no other name: then it is trusted
    with jobs.start():
        wait_until(lambda: jobs.heard.exists() and SECRET in jobs.heard.read_text(), what="the secret", timeout=60)


def test_a_false_sshd_gets_nothing_from_a_user_who_knows_the_true_ones_key(nethosts: MakeHosts, tmp_path: Path) -> None:
    hosts = nethosts(1)
    jobs = Jobs(hosts, tmp_path, known=key_of(hosts, "h1"))
    hosts["h1"].impersonate(jobs.heard)
    assert f"ssh-keygen -R h1 -f {jobs.known}" in jobs.refused()


def test_a_false_sshd_gets_nothing_where_an_authority_signs_host_keys(nethosts: MakeHosts, tmp_path: Path) -> None:
    """A key without a certificate is new to ssh, not wrong."""
    hosts = nethosts(1)
    jobs = Jobs(hosts, tmp_path, known=f"@cert-authority h* {key_of(hosts, 'h1').partition(' ')[2]}")
    hosts["h1"].impersonate(jobs.heard)
    assert "your ssh configuration requires a known key" in jobs.refused()
    assert not jobs.own.exists()


@pytest.mark.parametrize("knows", [True, False])
def test_a_false_sshd_gets_nothing_with_strict_checking(nethosts: MakeHosts, tmp_path: Path, knows: bool) -> None:
    hosts = nethosts(1)
    known = key_of(hosts, "h1") if knows else "# nobody\n"
    jobs = Jobs(hosts, tmp_path, "  StrictHostKeyChecking yes\n", known=known)
    hosts["h1"].impersonate(jobs.heard)
    said = jobs.refused()
    assert ("ssh-keygen -R h1 -f" in said) if knows else ("your ssh configuration requires a known key" in said)
    assert not jobs.own.exists()


def test_the_true_sshd_is_used_with_strict_checking(nethosts: MakeHosts, tmp_path: Path) -> None:
    hosts = nethosts(1)
    Jobs(hosts, tmp_path, "  StrictHostKeyChecking yes\n", known=key_of(hosts, "h1")).check_trained()
