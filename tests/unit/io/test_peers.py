"""Whose connection it is, by each way in which a kernel tells; who has gone is nobody."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import struct
from collections.abc import Iterator

import pytest

from hvd_elastic_ext.io import peers
from hvd_elastic_ext.io.peers import (
    KernelLookup,
    OwnerLookup,
    is_trusted,
    owner,
    owner_by_netlink,
    owner_by_proc,
    owner_lookup,
)

RESET = struct.pack("ii", 1, 0)


@pytest.fixture(params=[owner_by_netlink, owner_by_proc])
def lookup(request: pytest.FixtureRequest) -> OwnerLookup:
    lookup: OwnerLookup = request.param
    return lookup


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: who came, and who was come to."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as came:
        accepted, _ = listener.accept()
        with accepted:
            yield came, accepted


@pytest.fixture
def untold() -> Iterator[None]:
    """As before anything was found out in this process."""
    owner_lookup.cache_clear()
    yield
    owner_lookup.cache_clear()


def test_a_connection_of_ours_is_ours(pair: tuple[socket.socket, socket.socket], lookup: OwnerLookup) -> None:
    assert owner(pair[1], lookup) == os.geteuid()


def test_a_connection_of_somebody_else_is_theirs(
    pair: tuple[socket.socket, socket.socket], lookup: OwnerLookup
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    os.fchown(pair[0].fileno(), 65534, 65534)  # as the kernel has it: the owner of the socket's file
    assert owner(pair[1], lookup) == 65534
    assert not is_trusted(owner(pair[1], lookup))


@pytest.mark.parametrize("how", ["reset", "closed", "half closed"])
def test_who_has_hung_up_is_nobody(pair: tuple[socket.socket, socket.socket], lookup: OwnerLookup, how: str) -> None:
    came, accepted = pair
    if how == "half closed":
        came.shutdown(socket.SHUT_WR)
    else:
        if how == "reset":
            came.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        came.close()
    assert owner(accepted, lookup) is None
    assert not is_trusted(None)


def test_one_connection_to_the_kernel_answers_about_many_and_an_answer_that_was_left_is_not_taken_for_another(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    accepted = pair[1]
    with contextlib.closing(KernelLookup()) as lookup:
        nobody = ("127.0.0.1", 1)
        assert lookup(nobody, accepted.getsockname()) is None
        used = lookup._kernel
        assert used is not None
        with unread(lookup):
            lookup(nobody, accepted.getsockname())
        assert owner(accepted, lookup) == os.geteuid()
        assert lookup._kernel is used
    assert lookup._kernel is None


@contextlib.contextmanager
def unread(lookup: KernelLookup) -> Iterator[None]:
    """The question is asked, and then this process fails to read the answer."""
    kernel = lookup._kernel

    class Deaf:
        def sendto(self, data: bytes, to: tuple[int, int]) -> int:
            assert kernel is not None
            return kernel.sendto(data, to)

        def recv(self, size: int) -> bytes:
            raise OSError(errno.ENOBUFS, "no buffer")

    lookup._kernel = Deaf()  # type: ignore[assignment]
    with contextlib.suppress(OSError):
        yield
    lookup._kernel = kernel


def test_who_hangs_up_while_the_kernel_is_asked_is_nobody(
    pair: tuple[socket.socket, socket.socket], lookup: OwnerLookup
) -> None:
    came, accepted = pair

    def slow(theirs: peers.Address, ours: peers.Address) -> int | None:
        uid = lookup(theirs, ours)
        came.close()
        return uid

    assert owner(accepted, slow) is None


def test_the_quicker_way_is_taken_and_the_other_where_it_is_barred(
    untold: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def barred(theirs: peers.Address, ours: peers.Address) -> int | None:
        raise OSError(errno.EPROTONOSUPPORT, "no such protocol")

    assert owner_lookup() is owner_by_netlink
    owner_lookup.cache_clear()
    monkeypatch.setattr(peers, "owner_by_netlink", barred)
    assert owner_lookup() is owner_by_proc
    owner_lookup.cache_clear()
    monkeypatch.setattr(peers, "_PROC", "/proc/net/nothing")
    assert owner_lookup() is None


def test_with_no_descriptor_left_nothing_is_found_out_yet(untold: None) -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, usual[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            owner_lookup()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        os.close(highest)
    assert owner_lookup() is owner_by_netlink
