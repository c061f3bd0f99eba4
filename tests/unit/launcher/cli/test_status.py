"""``hvd-elastic status`` finds the job, and says what it does in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.cli import status
from hvd_elastic_ext.launcher.job import admin_socket


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("new", "old")):
        folder = Path(".hvd-elastic") / name
        folder.mkdir(parents=True, mode=0o700)
        os.utime(folder, (1e9 - age, 1e9 - age))


@pytest.mark.parametrize(
    ("words", "job"), [([], "new"), (["old"], "old"), (["--state-dir", ".hvd-elastic/old"], "old")]
)
def test_the_launcher_of_the_job_is_asked(
    words: list[str], job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(admin_socket, "ask", lambda path, request: {"said": f"{request['do']} at {path.parent.name}"})
    assert status.main(words) == 0
    assert capsys.readouterr().out == f"{job}: status at {job}\n"


def test_a_job_without_a_launcher_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main([]) == 1
    assert capsys.readouterr().out == "new: no launcher runs; `hvd-elastic events new` shows how it ended\n"


def test_a_job_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\.hvd-elastic/none is no job's folder"):
        status.main(["none"])
