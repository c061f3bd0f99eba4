"""The users whose host lists are accepted at a UNIX socket."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.launcher.sources.hosts import connector

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs another user: run the tests as root")

LISTENS = (
    "import os, socket, sys; os.setuid(int(sys.argv[2])); s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); "
    "s.listen(); print('up', flush=True); c = s.accept()[0]; print(c.recv(99), flush=True)"
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in which all users may make a socket, like /tmp."""
    with tempfile.TemporaryDirectory(prefix="hvd-test-") as name:
        Path(name).chmod(0o1777)
        yield Path(name) / "discover.sock"


@pytest.mark.parametrize(("listens", "named"), [(65534, None), (65534, 10001)])
def test_hosts_are_not_taken_from_whoever_was_first_to_make_the_socket(
    place: Path, listens: int, named: int | None
) -> None:
    with subprocess.Popen([sys.executable, "-c", LISTENS, place, str(listens)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        with pytest.raises(PermissionError, match=r"user 65534 listens there.*--discovery-user 65534 trusts it"):
            connector(f"unix://{place}", user=named)(5.0).request("GET", "/hosts")
        assert other.stdout.readline() == b"b''\n"  # it got no request


@pytest.mark.parametrize(("listens", "named"), [(0, None), (65534, 65534)])
def test_ones_own_daemon_and_one_that_was_named_are_asked(place: Path, listens: int, named: int | None) -> None:
    with subprocess.Popen([sys.executable, "-c", LISTENS, place, str(listens)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        connection = connector(f"unix://{place}", user=named)(5.0)
        connection.request("GET", "/hosts")
        assert other.stdout.readline().startswith(b"b'GET /hosts HTTP/1.1")
        connection.close()
