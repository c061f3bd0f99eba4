"""``hvd-elastic status`` finds the job, and prints its state in one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.cli import hosts, status
from hvd_elastic_ext.launcher.folder import state_folder
from hvd_elastic_ext.launcher.job import admin_socket
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.health.ledger import HealthLedger, Strike
from hvd_elastic_ext.launcher.state.saved import Saved


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


PROCESSES = {"localhost": [[0, 4711], [2, 4713], [None, None]], "node-17": [[1, 4711]]}


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
