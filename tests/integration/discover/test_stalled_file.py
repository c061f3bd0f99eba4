"""The real daemon, and under the file that it follows a real file system that stands still."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import stalled_filesystem
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

BEFORE_IT_NEVER_ENDED_S = 6.0
"""It promises 2 s, and others use this machine."""


class Stalled:
    """A daemon that reads what stands still from now on."""

    def __init__(self, place: Any, process: RunningProcess, backing: Path, stall: Path) -> None:
        self.place, self.process = place, process
        self._backing, self._stall = backing, stall

    def stall(self, text: str) -> None:
        begun = self._stall.with_name(f"{self._stall.name}.begun")
        begun.unlink(missing_ok=True)
        self._stall.touch()
        self._backing.write_text(text)
        wait_until(begun.exists, what="a read that waits", timeout=60, show=lambda: self.process.output)

    def go_on(self) -> None:
        self._stall.unlink()


@pytest.fixture
def daemon(place: Any, tmp_path: Path) -> Iterator[Stalled]:
    if (missing := stalled_filesystem.missing()) is not None:
        pytest.skip(missing)
    mounted, backing, stall = tmp_path / "mounted", tmp_path / "backing", tmp_path / "stall"
    mounted.mkdir()
    backing.write_text("a:1\n")
    within = [sys.executable, "-m", "tests.support.stalled_filesystem", *map(str, (mounted, backing, stall))]
    watched = str(mounted / stalled_filesystem.NAME)
    follow = [sys.executable, "-m", "discover.cli", "--source", "file", "--watch", watched]
    out = ["--hosts-file", str(place.hosts), "--listen", f"unix://{place.socket}"]
    with run_process([*within, *follow, *out]) as process:
        wait_until(lambda: place.published() == "a:1\n", what="hosts", show=lambda: process.output)
        yield Stalled(place, process, backing, stall)


def test_while_a_read_stands_still_all_is_answered_then_the_new_hosts_come_and_another_one_does_not_hold_up_the_end(
    daemon: Stalled,
) -> None:
    place = daemon.place
    daemon.stall("a:1\nb:1\n")
    assert place.get("/livez")[0] == place.get("/hosts")[0] == 200
    assert "hvd" in place.get("/metrics")[1]
    daemon.go_on()
    wait_until(lambda: place.published() == "a:1\nb:1\n", what="the new hosts", show=lambda: daemon.process.output)
    daemon.stall("c:1\n")
    before = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(BEFORE_IT_NEVER_ENDED_S) == 0
    assert time.monotonic() - before < BEFORE_IT_NEVER_ENDED_S
    assert place.published() == "a:1\nb:1\n"
    assert not place.socket.exists()


@pytest.mark.soak
def test_a_read_that_stands_still_is_told_of_while_it_does(daemon: Stalled) -> None:
    place = daemon.place
    daemon.stall("a:1\nb:1\n")
    wait_until(lambda: place.get("/readyz")[0] == 503, what="that it is said", show=lambda: daemon.process.output)
    assert "stands still" in place.get("/readyz")[1]
    daemon.go_on()
    wait_until(lambda: place.get("/readyz")[0] == 200, what="that all is well again")
    assert daemon.process.stderr.count("stands still") <= 2
