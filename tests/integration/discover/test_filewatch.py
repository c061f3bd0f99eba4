"""Every kind of change to a file, on real inotify: polling is switched off."""

import itertools
import logging
import resource
import threading
import time
from pathlib import Path

import pytest

from hvd_elastic_ext.io import file_watch
from hvd_elastic_ext.io.file_watch import FileWatch
from tests.integration.discover.watching import NEVER, Watched, replace
from tests.support.waiting import wait_until


def write_in_place(path: Path) -> None:
    path.write_text("new:1\n")


def write_by_rename(path: Path) -> None:
    replace(path, "new:1\n")


def write_as_vim_does(path: Path) -> None:
    path.rename(path.with_name("hosts~"))
    path.write_text("new:1\n")
    path.with_name("hosts~").unlink()


def link_another_file(path: Path) -> None:
    path.with_name("other").write_text("new:1\n")
    path.with_name("link").symlink_to("other")
    path.with_name("link").replace(path)


def hard_link_another_file(path: Path) -> None:
    path.with_name("other").write_text("new:1\n")
    path.unlink()
    path.hardlink_to(path.with_name("other"))


# Each leads to other events.
WRITERS = [write_in_place, write_by_rename, write_as_vim_does, link_another_file, hard_link_another_file]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_it_notices_twice_in_a_row_and_reads_only_the_old_or_the_new_text(hosts, write):
    with Watched(hosts) as watched:
        write(hosts)
        watched.wait_for("new:1\n")
        assert set(watched.texts) <= {"old:1\n", "new:1\n", None}
        replace(hosts, "newer:1\n")
        watched.wait_for("newer:1\n")


def test_a_change_during_a_read_leads_to_another_read(hosts):
    with Watched(hosts, relook=0.2) as watched:
        wait_until(lambda: len(watched.texts) == 2, what="the look after the start, and the one after that")
        hosts.chmod(0o640)
        wait_until(lambda: len(watched.texts) == 4, what="two looks more")
        time.sleep(0.5)  # nothing tells that nothing happens
        assert len(watched.texts) == 4  # and no more than that


def test_a_file_that_is_emptied_and_then_filled_is_never_read_empty(hosts):
    with Watched(hosts) as watched:
        for number in range(200):
            hosts.write_text(f"h{number}:1\n")
        watched.wait_for("h199:1\n")
    assert "" not in watched.texts


def test_a_file_that_is_made_empty_is_read_empty(hosts):
    with Watched(hosts) as watched:
        hosts.write_text("")
        watched.wait_for("")


def test_a_writer_that_takes_its_time_is_waited_for(hosts):
    with Watched(hosts) as watched, hosts.open("w") as writer:
        writer.write("new:1\n")
        writer.flush()
        watched.told.clear()
        hosts.chmod(0o640)  # an event in the midst of it
        assert watched.told.wait(10)
        assert watched.text is None
        writer.write("more:1\n")
        writer.close()
        watched.wait_for("new:1\nmore:1\n")


def test_a_file_that_vanishes_and_comes_back(hosts):
    with Watched(hosts) as watched:
        hosts.unlink()
        watched.wait_for(None)
        hosts.write_text("new:1\n")
        watched.wait_for("new:1\n")


def test_a_reader_that_fails_is_called_again(hosts, caplog):
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("a defect")

    watch = FileWatch(hosts, fail, relook=NEVER)
    watch.start()
    wait_until(lambda: len(calls) == 1, what="the first call")
    hosts.write_text("new:1\n")
    wait_until(lambda: len(calls) >= 2, what="another call")
    watch.stop()
    assert "still watching" in caplog.text


def test_the_callbacks_of_a_watched_file_never_overlap(hosts):
    inside = threading.Lock()
    overlaps: list[int] = []
    calls: list[int] = []

    def slow() -> None:
        if not inside.acquire(blocking=False):
            overlaps.append(1)
            return
        time.sleep(0.005)
        calls.append(1)
        inside.release()

    watch = FileWatch(hosts, slow, relook=0.002)
    watch.start()
    numbers = itertools.count()

    def written() -> bool:
        for _ in range(20):
            hosts.write_text(f"h{next(numbers)}:1\n")
        return len(calls) > 5

    wait_until(written, what="several calls")
    watch.stop()
    assert not overlaps


def test_it_may_be_stopped_twice_unstarted_and_from_its_own_call(hosts):
    FileWatch(hosts, lambda: None).stop()
    stopped = threading.Event()

    def stop() -> None:
        watch.stop()
        stopped.set()

    watch = FileWatch(hosts, stop, relook=NEVER)
    watch.start()
    assert stopped.wait(10)
    watch.stop()
    watch.stop()


def test_no_call_begins_after_stop_returned(hosts):
    watched = Watched(hosts, relook=0.001)
    with watched:
        hosts.write_text("new:1\n")
    before = len(watched.texts)
    hosts.write_text("newer:1\n")
    time.sleep(0.05)  # nothing to wait for: this is about what does not happen
    assert len(watched.texts) == before


def test_without_inotify_it_polls_and_logs_that_once(hosts, monkeypatch, caplog):
    def no_watch(*_: object) -> None:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr(file_watch, "_Observer", no_watch)
    caplog.set_level(logging.WARNING)
    with Watched(hosts, relook=0.02) as watched:
        for number in range(3):
            replace(hosts, f"h{number}:1\n")
            watched.wait_for(f"h{number}:1\n")
    assert len([r for r in caplog.records if "polling it instead" in r.getMessage()]) == 1


def test_out_of_file_descriptors_it_looks_by_turns(hosts):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    watch = Watched(hosts, relook=0.02)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # no more than the standard streams
    try:
        watch.watch.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    replace(hosts, "new:1\n")
    watch.wait_for("new:1\n")
    watch.watch.stop()
