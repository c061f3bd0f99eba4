"""A journal as the model of the next job: its times, its hosts, and a prediction for the very same job."""

from __future__ import annotations

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
    assert [(row.host, row.event) for row in rows] == [(row.host, row.event) for row in TRACE.rows]
    assert all(found.at == pytest.approx(was.at, abs=31.0) for found, was in zip(rows, TRACE.rows, strict=False))


def test_a_job_with_the_times_and_hosts_of_a_journal_does_as_many_steps(records: list[Record]) -> None:
    found = measured.of_records(records, where="j")
    given = {"min_num_proc": 1, "checkpoint_every": "100s"}
    result = simulate(found.trace, options.settings(given, found.trace), found.times)
    assert result.steps == pytest.approx(found.steps, rel=0.05)


def test_a_file_that_is_no_journal_of_a_training_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tells of no two steps"):
        measured.of_records([Record(0.0, 0.0, 0, "started")], where="j")
    with pytest.raises(UsageError, match="cannot be read"):
        measured.read(tmp_path / "none")
