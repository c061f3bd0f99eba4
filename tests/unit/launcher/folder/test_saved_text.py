"""The text of a saved state: the next launcher reads exactly what a launcher writes, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.custody.custody import Stored
from hvd_elastic_ext.launcher.custody.holders import NotedCommit
from hvd_elastic_ext.launcher.folder.state_json import (
    NewerVersion,
    Saved,
    SavedScaling,
    UnrecordedChange,
    from_json,
    from_text,
    sum_of,
    to_json,
    to_text,
)
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Strike, Subject
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.scaling.decide import Change

STATES = Path(__file__).with_name("states")
"""Texts that launchers of earlier versions wrote in real jobs. Only the folder of the checkpoints was changed."""
STRUCK = Strike(Subject("slot", "a", "uid", 1, "life"), Cause.CRASHED, -2.0, "node")
FULL = Saved(
    3,
    7,
    "today",
    ended=False,
    finished=True,
    at=1.8e9,
    ledger=HealthLedger().struck(-2.0, STRUCK, (10.0, 300.0)).block(Subject("host", "b"), None, "disk"),
    hosts=(Host("b", 2), Host("a", 1)),
    ports={"10.0.0.1": 7},
    only_here="/store/x",
    stored=Stored((1, 2, 3), 30, "/store/x"),
    change=UnrecordedChange(7, 1.8e9 - 3.5, {"steps_lost": None, "hosts": {"a": 1}}),
    commits=(
        NotedCommit("a", "agent-1", (1, 2, 4), 40, 45, loss_reported=True),
        NotedCommit("b", "agent-2", (1, 2, 5), 50, gone="its agent has ended"),
    ),
    outcome="training is done",
    scaling=SavedScaling(
        -600.0,
        4,
        None,
        ("b",),
        True,
        10.0,
        20.0,
        10,
        (0.5,),
        (Change(-60.0, 2, 4, trial=True),),
        {2: (0.2, 0.3)},
        {2: (0.1,)},
    ),
    refused={2: "its return value cannot be kept"},
    recorded=(Seat("a", 0), Seat("b", 1)),
    record_world=6,
)


@pytest.mark.parametrize("saved", [Saved(), FULL], ids=["nothing", "all"])
def test_what_is_written_is_what_is_read(saved: Saved) -> None:
    text = to_text(saved)
    assert to_text(from_text(text)) == text
    found = from_text(text)
    assert {**to_json(found), "hosts": None} == {**to_json(saved), "hosts": None}
    assert (set(found.hosts), found.change, found.commits) == (set(saved.hosts), saved.change, saved.commits)
    assert dict(found.ledger.records) == dict(saved.ledger.records)


def test_a_state_that_version_1_wrote_in_a_running_job_is_read_whole() -> None:
    saved = from_text((STATES / "version-1-killed.json").read_text())
    assert (saved.incarnation, saved.generation, saved.run) == (1, 2, "20261125T145301.279-d1cb")
    assert not saved.ended
    assert set(saved.hosts_left) == {Host("localhost", 1), Host("127.0.0.1", 1)}
    assert saved.ports == {"127.0.0.1": 33129}
    assert saved.stored == Stored((1, 1, 19), 95, "/data/checkpoints/000001-000001-000000019-11e41b67554524b2")
    assert saved.only_here is None
    assert saved.commits == (
        NotedCommit("127.0.0.1", "0ebc5a3bcdc58bfe", (1, 1, 20), 100, 100),
        NotedCommit("localhost", "1a5f8ba396c555ec", (1, 1, 20), 100),
    )
    assert saved.change is not None
    assert (saved.change.generation, saved.change.at) == (2, 1795618393.1975853)
    assert saved.change.fields["cause"] == "worker failed"
    assert saved.at == 1795618393.1994677
    slot = Subject("slot", "localhost", slot=0)
    assert saved.ledger.records[slot].until == pytest.approx(29.963, abs=0.001)
    assert [(fault.subject, fault.cause) for fault in saved.ledger.faults] == [(slot, Cause.CRASHED)]


def test_a_state_that_version_1_wrote_at_the_end_of_a_run_is_read_whole() -> None:
    saved = from_text((STATES / "version-1-ended.json").read_text())
    assert saved.ended
    assert not saved.hosts_left
    assert saved.stored is not None
    assert saved.stored.step == 505
    assert saved.ledger.records[Subject("host", "127.0.0.9")].held


BEFORE = {"version": 1, "incarnation": 1, "generation": 2, "ledger": None}
OLDER: dict[str, dict[str, Any]] = {
    "what nobody asked to keep": {},
    "a checkpoint of unknown commit": {"stored": [None, 30, "/store/x"]},
    "a loss that was not known to be told": {
        "commits": [{"host": "a", "agent": "", "commit": [1, 1, 1], "step": 1, "reached": None, "gone": "why"}]
    },
}


@pytest.mark.parametrize("more", OLDER.values(), ids=OLDER)
def test_parts_that_version_1_did_not_always_have_may_be_absent(more: dict[str, Any]) -> None:
    saved = from_json({**BEFORE, "more": more})
    assert (saved.stored, saved.hosts, saved.run) == (None, (), None)
    assert len(saved.commits) == len(more.get("commits", ()))


WRONG: dict[str, dict[str, Any]] = {
    "an incarnation that is a word": {"incarnation": "1"},
    "a generation below zero": {"generation": -1},
    "a truth that is a number": {"ended": 1},
    "hosts that are a list": {"hosts": ["a"]},
    "a host without slots": {"hosts": {"a": 0}},
    "a host whose name is none": {"hosts": {"a b": 1}},
    "a port that is none": {"ports": {"10.0.0.1": 70_000}},
    "a checkpoint without a path": {"stored": {"commit": [1, 2, 3], "step": 30}},
    "a commit of two numbers": {"stored": {"commit": [1, 2], "step": 30, "path": "/x"}},
    "a change without a cost": {"change": {"generation": 1, "at": 1.0, "fields": {}}},
    "a commit of nobody": {"commits": [{**to_json(FULL)["commits"][0], "host": None}]},
    "commits that are none": {"commits": 7},
    "a ledger of another version": {"ledger": {"version": 9}},
    "a ledger that is none": {"ledger": None},
    "a size that is a word": {"scaling": {**to_json(FULL)["scaling"], "wanted": "4"}},
    "steps that take no time that is known": {"scaling": {**to_json(FULL)["scaling"], "steps_s": {"2": ["0.2"]}}},
    "steps that no float holds": {"scaling": {**to_json(FULL)["scaling"], "steps": 10**400}},
    "a reason that is not text": {"refused": {"2": None}},
    "a seat without a slot": {"recorded": [["a"]]},
    "a seat whose slot is a word": {"recorded": [["a", "0"]]},
    "a call that is a word": {"refused": {"second": "too large"}},
    "a change that is half": {"scaling": {**to_json(FULL)["scaling"], "changes": [[1.0, 2]]}},
}


@pytest.mark.parametrize("part", WRONG.values(), ids=WRONG)
def test_a_part_of_the_wrong_kind_makes_the_whole_text_a_damaged_one(part: dict[str, Any]) -> None:
    document = {**to_json(FULL), **part}
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        from_text(json.dumps({**document, "sum": sum_of(document)}))


LATER = ("version", "outcome", "scaling", "refused", "recorded", "record_world")


@pytest.mark.parametrize("name", [name for name in to_json(FULL) if name not in LATER])
def test_a_part_that_is_absent_is_named(name: str) -> None:
    document = to_json(FULL)
    del document[name]
    with pytest.raises(ValueError, match=f"^without '{name}'$"):
        from_json(document)


def test_a_state_of_a_launcher_that_did_not_write_outcomes_or_sizes_or_refused_results_is_read() -> None:
    document = to_json(FULL)
    del document["outcome"], document["scaling"], document["refused"], document["recorded"], document["record_world"]
    found = from_json(document)
    assert (found.outcome, found.scaling, found.refused) == (None, None, {})
    assert (found.recorded, found.record_world) == (None, 0)
    assert from_text(to_text(FULL)).outcome == "training is done"


def test_a_text_of_a_newer_version_is_told_from_a_damaged_one() -> None:
    with pytest.raises(NewerVersion, match="a newer hvd-elastic wrote it, in version 3; 2 is known here"):
        from_text('{"version":3}')
    for version in ("true", "null", "[1]", "0", '"2"'):
        with pytest.raises(ValueError, match="not a launcher's state") as caught:
            from_text(f'{{"version":{version}}}')
        assert not isinstance(caught.value, NewerVersion)
