"""What every source promises; the same suite for each of them."""

import threading
from pathlib import Path

import pytest

from discover.source import Sight
from discover.sources.file import FileSource
from discover.sources.static import StaticSource
from hvd_elastic_ext.core.errors import BadHosts, SourceUnavailable
from hvd_elastic_ext.core.hosts import HostSet
from tests.support.waiting import wait_until


class Static:
    """A list that never changes."""

    def __init__(self, directory: Path) -> None:
        self.source = StaticSource(HostSet.of({"a": 1}))


class File:
    """A file, changed by renaming another over it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "hosts"
        self.path.write_text("a:1\n")
        self.source = FileSource(self.path)

    def change(self, text: str | None) -> None:
        if text is None:
            self.path.unlink()
            return
        new = self.path.with_name("new")
        new.write_text(text)
        new.replace(self.path)


@pytest.fixture(params=[Static, File])
def case(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.source.stop()


def test_it_can_be_read_before_it_is_started(case):
    assert case.source.read() == Sight(HostSet.of({"a": 1}))


def test_it_can_be_read_while_it_is_watched(case):
    case.source.start(lambda: None)
    assert case.source.read() == Sight(HostSet.of({"a": 1}))


def test_reading_twice_tells_the_same(case):
    assert case.source.read() == case.source.read()


def test_it_can_be_stopped_twice_and_before_it_was_started(case):
    case.source.stop()
    case.source.stop()


def test_it_leaves_no_thread_when_it_is_stopped(case):
    before = set(threading.enumerate())
    case.source.start(lambda: None)
    case.source.stop()
    wait_until(lambda: set(threading.enumerate()) <= before, what="the threads of the source to end")


def test_it_says_when_there_may_be_news_and_reading_then_tells_them(tmp_path):
    case = File(tmp_path)
    changed = threading.Event()
    case.source.start(changed.set)
    try:
        for text in ("b:2\n", "b:2\nc:1\n", ""):
            wait_until(changed.is_set, what="the call for what was there before")
            changed.clear()
            case.change(text)
            assert changed.wait(10)
            wait_until(lambda text=text: len(case.source.read().hosts) == text.count(":"), what=text)
    finally:
        case.source.stop()


def test_what_cannot_be_seen_is_unavailable_and_comes_back(tmp_path):
    case = File(tmp_path)
    case.change(None)
    with pytest.raises(SourceUnavailable, match=str(case.path)):
        case.source.read()
    case.change("c:1\n")
    assert case.source.read().hosts.names == ("c",)


def test_what_is_no_list_is_refused_with_its_line(tmp_path):
    case = File(tmp_path)
    case.change("a:1\nb:zwei\nc:\n")
    with pytest.raises(BadHosts, match=r"hosts:2: .* \(and 1 more bad line\)"):
        case.source.read()
