"""What a launcher leaves to the next one, also after faults of the launcher and of the disk."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.launcher.folder.state_folder import StateDir, holder, load
from hvd_elastic_ext.launcher.folder.state_json import Saved

ONE = Saved(1, 5, ports={"10.0.0.1": 7})
TWO = Saved(1, 6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "jobs" / "job"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_for_its_user_alone_and_so_is_all_that_is_in_it(folder: Path) -> None:
    with StateDir(folder) as held:
        assert held.load() is None
        held.save(ONE)
        held.save(TWO)
        held.key()
        held.next_incarnation()
    assert mode(folder) == 0o700
    files = {path.name: mode(path) for path in folder.iterdir()}
    assert files == dict.fromkeys(["lock", "state.json", "state.json.bak", "key", "incarnation"], 0o600)


@pytest.fixture
def careless_umask() -> Iterator[None]:
    """The umask of many containers: without a mode, all users may write to a new file."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("careless_umask")
def test_no_umask_opens_the_folder_or_those_above_it_to_everybody(folder: Path) -> None:
    with StateDir(folder) as held:
        assert held.save(ONE)
    assert mode(folder) == 0o700
    assert not mode(folder.parent) & stat.S_IWOTH


def test_what_was_saved_last_is_loaded(folder: Path) -> None:
    with StateDir(folder) as held:
        assert held.save(ONE)
        assert held.save(TWO)
    with StateDir(folder) as held:
        assert held.load() == TWO


def test_incarnations_only_grow_also_when_their_file_is_lost(folder: Path) -> None:
    numbers = []
    for damage in ("", "none", "garbage", "-5", ""):
        with StateDir(folder) as held:
            if damage:
                (folder / "incarnation").write_text(damage)
            numbers.append(held.next_incarnation())
            held.save(Saved(numbers[-1], 0))
    assert numbers == [1, 2, 3, 4, 5]


def test_the_key_stays_the_same_until_it_is_forgotten(folder: Path) -> None:
    with StateDir(folder) as held:
        first = held.key()
        assert len(first) == 32
    with StateDir(folder) as held:
        assert held.key() == first
        held.forget_key()
        assert held.key() != first


def test_a_key_that_is_none_is_replaced_and_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with StateDir(folder) as held:
        (folder / "key").write_text("00ff")
        made = held.key()
        assert "is not a key" in caplog.text
        assert held.key() == made


def test_a_key_behind_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "theirs"
    elsewhere.write_text("00" * 32)
    with StateDir(folder) as held:
        (folder / "key").symlink_to(elsewhere)
        assert held.key() != bytes(32)
    assert elsewhere.read_text() == "00" * 32


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, b"{", b"[]", b'{"version":9}', b"\xff", b"[" * 100_000])
def test_a_damaged_state_is_said_once_and_the_one_before_it_used(
    folder: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    with StateDir(folder) as held:
        held.save(ONE)
        held.save(TWO)
    (folder / "state.json").write_bytes(damage)
    with StateDir(folder) as held:
        assert held.load() == ONE
        assert len(caplog.records) == 1
        assert "damaged" in caplog.text
        assert "it is kept as state.json.unread; going on from" in caplog.text
        assert (folder / "state.json.unread").read_bytes() == damage
        # The damaged file must not replace the good one.
        held.save(TWO)
        assert (folder / "state.json.bak").exists()
        (folder / "state.json").write_bytes(damage)
        assert held.load() == ONE


def test_with_both_files_damaged_the_job_starts_anew_and_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StateDir(folder) as held:
        held.save(ONE)
        held.save(TWO)
        for name in ("state.json", "state.json.bak"):
            (folder / name).write_text("?")
        assert held.load() is None
        held.save(ONE)
        held.save(TWO)
        assert held.load() == TWO
    assert "starting from the beginning" in caplog.text
    assert len(caplog.records) == 1
    assert [(folder / f"{name}.unread").read_text() for name in ("state.json", "state.json.bak")] == ["?", "?"]


def test_a_state_of_a_newer_version_is_said_in_one_line_and_not_replaced(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newer = '{"version":99,"incarnation":7}\n'
    with StateDir(folder) as held:
        (folder / "state.json").write_text(newer)
        assert held.load() is None
        held.save(ONE)
    [line] = caplog.messages
    assert "state.json cannot be used (a newer hvd-elastic wrote it, in version 99; 2 is known here)" in line
    assert "it is kept as state.json.unread" in line
    assert (folder / "state.json.unread").read_text() == newer


def test_to_look_at_a_folder_renames_nothing(folder: Path) -> None:
    with StateDir(folder):
        (folder / "state.json").write_text("?")
    assert load(folder) == (None, False)
    assert (folder / "state.json").read_text() == "?"


def test_a_moment_with_only_the_backup_is_no_damage(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with StateDir(folder) as held:
        held.save(ONE)
    (folder / "state.json").rename(folder / "state.json.bak")
    assert load(folder) == (ONE, False)
    assert not caplog.records


def test_no_damaged_byte_and_no_cut_is_ever_taken_for_a_state(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    with StateDir(folder) as held:
        held.save(ONE)
        held.save(TWO)
    path = folder / "state.json"
    good = path.read_bytes()
    assert good.endswith(b"}\n")
    for at in range(len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert load(folder) == (ONE, False)
        path.write_bytes(good[:at])
        assert load(folder) == (ONE, False)
    path.write_bytes(good)
    assert load(folder) == (TWO, True)


def test_a_second_launcher_gets_one_line_that_names_the_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_folder, "LOCK_WAIT_S", 0.0)
    assert holder(folder) is None
    with StateDir(folder) as first:
        assert holder(folder) == f"pid {os.getpid()} on host {os.uname().nodename}"
        with pytest.raises(UsageError, match=rf"^\S+ is already in use by pid {os.getpid()} on host [^\n]+$") as caught:
            StateDir(folder)
        assert caught.value.exit_code == 2
        first.close()
        first.close()
        StateDir(folder).close()
    assert holder(folder) is None


def test_a_folder_that_anybody_may_write_is_refused(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(UsageError, match=r"every user may write to .*; chmod o-w"):
        StateDir(folder)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"^--state-dir \S+ cannot be made: [^\n]+$"):
        StateDir(tmp_path / "file" / "job")


def test_a_lock_behind_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="cannot be written"):
        StateDir(folder)
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_that_fails_is_said_once_and_again_when_it_works(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with StateDir(folder) as held:
        assert held.save(ONE)
        (folder / "state.json.tmp").mkdir()  # no file can be written in its place
        assert [held.save(TWO) for _ in range(3)] == [False, False, False]
        assert len(caplog.records) == 1
        assert "the job goes on" in caplog.text
        assert held.load() == ONE
        (folder / "state.json.tmp").rmdir()
        assert held.save(TWO)
        assert "can be written again" in caplog.text
        assert held.load() == TWO


def test_a_command_that_only_reads_damaged_files_claims_no_new_start(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StateDir(folder):
        (folder / "state.json").write_text("?")
        assert load(folder) == (None, False)
    assert [line.endswith("and there is no good one before it") for line in caplog.messages] == [True]
    assert (folder / "state.json").read_text() == "?"


def test_a_pipe_in_the_place_of_the_lock_is_held_by_no_launcher_and_holds_nobody_up(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.mkfifo(folder / state_folder.LOCK)
    descriptor = os.open(folder / state_folder.LOCK, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert holder(folder) is None
    os.close(descriptor)
