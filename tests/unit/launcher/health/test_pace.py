"""Whether a world makes no step for longer than usual, as a table."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.driver.roster import RECENT
from hvd_elastic_ext.launcher.health.pace import pause, usual_s
from hvd_elastic_ext.launcher.health.stalls import Member
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

NOW = 1000.0
FAST = [0.2] * RECENT
SLOW = [20.0] * 5
ONE_VALIDATION = [*FAST[1:], 60.0]
TWO_VALIDATIONS = [*FAST[2:], 8.0, 9.0]


def busy(rank: int, still_s: float) -> Member:
    return Member(ProcessId(Seat("abcd"[rank], 0), 1), rank, NOW - still_s)


def waits(rank: int, still_s: float) -> Member:
    return Member(ProcessId(Seat("abcd"[rank], 0), 1), rank, NOW - still_s, waiting=True)


@pytest.mark.parametrize(
    ("members", "recent", "told"),
    [
        ([], [], None),
        ([busy(0, 2.9), waits(1, 2.9)], [FAST, FAST], None),
        ([busy(0, 3.0), waits(1, 3.0)], [FAST, FAST], "no step for 3 s (usually 0.2 s): rank 0 (a[0]) is waited for"),
        ([busy(0, 900.0), waits(1, 0.0)], [FAST, FAST], None),  # that rank makes progress
        ([busy(0, 3.0), waits(1, 3.0)], [[], []], "no step for 3 s: rank 0 (a[0]) is waited for"),  # the first step
        (
            [busy(0, 3.0), busy(1, 4.0), waits(2, 3.0)], [FAST],
            "no step for 3 s (usually 0.2 s): ranks 0 and 1 are waited for",
        ),
        ([waits(0, 5.0), waits(1, 5.0)], [FAST], "no step for 5 s (usually 0.2 s): all 2 ranks wait for one another"),
        ([busy(0, 5.0), busy(1, 5.0)], [FAST], "no step for 5 s (usually 0.2 s): all 2 ranks are busy, or hang"),
        ([busy(0, 5.0)], [FAST], "no step for 5 s (usually 0.2 s): rank 0 (a[0]) is busy, or hangs"),
        ([waits(0, 5.0)], [FAST], "no step for 5 s (usually 0.2 s): the only rank waits; there is no other one"),
        ([busy(0, 39.0)], [SLOW], None),
        ([busy(0, 41.0)], [SLOW], "no step for 41 s (usually 20 s): rank 0 (a[0]) is busy, or hangs"),
        ([busy(0, 39.0), busy(1, 39.0)], [FAST, SLOW], None),  # the slowest rank counts
        ([busy(0, 3.0)], [ONE_VALIDATION], "no step for 3 s (usually 0.2 s): rank 0 (a[0]) is busy, or hangs"),
        ([busy(0, 15.0)], [TWO_VALIDATIONS], None),  # a step time that came twice is usual
        ([busy(0, 17.0)], [TWO_VALIDATIONS], "no step for 17 s (usually 8 s): rank 0 (a[0]) is busy, or hangs"),
    ],
)  # fmt: skip
def test_a_pause_is_told_if_it_is_longer_than_usual_by_a_clear_factor(
    members: list[Member], recent: list[list[float]], told: str | None
) -> None:
    found = pause(NOW, members, recent)
    assert (None if found is None else found.text) == told


@pytest.mark.parametrize(
    ("members", "finished", "who"),
    [
        ([waits(0, 3.0), waits(1, 3.0)], [busy(2, 3.0)], "rank 2 (c[0]) has finished training and is waited for"),
        ([waits(0, 3.0)], [busy(1, 3.0), busy(2, 3.0)], "ranks 1 and 2 have finished training and are waited for"),
        ([waits(0, 3.0), busy(1, 3.0)], [busy(2, 3.0)], "rank 1 (b[0]) is waited for"),
    ],
)
def test_who_has_finished_is_named_if_all_others_wait(members: list[Member], finished: list[Member], who: str) -> None:
    found = pause(NOW, members, [FAST], finished)
    assert found is not None
    assert found.text == f"no step for 3 s (usually 0.2 s): {who}"


@pytest.mark.parametrize(
    ("unbegun", "who"),
    [
        ([busy(1, 3.0)], "rank 1 (b[0]) has not begun a step yet and is waited for"),
        ([busy(1, 3.0), busy(2, 3.0)], "ranks 1 and 2 have not begun a step yet and are waited for"),
    ],
)
def test_a_rank_that_waits_for_others_before_their_first_step_is_not_said_to_be_alone(
    unbegun: list[Member], who: str
) -> None:
    found = pause(NOW, [waits(0, 3.0)], [[]], unbegun=unbegun)
    assert found is not None
    assert found.text == f"no step for 3 s: {who}"


@pytest.mark.parametrize(
    ("members", "killed", "who"),
    [
        ([waits(0, 10.0)], [busy(1, 10.0)], "rank 1 (b[0]) has been killed and is waited for"),
        ([waits(0, 10.0), busy(1, 10.0)], [busy(2, 10.0)], "rank 2 (c[0]) has been killed and is waited for"),
        ([waits(0, 10.0)], [busy(1, 10.0), busy(2, 10.0)], "ranks 1 and 2 have been killed and are waited for"),
    ],
)
def test_a_rank_that_waits_for_one_that_was_killed_is_not_said_to_be_alone(
    members: list[Member], killed: list[Member], who: str
) -> None:
    found = pause(NOW, members, [FAST], killed=killed)
    assert found is not None
    assert found.text == f"no step for 10 s (usually 0.2 s): {who}"


@pytest.mark.parametrize(
    ("steps", "usual"), [([], 0.0), ([20.0], 20.0), ([20.0, 0.2], 0.2), ([60.0, 0.2, 3.0], 3.0), (FAST, 0.2)]
)
def test_the_second_longest_step_is_usual(steps: list[float], usual: float) -> None:
    assert usual_s(steps) == usual
