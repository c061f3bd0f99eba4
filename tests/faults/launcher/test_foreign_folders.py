"""State folders that another user has made, or may change: real launchers of root, and the user nobody (uid 65534)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.folder import state_json
from hvd_elastic_ext.launcher.folder.state_json import Saved

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs another user: run the tests as root")

STATE = state_json.to_text(Saved(1, 3, hosts=(Host("evil-host.example", 1),)))

PLANT = """
import os, sys
from pathlib import Path
os.setgroups([int(sys.argv[2])] if sys.argv[2] else [])
os.setgid(65534); os.setuid(65534); os.umask(0o002)
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "state.json").write_text(sys.argv[3])
(folder / "key").write_text("41" * 32)
"""

AUDITED = """
import runpy, sys
path = sys.argv.pop(1)
def note(event, arguments):
    if event in ("socket.bind", "subprocess.Popen"):
        with open(path, "a") as file:
            print(event, arguments, file=file)
sys.addaudithook(note)
runpy.run_module("hvd_elastic_ext.cli", run_name="__main__", alter_sys=True)
"""


def plant(folder: Path, *, group: int | None = None) -> None:
    """As the user nobody, leave a key and hosts in ``folder``, which is created if possible."""
    command = [sys.executable, "-c", PLANT, str(folder), "" if group is None else str(group), STATE]
    subprocess.run(command, check=True, timeout=60)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users may write to, like /tmp: only root can enter pytest's own folder."""
    with tempfile.TemporaryDirectory(prefix="hvd-test-") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


class Ran:
    """A run of a launcher of root in ``here``, which has ended."""

    def __init__(self, here: Path, tmp_path: Path, *options: str) -> None:
        self.acts = tmp_path / "acts"
        self.acts.write_text("")
        job = ["run", "-np", "1", "-H", "localhost:1", *options, sys.executable, "-c", "print('trained')"]
        command = [sys.executable, "-c", AUDITED, self.acts, *job]
        self.done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=60, check=False)

    def refused(self) -> str:
        """Check that it printed one line and did nothing else. Return the line."""
        assert (self.done.returncode, self.done.stdout) == (2, ""), self.done.stdout + self.done.stderr
        assert self.done.stderr.count("\n") == 1 + self.done.stderr.count("starting for")
        assert self.acts.read_text() == "", "it has opened a port, or started something"
        return self.done.stderr


def job(here: Path) -> Path:
    return here / ".hvd-elastic" / "job"


def test_a_folder_planted_where_every_user_may_write_is_refused(shared: Path, tmp_path: Path) -> None:
    plant(job(shared))
    said = Ran(shared, tmp_path, "--job", "job").refused()
    assert ".hvd-elastic belongs to user nobody" in said
    assert "name another with --state-dir" in said


def test_a_folder_planted_in_a_folder_of_ones_own_is_refused(shared: Path, tmp_path: Path) -> None:
    """Root owns the folder above, but not the folder in it."""
    job(shared).parent.mkdir(mode=0o755)
    job(shared).parent.chmod(0o777)
    plant(job(shared))
    job(shared).parent.chmod(0o755)
    said = Ran(shared, tmp_path, "--job", "job").refused()
    assert f"{job(Path()).name} belongs to user" in said


def test_a_folder_that_a_group_may_write_is_refused_with_the_remedy(shared: Path, tmp_path: Path) -> None:
    job(shared).mkdir(parents=True)
    os.chown(job(shared), 0, 100)
    job(shared).chmod(0o770)
    job(shared).parent.chmod(0o755)
    plant(job(shared), group=100)
    said = Ran(shared, tmp_path, "--job", "job").refused()
    assert "may write to" in said
    assert "chmod g-w " in said
    job(shared).chmod(0o700)  # the files that another user has put there stay
    said = Ran(shared, tmp_path, "--job", "job").refused()
    assert "belongs to user" in said
    assert str(Path("job") / "state.json") in said or str(Path("job") / "key") in said


def test_a_folder_of_jobs_that_a_group_may_write_is_refused(shared: Path, tmp_path: Path) -> None:
    parent = job(shared).parent
    parent.mkdir()
    os.chown(parent, 0, 100)
    parent.chmod(0o775)
    plant(job(shared), group=100)
    assert ".hvd-elastic; chmod g-w" in Ran(shared, tmp_path, "--job", "job").refused()


def test_a_link_made_by_another_user_is_refused(shared: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    theirs = f"import os; os.setuid({NOBODY}); os.symlink({str(own)!r}, {str(shared / 'job')!r})"
    subprocess.run([sys.executable, "-c", theirs], check=True, timeout=60)
    assert "belongs to user" in Ran(shared, tmp_path, "--state-dir", str(shared / "job")).refused()
    assert list(own.iterdir()) == []


def test_a_folder_that_we_made_in_a_shared_folder_is_used_again(shared: Path, tmp_path: Path) -> None:
    for incarnation in (1, 2):
        ran = Ran(shared, tmp_path, "--job", "job")
        assert ran.done.returncode == 0, ran.done.stderr
        assert "socket.bind" in ran.acts.read_text()
        assert json.loads((job(shared) / "state.json").read_text())["incarnation"] == incarnation


@pytest.mark.parametrize(
    ("options", "file"),
    [
        (("--journal", "{theirs}/file"), "file"),
        (("--record-events", "{theirs}/file"), "file"),
        (("--output-filename", "{theirs}"), "rank.0/stdout"),
        (("--tensorboard", "{theirs}"), None),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_no_option_writes_through_links_that_another_user_has_planted(
    tmp_path: Path, shared: Path, options: tuple[str, str], file: str | None
) -> None:
    victim, theirs = tmp_path / "victim", shared / "theirs"
    victim.write_text("of root\n")
    theirs.mkdir()
    if file is not None:
        (theirs / file).parent.mkdir(exist_ok=True)
        (theirs / file).symlink_to(victim)
    subprocess.run(["chown", "-hR", str(NOBODY), theirs], check=True, timeout=60)
    name, where = options
    own = ("--state-dir", str(tmp_path / "state"))
    ran = Ran(shared, tmp_path, *own, name, where.format(theirs=theirs))
    assert ran.done.returncode == 2, ran.done.stderr
    line = ran.done.stderr.splitlines()[-1]
    assert f"{name}: {theirs} belongs to user nobody, who could lead the output elsewhere; name another with" in line
    assert victim.read_text() == "of root\n"


@pytest.mark.parametrize("by_link", [False, True], ids=["a folder", "a link to another job's"])
def test_a_replacement_of_ones_own_folder_is_refused_where_others_may_move_it(
    shared: Path, tmp_path: Path, by_link: bool
) -> None:
    shared.chmod(0o777)  # not sticky, like an emptyDir, or a project's folder that a group shares
    assert Ran(shared, tmp_path, "--job", "job").done.returncode == 0
    move = "import os, sys; os.setuid(65534); os.rename(*sys.argv[1:3]); sys.argv[3:] and os.symlink(*sys.argv[3:])"
    away = [str(job(shared).parent), str(shared / "away")]
    link = [str(shared / "away"), str(job(shared).parent)] if by_link else []
    subprocess.run([sys.executable, "-c", move, *away, *link], check=True, timeout=60)
    if not by_link:
        plant(job(shared))
    (tmp_path / "acts").unlink()
    said = Ran(shared, tmp_path, "--job", "job").refused()
    assert ".hvd-elastic belongs to user nobody" in said
