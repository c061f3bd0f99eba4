"""A silent peer: its connections are cut, those of user code are not."""

from __future__ import annotations

import signal
import socket

from hvd_elastic_ext.core.messages.rank_info import Place
from tests.integration.standby.small_launcher import HERE, Job


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
    reached = first.steps()[-1][0]
    job.form(first)
    first.tell("fence")
    first.process.wait_for("the user's connection is open", timeout=10)  # Gloo's own patience is 30 s here
    alone = [step for step, _, size in first.steps() if size == 1]
    assert reached - 10 <= alone[0] <= reached + 2  # from the last commit
    second.process.send_signal(signal.SIGCONT)
    assert first.process.wait(20) == 0
