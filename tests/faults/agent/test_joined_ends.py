"""The end of an agent that has joined a job, and of its processes: notice, request and kill in the right order."""

from __future__ import annotations

from tests.faults.agent.launching import WAIT, Begin, Launcher, Session, linked, python, start_order
from tests.support.processes import RunningProcess


def test_a_signal_is_a_notice_first_and_the_end_only_after_the_grace(launcher: Launcher, begin: Begin) -> None:
    agent = begin(launcher)
    session = launcher.session()
    assert "notice" not in session.hello
    session.order(python(0, WAIT, grace_s=3.0))
    session.wait_for("output", 0)
    agent.terminate()
    assert session.wait_for("notice") == {"event": "notice", "reason": "SIGTERM", "grace_s": 3.0}
    session.order(start_order(1, "true"))
    assert session.wait_for("refused", 1)["reason"].startswith("nothing more is started")
    assert agent.wait() == 143
    assert session.wait_for("ended", 0)["reason"] == "the time after the notice is over"


def test_after_a_notice_the_launcher_may_end_the_agent_itself(launcher: Launcher, begin: Begin) -> None:
    agent = begin(launcher)
    session = launcher.session()
    session.order(linked(0, "hear()", grace_s=1000))
    session.wait_for("started", 0)
    agent.terminate()
    session.wait_for("notice")
    session.order({"do": "tell", "to": {"0": 1}, "message": {"tell": "update", "leave": True}})
    assert agent.wait() == 0
    assert session.wait_for("exited", 0)["code"] == 0


def test_an_agent_without_processes_gives_notice_too(launcher: Launcher, begin: Begin) -> None:
    agent = begin(launcher)
    session = launcher.session()
    session.wait_for("beats")  # it has read its welcome
    agent.terminate()
    assert session.wait_for("notice") == {"event": "notice", "reason": "SIGTERM", "grace_s": 0.0}
    assert agent.wait() == 0


def test_a_notice_is_repeated_on_the_next_connection(launcher: Launcher, begin: Begin) -> None:
    agent = begin(launcher)
    session = launcher.session()
    session.order(python(0, WAIT, grace_s=1000))
    session.wait_for("output", 0)
    agent.terminate()
    session.wait_for("notice")
    session.hang_up()
    again = launcher.session(2)
    assert again.hello["notice"]["reason"] == "SIGTERM"
    assert 0 < again.hello["notice"]["grace_s"] < 1000
    again.order({"do": "kill", "slot": 0})
    assert agent.wait() == 137


def being_cleared_away(launcher: Launcher, begin: Begin, *, grace_s: float) -> Session:
    """The process of slot 0 has ended. A program that it started ignores signals, and is about to be killed."""
    begin(launcher)
    session = launcher.session()
    stubborn = "trap '' TERM; (trap '' TERM; exec setsid sleep 1000) & sleep 0.2; exit 9"
    session.order(start_order(0, "sh", "-c", stubborn, grace_s=grace_s))
    session.wait_for("exited", 0)
    return session


def test_a_process_may_be_ordered_while_the_remains_of_the_last_one_are_removed(
    launcher: Launcher, begin: Begin
) -> None:
    session = being_cleared_away(launcher, begin, grace_s=1)
    session.order(start_order(0, "echo", "next", life=2))
    assert session.wait_for("started", 0, count=2)["life"] == 2
    events = [news["event"] for news in session.news("exited", "ended", "started", slot=0)]
    assert events[:4] == ["started", "exited", "ended", "started"]


def test_a_process_that_is_stopped_before_its_start_never_starts(launcher: Launcher, begin: Begin) -> None:
    session = being_cleared_away(launcher, begin, grace_s=30)
    session.order(start_order(0, "echo", "never", life=5), {"do": "kill", "slot": 0})
    assert session.wait_for("ended", 0, count=2)["life"] == 5
    told = [(news["event"], news["life"]) for news in session.news("not_started", "exited", "ended", slot=0)]
    assert told == [("exited", 1), ("ended", 1), ("not_started", 5), ("ended", 5)]
    assert session.written(0) == b""


SEAL = """
import mmap, os
from hvd_elastic_ext.core import commit_record as side
descriptor = int(os.environ["HVD_ELASTIC_COMMIT_FDS"].split(",")[0])
os.ftruncate(descriptor, 2 * side.PAGE)
page = mmap.mmap(descriptor, 2 * side.PAGE)
head, fields = side.pack(1, side.Record(side.Identity(5, 1, 2, 7), 70, loose=0, data=0, layout=0, tree=0, local=0))
page[len(head) : len(head) + len(fields)] = fields
page[: len(head)] = head
"""


def holding(launcher: Launcher, begin: Begin, *, preset: str = "") -> tuple[RunningProcess, Session]:
    """An agent that got SIGTERM, and that holds a commit of a process that has ended."""
    agent = begin(launcher, preset=preset)
    session = launcher.session()
    session.order(python(0, SEAL))
    assert session.wait_for("exited", 0)["held"] == [1, 2, 7, 70]
    session.wait_for("ended", 0)
    agent.terminate()
    session.wait_for("notice")
    return agent, session


def test_an_agent_with_a_commit_stays_after_a_signal_until_the_launcher_releases_it(
    launcher: Launcher, begin: Begin
) -> None:
    agent, session = holding(launcher, begin)
    assert session.wait_for("notice") == {"event": "notice", "reason": "SIGTERM", "grace_s": 5.0}
    session.hang_up()
    again = launcher.session(2)  # it has connected again
    assert again.hello["seats"]["0"]["held"] == [1, 2, 7, 70]
    again.order({"do": "finish"})
    assert agent.wait(4.0) == 0


def test_an_agent_with_a_commit_ends_when_its_time_is_over_without_an_order(launcher: Launcher, begin: Begin) -> None:
    agent, _ = holding(launcher, begin, preset="from hvd_elastic_ext.agent import loop\nloop.GRACE_S = 0.5")
    assert agent.wait(15.0) == 0
