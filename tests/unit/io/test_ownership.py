"""The owner of a folder: users, groups, file systems that map root to another user, containers."""

from __future__ import annotations

import grp
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.io import ownership

NOBODY = 65534

AS_ANOTHER = """
import ctypes, os, sys
from pathlib import Path
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.folder.state_folder import StateDir
from hvd_elastic_ext.launcher.folder.state_json import Saved
{become}
try:
    for number in (1, 2):
        with StateDir(Path(sys.argv[1])) as held:
            assert held.next_incarnation() == number
            assert held.save(Saved(number, 0)) and held.load() == Saved(number, 0) and held.key() == held.key()
except UsageError as error:
    sys.exit(str(error))
"""
SQUASHED = f"ctypes.CDLL(None).setfsuid({NOBODY})"
"""Files are created by another user than that of the process, as on NFS that squashes root."""
CONTAINER = "os.setgroups([]); os.setgid(10001); os.setuid(10001)"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs other users: run the tests as root")


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hvd-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def use(folder: Path, become: str) -> str:
    """Return the message of a launcher of this kind about a folder; empty if it uses the folder."""
    command = [sys.executable, "-c", AS_ANOTHER.format(become=become), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr


@needs_root
def test_a_file_system_that_takes_root_for_nobody_is_roots_own(place: Path) -> None:
    os.chown(place, NOBODY, NOBODY)
    assert use(place / ".hvd-elastic" / "job", SQUASHED) == ""
    assert {path.stat().st_uid for path in place.rglob("*")} == {NOBODY}


@needs_root
def test_nobodys_folder_is_not_roots_where_root_is_root(place: Path) -> None:
    os.chown(place, NOBODY, NOBODY)
    assert use(place / ".hvd-elastic" / "job", SQUASHED) == ""
    assert ".hvd-elastic belongs to user nobody" in use(place / ".hvd-elastic" / "job", "")
    assert not list(place.rglob(".owner.*"))


@needs_root
def test_a_container_that_is_not_root_uses_the_volume_that_its_group_may_write(place: Path) -> None:
    os.chown(place, 0, 10001)
    place.chmod(0o2775)
    assert use(place, CONTAINER) == ""
    assert use(place / "job", CONTAINER) == ""


@needs_root
def test_a_container_that_is_not_root_uses_a_folder_in_a_volume_that_everybody_may_write(place: Path) -> None:
    place.chmod(0o2777)
    assert use(place / "job", CONTAINER) == ""


@needs_root
@pytest.mark.parametrize("name", ["key", "state.json", "known_hosts", "incarnation", "lock"])
def test_a_file_of_another_users_is_refused_by_name(place: Path, name: str) -> None:
    (place / name).write_text("41" * 32)
    os.chown(place / name, NOBODY, NOBODY)
    assert f"{place / name} belongs to user nobody" in use(place, "")


@pytest.mark.parametrize(("mode", "remedy"), [(0o602, "chmod o-w"), (0o620, "chmod g-w")])
@needs_root
def test_a_file_that_others_may_write_is_refused_by_name(place: Path, mode: int, remedy: str) -> None:
    (place / "key").write_text("41" * 32)
    os.chown(place / "key", 0, 100)
    (place / "key").chmod(mode)
    assert f"{remedy} {place / 'key'}" in use(place, "")


@needs_root
def test_whoever_cannot_make_a_file_there_is_not_its_owner(place: Path) -> None:
    (place / "job").mkdir(mode=0o755)
    os.chown(place / "job", NOBODY, NOBODY)
    assert use(place / "job", CONTAINER) == (
        f"--state-dir: {place / 'job'} belongs to user nobody, whose key and hosts the job would use; name "
        f"another with --state-dir, or, if all that is in it can be trusted, chown -hR 10001 {place / 'job'}\n"
    )


@pytest.mark.parametrize(
    ("name", "number", "members", "alone"),
    [
        ("me", 900, [], True),
        ("me", 900, ["me", "root"], True),
        ("me", 900, ["other"], False),
        ("staff", 900, [], False),
        ("staff", 4242, [], True),
        ("root", 0, [], True),
        ("root", 0, ["operator"], False),
        (None, 900, [], True),
    ],
)
def test_a_group_is_ones_own_if_nobody_else_is_known_to_be_in_it(
    monkeypatch: pytest.MonkeyPatch, name: str | None, number: int, members: list[str], alone: bool
) -> None:
    def entry(group: int) -> grp.struct_group:
        assert group == number
        if name is None:
            raise KeyError(group)
        return grp.struct_group((name, "x", number, members))

    monkeypatch.setattr(ownership.grp, "getgrgid", entry)
    monkeypatch.setattr(ownership.os, "geteuid", lambda: 4242)
    monkeypatch.setattr(ownership, "name_of_user", lambda user: "me" if user == 4242 else "?")
    assert ownership._is_alone_in(number) == alone
