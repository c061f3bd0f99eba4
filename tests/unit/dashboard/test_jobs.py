"""Which jobs a page shows."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.dashboard import command, jobs
from hvd_elastic_ext.dashboard.files import FOLDER
from hvd_elastic_ext.dashboard.jobs import Jobs, job_of, summary
from hvd_elastic_ext.dashboard.reading import Reading
from hvd_elastic_ext.launcher.folder.state_folder import StateDir
from tests.support.journals import JournalMaker


def make(folders: Path, name: str, journal: JournalMaker, *, at: float) -> Path:
    (folders / name).mkdir(parents=True)
    path = journal.write(folders / name / "journal.jsonl")
    os.utime(path, (at, at))
    return path


def test_all_jobs_of_a_folder_are_there_the_newest_first(tmp_path: Path) -> None:
    for at, name in enumerate(("old", "new")):
        make(tmp_path, name, JournalMaker().add("started", run="r"), at=1000.0 + at)
    found = Jobs((), tmp_path)
    assert [job.name for job in found.all()] == ["new", "old"]
    assert found.get("").name == "new"
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


def begun() -> JournalMaker:
    return JournalMaker().add("started", run="r").resized("start", 2).steps(7)


STATES = [
    (begun(), True, "trains", "trains"),
    (JournalMaker().add("finished", code=1, reason="no").add("started", run="r"), True, "starts", "starts"),
    (begun().add("slept", reason="too few hosts"), True, "sleeps", "sleeps: too few hosts"),
    (begun().add("slept", reason="few").add("woke", slept_s=3, reason="enough"), True, "starts", "starts"),
    (begun().add("finished", code=75, reason="too few hosts"), False, "sleeps", "sleeps: too few hosts"),
    (begun().add("finished", code=0, reason="training is done"), False, "done", "done"),
    (begun().add("finished", code=130, reason="stopped by SIGINT"), False, "stopped", "stopped by SIGINT"),
    (begun().add("finished", code=1, reason="no such module"), False, "failed", "failed with 1: no such module"),
    (begun().add("finished", code="x", reason="torn"), False, "failed", "failed: torn"),
    (begun(), False, "lost", "no launcher, and no end"),
    (JournalMaker(), False, "lost", "no launcher, and no end"),
]


@pytest.mark.parametrize(("journal", "held", "state", "told"), STATES)
def test_a_line_tells_how_a_job_is(tmp_path: Path, journal: JournalMaker, held: bool, state: str, told: str) -> None:
    path = make(tmp_path, "job", journal, at=5.0)
    with contextlib.ExitStack() as stack:
        launcher = StateDir(tmp_path / "job")
        stack.enter_context(launcher)
        if not held:
            launcher.close()
        found = summary(job_of(path))
    assert (found["state"], found["told"], found["runs"]) == (state, told, held)


def test_each_state_has_a_mark_of_its_own_on_the_page() -> None:
    script = (FOLDER / "page.js").read_text()
    [table] = re.findall(r"const STATES = \{(.*)\};", script)
    marks = dict(re.findall(r'(\w+): \["\w+", "(.)"\]', table))
    assert list(marks) == list(jobs.STATES)
    assert len(set(marks.values())) == len(marks)


def test_a_job_elsewhere_trains_while_its_journal_grows(tmp_path: Path) -> None:
    path = begun().write(tmp_path / "other.jsonl")
    assert summary(job_of(path))["state"] == "trains"
    os.utime(path, (5.0, 5.0))
    assert summary(job_of(path))["state"] == "lost"


def test_missing_libraries_give_the_remedy_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs starlette, uvicorn, bokeh; pip install starlette uvicorn bokeh"):
        command.check_libraries()


def test_a_pipe_in_the_place_of_another_jobs_journal_holds_up_no_job(tmp_path: Path) -> None:
    make(tmp_path, "good", JournalMaker().add("started", run="r").resized("start", 2), at=1.0)
    (tmp_path / "evil").mkdir()
    os.mkfifo(tmp_path / "evil" / "journal.jsonl")
    found = Jobs((), tmp_path)
    assert [job.name for job in found.all()] == ["good"]
    assert summary(found.get(""))["size"] == 2
    named = Jobs((str(tmp_path / "evil"),), tmp_path).get("")
    assert summary(named)["step"] is None
    with pytest.raises(OSError, match="it is a pipe"):
        Reading(named.journal).read_all()
