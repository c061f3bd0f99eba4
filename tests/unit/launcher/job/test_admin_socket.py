"""The launcher's socket for its own user: complete answers to complete requests, and no client can block it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.cli import hosts
from hvd_elastic_ext.launcher.folder.state_folder import StateDir
from hvd_elastic_ext.launcher.job import admin_socket
from hvd_elastic_ext.launcher.job.admin_socket import MAX_CLIENTS, MAX_LINE, AdminSocket, ask, short_name


def echo(request: Mapping[str, Any]) -> Mapping[str, Any]:
    if "wrong" in request:
        raise UsageError("that is wrong; write it right")
    return {"asked": dict(request)}


async def raw(path: Path, data: bytes) -> list[bytes]:
    """Send ``data``, and nothing more. Return all lines of the answer."""
    with short_name(path) as name:
        reader, writer = await asyncio.open_unix_connection(name)
    writer.write(data)
    writer.write_eof()
    answers = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    return answers.splitlines()


async def test_a_request_is_answered_and_the_socket_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    admin = AdminSocket(path, echo)
    assert await admin.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert await asyncio.to_thread(ask, path, {"do": "list"}) == {"asked": {"do": "list"}}
    await admin.stop()
    await admin.stop()
    assert not path.exists()


async def test_an_error_of_the_handler_is_answered_and_the_socket_stays_open(tmp_path: Path) -> None:
    admin = AdminSocket(tmp_path / "s", echo)
    await admin.start()
    answers = await raw(tmp_path / "s", b'{"wrong":1}\n{"right":2}\n')
    assert [json.loads(line) for line in answers] == [
        {"error": "that is wrong; write it right"},
        {"asked": {"right": 2}},
    ]
    await admin.stop()


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b"\xff\xfe\n", b"[" * 60_000 + b"\n", b"x" * (2 * MAX_LINE)])
async def test_what_is_no_request_gets_one_line_and_harms_nobody(tmp_path: Path, line: bytes) -> None:
    admin = AdminSocket(tmp_path / "s", echo)
    await admin.start()
    (answer,) = await raw(tmp_path / "s", line)
    assert "one JSON object on one line" in json.loads(answer)["error"]
    assert await raw(tmp_path / "s", b'{"a":1}\n') == [b'{"asked":{"a":1}}']
    await admin.stop()


async def test_a_client_that_says_nothing_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_socket, "IDLE_S", 0.05)
    admin = AdminSocket(tmp_path / "s", echo)
    await admin.start()
    with short_name(tmp_path / "s") as name:
        reader, writer = await asyncio.open_unix_connection(name)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    await admin.stop()


async def test_more_clients_than_there_is_room_for_are_turned_away(tmp_path: Path) -> None:
    admin = AdminSocket(tmp_path / "s", echo)
    await admin.start()
    idle = []
    for _ in range(MAX_CLIENTS):
        with short_name(tmp_path / "s") as name:
            reader, writer = await asyncio.open_unix_connection(name)
        writer.write(b"{}\n")
        assert await reader.readline()
        idle.append(writer)
    assert await raw(tmp_path / "s", b"") == []
    for writer in idle:
        writer.close()
        await writer.wait_closed()
    await admin.stop()


async def test_stopping_hangs_up_on_whoever_is_connected(tmp_path: Path) -> None:
    admin = AdminSocket(tmp_path / "s", echo)
    await admin.start()
    with short_name(tmp_path / "s") as name:
        reader, writer = await asyncio.open_unix_connection(name)
    writer.write(b"{}\n")
    assert await reader.readline()
    await asyncio.wait_for(admin.stop(), 10)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_the_socket_that_a_killed_launcher_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    left = socket.socket(socket.AF_UNIX)
    with short_name(path) as name:
        left.bind(name)
    left.close()
    with pytest.raises(ConnectionRefusedError):
        ask(path, {})
    admin = AdminSocket(path, echo)
    assert await admin.start()
    assert await asyncio.to_thread(ask, path, {"a": 1}) == {"asked": {"a": 1}}
    await admin.stop()


async def test_an_older_launcher_that_stops_leaves_the_newer_ones_socket_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    older, newer = AdminSocket(path, lambda _: {"i": "older"}), AdminSocket(path, lambda _: {"i": "newer"})
    await older.start()
    await newer.start()
    await older.stop()
    assert await asyncio.to_thread(ask, path, {}) == {"i": "newer"}
    await newer.stop()


async def test_a_folder_too_deep_for_a_socket_address_will_do(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 60] * 4)
    deep.mkdir(parents=True)
    admin = AdminSocket(deep / "control.sock", echo)
    assert await admin.start()
    assert await asyncio.to_thread(ask, deep / "control.sock", {}) == {"asked": {}}
    await admin.stop()


def test_a_launcher_that_cannot_listen_says_so_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    admin = AdminSocket(tmp_path / "missing" / "s", echo)
    assert asyncio.run(admin.start()) is False
    asyncio.run(admin.stop())
    assert "cannot listen" in caplog.text
    assert "hvd-elastic hosts" in caplog.text


def test_nobody_listening_is_told_apart_from_silence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ask(tmp_path / "s", {})
    mute = socket.socket(socket.AF_UNIX)
    with mute, short_name(tmp_path / "s") as name:
        mute.bind(name)
        mute.listen()
        with pytest.raises(TimeoutError):
            ask(tmp_path / "s", {}, timeout=0.05)


def test_a_launcher_that_has_just_begun_is_asked_as_soon_as_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        loop, admin = asyncio.get_running_loop(), AdminSocket(folder.socket, echo)
        monkeypatch.setattr(
            hosts.time, "sleep", lambda _: asyncio.run_coroutine_threadsafe(admin.start(), loop).result()
        )
        assert await asyncio.to_thread(hosts.answer_of, folder.path, {"do": "list"}) == {"asked": {"do": "list"}}
        await admin.stop()

    with StateDir(tmp_path / "state") as folder:
        asyncio.run(story())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user: run the tests as root")
def test_what_another_user_answers_is_not_listened_to() -> None:
    listen = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); "
        "s.listen(); print('up', flush=True); c = s.accept()[0]; "
        'c.sendall(b\'{"said": "done"}\\n\'); print(c.recv(99), flush=True)'
    )
    with tempfile.TemporaryDirectory(prefix="hvd-test-") as name:
        Path(name).chmod(0o1777)
        path = Path(name) / "control.sock"
        with subprocess.Popen([sys.executable, "-c", listen, str(path)], stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "up\n"
            with pytest.raises(UsageError, match=r"user 65534 answers there, not your launcher"):
                ask(path, {"do": "list"})
            assert other.stdout.readline() in ("b''\n", "")  # it got no request
