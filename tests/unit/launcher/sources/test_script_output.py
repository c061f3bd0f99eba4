"""The output of a discovery script, and the cost of an invalid one."""

from __future__ import annotations

import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import BadHosts, ElasticError, SourceUnavailable
from hvd_elastic_ext.core.publication import Publication, parse_hosts_text
from hvd_elastic_ext.launcher.sources import hosts
from hvd_elastic_ext.launcher.sources.hosts import ScriptSource


class Feed:
    def __init__(self) -> None:
        self.offered: list[Publication] = []
        self.refused: list[ElasticError] = []
        self.failed: list[ElasticError] = []
        self.told = threading.Event()

    def offer(self, publication: Publication) -> None:
        self.offered.append(publication)

    def refuse(self, error: ElasticError) -> None:
        self.refused.append(error)
        self.told.set()

    def fail(self, error: ElasticError) -> None:
        self.failed.append(error)
        self.told.set()


def source(command: str, feed: Feed | None = None, *, timeout_s: float = 30.0) -> ScriptSource:
    return ScriptSource(command, feed or Feed(), default_slots=1, interval_s=0.01, timeout_s=timeout_s)  # type: ignore[arg-type]


def test_a_script_that_prints_without_end_is_killed_and_the_hosts_stay(tmp_path: Path) -> None:
    first, feed = tmp_path / "first", Feed()
    script = source(f"if [ -e {first} ]; then exec yes garbage; fi; touch {first}; echo a:2", feed)
    tracemalloc.start()
    script.start()
    try:
        assert feed.told.wait(25)
    finally:
        script.stop()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert [publication.hosts.names for publication in feed.offered] in ([["a"]], [("a",)])
    assert not feed.failed
    assert isinstance(feed.refused[0], SourceUnavailable)
    assert f"printed more than {hosts.MAX_OUTPUT} bytes and was killed" in str(feed.refused[0])
    assert peak < 8 * hosts.MAX_OUTPUT


@pytest.mark.parametrize("over", [0, 1])
def test_the_limit_is_that_of_a_hosts_file(tmp_path: Path, over: int) -> None:
    text = "a:2\n#" + "x" * (hosts.MAX_OUTPUT - 6 + over) + "\n"
    (tmp_path / "hosts").write_text(text)
    script = source(f"cat {tmp_path / 'hosts'}")
    if not over:
        assert script._run() == text
        return
    with pytest.raises(SourceUnavailable, match="printed more than"):
        script._run()


def test_a_script_that_closes_its_output_and_stays_has_no_more_time_than_others() -> None:
    begun = time.monotonic()
    with pytest.raises(SourceUnavailable, match="gave no list within"):
        source("echo a:2; exec >&-; sleep 1000", timeout_s=0.2)._run()
    with pytest.raises(SourceUnavailable, match="gave no list within"):
        source("echo a:2; sleep 1000", timeout_s=0.2)._run()
    assert time.monotonic() - begun < 20


def test_lines_end_as_in_a_hosts_file() -> None:
    assert source(r"printf 'a:1\r\nb:2\rc:3\n'")._run() == "a:1\nb:2\nc:3\n"


def test_a_list_of_bad_lines_is_told_by_the_first_and_a_count_and_costs_no_memory_each() -> None:
    text = "ok:1\n" + "-bad line\n" * 10_000
    tracemalloc.start()
    try:
        with pytest.raises(BadHosts, match=r"^here:2: .* \(and 9999 more bad lines\)$"):
            parse_hosts_text(text, where="here")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * len(text)  # the lines themselves


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("exit 3", "exit 3: ended with exit code 3; run it by hand: it must print lines of host:slots"),
        ("/nowhere/it", "/nowhere/it: ended with exit code 127 (there is no such program); run it by hand"),
        ("kill -9 $$", "kill -9 $$: was killed by signal 9; run it by hand"),
    ],
)
def test_a_first_run_that_fails_is_told_once_with_what_to_do(command: str, line: str) -> None:
    feed = Feed()
    script = source(command, feed)
    script.start()
    try:
        assert feed.told.wait(25)
    finally:
        script.stop()
    assert str(feed.failed[0]).startswith(line)
    assert not feed.refused
