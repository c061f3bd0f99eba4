"""An agent without a free descriptor cannot accept a handover, and tries again."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.agent.claim import HandoverServer
from hvd_elastic_ext.agent.descriptors import Act, DescriptorLoop
from hvd_elastic_ext.agent.orders import End, Join
from hvd_elastic_ext.agent.ports import PAUSE_S
from tests.support.clock import ManualClock


class Loop(DescriptorLoop):
    """With a clock of its own; ``acts`` is how often there was something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.acts = 0
        self.clock = ManualClock()

    def now(self) -> float:
        return self.clock.mono()

    def watch(self, descriptor: int, act: Act, *, output: bool = False) -> None:
        def counted() -> None:
            self.acts += 1
            act()

        super().watch(descriptor, counted, output=output)


def apply(order: Join | End) -> str:
    raise AssertionError("nobody said anything")


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        listener.setblocking(False)
        yield listener


def test_with_no_descriptor_left_an_agent_looks_again_in_a_second_and_not_all_the_time(listener: socket.socket) -> None:
    loop = Loop()
    server = HandoverServer(loop, listener, b"k" * 32, apply=apply)
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(listener.getsockname())
        last = os.dup(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, usual[1]))
        try:
            for _ in range(100):
                loop.look(0.0)
            assert loop.acts == 1
            assert server.due() == loop.now() + PAUSE_S
            loop.clock.advance(PAUSE_S)
            server.tick()
            for _ in range(100):
                loop.look(0.0)
            assert loop.acts == 2
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
            os.close(last)
        loop.clock.advance(PAUSE_S)
        server.tick()
        loop.look(0.0)
        assert b"nonce" in peer.recv(4096)
        loop.clock.advance(60)
        server.tick()  # it has said nothing
        assert server.due() is None
    server.close()
