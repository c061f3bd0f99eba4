"""The run that a launcher continues, and the state with which a new run begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.custody.custody import Stored
from hvd_elastic_ext.launcher.custody.holders import NotedCommit
from hvd_elastic_ext.launcher.folder.handover import name_of, started
from hvd_elastic_ext.launcher.folder.state_json import Saved
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Strike, Subject


def struck_and_blocked() -> HealthLedger:
    strike = Strike.of(Cause.CRASHED, Host("a", 1), None, at=0.0)
    assert strike is not None
    return HealthLedger().struck(0.0, strike, (10.0, 300.0)).block(Subject("host", "b"), None, "disk")


SAVED = Saved(
    3,
    7,
    "yesterday",
    finished=True,
    ledger=struck_and_blocked(),
    ports={"10.0.0.1": 7},
    only_here="/store/x",
    stored=Stored((1, 2, 3), 30, "/store/x"),
    commits=(NotedCommit("a", "agent", (1, 2, 4), 40),),
)


@pytest.mark.parametrize(
    ("ended", "resume", "joins"),
    [(True, False, False), (True, True, True), (False, False, True)],  # not ended: killed or asleep
)
def test_a_run_that_has_ended_is_followed_by_another_one(*, ended: bool, resume: bool, joins: bool) -> None:
    found = started(replace(SAVED, ended=ended), fresh="today", resume=resume)
    if joins:
        assert found == SAVED
        return
    assert found == Saved(
        3,  # commits of a later launcher are newer, also in another run
        run="today",
        ledger=found.ledger,
        ports=SAVED.ports,
        only_here="/store/x",
        stored=SAVED.stored,
    )


def test_a_new_run_begins_without_strikes_and_keeps_what_was_said_by_hand() -> None:
    ended = replace(SAVED, ended=True)
    ledger = started(ended, fresh="today", resume=False).ledger
    assert [(str(subject), record.held, record.strikes) for subject, record in ledger.records.items()] == [
        ("host b", True, 0)
    ]
    assert not ledger.faults
    assert len(started(ended, fresh="x", resume=True).ledger.records) == 2


def test_the_first_run_is_a_new_one() -> None:
    assert started(None, fresh="today", resume=True) == Saved(run="today")


def test_names_are_sorted_as_runs_began() -> None:
    names = [name_of(wall, random) for wall, random in ((1.8e9, 7), (1.8e9 + 0.25, 3), (1.9e9, 1 << 40))]
    assert names == sorted(names)
    assert names[0] == "20270115T080000.000-0007"
