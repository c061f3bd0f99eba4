"""Checks whether the page of a job gives a new reader the answers: which host, why, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from hvd_elastic_ext.dashboard.export import export
from hvd_elastic_ext.dashboard.jobs import job_of
from hvd_elastic_ext.dashboard.launcher_client import LauncherClient
from hvd_elastic_ext.dashboard.logs import Logs
from hvd_elastic_ext.dashboard.reading import Reading
from hvd_elastic_ext.dashboard.watch import parts_of
from tests.support.browser import CHROMIUM, browser

AROUND_S = 10.0
"""Seconds of the journal that the page shows before an event, as in its script."""


class Answer(NamedTuple):
    """The expected answer. ``host``: empty if none is to blame. ``output``: a text in a log, if one explains the
    event."""

    host: str
    cause: str
    do: str
    output: str = ""


def page(journal: Path, folder: Path | None = None) -> dict[str, Any]:
    """Return the parts that a browser gets. ``folder``: the job's, to ask its launcher."""
    job, reading = job_of(journal, folder), Reading(journal)
    reading.read_all()
    return {name: json.loads(part) for name, part in parts_of(reading, job, LauncherClient(job.folder).ask()).items()}


def read_back(journal: Path, *answers: Answer, folder: Path | None = None) -> None:
    """Check that the *Now* view leads to each answer by a click, and that its sentence has the newest one.

    Clicks: from the sentence to the event, and from there to its output.
    """
    parts = page(journal, folder)
    now = parts["now"]
    told = f"{now['text']} {now['do']}"
    assert any(all(words in told for words in each[:3]) for each in answers), (now, answers)
    reasons = [row for at in now["why"] for row in parts["timeline"]["rows"] if row["id"] == at]
    for answer in answers:
        rows = [row for row in reasons if answer.cause in row["text"] and answer.host in " ".join(row["hosts"])]
        assert rows, (answer, reasons)
        assert answer.do in rows[0]["do"], (answer, rows[0])
        assert any(rows[0]["at"] - AROUND_S <= at <= rows[0]["at"] + 2 for at, *_ in parts["records"])
        if answer.output:
            assert answer.output in _output(Path(now["output"]), rows[0]), (answer, rows[0])


def _output(folder: Path, row: dict[str, Any]) -> str:
    """Return the output that the page shows for an event: around the ends of its processes, or of all on its hosts."""
    logs = Logs(folder)
    if row["who"]:
        return "".join(logs.around(f"rank.{who}/stderr", t).text for who, t in row["who"])
    files = [each["file"] for each in logs.files() if not set(row["on"]).isdisjoint(each["hosts"])]
    return "".join(logs.read(name).text for name in files)


def read_in_browser(journal: Path, *answers: Answer, folder: Path) -> None:
    """Check the same with Debian's Chromium and real clicks, on the page in one file, which is written to
    ``folder``."""
    if CHROMIUM is None:
        print("no chromium here (Debian: chromium): the page was read without it")
        return
    file = folder / "page.html"
    export(job_of(journal), file)
    (folder / "browser").mkdir()
    with browser(folder / "browser") as tab:
        for answer in answers:
            tab.open(file.as_uri())
            tab.wait("document.getElementById('sentence').textContent")
            reason = (
                "[...document.querySelectorAll('main li')].find(e => "
                f"{json.dumps([answer.host, answer.cause])}.every(words => e.textContent.includes(words)))"
            )
            tab.wait(f"!!{reason}")
            tab.js(f"{reason}.querySelector('button').click()")  # the first click
            tab.wait(f"document.querySelector('.detail .cause').textContent.includes({json.dumps(answer.cause)})")
            assert answer.do in tab.js("document.querySelector('.detail .do').textContent")
            if answer.output:
                tab.click(".detail button.link")  # the second
                tab.wait(f"document.querySelector('main > pre').textContent.includes({json.dumps(answer.output)})")
        assert tab.problems == []
