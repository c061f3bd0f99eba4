"""The subject of a fault, how long that blocks it, and when the fault is forgotten."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.host_requests import rows
from hvd_elastic_ext.launcher.health.ledger import (
    DECAY,
    NODE_WINDOW_S,
    SLOTS_WINDOW_S,
    SWEEP_S,
    HealthLedger,
    HealthRecord,
    Strike,
    Subject,
    cooldown_s,
    subject_of,
)
from hvd_elastic_ext.launcher.health.ledger_json import as_saved, by_hand, from_json, to_json
from hvd_elastic_ext.launcher.reporting.all_waits import lacking
from tests.unit.launcher.scenarios import play

LIMITS = (10.0, 100.0)
EIGHT = Host("w-1", 8, uid="u1", node="n1")
PLAIN = Host("a", 4)


def faults(*what: tuple[float, Cause, Host, int | None], ledger: HealthLedger | None = None) -> HealthLedger:
    """The ledger after each ``(at, cause, host, slot)`` in turn."""
    found = ledger or HealthLedger()
    for at, cause, host, slot in what:
        strike = Strike.of(cause, host, slot, at=at)
        if strike is not None:
            found = found.struck(at, strike, LIMITS)
    return found


def test_one_failed_gpu_of_eight_costs_one_slot() -> None:
    ledger = faults((0.0, Cause.CRASHED, EIGHT, 3))
    assert ledger.usable_slots(1.0, EIGHT) == (0, 1, 2, 4, 5, 6, 7)
    assert not ledger.blocked(1.0, EIGHT).blocked
    assert ledger.blocked(1.0, EIGHT, 3) == (True, "slot 3 of w-1: crashed", 10.0, 0.0)


def test_a_slot_that_crashes_again_and_again_backs_off_alone() -> None:
    ledger, at, ends = HealthLedger(), 0.0, []
    for _ in range(5):
        ledger = faults((at, Cause.CRASHED, EIGHT, 3), ledger=ledger)
        until = ledger.blocked(at, EIGHT, 3).until
        assert until is not None
        ends.append(until - at)
        at = until
    assert ends == [10.0, 20.0, 40.0, 80.0, 100.0]
    assert ledger.usable_slots(at - 1, EIGHT) == (0, 1, 2, 4, 5, 6, 7)
    assert {s.kind for s in ledger.records} == {"slot"}


def test_several_slots_failing_together_are_the_fault_of_their_host_and_of_no_slot() -> None:
    ledger = faults((0.0, Cause.CRASHED, PLAIN, 0), (1.0, Cause.CRASHED, PLAIN, 2), (1.1, Cause.CRASHED, PLAIN, 3))
    assert ledger.blocked(2.0, PLAIN) == (True, "host a: crashed", 11.0, 1.0)
    assert ledger.usable_slots(2.0, PLAIN) == ()
    assert ledger.usable_slots(11.0, PLAIN) == (0, 1, 2, 3)
    strikes = {str(subject): record.strikes for subject, record in ledger.records.items()}
    assert strikes == {"slot 0 of a": 0, "host a": 1}


def test_a_slot_that_fails_all_the_time_makes_no_others_first_fault_that_of_the_host() -> None:
    bad = [(at, Cause.CRASHED, EIGHT, 3) for at in (0.0, 20.0, 60.0)]
    ledger = faults(*bad, (61.0, Cause.CRASHED, EIGHT, 5))
    assert ledger.usable_slots(62.0, EIGHT) == (0, 1, 2, 4, 6, 7)
    ledger = faults(*bad[:2], (59.0, Cause.CRASHED, EIGHT, 5), bad[2])  # in the other order
    assert ledger.usable_slots(62.0, EIGHT) == (0, 1, 2, 4, 6, 7)


def test_a_fault_that_stands_apart_counts_towards_neither_its_host_nor_its_node() -> None:
    ledger = HealthLedger()
    for at, slot in ((0.0, 8), (0.1, 9), (0.2, 10), (0.3, 0)):
        strike = Strike.of(Cause.CRASHED, EIGHT, slot, at=at, apart=slot >= EIGHT.slots)
        assert strike is not None
        ledger = ledger.struck(at, strike, LIMITS)
    assert ledger.usable_slots(1.0, EIGHT) == (1, 2, 3, 4, 5, 6, 7)
    assert all(ledger.blocked(1.0, EIGHT, slot).blocked for slot in (0, 8, 9, 10))
    assert {subject.kind for subject in ledger.records} == {"slot"}


def test_slots_failing_far_apart_are_each_their_own_fault() -> None:
    later = 1.0 + SLOTS_WINDOW_S
    ledger = faults((0.0, Cause.CRASHED, PLAIN, 0), (later, Cause.CRASHED, PLAIN, 2))
    assert ledger.usable_slots(later, PLAIN) == (0, 1, 3)


def test_a_recreated_pod_starts_clean() -> None:
    ledger = faults((0.0, Cause.UNREACHABLE, EIGHT, None), (0.0, Cause.CRASHED, EIGHT, 2))
    assert ledger.blocked(1.0, EIGHT).blocked
    assert ledger.usable_slots(1.0, Host("w-1", 8, uid="u2", node="n2")) == tuple(range(8))


def test_a_container_that_was_started_again_starts_clean_unless_lives_are_not_told() -> None:
    first, second, untold = (Host("w-1", 2, uid="u1", life=life) for life in ("1", "2", ""))
    for cause, slot in ((Cause.FENCED, None), (Cause.CRASHED, 1)):
        ledger = faults((0.0, cause, first, slot))
        assert ledger.usable_slots(1.0, first) != (0, 1)
        assert ledger.usable_slots(1.0, second) == (0, 1)
        assert ledger.usable_slots(1.0, untold) != (0, 1)
        assert from_json(to_json(ledger, 1.0, wall=0.0), 1.0, wall=0.0).usable_slots(1.0, second) == (0, 1)


def test_a_recreated_host_without_a_uid_is_still_the_same_host() -> None:
    ledger = faults((0.0, Cause.UNREACHABLE, PLAIN, None))
    assert ledger.blocked(1.0, Host("a", 2)).blocked


def test_a_node_that_fails_three_pods_is_blocked_for_the_fourth() -> None:
    ledger = HealthLedger()
    for n in range(3):
        pod = Host("w-1", 1, uid=f"u{n}", node="n1")
        assert not ledger.blocked(n * 60.0, pod).blocked
        ledger = faults((n * 60.0, Cause.CRASHED, pod, 0), ledger=ledger)
    status = ledger.blocked(121.0, Host("w-7", 4, uid="u9", node="n1"))
    assert status == (True, "node n1: crashed", 130.0, 120.0)
    assert not ledger.blocked(121.0, Host("w-7", 4, uid="u9", node="n2")).blocked


def test_slots_that_fail_together_are_one_fault_of_their_node() -> None:
    ledger = HealthLedger()
    for n in range(2):
        pod = Host(f"w-{n}", 4, uid=f"u{n}", node="n1")
        ledger = faults(*((n * 60.0 + slot, Cause.CRASHED, pod, slot) for slot in range(4)), ledger=ledger)
    assert sorted(s.kind for s, record in ledger.records.items() if record.strikes) == ["pod", "pod"]


def test_one_bad_slot_never_blocks_its_node() -> None:
    ledger, at = HealthLedger(), 0.0
    for _ in range(6):
        ledger = faults((at, Cause.CRASHED, EIGHT, 3), ledger=ledger)
        at += 101.0
    assert Subject("node", "n1") not in ledger.records


def test_faults_of_a_node_long_ago_do_not_count() -> None:
    pods = [Host("w", 1, uid=f"u{n}", node="n1") for n in range(3)]
    ledger = faults(*((n * NODE_WINDOW_S * 0.6, Cause.CRASHED, pod, 0) for n, pod in enumerate(pods)))
    assert Subject("node", "n1") not in ledger.records


@pytest.mark.parametrize("cause", [Cause.DRAINED, Cause.EVICTED, Cause.PREEMPTED, Cause.TOLD, Cause.PEER_LOST])
def test_leaving_is_not_failing(cause: Cause) -> None:
    assert Strike.of(cause, EIGHT, 0, at=0.0) is None
    with pytest.raises(ValueError, match="is not a fault"):
        subject_of(cause, EIGHT, 0)
    strike = Strike(Subject("pod", "w-1", "u1"), cause, 0.0)
    assert HealthLedger().struck(0.0, strike, LIMITS) == HealthLedger()


@pytest.mark.parametrize(
    ("cause", "slot", "kind"),
    [
        (Cause.CRASHED, 2, "slot"),
        (Cause.MEMORY, 2, "slot"),
        (Cause.SILENT, 2, "slot"),
        (Cause.SILENT, None, "pod"),
        (Cause.NEVER_READY, 2, "slot"),
        (Cause.NEVER_READY, None, "pod"),
        (Cause.UNREACHABLE, 2, "pod"),
        (Cause.FENCED, 2, "pod"),
    ],
)
def test_a_cause_points_to_whom_its_evidence_does(cause: Cause, slot: int | None, kind: str) -> None:
    assert subject_of(cause, EIGHT, slot).kind == kind


def test_whoever_is_blocked_is_not_struck_again() -> None:
    once = faults((0.0, Cause.UNREACHABLE, EIGHT, None))
    assert faults((1.0, Cause.UNREACHABLE, EIGHT, None), (2.0, Cause.CRASHED, EIGHT, 1), ledger=once) == once


def test_a_host_that_fails_its_probation_again_and_again_backs_off() -> None:
    ledger, at, waits = HealthLedger(), 0.0, []
    for _ in range(4):
        ledger = faults((at, Cause.UNREACHABLE, PLAIN, None), ledger=ledger)
        until = ledger.next_release(at)
        assert until is not None
        waits.append(until - at)
        at = until + 1.0
    assert waits == [10.0, 20.0, 40.0, 80.0]


def test_the_time_that_a_try_takes_to_fail_takes_no_strike_back() -> None:
    first = Strike.of(Cause.NEVER_READY, PLAIN, None, at=0.0)
    assert first is not None
    ledger = HealthLedger().struck(0.0, first, LIMITS)
    again = 10.0 + 10 * DECAY * 10.0
    for tried_s, cooldown in ((0.0, 10.0), (again - 10.0, 20.0)):
        strike = Strike.of(Cause.NEVER_READY, PLAIN, None, at=again, unproven_s=tried_s)
        assert strike is not None
        assert ledger.struck(again, strike, LIMITS).blocked(again, PLAIN).until == again + cooldown


def test_a_strike_is_taken_back_after_ten_cooldowns_without_a_fault() -> None:
    ledger = faults((0.0, Cause.UNREACHABLE, PLAIN, None), (10.0, Cause.UNREACHABLE, PLAIN, None))
    record = ledger.records[Subject("host", "a")]
    assert record.until == 30.0
    assert record.strikes_left(30.0 + DECAY * 20.0 - 0.1) == 2
    assert record.strikes_left(30.0 + DECAY * 20.0) == 1
    again = faults((240.0, Cause.UNREACHABLE, PLAIN, None), ledger=ledger)
    assert again.next_release(240.0) == 260.0
    assert record.empty(30.0 + 2 * DECAY * 20.0)


def test_strikes_beyond_the_longest_cooldown_do_not_pile_up() -> None:
    record = HealthRecord()
    for _ in range(50):
        record = record.struck(record.until, Cause.CRASHED, LIMITS)
    assert record.strikes == 5
    assert cooldown_s(5, LIMITS) == LIMITS[1]


def test_a_block_by_hand_holds_until_its_end_and_is_no_strike() -> None:
    host = Subject("host", "a")
    ledger = HealthLedger().block(host, 50.0, "bad fan", at=5.0)
    assert ledger.blocked(49.9, PLAIN) == (True, "host a is blocked by hand: bad fan", 50.0, 5.0)
    assert not ledger.blocked(50.0, PLAIN).blocked
    assert ledger.records[host].strikes == 0
    assert HealthLedger().block(host, None, "").blocked(1e9, PLAIN).until is None


def test_a_block_by_hand_is_for_every_pod_of_the_name() -> None:
    ledger = HealthLedger().block(Subject("host", "w-1"), None, "")
    assert ledger.blocked(0.0, Host("w-1", 1, uid="new")).blocked


def test_a_host_is_blocked_when_each_of_its_slots_is() -> None:
    two = Host("b", 2)
    ledger = faults(*((at, Cause.CRASHED, two, 0) for at in (0.0, 10.0, 30.0)), (62.0, Cause.CRASHED, two, 1))
    assert ledger.blocked(63.0, two) == (
        True,
        "each of its 2 slots is blocked; slot 0 of b: crashed (3 strikes)",
        70.0,
        30.0,
    )


def test_since_when_something_is_blocked_is_known_to_the_next_launcher_too() -> None:
    host = Subject("host", "a")
    ledger = faults((10.0, Cause.UNREACHABLE, PLAIN, None)).block(host, 500.0, "bad fan", at=15.0)
    assert ledger.blocked(18.0, PLAIN).since == 10.0, "the first of two blocks"
    assert ledger.blocked(100.0, PLAIN).since == 15.0, "the cooldown is over"
    known = from_json(to_json(ledger, 100.0, wall=1000.0), 7.0, wall=1020.0)
    assert known.blocked(7.0, PLAIN).since == 7.0 - 20.0 - 85.0
    assert HealthLedger().block(host, None, "").blocked(1.0, PLAIN).since is None, "of an earlier version"
    unreached = faults((10.0, Cause.UNREACHABLE, PLAIN, None))
    assert unreached.block(host, 500.0, "").blocked(18.0, PLAIN).since == 10.0, "the cooldown is known"
    assert unreached.block(host, 12.0, "", at=5.0).blocked(18.0, PLAIN).since == 10.0, "the block by hand is over"


def test_of_several_blocks_the_one_that_ends_last_is_told() -> None:
    ledger = faults((0.0, Cause.CRASHED, PLAIN, 1)).block(Subject("host", "a"), 500.0, "bad fan")
    assert ledger.blocked(1.0, PLAIN, 1)[1:3] == ("host a is blocked by hand: bad fan", 500.0)


def test_clearing_forgets_everything_the_faults_that_led_there_too() -> None:
    ledger = faults((0.0, Cause.CRASHED, PLAIN, 0)).cleared(Subject("slot", "a", "", 0))
    assert not ledger.blocked(1.0, PLAIN, 0).blocked
    after = faults((2.0, Cause.CRASHED, PLAIN, 1), ledger=ledger)
    assert after.usable_slots(3.0, PLAIN) == (0, 2, 3)


def test_the_block_of_the_holder_of_the_newest_commit_is_lifted_first_and_its_strikes_stay() -> None:
    a, b, c = Host("a", 1), Host("b", 1), Host("c", 1)
    ledger = faults(*((0.0, Cause.UNREACHABLE, host, None) for host in (a, b, c)))
    after, host, reason = ledger.lift_one_block(1.0, [(a, (1, 2, 30)), (b, (1, 3, 4)), (c, None)])
    assert host == b
    assert reason == "no other host may work, and b holds the newest commit"
    assert [after.blocked(1.0, h).blocked for h in (a, b, c)] == [True, False, True]
    again = faults((2.0, Cause.UNREACHABLE, b, None), ledger=after)
    assert again.blocked(2.0, b).until == 22.0


def test_without_commits_the_block_with_the_fewest_strikes_is_lifted() -> None:
    a, b = Host("a", 1), Host("b", 1)
    ledger = faults((0.0, Cause.UNREACHABLE, a, None), (10.0, Cause.UNREACHABLE, a, None))
    ledger = faults((11.0, Cause.UNREACHABLE, b, None), ledger=ledger)
    assert ledger.lift_one_block(12.0, [(a, None), (b, None)]).host == b


def test_a_block_by_hand_is_never_lifted_by_the_launcher() -> None:
    ledger = HealthLedger().block(Subject("host", "a"), None, "")
    assert ledger.lift_one_block(0.0, [(PLAIN, (1, 1, 1))]) == (
        ledger,
        None,
        "all hosts left are blocked by hand",
    )
    assert ledger.lifted(Subject("host", "a")).blocked(0.0, PLAIN).blocked


def test_lifting_the_block_of_a_host_lifts_what_its_node_and_slots_are_blocked_for() -> None:
    pods = [Host(f"w-{n}", 1, uid=f"u{n}", node="n1") for n in range(3)]
    ledger = faults(*((float(n), Cause.CRASHED, pod, 0) for n, pod in enumerate(pods)))
    after, host, _ = ledger.lift_one_block(3.0, [(pod, None) for pod in pods])
    assert host is not None
    assert not after.blocked(3.0, host).blocked


# --- rules for any history

HOSTS = [Host("a", 2), Host("w-1", 4, "u1", "n1"), Host("w-1", 4, "u2", "n1"), Host("w-2", 1, "u3", "n1")]
EVENTS = st.lists(
    st.tuples(
        # In milliseconds: two moments that another clock cannot tell apart are one there.
        st.floats(0, 500, allow_nan=False).map(lambda pause: round(pause, 3)),
        st.sampled_from(list(Cause)),
        st.sampled_from(HOSTS),
        st.one_of(st.none(), st.integers(0, 3)),
    ),
    max_size=30,
)


def history(events: list[tuple[float, Cause, Host, int | None]]) -> tuple[HealthLedger, float]:
    ledger, now = HealthLedger(), 1000.0
    for pause, cause, host, slot in events:
        now += pause
        ledger = faults((now, cause, host, slot), ledger=ledger)
    return ledger, now


@given(EVENTS)
def test_nobody_is_ever_blocked_without_a_fault(events: list[tuple[float, Cause, Host, int | None]]) -> None:
    ledger, now = history(events)
    for host in HOSTS:
        blamed = [
            e for e in events if e[1].fault and (e[2].name == host.name or (bool(host.node) and e[2].node == host.node))
        ]
        if not blamed:
            assert ledger.usable_slots(now, host) == tuple(range(host.slots))


@given(EVENTS, st.lists(st.floats(0, 10_000, allow_nan=False), min_size=2, max_size=10))
def test_time_without_faults_only_ever_takes_away(
    events: list[tuple[float, Cause, Host, int | None]], looks: list[float]
) -> None:
    ledger, now = history(events)
    for host in HOSTS:
        usable = [set(ledger.usable_slots(now + later, host)) for later in sorted(looks)]
        assert all(before <= after for before, after in itertools.pairwise(usable))
    for record in ledger.records.values():
        left = [record.strikes_left(now + later) for later in sorted(looks)]
        assert left == sorted(left, reverse=True)


@given(EVENTS)
def test_every_block_ends_by_itself_within_the_longest_cooldown(
    events: list[tuple[float, Cause, Host, int | None]],
) -> None:
    ledger, now = history(events)
    assert all(ledger.usable_slots(now + LIMITS[1], host) == tuple(range(host.slots)) for host in HOSTS)
    release = ledger.next_release(now)
    assert release is None or now < release <= now + LIMITS[1]


@given(EVENTS, st.floats(0, 1e6, allow_nan=False), st.floats(-1e6, 1e6, allow_nan=False))
def test_a_saved_ledger_says_the_same_to_a_launcher_with_another_clock(
    events: list[tuple[float, Cause, Host, int | None]], clock: float, stepped: float
) -> None:
    ledger, now = history(events)
    document = json.loads(json.dumps(to_json(ledger, now, wall=5e8), allow_nan=False))
    # If the wall clock was set back, it does not show how long no launcher ran.
    read = from_json(document, clock, wall=5e8 + min(0.0, stepped))
    for host in HOSTS:
        for slot in (None, *range(host.slots)):
            old, new = ledger.blocked(now, host, slot), read.blocked(clock, host, slot)
            assert (old.blocked, old.reason) == (new.blocked, new.reason)
            if old.until is not None:
                assert new.until == pytest.approx(old.until - now + clock, abs=1e-3)
    kept = {s: r for s, r in ledger.records.items() if not r.empty(now)}
    assert {s: r.strikes for s, r in read.records.items()} == {s: r.strikes for s, r in kept.items()}


@given(EVENTS, st.floats(0, 1e9, allow_nan=False))
def test_no_strike_is_lost_while_no_launcher_runs(
    events: list[tuple[float, Cause, Host, int | None]], away: float
) -> None:
    ledger, now = history(events)
    read = from_json(to_json(ledger, now, wall=0.0), 7.0, wall=away)
    for subject, record in ledger.records.items():
        if not record.empty(now):
            assert read.records[subject].strikes_left(7.0) == record.strikes_left(now)


def test_a_cooldown_goes_on_while_no_launcher_runs() -> None:
    ledger = faults((0.0, Cause.UNREACHABLE, PLAIN, None)).block(Subject("host", "z"), 100.0, "why")
    read = from_json(to_json(ledger, 4.0, wall=1000.0), 50.0, wall=1002.0)
    assert read.blocked(50.0, PLAIN).until == 54.0
    assert read.blocked(50.0, Host("z", 1)).until == 144.0


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"version": 2, "saved": 0, "records": [], "faults": []},
        {"version": 1, "saved": "now", "records": [], "faults": []},
        {"version": 1, "saved": float("nan"), "records": [], "faults": []},
        {"version": 1, "saved": 10**400, "records": [], "faults": []},
        {"version": 1, "saved": 0, "records": [{"kind": "slot", "name": "a", "uid": "", "slot": None}], "faults": []},
        {"version": 1, "saved": 0, "records": [{"kind": "moon", "name": "a", "uid": "", "slot": 1}], "faults": []},
        {"version": 1, "saved": 0, "records": [7], "faults": []},
        {"version": 1, "saved": 0, "records": [], "faults": [{"kind": "host", "name": "a", "uid": "", "slot": None}]},
    ],
)
def test_what_is_no_saved_ledger_is_refused_in_one_line(document: object) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        from_json(document, 0.0, wall=0.0)


def test_records_without_effect_are_dropped_in_time_and_not_at_each_of_many_faults() -> None:
    strikes = [Strike(Subject("host", f"h{number}"), Cause.UNREACHABLE, 0.0) for number in range(100)]
    ledger, later = HealthLedger(), 1e4
    for strike in strikes:
        ledger = ledger.struck(0.0, strike, LIMITS)
    assert len(ledger.struck(SWEEP_S / 2, strikes[0], LIMITS).records) == 100
    assert list(ledger.struck(later, strikes[7], LIMITS).records) == [Subject("host", "h7")]


def test_a_cooldown_without_a_failure_is_an_error() -> None:
    with pytest.raises(ValueError, match="follows a failure"):
        cooldown_s(0, LIMITS)


REFUSED = "ssh: connect to host a port 22: Connection refused"


def told(at: float, cause: Cause, slot: int | None, said: str, ledger: HealthLedger) -> HealthLedger:
    strike = Strike.of(cause, PLAIN, slot, at=at, detail=said)
    assert strike is not None
    return ledger.struck(at, strike, LIMITS)


def test_the_words_of_a_fault_are_kept_with_its_block_until_the_next_one_and_across_launchers() -> None:
    ledger = told(0.0, Cause.UNREACHABLE, None, REFUSED, HealthLedger())
    plain = json.loads(json.dumps(to_json(ledger, 1.0, wall=100.0)))
    for each, now in ((ledger, 1.0), (from_json(plain, 50.0, wall=100.0), 50.0)):
        assert each.blocked(now, PLAIN).reason == f"host a: unreachable: {REFUSED}"
    again = told(20.0, Cause.NEVER_READY, None, "numpy 1 here, 2 there", ledger)
    assert again.blocked(21.0, PLAIN).reason == "host a: never ready: numpy 1 here, 2 there (2 strikes)"


def test_the_words_of_the_last_of_several_faults_stand_for_host_and_node() -> None:
    crashed = "crashed: exit code 1: ValueError: bad"
    ledger = told(1.0, Cause.CRASHED, 2, crashed, told(0.0, Cause.CRASHED, 0, crashed, HealthLedger()))
    assert ledger.blocked(2.0, PLAIN).reason == (
        "host a: crashed: 2 slots failed within 30 s, the last: slot 2 of a: exit code 1: ValueError: bad"
    )
    ledger = HealthLedger()
    for number in range(3):
        strike = Strike.of(Cause.CRASHED, Host(f"w-{number}", 1, "u", "n1"), 0, at=1.0, detail=crashed)
        assert strike is not None
        ledger = ledger.struck(1.0, strike, LIMITS)
    assert ledger.blocked(2.0, Host("w-9", 1, "u", "n1")).reason == (
        "node n1: crashed: 3 faults or more within an hour, the last: slot 0 of w-2: exit code 1: ValueError: bad"
    )


def test_a_new_run_has_no_words_of_faults_and_a_state_without_them_is_read() -> None:
    ledger = told(0.0, Cause.UNREACHABLE, None, REFUSED, HealthLedger()).block(Subject("host", "a"), None, "bad fan")
    assert by_hand(as_saved(ledger, 1.0)).records[Subject("host", "a")].why == ""
    assert by_hand(as_saved(ledger, 1.0)).records[Subject("host", "a")].detail == ""
    older = to_json(ledger, 1.0, wall=0.0)
    for record in older["records"]:
        del record["detail"]
    assert from_json(older, 1.0, wall=0.0).records[Subject("host", "a")].why == "unreachable"
    for odd in (7, None, ["x"], "two\nlines\x1b[31m"):
        older["records"][0]["said"] = odd
        assert from_json(older, 1.0, wall=0.0).records[Subject("host", "a")].why.isprintable()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Subject]:
    """The records that were compared with a host."""
    compared, concerns = list[Subject](), Subject.concerns

    def counted(subject: Subject, host: Host, slot: int | None = None) -> bool:
        compared.append(subject)
        return concerns(subject, host, slot)

    monkeypatch.setattr(Subject, "concerns", counted)
    return compared


def hot(hosts: Iterable[Host]) -> HealthLedger:
    ledger = HealthLedger()
    for host in hosts:
        ledger = ledger.block(Subject("slot", host.name, slot=1), 1e9, "hot")
    return ledger


def test_hundreds_of_blocked_hosts_are_each_asked_about_with_their_own_records_only(looks: list[Subject]) -> None:
    hosts = [Host(f"h{number}", 4, node=f"n{number // 2}") for number in range(300)]
    ledger = hot(hosts[:200]).block(Subject("node", "n7"), None, "bad fan").block(Subject("host", "h3"), 50.0, "")
    whole = [(host, ledger.usable_slots(1.0, host)) for host in hosts]
    subjects = {host: ledger.subjects(host) for host in hosts}
    looks.clear()
    assert ledger.usable(1.0, hosts) == whole
    assert len(looks) < 30 * len(hosts)
    assert {host: () if about is None else about.subjects(host) for host, about in ledger.by_host(hosts)} == subjects


def test_the_list_of_hundreds_of_blocked_hosts_costs_a_few_looks_at_each(looks: list[Subject]) -> None:
    hosts = [Host(f"h{number}", 4) for number in range(300)]
    found = rows(hot(hosts), hosts, 1.0)
    assert [row["why"] for row in found] == [f"slot 1 of {host.name} is blocked by hand: hot" for host in hosts]
    assert len(looks) < 30 * len(hosts)


def test_a_line_on_hundreds_of_blocked_hosts_costs_a_few_looks_at_each(looks: list[Subject]) -> None:
    hosts = [Host(f"h{number}", 4) for number in range(300)]
    job = play("train a b").driver.job
    job.fleet.hosts, job.faults.ledger = HostSet(tuple(hosts)), hot(hosts)
    looks.clear()
    [said] = lacking(job)
    assert said.endswith("and 296 more")
    assert len(looks) < 60 * len(hosts)
