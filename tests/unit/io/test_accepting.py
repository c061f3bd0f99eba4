"""A listener in a loop: nothing that strangers do to it costs more than a line."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

import pytest

from hvd_elastic_ext.io import accepting
from hvd_elastic_ext.io.accepting import Listener


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS])
async def test_out_of_descriptors_it_says_so_once_and_accepts_again_when_there_are_some(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_S", 0.01)
    caplog.set_level(logging.DEBUG)
    accept, tries, came = socket.socket.accept, 0, asyncio.Event()

    def refused(self: socket.socket) -> tuple[socket.socket, object]:
        nonlocal tries
        tries += 1
        if tries < 20:
            raise OSError(number, "no more of them")
        return accept(self)

    def taken(connection: socket.socket, _: object) -> None:
        connection.close()
        came.set()

    monkeypatch.setattr(socket.socket, "accept", refused)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        listener = Listener(listening, taken, name="the port")
        await asyncio.wait_for(came.wait(), 20)
        listener.close()
        listener.close()
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.DEBUG] == [
        "the port cannot accept connections just now: no more of them"
    ]


async def test_room_is_made_before_each_connection() -> None:
    seen: list[str] = []
    both = asyncio.Event()

    def taken(connection: socket.socket, _: object) -> None:
        connection.close()
        seen.append("came")
        if seen.count("came") == 2:
            both.set()

    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()),
        socket.create_connection(listening.getsockname()),
    ):
        listener = Listener(listening, taken, name="the port", room=lambda: seen.append("room"))
        await asyncio.wait_for(both.wait(), 20)
        listener.close()
    assert seen[:4] == ["room", "came", "room", "came"]
