"""A real launcher with something on its standard input."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import ELASTIC
from tests.support.processes import run_process

FAKE_SSH = Path(__file__).parents[2] / "support" / "fake_ssh.py"
WHOLE = """
import os, sys
print(os.environ["HVD_ELASTIC_PLAN"][0], repr(sys.stdin.read()), "HVD_ELASTIC_STDIN" in os.environ)
"""
"""Prints the rank that it starts with, and all of its standard input."""
LINE_BY_LINE = """
import os, sys
line = os.read(0, 2)
print("read", line)
sys.exit(1 if line == b"1\\n" else 0)
"""


def job(*options: str, script: str) -> Sequence[str]:
    return [*ELASTIC, "run", "-np", "2", *options, sys.executable, "-c", script]


@pytest.mark.parametrize("engine", ["horovod", "torchrun"])
def test_rank_0_reads_a_file_and_no_other_rank_does(engine: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost:2\n")
    with (
        (tmp_path / "hosts").open() as hosts,
        run_process(job("--engine", engine, script=WHOLE), cwd=tmp_path, stdin=hosts) as process,
    ):
        assert process.wait(60) == 0, process.output
    assert "<stdout>:0 'localhost:2\\n' False" in process.stdout
    assert "<stdout>:1 '' False" in process.stdout
    assert "standard input" not in process.stderr


def test_a_process_that_follows_in_the_slot_reads_on(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\n2\n3\n")
    options = ("--engine", "torchrun", "-np", "1", "--blacklist-cooldown-range", "1", "2")
    with (
        (tmp_path / "lines").open() as given,
        run_process(job(*options, script=LINE_BY_LINE), cwd=tmp_path, stdin=given) as process,
    ):
        assert process.wait(60) == 0, process.output
    assert re.findall(r"read b'(.*)'", process.stdout) == ["1\\n", "2\\n"], process.output


def test_a_reader_that_does_not_read_and_a_writer_that_does_not_end_stop_nobody(tmp_path: Path) -> None:
    with (
        subprocess.Popen(["yes"], stdout=subprocess.PIPE) as writer,
        run_process(job(script="print('did not read')"), cwd=tmp_path, stdin=writer.stdout) as process,
    ):
        assert writer.stdout is not None
        writer.stdout.close()
        assert process.wait(60) == 0, process.output
        assert writer.wait(30) == -13, "nobody holds the pipe when the job has ended"


def test_a_host_elsewhere_reads_nothing_and_one_line_says_so(tmp_path: Path) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_SSH} "$@"\n')
    ssh.chmod(0o755)
    env = {"PATH": f"{ssh.parent}:{os.environ['PATH']}"}
    options = ("--rsh", "ssh", "-H", "127.0.0.1:2")
    with run_process(job(*options, script=WHOLE), cwd=tmp_path, env=env, stdin=subprocess.PIPE) as process:
        assert process.popen.stdin is not None
        process.popen.stdin.write("given\n")
        process.popen.stdin.flush()
        assert process.wait(60) == 0, process.output
    assert "<stdout>:0 '' False" in process.stdout, process.output
    assert process.stderr.count("standard input is not passed on: rank 0 starts on 127.0.0.1") == 1
