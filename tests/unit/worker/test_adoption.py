"""What agents that were killed have left goes in time, and nothing that is in use."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hvd_elastic_ext.worker.agent.adoption import OLD_S, sweep

NOW = 1_000_000_000.0


def job(base: Path, name: str, *, age_s: float) -> Path:
    """A job's folder in which nothing was done for so long: with the notice and the socket of a killed agent."""
    folder = base / name
    folder.mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "h1.sock"))
    (folder / "h1.sock.notice").touch()
    os.utime(folder, (NOW - age_s, NOW - age_s))
    return folder


def test_what_is_older_than_a_day_goes(tmp_path: Path) -> None:
    old, young = job(tmp_path, "old", age_s=OLD_S + 1), job(tmp_path, "young", age_s=OLD_S - 1)
    sweep(str(tmp_path), now=NOW)
    assert not old.exists()
    assert {each.name for each in young.iterdir()} == {"h1.sock", "h1.sock.notice"}


def test_an_agent_that_lives_keeps_its_socket_and_its_notice(tmp_path: Path) -> None:
    folder = job(tmp_path, "old", age_s=0.0)
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(folder / "h2.sock"))
        living.listen()
        (folder / "h2.sock.notice").touch()
        os.utime(folder, (NOW - 2 * OLD_S, NOW - 2 * OLD_S))
        sweep(str(tmp_path), now=NOW)
        assert {each.name for each in folder.iterdir()} == {"h2.sock", "h2.sock.notice"}


@pytest.mark.parametrize("foreign", ["file", "link"])
def test_what_is_no_folder_of_a_job_is_left_alone(tmp_path: Path, foreign: str) -> None:
    target = job(tmp_path / "elsewhere", "old", age_s=2 * OLD_S)
    base = tmp_path / "base"
    base.mkdir()
    if foreign == "file":
        (base / "notes").write_text("mine")
    else:
        (base / "notes").symlink_to(target)
    sweep(str(base), now=NOW)
    assert (base / "notes").exists()
    assert (target / "h1.sock").exists()
