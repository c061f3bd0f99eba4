"""A file whose reads take as long as the test wants."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from discover import sources
from discover.sources import FileSource, Observation, Unsettled
from hvd_elastic_ext.core.errors import SourceUnavailable
from tests.support.waiting import wait_until


class Slow:
    """In the place of ``read_text``: says what it is given, in the order in which it is."""

    def __init__(self) -> None:
        self.begun = 0
        self._texts: list[str | Exception] = []
        self._more = threading.Semaphore(0)

    def say(self, text: str | Exception) -> None:
        self._texts.append(text)
        self._more.release()

    def __call__(self, path: Path) -> str:
        self.begun += 1
        assert self._more.acquire(timeout=60)
        text = self._texts.pop(0)
        if isinstance(text, Exception):
            raise text
        return text


class Rig:
    def __init__(self, folder: Path, slow: Slow) -> None:
        self.slow = slow
        self.path = folder / "hosts"
        self.path.write_text("never read\n")
        self.told = threading.Semaphore(0)
        self.source = FileSource(self.path)
        self.source.start(self.told.release)
        self.hear()  # the watch's first word

    def hear(self) -> None:
        assert self.told.acquire(timeout=60)

    def change(self) -> None:
        self.path.write_text("changed\n")
        self.hear()

    def names(self) -> tuple[str, ...]:
        seen: list[Observation | Unsettled] = []
        wait_until(lambda: isinstance(seen.append(self.source.read()) or seen[-1], Observation), what="hosts")
        assert isinstance(seen[-1], Observation)
        return seen[-1].hosts.names


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    slow = Slow()
    monkeypatch.setattr(sources, "read_text", slow)
    monkeypatch.setattr(sources, "READ_TIMEOUT", 0.05)
    monkeypatch.setattr(sources, "STOP_S", 0.05)
    rig = Rig(tmp_path, slow)
    yield rig
    slow.say("a:1\n")  # whoever still waits
    rig.source.stop()


def test_a_slow_read_is_unsettled_and_its_end_is_reported(rig: Rig) -> None:
    for _ in range(3):
        seen = rig.source.read()
        assert isinstance(seen, Unsettled)
        assert "stands still" in seen.why
    assert rig.slow.begun == 1
    rig.slow.say("a:1\n")
    rig.hear()
    assert rig.names() == ("a",)
    assert rig.slow.begun == 1


def test_what_changed_while_it_was_read_is_read_again(rig: Rig) -> None:
    assert isinstance(rig.source.read(), Unsettled)
    rig.change()
    rig.slow.say("a:1\n")
    rig.hear()
    assert rig.names() == ("a",)
    rig.hear()
    rig.slow.say("b:1\n")
    assert rig.names() == ("b",)


def test_an_exception_of_a_late_read_is_raised_by_the_next_look(rig: Rig) -> None:
    assert isinstance(rig.source.read(), Unsettled)
    rig.slow.say(SourceUnavailable("hosts", "does not exist"))
    rig.hear()
    with pytest.raises(SourceUnavailable, match="does not exist"):
        rig.source.read()


def test_after_its_end_nobody_is_told_of_a_read(rig: Rig) -> None:
    assert isinstance(rig.source.read(), Unsettled)
    while rig.told.acquire(blocking=False):
        """What the watch said meanwhile."""
    rig.source.stop()
    rig.slow.say("a:1\n")
    wait_until(lambda: not any(each.name.startswith("read ") for each in threading.enumerate()), what="the read's end")
    assert not rig.told.acquire(blocking=False)


def test_where_no_thread_can_be_started_it_is_said_and_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        with pytest.raises(SourceUnavailable, match="no thread"):
            rig.source.read()
    rig.slow.say("a:1\n")
    wait_until(lambda: isinstance(rig.source.read(), Observation), what="the hosts")
