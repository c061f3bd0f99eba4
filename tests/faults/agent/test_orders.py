"""An agent does what it is told, says what it does not do, and is not put out by either."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.faults.agent.conftest import Agent
from tests.faults.agent.launching import AGENT
from tests.support.waiting import wait_until

WAIT = "import time\nprint('up', flush=True)\nwhile True: time.sleep(1)"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("nonsense", "is not JSON at character 0"),
        ("x" * (9 << 20), "is longer than 8388608 bytes"),
        (
            {"do": "start", "slot": 0, "argv": ["true"]},
            "the slot is taken: stop its process and wait until it has ended",
        ),
        ({"do": "start", "slot": 1, "argv": "true"}, "'argv' must be a list of strings that names a program"),
        ({"do": "stop", "slot": 5}, "nothing was ever started in the slot"),
        ({"do": "signal", "slot": 5, "signal": 15}, "nothing was ever started in the slot"),
        ({"do": "signal", "slot": 0, "signal": 1000}, "'signal' must be a signal's name, as SIGUSR1, or number"),
    ],
)
def test_a_bad_order_is_refused_and_changes_nothing(agent: Agent, order: dict[str, object] | str, reason: str) -> None:
    agent.python(0, WAIT)
    agent.wait_for_text(0, b"up")
    agent.order(order)
    assert agent.wait_for("refused")["reason"] == reason
    wait_until(lambda: reason in agent.process.stderr, what="the same for people")
    assert "Traceback" not in agent.process.output
    agent.python(2, "print('still here')")
    agent.wait_for_text(2, b"still here")
    assert agent.news("exited", "ended", slot=0) == []


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"argv": ["/nowhere/python"]}, "[Errno 2] No such file or directory: '/nowhere/python'"),
        ({"argv": ["/etc/passwd"]}, "[Errno 13] Permission denied: '/etc/passwd'"),
        ({"argv": ["true"], "cwd": "/nowhere"}, "[Errno 2] No such file or directory: '/nowhere'"),
    ],
)
def test_a_process_that_cannot_be_started_is_named_and_not_tried_again(
    agent: Agent, order: dict[str, object], reason: str
) -> None:
    agent.python(1, WAIT)
    agent.order({"do": "start", "slot": 0, "restart": {"codes": [125]}, **order})
    assert agent.wait_for("not_started", 0)["reason"] == reason
    assert agent.wait_for("ended", 0)["code"] == 125
    assert agent.news("exited", "ended", slot=1) == []
    wait_until(lambda: reason in agent.process.stderr, what="the same for people")
    assert "Traceback" not in agent.process.output


def test_settings_reach_the_process_and_no_command_line(agent: Agent) -> None:
    code = "import os, sys; print(os.environ['TOKEN'], os.getcwd(), sys.argv[1:], sys.stdin.read() == '')"
    agent.python(0, code, "a b", "", env={"TOKEN": "hunter2"}, cwd="/")
    agent.wait_for("ended", 0)
    assert agent.written(0) == b"hunter2 / ['a b', ''] True\n"
    assert "hunter2" not in Path(f"/proc/{agent.process.pid}/cmdline").read_text()


def test_signals_reach_the_training_process_of_their_slot_alone(agent: Agent) -> None:
    code = "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('heard', flush=True))\n" + WAIT
    for slot in range(2):
        agent.python(slot, code)
        agent.wait_for_text(slot, b"up")
    agent.order({"do": "signal", "slot": 1, "signal": "SIGUSR1"})
    agent.wait_for_text(1, b"heard")
    assert agent.written(0) == b"up\n"


def test_a_process_can_be_stopped_continued_and_ended_while_it_stands_still(agent: Agent) -> None:
    agent.python(0, "import atexit\natexit.register(print, 'bye', flush=True)\n"
                    "import signal\nsignal.signal(15, lambda *_: exit())\n" + WAIT)  # fmt: skip
    agent.wait_for_text(0, b"up")
    pid = agent.wait_for("started", 0)["pid"]
    for number, expected in ((19, "T"), (18, "S"), (19, "T")):
        agent.order({"do": "signal", "slot": 0, "signal": number})
        wait_until(lambda expected=expected: state(pid) == expected, what=f"state {expected}")
    agent.order({"do": "stop", "slot": 0, "grace_s": 30})
    assert agent.wait_for("exited", 0)["code"] == 0
    assert b"bye" in agent.written(0)


def test_without_grace_a_process_that_stands_still_is_killed_at_once(agent: Agent) -> None:
    agent.python(0, WAIT, grace_s=1000)
    agent.wait_for_text(0, b"up")
    agent.order({"do": "signal", "slot": 0, "signal": "SIGSTOP"}, {"do": "stop", "slot": 0, "grace_s": 0})
    assert agent.wait_for("exited", 0)["signal"] == 9


def test_a_slot_can_be_used_again(agent: Agent) -> None:
    for life in (1, 2):
        agent.python(0, f"print({life})")
        agent.wait_for("ended", 0, count=life)
    assert agent.written(0) == b"1\n2\n"
    agent.python(0, "", commits=5)
    assert agent.wait_for("refused", 0)["reason"] == "'commits' must be 3, as many as the slot has; or forget it first"


def test_told_to_finish_the_agent_ends_with_its_last_process_and_starts_no_other(agent: Agent) -> None:
    agent.python(0, "raise SystemExit(3)")
    agent.python(1, "input() if False else __import__('time').sleep(0.2); raise SystemExit(4)")
    agent.order({"do": "finish"})
    agent.python(2, "print('never')")
    assert agent.process.wait() == 3
    assert agent.news("refused")[0]["reason"] == "nothing is started any more: the agent is about to end"
    assert agent.news("ended", slot=1)[0]["code"] == 4
    assert agent.written(2) == b""


def test_an_agent_that_never_got_a_good_order_says_so_by_its_exit_code(agent: Agent) -> None:
    agent.order("{}", {"do": "finish"})
    assert agent.process.wait() == 125


def test_orders_may_come_from_a_file_and_news_go_to_one(tmp_path: Path) -> None:
    orders, news = tmp_path / "orders", tmp_path / "news"
    orders.write_text('{"do":"start","slot":0,"argv":["sleep","1000"]}\n')
    with orders.open() as source, news.open("w") as sink:
        assert subprocess.run(AGENT, stdin=source, stdout=sink, timeout=30, check=False).returncode == 143
    assert '"event":"ended"' in news.read_text().splitlines()[-1]


def test_as_many_slots_as_a_large_host_has(agent: Agent) -> None:
    for slot in range(16):
        agent.start(slot, "sh", "-c", f"echo {slot}; exit {slot}")
    agent.order({"do": "finish"})
    assert agent.process.wait() == 1  # the first that is not 0
    assert [agent.written(slot) for slot in range(16)] == [f"{slot}\n".encode() for slot in range(16)]
