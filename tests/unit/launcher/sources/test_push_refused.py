"""A daemon that gives no hosts: the reason, and what to check."""

from __future__ import annotations

import socket
import threading

import pytest

from hvd_elastic_ext.core.errors import ElasticError
from hvd_elastic_ext.launcher.sources import hosts
from hvd_elastic_ext.launcher.sources.hosts import PushSource
from tests.support import bad_servers
from tests.support.bad_servers import answering, drips, says


class Feed:
    def __init__(self) -> None:
        self.refused: list[str] = []
        self.told = threading.Event()

    def refuse(self, error: ElasticError) -> None:
        self.refused.append(str(error))
        self.told.set()


@pytest.mark.parametrize("scheme", ["http", "unix"])
def test_a_daemon_that_is_not_there_is_told_with_what_to_check(scheme: str) -> None:
    with socket.socket() as taken:  # bound without listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}" if scheme == "http" else "unix:///nowhere/discover.sock"
        why = "Connection refused" if scheme == "http" else "No such file or directory"
        refused = first_refusal(url)
    assert refused == f"{url}: {why}; check that hvd-discover runs, and that its --listen is this address"


def test_a_daemon_that_sends_a_byte_at_a_time_is_refused_after_a_deadline_for_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts, "ANSWER_S", 0.3)
    with answering(drips(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")) as url:
        assert "timed out; check that hvd-discover runs" in first_refusal(url)


def test_the_words_of_what_answers_in_the_place_of_a_daemon_cannot_drive_a_terminal() -> None:
    for data in (bad_servers.ESCAPES, bad_servers.NOT_HTTP):
        with answering(says(data)) as url:
            refused = first_refusal(url)
        assert refused.isprintable()
        assert "\\e[2J" in refused


def test_whatever_reading_hosts_raises_they_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hosts, "DEFECT_S", 0.01)
    feed = Feed()
    push, asked = PushSource("http://127.0.0.1:9", feed), threading.Event()  # type: ignore[arg-type]
    times: list[int] = []

    def ask() -> None:
        times.append(1)
        if len(times) == 3:
            asked.set()
        raise RecursionError("too deep")

    monkeypatch.setattr(push, "_ask", ask)
    push.start()
    try:
        assert asked.wait(25)
    finally:
        push.stop()
    assert feed.refused[0] == "http://127.0.0.1:9: a defect of hvd-elastic: RecursionError"
    assert [bool(record.exc_info) for record in caplog.records][:2] == [True, False]


def first_refusal(url: str) -> str:
    feed = Feed()
    push = PushSource(url, feed)  # type: ignore[arg-type]
    push.start()
    try:
        assert feed.told.wait(25)
    finally:
        push.stop()
    return feed.refused[0]
