"""A real job with ``--preload auto``: successors of killed workers are forked with their imports done, and train on."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from hvd_elastic_ext.worker.process.template import NAME
from tests.integration.launcher.conftest import COUNTER, Launched
from tests.support import marks

READY = "share a template's memory"
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def templates(launched: Launched) -> list[int]:
    found = []
    for pid in launched.process.tree():
        if marks.start_time(pid) and Path(f"/proc/{pid}/comm").read_text().strip() == NAME:
            found.append(pid)
    return found


def lose_and_replace_the_last(launched: Launched) -> bool:
    """Kill the newest worker; whether its successor, which trains with the other one, was forked."""
    before = launched.events("spawned")
    worlds = len(launched.events("resized"))
    os.kill(before[-1].get("pid"), signal.SIGKILL)
    launched.wait_for("a world of one", lambda: len(launched.events("resized")) > worlds, timeout=120)
    launched.wait_for("the successor", lambda: len(launched.events("spawned")) > len(before), timeout=120)
    launched.wait_for_steps(2, timeout=200)
    return launched.events("spawned")[-1].get("warm") is True


def test_a_killed_worker_is_followed_by_a_fork_that_trains_on_and_without_a_template_by_a_fresh_process(
    launched: Launched,
) -> None:
    launched.set_hosts("localhost:2")
    options = ["-np", 2, "--min-np", 1, "--settle", 0, "--blacklist-cooldown-range", 1, 1, "--verbose"]
    with launched.run("--preload", "auto", *options, sys.executable, COUNTER) as process:
        launched.wait_for_steps(2, timeout=200)
        launched.wait_for("a template", lambda: process.output.count(READY) == 1, timeout=200)
        assert lose_and_replace_the_last(launched)
        assert lose_and_replace_the_last(launched)
        (template,) = templates(launched)
        os.kill(template, signal.SIGKILL)
        assert not lose_and_replace_the_last(launched)
        launched.wait_for("another template", lambda: process.output.count(READY) == 2, timeout=200)
        assert lose_and_replace_the_last(launched)
        launched.set_hosts("localhost:3")  # and so is a newcomer, on a host that trains
        launched.wait_for_steps(3, timeout=200)
        assert launched.events("spawned")[-1].get("warm")
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        assert process.tree() == []
    steps = [record.get("step") for record in launched.events("synced")]
    assert steps == sorted(steps)


def test_a_job_of_one_goes_on_from_its_commit_in_a_forked_process(launched: Launched) -> None:
    launched.set_hosts("localhost:1")
    with launched.run("--preload", "auto", "-np", 1, "--verbose", sys.executable, COUNTER) as process:
        launched.wait_for_steps(1, timeout=200)
        launched.wait_for("a template", lambda: READY in process.output, timeout=200)
        step = launched.events("stepped")[-1].get("step")
        os.kill(launched.events("spawned")[-1].get("pid"), signal.SIGKILL)
        launched.wait_for("the successor", lambda: len(launched.events("spawned")) == 2, timeout=120)
        launched.wait_for("its first steps", lambda: launched.events("inherited"), timeout=120)
        launched.wait_for_steps(1, timeout=120)
        assert launched.events("spawned")[-1].get("warm")
        assert launched.events("inherited")[-1].get("step") >= step - 5
