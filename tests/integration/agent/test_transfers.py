"""A commit goes from one real agent to another: what they tell of it, and what a process finds that starts there."""

from __future__ import annotations

import hmac
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.agent.launching import Launcher, Session, agent_process, launching, python
from tests.support import marks
from tests.support.waiting import wait_until

TOKEN = "0123456789abcdef" * 2
COMMIT = [1, 1, 3]

TRAIN = """
import os, sys
import torch
from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer, Contents
from hvd_elastic_ext.worker.commits.memory import open_sides

buffer = CommitBuffer(open_sides([int(each) for each in os.environ["HVD_ELASTIC_COMMIT_FDS"].split(",")]))
last = buffer.last()
if last is not None:
    sums = [float(view.double().sum()) for view in last.views]
    print("found", list(last.record.identity), sums, last.tree, last.local)
else:
    for number in (1, 2, 3):
        tensors = [torch.full((SIZE,), float(number)), torch.arange(10) + number]
        buffer.take(Contents(b"tree", tensors, [True, True], b"own"), Identity(5, 1, 1, number), step=10 * number)
    print("committed")
"""
LARGE, OLDER = TRAIN.replace("SIZE", "5_000_000"), TRAIN.replace("SIZE", "1000").replace("(1, 2, 3)", "(1, 2)")


class Pair:
    """Two hosts of one job."""

    def __init__(self, launcher: Launcher, sessions: dict[str, Session]) -> None:
        self.launcher = launcher
        self.sessions = sessions
        self._helpers = 0

    def helper(self, host: str, slots: list[int], **request: Any) -> int:
        self._helpers += 1
        self.sessions[host].order({"do": "helper", "id": self._helpers, "slots": slots, "request": request})
        return self._helpers

    def answer(self, host: str, number: int, *, count: int = 1) -> dict[str, Any]:
        def answers() -> list[dict[str, Any]]:
            return [news["answer"] for news in self.sessions[host].news("helper") if news["id"] == number]

        show = lambda: self.sessions[host].news("helper", "helper_ended", "refused")  # noqa: E731
        wait_until(lambda: len(answers()) >= count, what=f"answer {count} of {host}", timeout=30, show=show)
        return answers()[count - 1]

    def train(self, host: str, slot: int, code: str) -> str:
        session = self.sessions[host]
        before = len(session.news("ended", slot=slot))
        session.order(python(slot, code, link=False))
        session.wait_for("ended", slot, count=before + 1, timeout=90)
        return session.written(slot).decode()

    def send(self) -> tuple[int, list[Any]]:
        number = self.helper("h1", [0], do="send", transfer=TOKEN, slot=0, commit=COMMIT, address="127.0.0.1")
        return number, self.answer("h1", number)["listening"]

    def receive(self, address: list[Any], *, token: str = TOKEN) -> int:
        return self.helper("h2", [2], do="receive", transfer=token, slot=2, commit=COMMIT, **{"from": address})


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        launcher = stack.enter_context(launching())
        sessions = {}
        for count, host in enumerate(("h1", "h2"), 1):
            (tmp_path / host).mkdir()
            stack.enter_context(agent_process(launcher.line(host=host), tmp_path / host))
            sessions[host] = launcher.session(count)
        yield Pair(launcher, sessions)


def helper_of(session: Session) -> int:
    """The one that is at work, once the one before it has ended."""

    def at_work() -> list[int]:
        children = [child.pid for child in psutil.Process(session.hello["pid"]).children()]
        return [pid for pid in children if "checkpoint.programs.agent_requests" in marks.command_line(pid)]

    wait_until(lambda: len(at_work()) == 1, what="one helper", show=at_work)
    return at_work()[0]


def hello_again(pair: Pair, host: str) -> dict[str, Any]:
    before = len(pair.launcher.sessions)
    pair.sessions[host].hang_up()
    pair.sessions[host] = pair.launcher.session(before + 1)
    return pair.sessions[host].hello["seats"]  # type: ignore[no-any-return]


@contextmanager
def stalling(address: list[Any], length: int) -> Iterator[tuple[list[Any], threading.Event]]:
    """A way to a sender on which only so many of its bytes come through; and whether they have."""
    stalled = threading.Event()

    def pump(one: socket.socket, other: socket.socket, most: int) -> None:
        with suppress(OSError):
            while most and (data := one.recv(min(most, 1 << 16))):
                other.sendall(data)
                most -= len(data)

    def relay() -> None:
        with door.accept()[0] as receiver, socket.create_connection((address[0], address[1])) as sender:
            proof = threading.Thread(target=pump, args=(receiver, sender, 1 << 40), daemon=True)
            proof.start()
            pump(sender, receiver, length)
            stalled.set()
            proof.join()  # until the receiver is gone

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        yield list(door.getsockname()), stalled
        thread.join(20)
        assert not thread.is_alive()


def test_a_commit_goes_to_the_right_agent_and_to_another_slot_and_is_trained_on_with_and_its_secret_stands_nowhere(
    pair: Pair,
) -> None:
    assert "committed" in pair.train("h1", 0, LARGE)
    [exited] = pair.sessions["h1"].news("exited")
    assert exited["held"] == [*COMMIT, 30]
    pair.train("h2", 2, OLDER)

    # A receiver that is killed between blocks leaves what was held.
    number, address = pair.send()
    with stalling(address, 10_000_000) as (door, stalled):
        pair.receive(door)
        assert stalled.wait(30)
        receiver = helper_of(pair.sessions["h2"])
        os.kill(receiver, signal.SIGKILL)
    assert pair.answer("h1", number, count=2)["for_good"] is False
    assert hello_again(pair, "h2")["2"]["held"] == [1, 1, 2, 20]

    number, address = pair.send()
    sender = helper_of(pair.sessions["h1"])
    readable = Path(f"/proc/{sender}/cmdline").read_bytes() + Path(f"/proc/{sender}/environ").read_bytes()
    readable += json.dumps(pair.sessions["h1"].said).encode()
    secret = hmac.digest(pair.launcher.key, b"transfer" + TOKEN.encode(), "sha256").hex()
    assert not any(each.encode() in readable for each in (secret, pair.launcher.key.hex()))
    refused = pair.answer("h2", pair.receive(address, token="f" * 32))  # of another transfer
    assert refused["for_good"] is False
    got = pair.answer("h2", pair.receive(address))  # served after it
    assert got["held"] == [*COMMIT, 30]
    assert got["bytes"] > 20_000_000
    assert pair.answer("h1", number, count=2)["sent"] == got["bytes"]
    seat = hello_again(pair, "h2")["2"]
    assert (seat["state"], seat["held"]) == ("rest", [*COMMIT, 30])

    copied = pair.answer("h2", pair.helper("h2", [2, 3], do="copy", to=3, commit=COMMIT, **{"from": 2}))
    assert copied["held"] == [*COMMIT, 30]
    seat = hello_again(pair, "h2")["3"]
    assert (seat["life"], seat["state"], seat["held"]) == (0, "rest", [*COMMIT, 30])  # nothing was ever started there
    assert hello_again(pair, "h1")["0"]["held"] == [*COMMIT, 30]
    assert f"found {[5, *COMMIT]} {[1.5e7, 75.0]} b'tree'" in pair.train("h2", 3, OLDER)


def test_a_transfer_that_has_no_proper_name_is_refused(pair: Pair) -> None:
    pair.helper("h1", [0], do="send", transfer=["x"], slot=0, commit=COMMIT, address="127.0.0.1")
    refused = pair.sessions["h1"].wait_for("refused")
    assert "request.transfer" in refused["reason"]
