"""A journal as the model of the next job: its times, its hosts, and a prediction for the very same job."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.journal import Record, read
from hvd_elastic_ext.simulate import measured, options
from hvd_elastic_ext.simulate.cluster.times import Times
from hvd_elastic_ext.simulate.job import simulate
from hvd_elastic_ext.simulate.traces.rows import parsed

TIMES = Times(step_s=0.4, agent_s=1.5, boot_s=12.0, join_s=0.8, sync_s=0.8, write_s=6.0, publish_s=0.0)
TRACE = parsed(
    "time,host,event,notice,slots\n0,a,up,,2\n0,b,up,,2\n0,c,up,,1\n200,c,down,30,\n400,c,up,,1\n700,a,crash,,\n"
    "900,b,down,,\n1000,b,up,,2\n1500,c,down,,\n",
    where="trace",
)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    journal = io.StringIO()
    given = {"min_num_proc": 1, "checkpoint_every": "100s"}
    simulate(TRACE, options.settings(given, TRACE), TIMES, journal=journal)
    return list(read(journal.getvalue().splitlines()))


def test_times_are_found_again(records: list[Record]) -> None:
    times = measured.of_records(records, where="j").times
    assert times.step_s == pytest.approx(0.4, rel=0.02)
    assert times.boot_s == pytest.approx(12.0, rel=0.02)
    assert times.write_s == pytest.approx(6.0, rel=0.05)


def test_hosts_that_came_and_went_are_found_again(records: list[Record]) -> None:
    rows = measured.of_records(records, where="j").trace.rows
    played = [row for row in TRACE.rows if TRACE.plays(row)]
    assert [(row.host, row.event) for row in rows] == [(row.host, row.event) for row in played]
    assert all(found.at == pytest.approx(was.at, abs=31.0) for found, was in zip(rows, played, strict=True))


def test_a_job_with_the_times_and_hosts_of_a_journal_does_as_many_steps(records: list[Record]) -> None:
    found = measured.of_records(records, where="j")
    given = {"min_num_proc": 1, "checkpoint_every": "100s"}
    result = simulate(found.trace, options.settings(given, found.trace), found.times)
    assert result.steps == pytest.approx(found.steps, rel=0.05)


def test_losses_that_cost_less_time_than_planned_changes_are_predicted_so() -> None:
    """As a rule they do: who has lost a peer need not wait for a step at which all can leave."""
    journal = io.StringIO()
    was = dataclasses.replace(TIMES, join_s=1.5, sync_s=1.5, lost_s=0.5, notice_s=0.01)
    settings = options.settings({"min_num_proc": 1}, TRACE)
    simulate(TRACE, settings, was, journal=journal)
    found = measured.of_records(list(read(journal.getvalue().splitlines())), where="j")
    assert found.times.join_s + found.times.sync_s == pytest.approx(3.0, rel=0.1)
    assert found.times.lost_s == pytest.approx(0.5, abs=0.25)
    said = simulate(found.trace, settings, dataclasses.replace(found.times, spread=0.0))
    assert said.worlds == found.worlds
    assert said.downtime_s == pytest.approx(found.downtime_s, rel=0.05)


UNLISTED = (40.0, "published", {"hosts": {"a": 1}})


def noted(*lines: tuple[float, str, dict[str, object]]) -> measured.Measured:
    """What these records say, between those of a job of one host that begins to train at 10 s, a step a second."""
    first: list[tuple[float, str, dict[str, object]]] = [
        (0.0, "published", {"hosts": {"a": 1, "b": 1}}),
        (1.0, "spawned", {"host": "a", "slot": 0}),
        (9.0, "parked", {"host": "a", "slot": 0}),
        (10.0, "resized", {"cause": "start", "size": 1}),
        (10.0, "synced", {"step": 0, "size": 1, "rank": 0}),
        (11.0, "stepped", {"step": 1, "size": 1, "rank": 0}),
        (21.0, "stepped", {"step": 11, "size": 1, "rank": 0}),
    ]
    records = [Record(at, at, int(fields.pop("world", 1)), event, fields) for at, event, fields in (*first, *lines)]
    return measured.of_records(records, where="j")


def test_steps_take_what_they_took_on_average_in_worlds_of_each_size() -> None:
    found = noted(
        (30.0, "synced", {"step": 11, "size": 2, "rank": 0, "world": 2}),
        (32.0, "stepped", {"step": 12, "size": 2, "rank": 0, "world": 2}),
        (34.0, "stepped", {"step": 13, "size": 2, "rank": 0, "world": 2}),
        (40.0, "stepped", {"step": 15, "size": 2, "rank": 0, "world": 2}),  # slow ones count as often as they came
    )
    assert found.times.sizes == {1: 1.0, 2: pytest.approx(8.0 / 3)}


def test_steps_that_were_rolled_back_are_not_kept() -> None:
    found = noted(
        (30.0, "synced", {"step": 8, "size": 2, "rank": 0, "world": 2}),
        (32.0, "stepped", {"step": 9, "size": 2, "rank": 0, "world": 2}),
    )
    assert found.kept == 8 * 1 + 1 * 2


def test_a_host_boots_as_long_as_it_did_and_one_that_was_never_ready_longer_than_it_was_there() -> None:
    found = noted(
        (22.0, "spawned", {"host": "b", "slot": 0}),
    )
    assert found.trace.boots == {"a": 8.0, "b": None}
    assert found.times.boot_s == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("lines", "gone_at", "notice"),
    [
        ([(22.0, "notice", {"host": "b"}), UNLISTED], 40.0, 18.0),
        ([(22.0, "notice", {"host": "b", "deadline": 52.0}), UNLISTED], 52.0, 30.0),
        ([(22.0, "notice", {"host": "b"}), (23.0, "notice_over", {"host": "b"}), UNLISTED],
         40.0, 0.0),
        ([UNLISTED, (44.0, "exited", {"host": "b", "cause": "told to leave"})], 45.0, 5.0),
        ([UNLISTED, (50.0, "fenced", {"host": "b"})], 50.0, 10.0),
        ([(39.0, "fenced", {"host": "b"}), UNLISTED], 39.0, 0.0),
    ],
    ids=["a notice", "a deadline", "one that was over", "it left", "nobody could let it go", "it was lost"],
)  # fmt: skip
def test_how_a_host_went_follows_from_what_was_noted_of_it(
    lines: list[tuple[float, str, dict[str, object]]], gone_at: float, notice: float
) -> None:
    row = next(row for row in noted(*lines).trace.rows if row.event == "down")
    assert (row.host, row.at, row.notice) == ("b", gone_at, notice)


def test_a_process_that_ended_with_its_host_is_no_crash_of_its_own() -> None:
    crash = {"host": "b", "cause": "crashed"}
    found = noted((39.0, "exited", dict(crash)), UNLISTED)
    assert [row.event for row in found.trace.rows] == ["up", "up", "down"]
    assert "crash" in [row.event for row in noted((39.0, "exited", dict(crash))).trace.rows]


def test_the_end_of_a_job_in_which_nobody_trains_is_not_simulated() -> None:
    found = noted((35.0, "exited", {"host": "a", "cause": "told to leave"}), (40.0, "finished", {"code": 143}))
    assert found.trace.ends == 21.0


def test_a_file_that_is_no_journal_of_a_training_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no two consecutive steps"):
        measured.of_records([Record(0.0, 0.0, 0, "started")], where="j")
    with pytest.raises(UsageError, match="cannot be read"):
        measured.read(tmp_path / "none")
