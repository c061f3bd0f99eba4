"""Which jobs a page shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.dashboard import command
from hvd_elastic_ext.dashboard.jobs import Jobs, job_of, summary
from tests.support.journals import JournalMaker


def make(folders: Path, name: str, journal: JournalMaker, *, at: float) -> Path:
    (folders / name).mkdir(parents=True)
    path = journal.write(folders / name / "journal.jsonl")
    os.utime(path, (at, at))
    return path


def test_all_jobs_of_a_folder_are_there_the_newest_first(tmp_path: Path) -> None:
    for at, name in enumerate(("old", "new")):
        make(tmp_path, name, JournalMaker().add("started", run="r"), at=1000.0 + at)
    jobs = Jobs((), tmp_path)
    assert [job.name for job in jobs.all()] == ["new", "old"]
    assert jobs.get("").name == "new"
    assert [job.name for job in Jobs(("old",), tmp_path).all()] == ["old"]


def test_a_job_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no job has a journal"):
        Jobs((), tmp_path)
    make(tmp_path, "one", JournalMaker().add("started", run="r"), at=1.0)
    with pytest.raises(UsageError, match="there is no job 'two' on this page"):
        Jobs((), tmp_path).get("two")


def test_a_line_tells_how_a_job_ended(tmp_path: Path) -> None:
    journal = JournalMaker().add("started", run="r").resized("start", 2).steps(7).add("finished", code=1, reason="no")
    told = summary(job_of(make(tmp_path, "job", journal, at=5.0)))
    assert (told["code"], told["reason"], told["step"], told["size"], told["runs"]) == (1, "no", 7, 2, False)


def test_a_job_that_was_started_again_has_no_end(tmp_path: Path) -> None:
    journal = JournalMaker().add("finished", code=1, reason="no").add("started", run="r").resized("start", 2).steps(1)
    assert summary(job_of(make(tmp_path, "job", journal, at=5.0)))["code"] is None


def test_missing_libraries_give_the_remedy_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs starlette, uvicorn, bokeh; pip install starlette uvicorn bokeh"):
        command.check_libraries()
