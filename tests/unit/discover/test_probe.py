"""What a kubelet is told of a daemon that listens on a socket file."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from discover import probe
from discover.metrics import Metrics
from discover.publish.server import Health, LatestPublication, Routes, Server, UnixAddress
from tests.support.clock import ManualClock


@pytest.fixture
def daemon(tmp_path: Path, manual_clock: ManualClock) -> Iterator[str]:
    """The socket of one that turns, and has published nothing yet."""
    vitals = Health(manual_clock)
    vitals.loop_turned()
    routes = Routes(LatestPublication(), vitals=vitals, metrics=Metrics(manual_clock))
    server = Server(UnixAddress(tmp_path / "s"), routes)
    server.start()
    yield str(tmp_path / "s")
    routes.close()
    server.close()


def test_a_daemon_that_is_well_is_well(daemon: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main([daemon, "/livez"]) == 0
    assert probe.main([f"unix://{daemon}", "/livez"]) == 0
    assert capsys.readouterr() == ("", "")


def test_one_that_is_not_says_why(daemon: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main([daemon, "/startupz"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("/startupz: 503 ")
    assert said.count("\n") == 1


def test_where_nobody_listens_it_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main([str(tmp_path / "s"), "/livez"]) == 1
    assert capsys.readouterr().err == f"{tmp_path}/s: [Errno 2] No such file or directory\n"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1\r\n\r\n", b"220 smtp.example.com\r\n", b"\xff\xfe 200 OK\r\n\r\n"])
def test_a_reply_that_is_no_http_is_unhealthy(
    tmp_path: Path, answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert probe.main([str(tmp_path / "s"), "/livez"]) == 1
        thread.join()
    assert capsys.readouterr().err == f"{tmp_path}/s: no answer of hvd-discover\n"


def test_an_answer_that_drips_has_no_longer_than_one_that_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "WAIT", 0.5)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(0.05)
                while True:  # until the probe hangs up
                    connection.sendall(b"x")
                    with contextlib.suppress(TimeoutError):
                        if not connection.recv(4096):
                            break

        thread = threading.Thread(target=serve)
        thread.start()
        assert probe.main([str(tmp_path / "s"), "/livez"]) == 1
        thread.join()
    assert capsys.readouterr().err == f"{tmp_path}/s: timed out\n"


@pytest.mark.parametrize("arguments", [[], ["/s"], ["/s", "livez"], ["/s", "/livez", "/readyz"]])
def test_a_misspelt_probe_is_usage(arguments: list[str]) -> None:
    assert probe.main(arguments) == 2
