"""The lines of docs/submit.md, as they stand there but for what is left to the reader."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.jobs.cluster import making
from tests.support.jobs import SCRIPT

PAGE = (Path(__file__).parents[3] / "docs" / "submit.md").read_text()
BLOCKS = re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE)
LINES = [
    line for block in BLOCKS for line in re.sub(r"\\\n\s+", "", block).splitlines() if "hvd-elastic submit" in line
]


def test_every_submit_of_the_page_is_tried() -> None:
    assert len(LINES) >= 5


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_page_makes_a_job(
    line: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(making, "commit_of", lambda wanted: wanted._replace(revision="0" * 40))
    filled = line.replace("…", "example.org/train:1").replace("REGISTRY", "example.org").replace("HOST/", "h.example/")
    words = shlex.split(filled.replace("\\$", "$").strip().removeprefix("hvd-elastic "))
    at = words.index("--") if "--" in words else len(words) - 1
    words[at:at] = ["--dry-run=server", "--kubeconfig", str(config)]
    assert cli.main(words) == 0, capfd.readouterr().err
    assert "created (server dry run)" in capfd.readouterr().out


def test_the_script_of_the_page_is_that_of_the_image() -> None:
    assert SCRIPT in PAGE
