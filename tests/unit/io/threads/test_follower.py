"""What a follower does if it does not keep up."""

from __future__ import annotations

import threading

import pytest

from hvd_elastic_ext.io.threads import follower as follower_module
from hvd_elastic_ext.io.threads.follower import Follower
from tests.support.waiting import wait_until


def test_a_follower_that_hangs_is_said_and_what_is_left_out_is_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "SLOW_S", 0.0)
    go_on, taken = threading.Event(), list[int]()

    def take(item: int) -> str:
        assert go_on.wait(60)
        taken.append(item)
        return ""

    follower = Follower("--export", take, room=2)
    follower.put(1)
    wait_until(lambda: follower._queue.empty(), what="the first item taken")
    for item in range(2, 10):
        follower.put(item)
    go_on.set()
    wait_until(lambda: taken == [1, 2, 3], what="what had room")
    follower.put(10)
    follower.close()
    assert taken == [1, 2, 3, 10]
    assert caplog.messages == [
        "--export has not answered for 0 s; the job goes on, and what happens now waits",
        "--export does not keep up: what happens now is left out there",
        "--export keeps up again: 6 events are left out there",
    ]


def test_a_follower_whose_end_raises_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def end() -> None:
        raise KeyError("x")

    follower = Follower[int]("--export", lambda _: "", end=end)
    follower.close()
    assert caplog.messages == ["--export: KeyError: 'x'"]


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
