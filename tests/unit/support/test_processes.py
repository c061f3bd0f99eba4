"""run_process ends everything that it started, and keeps its output."""

import sys

import pytest

from tests.support import marks
from tests.support.processes import run_process
from tests.support.waiting import wait_until

SAYS_BOTH = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
ESCAPES = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
print("child", child.pid, flush=True)
{then}
"""


def test_a_child_in_another_session_ends_with_the_block():
    with run_process([sys.executable, "-c", ESCAPES.format(then="time.sleep(100)")]) as process:
        child = int(process.wait_for(r"child (\d+)").group(1))
        assert marks.start_time(child) is not None
    assert marks.start_time(child) is None


def test_an_orphan_ends_with_the_block():
    with run_process([sys.executable, "-c", ESCAPES.format(then="os._exit(0)")]) as process:
        child = int(process.wait_for(r"child (\d+)").group(1))
        wait_until(lambda: process.returncode == 0, what="the parent's end")
        assert process.tree() == [child]
    assert marks.start_time(child) is None


def test_a_process_that_ends_early_is_reported_with_its_output():
    with (
        run_process([sys.executable, "-c", SAYS_BOTH]) as process,
        pytest.raises(AssertionError, match=r"(?s)ended \(3\) without 'ready'.*err"),
    ):
        process.wait_for("ready")


def test_a_process_that_never_ends_is_reported_with_its_output():
    with run_process([sys.executable, "-c", "print('here'); import time; time.sleep(100)"]) as process:
        process.wait_for("here")
        with pytest.raises(AssertionError, match=r"(?s)still runs after 0.05 s.*here"):
            process.wait(0.05)


def test_the_owner_of_a_name_is_dead_only_when_that_process_is():
    assert not marks.owner_is_dead(marks.owner() + "-7")
    pid, _, started = marks.owner().partition("-")
    assert marks.owner_is_dead(f"{pid}-{int(started) + 1}")
    assert not marks.owner_is_dead("somebody-elses")
