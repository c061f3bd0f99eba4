"""What is said before a job starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.cli.run import unused_checkpoints
from hvd_elastic_ext.launcher.cli.run_options import parse
from hvd_elastic_ext.launcher.state.saved import Saved


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
