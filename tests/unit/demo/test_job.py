"""The demo's folder and the child that runs its job; a stand-in for the job needs no Horovod."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from hvd_elastic_ext.core.errors import Transient, UsageError
from hvd_elastic_ext.demo.command import parser, plan_of
from hvd_elastic_ext.demo.job import Folder, Job, job_environ, kill_at_once, run_command
from hvd_elastic_ext.demo.observed import Worker
from tests.support.marks import start_time
from tests.support.waiting import wait_until


def test_a_folder_is_emptied_of_an_earlier_demo_and_of_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text("old")
    (tmp_path / "mine.txt").write_text("keep")
    with Folder(tmp_path) as folder:
        assert not folder.journal.exists()
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_checkpoints_of_an_earlier_demo_are_removed(tmp_path: Path) -> None:
    with Folder(tmp_path) as folder:
        (folder.checkpoints / "000001").mkdir(parents=True)
        command = run_command(folder, cooldown_s=(3, 10), size=(2, 3))
    assert folder.checkpoints.name in command
    with Folder(tmp_path):
        assert not folder.checkpoints.exists()


def test_two_demos_cannot_share_a_folder_and_it_is_free_again_after_one(tmp_path: Path) -> None:
    with Folder(tmp_path), pytest.raises(UsageError, match="another demo is running"), Folder(tmp_path):
        pytest.fail("both got it")
    with Folder(tmp_path) as folder:
        assert not folder.report.exists()


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--out DIR"), Folder(tmp_path / "file" / "out"):
        pytest.fail("made it")


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"accuracy": "high"}', '{"accuracy": NaN}'])
def test_a_report_that_says_no_accuracy_is_none(tmp_path: Path, content: str | None) -> None:
    with Folder(tmp_path) as folder:
        if content is not None:
            folder.report.write_text(content)
        assert folder.accuracy() is None
        folder.report.write_text('{"accuracy": 0.98}')
        assert folder.accuracy() == 0.98


def test_options_a_user_set_for_other_jobs_do_not_reach_this_one() -> None:
    environ = job_environ({"HVD_ELASTIC_MAX_NP": "1", "PATH": "/bin"}, temporary=Path("/out/tmp"))
    assert environ.pop("TMPDIR") == "/out/tmp"
    assert environ == {"PATH": "/bin", "HVD_ELASTIC_SAMPLE": "0", "OMP_NUM_THREADS": "1"}


def test_the_seed_reaches_the_training() -> None:
    command = plan_of(quick=True, seed=7).training.command(Path("train.py"), Path("report"), hurry=Path("enough"))
    assert "--seed=7" in command
    assert parser().parse_args([]).out == Path("demo-out")


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN) if "stubborn" in sys.argv else None
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""


def child_of(folder: Folder) -> int:
    text = wait_until(lambda: "child" in folder.log.read_text() and folder.log.read_text(), what="the child's pid")
    assert isinstance(text, str)
    return int(text.split("child")[1].split()[0])


@pytest.fixture
def environ() -> dict[str, str]:
    return dict(os.environ)


def test_ending_the_job_ends_everything_under_it(tmp_path: Path, environ: dict[str, str]) -> None:
    with Folder(tmp_path) as folder:
        job = Job(folder, [sys.executable, "-c", STUBBORN], environ)
        child = child_of(folder)
        assert job.ended() is None
        job.end()
        assert job.ended() is not None
        assert start_time(child) is None


def test_only_processes_of_this_job_are_ever_killed(tmp_path: Path, environ: dict[str, str]) -> None:
    with Folder(tmp_path) as folder:
        job = Job(folder, [sys.executable, "-c", STUBBORN], environ)
        try:
            with pytest.raises(Transient, match="does not exist"):
                job.kill(Worker("localhost", 0, 0, os.getppid()))
            child = child_of(folder)
            job.kill(Worker("localhost", 0, 1, child))
            wait_until(lambda: start_time(child) is None, what="the end of the child")
        finally:
            job.end()


HOST = """
import subprocess, sys, time
file = open(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[file.fileno()],
                         start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""
"""Has the file of an agent open, as has a fork of it."""


def test_a_host_gets_notice_and_is_then_killed_with_all_its_processes(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed: list[int] = []
    monkeypatch.setattr("hvd_elastic_ext.demo.job.kill_at_once", doomed.extend)
    notice = tmp_path / "a.sock.notice"
    notice.touch()
    with Folder(tmp_path / "out") as folder:
        job = Job(folder, [sys.executable, "-c", HOST, str(notice)], environ)
        try:
            child = child_of(folder)
            with pytest.raises(Transient, match="no agent on b"):
                job.notify(["a", "b"], in_s=30.0)
            assert notice.read_text() == ""
            before = time.time()
            job.notify(["a"], in_s=30.0)
            said = json.loads(notice.read_text())
            assert "spot" in said["reason"]
            assert before + 30.0 <= said["deadline"] <= time.time() + 30.0
            job.take_away(["a", "b"])
            assert doomed == [psutil.Process(child).ppid(), child]
            kill_at_once(doomed)
            wait_until(lambda: start_time(child) is None, what="the end of the child")
            assert not notice.exists()
        finally:
            job.end()


def test_a_job_that_ends_by_itself_says_its_exit_code(tmp_path: Path, environ: dict[str, str]) -> None:
    with Folder(tmp_path) as folder:
        job = Job(folder, [sys.executable, "-c", "raise SystemExit(3)"], environ)
        wait_until(lambda: job.ended() is not None, what="the end of the job")
        assert job.ended() == 3
        job.end()
