"""A journal is read on as it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.dashboard.reading import Reading
from tests.support.journals import JournalMaker


def read_on(reading: Reading) -> None:
    for _ in reading.read_on():
        pass


def test_a_line_counts_once_it_is_whole(tmp_path: Path) -> None:
    path = JournalMaker().add("started", run="r").resized("start", 2).steps(3).write(tmp_path / "j")
    reading = Reading(path)
    read_on(reading)
    with path.open("a") as file:
        file.write('{"t":1,"mono":900,"generation":1,"ev')
        file.flush()
        read_on(reading)
        assert reading.kept.foreign == 0
        file.write('ent":"slept","reason":"no hosts"}\n')
    read_on(reading)
    assert reading.last is not None
    assert reading.last.event == "slept"
    assert reading.kept.lines == 6


def test_the_newest_run_is_read_and_another_one_by_its_number(tmp_path: Path) -> None:
    journal = JournalMaker().add("started", run="one").resized("start", 2).steps(3)
    path = journal.add("started", run="two").add("started", run="two").resized("start", 5).write(tmp_path / "j")
    newest, first = Reading(path), Reading(path, run=1)
    newest.read_all()
    first.read_all()
    assert newest.runs == first.runs == ["one", "two"]
    assert [record.get("size") for record in newest.kept.records() if record.event == "resized"] == [5]
    assert (first.kept.steps, first.kept.counts["started"]) == (3, 1)


def test_a_file_in_the_place_of_the_journal_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = JournalMaker().add("started", run="r").steps(50).write(tmp_path / "j")
    reading = Reading(path)
    read_on(reading)
    JournalMaker().add("started", run="s").write(tmp_path / "other").replace(path)
    read_on(reading)
    assert (reading.runs, reading.kept.steps) == (["s"], 0)


def test_a_journal_that_is_missing_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_on(Reading(tmp_path / "none"))
