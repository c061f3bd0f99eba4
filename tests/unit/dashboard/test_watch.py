"""A page that cannot be made anew says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.dashboard.jobs import Job
from hvd_elastic_ext.dashboard.watch import Watch


async def test_a_page_that_an_error_of_ours_stops_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal.jsonl").touch()
    watch = Watch(Job("digits", tmp_path / "journal.jsonl", tmp_path))

    def broken() -> None:
        raise ValueError("no such page")

    monkeypatch.setattr(watch.reading, "read_on", broken)
    async for told in watch.stream():
        assert "this page has stopped: ValueError: no such page" in told
        break
