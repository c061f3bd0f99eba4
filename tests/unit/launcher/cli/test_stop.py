"""``hvd-elastic stop``: which job it means, what it refuses, and how it waits."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.io.wait_line import ERASE, WaitLine
from hvd_elastic_ext.launcher.cli import hosts, stop
from hvd_elastic_ext.launcher.folder.state_folder import LOCK, StateDir
from hvd_elastic_ext.launcher.folder.state_json import Saved
from hvd_elastic_ext.launcher.job import admin_socket
from hvd_elastic_ext.launcher.job.stop_lines import CANNOT_GO_ON
from tests.unit.io.test_wait_line import Terminal

NOBODY = 65534
KEPT = "stopped by `hvd-elastic stop`; the same command goes on after step 205, with the checkpoint /ck/7"


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("HVD_ELASTIC_STATE_DIR", "HVD_ELASTIC_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hosts, "LISTEN_TIMEOUT_S", 0.0)
    for name in ("new", "old"):
        (tmp_path / ".hvd-elastic" / name).mkdir(parents=True, mode=0o700)
    return tmp_path / ".hvd-elastic"


def test_the_job_is_never_guessed_and_the_one_that_runs_is_offered(jobs: Path) -> None:
    with pytest.raises(UsageError, match=r"^name the job: hvd-elastic stop JOB; no job runs in ./.hvd-elastic$"):
        stop.main([])
    with (
        StateDir(jobs / "old"),
        pytest.raises(UsageError, match=r"name the job: hvd-elastic stop old; running here: old"),
    ):
        stop.main([])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nwe"], r"there is no job nwe in \./\.hvd-elastic; did you mean new\?; .*`hvd-elastic suspend NAME`"),
        (["new", "-n", "ml"], r"stop is for a job on this machine; .*`hvd-elastic delete NAME`"),
        (["new", "--kubeconfig", "x"], "stop is for a job on this machine"),
        (["--state-dir", "nowhere"], "nowhere is not a job's folder"),
    ],
)
def test_a_job_that_is_not_here_is_refused_with_the_words_for_a_cluster(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        stop.main(words)


def test_a_job_that_does_not_run_is_said_to_have_ended_and_how(jobs: Path) -> None:
    with StateDir(jobs / "old") as folder:
        folder.save(Saved(1, 2, run="r", ended=True, outcome="training is done"))
    with pytest.raises(Permanent, match=r"^old: no launcher runs; the job ended: training is done; ") as found:
        stop.main(["old"])
    assert found.value.exit_code == 1


def test_no_process_is_ended_by_its_number_though_the_folder_names_it(jobs: Path) -> None:
    """The pid of a dead launcher may be another process by now."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        (jobs / "old" / LOCK).write_text(f"pid {other.pid} on host {os.uname().nodename}\n")
        with pytest.raises(Permanent, match="no launcher runs"):
            stop.main(["old"])
        assert other.poll() is None
        other.communicate(b"\n", timeout=30)
    assert other.returncode == 0


def test_a_launcher_that_does_not_answer_is_left_alone(jobs: Path) -> None:
    with StateDir(jobs / "old"), pytest.raises(Permanent, match=r"does not listen from here.*nothing is stopped"):
        stop.main(["old"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users: run the tests as root")
def test_a_job_of_another_user_is_refused_with_his_name(jobs: Path) -> None:
    os.chown(jobs / "old", NOBODY, NOBODY)
    with pytest.raises(UsageError, match=r"belongs to user nobody; give this command as that user"):
        stop.main(["old"])


class Launcher:
    """Answers on the socket of a folder that it holds; after ``looks`` questions it has ended with ``code``."""

    def __init__(self, folder: Path, code: int, *, looks: int = 2, outcome: str = KEPT) -> None:
        self.asked: list[str] = []
        self._held, self._code, self._looks, self._outcome = StateDir(folder), code, looks, outcome
        self.journal = folder / "journal.jsonl"

    def ask(self, _: Path, request: Mapping[str, Any], **__: object) -> Mapping[str, Any]:
        self.asked.append(str(request["do"]))
        if request["do"] == "stop":
            where = {"journal": str(self.journal), "run": "r", "cwd": "/home/me", "argv": ["run", "t.py", "a b"]}
            return {"said": "`hvd-elastic stop`: the job makes a last checkpoint", "ends": False, **where}
        return {"said": "waiting: for the last checkpoint"}

    def end(self) -> None:
        self._held.save(Saved(1, 2, run="r", ended=True, outcome=self._outcome))
        end = {"t": 4e9, "mono": 1.0, "generation": 1, "event": "finished", "code": self._code, "reason": self._outcome}
        self.journal.write_text(json.dumps(end) + "\n")
        self._held.close()

    def sleep(self, _: float) -> None:
        self._looks -= 1
        if not self._looks:
            self.end()


@pytest.fixture
def launcher(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    made = Launcher(jobs / "old", 130)
    monkeypatch.setattr(admin_socket, "ask", made.ask)
    monkeypatch.setattr(stop.time, "sleep", made.sleep)
    yield made
    made._held.close()


def test_it_waits_for_the_end_and_says_what_was_saved_and_the_command_that_goes_on(
    launcher: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stop.main(["old"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "old: the job makes a last checkpoint",
        f"old has ended with exit code 130: {KEPT}",
        "to go on: cd /home/me && hvd-elastic run t.py 'a b'",
    ]
    assert launcher.asked.count("stop") == 1


def test_no_command_goes_on_where_no_job_can_resume(launcher: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    launcher._outcome = f"stopped by `hvd-elastic stop`; {CANNOT_GO_ON}: no job can resume from /ck/7"
    assert stop.main(["old"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"old has ended with exit code 130: {launcher._outcome}"]


def test_a_job_that_fails_as_it_is_stopped_gives_exit_code_1(
    launcher: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher._code, launcher._outcome = 1, "a[0] \x1b[2Jcrashed"
    assert stop.main(["old"]) == 1
    assert "old has ended with exit code 1: a[0] \\e[2Jcrashed" in capsys.readouterr().out


def test_ctrl_c_ends_the_wait_and_not_the_job(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stop.time, "sleep", interrupted)
    assert stop.main(["old"]) == 130
    assert capsys.readouterr().err == "hvd-elastic stop: no longer waits; old still ends\n"
    assert launcher.asked == ["stop"]


def test_a_long_wait_has_lines_at_4_10_30_60_s_and_then_each_minute() -> None:
    now, shown = [0.0], io.StringIO()

    def sleep(_: float) -> None:
        now[0] += 0.5

    line = WaitLine(shown, now=lambda: now[0])
    stop.wait_for_end(lambda: now[0] < 200, lambda: None, line, name="old", clock=lambda: now[0], sleep=sleep)
    assert shown.getvalue().splitlines() == [
        f"old: ending for {at} s: the launcher does not answer now" for at in (4, 10, 30, 60, 120, 180)
    ]


def test_on_a_terminal_the_wait_is_one_line_that_changes_and_the_launcher_is_asked_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    now, shown, asked = [0.0], Terminal(), list[float]()

    def sleep(_: float) -> None:
        now[0] += 0.125

    def does() -> str:
        asked.append(now[0])
        return "waits\x1b[2J"

    line = WaitLine(shown, now=lambda: now[0])
    stop.wait_for_end(lambda: now[0] < 6, does, line, name="old", clock=lambda: now[0], sleep=sleep)
    assert "\n" not in shown.getvalue()
    assert shown.getvalue().endswith(f"{ERASE}old: ending for 6 s: waits\\e[2J{ERASE}")
    assert asked == [1.0, 2.0, 3.0, 4.0, 5.0]
