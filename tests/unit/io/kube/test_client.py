"""Connections of the client's collections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from discover.kube.cluster import Followed
from discover.kube.collection import Request, RequestKind
from hvd_elastic_ext.io.kube.client import Timeouts


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
    monkeypatch.setattr(Followed, "_send", lambda *_, **__: response)
    collection = Followed(None, "/pods", dict, timeouts=Timeouts(), where="here")  # type: ignore[arg-type]
    pieces = collection.open(Request(ask=RequestKind.WATCH))
    assert [piece for _, piece in zip(range(read), pieces, strict=False)] == [b"one", b"two"][:read]
    pieces.close()
    assert (response.closed, response.released) == (closed, True)
