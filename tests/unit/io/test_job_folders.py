"""``hvd-elastic events`` finds a job's journal by name, folder or file; without a word, that of the newest job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.job_folders import find_journal, last_records
from tests.support.journals import JournalMaker


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("new", "old")):
        journal = Path(".hvd-elastic") / name / "journal.jsonl"
        journal.parent.mkdir(parents=True)
        journal.touch()
        os.utime(journal, (1e9 - age, 1e9 - age))
    Path("mine.jsonl").touch()


@pytest.mark.parametrize(
    ("what", "journal"),
    [
        (None, ".hvd-elastic/new/journal.jsonl"),
        ("old", ".hvd-elastic/old/journal.jsonl"),
        (".hvd-elastic/old", ".hvd-elastic/old/journal.jsonl"),
        ("mine.jsonl", "mine.jsonl"),
        ("nowhere/journal", "nowhere/journal"),  # refused by whoever reads it
        ("nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_a_journal_is_found_by_its_path_its_folder_or_its_job(what: str | None, journal: str) -> None:
    assert find_journal(what) == Path(journal)


def test_where_no_job_was_started_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no job has a journal in"):
        find_journal(None, tmp_path)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("odl", "there is no job odl in ./.hvd-elastic, and no file or folder of that name here; did you mean old?"),
        ("nothing", "there are new, old"),
    ],
)
def test_a_job_that_does_not_exist_is_told_with_the_nearest_one(what: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_journal(what)
    assert said in str(refused.value)


def test_where_there_is_no_job_at_all_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no job was started here"):
        find_journal("old", tmp_path / "empty")


def test_the_newest_records_of_the_newest_launcher_are_found_from_the_end_of_any_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    made = JournalMaker().add("started", job="first").add("finished", code=1).add("started", job="second").steps(20_000)
    journal.write_text("".join(f"{line}\n" for line in made.lines) + '{"event": "finished", "cut o')
    assert journal.stat().st_size > 2 << 20
    found = last_records(journal, "finished", "started")
    assert {name: record.get("job") for name, record in found.items()} == {"started": "second"}
    made.add("finished", code=0, reason="started over")
    journal.write_text("".join(f"{line}\n" for line in made.lines))
    assert last_records(journal, "finished")["finished"].get("code") == 0


def test_a_journal_that_is_not_a_file_has_no_records_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.jsonl")
    for path in (tmp_path / "journal.jsonl", tmp_path, tmp_path / "nowhere"):
        assert last_records(path, "finished") == {}
