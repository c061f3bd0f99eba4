"""Lines of several tellers in one order."""

from __future__ import annotations

from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.jobs.reading import job_events


def test_each_launchers_records_are_placed_by_its_own_clock() -> None:
    records = [
        Record(1000.0, 500.0, 0, "started"),
        Record(1010.0, 510.0, 0, "blocked", {"host": "a", "reason": "by hand"}),
        Record(2000.0, 7.0, 0, "started"),  # on another node
        Record(2003.0, 10.0, 0, "slept", {"reason": "too few hosts"}),
    ]
    found = job_events.of_journal(records)
    assert [(each.at, each.event, each.why) for each in found] == [
        (1000.0, "started", "the launcher was started"),
        (1010.0, "blocked", "by hand"),
        (2000.0, "started", "the launcher was started again"),
        (2003.0, "slept", "too few hosts; 0 → 0"),
    ]
    assert job_events.of_journal([]) == []


def test_times_of_events_are_taken_where_they_are() -> None:
    def at(**fields: object) -> float:
        body = {"metadata": {"creationTimestamp": "2026-01-01T00:00:01Z"}, "involvedObject": {"name": "j"}, **fields}
        return job_events.of_cluster([body], "j", [])[0].at - 1767225600

    assert at() == 1
    assert at(lastTimestamp=None, eventTime="2026-01-01T00:00:02.500000Z") == 2.5
    assert at(eventTime="2026-01-01T00:00:02Z", series={"lastObservedTime": "2026-01-01T00:00:05Z", "count": 2}) == 5
    assert job_events.unix("2026-01-01T00:00:02.500000789Z") == 1767225602.5
    assert job_events.unix(None) == 0


def test_a_journal_is_where_the_launchers_options_say() -> None:
    assert job_events.journal_of(["-np", "2", "--state-dir=/s"], "j") == "/s/journal.jsonl"
    assert job_events.journal_of(["--state-dir", "/s", "--journal", "/j/x"], "j") == "/j/x"
    assert job_events.journal_of([], "j") == ".hvd-elastic/j/journal.jsonl"
