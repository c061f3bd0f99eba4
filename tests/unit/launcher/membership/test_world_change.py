"""The processes that should be in the world, case by case, and rules for every case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat, places
from hvd_elastic_ext.launcher.membership.world_change import (
    Process,
    Situation,
    Stage,
    WorldDecision,
    WorldLimits,
    decide,
    in_order,
)

LIMITS = WorldLimits(settle_s=3.0)


def process(name: str, stage: Stage = Stage.LIVE, *, since: float = 0.0, **more: object) -> Process:
    return Process(ProcessId(Seat(name, 0), 1), stage, since, **more)  # type: ignore[arg-type]


def situation(
    wanted: str, processes: Iterable[Process], members: str = "", *, settled: bool = True, begun: bool = True
) -> Situation:
    return Situation(
        tuple(Seat(name, 0) for name in wanted),
        {each.seat: each for each in processes},
        members=tuple(ProcessId(Seat(name, 0), 1) for name in members),
        settled=settled,
        begun=begun,
    )


def ranks(members: Sequence[Process], wanted: Sequence[Seat]) -> tuple[ProcessId, ...]:
    holds, trained = [each.holds for each in members], [each.trained for each in members]
    return in_order([each.life for each in members], wanted, holds=holds, trained=trained)


def hosts(decision: WorldDecision) -> str | None:
    return None if decision.members is None else "".join(life.seat.host for life in decision.members)


@pytest.mark.parametrize(
    ("least", "slots", "found"),
    [(5, 3, (3, 3)), (2, 3, (3, 2)), (2, 1, (2, 2)), (5, 5, (5, 5)), (5, 7, (5, 5)), (2, 0, (5, 2))],
)
def test_a_start_on_all_slots_follows_a_list_with_fewer(least: int, slots: int, found: tuple[int, int]) -> None:
    limits = WorldLimits(start=5, least=least).of_slots(slots)
    assert (limits.start, limits.least) == found


@pytest.mark.parametrize("least", [1, 4])
def test_a_start_on_all_slots_follows_a_list_to_a_size_that_is_allowed(least: int) -> None:
    limits = WorldLimits(start=4, least=least, allowed=(2, 4)).of_slots(3)
    assert limits.size(3, begun=False) == 2


def test_where_nobody_tells_of_a_commit_rank_0_is_one_that_has_trained() -> None:
    there = [process("a"), process("b", trained=True), process("c", trained=True)]
    order = ranks(there, situation("abc", there).wanted)
    assert [life.seat.host for life in order] == ["b", "c", "a"]


def test_whoever_leaves_soon_does_not_wait_for_its_replacements_beyond_its_deadline() -> None:
    going = process("a", leaves_by=10.0)
    ready, booting = process("c", Stage.PARKED, since=7.5), process("d", Stage.BOOTING)
    limits = WorldLimits(settle_s=30.0)
    early = decide(7.6, situation("cd", [going, ready, booting], "a"), limits)
    assert hosts(early) is None
    assert early.again_at == 8.0
    assert hosts(decide(8.0, situation("cd", [going, ready, booting], "a"), limits)) == "ac"


@pytest.mark.parametrize(
    ("available", "size"), [(1, 0), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (9, 8)], ids=lambda number: str(number)
)
def test_a_world_has_the_largest_size_that_is_allowed(available: int, size: int) -> None:
    assert WorldLimits(allowed=(2, 4, 8)).size(available, begun=True) == size


def test_the_first_world_waits_for_whoever_is_still_starting_and_for_nobody_else() -> None:
    ready, other = process("a", Stage.PARKED, since=9.0), process("b", Stage.PARKED, since=9.0)
    waits = decide(10.0, situation("ab", [ready, process("b", Stage.BOOTING)], begun=False), LIMITS)
    assert (hosts(waits), waits.reason, waits.again_at) == (None, "processes on their way: 1", 12.0)
    late = decide(12.0, situation("ab", [ready, process("b", Stage.BOOTING)], begun=False), LIMITS)
    assert (hosts(late), late.reason) == ("a", "processes late: 1")
    assert hosts(decide(9.0, situation("ab", [ready, other], begun=False), LIMITS)) == "ab"


def test_whoever_is_to_go_stays_while_those_who_are_ready_are_too_few_without_it() -> None:
    there = [process("a"), process("b", Stage.PARKED, since=0.0)]
    assert hosts(decide(50.0, situation("bc", there, "a"), WorldLimits(least=2))) == "ab"


def test_a_world_that_lost_somebody_is_formed_again_at_once_with_whoever_is_ready() -> None:
    found = decide(5.0, situation("abc", [process("a"), process("c", Stage.PARKED, since=4.9)], "ab"), LIMITS)
    assert hosts(found) == "ac"
    assert found.cause == "worker failed"


def test_a_world_that_lost_its_first_member_goes_on_with_all_others() -> None:
    found = decide(5.0, situation("abc", [process("b"), process("c")], "abc"), LIMITS)
    assert (hosts(found), found.cause) == ("bc", "worker failed")


OLD, NEW = (1, 1, 4), (1, 1, 5)
GOING = [process("b", holds=OLD), process("c", holds=NEW)]
STAYS_FOR_ONE_MORE = {
    "one that holds the newest commit, if those who stay have no state yet": ([process("a")], False, "ca"),
    "nobody, if one who stays holds it": ([process("a", holds=NEW)], False, "a"),
    "nobody, if those who stay have agreed on the state": ([process("a")], True, "a"),
    "all, if nobody stays": ([], True, "cb"),
}


@pytest.mark.parametrize(("staying", "settled", "next_world"), STAYS_FOR_ONE_MORE.values(), ids=STAYS_FOR_ONE_MORE)
def test_who_is_to_go_and_stays_for_the_world_after_a_loss(
    staying: list[Process], settled: bool, next_world: str
) -> None:
    there = situation("a", [*staying, *GOING], "bcd" if not staying else "abcd", settled=settled)
    assert hosts(decide(5.0, there, LIMITS)) == next_world


def test_below_the_minimum_nothing_is_formed_and_the_reason_is_said() -> None:
    found = decide(5.0, situation("ab", [process("a")], "ab"), WorldLimits(least=2))
    assert found.members is None
    assert found.reason == "lost b[0]; processes left: 1, needed: 2"


def test_a_world_that_has_not_agreed_yet_is_not_interrupted_for_newcomers() -> None:
    ready = process("b", Stage.PARKED, since=0.0)
    assert hosts(decide(50.0, situation("ab", [process("a"), ready], "a", settled=False), LIMITS)) is None
    assert hosts(decide(50.0, situation("ab", [process("a"), ready], "a"), LIMITS)) == "ab"


def test_a_member_that_asks_again_is_called_with_all_others() -> None:
    found = decide(5.0, situation("ab", [process("a", broken=True), process("b")], "ab"), LIMITS)
    assert hosts(found) == "ab"
    assert found.cause == "connection lost"


def test_the_window_for_newcomers_slides_and_has_an_end() -> None:
    parked = [process(name, Stage.PARKED, since=at) for name, at in (("b", 10.0), ("c", 12.0))]
    there = situation("abcd", [process("a"), *parked, process("d", Stage.BOOTING)], "a")
    assert decide(13.0, there, LIMITS).again_at == 15.0
    assert hosts(decide(15.0, there, LIMITS)) == "abc"
    assert decide(13.0, there, WorldLimits(settle_s=100.0)).again_at == 40.0


def test_newcomers_that_are_all_ready_wait_from_the_start_of_the_last_one() -> None:
    parked = [process("b", Stage.PARKED, since=10.0, created=5.0), process("c", Stage.PARKED, since=12.0, created=9.5)]
    there = situation("abc", [process("a"), *parked], "a")
    assert decide(12.0, there, LIMITS).again_at == 12.5
    assert hosts(decide(12.5, there, LIMITS)) == "abc"
    assert decide(12.5, there, WorldLimits(settle_s=100.0)).again_at == 40.0
    assert hosts(decide(12.0, there, replace(LIMITS, listed_s=1.0))) == "abc", "others would have been listed by 10.5"


def test_rank_0_holds_the_newest_commit() -> None:
    order = ranks(
        [process("a", holds=(1, 1, 4)), process("b", holds=(1, 1, 5)), process("c")],
        [Seat("a", 0), Seat("b", 0), Seat("c", 0)],
    )
    assert [life.seat.host for life in order] == ["b", "a", "c"]


STAGES = st.sampled_from(Stage)
NAMES = "abcdef"


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    slots = [Seat(name, slot) for name in NAMES for slot in (0, 1)]
    wanted = tuple(draw(st.lists(st.sampled_from(slots), unique=True, max_size=8)))
    alive = draw(st.lists(st.sampled_from(slots), unique=True, max_size=10))
    members = draw(st.lists(st.sampled_from(slots), unique=True, max_size=6))
    processes = {
        seat: Process(
            ProcessId(seat, draw(st.integers(1, 2))),
            Stage.LIVE if seat in members else draw(STAGES),
            draw(st.floats(0, 100)),
            holds=draw(st.none() | st.tuples(st.just(1), st.just(1), st.integers(0, 3))),
            broken=draw(st.booleans()),
            leaves_by=draw(st.none() | st.floats(0, 200)),
        )
        for seat in alive
    }
    return Situation(
        wanted,
        processes,
        members=tuple(ProcessId(seat, 1) for seat in members),
        formed=draw(st.booleans()),
        settled=draw(st.booleans()),
        begun=draw(st.booleans()),
    )


@given(
    situations(),
    st.floats(0, 200),
    st.builds(
        WorldLimits, st.integers(1, 3), st.integers(1, 3), st.none() | st.integers(3, 6), st.just(()), st.just(3.0)
    ),
)
def test_whatever_happens_a_world_is_of_the_living_and_the_ready_and_can_be_given_ranks(
    there: Situation, now: float, limits: WorldLimits
) -> None:
    decision = decide(now, there, limits)
    assert decision.reason
    if decision.members is None:
        return
    members = [there.processes[life.seat] for life in decision.members]
    assert decision.members
    assert [each.life for each in members] == list(decision.members)
    assert len({each.seat for each in members}) == len(members)
    inside = set(there.members)
    assert all(each.life in inside or each.stage is Stage.PARKED for each in members)
    assert len(members) >= (limits.least if there.begun else limits.start)
    places(ranks(members, there.wanted))
    if any(life.seat in there.processes and there.processes[life.seat].life == life for life in there.members):
        # A process that has trained is always a member: no other one has the state.
        assert any(each.life in inside for each in members)


@given(st.data())
def test_the_order_of_ranks_is_by_commit_and_by_seniority_of_the_host(data: st.DataObject) -> None:
    slots = [Seat(name, slot) for name in NAMES for slot in (0, 1)]
    wanted = data.draw(st.just(slots) | st.lists(st.sampled_from(slots), unique=True))
    seats_there = data.draw(st.just(wanted) | st.lists(st.sampled_from(slots), unique=True))
    held = st.sampled_from([None, (1, 1, 1), (1, 1, 2)])
    members = [
        Process(ProcessId(seat, 1), Stage.LIVE, holds=data.draw(held), trained=data.draw(st.booleans()))
        for seat in seats_there
    ]
    newest = max((each.holds for each in members if each.holds is not None), default=None)
    place = {seat: number for number, seat in enumerate(wanted)}

    def behind(each: Process) -> bool:
        return not each.trained if newest is None else each.holds != newest

    def first(name: str) -> tuple[bool, int, str]:
        own = [each for each in members if each.seat.host == name]
        return min(map(behind, own)), min(place.get(each.seat, len(place)) for each in own), name

    hosts_in_order = sorted({each.seat.host for each in members}, key=first)
    order = ranks(members, wanted)
    assert list(dict.fromkeys(life.seat.host for life in order)) == hosts_in_order
    for name in hosts_in_order:
        own = sorted((behind(each), each.seat.slot) for each in members if each.seat.host == name)
        assert [life.seat.slot for life in order if life.seat.host == name] == [slot for _, slot in own]
