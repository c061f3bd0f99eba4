"""Answers of a server that are not read to their end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.io.kube.client import Client


class Response:
    """urllib3's, with two pieces."""

    chunked = True

    def __init__(self) -> None:
        self.closed = self.released = False

    def stream(self, size: int | None, *, decode_content: bool) -> Iterator[bytes]:
        yield from (b"one", b"two")

    def close(self) -> None:
        self.closed = True

    def release_conn(self) -> None:
        self.released = True


@pytest.mark.parametrize(("read", "closed"), [(0, True), (1, True), (3, False)], ids=["none", "some", "all"])
def test_an_answer_that_is_not_read_to_its_end_is_closed_however_little_was_read(
    monkeypatch: pytest.MonkeyPatch, read: int, closed: bool
) -> None:
    response = Response()
    monkeypatch.setattr(Client, "_send", lambda *_, **__: response)
    monkeypatch.setattr(Client, "session", lambda _: cast(Any, None))
    pieces = Client(Access()).stream("/pods", live=True)
    assert [piece for _, piece in zip(range(read), pieces, strict=False)] == [b"one", b"two"][:read]
    pieces.close()
    assert (response.closed, response.released) == (closed, True)
