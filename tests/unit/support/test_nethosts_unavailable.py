"""Without test hosts, the reason says how to get them."""

import os
import shutil

import pytest

from tests.support import namespaces, nethosts

WHY = {
    "root": "needs root for network namespaces: ",
    "ip": "needs ip: apt-get install iproute2",
    "sshd": "needs sshd: apt-get install openssh-server",
    "ssh": "needs ssh: apt-get install openssh-client",
    "namespaces": "--privileged",
}


@pytest.mark.parametrize("missing", WHY)
def test_the_reason_says_what_is_missing_and_how_to_get_it(monkeypatch, missing):
    def refused(*arguments):
        raise AssertionError("ip netns add: Operation not permitted")

    monkeypatch.setattr(os, "geteuid", lambda: 1000 if missing == "root" else 0)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == missing else f"/bin/{name}")
    monkeypatch.setattr(nethosts, "ip", refused)
    monkeypatch.setattr(namespaces, "remove", lambda names: None)
    assert WHY[missing] in nethosts.unavailable.__wrapped__()
