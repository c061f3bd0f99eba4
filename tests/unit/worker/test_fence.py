"""Closing a world's connections and nobody else's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from hvd_elastic_ext.worker.fence import Fence, open_sockets

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made: list[Pair] = []
    yield made
    for pair in made:
        for end in pair:
            end.close()


def closed(end: socket.socket) -> bool:
    """True if the other end was shut down."""
    end.setblocking(False)
    try:
        return end.recv(1) == b""
    except BlockingIOError:
        return False


def join(pairs: list[Pair]) -> Pair:
    pairs.append(socket.socketpair())
    return pairs[-1]


def test_connections_opened_while_joining_are_shut_down_and_others_are_not(pairs: list[Pair]) -> None:
    fence = Fence()
    _, users_before = join(pairs)
    _, peer = fence.watching(join)(pairs)
    _, users_after = join(pairs)
    assert fence.cut() == 2  # both ends of the pair are in this process
    assert closed(peer)
    assert not closed(users_before)
    assert not closed(users_after)


def test_cutting_twice_cuts_once(pairs: list[Pair]) -> None:
    fence = Fence()
    fence.watching(join)(pairs)
    assert (fence.cut(), fence.cut()) == (2, 0)


def test_a_descriptor_that_was_used_again_is_left_alone(pairs: list[Pair]) -> None:
    fence = Fence()
    ours, peer = fence.watching(join)(pairs)
    numbers = {ours.fileno(), peer.fileno()}
    ours.close()
    peer.close()
    mine, other = join(pairs)
    assert {mine.fileno(), other.fileno()} == numbers  # the user's sockets have the numbers of the world's
    assert fence.cut() == 0
    assert not closed(other)


def test_a_descriptor_that_is_a_file_now_is_left_alone_and_costs_none(pairs: list[Pair]) -> None:
    fence = Fence()
    ours, peer = fence.watching(join)(pairs)
    ours.close()
    peer.close()
    with open(os.devnull) as one, open(os.devnull) as other:
        before = set(os.listdir("/proc/self/fd"))
        assert fence.cut() == 0
        assert set(os.listdir("/proc/self/fd")) == before
        assert not one.closed
        assert not other.closed


def test_a_world_that_could_not_be_joined_is_cut_too(pairs: list[Pair]) -> None:
    fence = Fence()

    def fail() -> None:
        join(pairs)
        raise RuntimeError("no world")

    with pytest.raises(RuntimeError):
        fence.watching(fail)()
    assert fence.cut() == 2


def test_listening_sockets_and_files_do_not_matter() -> None:
    fence = Fence()
    listener = fence.watching(socket.create_server)(("127.0.0.1", 0))
    with listener, open(os.devnull) as file:
        assert listener.fileno() in {descriptor for descriptor, _ in open_sockets()}
        assert file.fileno() not in {descriptor for descriptor, _ in open_sockets()}
        fence.cut()


def test_hvd_init_is_watched_wherever_it_is_looked_up() -> None:
    import horovod.torch as hvd

    from hvd_elastic_ext.worker.comms.horovod import fence_horovod

    fence = fence_horovod()
    assert fence_horovod() is fence
    assert hvd.init is hvd.elastic.init
    assert hvd.init.hvd_elastic_fence is fence
