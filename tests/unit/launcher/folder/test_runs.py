"""Which run a launcher goes on with, what a new one begins with."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.folder.runs import begun, ended, has_ended, name_of
from hvd_elastic_ext.launcher.folder.state_folder import Saved
from hvd_elastic_ext.launcher.rules.health import ledger_json
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.health.ledger import HealthLedger, Strike, Subject

MORE = {"run": "yesterday", "finished": True, "checkpoint": "/store/x", "commits": [1], "hosts": {}}


def struck_and_blocked() -> dict[str, Any]:
    strike = Strike.of(Cause.CRASHED, Host("a", 1), None, at=0.0)
    assert strike is not None
    ledger = HealthLedger().struck(0.0, strike, (10.0, 300.0)).block(Subject("host", "b"), None, "disk")
    return ledger_json.to_json(ledger, 0.0, wall=0.0)


@pytest.mark.parametrize(
    ("more", "resume", "joins"),
    [
        ({"ended": True}, False, False),
        ({"ended": True}, True, True),
        ({"ended": False}, False, True),
        ({}, False, True),  # its launcher was killed, or sleeps
    ],
)
def test_a_run_that_has_ended_is_followed_by_another_one(more: dict[str, Any], *, resume: bool, joins: bool) -> None:
    saved = Saved(3, 7, struck_and_blocked(), {**MORE, **more})
    found = begun(saved, fresh="today", resume=resume)
    assert found.more["run"] == ("yesterday" if joins else "today")
    assert found.incarnation == 3  # commits of a later launcher are newer, whatever run they are of
    assert found.generation == (7 if joins else 0)
    assert ("commits" in found.more) == joins
    assert found.more["checkpoint"] == "/store/x"
    assert not has_ended(found)


def test_a_new_run_begins_without_strikes_and_keeps_what_was_said_by_hand() -> None:
    saved = Saved(3, 7, struck_and_blocked(), {**MORE, "ended": True})
    found = begun(saved, fresh="today", resume=False).ledger
    ledger = ledger_json.from_json(found, 1.0, wall=1.0)
    assert [(str(subject), record.held, record.strikes) for subject, record in ledger.records.items()] == [
        ("host b", True, 0)
    ]
    assert not ledger.faults
    assert len(ledger_json.from_json(begun(saved, fresh="x", resume=True).ledger, 1.0, wall=1.0).records) == 2


@pytest.mark.parametrize("ledger", [None, {}, {"version": 1}, {"version": 1, "saved": 0.0, "records": 7}])
def test_a_ledger_that_is_none_is_left_behind_with_its_run(ledger: Any) -> None:
    assert begun(Saved(1, 1, ledger, {**MORE, "ended": True}), fresh="x", resume=False).ledger is None


def test_the_first_run_is_a_new_one_and_one_that_has_ended_says_so() -> None:
    found = begun(None, fresh="today", resume=True)
    assert found == Saved(more={"run": "today"})
    assert has_ended(ended(found))


def test_names_are_sorted_as_runs_began() -> None:
    names = [name_of(wall, random) for wall, random in ((1.8e9, 7), (1.8e9 + 0.25, 3), (1.9e9, 1 << 40))]
    assert names == sorted(names)
    assert names[0] == "20270115T080000.000-0007"
