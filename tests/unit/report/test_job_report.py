"""The report of a journal: rows, downtime, lost steps and series, for any content."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.journal import Record, read
from hvd_elastic_ext.report.command import job_name, to_json
from hvd_elastic_ext.report.job_report import JobReport, Row, build_report
from hvd_elastic_ext.report.picture import label_of
from hvd_elastic_ext.report.table import hosts_text, size_text, summary

from .conftest import JournalMaker, whole_job

Build = Callable[[JournalMaker], object]
AGAIN = EVENTS["started"].says({})


def resize(journal: JournalMaker, cause: str) -> Row:
    (row,) = [row for row in build_report(journal.records).resizes if row.cause == cause]
    return row


def test_each_resize_has_its_sizes_hosts_downtime_and_lost_steps(job: JournalMaker) -> None:
    report = build_report(job.records)
    assert [(row.cause, row.before, row.after, row.added, row.removed) for row in report.resizes] == [
        ("start", 0, 2, ("a", "b"), ()),
        ("hosts added", 2, 3, ("c",), ()),
        ("worker failed", 3, 2, (), ("b",)),
        ("cooldown over", 2, 3, ("b",), ()),
        ("hosts removed", 3, 2, (), ("c",)),
    ]
    assert resize(job, "hosts added").downtime_s == pytest.approx(0.5 + 2.0), "the gap less one typical step"
    assert resize(job, "worker failed").steps_lost == 4, "of the rank that lost most"
    assert resize(job, "worker failed").note == "killed by signal 9; blocked for 4 s"
    assert resize(job, "hosts removed").steps_lost == 0
    assert not {"exited", "struck"} & {row.event for row in report.rows}, "the resize explains them"
    assert (report.code, report.rows[-1].event, report.rows[-1].cause) == (0, "finished", "training reported done")
    assert sum(rate.steps_per_s * rate.width for rate in report.throughput) == pytest.approx(159)


NUMPY = "crashed: exit code 1: ModuleNotFoundError: No module named 'numpy'"
SSH = "ssh: connect to host c port 22: Connection refused"


def test_a_fault_is_told_in_the_words_that_the_launcher_had(journal: JournalMaker) -> None:
    journal.resized("start", 2, hosts={"a": 1, "b": 1}).steps(2)
    journal.add("exited", after=0.01, host="b", slot=0, code=1, cause="crashed", reason=NUMPY)
    journal.add("struck", subject="slot 0 of b", host="b", cause="crashed", cooldown_s=10.0, reason=NUMPY)
    journal.resized("worker failed", 1, hosts={"a": 1}, failed={"b": 1}, removed=["b"]).steps(2)
    journal.add("struck", host="c", subject="host c", cause="unreachable", cooldown_s=20.0, reason=SSH)
    journal.add("exited", after=0.01, host="c", slot=0, code=1, cause="crashed", reason=NUMPY)
    journal.add(
        "struck", host="a", subject="host a", cause="fenced", cooldown_s=5.0, reason="nothing was heard from it"
    )
    journal.resized("worker failed", 1, hosts={"d": 1}, failed={"a": 1}, removed=["a"]).steps(2)
    rows = build_report(journal.records).rows
    first, last = [row.note for row in rows if row.cause == "worker failed"]
    assert first == f"{NUMPY}; blocked for 10 s"
    assert last == "fenced: nothing was heard from it; blocked for 5 s"
    (struck,) = [row for row in rows if row.event == "struck"]
    assert (struck.cause, struck.note) == ("unreachable", f"{SSH}; blocked for 20 s")
    (exited,) = [row for row in rows if row.event == "exited"]
    assert (exited.cause, exited.note) == ("crashed", NUMPY.removeprefix("crashed: "))


@pytest.mark.parametrize("journals_slots", [True, False], ids=["of today", "of an older launcher"])
def test_one_slot_that_goes_is_named_and_a_host_that_goes_whole_by_its_name_alone(
    journal: JournalMaker, journals_slots: bool
) -> None:
    """Defect: "worker failed  -localhost  2 → 1" when one of two slots went and localhost stayed."""
    journal.resized("start", 3, hosts={"a": 2, "b": 1}).steps(2)
    journal.add("exited", after=0.01, host="a", slot=1, rank=1, code=137, cause="crashed", reason="crashed: signal 9")
    slots = {name: {"a": [1]} for name in ("slots_removed", "slots_failed")} if journals_slots else {}
    one = {"removed": ["a"], "failed": {"a": 1}, "slots_before": {"a": 2}, **slots}
    journal.resized("worker failed", 2, hosts={"a": 1, "b": 1}, **one).steps(2)
    journal.resized("hosts removed", 1, hosts={"a": 1}, removed=["b"], failed={}).steps(2)
    back = {"added": ["a"], "slots_before": {"a": 1}, **({"slots_added": {"a": [1]}} if journals_slots else {})}
    journal.resized("cooldown over", 2, hosts={"a": 2}, failed={}, **back).steps(2)
    failed, removed, again = build_report(journal.records).resizes[1:]
    assert (failed.removed, failed.hosts, removed.removed) == (("a[1]",), ("a[1]",), ("b",))
    assert again.added == (("a[1]",) if journals_slots else ("a",))
    assert [hosts_text(row) for row in (failed, removed)] == ["-a[1]", "-b"]
    assert [label_of(row) for row in (failed, removed)] == ["a[1] failed", "−b"]
    rows = json.loads(to_json(build_report(journal.records)))["rows"]
    assert [row["removed"] for row in rows if row["cause"] == "worker failed"] == [["a[1]"]]


def test_an_end_and_a_strike_of_one_slot_name_that_slot(journal: JournalMaker) -> None:
    journal.resized("start", 2, hosts={"a": 2}).steps(2)
    journal.add("exited", after=0.01, host="c", slot=1, code=1, cause="crashed", reason=NUMPY)
    journal.add("struck", subject="slot 1 of c", host="c", cause="crashed", cooldown_s=10.0, reason=NUMPY)
    journal.add("struck", subject="slot 1 of c", host="c", cause="crashed", reason=NUMPY, host_blocked="2 slots failed")
    journal.add("struck", subject="node n", host="c", cause="memory", reason="out of memory")
    rows = [row for row in build_report(journal.records).rows if row.event in ("exited", "struck")]
    assert [row.hosts for row in rows] == [("c[1]",), ("c[1]",), ("c",), ("c",)]


def test_a_picture_is_titled_with_the_name_of_the_job(journal: JournalMaker) -> None:
    """Defect: "Elastic training: journal.jsonl", of every job."""
    named = build_report(journal.add("started", job="digits").records)
    assert job_name(named, Path("x/.hvd-elastic/other/journal.jsonl")) == "digits"
    unnamed = build_report(JournalMaker().add("started").records)
    assert job_name(unnamed, Path("x/.hvd-elastic/digits/journal.jsonl")) == "digits"
    assert job_name(unnamed, Path("old.jsonl")) == "old.jsonl"


@pytest.mark.parametrize(
    ("reason", "code"),
    [("left with exit code 0 before training was done", 0), ("left on a SIGTERM that this launcher did not send", 143)],
)
def test_a_process_that_left_by_itself_is_told_where_its_world_was_lost(
    journal: JournalMaker, reason: str, code: int
) -> None:
    journal.resized("start", 2, hosts={"a": 1, "b": 1}).steps(2)
    journal.add("exited", after=0.01, host="b", slot=0, code=code, cause="left", reason=reason)
    journal.resized("worker failed", 1, hosts={"a": 1}, failed={"b": 1}, removed=["b"]).steps(2)
    assert resize(journal, "worker failed").note == reason


def test_the_cause_of_a_lost_world_is_told_and_not_its_victims(journal: JournalMaker) -> None:
    journal.resized("start", 2, hosts={"a": 2}).steps(2)
    journal.add("exited", after=0.01, host="a", slot=0, code=1, cause="peer lost", reason="peer lost: exit code 1")
    journal.add("exited", after=0.01, host="a", slot=1, code=3, cause="crashed", reason="crashed: exit code 3")
    behind = "behind: a[2] is still in call 2, others are in call 3"
    journal.add("exited", after=0.01, host="a", slot=2, code=137, cause="behind", reason=behind)
    waived = "no world can form without it, and no step is lost by another start"
    why = "crashed: exit code 3"
    journal.add("struck", subject="slot 1 of a", host="a", cause="crashed", reason=why, waived=waived)
    journal.resized("all were lost", 2, hosts={"a": 2}, failed={"a": 2}).steps(2)
    why += "; used again at once, as no world can form without it"
    assert resize(journal, "all were lost").note == why


def test_a_host_that_is_used_again_at_once_is_not_said_to_be_left_out(journal: JournalMaker) -> None:
    journal.resized("start", 2, hosts={"a": 2}).steps(2)
    for slot, more in ((0, {"cooldown_s": 10.0}), (1, {"cooldown_s": None, "waived": "all hosts are blocked"})):
        journal.add("exited", after=0.01, host="a", slot=slot, code=1, cause="crashed", reason=NUMPY)
        journal.add("struck", subject=f"slot {slot} of a", host="a", cause="crashed", reason=NUMPY, **more)
    journal.resized("all were lost", 2, hosts={"a": 2}, failed={"a": 2}).steps(2)
    assert resize(journal, "all were lost").note == f"{NUMPY}; used again at once, as no other host may work"


def test_what_a_start_did_not_wait_for_and_that_ranks_train_alone_is_told(journal: JournalMaker) -> None:
    journal.resized("start", 2, hosts={"a": 2}, without=["b (blocked for 9 s more: unreachable)"]).steps(2)
    journal.add("trains_alone", host="a", size=2, rank=0, reason="nothing was averaged over the 2 ranks for 30 s")
    rows = build_report(journal.records).rows
    assert rows[0].note.startswith("without b (blocked for 9 s more: unreachable); first step ")
    assert (rows[1].event, rows[1].cause) == ("trains alone", "nothing was averaged over the 2 ranks for 30 s")


def test_a_call_whose_result_was_not_kept_has_a_row_and_others_have_none(journal: JournalMaker) -> None:
    journal.resized("start", 2).steps(2).add("call_ended", call=1, step=2, bytes=9, kept=True)
    journal.add("call_ended", call=2, step=4, bytes=0, kept=False, reason="too large")
    journal.add("call_ended", call=0, step=4, bytes=0, kept=False, reason="too large")
    [_, row, before] = build_report(journal.records).rows
    assert (row.event, row.cause) == ("call ended", "call 2: its result was not kept: too large")
    assert before.cause == "what collectives returned before the first call was not kept: too large"


def lost_all(journal: JournalMaker) -> None:
    journal.resized("start", 1).steps(9).add("sent", source="b", host="c", step=3, reason="only b[0] held it")
    journal.resized("all were lost", 1, steps_lost=6, lost_because="a did not come back in time").steps(2)


def told_by_the_cloud(journal: JournalMaker) -> None:
    for reason in ("likely to be taken back", None):  # the end of it is a detail
        journal.add("advised", host="a", reason=reason).add(
            "notices_unavailable", host="a", source="aws", reason=reason
        )


def two_failed(journal: JournalMaker) -> None:
    journal.resized("start", 3).steps(10)
    for host, cause in (("b", "killed by signal 9"), ("c", "unreachable")):
        journal.add("exited", after=0.01, host=host, slot=0, code=1, cause=cause)
    journal.resized("worker failed", 1, after=0.1, removed=["b", "c"], failed={"b": "", "c": ""}).steps(5)


def relaunched(*, silent: bool) -> Build:
    def build(journal: JournalMaker) -> None:
        journal.resized("start", 2).steps(10).add("started", after=2.5)
        if silent:
            journal.step += 7
        else:
            journal.steps(8, every=0.001)
        journal.steps(3, every=0.3)

    return build


def stopped_and_started(journal: JournalMaker) -> None:
    """The last steps before the end were not sampled."""
    journal.resized("start", 2).steps(10).step += 2
    journal.add("finished", after=0.1, code=143, reason="stopped by SIGTERM").add("started", after=5.0)
    journal.resized("start", 2).steps(3)


def repeated(event: str, *, after: float, **fields: Any) -> Build:
    def build(journal: JournalMaker) -> None:
        for n in (10, 20, 30):
            journal.add(event, after=after, **{name: str(value).format(n) for name, value in fields.items()})

    return build


def rolled_back(journal: JournalMaker) -> None:
    journal.resized("start", 2).steps(10).back(3).back(5, rank=1, host="b", after=0.1).steps(30)
    journal.resized("hosts added", 3, after=0.2, added=["c"]).steps(5)


def slept_and_noticed(journal: JournalMaker) -> None:
    slept(journal).add("notice", after=5.0, host="c", reason="spot")


MEANWHILE = "no records for 2.5 s, 7 steps done meanwhile"


@pytest.mark.parametrize(
    ("build", "event", "rows"),
    [
        pytest.param(lost_all, "commit sent", [{"hosts": ("b", "c"), "cause": "step 3", "note": "only b[0] held it"}],
            id="a sent commit"),
        pytest.param(lambda j: j.add("training_restarted", number=1, steps_lost=40, reason="nothing is left"),
            "training restarted", [{"cause": "nothing is left", "steps_lost": 40}], id="a training that starts over"),
        pytest.param(told_by_the_cloud, "advised", [{"cause": "likely to be taken back", "hosts": ("a",)}],
            id="advice of the cloud"),
        pytest.param(told_by_the_cloud, "notices unavailable", [{"cause": "likely to be taken back", "hosts": ("a",)}],
            id="metadata that cannot be read"),
        pytest.param(two_failed, "resized", [{"cause": "start"}, {"note": "b: killed by signal 9; c: unreachable"}],
            id="two hosts that fail together"),
        pytest.param(relaunched(silent=False), "started", [{"cause": AGAIN,
            "note": MEANWHILE}], id="a new launcher, steps reported at once"),
        pytest.param(relaunched(silent=True), "started", [{"note": MEANWHILE}],
            id="a new launcher, steps never reported"),
        pytest.param(stopped_and_started, "started", [{"note": "no records for 5.0 s"}],
            id="a new launcher after the end of the one before"),
        pytest.param(lambda j: j.add("started", after=1.5).resized("start", 2).steps(3), "started",
            [{"note": "no records for 1.5 s"}], id="a new launcher before any step"),
        pytest.param(lambda j: j.add("finished", after=30, code=1, reason="only 1 of 2 slots within 30 s"), "finished",
            [{"cause": "only 1 of 2 slots within 30 s", "note": "exit code 1"}], id="a job that never started"),
        pytest.param(rolled_back, "rolled back", [{"steps_lost": 5, "hosts": ("a", "b")}],
            id="a roll-back without a resize"),
        pytest.param(lambda j: j.add("exited", host="b", slot=0, code=7, cause="crashed with exit code 7"), "exited",
            [{"hosts": ("b[0]",), "cause": "crashed with exit code 7"}], id="an exit without a resize"),
        pytest.param(repeated("refused", after=1.0, reason="hosts:1: empty name"), "refused", [{"note": "3 times"}],
            id="a list that is refused again and again"),
        pytest.param(repeated("sealed", after=1.0, step="{}", path="/store/{}"), "sealed",
            [{"cause": "step 30", "note": "/store/30 (3 in a row)"}], id="checkpoints in a row"),
        pytest.param(lambda j: j.add("sealed", step=9, call=1, path="/9"), "sealed", [{"cause": "step 9"}],
            id="a checkpoint in the first call"),
        pytest.param(lambda j: j.add("sealed", step=9, call=3, path="/9"), "sealed", [{"cause": "step 9, call 3"}],
            id="a checkpoint in a later call"),
        pytest.param(slept_and_noticed, "notice", [{"hosts": ("a", "b")}, {"hosts": ("c",)}],
            id="hosts with notice at one moment"),
    ],
)  # fmt: skip
def test_each_event_becomes_the_rows_that_a_report_shows(
    journal: JournalMaker, build: Build, event: str, rows: list[dict[str, Any]]
) -> None:
    build(journal.add("started"))
    found = [row for row in build_report(journal.records).rows if row.event == event]
    assert [{name: getattr(row, name) for name in want} for row, want in zip(found, rows, strict=True)] == rows


def silent_restart(journal: JournalMaker) -> None:
    journal.resized("start", 2).steps(40).resized("worker failed", 1, after=0.1, failed=["b"])
    journal.step = 0
    journal.steps(5)


@pytest.mark.parametrize(
    ("build", "cause", "downtime_s", "steps_lost", "note"),
    [
        pytest.param(lost_all, "all were lost", 0.0, 6, "behind the newest commit: a did not come back in time",
            id="the reported loss and its reason"),
        pytest.param(silent_restart, "worker failed", 0.1, 40, "", id="a restart that only the step numbers show"),
        pytest.param(rolled_back, "hosts added", 0.2, 0, "", id="an earlier roll-back is not its own"),
        pytest.param(lambda j: j.resized("start", 2).resized("worker failed", 1, after=5, failed=["b"]),
            "worker failed", None, None, "", id="nothing is known without lines of workers"),
        pytest.param(lambda j: j.resized("start", 2).steps(10).resized("worker failed", 1, after=1.0), "worker failed",
            None, 0, "", id="no downtime is known without a later step"),
    ],
)  # fmt: skip
def test_a_resize_has_what_is_known_of_it(
    journal: JournalMaker, build: Build, cause: str, downtime_s: float | None, steps_lost: int | None, note: str
) -> None:
    build(journal.add("started"))
    row = resize(journal, cause)
    assert row.downtime_s == (None if downtime_s is None else pytest.approx(downtime_s, abs=1e-6))
    assert (row.steps_lost, row.note) == (steps_lost, note)


def test_resizes_in_one_gap_share_its_time(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10)
    journal.resized("worker failed", 1, after=1.0, failed=["b"]).resized("hosts added", 2, after=2.0, added=["c"])
    journal.mono += 3.0
    journal.steps(10)
    downs = [row.downtime_s for row in build_report(journal.records).resizes[1:]]
    assert downs == pytest.approx([2.9, 3.1]), "6.1 s from step to step, less a step of 0.1 s"


def test_steps_of_a_training_that_starts_over_count_as_repeated(journal: JournalMaker) -> None:
    journal.resized("start", 2).add("training_restarted", number=1, steps_lost=40, reason="nothing is left")
    journal.resized("all were lost", 2, failed={"a": 2}, steps_lost=None)
    assert "40 steps done again" in summary(build_report(journal.records))


def test_a_total_does_not_count_what_is_not_known_as_nothing(journal: JournalMaker) -> None:
    """Defect: "2 resizes cost 0.00 s of standstill and 0 steps done again", where each row has "?"."""
    journal.add("started").resized("start", 2).resized("worker failed", 1, after=5.0, failed=["b"])
    one = summary(build_report(journal.records))
    assert "; 1 resize, the cost of which is not known; the job has not finished" in one
    journal.resized("hosts added", 2, after=34.0, added=["b"])
    two = summary(build_report(journal.records))
    assert "; 2 resizes, of which the cost of 2 is not known; the job has not finished" in two
    journal.resized("hosts removed", 1, after=1.0, removed=["b"], downtime_s=1.5, steps_lost=3)
    third = summary(build_report(journal.records))
    assert "; 3 resizes, of which the cost of 2 is not known, cost at least 1.50 s of standstill and at least " in third
    assert " at least 3 steps done again; " in third


def test_the_steps_of_resizes_without_a_time_are_told_where_they_are_known(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10).resized("worker failed", 1, after=1.0, steps_lost=1)
    said = summary(build_report(journal.records))
    assert "; 1 resize, the cost of which is not known, and 1 step done again; " in said


def test_the_cost_of_a_sleep_that_has_not_ended_is_not_known(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10).add("slept", after=1.0, reason="too few")
    assert "; 1 sleep, the cost of which is not known; " in summary(build_report(journal.records))
    journal.resized("start", 2, after=3.0).steps(10).add("slept", after=1.0, reason="too few")
    said = summary(build_report(journal.records))
    assert "; 2 sleeps, of which the cost of 1 is not known, cost at least 4.00 s; " in said


def test_an_empty_journal_and_one_without_an_end_have_no_exit_code(journal: JournalMaker) -> None:
    empty = build_report([])
    assert (empty.rows, empty.world, empty.duration_s, empty.code) == ((), (), 0.0, None)
    journal.add("started").resized("start", 2)
    report = build_report(journal.records)
    assert (report.throughput, report.loss, report.steps, report.code) == ((), (), None, None)


def by_wall_clock(job: JournalMaker) -> list[Record]:
    return [dataclasses.replace(r, t=r.t - (86_400 if i % 2 else 0)) for i, r in enumerate(job.records)]


def out_of_order(job: JournalMaker) -> list[Record]:
    first, *rest = job.records
    random.Random(7).shuffle(rest)
    return [first, *rest]


def torn(job: JournalMaker) -> list[Record]:
    return list(read([*job.lines[:9], "Traceback (most recent call last):", *job.lines[9:], job.lines[-1][:17]]))


def with_unknown_events(job: JournalMaker) -> list[Record]:
    return [each for r in job.records for each in (r, Record(r.t, r.mono, 0, "teleported", {"host": "b"}))]


@pytest.mark.parametrize("change", [by_wall_clock, out_of_order, torn, with_unknown_events])
def test_the_report_depends_on_known_records_and_their_monotonic_time_only(
    job: JournalMaker, change: Callable[[JournalMaker], list[Record]]
) -> None:
    def shown(report: JobReport) -> JobReport:  # a note holds the end of a cooldown, by the wall clock
        return dataclasses.replace(report, rows=tuple(dataclasses.replace(row, note="") for row in report.rows))

    assert shown(build_report(change(job))) == shown(build_report(job.records))


def test_a_second_launcher_follows_with_its_gap(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10)
    journal.add("started", after=20.0).resized("start", 1, after=1.0)
    journal.mono += 1.0
    journal.steps(10)
    report = build_report(journal.records)
    assert [row.cause for row in report.rows] == ["start", AGAIN, "start"]
    assert report.resizes[1].downtime_s == pytest.approx(22.0)
    assert [point.size for point in report.world] == [0, 2, 0, 1]


def test_a_second_launcher_that_finds_a_running_world_changes_no_size(journal: JournalMaker) -> None:
    relaunched(silent=False)(journal.add("started"))
    assert [world.size for world in build_report(journal.records).world] == [0, 2]


def test_a_second_launcher_after_a_reboot_follows_at_once(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10)
    ended = journal.mono - 100.0
    journal.mono = 3.0
    journal.add("started").resized("start", 1, after=1.0).steps(10)
    report = build_report(journal.records)
    assert report.rows[1].at == pytest.approx(ended)
    assert (report.resizes[1].at, report.resizes[1].downtime_s) == (pytest.approx(ended + 1.0), None)
    assert report.duration_s == pytest.approx(ended + 2.0)


def test_sampled_steps_count_for_those_between_them(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2)
    for step in range(0, 1000, 10):
        journal.add("stepped", after=1.0, step=step, size=2, values={"batch_size": 32})
    rates = build_report(journal.records).throughput
    assert all(rate.steps_per_s == pytest.approx(10.0, rel=0.25) for rate in rates)
    assert all(rate.samples_per_s == pytest.approx(rate.steps_per_s * 64) for rate in rates)


def test_steps_that_a_new_launcher_hears_of_late_are_of_the_time_without_one(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(20, every=1.0).add("started", after=9.5)
    journal.steps(10, every=0.001).steps(20, every=1.0)
    rates = [rate.steps_per_s for rate in build_report(journal.records).throughput]
    assert len(rates) > 5
    assert all(0.7 < rate < 1.4 for rate in rates), rates


def test_one_host_that_is_asked_for_is_one(journal: JournalMaker) -> None:
    journal.add("scaled", hosts=1, before=3).add("scale_recommended", hosts=1).add("scaled", hosts=2, before=1)
    assert [row.cause for row in build_report(journal.records).rows] == ["3 → 1 host", "1 host", "1 → 2 hosts"]


def test_after_a_roll_back_a_line_counts_as_usual(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2)
    for step in (0, 10, 40, 50, 45, 55):
        journal.add("stepped", after=1.0, step=step, size=2)
    rates = build_report(journal.records).throughput
    assert sum(rate.steps_per_s * rate.width for rate in rates) == pytest.approx(10 + 30 + 10 + 10 + 10)


def test_only_finite_losses_after_the_first_step_count(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 1)
    for step, loss in [(1, 0.0), *((7, loss) for loss in (1.0, float("nan"), float("inf"), "low", None, 0.5))]:
        journal.add("stepped", after=0.1, step=step, values={"loss": loss})
    assert [point.loss for point in build_report(journal.records).loss] == [1.0, 0.5]


def test_text_from_a_journal_cannot_drive_a_terminal(journal: JournalMaker) -> None:
    journal.add("started").add("refused", reason="\x1b[2Jgone\nsecond line " + "x" * 900)
    (row,) = build_report(journal.records).rows
    assert row.cause.isprintable()
    assert len(row.cause) <= 300


def slept(journal: JournalMaker) -> JournalMaker:
    """Two hosts train, get notice, and sleep; three wake."""
    journal.add("started").resized("start", 2).steps(10)
    for host in "ab":
        journal.add("notice", after=0.2, host=host, reason="spot")
    journal.add("sealed", step=10, path="/store/10").add(
        "slept", after=1.6, reason="too few", path="/store/10", step=10
    )
    journal.add("woke", after=5.0, reason="3 slots may work", slept_s=5.0)
    return journal.add("resumed", after=1.0, host="a", step=10, reason="/store/10").resized("start", 3, after=2.0)


def test_a_sleep_lasts_until_the_next_world_and_that_world_until_its_first_step(journal: JournalMaker) -> None:
    slept(journal).mono += 3.0
    report = build_report(journal.steps(10).add("finished", after=0.1, code=0).records)
    asleep, awake = next(row for row in report.rows if row.event == "slept"), report.resizes[-1]
    assert (asleep.before, asleep.after, asleep.steps_lost) == (2, 0, None)
    assert (awake.before, awake.after, awake.steps_lost) == (0, 3, 0)
    assert [asleep.downtime_s, awake.downtime_s] == pytest.approx([9.9, 3.1])
    assert [world.size for world in report.world] == [0, 2, 0, 3, 0]
    assert "0 resizes cost 0.00 s of standstill and 0 steps done again; 1 sleep cost 13.00 s; " in summary(report)
    assert size_text(asleep) == "2 → 0"


def test_the_newest_step_counts_wherever_the_journal_has_it(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10)
    journal.add("committed", step=11).add("sealed", step=12, path="/store/12").add("finished", code=0)
    assert " 12 steps; " in summary(build_report(journal.records))


@pytest.mark.parametrize(
    "event", ["rolled_back", "synced", "inherited", "sent", "slept", "resumed", "sealed", "committed", "stepped"]
)
def test_the_newest_step_may_be_in_any_record_with_a_step(journal: JournalMaker, event: str) -> None:
    """Defect: "1 step", where a roll-back to step 3 is the newest that is known."""
    journal.add("started").resized("start", 2).steps(1).add(event, step=3)
    assert build_report(journal.records).steps == 3


def test_a_run_that_continues_a_checkpoint_says_how_many_steps_are_its_own(journal: JournalMaker) -> None:
    journal.step = 70
    journal.add("started").add("resumed", step=70, host="a").add("resumed", step=70, host="b")
    report = build_report(journal.resized("start", 2).steps(180).records)
    assert (report.steps, report.first_step) == (250, 70)
    assert " 250 steps, 180 of them in this run; " in summary(report)
    nothing = build_report([record for record in journal.records if record.event != "stepped"])
    assert " 70 steps, 0 of them in this run; " in summary(nothing)
    assert "no steps journalled; " in summary(build_report(JournalMaker().add("started").records))


def test_a_sleep_begins_no_other_run(journal: JournalMaker) -> None:
    assert " 20 steps; " in summary(build_report(slept(journal).steps(10).records))


@pytest.mark.parametrize("event", ["finished", "job_restarted"])
def test_a_reason_is_shown_without_its_traceback(event: str, journal: JournalMaker) -> None:
    trace = "the training script fails: ValueError: bad\nTraceback (most recent call last):\n  File"
    report = build_report(journal.add("started").add(event, code=1, reason=trace).records)
    assert report.rows[-1].cause == "the training script fails: ValueError: bad"


def test_step_numbers_show_what_a_sleep_has_lost(journal: JournalMaker) -> None:
    slept(journal).step -= 4
    report = build_report(journal.steps(10).records)
    assert report.resizes[-1].steps_lost == 4
    assert "and 4 steps done again" in summary(report)


def test_the_speed_at_each_number_of_hosts_is_that_of_its_first_steps(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2, generation=1, hosts={"a": 2}).steps(21, every=1.0, generation=1)
    journal.steps(50, every=3.0, generation=1)  # a newcomer starts beside them
    journal.resized("hosts added", 3, after=9.0, generation=2, hosts={"a": 2, "b": 1})
    journal.steps(4, every=0.5, generation=2).resized("hosts added", 4, generation=3, hosts={"a": 2, "b": 1, "c": 1})
    journal.steps(3, every=0.1, generation=3)
    report = build_report(journal.add("scale_recommended", hosts=2, reason="so").records)
    assert [(speed.hosts, speed.samples_per_s) for speed in report.speeds] == [(1, None), (2, None)], "two are too few"
    assert [speed.steps_per_s for speed in report.speeds] == pytest.approx([1.0, 2.0])
    assert report.hosts_asked_for == 2


def test_a_sleep_without_an_end_has_no_downtime(journal: JournalMaker) -> None:
    journal.add("started").resized("start", 2).steps(10).add("slept", after=1.0, reason="too few")
    report = build_report(journal.records)
    assert report.rows[-1].downtime_s is None
    assert report.world[-1].size == 0


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


def times(*mono: float) -> list[Record]:
    return [Record(t=0.0, mono=at, generation=0, event="started", fields={}) for at in mono]


@slowly
@given(RECORDS)
@example(times(0.0, 1.7976931348623157e308, 9.9792015476736e291))
def test_any_journal_has_a_report_that_is_valid_json(records: list[Record]) -> None:
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
def test_a_cut_journal_has_the_start_of_the_same_report(seed: int) -> None:
    lines = whole_job(JournalMaker()).lines
    cut = random.Random(seed).randrange(1, len(lines))
    whole, part = build_report(read(lines)), build_report(read(lines[:cut]))
    assert [row.cause for row in part.resizes] == [row.cause for row in whole.resizes][: len(part.resizes)]
    assert part.world == whole.world[: len(part.world)]
