"""States on their way to the disk: one at a time, the newest last, and the loop never waits."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.launcher.job import saved_state, state_folder
from hvd_elastic_ext.launcher.job.saved_state import StateWriter
from hvd_elastic_ext.launcher.job.state_folder import Saved, StateDir

SECONDS = 60


class Disk:
    """A real folder whose disk stands still while ``goes`` is not set."""

    def __init__(self, folder: StateDir) -> None:
        self.folder = folder
        self.goes = threading.Event()
        self.stands = threading.Event()
        self.saved: list[tuple[int, bool]] = []
        self.writers: set[threading.Thread] = set()

    def save(self, saved: Saved) -> bool:
        self.writers.add(threading.current_thread())
        done = self.folder.save(saved)
        self.saved.append((saved.generation, done))
        return done

    def sync(self, descriptor: int) -> None:
        self.stands.set()
        assert self.goes.wait(SECONDS)
        os.fdatasync(descriptor)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    with StateDir(tmp_path / "job") as folder:
        made = Disk(folder)
        monkeypatch.setattr(state_folder.os, "fsync", made.sync)
        yield made
        made.goes.set()
        for writer in made.writers:
            writer.join(SECONDS)


def state(generation: int) -> Saved:
    return Saved(1, generation)


def test_what_changes_while_the_disk_is_slow_is_written_next_and_the_newest_of_it_only(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    with StateWriter(disk.save) as saved:
        saved.soon(state(1))
        assert disk.stands.wait(SECONDS)
        for generation in (2, 3, 4):
            saved.soon(state(generation))
        disk.goes.set()
    assert disk.saved == [(1, True), (4, True)]
    assert disk.folder.load() == state(4)
    assert not caplog.records


def test_of_states_that_come_by_the_hundred_none_fails_and_the_last_one_stays(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.goes.set()
    with StateWriter(disk.save) as saved:
        for generation in range(1, 401):
            saved.soon(state(generation))
            if generation % 20 == 0:
                assert disk.stands.wait(SECONDS)
                disk.stands.clear()
    generations = [generation for generation, _ in disk.saved]
    assert generations == sorted(generations)
    assert all(done for _, done in disk.saved)
    assert disk.folder.load() == state(400)
    assert not caplog.records


def test_who_leaves_waits_for_the_state_that_is_being_written_and_for_the_last_one(disk: Disk) -> None:
    with StateWriter(disk.save) as saved:
        saved.soon(state(1))
        assert disk.stands.wait(SECONDS)
        saved.soon(Saved(1, 2, None, {"finished": True}))
        threading.Timer(0.05, disk.goes.set).start()
    assert disk.folder.load() == Saved(1, 2, None, {"finished": True})


def test_a_disk_that_hangs_costs_one_thread_and_keeps_nobody_from_leaving(
    disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_state, "CLOSE_S", 0.05)
    with StateWriter(disk.save) as saved:
        before = threading.active_count()
        for generation in range(100):
            saved.soon(state(generation))
        assert disk.stands.wait(SECONDS)
        assert threading.active_count() <= before + 1
    (said,) = caplog.records
    assert said.getMessage() == "the job's last state is not written after 0.05 s: the disk does not answer"
    assert all(writer.daemon for writer in disk.writers)


def test_a_defect_is_logged_and_the_next_state_written(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.goes.set()
    for broken in (Saved(1, 1, None, {"not": object()}), state(2)):
        with StateWriter(disk.save) as saved:
            saved.soon(broken)
    (said,) = caplog.records
    assert said.levelno == logging.ERROR
    assert said.exc_info
    assert disk.folder.load() == state(2)
