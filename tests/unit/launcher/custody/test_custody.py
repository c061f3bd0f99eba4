"""No world forms behind the newest commit that an agent still holds. If it must, the loss is reported."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.custody.custody import (
    Commit,
    CustodyAction,
    CustodyDecision,
    CustodyFacts,
    Stored,
    awaited,
    decide,
    is_needed,
)
from hvd_elastic_ext.launcher.custody.holders import Holding, Reachability
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

NOW = 1000.0
WAIT_S = 60.0
A, B, C = Seat("a", 0), Seat("b", 0), Seat("c", 0)


def commit(number: int) -> Commit:
    return 1, 1, number


def held(
    seat: Seat, step: int, reach: Reachability = Reachability.CONNECTED, *, since: float = NOW, **more: object
) -> Holding:
    return Holding(seat, (1, 1, step), step, reach, since)._replace(**more)  # type: ignore[arg-type]


def decided(*holdings: Holding, members: tuple[Seat, ...] = (C,), now: float = NOW, **more: object) -> CustodyDecision:
    """The decision for a world of ``members`` that is ready to form, and whose memory may be written."""
    facts = CustodyFacts(tuple(holdings), members, ready=True, writable=frozenset(members))
    return decide(now, replace(facts, **more), WAIT_S)  # type: ignore[arg-type]


AWAY, GONE = Reachability.NOT_CONNECTED, Reachability.GONE
LOST = held(A, 101, AWAY, why="nothing was heard from it for 10.0 s")
STORED, UNKNOWN = Stored((1, 1, 50), 50, "/store/x"), Stored(None, 0, "/store")
NOTED = held(Seat("a", -1), 10, AWAY, stale=True)
"""Noted by an earlier launcher, so it may be newer by now."""
TOLD = held(A, 101, AWAY, since=NOW - 100, loss_reported=True)

FORMS = {
    "nobody holds anything": (decided(), None),
    "a member holds the newest commit": (decided(held(A, 20), held(B, 10), members=(A, C)), None),
    "nobody can send it, and nothing is left": (
        decided(held(A, 101, GONE)), (101, "a", "a is gone (its agent has ended)"),
    ),
    "its holder has been waited for": (
        decided(LOST, held(C, 20), now=NOW + 60),
        (81, "a", "a did not come back in time (nothing was heard from it for 10.0 s)"),
    ),
    "its holder is known to be gone": (
        decided(held(A, 101, GONE, why="it ended with 137"), held(C, 20)), (81, "a", "a is gone (it ended with 137)"),
    ),
    "what was noted may be newer, and has been waited for: nothing is known to be lost": (
        decided(NOTED, held(C, 12), now=NOW + 60), None,
    ),
    "it could not be sent for so long": (
        decided(held(A, 5), failing={A: 60.0}), (5, "a", "a could not send it in time"),
    ),
    "a member holds what storage has": (decided(held(C, 50), stored=STORED), None),
    "a member holds something, and nobody knows what storage has": (decided(held(C, 1), stored=UNKNOWN), None),
    "nobody finds the checkpoint": (
        decided(held(C, 20), stored=STORED, members=(B, C), looked=frozenset("bc")),
        (30, "", "/store/x could not be loaded"),
    ),
    "nobody finds any": (decided(stored=UNKNOWN, looked=frozenset("c")), None),
    "it could not be loaded for so long": (
        decided(held(C, 20), stored=STORED, loading=60.0), (30, "", "/store/x could not be loaded"),
    ),
    "a loss that was told is not told again": (decided(TOLD, held(C, 20)), None),
    "another one is": (decided(TOLD, held(B, 60, GONE), held(C, 20)), (40, "b", "b is gone (its agent has ended)")),
}  # fmt: skip
OTHERS = {
    "members that hold nothing get it from its holder": (
        decided(held(A, 101), held(B, 99)), CustodyAction.SEND, {"source": held(A, 101), "target": C},
    ),
    "and members that hold something older": (
        decided(held(A, 101), held(B, 99), held(C, 20)), CustodyAction.SEND, {"source": held(A, 101), "target": C},
    ),
    **{
        f"one that leaves sends it as long as it is there, {later_s} s later": (
            decided(held(A, 101, leaves_by=NOW + 5), now=NOW + later_s), CustodyAction.SEND, {},
        )
        for later_s in (0, 5, 50)
    },
    "to a member of the same host first": (
        decided(held(A, 5), members=(B, Seat("a", 1))), CustodyAction.SEND, {"target": Seat("a", 1)},
    ),
    "and to one that leaves last": (
        decided(held(A, 5), held(B, 1, leaves_by=NOW + 5), members=(B, C)), CustodyAction.SEND, {"target": C},
    ),
    "not to one whose process may be writing to that memory": (
        decided(held(A, 5), writable=frozenset()), CustodyAction.WAIT, {"target": None},
    ),
    "not from one whose process may still make another one": (
        decided(held(A, 101), held(B, 90), active=frozenset({A})), CustodyAction.WAIT, {"source": None},
    ),
    "a holder that cannot be reached is waited for": (
        decided(LOST, held(C, 20), now=NOW + 59), CustodyAction.WAIT, {
            "until": NOW + 60,
            "reason": "not connected: a, which held the newest commit; waiting 1 s more (--commit-wait)",
        },
    ),
    "what can be had is fetched meanwhile": (
        decided(held(A, 101, AWAY), held(B, 90), held(C, 20)), CustodyAction.SEND, {"source": held(B, 90)},
    ),
    "by its own notice it is gone sooner": (
        decided(held(A, 9, AWAY, leaves_by=NOW + 3)), CustodyAction.WAIT, {"until": NOW + 3},
    ),
    "what was noted may be newer by now": (decided(NOTED, held(C, 12)), CustodyAction.WAIT, {}),
    "it could not be sent for a while": (decided(held(A, 5), failing={A: 59.0}), CustodyAction.SEND, {}),
    "a checkpoint that is newer is loaded": (decided(held(C, 20), stored=STORED), CustodyAction.LOAD, {"target": C}),
    "not one that is older": (decided(held(A, 60), held(C, 20), stored=STORED), CustodyAction.SEND, {}),
    "where nothing is held storage is looked at": (decided(stored=UNKNOWN), CustodyAction.LOAD, {"target": C}),
    "by one that has not found that it has none": (
        decided(held(C, 20), stored=STORED, members=(B, C), looked=frozenset("b")), CustodyAction.LOAD, {"target": C},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("found", "loss"), FORMS.values(), ids=FORMS)
def test_a_world_forms_with_the_newest_commit_and_tells_what_is_lost(
    found: CustodyDecision, loss: tuple[int, str, str] | None
) -> None:
    assert (found.act, found.reason) == (CustodyAction.FORM, "the newest commit is there")
    assert (found.loss and (found.loss.steps, "".join(found.loss.holders), found.loss.why)) == loss


@pytest.mark.parametrize(("found", "act", "more"), OTHERS.values(), ids=OTHERS)
def test_a_world_does_not_form_yet(found: CustodyDecision, act: CustodyAction, more: dict[str, object]) -> None:
    assert (found.act, {name: getattr(found, name) for name in more}) == (act, more)


def test_what_only_a_leaving_host_holds_goes_to_one_that_stays_though_nobody_may_work() -> None:
    leaving = held(A, 101, leaves_by=math.inf)
    facts = CustodyFacts((leaving, held(B, 20)), keepers=(B,), writable=frozenset({B}))
    found = decide(NOW, facts, WAIT_S)
    assert (found.act, found.source, found.target) == (CustodyAction.SEND, leaving, B)
    for more in (
        {"active": frozenset({A})},  # its process may still make another commit
        {"holdings": (leaving, held(B, 101))},
        {"stored": Stored((1, 1, 101), 101, "x")},
    ):
        assert decide(NOW, replace(facts, **more), WAIT_S).act is CustodyAction.FORM  # type: ignore[arg-type]


def test_an_agent_that_may_end_stays_until_somebody_who_stays_holds_as_much() -> None:
    leaving = held(A, 101, leaves_by=math.inf)

    def needed(*others: Holding, now: float = NOW, own: Holding = leaving, heard: str = "abc", **more: object) -> bool:
        facts = replace(CustodyFacts((own, *others)), **more)  # type: ignore[arg-type]
        return is_needed(now, "a", facts, WAIT_S, may_end_since=NOW, heard=heard)[0]

    assert needed()
    assert needed(held(B, 100))
    assert needed(held(B, 101, leaves_by=NOW + 9))
    assert needed(held(B, 101, Reachability.NOT_CONNECTED))
    assert not needed(held(B, 101))
    assert needed(held(B, 101), heard="ac")  # it may be gone
    assert not needed(stored=Stored((1, 1, 101), 101, "x"))
    assert not needed(now=NOW + 60)
    assert needed(now=NOW + 99, own=held(A, 101, leaves_by=NOW + 100))  # until the deadline of its notice
    assert needed(now=NOW + 5, own=held(A, 101, leaves_by=NOW + 5))
    assert not needed(now=NOW + 60, own=held(A, 101, leaves_by=NOW + 5))
    assert not is_needed(NOW, "c", CustodyFacts((leaving,)), WAIT_S, may_end_since=NOW, heard="abc")[0]


SEATS = st.sampled_from([A, B, C, Seat("a", 1)])
HOLDINGS = st.builds(
    held,
    SEATS,
    st.integers(0, 5),
    st.sampled_from(Reachability),
    since=st.floats(NOW - 100, NOW),
    leaves_by=st.none() | st.floats(NOW - 10, NOW + 100) | st.just(math.inf),
    stale=st.booleans(),
)


@given(
    st.lists(HOLDINGS, max_size=5, unique_by=lambda each: each.seat),
    st.lists(SEATS, min_size=1, unique=True),
    st.dictionaries(SEATS, st.floats(0.0, 100.0)),
    st.none() | st.builds(Stored, st.none() | st.builds(commit, st.integers(0, 5)), st.just(3), st.just("x")),
    st.floats(0.0, 100.0),
)
def test_a_world_forms_with_the_newest_commit_or_says_what_is_lost_and_every_wait_ends(
    holdings: list[Holding],
    members: list[Seat],
    failing: dict[Seat, float],
    stored: Stored | None,
    loading: float,
) -> None:
    facts = CustodyFacts(tuple(holdings), tuple(members), True, frozenset(members), (), stored, failing, loading)
    found = decide(NOW, facts, WAIT_S)
    assert found.reason
    inside = [each.commit for each in holdings if each.seat in members and each.reach is Reachability.CONNECTED]
    told = [each.commit for each in holdings] + ([stored.commit] if stored is not None and stored.commit else [])
    behind = [commit for commit in told if commit > max(inside, default=(0, 0, 0))] if told else []
    match found.act:
        case CustodyAction.FORM:
            assert (found.loss is not None) == bool(behind)
            available = [each for each in holdings if each.reach is Reachability.CONNECTED and each.commit in behind]
            assert all(each.seat in failing for each in available)
        case CustodyAction.SEND:
            assert found.source is not None
            assert found.source.commit in behind
            assert found.target in members
        case CustodyAction.LOAD:
            assert stored is not None
            assert found.target in members
        case CustodyAction.WAIT:
            assert found.until is not None
            assert NOW < found.until <= NOW + WAIT_S
    late = decide(
        NOW + 200.0,
        replace(facts, failing=dict.fromkeys([A, B, C, Seat("a", 1)], 60.0), loading=60.0),
        WAIT_S,
    )
    assert late.act is CustodyAction.FORM  # for any kind of failure


AWAITED = {
    "nobody holds anything": ((), None, None),
    "all holders are here": ((held(A, 5), held(B, 9)), None, None),
    "a holder of a newer commit is away": ((held(A, 5), held(B, 9, AWAY)), None, NOW + WAIT_S),
    "of two the one whose time is over first": (
        (held(B, 9, AWAY), held(C, 8, AWAY, since=NOW - 20)), None, NOW + WAIT_S - 20,
    ),
    "its host is gone before": ((held(B, 9, AWAY, leaves_by=NOW + 7),), None, NOW + 7),
    "it has been waited for": ((held(B, 9, AWAY, since=NOW - WAIT_S),), None, None),
    "it holds nothing newer than those who are here": ((held(A, 9), held(B, 9, AWAY)), None, None),
    "it may hold a newer one than an earlier launcher knew": ((held(A, 12), NOTED), None, NOW + WAIT_S),
    "storage has as new a commit": ((held(B, 50, AWAY),), STORED, None),
    "storage has an older one": ((held(B, 51, AWAY),), STORED, NOW + WAIT_S),
}  # fmt: skip


@pytest.mark.parametrize(("holdings", "stored", "until"), AWAITED.values(), ids=AWAITED)
def test_who_is_away_with_a_newer_commit_is_awaited(
    holdings: tuple[Holding, ...], stored: Stored | None, until: float | None
) -> None:
    assert awaited(NOW, CustodyFacts(holdings, (C,), ready=True, stored=stored), WAIT_S) == until
