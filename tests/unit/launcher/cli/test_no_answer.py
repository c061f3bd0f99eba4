"""A launcher that does not answer: the message soon says whether it is stopped, and what to do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.launcher.cli import hosts, no_answer, status
from hvd_elastic_ext.launcher.cli.no_answer import state_of, why
from hvd_elastic_ext.launcher.folder import state_folder
from tests.support.waiting import wait_until

BUSY = (
    "the launcher, pid 7, does not answer within 2 s: it is busy or hangs (state D); ask again. If it stays so: "
    "`kill -9 7`, then the same `hvd-elastic run` command, which takes over what still trains"
)


@pytest.mark.parametrize(
    ("holder", "state", "says", "stays"),
    [
        ("pid 7 on host me", "T", "the launcher, pid 7, is stopped (T): `kill -CONT 7` lets it go on", True),
        ("pid 7 on host me", "t", "the launcher, pid 7, is held by a debugger (t): let it go on there", True),
        ("pid 7 on host me", "D", BUSY, False),
        ("pid 7 on host me", None, BUSY.replace("it is busy or hangs (state D)", "its pid is not visible here"), False),
        (
            "pid 7 on host other", "T",
            "the launcher is pid 7 on host other, and cannot be asked from here; ask on that host", False,
        ),
        (None, None, "the launcher (its pid is not known) does not answer: it is busy or hangs; ask again", False),
    ],
)  # fmt: skip
def test_why_there_is_no_answer_and_what_to_do_is_said(
    holder: str | None, state: str | None, says: str, stays: bool
) -> None:
    assert why(holder, here="me", state=lambda pid: state) == (says, stays)


def test_a_stopped_process_is_seen_as_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(process.pid) == "T", what="a stopped process")
        process.kill()
    assert state_of(process.pid) is None
    assert state_of(os.getpid()) == "R"


@pytest.mark.parametrize("do", ["list", "clear", "status"])
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "busy"])
def test_a_launcher_that_listens_and_does_not_answer_is_told_with_the_remedy(
    do: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stopped: bool
) -> None:
    if not stopped:
        monkeypatch.setattr(no_answer, "ANSWER_S", 0.05)
    monkeypatch.setattr(no_answer, "why", lambda holder: (f"{holder} is in the way", stopped))
    folder = tmp_path / "job"
    with state_folder.StateDir(folder), socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / state_folder.SOCKET))
        listening.listen()
        where = ["--state-dir", str(folder)]
        main, words = {
            "status": (status.main, where),
            "list": (hosts.main, [do, *where]),
            "clear": (hosts.main, [do, "a", *where]),
        }[do]
        with pytest.raises(Permanent) as found:
            main(words)
    said = f"{folder}: pid {os.getpid()} on host {socket.gethostname()} is in the way"
    sent = do == "clear" and not stopped
    assert str(found.value) == said + ("; the launcher may still apply this request" if sent else "")
