"""States are written one at a time, the newest one last, and the loop never waits."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.launcher.folder import handover, state_folder
from hvd_elastic_ext.launcher.folder.handover import StateWriter
from hvd_elastic_ext.launcher.folder.state_folder import StateDir
from hvd_elastic_ext.launcher.folder.state_json import Saved

SECONDS = 60


class Disk:
    """A real folder whose disk is blocked while ``goes`` is not set."""

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


def state(generation: int) -> Callable[[], Saved]:
    return lambda: Saved(1, generation)


async def has_come(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, SECONDS)


async def test_while_the_disk_is_slow_only_the_newest_state_waits_and_the_end_waits_for_it(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    writer = StateWriter(disk.save)
    writer.soon(state(1))
    await has_come(disk.stands)
    for generation in (2, 3, 4):
        writer.soon(state(generation))
    threading.Timer(0.05, disk.goes.set).start()
    await writer.close()
    assert disk.saved == [(1, True), (4, True)]
    assert disk.folder.load() == state(4)()
    assert not caplog.records


async def test_of_states_that_come_by_the_hundred_none_fails_and_the_last_one_stays(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.goes.set()
    writer = StateWriter(disk.save)
    for generation in range(1, 401):
        writer.soon(state(generation))
        if generation % 20 == 0:
            await has_come(disk.stands)
            disk.stands.clear()
    await writer.close()
    generations = [generation for generation, _ in disk.saved]
    assert generations == sorted(generations)
    assert all(done for _, done in disk.saved)
    assert disk.folder.load() == state(400)()
    assert not caplog.records


async def test_a_disk_that_hangs_costs_one_thread_and_the_end_does_not_wait_for_it(
    disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "CLOSE_S", 0.05)
    writer = StateWriter(disk.save)
    for generation in range(100):
        writer.soon(state(generation))
        if generation == 50:
            await has_come(disk.stands)
    await writer.close()
    assert len(disk.writers) == 1
    assert all(thread.daemon for thread in disk.writers)
    assert caplog.messages == ["the job's last state is not written after 0.05 s: the disk does not answer"]


async def test_a_defect_is_logged_and_the_next_state_written(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.goes.set()
    writer = StateWriter(disk.save)
    for each in (lambda: Saved(1, run=object()), state(2)):
        writer.soon(each)
        await writer.close()
    (said,) = caplog.records
    assert (said.levelno, said.getMessage()) == (
        logging.ERROR,
        "a defect of hvd-elastic: the job's state is not written",
    )
    assert said.exc_info
    assert disk.folder.load() == state(2)()
