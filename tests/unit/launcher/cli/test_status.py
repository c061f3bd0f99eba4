"""``hvd-elastic status`` finds the job, and prints its state in one line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.cli import hosts, status
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.launcher.folder.state_json import Saved
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Strike
from hvd_elastic_ext.launcher.job import admin_socket
from tests.support.journals import JournalMaker


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("new", "old")):
        folder = Path(".hvd-elastic") / name
        folder.mkdir(parents=True, mode=0o700)
        os.utime(folder, (1e9 - age, 1e9 - age))


@pytest.mark.parametrize(
    ("words", "job"),
    [([], "new"), (["old"], "old"), (["--job", "old"], "old"), (["--state-dir", ".hvd-elastic/old"], "old")],
)
def test_the_launcher_of_the_job_is_asked(
    words: list[str], job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        admin_socket, "ask", lambda path, request, timeout: {"said": f"{request['do']} at {path.parent.name}"}
    )
    assert status.main(words) == 0
    assert capsys.readouterr().out == f"{job}: status at {job}\n"


PROCESSES = {"localhost": [[0, 4711], [2, 4713], [None, None]], "node-17": [[1, 4711, 3]]}


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        admin_socket,
        "ask",
        lambda path, request, timeout: {
            "said": "world 1, size 3",
            **({"processes": PROCESSES} if request.get("processes") else {}),
        },
    )


@pytest.mark.usefixtures("answered")
def test_the_processes_of_a_host_are_one_line_with_their_ranks_and_pids(capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main(["--pids"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "new: world 1, size 3",
        "             RANK:PID",
        "  localhost  0:4711 2:4713 -:?",
        "  node-17    1:4711",
    ]


@pytest.mark.usefixtures("answered")
def test_the_pid_of_one_rank_is_printed_alone_if_it_is_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main(["--pid", "2"]) == 0
    assert capsys.readouterr().out == "4713\n"
    with pytest.raises(UsageError, match=r"^rank 1 of new is on node-17, with pid 4711 there$"):
        status.main(["--pid", "1"])
    with pytest.raises(UsageError, match="new has no rank 3 now; `hvd-elastic status --pids` shows its processes"):
        status.main(["--pid", "3"])


def test_a_job_without_a_launcher_is_told_and_never_where_a_pid_is_expected(capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main([]) == 1
    said = "new: no launcher runs; `hvd-elastic events new` shows how it ended\n"
    assert capsys.readouterr().out == said
    # In `kill $(hvd-elastic status --pid 1)`, the shell would take each number in the output for a pid.
    assert status.main(["--pid", "1"]) == 1
    assert capsys.readouterr() == ("", said)


def saved(name: str, **more: Any) -> None:
    with state_folder.StateDir(Path(".hvd-elastic") / name) as folder:
        assert folder.save(Saved(3, 7, run="20261123T121710-3f2a", **more))


def test_of_a_job_whose_launcher_was_killed_it_says_what_may_train_on_how_long_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved("old", hosts=(Host("a", 2), Host("b", 1)), finished=False)
    assert status.main(["old"]) == 1
    first, how_long, what_to_do = capsys.readouterr().out.splitlines()
    assert first == (
        "old: no launcher runs, and the last one did not end run 20261123T121710-3f2a: "
        "its processes may still train on a:2, b:1"
    )
    assert "until one of them ends or waits for a new world" in how_long
    assert "--orphan-grace (60 s by default)" in how_long
    assert "take them over: the same `hvd-elastic run` command" in what_to_do
    assert "end them: the same, then Ctrl-C" in what_to_do


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"ended": True}, "no launcher runs; `hvd-elastic events old` shows how it ended"),
        (
            {"hosts": (Host("a", 1),), "finished": True},
            "no launcher runs; run 20261123T121710-3f2a has not ended, and no host trains: "
            "the same `hvd-elastic run` command as before continues it",
        ),
    ],
)
def test_of_a_job_that_has_ended_or_sleeps_it_says_so(
    more: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved("old", **more)
    assert status.main(["old"]) == 1
    assert capsys.readouterr().out == f"old: {says}\n"


def test_a_launcher_that_does_not_answer_yet_is_not_said_to_be_gone(capsys: pytest.CaptureFixture[str]) -> None:
    saved("old", hosts=(Host("a", 2),), finished=False)
    with state_folder.StateDir(Path(".hvd-elastic") / "old"):
        assert status.main(["old"]) == 1
    assert f"old: pid {os.getpid()} on host " in (said := capsys.readouterr().out)
    assert "does not answer yet" in said


def test_a_job_that_does_not_exist_is_refused() -> None:
    saved("plain", hosts=(), finished=True)
    with pytest.raises(UsageError, match=r"there is no job plian in \./\.hvd-elastic; did you mean plain\?"):
        status.main(["plian"])


def out_of_reach() -> HealthLedger:
    strike = Strike.of(Cause.UNREACHABLE, Host("b", 1), None, at=0.0, detail="ssh: no route to host")
    assert strike is not None
    return HealthLedger().struck(0.0, strike, (10.0, 300.0))


def test_how_a_job_ended_and_which_hosts_were_blocked_is_known_afterwards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = "slots needed: 1, published: 1 (b) after 60 s, --elastic-timeout"
    saved("old", ended=True, ledger=out_of_reach(), at=1.0, outcome=failed)
    assert status.main(["old"]) == 1
    assert capsys.readouterr().out == (
        f"old: no launcher runs; the job ended: {failed}; blocked then: b (unreachable: ssh: no route to host); "
        "`hvd-elastic events old` shows how it ended\n"
    )
    assert hosts.main(["list", "old"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "HOST      SLOTS  STATE    STRIKES  SINCE    UNTIL    WHY",
        "(host b)         blocked  1        0 s ago  in 10 s  unreachable: ssh: no route to host",
    ]
    assert said.err == (
        f"hvd-elastic hosts: no launcher runs; the job ended ({failed}); hosts as they were then; "
        "a new run starts without strikes\n"
    )


PRESENT = {
    "run": "r", "journal": "/j/journal.jsonl", "output": None, "state": "trains", "generation": 1, "size": 3,
    "shares": [0.5, 0.25, 0.25], "spares": 1, "step": 250, "steps_per_s": 9.5,
    "checkpoint": {"path": "/ck/000059", "step": 240},
    "wait": {"what": "for hosts", "left_s": 3.5, "then": "the job fails"},
}  # fmt: skip


def test_the_object_for_programs_has_every_key_of_its_page_with_and_without_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[4] / "docs/job-commands.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page.partition("## `status --json`")[2], re.MULTILINE)) == set(
        status.SCHEMA
    )
    assert status.main(["--json", "old"]) == 1
    without = json.loads(capsys.readouterr().out)
    assert list(without) == list(status.SCHEMA)
    assert (without["running"], without["state"], without["hosts"], without["size"]) == (False, "unknown", [], None)

    def answered(_: Path, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        if request["do"] == "list":
            return {"hosts": [{"name": "localhost", "state": "free"}]}
        return {"said": "world 1, size 3", "processes": PROCESSES, "present": PRESENT}

    monkeypatch.setattr(admin_socket, "ask", answered)
    with state_folder.StateDir(Path(".hvd-elastic/old")):
        assert status.main(["--json", "old"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert list(seen) == list(status.SCHEMA)
    assert {key: seen[key] for key in PRESENT} == PRESENT
    assert (seen["job"], seen["running"], seen["launcher"]["pid"]) == ("old", True, os.getpid())
    assert seen["processes"][0] == {"host": "localhost", "rank": 0, "pid": 4711, "call": None}  # of an older launcher
    assert seen["processes"][-1] == {"host": "node-17", "rank": 1, "pid": 4711, "call": 3}


@pytest.mark.parametrize(
    ("code", "state"), [(0, "done"), (1, "failed"), (75, "sleeps"), (130, "stopped"), (None, "lost")]
)
def test_how_a_job_ended_is_in_the_object(code: int | None, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = JournalMaker().add("started", job="old", output="/out").steps(3000)
    if code is not None:
        made.add("finished", code=code, reason="thus")
    Path(".hvd-elastic/old/journal.jsonl").write_text("".join(f"{line}\n" for line in made.lines))
    assert status.main(["--json", "old"]) == 1
    seen = json.loads(capsys.readouterr().out)
    assert (seen["code"], seen["state"], seen["output"]) == (code, state, "/out")


def test_the_options_of_a_watch_that_show_pids_are_refused() -> None:
    with pytest.raises(UsageError, match="leave --pids and --pid out"):
        status.main(["--watch", "--pid", "0"])


class Watched:
    """A job that is looked at: each look is what ``looks`` says, and then its launcher has ended with ``code``."""

    def __init__(self, *looks: dict[str, Any] | Exception, code: int | None = 0) -> None:
        self._looks, self._code = list(looks), code
        self.journals: list[str | None] = []
        self.text = ""

    def seen(self, journal: str | None) -> dict[str, Any]:
        self.journals.append(journal)
        base = {**dict.fromkeys(status.SCHEMA), "job": "old", "hosts": [], "journal": "/j"}
        if not self._looks:
            return {**base, "running": False, "said": "no launcher runs", "code": self._code}
        look = self._looks.pop(0)
        if isinstance(look, Exception):
            raise look
        return {**base, "running": True, "launcher": {"pid": 7}, "state": "trains", **look}

    def write(self, text: str) -> None:
        self.text += text

    def watch(self, **more: Any) -> int:
        how = {"as_json": False, "terminal": False, "sleep": lambda _: None, **more}
        return status.watch(self.seen, self.write, **how)


def wait(what: str) -> dict[str, Any]:
    return {"what": what, "left_s": 3.0, "then": "the job fails"}


def test_a_watch_has_a_line_when_something_changes_and_ends_with_the_exit_code_of_the_job() -> None:
    watched = Watched(
        {"said": "step 1", "size": 2, "step": 1},
        {"said": "step 2", "size": 2, "step": 2},
        {"said": "for 9 s", "size": 2, "wait": wait("no step for 9 s")},
        {"said": "for 10 s", "size": 2, "wait": wait("no step for 10 s")},
        {"said": "one", "size": 1, "step": 3},
        code=130,
    )
    assert watched.watch() == 130
    assert watched.text.splitlines() == ["old: step 1", "old: for 9 s", "old: one", "old: no launcher runs"]
    assert watched.journals == [None, "/j", "/j", "/j", "/j", "/j"]
    lines = Watched({"said": "step 1", "size": 2}, code=None)
    assert lines.watch(as_json=True, terminal=True) == 1
    assert [json.loads(line)["running"] for line in lines.text.splitlines()] == [True, False]


def test_a_watch_outlasts_a_launcher_that_is_busy_and_one_that_no_longer_listens_as_it_ends() -> None:
    busy = Permanent("the launcher does not answer within 2 s")
    watched = Watched({"said": "one"}, busy, busy, {"said": "one"}, {"said": "does not answer yet", "launcher": None})
    assert watched.watch() == 0
    shown = ["old: one", str(busy), "old: one", "old: no launcher runs"]
    assert watched.text.splitlines() == shown


def test_on_a_terminal_the_line_is_written_again_in_place() -> None:
    watched = Watched({"said": "step 1"}, {"said": "step 2"})
    assert watched.watch(terminal=True) == 0
    redraw = status.ERASE
    assert watched.text == f"{redraw}old: step 1{redraw}old: step 2{redraw}old: no launcher runs\n"


def test_ctrl_c_ends_a_watch_without_a_word() -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    watched = Watched({"said": "step 1"})
    assert watched.watch(sleep=interrupted) == 130
    assert watched.text == "old: step 1\n"
