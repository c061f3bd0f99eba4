"""Which checkpoint is taken and which may go, as tables."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint.archive.catalog import Entry, Retention, newest, newest_first, removable, unreferenced
from hvd_elastic_ext.checkpoint.format.manifest import name_of
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.errors import UsageError


def entry(
    number: int, *, generation: int = 1, incarnation: int = 0, lineage: int = 7, step: int | None = None,
    why: str = "", sealed: bool = True, lacks: str = "", results: tuple[str, ...] | None = (),
) -> Entry:  # fmt: skip
    identity = Identity(lineage, incarnation, generation, number)
    step = number if step is None else step
    return Entry(
        name_of(identity), identity, whole=not why, why=why, sealed=sealed, step=step, lacks=lacks, results=results
    )


def names(entries: list[Entry]) -> list[str]:
    return [one.name for one in entries]


def test_the_newest_is_by_launcher_then_world_then_commit() -> None:
    ordered = [
        entry(900), entry(1, generation=2), entry(2, generation=2), entry(1, incarnation=1, generation=1),
        entry(1, incarnation=1, generation=1, lineage=8),
    ]  # fmt: skip
    mixed = random.Random(3).sample(ordered, len(ordered))
    assert names(newest_first(mixed)) == names(ordered[::-1])


def test_the_newest_whole_one_is_taken_that_is_not_to_be_skipped() -> None:
    entries = [entry(1), entry(2), entry(3, why="torn"), entry(4, why="never sealed", sealed=False)]
    assert newest(entries) == entry(2)
    assert newest(entries, skip=[entry(2).name]) == entry(1)
    assert newest(entries[2:]) is None


def test_the_newest_checkpoints_are_kept_and_the_others_removed() -> None:
    gone = removable([entry(number) for number in range(1, 6)], Retention(last=2))
    assert [named.name for named in gone] == names([entry(1), entry(2), entry(3)])


def test_one_of_every_so_many_steps_stays_and_always_the_same_one() -> None:
    entries = [entry(number, step=number * 10) for number in range(1, 12)]
    for count in range(1, 12):  # as a job prunes: after every save
        there = entries[:count]
        gone = {named.name for named in removable(there, Retention(last=1, every=40))}
        entries[:count] = [one for one in there if one.name not in gone] + [None] * len(gone)  # type: ignore[list-item]
        entries = [one for one in entries[:count] if one is not None] + entries[count:]
        if len(entries) <= count:
            break
    kept = {one.step for one in entries}
    assert {10, 40, 80} <= kept


def test_what_was_never_finished_goes_with_a_later_world_only() -> None:
    litter = entry(5, why="never sealed", sealed=False)
    assert removable([entry(4), litter, entry(6)], Retention()) == []
    gone = removable([entry(4), litter, entry(1, generation=2)], Retention())
    assert [(each.name, each.why) for each in gone] == [(litter.name, "never finished")]


def test_what_goes_is_named_with_its_step_and_why() -> None:
    """Defect: "000001-000001-000000059-…: removed: kept long enough", of a checkpoint of step 250."""
    gone = removable([entry(59, step=250), entry(60, step=251), entry(61, step=252)], Retention(last=1))
    assert gone[0].shown == f"{entry(59).name} (step 250)"
    assert [each.why for each in gone] == ["older than the newest one"] * 2
    assert removable([entry(number) for number in range(4)], Retention())[0].why == "older than the newest 3"


def test_as_long_as_none_is_whole_nothing_goes() -> None:
    assert removable([entry(1, why="torn"), entry(2, generation=2, why="torn")], Retention(last=1)) == []


def test_the_newest_one_from_which_a_job_can_resume_stays() -> None:
    lacks = "it is of call 3, and the result of call 2 was not kept"
    found = [entry(1), entry(2), *(entry(number, lacks=lacks) for number in (3, 4, 5))]
    assert [named.name for named in removable(found, Retention(last=2))] == names([entry(1), entry(3)])


@pytest.mark.parametrize(
    ("files", "found", "gone"),
    [
        ("ab", [entry(1, results=("a",)), entry(2, results=("b",))], ""),
        ("abc", [entry(1, results=("a",)), entry(2, results=("b",))], "c"),
        ("abc", [entry(1, results=("a",)), entry(2, results=None, why="never sealed", sealed=False)], ""),
        ("abc", [entry(1, results=("a",)), entry(2, results=None, why="of format 9")], ""),
        ("abc", [entry(1, results=("a",), why="a file is missing"), entry(2, results=("b",))], "c"),
        ("abc", [entry(1, results=("a",), why="a file is missing")], ""),
        ("abc", [], ""),
    ],
    ids=["all named", "one is not", "in progress", "unreadable", "a damaged one names some", "none whole", "none"],
)
def test_a_result_goes_when_no_checkpoint_names_it_or_may_name_it(files: str, found: list[Entry], gone: str) -> None:
    assert unreferenced(files, found) == list(gone)


entries = st.builds(
    entry, st.integers(0, 30), generation=st.integers(1, 3), step=st.integers(0, 100),
    why=st.sampled_from(["", "", "torn"]), sealed=st.booleans(), lacks=st.sampled_from(["", "", "a result"]),
)  # fmt: skip
retentions = st.builds(Retention, last=st.integers(1, 4), every=st.none() | st.integers(1, 50))


@given(st.lists(entries, unique_by=lambda one: one.name), retentions)
def test_pruning_never_takes_the_newest_and_is_done_once(found: list[Entry], keep: Retention) -> None:
    gone = {named.name for named in removable(found, keep)}
    chosen = newest(found)
    assert chosen is None or chosen.name not in gone
    left = [one for one in found if one.name not in gone]
    assert newest(left) == chosen
    assert newest([one for one in left if not one.lacks]) == newest([one for one in found if not one.lacks])
    assert sum(one.whole for one in left) >= min(keep.last, sum(one.whole for one in found))
    assert removable(left, keep) == []


@pytest.mark.parametrize("wrong", [{"last": 0}, {"every": 0}])
def test_a_retention_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Retention(**wrong)
