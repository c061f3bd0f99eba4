"""Who may share a world, by the training calls that processes are in."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.membership.calls import NONE_YET, UNKNOWN, Act, Gate, InCall, Standing, behind, decide
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.world_change import Stage

A, B, C = (Seat(host, 0) for host in "abc")


def live(seat: Seat, call: int, *, done: bool = False) -> InCall:
    return InCall(seat, Stage.LIVE, call, has_state=True, done=done)


def parked(seat: Seat, call: int = 1) -> InCall:
    return InCall(seat, Stage.PARKED, call)


def booting(seat: Seat) -> InCall:
    return InCall(seat, Stage.BOOTING, 1)


def gate(
    *processes: InCall,
    pasts: Mapping[Seat, int] | None = None,
    refused: Mapping[int, str] | None = None,
    standing: bool = True,
) -> Gate:
    return decide(processes, pasts or {}, refused or {}, standing=standing)


def test_a_newcomer_in_the_call_of_the_others_joins() -> None:
    found = gate(live(A, 2), parked(B, 2), pasts={A: 2, B: 2})
    assert (found.front, found.act(A), found.act(B)) == (2, Act.JOINS, Act.JOINS)


def test_one_that_is_behind_goes_on_by_itself_if_its_slot_has_the_result() -> None:
    assert gate(live(A, 3), parked(B, 1), pasts={A: 3, B: 2}).standings[B] == Standing(Act.CATCHES_UP, B)


def test_else_it_gets_the_results_of_the_slot_that_has_most_of_them() -> None:
    assert gate(live(A, 3), live(C, 3), parked(B, 1), pasts={A: 2, C: 3}).standings[B] == Standing(Act.CATCHES_UP, C)


def test_one_that_starts_gets_the_results_before_it_needs_them_and_only_if_it_lacks_them() -> None:
    assert gate(live(A, 2), booting(B), pasts={A: 2}).standings[B] == Standing(Act.CATCHES_UP, A)
    assert gate(live(A, 2), booting(B), pasts={A: 2, B: 2}).act(B) is None
    before_its_first_call = booting(B)._replace(call=UNKNOWN)
    assert gate(live(A, 2), before_its_first_call, pasts={A: 2}).standings[B] == Standing(Act.CATCHES_UP, A)


def test_a_result_that_was_not_kept_keeps_newcomers_outside_until_the_job_ends_and_delays_nobody() -> None:
    found = gate(live(A, 3), parked(B, 1), parked(C, 3), pasts={A: 1}, refused={1: "too large", 2: "not kept"})
    assert found.standings[B] == Standing(Act.WAITS, why="the result of call 1 was not kept: too large", for_good=True)
    assert found.stage(B, Stage.PARKED) is None
    assert found.act(C) is Act.JOINS


def test_one_that_can_come_up_to_a_lost_result_waits_there() -> None:
    found = gate(live(A, 3), parked(B, 2), pasts={A: 2, B: 2}, refused={2: "unequal"})
    assert found.standings[B].why == "the result of call 2 was not kept: unequal"


def test_a_result_that_cannot_be_reached_now_is_waited_for_without_a_word_of_for_good() -> None:
    assert gate(live(A, 2), parked(B, 1)).standings[B] == Standing(Act.WAITS, why="no result of call 1 can be reached")


def test_no_newcomer_is_mixed_in_while_a_member_is_still_in_an_earlier_call() -> None:
    found = gate(live(A, 2), live(B, 1), parked(C, 2), pasts={A: 2, C: 2})
    assert found.standings[B] == Standing(Act.BEHIND)
    assert found.standings[C] == Standing(Act.WAITS, why="b[0] is still in call 1")


def test_a_member_that_is_done_with_the_earlier_call_holds_up_nobody() -> None:
    assert gate(live(A, 2), live(B, 1, done=True), parked(C, 2), pasts={A: 2, C: 2}).act(C) is Act.JOINS


def test_a_world_that_has_lost_a_member_gets_one_that_is_ahead_and_may_need_it() -> None:
    assert gate(live(B, 1), parked(A, 2), pasts={A: 2}, standing=False).act(A) is Act.JOINS


def test_after_the_loss_of_all_the_front_is_what_the_longest_past_leads_to() -> None:
    found = gate(parked(A, 1), parked(B, 3), booting(C), pasts={B: 3, C: 1})
    assert found.front == 3
    assert (found.act(A), found.act(B), found.act(C)) == (Act.CATCHES_UP, Act.JOINS, Act.CATCHES_UP)


def test_without_any_result_all_begin_with_the_call_that_they_are_in() -> None:
    found = gate(parked(A), parked(B))
    assert (found.front, found.act(A), found.act(B)) == (1, Act.JOINS, Act.JOINS)


def test_a_process_that_says_nothing_about_calls_joins_any_world() -> None:
    assert gate(live(A, 3), parked(B, UNKNOWN), pasts={A: 3}).act(B) is Act.JOINS


def test_a_process_that_asks_for_a_rank_in_a_call_that_others_have_ended_is_behind() -> None:
    found = behind([live(A, 3), live(B, 2), live(C, 2)], {A, B})
    assert found == {B: "b[0] is still in call 2, others are in call 3"}  # what c says may be on its way


def test_if_all_ask_in_the_same_call_or_if_nobody_else_has_trained_nobody_is_behind() -> None:
    assert not behind([live(A, 2), live(B, 2), parked(C, 3)], {A, B})
    newcomer = InCall(C, Stage.LIVE, 3)
    assert not behind([live(A, 2), newcomer], {A})
    assert behind([live(A, 2), newcomer], {A, C}) == {A: "a[0] is still in call 2, others are in call 3"}


def test_a_process_of_which_no_call_is_known_is_never_behind_and_nobody_is_behind_it() -> None:
    assert not behind([live(A, 2), live(B, UNKNOWN)], {A, B})


def test_an_unmodified_script_that_would_begin_with_call_1_waits_outside_if_that_cannot_be_skipped() -> None:
    refused = {1: "its State is Horovod's own", 2: "the same"}
    found = gate(live(A, 3), parked(B, NONE_YET), refused=refused)
    why = "the result of call 1 was not kept: its State is Horovod's own"
    assert found.standings[B] == Standing(Act.WAITS, why=why, for_good=True)
    assert gate(live(A, 1), parked(B, NONE_YET), refused=refused).act(B) is Act.JOINS
    assert gate(live(A, 3), parked(B, NONE_YET), pasts={A: 3}).act(B) is Act.JOINS  # the ranks send it when they meet
    called = InCall(B, Stage.LIVE, NONE_YET)
    assert behind([live(A, 2), called], {B}, refused) == {B: "b[0] is still in call 1, others are in call 2"}
    assert not behind([live(A, 2), called], {B})


SEATS = [Seat(host, slot) for host in "abc" for slot in range(2)]
PROCESSES = st.lists(
    st.builds(
        InCall,
        st.sampled_from(SEATS),
        st.sampled_from(Stage),
        st.integers(1, 5),
        has_state=st.booleans(),
        done=st.booleans(),
    ),
    unique_by=lambda each: each.seat,
)
PASTS = st.dictionaries(st.sampled_from(SEATS), st.integers(1, 5))
REFUSED = st.dictionaries(st.integers(1, 4), st.just("too large"))


@given(PROCESSES, PASTS, REFUSED, st.booleans())
def test_all_that_join_are_in_one_call_and_every_parked_process_has_an_answer(
    processes: list[InCall], pasts: dict[Seat, int], refused: dict[int, str], standing: bool
) -> None:
    found = decide(processes, pasts, refused, standing=standing)
    joins = {each.call for each in processes if found.act(each.seat) is Act.JOINS and each.stage is not Stage.LIVE}
    assert joins <= {found.front}
    for each in processes:
        answer = found.standings.get(each.seat)
        if each.stage is Stage.LIVE and each.has_state:
            assert each.call <= found.front
        if each.stage is Stage.PARKED:
            assert answer is not None
            assert each.call <= found.front
            if answer.act is Act.CATCHES_UP:
                assert answer.source is not None
                assert pasts[answer.source] > each.call  # it gets ahead: nobody is told the same for ever
            if answer.act is Act.WAITS:
                assert answer.why


@given(PROCESSES, st.sets(st.sampled_from(SEATS)))
def test_who_is_left_of_those_that_ask_is_in_one_call_and_somebody_is_left(
    processes: list[InCall], waiting: set[Seat]
) -> None:
    found = behind(processes, waiting)
    live = [each for each in processes if each.stage is Stage.LIVE]
    assert found.keys() <= waiting & {each.seat for each in live}
    rest = {each.call for each in live if each.seat in waiting and each.seat not in found}
    assert len(rest) <= 1
    assert rest or not found or any(each.has_state and each.seat not in waiting for each in live)
