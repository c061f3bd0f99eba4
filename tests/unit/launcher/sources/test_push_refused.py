"""A daemon that gives no hosts: the reason, and what to check."""

from __future__ import annotations

import socket
import threading

import pytest

from hvd_elastic_ext.core.errors import ElasticError
from hvd_elastic_ext.launcher.sources.sources import PushSource


class Feed:
    def __init__(self) -> None:
        self.refused: list[str] = []
        self.told = threading.Event()

    def refuse(self, error: ElasticError) -> None:
        self.refused.append(str(error))
        self.told.set()


@pytest.mark.parametrize("scheme", ["http", "unix"])
def test_a_daemon_that_is_not_there_is_told_with_what_to_check(scheme: str) -> None:
    with socket.socket() as taken:  # bound without listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}" if scheme == "http" else "unix:///nowhere/discover.sock"
        why = "Connection refused" if scheme == "http" else "No such file or directory"
        feed = Feed()
        push = PushSource(url, feed)  # type: ignore[arg-type]
        push.start()
        try:
            assert feed.told.wait(25)
        finally:
            push.stop()
    assert feed.refused[0] == f"{url}: {why}; check that hvd-discover runs, and that its --listen is this address"
