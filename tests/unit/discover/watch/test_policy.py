"""What a server is asked next: the whole table, and what time and repetition do to it."""

import pytest

from discover.watch.collection import RequestKind
from discover.watch.policy import (
    ERRORS_BEFORE_RELIST,
    HIDDEN_PAUSE,
    LONGEST_PAUSE,
    QUICK_RETRY,
    RESET_AFTER,
    RULES,
    SERVER_START,
    Backoff,
    Ending,
    Outcome,
    State,
    next_step,
)
from hvd_elastic_ext.io.kube.errors import Reason

WATCHING = State(RequestKind.WATCH, "7")


def step(state: State, end: Ending | Reason, *, now: float = 0.0, optional: bool = False, **of_outcome):
    of_outcome.setdefault("version", state.version)
    return next_step(now, state, Outcome(end, **of_outcome), jitter=0.0, optional=optional)[0]


def test_there_is_a_rule_for_every_end_of_every_request():
    possible = {(ask, end) for ask in RequestKind for end in (*Ending, *Reason)} - {
        (ask, Ending.MISSED) for ask in RequestKind if ask is not RequestKind.WATCH
    }
    assert set(RULES) == possible


def test_rule_03_an_expired_page_leads_to_a_list_in_one_piece():
    assert step(State(), Reason.EXPIRED).state.next is RequestKind.UNPAGED
    again = step(State(RequestKind.UNPAGED), Reason.EXPIRED)
    assert again.state.next is RequestKind.PAGED
    assert again.pause > 0


@pytest.mark.parametrize("lived", [0.0, 300.0])
def test_rule_01_02_an_expired_watch_lists_from_its_version_and_then_afresh(lived):
    relist = step(WATCHING, Reason.EXPIRED, lived=lived)
    assert (relist.state.next, relist.state.version, relist.pause) == (RequestKind.RELIST, "7", 0.0)
    fresh = step(relist.state, Reason.EXPIRED)
    assert (fresh.state.next, fresh.state.version, fresh.pause) == (RequestKind.PAGED, "", 0.0)


def test_watches_that_expire_as_soon_as_they_are_opened_do_not_become_a_loop():
    first = step(WATCHING, Reason.EXPIRED)
    listed = step(first.state, Ending.DONE, version="8")
    second = step(listed.state, Reason.EXPIRED)
    assert (first.pause, listed.pause) == (0.0, 0.0)
    assert second.pause == 0.8
    lived = step(step(listed.state, Ending.DONE, lived=5.0).state, Reason.EXPIRED)
    assert lived.pause == 0.0


@pytest.mark.parametrize("end", [Ending.DONE, Reason.CUT, Reason.SILENT])
def test_rule_05_a_watch_that_does_not_live_a_second_has_failed(end):
    short, long = step(WATCHING, end, lived=0.4), step(WATCHING, end, lived=70.0)
    assert (short.state.next, long.state.next) == (RequestKind.WATCH, RequestKind.WATCH)
    assert short.pause == 0.8
    assert long.pause == 0.0


def test_rule_05_a_server_that_closes_every_watch_at_once_is_asked_ten_times_a_minute_at_most():
    now, asked, state = 0.0, 0, WATCHING
    while now < 60.0:
        asked += 1
        ended = step(state, Ending.DONE, now=now)
        state, now = ended.state, now + ended.pause
    assert asked <= 10


@pytest.mark.parametrize(("asked", "pause"), [(None, 0.8), (0.1, 0.8), (5.0, 5.0), (3600.0, LONGEST_PAUSE)])
def test_a_server_is_left_alone_as_long_as_it_asks_within_reason(asked, pause):
    """R7"""
    assert step(WATCHING, Reason.BUSY, retry_after=asked).pause == pause


def test_rule_04_internal_errors_are_borne_for_a_while_and_then_listed_over():
    """R6"""
    state, now = WATCHING, 0.0
    asked = []
    while now <= 2 * ERRORS_BEFORE_RELIST:
        broken = step(state, Reason.SERVER_ERROR, now=now)
        asked.append((now, broken.state.next))
        assert broken.pause > 0
        state, now = broken.state, now + broken.pause
        if state.next is RequestKind.RELIST:
            break
    assert [ask for at, ask in asked if at < ERRORS_BEFORE_RELIST] == [RequestKind.WATCH] * (len(asked) - 1)
    assert asked[-1][1] is RequestKind.RELIST
    assert state.version == "7"


def test_internal_errors_at_another_version_begin_anew():
    first = step(WATCHING, Reason.SERVER_ERROR, now=0.0)
    moved = step(first.state, Reason.SERVER_ERROR, now=ERRORS_BEFORE_RELIST + 1, version="8")
    assert moved.state.next is RequestKind.WATCH


@pytest.mark.parametrize("ask", list(RequestKind))
def test_rule_13_after_a_401_the_token_is_reloaded_and_one_retry_has_no_pause(ask):
    state = State(ask, "" if ask is RequestKind.PAGED else "7")
    once = step(state, Reason.UNAUTHORIZED)
    assert (once.reload_credentials, once.pause) == (True, 0.0)
    assert once.state.next is (RequestKind.PAGED if ask is RequestKind.UNPAGED else ask)
    twice = step(once.state, Reason.UNAUTHORIZED)
    assert (twice.reload_credentials, twice.pause) == (True, 0.8)


def test_a_right_that_is_taken_away_from_a_watch_is_seen_at_the_next_list():
    lost = step(WATCHING, Reason.FORBIDDEN, optional=True)
    assert (lost.state.next, lost.hidden) == (RequestKind.RELIST, False)
    assert step(lost.state, Reason.FORBIDDEN, optional=True).hidden


ALLOWED = step(State(), Ending.DONE, version="7").state


@pytest.mark.parametrize("dispensable", [True, False], ids=["nodes", "pods"])
def test_after_a_403_for_what_was_allowed_the_retry_comes_within_a_second(dispensable):
    """A server that was restarted refuses connections, and then, for a second, all but its administrators."""
    state, now = ALLOWED, 0.0
    for _ in range(5):
        away = step(state, Reason.UNREACHABLE, now=now)
        state, now = away.state, now + away.pause
    assert away.pause >= 8.0
    pauses = []
    for _ in range(3):
        refused = step(state, Reason.FORBIDDEN, now=now, optional=dispensable)
        assert (refused.hidden, refused.state.next) == (False, RequestKind.RELIST)
        pauses.append(refused.pause)
        state, now = refused.state, now + refused.pause
    assert pauses == [QUICK_RETRY / 2, 0.8, 1.6]
    latest = next_step(now, ALLOWED, Outcome(Reason.FORBIDDEN, version="7"), jitter=0.99)[0]
    assert latest.pause <= QUICK_RETRY


def test_a_right_that_stays_away_is_gone():
    state, now, tries = ALLOWED, 0.0, 0
    while not (refused := step(state, Reason.FORBIDDEN, now=now, optional=True)).hidden:
        state, now, tries = refused.state, now + refused.pause, tries + 1
        assert now <= 2 * SERVER_START
    assert tries <= 6
    assert refused.pause >= 0.9 * HIDDEN_PAUSE
    assert step(refused.state, Reason.FORBIDDEN, now=now + 60.0, optional=True).hidden


def test_with_list_and_without_watch_rights_requests_back_off():
    state, now, asked = State(), 0.0, 0
    while now < 60.0:
        end = Reason.FORBIDDEN if state.next is RequestKind.WATCH else Ending.DONE
        done = step(state, end, now=now, version="8")
        asked += state.next is RequestKind.WATCH
        state, now = done.state, now + done.pause
    assert asked <= 8


def test_a_watch_that_lived_makes_the_next_refusal_the_first():
    once = step(ALLOWED, Reason.FORBIDDEN, now=0.0).state
    lived = step(step(once, Ending.DONE, now=1.0).state, Reason.CUT, now=60.0, lived=59.0).state
    assert step(lived, Reason.FORBIDDEN, now=61.0).pause == QUICK_RETRY / 2


# Pauses


def pauses(count: int, draw) -> list[float]:
    backoff, now, waited = Backoff(), 0.0, []
    for _ in range(count):
        backoff, pause = backoff.failed(now, draw())
        waited.append(pause)
        now += pause
    return waited


def test_pauses_double_from_less_than_a_second_to_half_a_minute():
    assert pauses(8, lambda: 0.0) == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert Backoff().failed(0.0, 0.5)[1] == pytest.approx(1.2)  # at random up to as much is added


def test_after_two_quiet_minutes_a_failure_is_a_first_one():
    backoff = Backoff()
    for _ in range(9):
        backoff, _ = backoff.failed(0.0, 0.0)
    assert backoff.failed(RESET_AFTER, 0.0)[1] == LONGEST_PAUSE
    assert backoff.failed(RESET_AFTER + 1.0, 0.0)[1] == 0.8
