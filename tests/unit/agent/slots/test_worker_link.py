"""What an agent knows of a process by what that says, and what it passes on, and in which order."""

from __future__ import annotations

import os
import time
from typing import Any
from unittest.mock import MagicMock

import pytest

from hvd_elastic_ext.agent.slots import worker_link
from hvd_elastic_ext.agent.slots.worker_link import (
    MESSAGES_A_SECOND,
    CpuActivity,
    RateLimit,
    Standing,
    WorkerLink,
    WorkerStatus,
    released,
    used_s,
)


def test_where_a_process_stands_follows_from_what_it_said_and_was_told() -> None:
    worker = WorkerStatus(10.0)
    nothing = {
        "parked": False,
        "generation": None,
        "agreed": None,
        "loops": False,
        "done": False,
        "warned": False,
        "beat": None,
    }
    assert worker.status() == nothing
    worker.received(11.0, {"say": "beat", "step": 4})
    worker.received(12.0, {"say": "parked"})
    assert (worker.age(12.5), worker.parked) == (1.5, True)
    worker.note_message({"tell": "go", "generation": 3})
    assert worker.status() == {**nothing, "beat": {"step": 4}}
    worker.note_message({"tell": "world", "generation": 3})
    worker.received(13.0, {"say": "entered", "generation": True})  # no number
    worker.received(14.0, {"say": "synced"})
    worker.received(15.0, {"say": "done"})
    worker.received(15.5, {"say": "warned", "leaving": True})
    assert worker.status() == {
        "parked": False, "generation": 3, "agreed": 3, "loops": True, "done": True, "warned": True, "beat": {"step": 4},
    }  # fmt: skip
    worker.received(15.6, {"say": "warned", "leaving": False})
    assert not worker.warned
    worker.received(16.0, {"say": "looping"})  # once more
    assert not worker.done


def test_whether_it_waits_in_init_or_goes_to_its_loop_alone_is_known_until_it_is_over() -> None:
    worker = WorkerStatus(10.0)

    def known() -> list[str]:
        return [name for name in ("parked", "at_init", "alone") if worker.status().get(name)]

    worker.received(11.0, {"say": "parked", "at": "init", "later": False})
    assert known() == ["parked"]  # it has no other place to park
    worker.received(11.0, {"say": "parked", "at": "init", "later": True})
    assert known() == ["parked", "at_init"]
    worker.note_message({"tell": "go", "generation": 3})
    assert known() == ["at_init"]  # it is in its prologue, in a world
    worker.note_message({"tell": "alone"})
    assert known() == ["alone"]
    worker.received(12.0, {"say": "parked", "at": "loop", "later": False})
    assert known() == ["parked", "alone"]


def test_the_call_of_a_process_is_the_last_one_that_it_named() -> None:
    worker = WorkerStatus(10.0)
    for message in ({"say": "parked", "call": 1}, {"say": "looping", "call": 3}, {"say": "done", "call": None}):
        worker.received(11.0, message)
    assert worker.status()["call"] == 3


def test_a_process_seen_at_work_is_as_good_as_one_that_speaks() -> None:
    worker = WorkerStatus(10.0)
    worker.received(11.0, {"say": "beat", "step": 4})
    worker.seen_working(13.0)
    assert (worker.age(13.5), worker.heartbeat) == (0.5, {"step": 4})
    worker.seen_working(12.0)
    assert worker.age(13.5) == 0.5


def test_an_allowance_lets_through_bursts_and_then_its_rate_and_counts_the_rest() -> None:
    limit = RateLimit(0.0)
    assert sum(limit.allows(0.0) for _ in range(1000)) == 2 * MESSAGES_A_SECOND
    assert limit.dropped() == 1000 - 2 * MESSAGES_A_SECOND
    assert limit.dropped() == 0
    assert sum(limit.allows(0.5) for _ in range(1000)) == MESSAGES_A_SECOND / 2
    assert sum(limit.allows(1000.0) for _ in range(1000)) == 2 * MESSAGES_A_SECOND


def test_another_launcher_learns_whether_results_of_collectives_are_kept() -> None:
    worker = WorkerStatus(10.0)
    worker.received(11.0, {"say": "looping", "call": 1})
    assert "collectives" not in worker.status()
    worker.received(11.0, {"say": "looping", "call": 1, "collectives": True})
    assert worker.status()["collectives"] is True
    worker.note_message({"tell": "world", "generation": 3})
    worker.received(11.0, {"say": "result", "call": 0, "kept": True})
    worker.note_message({"tell": "world", "generation": 4})
    assert worker.status()["recorded"] == 3
    worker.received(11.0, {"say": "result", "call": 0, "kept": False})
    assert worker.status().keys().isdisjoint({"collectives", "recorded"})


def test_a_process_in_a_barrier_waits_until_it_is_told() -> None:
    worker = WorkerStatus(10.0)
    worker.received(11.0, {"say": "barrier", "call": 0, "number": 2})
    assert (worker.reached, worker.waits) == ((0, 2), True)
    worker.note_message({"tell": "barrier", "call": 0, "number": 2})
    worker.received(12.0, {"say": "parked", "call": 1})
    assert (worker.reached, worker.waits) == ((1, 0), False)
    worker.received(12.0, {"say": "barrier", "call": "x", "number": None})
    assert worker.reached == (1, 0)


# --- processes of a host that come later wait for one another in a barrier, and for nobody else ----------


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([], []),
        ([Standing(0, (0, 1), waits=True)], [0]),
        ([Standing(0, (0, 0)), Standing(1, (0, 1), waits=True)], []),
        ([Standing(0, (0, 1), waits=True), Standing(1, (0, 1), waits=True)], [0, 1]),
        ([Standing(0, (0, 2), waits=True), Standing(1, (0, 1), waits=True)], [1]),
        ([Standing(0, (0, 1), waits=True), Standing(1, (1, 0))], [0]),
        ([Standing(0, (1, 1), waits=True), Standing(1, (0, 5))], []),
        ([Standing(0, (0, 0)), Standing(1, (0, 0))], []),
    ],
)
def test_one_passes_when_all_that_come_later_have_come_so_far(processes: list[Standing], expected: list[int]) -> None:
    assert released(processes) == expected


# --- processes that use the processor --------------------------------------------------------------------


def test_who_uses_the_processor_is_at_work_and_who_does_not_or_is_another_or_gone_is_not() -> None:
    looks = [
        (1.0, 7, 5.0),
        (2.0, 7, 5.06),
        (3.0, 7, 5.07),
        (3.0, 7, 9.0),
        (4.0, 8, 99.0),
        (5.0, 8, None),
        (6.0, 8, 1e3),
    ]
    at_work = CpuActivity()
    assert [at_work.look(*look) for look in looks] == [None, pytest.approx(1.06), None, None, None, None, None]


def test_a_process_is_known_to_work_no_later_than_it_can_have_stopped() -> None:
    at_work = CpuActivity()
    looks = [(1.0, 7, 5.0), (2.0, 7, 6.0), (3.0, 7, 6.3), (4.0, 7, 6.3), (4.25, 7, 6.6)]
    assert [at_work.look(*look) for look in looks] == [None, 2.0, pytest.approx(2.3), None, 4.25]


def test_the_processor_time_of_a_processs_first_thread_is_what_the_kernel_says() -> None:
    before = time.thread_time()
    while time.thread_time() - before < 0.05:
        pass
    assert used_s(os.getpid()) == pytest.approx(time.thread_time(), abs=0.05)
    assert used_s(1 << 30) is None


# --- what an agent passes on of its processes, and in which order ----------------------------------------


def test_a_process_that_is_done_has_its_last_heartbeat_passed_on_before_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "RendezvousProxy", MagicMock())
    socket_link, agent, told = MagicMock(), MagicMock(), list[tuple[str, Any]]()
    monkeypatch.setattr(worker_link, "SocketLink", socket_link)
    agent.now.return_value = 7.0
    agent.tell.side_effect = lambda event, **fields: told.append((event, fields["message"]))
    WorkerLink(0, agent).begin(1)
    hears = socket_link.call_args.kwargs["received"]
    hears({"say": "beat", "step": 1})
    hears({"say": "looping"})
    hears({"say": "barrier", "call": 0, "number": 1})  # this host's own matter
    hears({"say": "beat", "step": 10})
    hears({"say": "done"})
    assert told == [
        ("said", {"say": "looping"}),
        ("said", {"say": "beat", "step": 10}),
        ("said", {"say": "done"}),
    ]
