"""Signals and requested hosts of ``--autoscale``: no answer, and no silence, of anybody ends or stops a job."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from hvd_elastic_ext.launcher.driver import events
from hvd_elastic_ext.launcher.scaling import signals
from hvd_elastic_ext.launcher.scaling.scalers import FileScaler
from hvd_elastic_ext.launcher.scaling.signals import ScalingInputs, SignalSource
from tests.support import bad_servers
from tests.support.bad_servers import answering, drips, says

GOES_ON = "; --autoscale goes on without it"


def inputs(*observed: str, within_s: float = 30.0) -> ScalingInputs:
    return ScalingInputs(signals.sources(observed), None, within_s=within_s)


async def values(read: ScalingInputs) -> dict[str, signals.Value]:
    (found,) = [event for event in await read.read() if isinstance(event, events.Observed)]
    return dict(found.signals)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bad_servers.NOT_HTTP, "gives no signal: its answer is not HTTP (BadStatusLine)"),
        (bad_servers.DEEP, "holds JSON that is nested too deeply"),
        (bad_servers.ESCAPES, "answers 503 \\e[2J\\e]0;owned\\x07 Busy"),
        (bad_servers.ENDLESS, "gives no signal: its answer is longer than 1048576 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
    ids=["no HTTP", "deep", "escapes", "endless", "no text"],
)
async def test_a_bad_answer_of_a_server_is_no_signal_and_one_line(
    data: bytes, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "good").write_text("1")
    with answering(says(data)) as url:
        read = inputs(f"bad={url}/q", f"good=file:{tmp_path}/good")
        for _ in range(2):
            assert await values(read) == {"good": 1.0}
    assert caplog.messages == [f"--observe bad: {url}/q {why}{GOES_ON}"]


async def test_a_file_nested_too_deeply_is_no_signal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "deep").write_text('{"a":' * 100_000)
    read = inputs(f"deep=file:{tmp_path}/deep")
    assert await values(read) == {}
    (tmp_path / "deep").write_text("3")
    assert await values(read) == {"deep": 3.0}
    assert [line.split(" ", 3)[3] for line in caplog.messages] == [
        f"holds JSON that is nested too deeply{GOES_ON}",
        "gives a signal again",
    ]


async def test_a_pipe_in_the_place_of_a_file_holds_nothing_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "good").write_text("1")
    assert await values(inputs(f"a=file:{tmp_path}/pipe", f"b=file:{tmp_path}/good")) == {"b": 1.0}
    (line,) = caplog.messages
    assert "it is a pipe (FIFO), not a regular file" in line


async def test_a_server_that_drips_is_no_signal_after_its_deadline(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "TIMEOUT_S", 0.2)
    with answering(drips(b"HTTP/1.1 200 OK\r\n\r\n")) as url:
        assert await values(inputs(f"q={url}/q")) == {}
    assert caplog.messages == [f"--observe q: {url}/q gives no signal: no complete answer within 0.2 s{GOES_ON}"]


async def test_a_source_that_never_answers_holds_up_no_other_one_and_is_asked_by_one_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a file on a disk that hangs."""
    answers, asked = threading.Event(), list[threading.Thread]()

    def hangs() -> str:
        asked.append(threading.current_thread())
        assert answers.wait(60)
        return "7"

    sources = [SignalSource("hangs", "disk", hangs, float), SignalSource("good", "x", lambda: "1", float)]
    read = ScalingInputs(sources, None, within_s=0.1)
    try:
        for _ in range(3):
            assert await values(read) == {"good": 1.0}
    finally:
        answers.set()
    for thread in asked:
        thread.join(60)
    assert len(asked) == 1
    assert await values(read) == {"good": 1.0, "hangs": 7.0}
    assert caplog.messages == [
        f"--observe hangs: disk does not answer within 0.1 s; it is asked again when it does{GOES_ON}",
        "--observe hangs: disk gives a signal again",
    ]


async def test_whatever_a_source_raises_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def raises() -> str:
        raise ZeroDivisionError("our own mistake")

    read = ScalingInputs([SignalSource("q", "x", raises, float)], None)
    for _ in range(3):
        assert await values(read) == {}
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False, False]


class Scaler:
    ordered = False

    def scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        raise AssertionError

    def asked_for(self) -> int | None:
        raise RecursionError("whatever")

    def close(self) -> None: ...


async def test_whatever_a_scaler_raises_training_goes_on(tmp_path: Path) -> None:
    assert await ScalingInputs([], Scaler()).read() == []
    (tmp_path / "wanted").write_text('{"hosts": 3}')
    assert await ScalingInputs([], FileScaler(tmp_path / "wanted")).read() == [events.HostsAskedFor(3)]
    (tmp_path / "wanted").write_text("[" * 100_000)
    assert await ScalingInputs([], FileScaler(tmp_path / "wanted")).read() == []
    (tmp_path / "wanted").unlink()
    os.mkfifo(tmp_path / "wanted")
    assert await ScalingInputs([], FileScaler(tmp_path / "wanted")).read() == []
