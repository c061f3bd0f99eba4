"""The rendezvous of processes: all ranks are assigned at once, and keys belong to one generation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.launcher.membership.rendezvous import (
    CANNOT_FORM,
    HOLD_S,
    NO_ROOM,
    NOT_YET,
    OK,
    TOO_LARGE,
    ProcessId,
    Question,
    Rendezvous,
    RendezvousAnswer,
    Seat,
    max_stored_bytes,
    places,
)

A, B, C = (ProcessId(Seat(name, 0), 1) for name in "abc")
RANK = "/rank_and_size/x:0"
KEY = "/global/0"


def ask_rank(meeting: Rendezvous, *lives: ProcessId, number: int = 1) -> None:
    for life in lives:
        assert meeting.ask(Question(life, number, "GET", RANK), 0.0) == []


def formed(*members: ProcessId) -> Rendezvous:
    meeting = Rendezvous()
    meeting.form(1, members)
    ask_rank(meeting, *members)
    meeting.assign_ranks(members)
    return meeting


def test_ranks_are_dealt_when_all_have_asked_and_not_before() -> None:
    meeting = Rendezvous()
    meeting.form(1, [A, B])
    ask_rank(meeting, A)
    assert not meeting.ready
    with pytest.raises(ValueError, match="once all have asked"):
        meeting.assign_ranks([A, B])
    ask_rank(meeting, B)
    assert meeting.ready
    assert list(meeting.assign_ranks([B, A]).answers()) == [
        RendezvousAnswer(B, 1, OK, b"0,2,0,1,0,2"),
        RendezvousAnswer(A, 1, OK, b"1,2,0,1,1,2"),
    ]
    assert meeting.formed


def test_a_question_is_kept_for_the_next_generation() -> None:
    meeting = Rendezvous()
    meeting.form(1, [A, B, C])
    ask_rank(meeting, A, B)
    meeting.ended(C)
    assert meeting.form(2, [A, B]) == []
    assert meeting.ready
    assert {answer.life for answer in meeting.assign_ranks([A, B]).answers()} == {A, B}


def test_a_generation_is_newer_than_all_before() -> None:
    meeting = formed(A)
    with pytest.raises(ValueError, match="not newer"):
        meeting.form(1, [A])


def test_who_asks_again_has_lost_its_world() -> None:
    meeting = formed(A, B)
    assert A not in meeting.asked_again
    ask_rank(meeting, A, number=2)
    assert A in meeting.asked_again
    assert B not in meeting.asked_again


def test_a_question_that_comes_again_is_answered_again_and_says_nothing_about_the_world() -> None:
    meeting = formed(A, B)
    assert meeting.ask_for_rank(A, 1)
    assert meeting.ask(Question(A, 1, "GET", RANK), 0.0) == [RendezvousAnswer(A, 1, OK, b"0,2,0,1,0,2")]
    assert A not in meeting.asked_again
    meeting.form(2, [A, B])
    assert meeting.ask(Question(A, 1, "GET", RANK), 0.0) == [RendezvousAnswer(A, 1, OK, b"0,2,0,1,0,2")]
    assert meeting.ask(Question(A, 2, "GET", KEY), 0.0) == [RendezvousAnswer(A, 2, CANNOT_FORM)]  # it learns this there
    ask_rank(meeting, A, B, number=3)
    meeting.assign_ranks([B, A])
    ask_rank(meeting, A, number=1)  # answered before, and not waiting any more
    assert not meeting.waiting


def test_a_key_is_waited_for() -> None:
    meeting = formed(A, B)
    assert meeting.ask(Question(A, 2, "GET", KEY), 10.0) == []
    assert meeting.due(10.0 + HOLD_S / 2) == []
    answers = meeting.ask(Question(B, 2, "PUT", KEY, b"here"), 10.5)
    assert answers == [RendezvousAnswer(B, 2, OK), RendezvousAnswer(A, 2, OK, b"here")]
    assert meeting.ask(Question(A, 3, "GET", KEY), 11.0) == [RendezvousAnswer(A, 3, OK, b"here")]


def test_a_key_that_does_not_come_is_answered_before_the_asker_loses_patience() -> None:
    meeting = formed(A, B)
    meeting.ask(Question(A, 2, "GET", KEY), 10.0)
    assert meeting.next_due() == 10.0 + HOLD_S
    assert meeting.due(10.0 + HOLD_S) == [RendezvousAnswer(A, 2, NOT_YET)]
    assert meeting.next_due() is None


def test_each_generation_has_its_own_keys() -> None:
    meeting = formed(A, B)
    meeting.ask(Question(A, 2, "PUT", KEY, b"old"), 0.0)
    meeting.form(2, [A, B])
    ask_rank(meeting, A, B, number=3)
    meeting.assign_ranks([A, B])
    assert meeting.ask(Question(B, 4, "GET", KEY), 0.0) == []


def test_a_new_generation_ends_the_waiting_for_the_one_before() -> None:
    meeting = formed(A, B)
    meeting.ask(Question(A, 2, "GET", KEY), 0.0)
    assert meeting.form(2, [A]) == [RendezvousAnswer(A, 2, CANNOT_FORM)]


def test_deleting_a_key_changes_nothing_for_the_others() -> None:
    meeting = formed(A, B)
    meeting.ask(Question(A, 2, "PUT", KEY, b"here"), 0.0)
    assert meeting.ask(Question(A, 3, "DELETE", KEY), 0.0) == [RendezvousAnswer(A, 3, OK)]
    assert meeting.ask(Question(B, 2, "GET", KEY), 0.0) == [RendezvousAnswer(B, 2, OK, b"here")]


def test_who_hangs_up_is_not_waiting_any_more() -> None:
    meeting = Rendezvous()
    meeting.form(1, [A])
    ask_rank(meeting, A)
    meeting.withdraw(A, 1)
    assert not meeting.ready


def test_a_stranger_learns_no_key() -> None:
    meeting = formed(A)
    meeting.ask(Question(A, 2, "PUT", KEY, b"here"), 0.0)
    assert meeting.ask(Question(B, 1, "GET", KEY), 0.0) == [RendezvousAnswer(B, 1, NOT_YET)]


def stored_by_horovod(size: int, *, sets: int = 0) -> list[list[tuple[str, bytes]]]:
    """The values that each rank stores, as in gloo_context.cc and Gloo's connectFullMesh, with four ranks on each
    host."""
    suffixes = ["", *(f"_process_set_hash_{number:016x}" for number in range(sets))]
    host = "worker-17.training.some-namespace.svc.cluster.local"
    by_rank = []
    for rank in range(size):
        scopes = ((f"local_{host}", rank % 4, 4), (f"cross_{rank % 4}", rank // 4, size // 4), ("global_", rank, size))
        by_rank.append(
            [
                (f"/{scope}{suffix}/{key}", value)
                for suffix in suffixes
                for scope, own, peers in scopes
                for key, value in ((f"rank_{own}", host.encode()), (str(own), bytes(136 * (peers - 1))))
            ]
        )
    return by_rank


def world_of(size: int) -> tuple[Rendezvous, list[ProcessId]]:
    members = [ProcessId(Seat(f"h{number}", 0), 1) for number in range(size)]
    return formed(*members), members


@pytest.mark.parametrize(("size", "sets"), [(4, 50), (16, 30), (256, 5)])
def test_all_that_horovod_stores_is_kept(size: int, sets: int) -> None:
    meeting, members = world_of(size)
    for life, values in zip(members, stored_by_horovod(size, sets=sets), strict=True):
        for number, (key, value) in enumerate(values, start=2):
            assert meeting.ask(Question(life, number, "PUT", key, value), 0.0) == [RendezvousAnswer(life, number, OK)]


def test_a_value_larger_than_any_of_horovods_is_refused_and_not_kept() -> None:
    meeting = formed(A, B)
    assert meeting.ask(Question(A, 2, "PUT", KEY, bytes(1 << 20)), 0.0) == [RendezvousAnswer(A, 2, TOO_LARGE)]
    assert meeting.ask(Question(A, 3, "PUT", "/" + "x" * (1 << 16), b""), 0.0) == [RendezvousAnswer(A, 3, TOO_LARGE)]
    assert meeting.ask(Question(A, 4, "PUT", KEY, b"here"), 0.0) == [RendezvousAnswer(A, 4, OK)]
    assert meeting.ask(Question(B, 2, "GET", KEY), 0.0) == [RendezvousAnswer(B, 2, OK, b"here")]


@pytest.mark.parametrize("value", [b"", b"x" * 8000])
def test_however_many_keys_are_stored_a_world_keeps_so_much_and_no_more(value: bytes) -> None:
    meeting = formed(A, B)
    meeting.ask(Question(A, 2, "PUT", KEY, b"here"), 0.0)
    answered = [meeting.ask(Question(A, n, "PUT", f"/global/{n}", value), 0.0)[0].status for n in range(3, 5000)]
    kept = answered.index(NO_ROOM)
    assert set(answered[:kept]) == {OK}
    assert set(answered[kept:]) == {NO_ROOM}
    assert kept * (len(value) + len("/global/1")) <= max_stored_bytes(2) < 1 << 20
    # An existing key stays, may be written again, and ends with its generation.
    assert meeting.ask(Question(B, 2, "GET", KEY), 0.0) == [RendezvousAnswer(B, 2, OK, b"here")]
    assert meeting.ask(Question(A, 6000, "PUT", KEY, b"anew"), 0.0)[0].status == OK
    meeting.form(2, [A, B])
    ask_rank(meeting, A, B, number=7000)
    meeting.assign_ranks([A, B])
    assert meeting.ask(Question(A, 7001, "PUT", "/global/new", value), 0.0)[0].status == OK


def test_the_body_of_a_question_that_waits_is_not_kept() -> None:
    meeting = Rendezvous()
    meeting.form(1, [A])
    ask_rank(meeting, A)
    meeting.assign_ranks([A])
    meeting.ask(Question(A, 2, "GET", KEY, bytes(1 << 20)), 0.0)
    assert [question.body for question, _ in meeting._held.values()] == [b""]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_places_are_those_of_horovod(slots: list[int]) -> None:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    members = [ProcessId(Seat(f"h{host}", slot), 1) for host, count in enumerate(slots) for slot in range(count)]
    hosts = ",".join(f"h{host}:{count}" for host, count in enumerate(slots))
    theirs = get_host_assignments(parse_hosts(hosts), len(members))
    assert [place.text() for place in places(members).values()] == [slot.to_response_string() for slot in theirs]


def test_members_of_one_host_stand_together() -> None:
    with pytest.raises(ValueError, match="follow one another"):
        places([A, B, ProcessId(Seat("a", 1), 1)])


def test_a_world_of_another_launcher_is_taken_over() -> None:
    meeting = Rendezvous()
    meeting.adopt(7, {A: Place(0, 1, 0, 1, 0, 1)})
    assert meeting.generation == 7
    assert meeting.formed
    ask_rank(meeting, A)
    assert A in meeting.asked_again


def test_a_member_that_was_given_up_and_asks_once_more_asks_for_another_world() -> None:
    """Its answer is not known any more, and may never have arrived. Nothing else would ever answer it."""
    meeting = formed(A, B)
    meeting.ended(A)
    ask_rank(meeting, A)
    assert meeting.asked_again == {A}
