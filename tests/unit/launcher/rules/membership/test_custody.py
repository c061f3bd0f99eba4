"""No world forms behind the newest commit that anybody still holds; and if it has to, that is said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.rules.membership.custody import (
    Act,
    Commit,
    Facts,
    Holding,
    Reach,
    Stored,
    Verdict,
    is_needed,
    judge,
)
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat

NOW = 1000.0
WAIT_S = 60.0
A, B, C = Seat("a", 0), Seat("b", 0), Seat("c", 0)


def commit(number: int) -> Commit:
    return 1, 1, number


def held(seat: Seat, step: int, reach: Reach = Reach.HERE, *, since: float = NOW, **more: object) -> Holding:
    return replace(Holding(seat, (1, 1, step), step, reach, since), **more)  # type: ignore[arg-type]


def verdict(*holdings: Holding, members: tuple[Seat, ...] = (C,), now: float = NOW, **more: object) -> Verdict:
    """Of a world of ``members`` that is ready to form, whose memory may be written."""
    facts = Facts(tuple(holdings), members, ready=True, writable=frozenset(members))
    return judge(now, replace(facts, **more), WAIT_S)  # type: ignore[arg-type]


def test_a_job_of_which_nobody_holds_anything_begins() -> None:
    assert verdict() == Verdict(Act.FORM, "the newest commit is there")


def test_a_world_whose_members_hold_the_newest_commit_forms() -> None:
    found = verdict(held(A, 20), held(B, 10), members=(A, C))
    assert (found.act, found.loss) == (Act.FORM, None)


@pytest.mark.parametrize("step", [None, 20])
def test_members_that_hold_nothing_or_something_older_get_it_from_its_holder_first(step: int | None) -> None:
    own = [] if step is None else [held(C, step)]
    found = verdict(held(A, 101), held(B, 99), *own)
    assert (found.act, found.source, found.target) == (Act.SEND, held(A, 101), C)


@pytest.mark.parametrize("later_s", [0, 5, 50])
def test_one_that_leaves_sends_it_as_long_as_it_is_there(later_s: float) -> None:
    assert verdict(held(A, 101, leaves_by=NOW + 5), now=NOW + later_s).act is Act.SEND


def test_what_nobody_can_send_is_lost_with_all_steps_if_nothing_is_left() -> None:
    found = verdict(held(A, 101, Reach.GONE))
    assert found.loss is not None
    assert (found.loss.steps, found.loss.left, found.loss.holders) == (101, None, ("a",))


def test_a_commit_goes_to_a_member_of_the_same_host_first_and_to_one_that_leaves_last() -> None:
    beside = Seat("a", 1)
    assert verdict(held(A, 5), members=(B, beside)).target == beside
    assert verdict(held(A, 5), held(B, 1, leaves_by=NOW + 5), members=(B, C)).target == C


def test_nobody_gets_it_whose_process_may_be_writing_to_that_memory() -> None:
    found = verdict(held(A, 5), writable=frozenset())
    assert (found.act, found.target) == (Act.WAIT, None)


def test_nobody_is_asked_for_a_commit_whose_process_may_still_make_another_one() -> None:
    found = verdict(held(A, 101), held(B, 90), active=frozenset({A}))
    assert (found.act, found.source) == (Act.WAIT, None)
    leaving = held(A, 101, leaves_by=math.inf)
    facts = Facts((leaving,), keepers=(B,), writable=frozenset({B}), active=frozenset({A}))
    assert judge(NOW, facts, WAIT_S).act is Act.FORM


def test_a_holder_that_cannot_be_reached_is_waited_for_and_then_no_longer() -> None:
    away = held(A, 101, Reach.AWAY, since=NOW, why="nothing was heard of it for 10.0 s")
    found = verdict(away, held(C, 20), now=NOW + 59)
    assert (found.act, found.until) == (Act.WAIT, NOW + 60)
    assert "not connected: a, which held the newest commit; waiting 1 s more" in found.reason
    late = verdict(away, held(C, 20), now=NOW + 60)
    assert late.act is Act.FORM
    assert late.loss is not None
    assert (late.loss.steps, late.loss.holders) == (81, ("a",))
    assert late.loss.why == "a did not come back in time (nothing was heard of it for 10.0 s)"


def test_what_can_be_had_is_fetched_while_something_newer_is_waited_for() -> None:
    found = verdict(held(A, 101, Reach.AWAY), held(B, 90), held(C, 20))
    assert (found.act, found.source) == (Act.SEND, held(B, 90))


def test_one_that_is_known_to_be_gone_is_not_waited_for() -> None:
    found = verdict(held(A, 101, Reach.GONE, why="its agent ended with exit code 137"), held(C, 20))
    assert found.act is Act.FORM
    assert found.loss is not None
    assert found.loss.why == "a is gone (its agent ended with exit code 137)"


def test_a_holder_whose_host_must_be_gone_by_its_own_notice_is_waited_for_until_then_only() -> None:
    found = verdict(held(A, 9, Reach.AWAY, leaves_by=NOW + 3))
    assert (found.act, found.until) == (Act.WAIT, NOW + 3)


def test_what_an_earlier_launcher_noted_may_be_newer_by_now_and_is_waited_for() -> None:
    noted = held(Seat("a", -1), 10, Reach.AWAY, stale=True)
    assert verdict(noted, held(C, 12)).act is Act.WAIT
    late = verdict(noted, held(C, 12), now=NOW + 60)
    assert (late.act, late.loss) == (Act.FORM, None)  # as far as anybody knows, nothing is lost


def test_a_commit_that_cannot_be_sent_for_so_long_is_given_up() -> None:
    assert verdict(held(A, 5), failing={A: 59.0}).act is Act.SEND
    late = verdict(held(A, 5), failing={A: 60.0})
    assert late.act is Act.FORM
    assert late.loss is not None
    assert late.loss.why == "a could not send it in time"


def test_a_checkpoint_that_is_newer_than_all_that_is_held_is_loaded() -> None:
    stored = Stored((1, 1, 50), 50, "/store/x")
    assert (verdict(held(C, 20), stored=stored).act, verdict(stored=stored).target) == (Act.LOAD, C)
    assert verdict(held(A, 60), held(C, 20), stored=stored).act is Act.SEND
    assert verdict(held(C, 50), stored=stored).act is Act.FORM


def test_where_nothing_is_held_storage_is_looked_at_though_nobody_knows_what_is_there() -> None:
    stored = Stored(None, 0, "/store")
    assert verdict(stored=stored).act is Act.LOAD
    assert verdict(held(C, 1), stored=stored).act is Act.FORM


def test_a_host_that_found_no_checkpoint_is_not_asked_again_and_where_nobody_finds_one_training_goes_on() -> None:
    stored = Stored((1, 1, 50), 50, "/store/x")
    found = verdict(held(C, 20), stored=stored, members=(B, C), looked=frozenset("b"))
    assert (found.act, found.target) == (Act.LOAD, C)
    found = verdict(held(C, 20), stored=stored, members=(B, C), looked=frozenset("bc"))
    assert found.loss is not None
    assert (found.act, found.loss.steps) == (Act.FORM, 30)
    assert verdict(stored=Stored(None, 0, "/store"), looked=frozenset("c")) == Verdict(
        Act.FORM, "the newest commit is there"
    )


def test_a_checkpoint_that_cannot_be_loaded_for_so_long_is_a_loss() -> None:
    found = verdict(held(C, 20), stored=Stored((1, 1, 50), 50, "/store/x"), loading=60.0)
    assert found.act is Act.FORM
    assert found.loss is not None
    assert (found.loss.steps, found.loss.why) == (30, "/store/x could not be loaded")


def test_what_only_a_leaving_host_holds_goes_to_one_that_stays_though_nobody_may_work() -> None:
    leaving = held(A, 101, leaves_by=math.inf)
    facts = Facts((leaving, held(B, 20)), keepers=(B,), writable=frozenset({B}))
    found = judge(NOW, facts, WAIT_S)
    assert (found.act, found.source, found.target) == (Act.SEND, leaving, B)
    assert judge(NOW, replace(facts, holdings=(leaving, held(B, 101))), WAIT_S).act is Act.FORM
    assert judge(NOW, replace(facts, stored=Stored((1, 1, 101), 101, "x")), WAIT_S).act is Act.FORM


def test_an_agent_that_may_end_stays_until_somebody_who_stays_holds_as_much() -> None:
    leaving = held(A, 101, leaves_by=math.inf)

    def needed(*others: Holding, now: float = NOW, own: Holding = leaving, heard: str = "abc", **more: object) -> bool:
        facts = replace(Facts((own, *others)), **more)  # type: ignore[arg-type]
        return is_needed(now, "a", facts, WAIT_S, told_at=NOW, heard=heard)[0]

    assert needed()
    assert needed(held(B, 100))
    assert needed(held(B, 101, leaves_by=NOW + 9))
    assert needed(held(B, 101, Reach.AWAY))
    assert not needed(held(B, 101))
    assert needed(held(B, 101), heard="ac")  # it may be gone
    assert not needed(stored=Stored((1, 1, 101), 101, "x"))
    assert not needed(now=NOW + 60)
    assert needed(now=NOW + 99, own=held(A, 101, leaves_by=NOW + 100))  # as long as its notice says
    assert needed(now=NOW + 5, own=held(A, 101, leaves_by=NOW + 5))
    assert not needed(now=NOW + 60, own=held(A, 101, leaves_by=NOW + 5))
    assert not is_needed(NOW, "c", Facts((leaving,)), WAIT_S, told_at=NOW, heard="abc")[0]


SEATS = st.sampled_from([A, B, C, Seat("a", 1)])
HOLDINGS = st.builds(
    held,
    SEATS,
    st.integers(0, 5),
    st.sampled_from(Reach),
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
    facts = Facts(tuple(holdings), tuple(members), True, frozenset(members), (), stored, failing, loading)
    found = judge(NOW, facts, WAIT_S)
    assert found.reason
    inside = [each.commit for each in holdings if each.seat in members and each.reach is Reach.HERE]
    told = [each.commit for each in holdings] + ([stored.commit] if stored is not None and stored.commit else [])
    behind = [commit for commit in told if commit > max(inside, default=(0, 0, 0))] if told else []
    match found.act:
        case Act.FORM:
            assert (found.loss is not None) == bool(behind)
            available = [each for each in holdings if each.reach is Reach.HERE and each.commit in behind]
            assert all(each.seat in failing for each in available)
        case Act.SEND:
            assert found.source is not None
            assert found.source.commit in behind
            assert found.target in members
        case Act.LOAD:
            assert stored is not None
            assert found.target in members
        case Act.WAIT:
            assert found.until is not None
            assert NOW < found.until <= NOW + WAIT_S
    late = judge(
        NOW + 200.0,
        replace(facts, failing=dict.fromkeys([A, B, C, Seat("a", 1)], 60.0), loading=60.0),
        WAIT_S,
    )
    assert late.act is Act.FORM  # whatever it was that did not work


def test_a_loss_that_was_told_is_not_told_again() -> None:
    away = held(A, 101, Reach.AWAY, since=NOW - 100, told=True)
    found = verdict(away, held(C, 20))
    assert (found.act, found.loss) == (Act.FORM, None)
    more = verdict(away, held(B, 60, Reach.GONE, why="its agent has ended"), held(C, 20))
    assert more.loss is not None
    assert (more.loss.newest[1], more.loss.holders, more.loss.steps) == (60, ("b",), 40)
