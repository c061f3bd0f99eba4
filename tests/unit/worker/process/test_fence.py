"""The fence closes the connections of a world, and no others."""

from __future__ import annotations

import inspect
import os
import select
import socket
import threading
from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.process import fence as fences
from hvd_elastic_ext.worker.process.fence import Fence, open_sockets

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made: list[Pair] = []
    yield made
    for pair in made:
        for end in pair:
            end.close()


@pytest.fixture
def fence() -> Fence:
    return Fence()


def closed(end: socket.socket) -> bool:
    """True if the other end was shut down."""
    end.setblocking(False)
    try:
        return end.recv(1) == b""
    except BlockingIOError:
        return False


def join(pairs: list[Pair]) -> Pair:
    """Connect two of Python's sockets, as a user's code does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        pairs.append((one, listener.accept()[0]))
    return pairs[-1]


def horovods() -> tuple[int, int]:
    """Connect as Horovod does: without Python sockets."""
    pairs: list[Pair] = []
    one, other = join(pairs)
    return one.detach(), other.detach()


def join_world(fence: Fence, pairs: list[Pair]) -> Pair:
    """Join a world of one connection, to this process itself."""
    one, other = fence.tracking(horovods)()
    pairs.append((socket.socket(fileno=one), socket.socket(fileno=other)))
    return pairs[-1]


def test_unix_sockets_are_left_alone(fence: Fence, pairs: list[Pair]) -> None:
    pairs.append(fence.tracking(socket.socketpair)())  # another thread's, opened just then
    assert fence.cut() == 0
    assert not closed(pairs[-1][0])


def test_connections_opened_while_joining_are_shut_down_and_others_are_not(fence: Fence, pairs: list[Pair]) -> None:
    _, users_before = join(pairs)
    _, peer = join_world(fence, pairs)
    _, users_after = join(pairs)
    assert fence.cut() == 2  # both ends of the pair are in this process
    assert closed(peer)
    assert not closed(users_before)
    assert not closed(users_after)


def test_a_descriptor_that_was_used_again_is_left_alone(fence: Fence, pairs: list[Pair]) -> None:
    ours, peer = join_world(fence, pairs)
    numbers = {ours.fileno(), peer.fileno()}
    ours.close()
    peer.close()
    mine, other = join(pairs)
    assert {mine.fileno(), other.fileno()} == numbers  # the user's sockets have the numbers of the world's
    assert fence.cut() == 0
    assert not closed(other)


def test_a_descriptor_that_is_a_file_now_is_left_alone_and_none_leaks(fence: Fence, pairs: list[Pair]) -> None:
    ours, peer = join_world(fence, pairs)
    ours.close()
    peer.close()
    with open(os.devnull) as one, open(os.devnull) as other:
        before = set(os.listdir("/proc/self/fd"))
        assert fence.cut() == 0
        assert set(os.listdir("/proc/self/fd")) == before
        assert not one.closed
        assert not other.closed


def test_a_world_that_could_not_be_joined_is_cut_too(fence: Fence, pairs: list[Pair]) -> None:

    def fail() -> None:
        raise RuntimeError(*horovods())

    with pytest.raises(RuntimeError) as raised:
        fence.tracking(fail)()
    pairs.append(tuple(socket.socket(fileno=descriptor) for descriptor in raised.value.args))
    assert fence.cut() == 2


def test_a_connection_that_user_code_opens_while_a_world_forms_is_left_alone(fence: Fence, pairs: list[Pair]) -> None:

    def join_beside_a_user() -> tuple[int, int]:
        thread = threading.Thread(target=join, args=(pairs,))
        thread.start()
        thread.join()
        return horovods()

    world = fence.tracking(join_beside_a_user)()
    _, users = pairs[-1]
    pairs.append((socket.socket(fileno=world[0]), socket.socket(fileno=world[1])))
    assert fence.cut() == 2
    assert closed(pairs[-1][1])
    assert not closed(users)


def test_a_forming_world_can_be_cut_but_never_the_rendezvous_proxy(fence: Fence, pairs: list[Pair]) -> None:

    def forming() -> tuple[int, int]:
        descriptors = horovods()
        with socket.socket(fileno=os.dup(descriptors[1])) as end:
            door = end.getsockname()[1]
        fence.exclude_port(door)
        # One end has the door's port as its own, not as its peer's: that one is cut.
        assert fence.cut() == 1
        return descriptors

    one, other = fence.tracking(forming)()
    pairs.append((socket.socket(fileno=one), socket.socket(fileno=other)))


def test_a_second_call_within_a_world_does_not_forget_its_connections(fence: Fence, pairs: list[Pair]) -> None:
    join_world(fence, pairs)
    fence.tracking(lambda: None)()  # hvd.init() where Horovod is initialised
    assert (fence.cut(), fence.cut()) == (2, 0)


def test_listening_sockets_and_files_do_not_matter(fence: Fence) -> None:
    listener = fence.tracking(socket.create_server)(("127.0.0.1", 0))
    with listener, open(os.devnull) as file:
        assert listener.fileno() in {descriptor for descriptor, _ in open_sockets()}
        assert file.fileno() not in {descriptor for descriptor, _ in open_sockets()}
        fence.cut()


def test_hvd_init_and_shutdown_are_wrapped_wherever_they_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import horovod.torch as hvd

    from hvd_elastic_ext.worker.comms.horovod import fence_horovod

    fence = fence_horovod()
    assert fence_horovod() is fence
    assert hvd.init is hvd.elastic.init
    assert hvd.init.hvd_elastic_fence is fence
    assert hvd.shutdown is hvd.elastic.shutdown
    assert inspect.unwrap(hvd.shutdown) is hvd.mpi_ops.shutdown
    waits = MagicMock()
    monkeypatch.setattr(hvd.mpi_ops.mpi_lib, "around_wait", waits)
    hvd.shutdown()  # there is no world, but Horovod's thread may have to wait for other ranks
    waits.assert_called_once_with()


@pytest.mark.parametrize("ranks", [1, 1 << 20])
def test_ranks_that_share_cores_wait_asleep_also_if_their_world_formed_before_ours_was_imported(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hvd_elastic_ext.worker.comms.horovod import fence_horovod, hvd, mpi_ops

    wraps = [(hvd, "init"), (hvd.elastic, "init"), (hvd, "shutdown"), (hvd.elastic, "shutdown")]
    for owner, name in wraps:
        monkeypatch.setattr(owner, name, inspect.unwrap(getattr(owner, name)))
    for kind in (hvd.optimizer._DistributedOptimizer, hvd.optimizer._DistributedAdasumOptimizer):
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    monkeypatch.setattr(mpi_ops, "mpi_lib", MagicMock())
    monkeypatch.setattr(hvd, "is_initialized", lambda: True)
    monkeypatch.setattr(hvd, "local_size", lambda: ranks)
    fence_horovod()
    assert mpi_ops.mpi_lib.asleep is (ranks > 1)


def test_horovods_own_wrapping_refuses_a_wrapped_optimizer_in_one_line() -> None:
    import torch
    from horovod.torch import optimizer as horovods  # what a script that has imported it before ours has

    from hvd_elastic_ext.worker.comms import AloneComms
    from hvd_elastic_ext.worker.comms.horovod import fence_horovod
    from hvd_elastic_ext.worker.optim.averaging import wrap

    def plain() -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    def by_horovod(kind: type) -> torch.optim.Optimizer:
        made = plain()
        made.__class__ = type("SGD", (torch.optim.SGD,), dict(vars(kind)))  # as its function does, but in no world
        return made

    fence_horovod()
    kinds = horovods._DistributedOptimizer, horovods._DistributedAdasumOptimizer
    for optimizer in (wrap(plain(), comms=AloneComms()), *map(by_horovod, kinds)):
        with pytest.raises(UsageError, match=r"^hvd\.DistributedOptimizer: .* is wrapped already; wrap it once$"):
            horovods.DistributedOptimizer(optimizer)
        with pytest.raises(UsageError, match=r"^elastic\.wrap: .* is wrapped already; wrap it once$"):
            wrap(optimizer, comms=AloneComms())


def test_a_connection_is_shut_for_reading_first_so_that_a_sender_meets_no_error(
    fence: Fence, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = join_world(fence, pairs)
    seen: list[object] = []
    monkeypatch.setattr(fences, "_close_down", lambda cut: seen.extend([ours.recv(1), ours.send(b"late"), len(cut)]))
    fence.cut()
    assert seen == [b"", 4, 2]


def test_a_world_is_cut_after_it_was_left(fence: Fence, pairs: list[Pair]) -> None:
    ours, peer = join_world(fence, pairs)

    def leave() -> bool:
        ours.send(b"last one")
        return peer.recv(8) == b"last one"

    assert fence.closing(leave)()
    assert closed(peer)
    assert fence.cut() == 0


def test_a_peer_that_sends_finishes_before_its_connection_is_cut(
    fence: Fence, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fences, "QUIET_S", 1.0)  # on a busy machine the sender may not be run for a while
    monkeypatch.setattr(fences, "DRAIN_S", 30.0)
    ours, peer = join_world(fence, pairs)
    sent: list[int] = []

    def send() -> None:
        peer.sendall(b"x" * (32 << 20))  # more than the kernel keeps
        sent.append(32)

    sender = threading.Thread(target=send)

    def leave() -> None:
        sender.start()
        assert select.select([ours], [], [], 30.0)[0] == [ours]

    fence.closing(leave)()
    sender.join(30)
    assert sent == [32]


def test_a_world_that_cannot_be_left_is_cut_while_horovods_thread_runs(
    fence: Fence, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fences, "LINGER_S", 0.05)
    ours, _ = join_world(fence, pairs)
    assert fence.closing(lambda: ours.recv(1))() == b""


def test_connections_are_cut_even_if_leaving_fails(fence: Fence, pairs: list[Pair]) -> None:
    _, peer = join_world(fence, pairs)

    def leave() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fence.closing(leave)()
    assert closed(peer)


def test_a_world_is_broken_once_a_connection_has_ended_at_either_end_or_all_were_cut(
    fence: Fence, pairs: list[Pair]
) -> None:
    assert not fence.is_broken()
    ours, peer = join_world(fence, pairs)
    peer.send(b"x")
    assert not fence.is_broken()  # what was not read yet is not an end
    assert ours.recv(1) == b"x"
    peer.shutdown(socket.SHUT_RDWR)
    assert fence.is_broken()
    join_world(fence, pairs)
    assert not fence.is_broken()
    fence.cut()
    assert fence.is_broken()
    ours, _ = join_world(fence, pairs)
    ours.close()  # as Gloo does when it notices
    assert fence.is_broken()


def test_a_socket_that_listens_and_one_that_a_script_adds_and_closes_break_no_world(
    fence: Fence, pairs: list[Pair]
) -> None:
    listening: list[int] = []

    def join_and_listen() -> tuple[int, int]:
        listener = socket.create_server(("127.0.0.1", 0))
        listening.append(listener.detach())
        return horovods()

    one, other = fence.tracking(join_and_listen)()
    pairs.append((socket.socket(fileno=one), socket.socket(fileno=other)))
    assert not fence.is_broken()
    for descriptor in fence.adding(horovods)():
        os.close(descriptor)
    assert not fence.is_broken()
    pairs[-1][0].shutdown(socket.SHUT_RDWR)
    assert fence.is_broken()
    os.close(listening[0])


def test_connections_that_are_added_to_a_world_are_cut_with_it(fence: Fence, pairs: list[Pair]) -> None:
    join_world(fence, pairs)
    one, other = fence.adding(horovods)()
    pairs.append((socket.socket(fileno=one), socket.socket(fileno=other)))
    assert fence.cut() == 4
    assert closed(pairs[-1][1])
