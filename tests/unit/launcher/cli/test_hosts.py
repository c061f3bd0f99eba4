"""The messages of `hvd-elastic hosts` about folders that are not the user's."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.cli import hosts
from hvd_elastic_ext.launcher.folder.state_folder import StateDir

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users: run the tests as root")
def test_root_is_told_whose_job_it_is_and_not_to_take_it_over(tmp_path: Path) -> None:
    folder = tmp_path / ".hvd-elastic" / "theirs"
    folder.mkdir(parents=True, mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(UsageError) as found:
        hosts.main(["list", "--state-dir", str(folder)])
    assert str(found.value) == f"{folder} belongs to user nobody; give this command as that user, with sudo -u nobody"


def test_ones_own_folder_that_others_may_write_is_refused_with_what_mends_it(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match=f"chmod o-w {folder}"):
        hosts.main(["list", "--state-dir", str(folder)])


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three jobs that have ended; ``new`` has written last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HVD_ELASTIC_STATE_DIR", raising=False)
    monkeypatch.delenv("HVD_ELASTIC_JOB", raising=False)
    root = tmp_path / ".hvd-elastic"
    for age, name in enumerate(("new", "old", "older")):
        (root / name).mkdir(parents=True, mode=0o700)
        os.utime(root / name, (1e9 - age, 1e9 - age))
    return root


@pytest.mark.parametrize("do", ["block", "clear", "list"])
def test_the_only_job_that_runs_is_meant(do: str, jobs: Path) -> None:
    with StateDir(jobs / "old"):
        os.utime(jobs / "old", (1e9 - 5, 1e9 - 5))
        assert hosts.folder_of(argparse.Namespace(do=do, job=None, state_dir=None), {}).name == "old"


@pytest.mark.parametrize(
    ("running", "there"),
    [((), "new, old, older"), (("old", "older"), "new, old (runs), older (runs)")],
    ids=["none runs", "two run"],
)
def test_a_change_where_several_jobs_could_be_meant_is_refused_with_the_choices(
    running: tuple[str, ...], there: str, jobs: Path
) -> None:
    with contextlib.ExitStack() as held:
        for name in running:
            held.enter_context(StateDir(jobs / name))
        with pytest.raises(UsageError) as found:
            hosts.main(["clear", "a"])
    assert str(found.value) == f"which job? Give --job NAME or --state-dir DIR; in ./.hvd-elastic: {there}"


def test_a_list_is_of_the_newest_of_several_jobs_that_run(jobs: Path) -> None:
    options = argparse.Namespace(do="list", job=None, state_dir=None)
    assert hosts.folder_of(options, {}).name == "new"
    with StateDir(jobs / "old"), StateDir(jobs / "older"):
        for age, name in enumerate(("old", "older")):
            os.utime(jobs / name, (1e9 - 9 - age, 1e9 - 9 - age))
        assert hosts.folder_of(options, {}).name == "old"


def test_a_folder_without_a_job_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^no job was started here: there is none in ./.hvd-elastic; name its folder"):
        hosts.main(["list"])
