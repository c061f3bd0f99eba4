"""Requests as Horovod's clients make them, in whatever pieces they come; and what is none."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.agent.ports import MAX_BODY, MAX_HEAD, METHODS, BadRequest, Reader, Request, response


def fed(data: bytes, size: int = 1 << 16) -> Request | None:
    reader = Reader()
    found = [reader.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert all(request is None for request in found[:-1])
    return found[-1]


@given(st.binary(max_size=50), st.integers(1, 30))
def test_a_request_comes_out_whole_however_it_was_cut(body: bytes, size: int) -> None:
    head = f"PUT /global/0%2f HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-LENGTH:  {len(body)} \r\n\r\n".encode()
    assert fed(head + body, size) == Request("PUT", "/global/0%2f", body)


def test_without_a_length_there_is_no_body() -> None:
    assert fed(b"GET /scope/key HTTP/1.1\r\nHost: a\r\n\r\n") == Request("GET", "/scope/key")


@given(st.binary(max_size=200))
def test_nonsense_is_refused_or_waited_for_and_breaks_nothing(data: bytes) -> None:
    with contextlib.suppress(BadRequest):
        request = Reader().feed(data)
        assert request is None or request.method in METHODS


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /\xc3\xa9 HTTP/1.1\r\n\r\n", 400),
        (b"GET http://other/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"HEAD / HTTP/1.1\r\n\r\n", 405),
        (b"PUT / HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
        (b"PUT / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\n" + b"x" * MAX_HEAD, 431),
    ],
)
def test_what_is_refused_says_why_by_its_status(data: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as refusal:
        Reader().feed(data)
    assert refusal.value.status == status
    assert b" Other\r\n" not in response(status)


def test_an_answer_tells_its_length_and_that_nothing_follows() -> None:
    assert response(200, b"abc") == b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    assert response(418).startswith(b"HTTP/1.1 418 ")
