"""Files that options and words of commands name: one that is not a regular file neither hangs nor fills the memory."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from hvd_elastic_ext.cli import main as hvd_elastic
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.cli.horovodrun import read_hostfile
from hvd_elastic_ext.launcher.job.finished_check import mark_of

JOURNALS = (
    ("events", "{}"),
    ("events", "--replay", "{}"),
    ("dashboard", "--export", "page.html", "{}"),
)
NAMED = (
    *JOURNALS,
    ("run", "--hostfile", "{}", "-np", "1", "true"),
    ("doctor", "--hosts-file", "{}"),
    ("checkpoints", "list", ".", "--store-options", "@{}"),
    ("checkpoints", "list", "{}"),
)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        *itertools.product(NAMED, ["a pipe (FIFO)", "a device"]),
        *itertools.product(JOURNALS, ["a folder"]),  # instead of its file
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_is_not_a_regular_file_is_refused_at_once_in_one_line(
    words: tuple[str, ...],
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("/dev/zero") if kind == "a device" else tmp_path / "named"
    if kind == "a pipe (FIFO)":
        os.mkfifo(path)
    elif kind == "a folder":
        (path / "journal.jsonl").mkdir(parents=True)
    assert hvd_elastic([word.format(path) for word in words]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert (said.count("\n"), f"it is {kind}, not a regular file" in said) == (1, True), said


def test_what_the_shell_opens_for_a_command_is_read() -> None:
    """``--hostfile <(command)``."""
    reading, writing = os.pipe()
    os.write(writing, b"a slots=2\nb slots=1\n")
    os.close(writing)
    try:
        assert read_hostfile(f"/dev/fd/{reading}") == HostSet.of({"a": 2, "b": 1})
    finally:
        os.close(reading)


@pytest.mark.timeout(30)
def test_a_pipe_among_the_words_of_a_program_is_left_for_the_program_to_read(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    os.write(descriptor, b"lr: 1\n")
    mark_of(["python", "train.py", str(path)])
    assert os.read(descriptor, 100) == b"lr: 1\n"
    os.close(descriptor)
