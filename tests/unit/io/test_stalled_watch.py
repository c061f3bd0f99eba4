"""A file system that stands still, under who watches a file on it: its end is not held up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from discover.sources import FileSource
from hvd_elastic_ext.io import file_watch
from hvd_elastic_ext.launcher.sources import hosts
from hvd_elastic_ext.launcher.sources.hosts import HostFeed, HostsFileSource
from tests.support.waiting import wait_until

BEFORE_IT_WAITED_FOR_EVER_S = 10.0


class Stall:
    """A call that does not come back until the test lets it."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, *_: object, **__: object) -> int:
        self.begun.set()
        assert self.over.wait(60)
        return 0


@pytest.fixture
def stall() -> Iterator[Stall]:
    """Its threads have ended when the test has."""
    before = set(threading.enumerate())
    stall = Stall()
    yield stall
    stall.over.set()
    wait_until(lambda: set(threading.enumerate()) <= before, what="the end of the threads that were held up")


def ends_in_time(stop: Callable[[], None]) -> None:
    ended = threading.Event()
    stopping = threading.Thread(target=lambda: (stop(), ended.set()), daemon=True)
    begun = time.monotonic()
    stopping.start()
    assert ended.wait(BEFORE_IT_WAITED_FOR_EVER_S), "stop() waits for a read that does not come back"
    assert time.monotonic() - begun < file_watch.STOP_S + 3.0  # others use this machine, too
    stopping.join()


def test_the_launchers_hosts_file_that_cannot_be_read_to_its_end_holds_no_end_up(
    stall: Stall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "read_text", stall)
    source = HostsFileSource(tmp_path / "hosts", HostFeed(None), default_slots=1)  # type: ignore[arg-type]
    source.start()
    assert stall.begun.wait(20)
    ends_in_time(source.stop)


def test_the_daemons_file_that_cannot_be_looked_at_holds_no_end_up_and_tells_nobody_afterwards(
    stall: Stall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(file_watch, "_look", stall)
    source = FileSource(tmp_path / "hosts")
    source.start(lambda: told.append("changed"))
    assert stall.begun.wait(20)
    ends_in_time(source.stop)
    stall.over.set()
    wait_until(lambda: not any("filewatch" in thread.name for thread in threading.enumerate()), what="its end")
    assert told == []
