"""`hvd-elastic hosts` as a user meets it: with a launcher, after one was killed, and with none."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import Ask
from tests.support.processes import RunningProcess, run_process

STUB = Path(__file__).with_name("launcher_stub.py")
QUIET = "hvd-elastic hosts: no launcher runs; this is what the last one saved\n"
UNSAVED = "hvd-elastic hosts: no launcher runs; there is no saved state that can be read\n"


class User:
    """Somebody in the folder ``here``, with a job of the name ``job`` there."""

    def __init__(self, here: Path, ask: Ask) -> None:
        self.here = here
        self.folder = here / ".hvd-elastic" / "job"
        self.folder.mkdir(parents=True, mode=0o700)
        self.ask = functools.partial(ask, "hosts")

    def hosts(self, *arguments: str, code: int = 0, error: str = "") -> str:
        done = self.ask(*arguments)
        assert (done.code, done.err) == (code, error), done.out
        return done.out

    def refused(self, *arguments: str, code: int = 2) -> str:
        done = self.ask(*arguments)
        assert done.code == code, done.err
        assert done.out == ""
        assert done.err.count("\n") == 1
        return done.err

    def launcher(self) -> list[str]:
        return [sys.executable, str(STUB), str(self.folder), "a:4", "b:2"]


@pytest.fixture
def user(tmp_path: Path, ask: Ask) -> User:
    return User(tmp_path, ask)


def ready(process: RunningProcess) -> None:
    process.wait_for("^ready$")


def test_hosts_of_a_running_job_are_listed_blocked_and_cleared(
    user: User,
) -> None:
    with run_process(user.launcher()) as launcher:
        ready(launcher)
        assert user.hosts("list").splitlines() == [
            "HOST  SLOTS  STATE  STRIKES  SINCE  UNTIL  WHY",
            "a     4/4    free",
            "b     2/2    free",
        ]
        assert user.hosts("block", "b", "--for", "10m", "--reason", "bad fan") == "host b is blocked for 10m\n"
        rows = {row["name"]: row for row in json.loads(user.hosts("list", "-o", "json"))}
        assert (rows["b"]["state"], rows["b"]["usable"]) == ("blocked", [])
        assert 500 < rows["b"]["left_s"] <= 600
        assert 0 <= rows["b"]["since_s"] < 100
        launcher.kill()
        launcher.wait()
    # The socket is still there; nobody answers at it.
    assert (user.folder / "control.sock").exists()
    listed = user.hosts("list", error=QUIET)
    assert "blocked by hand: bad fan" in listed
    assert (
        user.hosts("block", "a")
        == "host a is blocked until it is cleared (no launcher runs; the next one will apply this)\n"
    )
    with run_process(user.launcher()) as launcher:
        ready(launcher)
        states = {row["name"]: row["state"] for row in json.loads(user.hosts("list", "-o", "json"))}
        assert states == {"a": "blocked", "b": "blocked"}
        assert user.hosts("clear", "a") == "a is cleared: host a\n"
        launcher.end()


def test_a_second_launcher_is_refused_in_one_line_and_a_killed_one_leaves_the_folder_free(user: User) -> None:
    with run_process(user.launcher()) as first:
        ready(first)
        with run_process(user.launcher()) as second:
            assert second.wait() != 0
            assert f"is already in use by pid {first.pid} on host" in second.output
        first.kill()
        first.wait()
        with run_process(user.launcher()) as third:
            ready(third)


def test_a_launcher_that_cannot_be_asked_from_here_keeps_its_state_to_itself(user: User) -> None:
    with run_process(user.launcher()) as launcher:
        ready(launcher)
        (user.folder / "control.sock").unlink()
        line = user.refused("block", "a", code=1)
        assert f"is in use by pid {launcher.pid} on host" in line
        assert "ask on that host" in line


def test_a_job_is_found_by_its_name_its_folder_or_because_it_is_the_newest(user: User) -> None:
    empty = "no host is blocked, and none has a strike\n"
    for where in ((), ("--job", "job"), ("--state-dir", str(user.folder))):
        assert user.hosts("list", *where, error=UNSAVED) == empty
    (user.here / ".hvd-elastic" / "other").mkdir()
    assert user.hosts("list", error=UNSAVED) == empty
    assert "which job?" in user.refused("block", "a")  # what changes something wants to be told
    assert "job, other" in user.refused("block", "a")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("list", "--job", "none"), "there is no job none in ./.hvd-elastic"),
        (("list", "--job", "../.."), "is not a job's name"),
        (("block", "a b"), "contains white space"),
        (("block", "a", "--for", "soon"), "such as --for 30s, 10m or 1h30m"),
        (("block", "a", "--reason", "two\nlines"), "write one line"),
        (("clear", "--", "-x"), "would be read as an option"),
    ],
)
def test_wrong_usage_gives_one_line_and_where_the_options_are_listed(
    user: User, arguments: tuple[str, ...], says: str
) -> None:
    done = user.ask(*arguments)
    line, _, rest = done.err.partition("\n")
    assert (done.code, done.out) == (2, "")
    assert rest in ("", "`hvd-elastic hosts block --help` lists all options\n")
    assert says in line


def test_a_damaged_state_is_reported_and_does_not_stop_the_command(user: User) -> None:
    (user.folder / "state.json").write_text("{")
    command = [sys.executable, "-m", "hvd_elastic_ext.cli", "hosts", "block", "a"]
    done = subprocess.run(command, cwd=user.here, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "damaged" in done.stderr
    assert json.loads((user.folder / "state.json").read_text())["ledger"]["records"][0]["name"] == "a"
