"""A page that cannot be made anew says so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.dashboard.jobs import Job, Jobs
from hvd_elastic_ext.dashboard.launcher_client import LauncherClient
from hvd_elastic_ext.dashboard.reading import Reading
from hvd_elastic_ext.dashboard.server import Site
from hvd_elastic_ext.dashboard.watch import LONG, Watch
from tests.support.journals import JournalMaker


async def test_a_page_that_an_error_of_ours_stops_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal.jsonl").touch()
    watch = Watch(Job("digits", tmp_path / "journal.jsonl", tmp_path))

    def broken() -> None:
        raise ValueError("no such page")

    monkeypatch.setattr(watch.reading, "read_on", broken)
    async for told in watch.stream():
        assert "this page has stopped: ValueError: no such page" in told
        break


def parts_in(events: str) -> dict[str, Any]:
    return {name: json.loads(data) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n", events)}


async def told_until(watch: Watch, name: str) -> list[str]:
    """The names of the parts that come, up to one."""
    names: list[str] = []
    async with contextlib.aclosing(watch.stream()) as stream:
        async for told in stream:
            names += parts_in(told)
            if name in names:
                return names
    raise AssertionError(names)


async def test_of_a_long_journal_the_end_is_told_before_it_is_read(tmp_path: Path) -> None:
    journal = JournalMaker().add("started", run="r", command="x" * LONG).resized("start", 4).steps(5000)
    path = journal.add("finished", code=1, reason="no such module").write(tmp_path / "journal.jsonl")
    watch = Watch(Job("digits", path, None))
    async with contextlib.aclosing(watch.stream()) as stream:
        first = parts_in(await anext(stream))
    assert list(first) == ["glance"]
    assert (first["glance"]["level"], first["glance"]["text"]) == (
        "bad",
        "By the end of its journal: failed with 1: no such module; step 5,000 in a world of 4 ranks. "
        "The rest is being read.",
    )
    assert "now" in await told_until(watch, "now")


class SlowReading(Reading):
    """Its first piece takes until another reader comes, at most 0.3 s."""

    def __init__(self, journal: Path) -> None:
        super().__init__(journal)
        self.began, self.second = threading.Event(), threading.Event()
        self.now = self.most = 0

    def read_on(self) -> Iterator[int]:
        pieces = super().read_on()
        while True:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.began.is_set():
                self.second.set()
            self.began.set()
            self.second.wait(0.3)
            piece = next(pieces, None)
            self.now -= 1
            if piece is None:
                return
            yield piece


async def test_a_page_that_is_opened_again_while_its_journal_is_read_waits_for_that_piece(tmp_path: Path) -> None:
    journal = JournalMaker().add("started", run="r", command="x" * LONG).resized("start", 4).steps(50)
    watch = Watch(Job("digits", journal.write(tmp_path / "journal.jsonl"), None))
    watch.reading = reading = SlowReading(watch.job.journal)
    async with contextlib.aclosing(watch.stream()) as stream:
        await anext(stream)
        await asyncio.to_thread(reading.began.wait)
    assert "now" in await told_until(watch, "now")
    assert reading.most == 1
    assert reading.kept.steps == 50


async def test_output_that_is_requested_while_the_journal_is_read_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalMaker().add("started", run="r", output="/out", command="x" * LONG).resized("start", 4).steps(50)
    made: list[SlowReading] = []
    monkeypatch.setattr(
        "hvd_elastic_ext.dashboard.watch.Reading", lambda path: made.append(SlowReading(path)) or made[0]
    )
    site = Site(Jobs((str(journal.write(tmp_path / "journal.jsonl")),)), None)
    request = Request({"type": "http", "query_string": b"", "headers": []})

    async def page() -> str:
        shown = ""
        async with contextlib.aclosing((await site.live(request)).body_iterator) as stream:
            while "event: now\n" not in shown:
                shown += await anext(stream)
        return shown

    shown, *answers = await asyncio.gather(page(), site.list_logs(request), site.list_logs(request))
    assert "this page has stopped" not in shown
    assert [json.loads(answer.body)["folder"] for answer in answers] == ["/out"] * 2
    assert (made[0].most, made[0].kept.steps) == (1, 50)


async def test_output_of_a_job_whose_journal_is_gone_is_refused_in_one_line(tmp_path: Path) -> None:
    path = JournalMaker().add("started", run="r", output="/out").write(tmp_path / "journal.jsonl")
    site = Site(Jobs((str(path),)), None)
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read: No such file or directory"):
        await site.list_logs(Request({"type": "http", "query_string": b"", "headers": []}))


async def test_a_short_journal_is_told_as_a_whole_at_once(tmp_path: Path) -> None:
    path = JournalMaker().add("started", run="r").resized("start", 4).steps(50).write(tmp_path / "journal.jsonl")
    assert "glance" not in await told_until(Watch(Job("digits", path, None)), "now")


class SlowLauncher(LauncherClient):
    """Its answer takes until it is allowed."""

    def __init__(self) -> None:
        super().__init__(None)
        self.allowed, self.says, self.anew = threading.Event(), "world 1", list[bool]()

    def ask(self, *, anew: bool = False) -> Mapping[str, Any] | None:
        self.anew.append(anew)
        self.allowed.wait(10)
        return {"said": self.says, "hosts": []}


async def first_verdict(watch: Watch, launcher: SlowLauncher) -> str:
    """What the page says first about now, if the launcher answers only after a while."""
    launcher.allowed.clear()
    async with contextlib.aclosing(watch.stream()) as stream:
        async for told in stream:
            if "reading" in parts_in(told):
                asyncio.get_running_loop().call_later(0.2, launcher.allowed.set)
            if (now := parts_in(told).get("now")) is not None:
                return str(now["text"])
    raise AssertionError


async def test_nothing_is_said_of_the_launcher_before_its_first_answer(tmp_path: Path) -> None:
    """Defect: a page that was opened said first that the launcher cannot be asked, and one that was opened again, what
    was true before."""
    path = JournalMaker().add("started", run="r").resized("start", 4).steps(50).write(tmp_path / "journal.jsonl")
    watch = Watch(Job("digits", path, None))
    watch.launcher = launcher = SlowLauncher()
    assert await first_verdict(watch, launcher) == "world 1."
    launcher.says = "world 2"
    assert await first_verdict(watch, launcher) == "world 2."
    assert launcher.anew[0]
