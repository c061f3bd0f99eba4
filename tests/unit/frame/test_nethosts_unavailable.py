"""Without test hosts, the reason says how to get them."""

import os
import shutil

import pytest

from tests.support import namespaces, nethosts

why = nethosts.unavailable.__wrapped__


def test_without_root_the_reason_is_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why().startswith("needs root for network namespaces: ")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("ip", "needs ip: apt-get install iproute2"),
        ("sshd", "needs sshd: apt-get install openssh-server"),
        ("ssh", "needs ssh: apt-get install openssh-client"),
    ],
)
def test_without_a_program_the_reason_names_the_package(monkeypatch, program, reason):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == program else f"/bin/{name}")
    assert why() == reason


def test_without_the_right_to_make_namespaces_the_reason_says_how_a_container_gets_it(monkeypatch):
    def refused(*arguments):
        raise AssertionError("ip netns add: Operation not permitted")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/bin/{name}")
    monkeypatch.setattr(nethosts, "ip", refused)
    monkeypatch.setattr(namespaces, "remove", lambda names: None)
    reason = why()
    assert "--privileged" in reason
    assert "Operation not permitted" in reason
