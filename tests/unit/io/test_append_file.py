"""Lines that cannot be written: said once, and once when they can be again."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from hvd_elastic_ext.core.journal import Journal, read
from hvd_elastic_ext.io.append_file import Announced, AppendFile
from tests.support.clock import ManualClock


class Disk:
    """A file on a disk that is full while ``full`` is true."""

    def __init__(self, path: Path) -> None:
        self.file = AppendFile(path, create=True)
        self.full = False

    def write(self, text: str, /) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(text)

    def flush(self) -> None:
        self.file.flush()


def test_lost_lines_are_announced_once_counted_and_so_is_the_end_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "lines"
    disk = Disk(path)
    journal = Journal(Announced(disk, "the journal"), ManualClock())
    for disk.full in (False, True, True, True, False, False, True, False):
        journal.record("slept", generation=0)
    disk.file.close()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    lost = "the journal cannot be written (No space left on device); the job goes on, and lines are lost"
    assert said == [lost, "the journal can be written again"] * 2
    with path.open() as lines:
        assert [record.get("dropped") for record in read(lines)] == [None, 3, None, 1]
