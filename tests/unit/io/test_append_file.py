"""Lines that a thread writes: in order, without waiting, and with a count of those that are lost."""

from __future__ import annotations

import errno
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.core.journal import Journal, read, with_dropped
from hvd_elastic_ext.io.append_file import AppendFile, QueuedLines
from hvd_elastic_ext.io.own_files import open_output
from hvd_elastic_ext.io.threads import writer_thread
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until


class Disk:
    """A file on a disk that is full while ``full`` is true, and does not answer while ``goes`` is not set."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = AppendFile(open_output(path, option="--journal"))
        self.full = False
        self.writes = 0
        self.goes, self.stands = threading.Event(), threading.Event()
        self.goes.set()

    def write(self, text: str, /) -> int:
        self.stands.set()
        assert self.goes.wait(60)
        self.writes += 1
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(text)

    def flush(self) -> None:
        self.file.flush()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_thread, "STALL_S", 30.0)
    monkeypatch.setattr(writer_thread, "CLOSE_S", 60.0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    before = set(threading.enumerate())
    made = Disk(tmp_path / "lines")
    yield made
    made.goes.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    made.file.close()


def written(disk: Disk) -> list[tuple[str, object]]:
    with disk.path.open() as lines:
        return [(record.event, record.get("dropped")) for record in read(lines)]


def test_lost_lines_are_announced_once_counted_and_so_is_the_end_of_it(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    lines = QueuedLines(disk, "the journal", counts=True)
    journal = Journal(lines, ManualClock())
    for disk.full in (False, True, True, True, False, False, True, False):
        disk.writes = 0
        journal.record("slept", generation=0)
        wait_until(lambda: disk.writes == 1 and not lines._outlet._size, what="the thread", timeout=60)
    lines.close()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition(" (")[0] for line in said] == [
        "the journal cannot be written",
        "the journal can be written again",
    ] * 2
    assert [dropped for _, dropped in written(disk)] == [None, 3, None, 1]


def test_while_the_disk_hangs_events_are_recorded_at_once_and_written_in_order_afterwards(
    disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "SLOW_S", 0.0)
    disk.goes.clear()
    lines = QueuedLines(disk, "the journal", counts=True)
    journal = Journal(lines, ManualClock())
    begun = time.monotonic()
    for number in range(300):
        journal.record("committed", generation=number)
        assert disk.stands.wait(60)
    assert time.monotonic() - begun < 20
    assert written(disk) == []
    disk.goes.set()
    lines.close()
    with disk.path.open() as written_lines:
        assert [record.generation for record in read(written_lines)] == list(range(300))
    assert caplog.messages == [
        "the journal is not written, because the disk does not answer; the job goes on, and lines wait",
        "the journal is written again; nothing is missing",
    ]


def test_what_finds_no_room_while_the_disk_hangs_is_counted_in_the_log_and_in_the_next_line(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.goes.clear()
    lines = QueuedLines(disk, "the journal", counts=True, room=2_000)
    journal = Journal(lines, ManualClock())
    for _ in range(100):
        journal.record("slept", generation=0)
    assert caplog.messages == [
        "the journal is not written, because the disk does not answer: lines are lost until there is room again"
    ]
    disk.goes.set()
    wait_until(lambda: len(caplog.messages) == 2, what="room again", timeout=60)
    journal.record("woke", generation=0)
    lines.close()
    *kept, last = written(disk)
    assert 5 < len(kept) < 50
    assert {dropped for _, dropped in kept} == {None}
    assert last == ("woke", 100 - len(kept))
    assert caplog.messages[1] == f"the journal is written again; {100 - len(kept)} lines are missing in it"


def test_the_end_does_not_wait_for_a_disk_that_hangs_and_says_what_is_lost(
    disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "STALL_S", 0.05)
    disk.goes.clear()
    lines = QueuedLines(disk, "the journal", counts=True)
    journal = Journal(lines, ManualClock())
    for _ in range(3):
        journal.record("slept", generation=0)
    assert disk.stands.wait(60)
    lines.close()
    lines.close()
    assert caplog.messages == ["the journal: the last 3 lines are not written: the disk does not answer"]


def test_the_count_is_added_to_lines_of_a_journal_alone() -> None:
    assert json.loads(with_dropped('{"event":"slept"}\n', 7)) == {"event": "slept", "dropped": 7}
    for text in ("no JSON\n", "", "}", '["a"]\n'):
        assert with_dropped(text, 7) == text


def test_a_line_is_in_the_file_when_write_returns_so_that_a_killed_process_has_lost_none(tmp_path: Path) -> None:
    lines = QueuedLines.opened(tmp_path / "journal", "the journal", option="--journal", counts=True)
    try:
        for number in range(200):
            lines.write(f'{{"event":"stepped","step":{number}}}\n')
            assert (tmp_path / "journal").read_text().count("\n") == number + 1
    finally:
        lines.close()
