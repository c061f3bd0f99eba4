"""Few records stand for a journal of any length."""

from __future__ import annotations

from hvd_elastic_ext.core.journal import read
from hvd_elastic_ext.dashboard.content.thinning import Thinned, thinned
from hvd_elastic_ext.report.job_report import JobReport, build_report
from tests.support.journals import JournalMaker


def long_job(journal: JournalMaker, *, worlds: int = 12, steps: int = 400) -> JournalMaker:
    """A job that loses a host again and again, with thousands of steps between."""
    journal.add("started", run="r").resized("start", 4, after=5, hosts={"a": 2, "b": 2}, added=["a", "b"])
    for world in range(2, worlds + 2):
        journal.steps(steps, generation=world - 1)
        cause, reason, code = ("crashed", "crashed: boom", 1) if world % 3 else ("left", "left with exit code 0", 0)
        journal.add("exited", after=0.4, host="b", slot=0, rank=2, code=code, cause=cause, reason=reason)
        for rank in range(4):
            journal.back(2 if rank else 3, rank=rank)
        journal.resized("worker failed", 4, after=2.0, failed={"b": 1}, added=[], removed=[], hosts={"a": 2, "b": 2})
    return journal.steps(steps, generation=worlds + 1).add("finished", after=1, code=0, reason="done")


def lines(journal: JournalMaker) -> list[bytes]:
    return [line.encode() for line in journal.lines]


def report_of(kept: Thinned) -> JobReport:
    return build_report(kept.records(), step_s=kept.step_s())


def test_rows_downtimes_and_lost_steps_are_those_of_the_whole_journal() -> None:
    journal = long_job(JournalMaker())
    whole, kept = build_report(read(journal.lines)), thinned_to(journal, 100)
    few = report_of(kept)
    assert len(kept.records()) < len(journal.lines) / 8
    assert [(row.event, row.cause, row.hosts, row.steps_lost, row.note) for row in few.rows] == [
        (row.event, row.cause, row.hosts, row.steps_lost, row.note) for row in whole.rows
    ]
    pairs = zip(few.resizes, whole.resizes, strict=True)
    assert all(abs((one.downtime_s or 0) - (other.downtime_s or 0)) < 0.02 for one, other in pairs)
    assert (few.world, few.steps, few.code) == (whole.world, whole.steps, whole.code)


def thinned_to(journal: JournalMaker, most: int) -> Thinned:
    kept = Thinned(most_steps=most, most_each=50)
    for line in lines(journal):
        kept.add(line)
    return kept


def test_throughput_of_a_sample_is_that_of_all_steps() -> None:
    journal = JournalMaker().add("started", run="r").resized("start", 2).steps(20_000, every=0.1)
    speeds = [rate.steps_per_s for rate in report_of(thinned_to(journal, 2_000)).throughput]
    assert all(abs(speed - 10) < 1.0 for speed in speeds[1:-1])


def test_the_newest_step_is_always_there() -> None:
    kept = thinned_to(JournalMaker().resized("start", 2).steps(5_003), 100)
    assert kept.newest_step is not None
    assert kept.newest_step.get("step") == kept.records()[-1].get("step") == 5_003


def test_what_is_kept_has_a_bound_for_thousands_of_worlds() -> None:
    journal = JournalMaker().add("started", run="r")
    for _ in range(2_000):
        journal.resized("hosts added", 4, after=1, hosts={f"h{n}": 1 for n in range(50)}).steps(5)
    kept = thinned_to(journal, 100)
    assert len(kept.records()) < 13_000
    assert sum(isinstance(record.get("hosts"), dict) for record in kept.records()) == 1


def test_a_roll_back_of_thousands_of_ranks_is_one_with_the_most_that_any_lost() -> None:
    journal = JournalMaker().resized("start", 2).steps(5)
    for rank in range(1, 4_000):
        journal.back(rank % 7, rank=rank, host=f"h{rank}")
    kept = thinned(lines(journal))
    lost = [record.get("steps_lost") for record in kept.records() if record.event == "rolled_back"]
    assert max(lost) == 6
    assert len(lost) < 10


def test_foreign_lines_are_counted_and_steps_of_another_hand_are_steps() -> None:
    kept = thinned([b"no journal", b"", b'{"event": "stepped", "step": 7, "t": 1, "mono": 1, "generation": 1}'])
    assert (kept.foreign, kept.steps) == (1, 1)
