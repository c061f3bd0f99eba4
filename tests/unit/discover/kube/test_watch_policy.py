"""What a server is asked next: the whole table, and what time and repetition do to it."""

from dataclasses import replace

import pytest

from discover.kube.backoff import LONGEST
from discover.kube.transport import Ask, RequestFailed, Trouble, refusal
from discover.kube.watch_policy import (
    HIDDEN_PAUSE,
    PROMPT,
    RULES,
    STARTING,
    STUBBORN,
    End,
    Outcome,
    State,
    after,
    end_of,
)

WATCHING = State(Ask.WATCH, "7")


def step(state: State, end: End, *, now: float = 0.0, dispensable: bool = False, **of_outcome):
    of_outcome.setdefault("version", state.version)
    return after(now, state, Outcome(end, **of_outcome), jitter=0.0, dispensable=dispensable)[0]


def test_there_is_a_rule_for_every_end_of_every_request():
    possible = {(ask, end) for ask in Ask for end in End} - {(ask, End.DEAF) for ask in Ask if ask is not Ask.WATCH}
    assert set(RULES) == possible


@pytest.mark.parametrize("ask", [Ask.FRESH, Ask.WHOLE, Ask.SINCE])
def test_rule_11_a_whole_list_is_watched_from_its_version_at_once_even_if_that_is_a_lower_one(ask):
    """The server's store was restored."""
    done = step(State(ask, "900"), End.DONE, version="12")
    assert (done.state.next, done.state.version, done.pause) == (Ask.WATCH, "12", 0.0)


def test_a_watch_that_ends_in_its_time_goes_on_where_it_was():
    done = step(WATCHING, End.DONE, version="9", lived=320.0)
    assert (done.state.next, done.state.version, done.pause) == (Ask.WATCH, "9", 0.0)


def test_rule_03_an_expired_page_leads_to_a_list_in_one_piece():
    assert step(State(), End.EXPIRED).state.next is Ask.WHOLE
    again = step(State(Ask.WHOLE), End.EXPIRED)
    assert again.state.next is Ask.FRESH
    assert again.pause > 0


@pytest.mark.parametrize("lived", [0.0, 300.0])
def test_rule_01_02_an_expired_watch_lists_from_its_version_and_then_afresh(lived):
    relist = step(WATCHING, End.EXPIRED, lived=lived)
    assert (relist.state.next, relist.state.version, relist.pause) == (Ask.SINCE, "7", 0.0)
    fresh = step(relist.state, End.EXPIRED)
    assert (fresh.state.next, fresh.state.version, fresh.pause) == (Ask.FRESH, "", 0.0)


def test_rule_14_a_server_that_is_behind_is_asked_for_what_it_has():
    for state in (WATCHING, State(Ask.SINCE, "7")):
        fresh = step(state, End.AHEAD)
        assert (fresh.state.next, fresh.state.version, fresh.pause) == (Ask.FRESH, "", 0.0)


def test_watches_that_expire_as_soon_as_they_are_opened_do_not_become_a_loop():
    first = step(WATCHING, End.EXPIRED)
    listed = step(first.state, End.DONE, version="8")
    second = step(listed.state, End.EXPIRED)
    assert (first.pause, listed.pause) == (0.0, 0.0)
    assert second.pause == 0.8
    lived = step(step(listed.state, End.DONE, lived=5.0).state, End.EXPIRED)
    assert lived.pause == 0.0


@pytest.mark.parametrize("end", [End.DONE, End.CUT, End.SILENT])
def test_rule_05_a_watch_that_does_not_live_a_second_has_failed(end):
    short, long = step(WATCHING, end, lived=0.4), step(WATCHING, end, lived=70.0)
    assert (short.state.next, long.state.next) == (Ask.WATCH, Ask.WATCH)
    assert short.pause == 0.8
    assert long.pause == 0.0


def test_rule_05_a_server_that_closes_every_watch_at_once_is_asked_ten_times_a_minute_at_most():
    now, asked, state = 0.0, 0, WATCHING
    while now < 60.0:
        asked += 1
        ended = step(state, End.DONE, now=now)
        state, now = ended.state, now + ended.pause
    assert asked <= 10


@pytest.mark.parametrize("end", [End.AWAY, End.BUSY])
def test_a_server_that_is_away_or_busy_is_asked_for_the_watch_again_and_for_no_list(end):
    """R8"""
    later = step(WATCHING, end)
    assert (later.state.next, later.state.version, later.pause) == (Ask.WATCH, "7", 0.8)


@pytest.mark.parametrize(("asked", "pause"), [(None, 0.8), (0.1, 0.8), (5.0, 5.0), (3600.0, LONGEST)])
def test_a_server_is_left_alone_as_long_as_it_asks_within_reason(asked, pause):
    """R7"""
    assert step(WATCHING, End.BUSY, retry_after=asked).pause == pause


def test_rule_04_internal_errors_are_borne_for_a_while_and_then_listed_over():
    """R6"""
    state, now = WATCHING, 0.0
    asked = []
    while now <= 2 * STUBBORN:
        broken = step(state, End.BROKEN, now=now)
        asked.append((now, broken.state.next))
        assert broken.pause > 0
        state, now = broken.state, now + broken.pause
        if state.next is Ask.SINCE:
            break
    assert [ask for at, ask in asked if at < STUBBORN] == [Ask.WATCH] * (len(asked) - 1)
    assert asked[-1][1] is Ask.SINCE
    assert state.version == "7"


def test_internal_errors_at_another_version_begin_anew():
    first = step(WATCHING, End.BROKEN, now=0.0)
    moved = step(first.state, End.BROKEN, now=STUBBORN + 1, version="8")
    assert moved.state.next is Ask.WATCH


@pytest.mark.parametrize("ask", list(Ask))
def test_rule_13_who_is_not_let_in_reads_the_token_anew_and_tries_once_without_a_pause(ask):
    state = State(ask, "" if ask is Ask.FRESH else "7")
    once = step(state, End.DENIED)
    assert (once.renew, once.pause) == (True, 0.0)
    assert once.state.next is (Ask.FRESH if ask is Ask.WHOLE else ask)
    twice = step(once.state, End.DENIED)
    assert (twice.renew, twice.pause) == (True, 0.8)


def test_rule_13_a_token_that_cannot_be_read_just_now_is_read_again_later():
    empty = step(WATCHING, End.UNARMED)
    assert (empty.renew, empty.pause, empty.state.next) == (True, 0.8, Ask.WATCH)


def test_rule_16_what_is_forbidden_and_dispensable_is_hidden_and_tried_every_minute():
    hidden = step(State(), End.FORBIDDEN, dispensable=True)
    assert hidden.hidden
    assert 0.9 * HIDDEN_PAUSE <= hidden.pause <= 1.1 * HIDDEN_PAUSE
    again = step(hidden.state, End.FORBIDDEN, dispensable=True)
    assert again.pause == hidden.pause
    assert step(again.state, End.DONE, version="3", dispensable=True).state.next is Ask.WATCH


def test_what_is_forbidden_and_needed_is_asked_for_again_and_again():
    state, pauses = State(), []
    for _ in range(8):
        refused = step(state, End.FORBIDDEN)
        assert not refused.hidden
        state = refused.state
        pauses.append(refused.pause)
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST


def test_a_right_that_is_taken_away_from_a_watch_is_seen_at_the_next_list():
    lost = step(WATCHING, End.FORBIDDEN, dispensable=True)
    assert (lost.state.next, lost.hidden) == (Ask.SINCE, False)
    assert step(lost.state, End.FORBIDDEN, dispensable=True).hidden


ALLOWED = State(Ask.WATCH, "7", allowed=True)


@pytest.mark.parametrize("dispensable", [True, False], ids=["nodes", "pods"])
def test_who_was_let_in_before_is_back_within_a_second_whatever_went_before(dispensable):
    """A server that was restarted refuses connections, and then, for a second, all but its administrators."""
    state, now = ALLOWED, 0.0
    for _ in range(5):
        away = step(state, End.AWAY, now=now)
        state, now = away.state, now + away.pause
    assert away.pause >= 8.0
    pauses = []
    for _ in range(3):
        refused = step(state, End.FORBIDDEN, now=now, dispensable=dispensable)
        assert (refused.hidden, refused.state.next) == (False, Ask.SINCE)
        pauses.append(refused.pause)
        state, now = refused.state, now + refused.pause
    assert pauses == [PROMPT / 2, 0.8, 1.6]
    latest = after(now, ALLOWED, Outcome(End.FORBIDDEN, version="7"), jitter=0.99)[0]
    assert latest.pause <= PROMPT


def test_a_right_that_stays_away_is_gone():
    state, now, tries = ALLOWED, 0.0, 0
    while not (refused := step(state, End.FORBIDDEN, now=now, dispensable=True)).hidden:
        state, now, tries = refused.state, now + refused.pause, tries + 1
        assert now <= 2 * STARTING
    assert tries <= 6
    assert refused.pause >= 0.9 * HIDDEN_PAUSE
    assert step(refused.state, End.FORBIDDEN, now=now + 60.0, dispensable=True).hidden


def test_who_may_list_and_not_watch_does_not_ask_every_second():
    state, now, asked = State(), 0.0, 0
    while now < 60.0:
        end = End.FORBIDDEN if state.next is Ask.WATCH else End.DONE
        done = step(state, end, now=now, version="8")
        asked += state.next is Ask.WATCH
        state, now = done.state, now + done.pause
    assert asked <= 8


def test_a_watch_that_lived_makes_the_next_refusal_the_first():
    once = step(ALLOWED, End.FORBIDDEN, now=0.0).state
    lived = step(step(once, End.DONE, now=1.0).state, End.CUT, now=60.0, lived=59.0).state
    assert step(lived, End.FORBIDDEN, now=61.0).pause == PROMPT / 2


def test_any_other_refusal_lists_anew():
    """R6"""
    assert step(WATCHING, End.ODD).state == replace(step(WATCHING, End.ODD).state, next=Ask.SINCE, version="7")


def test_a_deaf_watch_lists_at_once():
    deaf = step(WATCHING, End.DEAF, lived=17.0)
    assert (deaf.state.next, deaf.pause) == (Ask.FRESH, 0.0)  # a list from the server's memory may be as deaf


def test_the_reason_is_what_went_wrong():
    assert after(0.0, WATCHING, Outcome(End.CUT, "reset by peer"), jitter=0.0)[1] == "reset by peer"
    assert after(0.0, WATCHING, Outcome(End.DONE), jitter=0.0)[1] == "done"


TOO_LARGE = {"code": 504, "reason": "Timeout", "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ({"code": 410, "reason": "Expired"}, End.EXPIRED),
        ({"code": 410, "reason": "Gone"}, End.EXPIRED),
        ({"reason": "Expired"}, End.EXPIRED),
        ({"code": 410}, End.EXPIRED),
        (TOO_LARGE, End.AHEAD),
        ({"code": 504, "reason": "Timeout", "message": "Too large resource version: 9, current: 8"}, End.AHEAD),
        ({"code": 504, "reason": "Timeout"}, End.BROKEN),
        ({"code": 500, "reason": "InternalError"}, End.BROKEN),
        ({"reason": "InternalError"}, End.BROKEN),
        ({"code": 429, "reason": "TooManyRequests"}, End.BUSY),
        ({"code": 503}, End.BUSY),
        ({"code": 401}, End.DENIED),
        ({"code": 403, "reason": "Forbidden"}, End.FORBIDDEN),
        ({"code": 400, "reason": "BadRequest"}, End.ODD),
        ({}, End.ODD),
        ({"code": "410", "details": "x", "message": None}, End.ODD),
    ],
)
def test_rule_04_a_status_is_understood_though_half_of_it_is_missing(status, end):
    assert end_of(refusal(status)) is end


def test_a_status_may_say_when_to_come_back():
    assert refusal({"details": {"retryAfterSeconds": 4}}).retry_after == 4
    assert refusal({"details": {"retryAfterSeconds": 4}}, retry_after=9.0).retry_after == 9.0
    assert refusal({"details": {"retryAfterSeconds": "x"}}).retry_after is None


def test_a_failure_is_one_line():
    assert "\n" not in str(RequestFailed(Trouble.CUT, "one\ntwo\r\n three"))
    assert str(refusal({"code": 403, "reason": "Forbidden", "message": "no\npods"})).count("\n") == 0
    assert len(str(RequestFailed(Trouble.CUT, "x" * 10_000))) <= 500
