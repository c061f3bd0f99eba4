"""``hvd_elastic_ext.run``: a function as a job on this machine."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hvd_elastic_ext
from hvd_elastic_ext.core.errors import JobFailed, UsageError


def train(number: int, *, fail: bool = False) -> list[int]:
    import hvd_elastic_ext.torch as elastic

    elastic.init()
    if fail and elastic.rank() == 1:
        raise RuntimeError("no luck")
    print(f"rank {elastic.rank()} is here")
    return [elastic.rank(), elastic.size(), number]


@pytest.mark.soak
def test_a_function_runs_in_each_process_and_its_results_come_back_by_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert hvd_elastic_ext.run(train, args=[7], np=2) == [[0, 2, 7], [1, 2, 7]]
    said = capsys.readouterr().out
    assert "rank 0 is here" in said
    assert "rank 1 is here" in said


@pytest.mark.soak
def test_a_function_that_fails_is_told_with_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobFailed, match=r"the job ended with exit code 1: .*RuntimeError: no luck"):
        hvd_elastic_ext.run(train, args=[7], kwargs={"fail": True}, np=2, options=["--failure-budget", "1"])
    assert "no luck" in capsys.readouterr().out


def returns(what: str) -> object:
    import datetime

    import numpy
    import torch

    if what == "a time":
        return [datetime.datetime(2026, 1, 1)]
    return numpy.ones(2), torch.ones(2), {1: (2,)}


@pytest.mark.soak
def test_a_function_as_horovod_has_it_returns_arrays_and_tensors_without_joining_a_world() -> None:
    first, second = hvd_elastic_ext.run(returns, ("all",), hosts="localhost:2")
    assert [type(each).__name__ for each in first] == ["ndarray", "Tensor", "dict"]
    assert first[2] == second[2] == {1: (2,)}


@pytest.mark.soak
def test_a_result_that_cannot_be_sent_back_is_told_in_the_exception() -> None:
    with pytest.raises(JobFailed, match=r"what rank 0 returned cannot be sent back: result\[0\]: it is a datetime"):
        hvd_elastic_ext.run(returns, ("a time",), np=1)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"np": "two"}, "^run: -np 'two': write a whole number, such as -np 2$"),
        ({"hosts": "localhost:1", "np": 3}, "^run: -np is 3, the hosts given have 1 in all, "),
    ],
)
def test_what_only_the_launcher_finds_wrong_is_told_as_such(
    capsys: pytest.CaptureFixture[str], arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        hvd_elastic_ext.run(train, (1,), **arguments)


WAITS = """
import signal, sys
from pathlib import Path
from hvd_elastic_ext.jobs.local import run
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
run._launched([sys.executable, "-c", sys.argv[1]], Path())
"""
COUNTS = """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("up", flush=True)
signal.sigwait([signal.SIGINT])
print("again" if signal.sigtimedwait([signal.SIGINT], 1.5) else "once", flush=True)
"""


def test_ctrl_c_of_a_terminal_is_one_signal_to_the_launcher_and_its_last_lines_are_shown() -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-c", WAITS, COUNTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == b"once\n"
        assert b"KeyboardInterrupt" in process.stdout.read()


STAYS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as the launcher does
from hvd_elastic_ext.jobs.local import launcher
launcher.runpy.run_module = lambda *_, **__: (print("up", flush=True), time.sleep(60))
launcher.main(int(os.environ["PARENT"]), os.environ["FOLDER"])
"""
DIES = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, "PARENT": str(os.getpid())})
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_launcher_ends_with_the_process_that_waits_for_it_and_leaves_no_files(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    environ = {**os.environ, "FOLDER": str(folder)}
    with subprocess.Popen([sys.executable, "-c", DIES, STAYS], stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert select.select([process.stdout], [], [], 30)[0]
        assert process.stdout.read() == b""  # the launcher had it open, too
    assert not folder.exists()


RUNS = """
import hvd_elastic_ext
from tests.integration.launcher.test_run_function import stays
hvd_elastic_ext.run(stays, np=1)
"""


def stays() -> None:
    import os
    import threading

    print("pid", os.getpid(), flush=True)
    threading.Event().wait()


@pytest.mark.soak
def test_a_job_ends_with_the_process_that_waits_for_it() -> None:
    with subprocess.Popen([sys.executable, "-u", "-c", RUNS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = next(int(line.split()[-1]) for line in process.stdout if b"pid " in line)
        of_worker = os.pidfd_open(pid)
        try:
            process.kill()
            assert select.select([of_worker], [], [], 60)[0]
        finally:
            os.close(of_worker)
