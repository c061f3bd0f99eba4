"""Invalid host lists, scripts that hang, foreign connections: each is reported once, and training is not
interrupted."""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hvd_elastic_ext.core.messages.wire import MAGIC, NONCE_SIZE
from tests.faults.launcher.stepping_jobs import ANY_ENGINE, Training, training
from tests.support.pages import Answer, read_back

__all__ = ["training"]

BESIDE = "127.0.0.1"
THIRD = "127.0.0.2"

AS_ANYBODY = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Words that make root respect file permissions, too."""


def refusals(job: Training) -> list[str]:
    return [record.get("reason") for record in job.events("refused")]


def garbage(path: Path) -> None:
    path.write_bytes(b"localhost:1\n\x00\xff\xfe::::\n")


def a_torn_line(path: Path) -> None:
    path.write_text("localhost:1\n127.0.0.1:\n")


def unreadable(path: Path) -> None:
    path.write_text("127.0.0.1:1\n")
    path.chmod(0)


SPOILT: dict[str, Callable[[Path], None]] = {
    "line 2 is not UTF-8 text": garbage,
    "has slots ''": a_torn_line,
    "may not be read by this user": unreadable,
    "is not a regular file": os.mkfifo,
}
"""The faults of a hosts file, one after the other, by a text of the refusal."""


@ANY_ENGINE
@pytest.mark.timeout(240)
@pytest.mark.soak
def test_a_hosts_file_that_is_malformed_unreadable_missing_or_empty_interrupts_no_rank(training: Training) -> None:
    training.set_hosts("localhost:1")
    with training.train("-np", "1", wrap=AS_ANYBODY) as process:
        training.wait_for_size(1)
        for number, (reason, make) in enumerate(SPOILT.items(), 1):
            make(fresh := training.directory / f"spoilt{number}")
            fresh.rename(training.hosts)
            training.wait_for(f"refusal {number}: {reason}", lambda n=number: len(refusals(training)) >= n)
            assert reason in refusals(training)[-1]
        training.hosts.unlink()
        training.wait_for("the last refusal", lambda: "does not exist" in refusals(training)[-1])
        why = Answer("", "hosts: does not exist", "Correct the host list: known hosts stay")
        read_back(training.journal, why, folder=training.state_dir)
        training.set_hosts()
        training.wait_for("an empty list", lambda: training.last("published").get("hosts") == {})
        training.wait_for_size(1)
        training.set_hosts("localhost:1", f"{BESIDE}:1")
        training.wait_for_size(2)
        assert process.stderr.count("a list without any host was published") == 1
    training.check_steps()
    training.check_uninterrupted("localhost")
    assert training.causes() == ["start", "hosts added"]
    assert len(refusals(training)) == len(SPOILT) + 1


SCRIPT = """
echo run >> runs
[ -e hang ] && sleep 1000
cat hosts
"""


@ANY_ENGINE
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_discovery_script_that_hangs_is_reported_once_and_interrupts_no_rank(training: Training) -> None:
    script, hang, runs = (training.directory / name for name in ("discover.sh", "hang", "runs"))
    script.write_text(SCRIPT)
    training.set_hosts("localhost:1")
    with training.train("-np", "1", source=("--host-discovery-script", f"sh {script}")):
        training.wait_for_size(1)
        hang.touch()
        began = training.shown()[-1].mono
        training.wait_for("a script that was given up", lambda: refusals(training), timeout=90)
        assert "gave no list within 30 s and was killed" in refusals(training)[0]
        done = len(runs.read_text().splitlines())
        training.wait_for("two more runs of it", lambda: len(runs.read_text().splitlines()) >= done + 2, timeout=90)
        assert len(refusals(training)) == 1
        assert training.longest_pause("localhost", since=began) < 10
        why = Answer("", "gave no list within 30 s and was killed", "Run the discovery script by hand")
        read_back(training.journal, why, folder=training.state_dir)
        hang.unlink()
        training.set_hosts("localhost:1", f"{BESIDE}:1")
        training.wait_for_size(2, timeout=120)  # the run that hangs now is killed after 30 s
    training.check_steps()
    training.check_uninterrupted("localhost")
    assert training.causes() == ["start", "hosts added"]
    assert len(refusals(training)) == 1


def port_of(launcher: int) -> tuple[str, int]:
    """Return the only address at which the launcher listens."""
    found = [c.laddr for c in psutil.Process(launcher).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert len(found) == 1, found
    return found[0].ip, found[0].port


def knock(address: tuple[str, int], words: Callable[[bytes], bytes]) -> None:
    """Send ``words`` of the nonce to the control port, and wait until the port closes the connection."""
    with socket.create_connection(address, timeout=30) as stranger:
        greeting = b""
        while len(greeting) < len(MAGIC) + NONCE_SIZE:
            heard = stranger.recv(100)
            assert heard, "it has hung up"
            greeting += heard
        assert greeting.startswith(MAGIC)
        with contextlib.suppress(ConnectionError):  # the port may have closed before it has read everything
            stranger.sendall(words(greeting[len(MAGIC) :]))
            while stranger.recv(1000):
                pass


def frame(payload: bytes, key: bytes, nonce: bytes, *, size: int | None = None) -> bytes:
    """Return an agent's first bytes: its nonce and one frame, signed with ``key``. ``size``: the length in the frame's
    head."""
    own = os.urandom(NONCE_SIZE)
    session = hmac.digest(key, b"session" + nonce + own, "sha256")
    signed = hmac.digest(session, b"a" + bytes(8) + payload, "sha256") + payload
    return own + (len(signed) if size is None else size).to_bytes(4, "big") + signed


STRANGERS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "a frame is not signed with this job's key": lambda key, nonce: frame(b'{"event":"hello"}', os.urandom(32), nonce),
    "a frame is too short to be signed": lambda key, nonce: frame(b"", key, nonce, size=3),
    "a frame is too large": lambda key, nonce: frame(b"x" * 1000, key, nonce, size=1 << 31),
    "a frame does not hold JSON": lambda key, nonce: frame(b'{"event":', key, nonce),
    "a frame holds JSON that is not an object": lambda key, nonce: frame(b"[1]", key, nonce),
    "its first message is not a hello": lambda key, nonce: frame(b'{"event":"exited","slot":0,"code":1}', key, nonce),
    "its agent belongs to another job": lambda key, nonce: frame(b'{"event":"hello","job":"other"}', key, nonce),
}
"""By the reason of the refusal. (Some know the job's key, and have a defect.)"""


@contextlib.contextmanager
def flood(address: tuple[str, int], *, count: int) -> Iterator[list[int]]:
    """Keep ``count`` connections half open: each closed one is opened again. The list has an entry for each closed
    one."""
    ended: list[int] = []
    stop = threading.Event()

    def run() -> None:
        with contextlib.ExitStack() as stack:
            crowd = selectors.DefaultSelector()
            stack.callback(crowd.close)

            def come() -> None:
                crowd.register(stack.enter_context(socket.create_connection(address, timeout=30)), 1)

            for _ in range(count):
                come()
            while not stop.is_set():
                for key, _ in crowd.select(0.1):
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    with contextlib.suppress(ConnectionError):
                        if connection.recv(1000):
                            continue
                    crowd.unregister(connection)
                    connection.close()
                    ended.append(1)
                    come()

    thread = threading.Thread(target=run, name="flood")
    thread.start()
    try:
        yield ended
    finally:
        stop.set()
        thread.join()


@ANY_ENGINE
@pytest.mark.timeout(240)
def test_unauthenticated_connections_are_refused_counted_and_reported_once(training: Training) -> None:
    training.set_hosts("localhost:1")
    with training.train("-np", "1") as process:
        training.wait_for_size(1)
        key = bytes.fromhex((training.state_dir / "key").read_text())
        address = port_of(process.pid)
        for _ in range(3):
            for words in STRANGERS.values():
                knock(address, lambda nonce, words=words: words(key, nonce))
        with flood(address, count=50) as ended:
            training.wait_for("the end of some that say nothing", lambda: len(ended) >= 50)
            training.set_hosts("localhost:1", f"{BESIDE}:1")
            training.wait_for_size(2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    for reason in (*STRANGERS, "no authentication within"):
        assert len(re.findall(rf"control port: refused 127\.0\.0\.1: {reason}", process.stderr)) == 1, reason
    for reason in STRANGERS:
        assert re.search(rf"3 × {reason}", process.stderr), process.stderr
    assert len(process.stderr.splitlines()) < 30
    training.check_steps()
    training.check_uninterrupted("localhost")
    assert training.causes() == ["start", "hosts added"]
