"""Output arrives complete and separated by process, however it is written and read."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.agent.launching import AGENT, Agent, start_order
from tests.support import marks
from tests.support.waiting import wait_until


def test_lines_of_several_processes_and_streams_stay_whole_and_apart(agent: Agent) -> None:
    code = (
        "import os, sys\n"
        "for n in range(1000):\n"
        "    for fd, name in ((1, 'out'), (2, 'err')): os.write(fd, f'{sys.argv[1]} {name} {n} é\\n'.encode())\n"
    )
    for slot in range(3):
        agent.python(slot, code, str(slot))
    agent.order({"do": "finish"})
    assert agent.process.wait(60) == 0
    for slot in range(3):
        for stream, name in (("stdout", "out"), ("stderr", "err")):
            lines = agent.written(slot, stream).decode().splitlines()
            assert lines == [f"{slot} {name} {n} é" for n in range(1000)]


def test_megabytes_without_line_ends_come_through_whole_and_delay_nothing(agent: Agent) -> None:
    agent.start(0, "sh", "-c", "head -c 4000000 /dev/zero")
    agent.start(1, "sh", "-c", "yes x & sleep 1000")  # without a pause, as fast as possible
    agent.start(2, "echo", "through")
    agent.wait_for_text(2, b"through")
    assert agent.wait_for("exited", 0)["code"] == 0
    agent.order({"do": "stop", "slot": 1, "grace_s": 0}, {"do": "finish"})
    assert agent.process.wait() == 137
    assert agent.written(0) == bytes(4_000_000)
    assert set(agent.written(1).split()) == {b"x"}


def test_output_comes_when_it_is_written_as_it_is_and_before_the_news_of_the_end(agent: Agent) -> None:
    agent.start(0, "sh", "-c", "printf 'a prompt> '; sleep 1000")
    agent.wait_for_text(0, b"a prompt> ")
    agent.python(1, "import os; os.write(1, bytes(range(256)) * 4)")  # this is not text
    agent.wait_for("ended", 1)
    assert agent.written(1) == bytes(range(256)) * 4
    agent.start(2, "sh", "-c", "head -c 60000 /dev/zero; echo why it died >&2; kill -9 $$")
    agent.wait_for("ended", 2)
    assert [news["event"] for news in agent.news(slot=2)][-2:] == ["exited", "ended"]
    assert agent.written(2) == bytes(60_000)
    assert agent.written(2, "stderr") == b"why it died\n"


def test_output_may_go_to_standard_error_as_it_is(agent: Agent) -> None:
    agent.start(0, "sh", "-c", "echo one; echo two >&2", output="stderr")
    agent.order({"do": "finish"})
    assert agent.process.wait() == 0
    assert agent.process.stderr == "one\ntwo\n"
    assert agent.news("output") == []


@pytest.fixture
def unread() -> Iterator[subprocess.Popen[bytes]]:
    """An agent whose launcher is stopped and reads no messages."""
    process = subprocess.Popen(AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        yield process
        marks.kill([process.pid])
        process.wait()


def say(process: subprocess.Popen[bytes], *orders: dict[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"".join(json.dumps(order).encode() + b"\n" for order in orders))
    process.stdin.flush()


def test_a_launcher_that_does_not_read_delays_neither_orders_nor_the_end(
    unread: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    flood = tmp_path / "flood"
    say(unread, start_order(0, "sh", "-c", f"yes | tee -a {flood} | cat"))
    wait_until(lambda: flood.exists() and stands_still(flood), what="the flood to be dammed")
    assert flood.stat().st_size < 8 << 20
    resident = int(Path(f"/proc/{unread.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    assert resident < 64 << 20
    hears = f"trap 'touch {tmp_path}/heard; exit' TERM; touch {tmp_path}/up; sleep 1000 & wait"
    say(unread, start_order(1, "sh", "-c", hears, grace_s=60.0))  # longer than the wait below, which shows what hangs
    wait_until((tmp_path / "up").exists, what="a second process")
    say(unread, {"do": "stop", "slot": 1})
    wait_until((tmp_path / "heard").exists, what="the signal", timeout=30, show=lambda: processes_below(unread.pid))
    assert unread.stdin is not None
    unread.stdin.close()
    assert unread.wait(timeout=30) == 143


def processes_below(pid: int) -> str:
    """Return for each process of an agent what it waits for, and which signals are blocked or pending."""
    lines = []
    for each in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            lines.append(f"{each.pid} {each.status()} {each.cmdline()} {signals_of(each.pid)}")
    return "\n".join(lines)


def signals_of(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return " ".join(line.replace("\t", "") for line in lines if line.startswith(("Sig", "ShdPnd")))


def stands_still(file: Path) -> bool:
    before = file.stat().st_size
    time.sleep(0.2)
    return before > 0 and file.stat().st_size == before


def test_a_launcher_that_was_stopped_gets_all_output_once_it_reads(unread: subprocess.Popen[bytes]) -> None:
    say(unread, start_order(0, "sh", "-c", "head -c 5000000 /dev/zero; exit 9"), {"do": "finish"})
    assert unread.stdout is not None
    assert select.select([unread.stdout], [], [], 20)[0]
    time.sleep(0.3)  # time for the agent to fill its buffers; with more time, the test is only stricter
    entries = [json.loads(line) for line in unread.stdout]
    assert sum(len(news["text"]) for news in entries if news["event"] == "output") == 5_000_000
    assert [news["event"] for news in entries][-2:] == ["exited", "ended"]
    assert unread.wait(timeout=20) == 9
