"""How far a process is, by what it says and is told."""

from __future__ import annotations

from hvd_elastic_ext.agent.slots.worker_link import MESSAGES_A_SECOND, RateLimit, WorkerStatus


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
