"""A request to a server that answers slowly, wrongly, endlessly, or with control characters."""

from __future__ import annotations

import time

import pytest

from hvd_elastic_ext.io.http_exchange import Answer, NoAnswer, exchange
from tests.support import bad_servers
from tests.support.bad_servers import answering, drips, says
from tests.support.serving import serving


def ask(url: str, *, within_s: float = 20.0) -> Answer:
    return exchange(url, headers={}, within_s=within_s, most=1 << 20)


def test_an_answer_and_its_status_are_returned() -> None:
    with serving(200) as server:
        server.body = b"42"
        assert ask(server.url) == Answer(200, "OK", b"42")
        server.codes = [404]
        assert ask(server.url).said == "404 Not Found"


@pytest.mark.parametrize(
    "begins", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["status", "headers", "body"]
)
def test_a_server_that_sends_a_byte_at_a_time_has_a_deadline_for_the_whole_answer(begins: bytes) -> None:
    with answering(drips(begins)) as url:
        begun = time.monotonic()
        with pytest.raises(NoAnswer, match=r"no complete answer within 0\.3 s"):
            ask(url, within_s=0.3)
        assert time.monotonic() - begun < 15


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bad_servers.NOT_HTTP, "its answer is not HTTP (BadStatusLine)"),
        (b"", "its answer is not HTTP (RemoteDisconnected)"),
        (bad_servers.CUT, "its answer breaks off"),
        (bad_servers.BAD_CHUNK, "its answer is not HTTP (IncompleteRead)"),
        (bad_servers.HEADERS, "its answer is not HTTP (HTTPException)"),
        (bad_servers.ENDLESS, "its answer is longer than 1048576 bytes"),
    ],
    ids=["no HTTP", "nothing", "cut", "chunks", "headers", "endless"],
)
def test_what_is_no_answer_is_one_line_without_the_servers_words(data: bytes, why: str) -> None:
    with answering(says(data)) as url, pytest.raises(NoAnswer) as caught:
        ask(url)
    assert str(caught.value) == why


def test_the_words_of_a_server_cannot_drive_a_terminal() -> None:
    with answering(says(bad_servers.ESCAPES)) as url:
        answer = ask(url)
    assert answer.said == "503 \\e[2J\\e]0;owned\\x07 Busy"


def test_a_redirect_to_another_protocol_is_not_followed() -> None:
    with answering(says(b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1:9/x\r\nContent-Length: 0\r\n\r\n")) as url:
        assert ask(url).status == 302


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(NoAnswer, match="Connection refused"):
        ask("http://127.0.0.1:9")
