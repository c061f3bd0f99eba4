"""A silent peer: its connections are cut, those of user code are not."""

from __future__ import annotations

import signal
import socket
import sys
from typing import Any

import pytest

from hvd_elastic_ext.core.messages.rank_info import Place
from tests.integration.standby.small_launcher import HERE, Job, Member


def test_a_survivor_goes_on_at_once_when_it_is_told_to_cut_off_a_stopped_peer(job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    first, second = (
        job.start(host, HERE / "fenced.py", port, plan=Place(rank, 2, 0, 1, rank, 2))
        for rank, host in enumerate(("alpha", "beta"))
    )
    job.live(first, second)
    for member in (first, second):
        member.wait_step(size=2, more=15)
    second.process.send_signal(signal.SIGSTOP)
    job.form(first)
    first.tell("fence")
    first.process.wait_for("the user's connection is open", timeout=10)  # Gloo's own patience is 30 s here
    reached = max(step for step, _, size in first.steps() if size == 2)
    alone = [step for step, _, size in first.steps() if size == 1]
    assert reached - 10 <= alone[0] <= reached + 1  # from the last commit
    second.process.send_signal(signal.SIGCONT)
    assert first.process.wait(20) == 0


def hear_late(job: Job, member: Member) -> list[str]:
    """Have a member act on an order to cut its connections, and on the number of its next world, only while it connects
    to that world, as on a machine without a free processor; what it was told then."""
    tell, answer_key = member.tell, job.answer_key
    held: dict[str, dict[str, Any]] = {}
    told: list[str] = []

    def hold(what: str, **fields: Any) -> None:
        if what in ("fence", "world"):
            held[what] = fields
        else:
            tell(what, **fields)

    def answer(asker: Member, path: str) -> bytes | None:
        if asker is member and path.startswith("/cross_") and "process_set" in path:  # it has all other connections
            for what in ("fence", "world"):
                if what in held:
                    tell(what, **held.pop(what))
                    told.append(what)
        return answer_key(asker, path)

    member.tell, job.answer_key = hold, answer  # type: ignore[method-assign]
    return told


@pytest.mark.soak
def test_a_late_order_to_cut_the_connections_of_a_lost_world_leaves_those_of_the_next_one(job: Job) -> None:
    first, second, third = (
        job.start(host, sys.executable, HERE / "trainee.py", plan=Place(rank, 3, 0, 1, rank, 3), python=())
        for rank, host in enumerate(("alpha", "beta", "gamma"))
    )
    job.live(first, second, third)
    for member in (first, second, third):
        member.wait_step(size=3, more=5)
    told = hear_late(job, second)
    third.process.send_signal(signal.SIGKILL)
    second.tell("fence")
    job.form(first, second)
    for member in (first, second):
        member.wait_step(size=2, more=5)
    assert told == ["fence", "world"]
    for member in (first, second):
        assert member.process.output.count("rolling back") == 1, member.process.output  # of the lost world only
        assert member.process.returncode is None
    job.stop()
    assert first.process.wait(20) == second.process.wait(20) == 0
