"""The requests of `hvd-elastic hosts` to a launcher, and the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.cli.hosts import main, table
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.host_requests import Starting, answer, duration, journal_entry
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Strike, Subject
from hvd_elastic_ext.launcher.membership.spares import Counts

A = Host("a", 4)
POD = Host("w-1", 2, "u1", "n1")
HOSTS = (A, POD)
LIMITS = (10.0, 100.0)


def asked(ledger: HealthLedger, **request: Any) -> tuple[HealthLedger, Any]:
    after, journal_entry = answer(request, ledger, hosts=HOSTS, now=100.0)
    return after, json.loads(json.dumps(journal_entry, allow_nan=False))


def struck(cause: Cause, host: Host, slot: int | None = None, ledger: HealthLedger | None = None) -> HealthLedger:
    strike = Strike.of(cause, host, slot, at=100.0)
    assert strike is not None
    return (ledger or HealthLedger()).struck(100.0, strike, LIMITS)


def test_a_list_has_a_row_for_each_published_host_and_for_everybody_else_on_record() -> None:
    ledger = struck(Cause.CRASHED, A, 2).block(Subject("host", "gone"), None, "bad fan")
    after, journal_entry = asked(ledger, do="list")
    assert after is ledger
    rows = {row["name"]: row for row in journal_entry["hosts"]}
    assert list(rows) == ["a", "w-1", "gone"]
    assert (rows["a"]["state"], rows["a"]["usable"], rows["a"]["left_s"]) == ("in part", [0, 1, 3], 10.0)
    assert rows["a"]["why"] == "slot 2 of a: crashed"
    assert (rows["w-1"]["state"], rows["w-1"]["strikes"]) == ("free", 0)
    assert (rows["gone"]["state"], rows["gone"]["published"], rows["gone"]["left_s"]) == ("blocked", False, None)


def test_a_blocked_host_that_trains_on_is_said_to() -> None:
    ledger = HealthLedger().block(Subject("host", "a"), None, "bad fan").block(Subject("host", "w-1"), None, "")
    _, journal_entry = answer({"do": "list"}, ledger, hosts=HOSTS, now=100.0, training={"a"})
    whys = {row["name"]: row["why"] for row in journal_entry["hosts"]}
    assert whys["a"].endswith("bad fan; it trains on until others can do without it (--min-np)")
    assert "trains on" not in whys["w-1"]


def test_a_host_that_starts_something_is_said_to_with_since_when_unless_it_is_blocked() -> None:
    ledger = struck(Cause.UNREACHABLE, A)
    tried = Starting("its agent", 75.0, "has not connected yet", 45.0)
    _, journal_entry = answer({"do": "list"}, ledger, hosts=HOSTS, now=100.0, starting={"w-1": tried, "a": tried})
    a, pod = journal_entry["hosts"]
    assert (pod["state"], pod["starting_s"], pod["left_s"]) == ("starting", 75.0, None)
    assert pod["why"] == "its agent has not connected yet (started 1m 15s ago, at most 45 s more)"
    assert (a["state"], a["starting_s"]) == ("blocked", 75.0)
    assert a["why"].startswith("host a: unreachable; its agent has not connected yet (started ")
    assert "starting" in table(journal_entry["hosts"]).splitlines()[2]
    assert "for good" not in table(journal_entry["hosts"])


def test_the_spares_of_a_host_are_named() -> None:
    spares = {"a": Counts(ready=1, starting=0), "w-1": Counts(ready=0, starting=2)}
    starts = Starting("the process in slot 1", 5.0, "is not ready yet", 45.0)
    _, listed = answer({"do": "list"}, HealthLedger(), hosts=HOSTS, now=100.0, starting={"w-1": starts}, spares=spares)
    a, pod = listed["hosts"]
    assert (a["spares"], a["state"], a["why"]) == ({"ready": 1, "starting": 0}, "free", "spares: 1 ready")
    assert pod["why"].startswith("spares: 2 starting; the process in slot 1 is not ready yet")
    assert "spares: 1 ready" in table(listed["hosts"]).splitlines()[1]
    _, listed = answer({"do": "list"}, HealthLedger(), hosts=HOSTS, now=100.0)
    assert listed["hosts"][0]["spares"] is None


def test_a_host_that_is_tried_again_keeps_the_words_of_the_last_failure() -> None:
    strike = Strike.of(Cause.UNREACHABLE, A, None, at=80.0, detail="unreachable: ssh: no route to host")
    assert strike is not None
    ledger = HealthLedger().struck(80.0, strike, LIMITS)
    tried = Starting("its agent", 5.0, "has not connected yet", 45.0)
    _, journal_entry = answer({"do": "list"}, ledger, hosts=HOSTS, now=100.0, starting={"a": tried})
    assert journal_entry["hosts"][0]["state"] == "starting"
    assert journal_entry["hosts"][0]["why"] == (
        "its agent has not connected yet (started 5 s ago, at most 45 s more); "
        "the last time: unreachable: ssh: no route to host"
    )


def test_a_host_that_is_not_listed_any_more_is_marked_and_left_out_after_its_cooldown() -> None:
    gone = Host("b", 1)
    ledger = struck(Cause.UNREACHABLE, gone)
    rows = answer({"do": "list"}, ledger, hosts=HOSTS, now=105.0).answer["hosts"]
    assert [row["name"] for row in rows] == ["a", "w-1", "b"]
    assert rows[-1]["why"] == "unreachable; not in the list of hosts"
    rows = answer({"do": "list"}, ledger, hosts=HOSTS, now=111.0).answer["hosts"]
    assert [row["name"] for row in rows] == ["a", "w-1"]
    rows = answer({"do": "list"}, ledger, hosts=(), now=111.0).answer["hosts"]
    assert [row["name"] for row in rows] == ["b"], "without a launcher nobody knows what is listed"


def test_the_table_of_hosts_shows_each_block_its_time_and_its_reason() -> None:
    ledger = struck(Cause.UNREACHABLE, A).block(Subject("host", "gone"), None, "bad fan", at=93.0)
    _, journal_entry = asked(ledger, do="list")
    assert table(journal_entry["hosts"]).splitlines() == [
        "HOST         SLOTS  STATE    STRIKES  SINCE    UNTIL    WHY",
        "a            0/4    blocked  1        0 s ago  in 10 s  host a: unreachable",
        "w-1          2/2    free",
        "(host gone)         blocked           7 s ago  cleared  blocked by hand: bad fan; not in the list of hosts",
    ]
    assert table([]) == "no host is blocked, and none has a strike"


def test_a_user_blocks_a_host_and_clears_it_again() -> None:
    blocked, journal_entry = asked(HealthLedger(), do="block", host="a", reason="bad fan", **{"for": 600})
    assert journal_entry == {"said": "host a is blocked for 10m"}
    assert blocked.blocked(699.0, A).reason == "host a is blocked by hand: bad fan"
    cleared, journal_entry = asked(blocked, do="clear", host="a")
    assert journal_entry == {"said": "a is cleared: host a"}
    assert not cleared.blocked(101.0, A).blocked
    again, journal_entry = asked(cleared, do="clear", host="a")
    assert again is cleared
    assert journal_entry == {"said": "nothing was held against a"}


def test_blocking_a_host_that_nobody_publishes_is_allowed_and_said() -> None:
    after, journal_entry = asked(HealthLedger(), do="block", host="typo")
    assert journal_entry == {"said": "host typo is blocked until it is cleared; no host of that name is published now"}
    assert after.blocked(100.0, Host("typo", 1)).blocked


def test_hosts_that_are_kept_though_no_list_names_them_have_a_row_with_the_reason() -> None:
    kept = {A: "the newest list names no host", POD: "it is not listed any more"}
    ledger = struck(Cause.UNREACHABLE, POD)
    _, journal_entry = answer({"do": "list"}, ledger, hosts=(), now=100.0, kept=kept)
    assert table(journal_entry["hosts"]).splitlines() == [
        "HOST  SLOTS  STATE    STRIKES  SINCE    UNTIL    WHY",
        "a     4/4    kept                                the newest list names no host",
        "w-1   0/2    blocked  1        0 s ago  in 10 s  pod w-1: unreachable; it is not listed any more",
    ]
    assert [row["published"] for row in journal_entry["hosts"]] == [False, False]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("w-2", "no host or node of the name w-2 is published or on record; did you mean w-1?"),
        ("zzzzzz", "no host or node of the name zzzzzz is published or on record; there are a, n1, old, w-1"),
    ],
)
def test_a_name_that_nobody_knows_is_not_cleared_in_silence(name: str, says: str) -> None:
    ledger = HealthLedger().block(Subject("host", "old"), None, "")
    with pytest.raises(UsageError) as found:
        asked(ledger, do="clear", host=name)
    assert str(found.value) == says
    assert asked(ledger, do="clear", host="old")[1]["said"] == "old is cleared: host old"
    assert answer({"do": "clear", "host": name}, HealthLedger(), hosts=(), now=0.0).answer == {
        "said": f"nothing was held against {name}"
    }


def test_the_nearest_name_is_said_where_a_host_is_blocked_that_nobody_publishes() -> None:
    assert asked(HealthLedger(), do="block", host="w-11")[1]["said"].endswith("published now; did you mean w-1?")


def test_a_node_can_be_blocked_and_cleared_by_its_name() -> None:
    after, journal_entry = asked(HealthLedger(), do="block", host="n1")
    assert journal_entry["said"].startswith("node n1 is blocked")
    assert after.blocked(100.0, POD).blocked
    assert not asked(after, do="clear", host="n1")[0].blocked(100.0, POD).blocked


def test_clearing_a_pod_takes_its_slots_along_and_says_if_its_node_is_blocked_still() -> None:
    ledger = struck(Cause.CRASHED, POD, 0).block(Subject("node", "n1"), None, "")
    after, journal_entry = asked(ledger, do="clear", host="w-1")
    assert (
        journal_entry["said"]
        == "w-1 is cleared: slot 0 of w-1; still blocked: node n1 is blocked by hand; clear n1 too"
    )
    assert list(after.records) == [Subject("node", "n1")]


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "shout"},
        {},
        {"do": "block", "host": "-oProxyCommand=x"},
        {"do": "block", "host": 7},
        {"do": "block"},
        {"do": "clear", "host": "a b"},
        {"do": "block", "host": "a", "for": 0},
        {"do": "block", "host": "a", "for": True},
        {"do": "block", "host": "a", "for": "10m"},
        {"do": "block", "host": "a", "for": float("nan")},
        {"do": "block", "host": "a", "for": 1e300},
        {"do": "block", "host": "a", "reason": "two\nlines"},
        {"do": "block", "host": "a", "reason": "\x1b[31m"},
        {"do": "block", "host": "a", "reason": "x" * 201},
        {"do": "block", "host": "a", "reason": None},
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_one_line(request_: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^[^\n\x1b]+$"):
        answer(request_, HealthLedger(), hosts=HOSTS, now=0.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, r"^--for is \S+ s; give a time above 0, 1000d at most$") for text in ("0s", "0", "inf")),
        ("999999d", "^--for '999999d' is longer than 1000 days"),
    ],
)
def test_a_block_for_no_time_or_for_ever_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        main(["block", "a", "--for", text])


@pytest.mark.parametrize(
    ("length", "text"),
    [(0.2, "1 s"), (59, "59 s"), (60, "1m"), (590, "9m 50s"), (3600, "1h"), (7500, "2h 5m"), (90_000, "1d 1h")],
)
def test_times_are_told_as_people_tell_them(length: float, text: str) -> None:
    assert duration(length) == text


def test_what_is_done_by_hand_stands_in_the_journal() -> None:
    block = {"do": "block", "host": "a", "for": 60.0, "reason": "bad fan"}
    assert journal_entry(block) == ("blocked", {"host": "a", "for_s": 60.0, "reason": "by hand: bad fan"})
    assert journal_entry({"do": "block", "host": "a"})[1] == {"host": "a", "for_s": None, "reason": "by hand"}
    assert journal_entry({"do": "clear", "host": "a"}) == ("cleared", {"host": "a", "reason": "by hand"})
