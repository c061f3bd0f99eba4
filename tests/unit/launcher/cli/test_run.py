"""Messages before a job starts."""

from __future__ import annotations

import errno
import io
import logging
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.journal import read
from hvd_elastic_ext.launcher.cli.listeners import Listeners
from hvd_elastic_ext.launcher.cli.run import announce, journal_on, make_checkpoint_folder, unused_checkpoints
from hvd_elastic_ext.launcher.cli.run_options import parse
from hvd_elastic_ext.launcher.folder.state_json import Saved


def said(folder: Path, *options: str, hosts: tuple[str, ...] = ()) -> str | None:
    settings = parse(["-np", "1", "--state-dir", str(folder), *options, "true"], {})
    return unused_checkpoints(settings, Saved(1, hosts=tuple(Host(name, 1) for name in hosts)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sealed = tmp_path / "checkpoints" / "step-000000000073-1"
    sealed.mkdir(parents=True)
    (sealed / "manifest.json").touch()
    return tmp_path


def test_checkpoints_that_are_not_used_are_told_with_the_option_that_uses_them(folder: Path) -> None:
    line = said(folder)
    assert line is not None
    assert line.startswith(f"training starts from the beginning: {folder}/checkpoints has checkpoints of this job")
    assert "--checkpoint-every auto" in line


def test_nothing_is_told_of_checkpoints_that_are_used_or_unfinished_or_of_a_job_that_still_runs(folder: Path) -> None:
    assert said(folder, "--checkpoint-every", "auto") is None
    assert said(folder, hosts=("a",)) is None
    for file in folder.glob("checkpoints/*/manifest.json"):
        file.unlink()
    assert said(folder) is None


def made(place: object, *hosts: str) -> None:
    make_checkpoint_folder(parse(["-np", "1", *hosts, "--checkpoint-dir", str(place), "true"], {}))


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_folder_for_checkpoints_that_can_never_be_is_refused_before_anything_starts(
    below: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / below, Path("/proc/none") / below):
        with pytest.raises(UsageError, match=f"^--checkpoint-dir {place} cannot be written: .*; name another folder"):
            made(place, *(["-H", "localhost:1"] if below else []))


def test_a_folder_for_checkpoints_is_made_here_only_if_all_hosts_are_this_machine(tmp_path: Path) -> None:
    made(tmp_path / "a" / "b")
    made(tmp_path / "a" / "b")
    made(tmp_path / "elsewhere", "-H", "localhost:1,other:1")
    made("/proc/none", "-H", "other:1")
    made("memory://none")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["a", "b"]


def test_storage_that_is_full_or_away_for_now_is_no_reason_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def full(**named: object) -> None:
        tried.append(named["dir"])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    made(tmp_path / "a", "-H", "localhost:1")
    assert tried == [str(tmp_path / "a")]


def test_what_somebody_may_have_to_act_on_is_a_warning_and_what_has_no_line_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    announce("stepped", 7, {"step": 3})
    announce("cleared", 7, {"host": "b", "reason": "by hand"})
    announce("blocked", 7, {"host": "b", "for_s": None, "reason": "by hand"})
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_what_is_journalled_is_told_in_the_line_of_its_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sink, woke = io.StringIO(), {"slept_s": 5.0, "reason": "a host came"}
    journal_on(sink, Listeners()).record("woke", generation=7, **woke)
    assert [record.event for record in read(sink.getvalue().splitlines())] == ["woke"]
    assert [record.getMessage() for record in caplog.records] == [EVENTS["woke"].line(woke)]
