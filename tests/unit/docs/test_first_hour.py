"""The commands of the first hour mean what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvd_elastic_ext.launcher.cli import hosts, status

PAGE = Path(__file__).parents[3] / "docs/first-hour.md"


def test_the_worker_to_kill_is_found_by_its_rank_and_no_child_of_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (words,) = re.findall(r"kill -9 \$\(env/bin/hvd-elastic status ([^)]+)\)", PAGE.read_text(encoding="utf-8"))
    monkeypatch.setattr(hosts, "folder_of", lambda options, environ: tmp_path)
    monkeypatch.setattr(
        hosts,
        "ask_launcher",
        lambda folder, request: {"said": "world 1", "processes": {"localhost": [[0, 41], [1, 42]]}},
    )
    assert status.main(words.split()) == 0
    assert capsys.readouterr().out == "42\n"
