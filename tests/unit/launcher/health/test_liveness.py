"""Processes that send heartbeats and stall, or are slow."""

from __future__ import annotations

import logging
import re

import pytest

from hvd_elastic_ext.launcher.health.stalls import (
    FINISHED_S,
    MAX_NAMED,
    STILL_S,
    Member,
    absence,
    ended_early,
    left_waiting,
    named,
    stall,
    uneven,
)
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
from tests.unit.launcher.scenarios import play

STUCK = "train a b c {}; run 3; stick b; "
LIMIT = STUCK.format("progress_timeout_s=5.0")
RESTART = STUCK.format("progress_timeout_s=5.0 restart_stalled=True")
NO_LIMIT = STUCK.format("")
SLOW = "pace * 0.1; pace b 0.3; "

STALLS = {
    "reported once, and no process is ended": LIMIT
    + """sees stalled <8; took 4; run 60; number stalled 1; is stalled.ranks [1]; is stalled.hosts ['b[0]']
        is stalled.waiting 2; no exited; stick b 0; run 5; stick b; run 10; number stalled 2""",
    "restarted with restart_stalled": RESTART
    + """until a c; sees exited; is exited.host b; is exited.cause stalled; is struck.subject slot 0 of b; size 3""",
    "the others, who had waited for it, are not stalled in their next world although no heartbeat has come yet": RESTART
    + """sees stalled <8; lose-news beats 9; until a c; run 8; is exited.host b; size 2""",
    "without a timeout reported after a minute": NO_LIMIT
    + f"""run {STILL_S - 5}; no stalled; run 300; number stalled 1; no exited
        says stalled.reason no progress for 60 s of rank 1 on b[0]: 2 of 3 wait for it""",
    "without a timeout long steps are not stalls": NO_LIMIT
    + "pace * 100; run 200; no stalled; run 200; number stalled 1",
    "a process that calls heartbeat() may take any time": RESTART + "beats b; run 60; no stalled; world a b c",
    "the next world does not wait for a stalled process after a loss": """
        train a b c progress_timeout_s=60.0 restart_stalled=True; run 3; hang a; run 5; kill c; sees stalled <70
        is stalled.hosts ['a[0]']; without a <10; number stalled 1""",
    "the next world does not wait for a stalled process before a newcomer joins": """
        train a b c progress_timeout_s=60.0 restart_stalled=True; run 3; hang a; run 5; hosts a b c d; sees stalled <70
        is stalled.hosts ['a[0]']; without a <10; number stalled 1""",
    "without a limit the process that the next world waits for is reported once": """
        train a b c; run 3; hang a; kill c; run 300; number stalled 1
        says stalled.reason the next world waits for a[0]; is exited.host c""",
}
STRAGGLERS = {
    "reported once and not ended": f"""
        train a b c; {SLOW} run 15; no straggler; run 60; is straggler.host b; is straggler.rank 1
        is straggler.drained False; world a b c""",
    "drained once with drain_stragglers": f"""
        train a b c d drain_stragglers=True cooldown_s=(10.0,20.0); {SLOW} run 30; world a c d
        is straggler.drained True; no struck; is resized.cause start, hosts removed; run 30; size 4; {SLOW} run 40
        is straggler.drained True, False; size 4""",
    "not drained if the others would be too few": f"""
        train a b c least=3 drain_stragglers=True; {SLOW} run 60; is straggler.drained False; world a b c""",
    "neither named nor drained with less than an equal share of the batch": f"""
        train a b c d drain_stragglers=True; {SLOW} share b 5 24; run 60; no straggler; world a b c d""",
    "named with an equal share, or more": f"""
        train a b c d; {SLOW} share b 6 24; run 60; is straggler.host b""",
    "named with the smaller one of equal shares, where samples are left over": f"""
        train a b c d; {SLOW} share b 6 27; run 60; is straggler.host b""",
    "a drained slot works again if no other host is left": f"""
        train a b c drain_stragglers=True; {SLOW} until a c; hosts b; run 1; kill a; kill c; until b""",
}


LOOK = (
    r"`py-spy dump --pid \d+` on b shows what rank 1 does; "
    "--progress-timeout S --restart-stalled restarts such a process"
)


@pytest.mark.parametrize(
    ("text", "does"),
    [(LIMIT, LOOK), (NO_LIMIT, LOOK), (RESTART, r"ended and started again \(--restart-stalled\)")],
    ids=["with a limit", "without", "restarted"],
)
def test_a_stall_is_told_with_what_can_be_done(text: str, does: str, caplog: pytest.LogCaptureFixture) -> None:
    play(text + "sees stalled <70")
    told = [each.getMessage() for each in caplog.records if "the world is stalled" in each.getMessage()]
    assert len(told) == 1
    assert re.search(r"rank 1 on b\[0\]: 2 of 3 wait for it; " + does, told[0]), told


@pytest.mark.parametrize("text", STALLS.values(), ids=STALLS)
def test_a_stalled_process_is_reported_once_and_ended_only_if_asked_for(text: str) -> None:
    play(text)


@pytest.mark.parametrize("text", STRAGGLERS.values(), ids=STRAGGLERS)
def test_a_straggler_is_reported_once_and_drained_only_if_asked_for(text: str) -> None:
    play(text)


def test_that_training_makes_progress_again_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        play(LIMIT + "sees stalled; stick b 0; run 5")
    assert "training makes progress again" in caplog.text


def test_a_newcomer_that_was_told_to_go_live_and_does_not_come_is_not_waited_for_long() -> None:
    cluster = play("train a; run 3; hosts a b; sees parked 2")
    cluster.agents["b"].processes[0].state = "lost in a callback"
    cluster.until(lambda: cluster.driver.job.generation == 2, within=10.0)
    cluster.until(lambda: cluster.world == ["a"] and cluster.driver.job.formed, within=70.0)
    assert [(event["host"], event["cause"]) for event in cluster.events("struck")] == [("b", "never ready")]


@pytest.mark.parametrize("ends", [False, True])
def test_who_has_finished_before_the_others_is_named_by_default_and_nobody_is_ended(ends: bool) -> None:
    cluster = play("train a b c; run 3; done c; run 0.1")
    cluster.training.held_up = lambda process: True  # type: ignore[method-assign]
    if ends:
        cluster.training.ends_unnoticed("c", 0)
    cluster.run(FINISHED_S + 65.0)
    (told,) = cluster.events("stalled")
    assert (told["finished"], told["waiting"]) == ([2], 2)
    assert told["reason"].startswith("rank 2 (c[0]) has finished training, and ranks 0 and 1 have waited for it for 1")
    assert {event["host"] for event in cluster.events("exited")} <= {"c"}
    assert not cluster.driver.over


def ended(rank: int, step: int) -> Member:
    return Member(ProcessId(Seat("abc"[rank], 0), 1), rank, 90.0, done=True, step=step)


def member(rank: int, still_s: float, *, waiting: bool = False) -> Member:
    return Member(ProcessId(Seat("abcdefghi"[rank], 0), 1), rank, 100.0 - still_s, waiting)


def waits(rank: int, still_s: float) -> Member:
    return member(rank, still_s, waiting=True)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([member(1, 31.0), waits(0, 29.0), waits(2, 29.0)],
         "no progress for 31 s of rank 1 on b[0]: 2 of 3 wait for it"),
        ([member(1, 31.0), member(0, 1.0), waits(2, 1.0)], None),  # no other one waits for it
        ([member(0, 1.0), waits(1, 900.0), waits(2, 900.0)], None),  # its script reports that it works
        ([waits(rank, 40.0 + rank) for rank in range(3)], "all 3 ranks have waited for one another for 40 s"),
        ([member(0, 31.0)], "no progress for 31 s of rank 0 on a[0]: no rank waits for it"),
        ([member(rank, 29.9) for rank in range(3)], None),
        ([], None),
    ],
)  # fmt: skip
def test_whoever_stalls_a_world_is_named(members: list[Member], said: str | None) -> None:
    found = stall(100.0, members, 30.0)
    assert (None if found is None else found.reason) == said


def test_without_a_timeout_all_may_be_busy_for_as_long_as_they_like() -> None:
    assert stall(100.0, [member(rank, 90.0) for rank in range(3)], 60.0, idle=False) is None
    assert stall(100.0, [waits(rank, 90.0) for rank in range(3)], 60.0, idle=False) is not None


@pytest.mark.parametrize(
    ("members", "finished", "limit", "said"),
    [
        (
            [waits(0, 16.0), waits(1, 16.0)], [member(2, 16.0)], 15.0,
            "rank 2 (c[0]) has finished training, and ranks 0 and 1 have waited for it for 16 s: "
            "do all ranks do the same number of steps?",
        ),
        (
            [waits(0, 16.0)], [member(1, 9.0), member(2, 9.0)], 15.0,
            "ranks 1 and 2 have finished training, and rank 0 (a[0]) has waited for them for 16 s: "
            "do all ranks do the same number of steps?",
        ),
        ([waits(0, 16.0)], [member(2, 16.0)], 17.0, None),
        ([waits(0, 16.0)], [], 15.0, None),
        ([], [member(2, 16.0)], 15.0, None),
        ([waits(0, 16.0), member(1, 16.0)], [member(2, 16.0)], 15.0, None),  # it may still let the others continue
    ],
)  # fmt: skip
def test_ranks_that_wait_for_one_whose_training_is_over_are_told_so(
    members: list[Member], finished: list[Member], limit: float, said: str | None
) -> None:
    found = left_waiting(100.0, members, finished, limit)
    assert (None if found is None else found.reason) == said


@pytest.mark.parametrize(
    ("done", "more", "says"),
    [
        ([ended(0, 5)], {Seat("b", 0): 3}, "rank 0 (a[0]) ended training after step 5, and b[0] did 3 more without it"),
        (
            [ended(0, 5), ended(2, 4)],
            {Seat("b", 0): 3, Seat("d", 0): 0, Seat("e", 0): 4},
            "ranks 0 and 2 ended training after step 5, and b[0] did 3 more, e[0] did 4 more without them",
        ),
        ([ended(0, 0)], {Seat("b", 0): 3}, "rank 0 (a[0]) ended training, and b[0] trained on without it"),
        ([ended(0, 0)], {Seat("b", 0): 1}, None),
        ([ended(0, 5)], {Seat("b", 0): 0}, None),  # the last step, once more
        ([], {}, None),
    ],
)
def test_ranks_that_did_more_steps_than_others_are_told_at_the_end(
    done: list[Member], more: dict[Seat, int], says: str | None
) -> None:
    assert uneven(done, more) == (says and f"not all ranks did the same number of steps: {says}")


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        ([member(1, 31.0), member(2, 40.0)], "b[0], c[0], no progress for 31 s"),
        ([member(1, 31.0), member(2, 29.0)], "b[0], no progress for 31 s"),
        ([waits(1, 31.0)], None),
        ([member(1, 29.0)], None),
    ],
)
def test_members_that_the_next_world_waits_for_are_named_if_they_stand_still_and_wait_for_nobody(
    absent: list[Member], said: str | None
) -> None:
    found = absence(100.0, absent, 30.0, waiting=1)
    assert (None if found is None else found.reason) == (said and f"the next world waits for {said}")


def test_as_many_ranks_and_slots_are_named_as_a_line_takes() -> None:
    most = [member(rank, 1.0) for rank in range(MAX_NAMED)]
    assert named(most) == "ranks 0, 1, 2, 3, 4, 5, 6 and 7"
    assert named([*most, member(8, 1.0)]) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more"
    seats = [Seat("b", slot) for slot in range(MAX_NAMED)]
    assert ", b[7] still train: " in ended_early([ended(0, 5)], seats)
    assert ", b[7] and 1 more still train: " in ended_early([ended(0, 5)], [*seats, Seat("c", 0)])


def test_who_trains_on_after_others_are_done_is_told_what_follows() -> None:
    assert ended_early([ended(0, 5)], [Seat("b", 0)]) == (
        "rank 0 (a[0]) ended training after step 5, and b[0] still trains: do all ranks do the same number of steps? "
        "b[0] goes on without it: no process joins, and the job ends when training ends there"
    )
