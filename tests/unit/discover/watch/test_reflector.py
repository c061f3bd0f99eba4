"""The reflector: what it asks for, and what it knows, whatever the server does. In virtual time, turn by turn."""

import threading

import pytest

from discover.watch.collection import RequestKind
from discover.watch.reflector import NODES, PODS, Reflector
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from tests.support.waiting import wait_until
from tests.unit.discover.scripted_collection import CountedMetrics, Scripted, bookmark, error, event, listing, node, pod

REFUSED = ApiError(Reason.UNREACHABLE, "connection refused")
FORBIDDEN = ApiError.of_status({"message": "pods is forbidden", "reason": "Forbidden"}, code=403)
TWO = listing(10, pod("a", 3), pod("b", 4))
LIVE = 5.0
"""Seconds that a watch of these tests lives."""


class Rig:
    def __init__(self, clock, *answers, resource=PODS) -> None:
        self.clock = clock
        self.script = Scripted(clock, *answers)
        self.news = 0
        self.stirred = 0
        self.metrics = CountedMetrics()
        self.reflector = Reflector(
            self.script, resource, self.told, clock=clock, draw=lambda: 0.0, metrics=self.metrics
        )

    def told(self, news: bool) -> None:
        self.news += news
        self.stirred += not news

    def turns(self, count: int) -> list[float]:
        pauses = []
        for _ in range(count):
            pauses.append(self.reflector.turn())
            self.clock.advance(pauses[-1])
        return pauses

    @property
    def known(self) -> dict[str, str]:
        return {view.key.name: view.version for view in self.reflector.known()[0].values()}

    @property
    def asked(self) -> list[tuple[str, str]]:
        return [(request.ask.name, request.version) for request in self.script.requests]


def test_first_a_consistent_list_in_pages_and_then_a_watch_from_its_version(manual_clock):
    """R1, R4"""
    pages = [listing(10, pod("a", 3), more="next"), listing(10, pod("b", 4))]
    rig = Rig(manual_clock, *pages, [LIVE])
    rig.turns(2)
    assert rig.asked == [("PAGED", ""), ("PAGED", ""), ("WATCH", "10")]
    assert [request.more for request in rig.script.requests] == ["", "next", ""]
    assert 45 <= rig.script.requests[2].ends <= 60  # a watch that has nothing to tell is ended by a live server
    assert rig.known == {"a": "3", "b": "4"}
    assert rig.news == 1  # both pages at once


def test_rule_03_an_expired_page_publishes_nothing_and_leads_to_a_whole_list(manual_clock):
    gone = ApiError.of_status({"message": "expired"}, code=410)
    rig = Rig(manual_clock, listing(10, pod("a", 3), more="next"), gone, TWO, [LIVE])
    rig.turns(1)
    assert (rig.news, rig.known) == (0, {})
    rig.turns(1)
    assert rig.script.requests[2].ask is RequestKind.UNPAGED
    assert rig.known == {"a": "3", "b": "4"}


def test_rule_03_half_a_list_is_not_told(manual_clock):
    whole = b"".join(TWO)
    half = [whole[: len(whole) - 20], ApiError(Reason.SILENT, "no data arrives")]
    rig = Rig(manual_clock, half, TWO, [LIVE])
    rig.turns(1)
    assert (rig.news, rig.known) == (0, {})
    rig.turns(1)
    assert rig.known == {"a": "3", "b": "4"}


def test_what_is_known_is_the_same_mapping_until_an_object_changes(manual_clock):
    known = []
    rig = Rig(manual_clock, TWO)

    def look() -> None:
        known.append(rig.reflector.known()[0])

    changes = [event("MODIFIED", pod("a", 12)), event("ADDED", pod("c", 13)), event("DELETED", pod("b", 14))]
    rig.script.answers.append([look, bookmark(11), look, *(each for change in changes for each in (change, look))])
    rig.turns(2)
    assert known[0] is known[1]
    assert ["".join(sorted(key.name for key in each)) for each in known[1:]] == ["ab", "ab", "abc", "ac"]
    assert len({id(each) for each in known}) == 4


def test_what_is_known_is_in_order_whenever_an_object_has_come(manual_clock):
    known = []
    rig = Rig(manual_clock, listing(10, pod("c", 3), pod("a", 4)))

    def look() -> None:
        known.append("".join(key.name for key in rig.reflector.known()[0]))

    changes = [
        event("ADDED", pod("b", 12)),
        event("MODIFIED", pod("a", 13)),
        event("DELETED", pod("a", 14)),
        event("ADDED", pod("a", 15)),
    ]
    rig.script.answers.append([look, *(each for change in changes for each in (change, look))])
    rig.turns(2)
    assert known == ["ac", "abc", "abc", "bc", "abc"]


def test_rule_01_an_error_within_the_stream_that_says_expired_leads_to_one_list(manual_clock):
    rig = Rig(manual_clock, TWO, [LIVE, error(410, reason="Expired")], TWO, [LIVE])
    rig.turns(1)
    before, _ = rig.reflector.known()
    rig.turns(3)
    assert rig.asked == [("PAGED", ""), ("WATCH", "10"), ("RELIST", "10"), ("WATCH", "10")]
    assert rig.metrics.lists == 2
    assert rig.metrics.restarts == ["expired", "done"]
    after, _ = rig.reflector.known()
    assert [after[key] is view for key, view in before.items()] == [True, True]  # equal is the very same


@pytest.mark.parametrize(
    "said", [error(500, reason="InternalError"), error(429), event("ERROR", {"kind": "Status"}), event("ERROR", {})]
)
def test_rule_04_any_other_error_within_the_stream_backs_off(manual_clock, said):
    rig = Rig(manual_clock, TWO, [said])
    assert rig.turns(2)[1] > 0
    assert rig.known == {"a": "3", "b": "4"}
    assert rig.reflector.status.problem.startswith("the API server says")


def test_what_came_before_an_error_is_told(manual_clock):
    rig = Rig(manual_clock, TWO, [event("ADDED", pod("c", 11)) + error(500)])
    rig.turns(2)
    assert "c" in rig.known
    assert rig.news == 2  # the list, and what came
    assert rig.reflector.known()[1] == "11"


SILENT = ApiError(Reason.SILENT, "connected, but no data arrives")


def loud(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_quiet_watch_that_its_server_ends_is_opened_again_and_nothing_is_said(manual_clock, caplog):
    caplog.set_level("INFO")
    rig = Rig(manual_clock, TWO, [55.0])
    rig.turns(4)
    assert rig.asked[1:] == [("WATCH", "10")] * 3
    assert caplog.messages == []
    assert rig.reflector.status.in_sync_at == manual_clock.mono()  # only a live server ends a watch in time
    assert (rig.reflector.status.problem, rig.stirred) == ("", 0)


def test_a_watch_that_ends_at_once_does_not_reset_the_retry(manual_clock):
    rig = Rig(manual_clock, TWO, [0.1])
    rig.turns(1)
    listed = manual_clock.mono()
    rig.turns(3)
    assert rig.reflector.status.in_sync_at == listed


def test_a_silent_watch_that_missed_nothing_gives_no_warning(manual_clock, caplog):
    caplog.set_level("INFO")
    rig = Rig(manual_clock, TWO, [70.0, SILENT], [20.0, event("ADDED", pod("c", 11)), LIVE])
    rig.turns(3)
    assert set(rig.known) == {"a", "b", "c"}
    assert loud(caplog) == []
    assert "no data arrives; watch again" in caplog.text


def test_a_silent_watch_that_missed_changes_gives_a_warning(manual_clock, caplog):
    rig = Rig(manual_clock, TWO, [70.0, SILENT], [event("ADDED", pod("c", 11)), LIVE, event("ADDED", pod("d", 12))])
    rig.turns(3)
    assert loud(caplog) == ["pods of namespace n at https://there: the watch that fell silent missed 1 changes"]


@pytest.mark.parametrize(("now", "missed"), [((pod("a", 3), pod("b", 4)), 0), ((pod("a", 20), pod("c", 21)), 3)])
def test_a_list_with_changes_after_a_silent_watch_gives_a_warning(manual_clock, caplog, now, missed):
    expired = ApiError.of_status({"message": "too old"}, code=410)
    rig = Rig(manual_clock, TWO, [70.0, SILENT], expired, listing(30, *now), [LIVE])
    rig.turns(4)
    assert [f"fell silent missed {missed} changes" in each for each in loud(caplog)] == [True] * bool(missed)


def test_a_list_that_fell_silent_had_told_nothing_yet(manual_clock, caplog):
    rig = Rig(manual_clock, SILENT, TWO, [LIVE])
    rig.turns(3)
    assert not [each for each in loud(caplog) if "not told of all changes" in each]
    assert rig.known == {"a": "3", "b": "4"}


def test_a_server_that_does_not_answer_after_a_silence_is_warned_of(manual_clock, caplog):
    rig = Rig(manual_clock, TWO, [70.0, SILENT], ApiError(Reason.UNREACHABLE, "no connection within 5 s"))
    rig.turns(3)
    assert len(loud(caplog)) == 1
    assert rig.reflector.status.problem_since == manual_clock.mono() - 0.8


def test_rule_08_a_bookmark_says_where_to_go_on_and_nothing_of_the_hosts(manual_clock):
    rig = Rig(manual_clock, TWO, [bookmark(500), 60.0, ApiError(Reason.CUT, "reset")], [LIVE])
    rig.turns(3)
    assert rig.asked[2] == ("WATCH", "500")
    assert rig.news == 1
    assert rig.known == {"a": "3", "b": "4"}


@pytest.mark.parametrize("junk", [b"}{\n", b"\xff\xfe\n", b"null\n", b'{"type":"ADDED"}\n', event("NEW", {}), b'"x"\n'])
def test_rule_09_a_line_that_is_no_event_loses_nothing(manual_clock, junk):
    rig = Rig(manual_clock, TWO, [LIVE, event("ADDED", pod("c", 11)), junk], [event("ADDED", pod("d", 12)), LIVE])
    rig.turns(3)
    assert rig.asked[2] == ("WATCH", "11")
    assert set(rig.known) == {"a", "b", "c", "d"}


def test_rule_10_repeated_and_late_events_change_nothing(manual_clock):
    again = [event("ADDED", pod("a", 3)), event("MODIFIED", pod("a", 2)), event("DELETED", pod("b", 20, uid="old"))]
    rig = Rig(manual_clock, TWO, [*again, LIVE], [LIVE])
    rig.turns(3)
    assert rig.known == {"a": "3", "b": "4"}
    assert rig.asked[2] == ("WATCH", "20")


def test_rule_11_12_a_list_with_lower_versions_is_what_there_is(manual_clock):
    restored = listing(5, pod("a", 2), pod("c", 5))
    rig = Rig(manual_clock, TWO, [LIVE, error(410)], restored, [event("MODIFIED", pod("c", 6)), LIVE])
    rig.turns(4)
    assert rig.known == {"a": "2", "c": "6"}
    assert rig.asked[3] == ("WATCH", "5")


def test_rule_14_a_server_that_lags_behind_is_asked_for_what_it_has(manual_clock):
    ahead = ApiError.of_status({"message": "Too large resource version"}, code=504)
    rig = Rig(manual_clock, TWO, [LIVE, error(410)], ahead, listing(8, pod("a", 3)), [LIVE])
    assert rig.turns(5) == [0.0] * 5
    assert rig.asked[2:] == [("RELIST", "10"), ("PAGED", ""), ("WATCH", "8")]


def test_rule_16_nodes_that_may_not_be_read_are_hidden_until_they_may(manual_clock):
    rig = Rig(manual_clock, FORBIDDEN, FORBIDDEN, listing(5, node("x", 2)), [LIVE], resource=NODES)
    pauses = rig.turns(2)
    assert rig.news == 1  # said once
    assert all(50.0 <= pause <= 70.0 for pause in pauses)
    assert rig.reflector.status.hidden
    rig.turns(2)
    assert list(rig.known) == ["x"]
    assert not rig.reflector.status.hidden


def test_pods_that_may_not_be_read_are_asked_for_again_and_said_so(manual_clock, caplog):
    rig = Rig(manual_clock, FORBIDDEN, FORBIDDEN, TWO, [LIVE])
    rig.turns(2)
    assert not rig.reflector.status.listed
    assert [record.getMessage().count("pods is forbidden") for record in caplog.records] == [1]  # said once
    rig.turns(1)
    assert rig.known == {"a": "3", "b": "4"}


def test_a_forced_relist_ends_the_watch_and_lists_again(manual_clock, caplog):
    rig = Rig(manual_clock, TWO)
    rig.script.answers += [[LIVE, lambda: rig.reflector.force_relist("deaf: it did not tell of pod n/c")], TWO, [LIVE]]
    rig.turns(4)
    assert rig.asked[2] == ("PAGED", "")
    assert rig.metrics.restarts == ["deaf", "done"]
    assert "it did not tell of pod n/c" in loud(caplog)[0]


def test_the_status_says_whether_it_watches_since_when_and_what_is_wrong(manual_clock):
    seen = []
    rig = Rig(manual_clock, REFUSED, TWO)
    rig.script.answers.append([20.0, lambda: seen.append(rig.reflector.status), bookmark(11), REFUSED])
    assert not rig.reflector.status.listed
    rig.turns(1)
    assert rig.reflector.status.problem == "connection refused"
    assert rig.stirred == 1
    rig.turns(1)
    listed_at = manual_clock.mono()
    assert rig.reflector.status.in_sync_at == listed_at
    rig.turns(1)
    assert seen[0].watching
    assert seen[0].in_sync_at == listed_at
    assert not rig.reflector.status.watching
    assert rig.reflector.status.in_sync_at == listed_at + 20.0


@pytest.fixture
def threaded(manual_clock):
    """A reflector in its thread, whose watch tells nothing until it is broken off."""
    rig = Rig(manual_clock, TWO)
    over = threading.Event()
    rig.script.answers.append([lambda: over.wait(60)])
    interrupt = rig.script.interrupt
    rig.script.interrupt = lambda: (interrupt(), over.set())
    yield rig
    rig.reflector.stop()


def test_a_defect_does_not_end_the_thread(threaded, caplog):
    threaded.script.answers.insert(0, TWO)
    fails = iter([True])
    told = threaded.told
    threaded.reflector._changed = lambda news: 1 / 0 if next(fails, False) else told(news)
    threaded.reflector.start()
    wait_until(lambda: threaded.clock.advance(1.0) or threaded.news, what="the list")
    assert threaded.known == {"a": "3", "b": "4"}
    assert "a defect" in caplog.text
