"""What a journal can tell, and that it never tells more."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvd_elastic_ext.core.journal import EVENTS, Record, read
from hvd_elastic_ext.report.command import to_json
from hvd_elastic_ext.report.job_report import JobReport, Row, build_report
from hvd_elastic_ext.report.table import size_text, summary

from .conftest import JournalMaker, whole_job


def resize(report: JobReport, cause: str) -> Row:
    (row,) = [row for row in report.resizes if row.cause == cause]
    return row


def test_every_resize_is_told_with_its_sizes_and_hosts(job: JournalMaker) -> None:
    told = [(row.cause, row.before, row.after, row.added, row.removed) for row in build_report(job.records).resizes]
    assert told == [
        ("start", 0, 2, ("a", "b"), ()),
        ("hosts added", 2, 3, ("c",), ()),
        ("worker failed", 3, 2, (), ("b",)),
        ("cooldown over", 2, 3, ("b",), ()),
        ("hosts removed", 3, 2, (), ("c",)),
    ]


def test_downtime_is_the_gap_in_the_steps_less_one_typical_step(job: JournalMaker) -> None:
    assert resize(build_report(job.records), "hosts added").downtime_s == pytest.approx(0.5 + 2.0)


def test_steps_lost_are_those_of_the_rank_that_lost_most(job: JournalMaker) -> None:
    assert resize(build_report(job.records), "worker failed").steps_lost == 4


def test_a_resize_without_a_roll_back_lost_nothing(job: JournalMaker) -> None:
    assert resize(build_report(job.records), "hosts removed").steps_lost == 0


def test_a_world_behind_the_newest_commit_says_what_is_lost_and_why(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 1).steps(9)
    why = "a did not come back in time (its connection was lost)"
    journal.add("sent", source="b", host="c", step=3, reason="only b[0] held it")
    journal.resized("all were lost", 1, steps_lost=6, lost_because=why).steps(2)
    report = build_report(journal.records)
    row = resize(report, "all were lost")
    assert (row.steps_lost, row.note) == (6, f"behind the newest commit: {why}")
    [sent] = [row for row in report.rows if row.event == "commit sent"]
    assert (sent.hosts, sent.cause, sent.note) == (("b", "c"), "step 3", "only b[0] held it")


def test_a_training_that_begins_anew_says_so_and_its_steps_count_as_done_again(journal: JournalMaker) -> None:
    journal.add("resized", cause="start", size=2, hosts={"a": 2})
    journal.add("begun_anew", number=1, steps_lost=40, reason="nothing is left")
    journal.add("resized", cause="all were lost", size=2, hosts={"a": 2}, failed={"a": 2}, steps_lost=None)
    told = build_report(journal.records)
    assert [row.steps_lost for row in told.rows if row.event == "begun anew"] == [40]
    assert "40 steps done again" in summary(told)


def test_exits_and_strikes_are_told_with_the_resize_they_caused(job: JournalMaker) -> None:
    report = build_report(job.records)
    assert resize(report, "worker failed").note == "killed by signal 9; left out for 4 s"
    assert [row.event for row in report.rows].count("exited") == 0
    assert [row.event for row in report.rows].count("struck") == 0


def test_what_a_host_is_told_by_its_cloud_is_told_and_its_end_is_a_detail(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 1).steps(3)
    for reason in ("likely to be taken back", None):
        journal.add("advised", host="a", reason=reason)
        journal.add("deaf", host="a", source="aws", reason=reason)
    rows = [row for row in build_report(journal.records).rows if row.event in ("advised", "deaf")]
    assert [(row.event, row.cause, row.hosts) for row in rows] == [
        (event, "likely to be taken back", ("a",)) for event in ("advised", "deaf")
    ]


def test_two_hosts_that_fail_together_are_told_apart(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 3).steps(10)
    for host, cause in (("b", "killed by signal 9"), ("c", "unreachable")):
        journal.add("exited", after=0.01, host=host, slot=0, code=1, cause=cause)
    journal.resized("worker failed", 1, after=0.1, removed=["b", "c"], failed={"b": "", "c": ""}).steps(5)
    assert resize(build_report(journal.records), "worker failed").note == "b: killed by signal 9; c: unreachable"


def test_a_job_that_ended_says_how(job: JournalMaker) -> None:
    report = build_report(job.records)
    assert report.code == 0
    assert (report.rows[-1].event, report.rows[-1].cause) == ("finished", "training reported done")


def test_a_job_whose_launcher_was_killed_has_no_exit_code(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(5)
    assert build_report(journal.records).code is None


def test_without_worker_lines_downtime_and_loss_are_unknown(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2, after=1).resized("worker failed", 1, after=5, failed=["b"])
    report = build_report(journal.records)
    assert [(row.downtime_s, row.steps_lost) for row in report.resizes] == [(None, None), (None, None)]
    assert (report.throughput, report.loss, report.steps) == ((), (), None)


def test_resizes_in_one_gap_share_its_time(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10)
    journal.resized("worker failed", 1, after=1.0, failed=["b"]).resized("hosts added", 2, after=2.0, added=["c"])
    journal.mono += 3.0
    journal.steps(10)
    downs = [row.downtime_s for row in build_report(journal.records).resizes[1:]]
    # 6.1 s from step to step, less a step of 0.1 s; the first had it for 3 s, of which 0.1 s was still a step.
    assert downs == pytest.approx([2.9, 3.1])


def test_a_resize_that_training_never_came_back_from_has_unknown_downtime(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10).resized("worker failed", 1, after=1.0)
    assert resize(build_report(journal.records), "worker failed").downtime_s is None


@pytest.mark.parametrize("kept", [True, False], ids=["told all at once", "never told"])
def test_a_launcher_that_was_started_again_says_how_long_nothing_was_heard_and_what_was_done_meanwhile(
    journal: JournalMaker, kept: bool
) -> None:
    journal.add("started").resized("start", 2).steps(10)
    journal.add("started", after=2.5)
    if kept:
        journal.steps(8, every=0.001)
    else:
        journal.step += 7
    journal.steps(3, every=0.3)
    (row,) = [row for row in build_report(journal.records).rows if row.event == "started"]
    assert row.cause == "the launcher was started again"
    assert row.note == "nothing heard for 2.5 s, 7 steps done meanwhile"
    assert [world.size for world in build_report(journal.records).world] == [0, 2]  # the world has lived on


def test_a_launcher_that_was_started_again_before_any_step_says_no_more_than_how_long(journal: JournalMaker) -> None:
    journal.add("started").add("started", after=1.5).resized("start", 2).steps(3)
    (row,) = [row for row in build_report(journal.records).rows if row.event == "started"]
    assert row.note == "nothing heard for 1.5 s"


def test_a_job_that_never_started_tells_only_its_end(journal: JournalMaker) -> None:
    journal.add("started").add("finished", after=30, code=1, reason="only 1 of 2 slots within 30 s")
    report = build_report(journal.records)
    assert [(row.event, row.cause) for row in report.rows] == [("finished", "only 1 of 2 slots within 30 s")]
    assert report.code == 1


def test_a_journal_of_nothing_is_an_empty_story() -> None:
    report = build_report([])
    assert (report.rows, report.world, report.duration_s, report.code) == ((), (), 0.0, None)


def test_a_step_of_the_wall_clock_changes_nothing(job: JournalMaker) -> None:
    stepped = [dataclasses.replace(r, t=r.t - (86_400 if i % 2 else 0)) for i, r in enumerate(job.records)]
    before, after = build_report(job.records), build_report(stepped)
    assert [dataclasses.replace(row, note="") for row in after.rows] == [
        dataclasses.replace(row, note="") for row in before.rows
    ]
    assert (after.world, after.throughput, after.loss) == (before.world, before.throughput, before.loss)


def test_lines_that_several_processes_wrote_out_of_order_are_put_in_order(job: JournalMaker) -> None:
    first, *rest = job.records
    random.Random(7).shuffle(rest)
    assert build_report([first, *rest]).rows == build_report(job.records).rows


def test_a_torn_last_line_and_foreign_lines_change_nothing(job: JournalMaker) -> None:
    torn = [*job.lines[:9], "Traceback (most recent call last):", *job.lines[9:], job.lines[-1][:17]]
    assert build_report(read(torn)) == build_report(job.records)


def test_unknown_events_change_nothing(job: JournalMaker) -> None:
    strange = [Record(r.t, r.mono, 0, "teleported", {"host": "b"}) for r in job.records]
    mixed = [record for pair in zip(job.records, strange, strict=True) for record in pair]
    assert build_report(mixed).rows == build_report(job.records).rows


def test_a_second_launcher_on_the_same_clock_follows_with_its_gap(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10)
    journal.add("started", after=20.0).resized("start", 1, after=1.0)
    journal.mono += 1.0
    journal.steps(10)
    report = build_report(journal.records)
    assert [row.cause for row in report.rows] == ["start", "the launcher was started again", "start"]
    assert report.resizes[1].downtime_s == pytest.approx(22.0)
    assert [point.size for point in report.world] == [0, 2, 0, 1]


def test_a_second_launcher_after_a_reboot_follows_at_once(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10)
    ended = journal.mono - 100.0
    journal.mono = 3.0
    journal.add("started").resized("start", 1, after=1.0).steps(10)
    report = build_report(journal.records)
    assert report.rows[1].at == pytest.approx(ended)
    assert report.resizes[1].at == pytest.approx(ended + 1.0)
    assert report.resizes[1].downtime_s is None
    assert report.duration_s == pytest.approx(ended + 2.0)


def test_a_job_that_began_again_without_saying_so_shows_in_the_step_numbers(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(40)
    journal.resized("worker failed", 1, after=0.1, failed=["b"])
    journal.step = 0
    journal.steps(5)
    assert resize(build_report(journal.records), "worker failed").steps_lost == 40


def test_a_roll_back_that_resized_nothing_is_an_event_of_its_own(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10).back(3).back(5, rank=1, host="b", after=0.1).steps(30)
    journal.resized("hosts added", 3, after=0.2, added=["c"]).steps(5)
    report = build_report(journal.records)
    (row,) = [row for row in report.rows if row.event == "rolled back"]
    assert (row.steps_lost, row.hosts) == (5, ("a", "b"))
    assert resize(report, "hosts added").steps_lost == 0


def test_an_exit_that_no_resize_explains_is_an_event_of_its_own(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10).add(
        "exited", host="b", slot=0, code=7, cause="crashed with exit code 7"
    )
    (row,) = [row for row in build_report(journal.records).rows if row.event == "exited"]
    assert (row.hosts, row.cause) == (("b",), "crashed with exit code 7")


def test_a_list_refused_over_and_over_is_one_row(journal: JournalMaker) -> None:
    journal.add("started")
    for _ in range(3):
        journal.add("refused", after=1.0, reason="hosts:1: empty name")
    (row,) = build_report(journal.records).rows
    assert row.note == "3 times"


def test_sampled_steps_count_for_what_lies_between_them(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2)
    for step in range(0, 1000, 10):
        journal.add("stepped", after=1.0, step=step, size=2, values={"batch_size": 32})
    rates = build_report(journal.records).throughput
    assert all(rate.steps_per_s == pytest.approx(10.0, rel=0.25) for rate in rates)
    assert all(rate.samples_per_s == pytest.approx(rate.steps_per_s * 64) for rate in rates)


def test_lines_that_stand_for_different_numbers_of_steps_are_weighed(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2)
    for step in (0, 10, 40, 50, 45, 55):  # the last but one after a roll-back: counted as a line usually is
        journal.add("stepped", after=1.0, step=step, size=2)
    rates = build_report(journal.records).throughput
    assert sum(rate.steps_per_s * rate.width for rate in rates) == pytest.approx(10 + 30 + 10 + 10 + 10)


def test_all_steps_after_the_first_are_in_the_throughput(job: JournalMaker) -> None:
    report = build_report(job.records)
    assert sum(rate.steps_per_s * rate.width for rate in report.throughput) == pytest.approx(159)


def test_a_loss_that_is_no_number_is_left_out(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 1)
    for loss in (1.0, float("nan"), float("inf"), "low", None, 0.5):
        journal.add("stepped", after=0.1, step=7, values={"loss": loss})
    assert [point.loss for point in build_report(journal.records).loss] == [1.0, 0.5]


def test_the_first_step_knows_no_loss_yet(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 1)
    for step, loss in ((1, 0.0), (2, 2.3)):
        journal.add("stepped", after=0.1, step=step, values={"loss": loss})
    assert [point.loss for point in build_report(journal.records).loss] == [2.3]


def test_text_from_a_journal_cannot_drive_a_terminal(journal: JournalMaker) -> None:
    journal.add("started").add("refused", reason="\x1b[2Jgone\nsecond line " + "x" * 900)
    (row,) = build_report(journal.records).rows
    assert row.cause.isprintable()
    assert len(row.cause) <= 300


# The machine may be busy with other tests: neither a slow example nor slow drawing is a fault of the report.
slowly = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

WORDS = st.sampled_from(["", "a", "b", "start", "\x1b[2J", "é", "127.0.0.1"])
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    WORDS,
    st.lists(st.one_of(WORDS, st.integers()), max_size=3),
    st.dictionaries(WORDS, st.integers(), max_size=3),
)
KEYS = ["cause", "added", "removed", "failed", "size", "hosts", "step", "steps_lost", "rank", "host", "subject"]
KEYS += ["until", "reason", "code", "values", "downtime_s", "deadline", "path", "slot"]
RECORDS = st.lists(
    st.builds(
        Record,
        t=st.floats(),
        mono=st.one_of(st.floats(), st.floats(0, 60)),
        generation=st.integers(),
        event=st.sampled_from([*EVENTS, "unknown"]),
        fields=st.dictionaries(st.sampled_from(KEYS), ODD, max_size=8),
    ),
    max_size=25,
)


@slowly
@given(RECORDS)
def test_whatever_a_journal_contains_a_story_can_be_told_and_written_as_json(records: list[Record]) -> None:
    report = build_report(records)
    json.loads(to_json(report))
    assert [row.at for row in report.rows] == sorted(row.at for row in report.rows)
    assert all(row.downtime_s is None or row.downtime_s >= 0 for row in report.resizes)


@slowly
@given(st.lists(st.tuples(st.sampled_from(["step", "resize"]), st.floats(0.01, 5.0)), max_size=60))
def test_downtimes_never_add_up_to_more_than_the_pauses(plan: list[tuple[str, float]]) -> None:
    journal = JournalMaker().add("started")
    steps = []
    for what, after in plan:
        if what == "step":
            journal.steps(1, every=after)
            steps.append(journal.mono)
        else:
            journal.resized("hosts added", 2, after=after)
    # A resize in a line that measured by itself would be believed; none does here.
    total = sum(row.downtime_s or 0.0 for row in build_report(journal.records).resizes)
    assert total <= (steps[-1] - steps[0] if steps else 0.0) + 1e-6


@slowly
@given(st.integers(0, 2**32))
def test_cutting_a_journal_anywhere_tells_a_beginning_of_the_same_story(seed: int) -> None:
    lines = whole_job(JournalMaker()).lines
    cut = random.Random(seed).randrange(1, len(lines))
    whole, part = build_report(read(lines)), build_report(read(lines[:cut]))
    assert [row.cause for row in part.resizes] == [row.cause for row in whole.resizes][: len(part.resizes)]
    assert part.world == whole.world[: len(part.world)]


def test_of_checkpoints_that_follow_one_another_the_last_is_told_and_how_many_there_were() -> None:
    lines = [
        {"event": "sealed", "step": n, "path": f"/store/{n}", "mono": float(n), "t": float(n), "generation": 1}
        for n in (10, 20, 30)
    ]
    [row] = build_report(read([json.dumps(line) for line in lines])).rows
    assert (row.cause, row.note) == ("step 30", "/store/30 (3 in a row)")


def slept(journal: JournalMaker) -> JournalMaker:
    """Two train, are told to go, sleep, and are three when they are awake."""
    journal.add("started").resized("start", 2).steps(10)
    for host in "ab":
        journal.add("notice", after=0.2, host=host, reason="spot")
    journal.add("sealed", step=10, path="/store/10").add(
        "slept", after=1.6, reason="too few", path="/store/10", step=10
    )
    journal.add("woke", after=5.0, reason="3 slots may work", slept_s=5.0)
    return journal.add("resumed", after=1.0, host="a", step=10, reason="/store/10").resized("start", 3, after=2.0)


def test_a_sleep_has_the_time_until_there_is_a_world_again_and_that_world_what_it_took_to_train(
    journal: JournalMaker,
) -> None:
    slept(journal).mono += 3.0
    report = build_report(journal.steps(10).add("finished", after=0.1, code=0).records)
    asleep, awake = next(row for row in report.rows if row.event == "slept"), report.resizes[-1]
    assert (asleep.before, asleep.after, asleep.steps_lost) == (2, 0, None)
    assert (awake.before, awake.after, awake.steps_lost) == (0, 3, 0)
    assert [asleep.downtime_s, awake.downtime_s] == pytest.approx([9.9, 3.1])
    assert [world.size for world in report.world] == [0, 2, 0, 3, 0]
    assert "0 resizes cost 0.00 s of standstill and 0 steps done again; 1 sleep cost 13.00 s; " in summary(report)
    assert size_text(asleep) == "2 → 0"


def test_steps_that_a_sleep_has_cost_are_found_out(journal: JournalMaker) -> None:
    slept(journal).step -= 4
    report = build_report(journal.steps(10).records)
    assert report.resizes[-1].steps_lost == 4
    assert "and 4 steps done again" in summary(report)


def test_a_job_that_still_sleeps_does_not_know_for_how_long(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10).add("slept", after=1.0, reason="too few")
    report = build_report(journal.records)
    assert report.rows[-1].downtime_s is None
    assert report.world[-1].size == 0


def test_hosts_that_are_told_to_go_at_one_moment_are_one_row(journal: JournalMaker) -> None:
    rows = [row.hosts for row in build_report(slept(journal).records).rows if row.event == "notice"]
    assert rows == [("a", "b")]
    journal.add("notice", after=5.0, host="c", reason="spot")
    assert [row.hosts for row in build_report(journal.records).rows if row.event == "notice"] == [("a", "b"), ("c",)]
