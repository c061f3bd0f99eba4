"""What a follower does if it does not keep up."""

from __future__ import annotations

import threading

from hvd_elastic_ext.io.threads.follower import Follower
from tests.support.waiting import wait_until


def test_a_follower_that_does_not_keep_up_ends_when_it_can() -> None:
    go_on, ended = threading.Event(), threading.Event()
    taken: list[int] = []

    def take(item: int) -> str:
        go_on.wait(30.0)
        taken.append(item)
        return ""

    follower = Follower("--export", take, end=ended.set, room=1)
    follower.put(1)
    wait_until(lambda: follower._queue.empty(), what="the first item taken")
    follower.put(2)
    follower.close(within_s=0.01)
    go_on.set()
    assert ended.wait(30.0)
    assert taken == [1]
