"""An agent carries out orders, reports those that it refuses, and continues in both cases."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.faults.agent.launching import AGENT, WAIT, Agent
from tests.support.waiting import wait_until

TAKEN = "the slot is taken: stop its process and wait until it has ended"
NEVER = "nothing was ever started in the slot"
HELD = "'commits' must be 3, as many as the slot has; or forget it first"


def test_a_bad_order_is_refused_to_the_launcher_and_on_standard_error_and_changes_nothing(agent: Agent) -> None:
    agent.python(0, WAIT)
    agent.wait_for_text(0, b"up")
    agent.start(3, "true")
    agent.wait_for("ended", 3)
    bad: list[tuple[dict[str, object] | str, str]] = [
        ("nonsense", "is not JSON at character 0"),
        ("x" * (9 << 20), "is longer than 8388608 bytes"),
        ({"do": "start", "slot": 0, "argv": ["true"]}, TAKEN),
        ({"do": "start", "slot": 1, "argv": "true"}, "'argv' must be a list of strings that names a program"),
        ({"do": "stop", "slot": 5}, NEVER),
        ({"do": "start", "slot": 3, "argv": ["true"], "commits": 5}, HELD),
    ]
    agent.order(*(order for order, _ in bad))
    agent.wait_for("refused", count=len(bad))
    assert [news["reason"] for news in agent.news("refused")] == [reason for _, reason in bad]
    wait_until(lambda: agent.process.stderr.count("order refused") == len(bad), what="the same for people")
    agent.python(2, "print('still here')")
    agent.wait_for_text(2, b"still here")
    assert agent.news("exited", "ended", slot=0) == []
    assert "Traceback" not in agent.process.output


def test_a_process_that_cannot_be_started_is_named(agent: Agent) -> None:
    agent.python(9, WAIT)
    orders = {
        "'/nowhere/train' is not on this host": {"argv": ["/nowhere/train"]},
        "[Errno 13] Permission denied: '/etc/passwd'": {"argv": ["/etc/passwd"]},
        "[Errno 2] No such file or directory: '/nowhere'": {"argv": ["true"], "cwd": "/nowhere"},
    }
    for slot, (reason, order) in enumerate(orders.items()):
        agent.order({"do": "start", "slot": slot, **order})
        assert agent.wait_for("not_started", slot)["reason"] == reason
        assert agent.wait_for("ended", slot)["code"] == 125
        wait_until(lambda reason=reason: reason in agent.process.stderr, what="the same for people")
    assert "'/nowhere/train' is not on this host; give the full path that it has on each host" in agent.process.stderr
    assert agent.news("exited", "ended", slot=9) == []
    assert "Traceback" not in agent.process.output


def test_settings_reach_the_process_and_no_command_line(agent: Agent) -> None:
    code = "import os, sys; print(os.environ['TOKEN'], os.getcwd(), sys.argv[1:], sys.stdin.read() == '')"
    agent.python(0, code, "a b", "", env={"TOKEN": "hunter2"}, cwd="/")
    agent.wait_for("ended", 0)
    assert agent.written(0) == b"hunter2 / ['a b', ''] True\n"
    assert "hunter2" not in Path(f"/proc/{agent.process.pid}/cmdline").read_text()


def test_a_stopped_process_can_be_asked_to_end_and_killed(agent: Agent) -> None:
    asked = "import atexit, signal\natexit.register(print, 'bye', flush=True)\nsignal.signal(15, lambda *_: exit())\n"
    for slot, code in enumerate((asked + WAIT, WAIT)):
        agent.python(slot, code, grace_s=1000)
        agent.wait_for_text(slot, b"up")
        os.kill(agent.wait_for("started", slot)["pid"], signal.SIGSTOP)
    agent.order({"do": "stop", "slot": 0, "grace_s": 30}, {"do": "stop", "slot": 1, "grace_s": 0})
    assert agent.wait_for("exited", 0)["code"] == 0
    assert b"bye" in agent.written(0)
    assert agent.wait_for("exited", 1)["signal"] == 9


def test_an_agent_told_to_finish_ends_with_its_last_process_and_starts_no_other(agent: Agent) -> None:
    for slot in range(16):
        agent.start(slot, "sh", "-c", f"echo {slot}; sleep 0.2; exit {slot}")
    agent.order({"do": "finish"})
    agent.start(16, "echo", "never")
    assert agent.process.wait() == 1  # the first code that is not 0
    assert agent.news("refused")[0]["reason"] == "nothing more is started: the agent is about to end"
    assert [agent.written(slot) for slot in range(17)] == [*(f"{slot}\n".encode() for slot in range(16)), b""]


def test_an_agent_that_never_got_a_good_order_says_so_by_its_exit_code(agent: Agent) -> None:
    agent.order("{}", {"do": "finish"})
    assert agent.process.wait() == 125


def test_orders_may_come_from_a_file_and_news_go_to_one(tmp_path: Path) -> None:
    orders, news = tmp_path / "orders", tmp_path / "news"
    orders.write_text('{"do":"start","slot":0,"argv":["sleep","1000"]}\n')
    with orders.open() as source, news.open("w") as sink:
        assert subprocess.run(AGENT, stdin=source, stdout=sink, timeout=30, check=False).returncode == 143
    assert '"event":"ended"' in news.read_text().splitlines()[-1]
