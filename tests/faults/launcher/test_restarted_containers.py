"""A worker's container ends and is started again in its pod: the job does not wait for the old one, or blame the new
one.

Containers are agents with all their processes. The tests' stand-in for ssh reaches them, so their end looks like the
end of a connection.
"""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.launcher.spot import Cloud, Life
from tests.faults.launcher.stepping_jobs import ANY_ENGINE, Training, training
from tests.faults.launcher.test_agent_faults import agent_of
from tests.support.waiting import wait_until

__all__ = ["training"]

FIRST, SECOND = "127.0.0.1", "127.0.0.2"
FAKE_SSH = Path(__file__).parents[2] / "support" / "fake_ssh.py"
OFF_S, BACK_S = 1.2, 1.8
"""Seconds after its end until a container is not listed, and is listed again, as measured with a real kubelet."""
TIMEOUT_S = 25.0


def ssh_on_path(folder: Path) -> str:
    """Return a ``PATH`` with an ``ssh`` that ends like the real one when the other side is gone."""
    command = folder / "bin" / "ssh"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\n"{sys.executable}" "{FAKE_SSH}" "$@" || exit 255\n')
    command.chmod(0o755)
    return f"{command.parent}:{os.environ['PATH']}"


def restart(life: Life, cloud: Cloud, died: float) -> None:
    """First publish a list without the host, then one with its new life."""
    wait_until(lambda: time.monotonic() >= died + OFF_S, what="the list without it", timeout=30)
    life.gone = died
    cloud.publish()
    wait_until(lambda: time.monotonic() >= died + BACK_S, what="the list with its new life", timeout=30)
    life.gone, life.host = None, replace(life.host, life="container-2")
    cloud.publish()


@ANY_ENGINE
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_restarted_container_costs_no_heartbeat_timeout_and_no_cooldown(training: Training, tmp_path: Path) -> None:
    with Cloud(tmp_path, random.Random(1)).open() as cloud:
        for name in (FIRST, SECOND):
            cloud.add(name)
            cloud.lives[-1].host = replace(cloud.lives[-1].host, life="container-1")
        cloud.publish()
        lives = {life.name: life for life in cloud.lives}
        options = ("-np", "2", "--rsh", "ssh", "--heartbeat-timeout", f"{TIMEOUT_S:g}")
        env = {"PATH": ssh_on_path(tmp_path)}
        with training.train(*options, source=("--discovery", f"unix://{cloud.socket}"), env=env):
            training.wait_for_size(2)
            second = lives[SECOND]
            second.agent, second.pids = agent_of(training, SECOND), [training.pids()[SECOND]]
            died = time.monotonic()
            second.kill()
            restart(second, cloud, died)
            training.wait_for_size(1, more=1)
            training.wait_for_size(2)
            alone = min(step.mono for step in training.shown() if step.size == 1)
            again = min(step.mono for step in training.shown() if step.size == 2 and step.mono > alone)
            print(f"alone {alone - died:.2f} s after its end, together again after {again - died:.2f} s")
    training.check_steps()
    assert alone - died < TIMEOUT_S / 2, "nobody waited for its silence"
    assert [event.get("reason") for event in training.events("fenced")] == ["its container was started again"]
    assert not training.events("struck")
    assert [record.get("size") for record in training.events("resized")] == [2, 1, 2]
