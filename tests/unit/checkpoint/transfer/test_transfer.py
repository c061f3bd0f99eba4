"""A commit on its way: what arrives is what was sent, or nothing counts; strangers hold up nobody."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_elastic_ext.checkpoint.transfer import transfer
from hvd_elastic_ext.checkpoint.transfer.transfer import MAGIC, Incoming, TransferFailed
from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.core.errors import Transient

SECRET, OTHER = b"s" * 32, b"o" * 32
BLOCK = 500
DATA = bytes(range(256)) * 8
"""Several blocks, of which the last is shorter, and no two alike."""
RECORD = Record(Identity(7, 2, 3, 40), 41, loose=10, data=2000, layout=40, tree=8, local=0, stored=True, call=5)
GREETING, PROOF, MAC = len(MAGIC) + 32, 64, 32

Edit = Callable[[bytes], bytes]


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "BLOCK", BLOCK)
        yield


@contextlib.contextmanager
def sending(
    data: bytes = DATA, *, wait_s: float = 20.0, demand_same: Callable[[], None] = lambda: None
) -> Iterator[tuple[tuple[str, int], Future[float]]]:
    """A sender: its address, and what comes of it."""
    with transfer.listening("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        arguments: dict[str, Any] = {"data": memoryview(data), "demand_same": demand_same, "wait_s": wait_s}
        sent = pool.submit(transfer.send, listener, SECRET, RECORD, **arguments)
        yield listener.getsockname(), sent


def received(address: tuple[str, int], secret: bytes = SECRET) -> tuple[Record, bytes]:
    with transfer.receiving(address, secret) as incoming:
        record = incoming.record()
        into = bytearray(record.shared)
        incoming.read(memoryview(into))
        incoming.confirm()
    return record, bytes(into)


def exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := connection.recv(length - len(data))):
        data += more
    return data


def stream_length() -> int:
    """Of all that a sender says after the receiver's proof."""
    payload = len(transfer._header(RECORD, transfer._Keys(b"", b"", b""))) - MAC - 4
    return MAC + 4 + payload + MAC + len(DATA) + MAC * -(-len(DATA) // BLOCK) + MAC


STREAM = stream_length()


@contextlib.contextmanager
def between(address: tuple[str, int], edit: Edit, *, proof: Edit = bytes) -> Iterator[tuple[str, int]]:
    """Somebody on the way who hands on what the sender says as ``edit`` makes it, and then hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def relay() -> None:
            with (
                door.accept()[0] as receiver,
                socket.create_connection(address) as sender,
                contextlib.suppress(OSError),
            ):
                receiver.sendall(exactly(sender, GREETING))
                sender.sendall(proof(exactly(receiver, PROOF)))
                receiver.sendall(edit(exactly(sender, STREAM)))
                receiver.shutdown(socket.SHUT_WR)
                sender.sendall(exactly(receiver, MAC))

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        yield door.getsockname()
        thread.join(20)
        assert not thread.is_alive()


def edited(edit: Edit) -> tuple[Record, bytes]:
    """What a receiver makes of it. Where it refuses, the sender hears of no success either."""
    with sending() as (address, sent), between(address, edit) as door:
        try:
            return received(door)
        except TransferFailed:
            with pytest.raises(TransferFailed):
                sent.result(20)
            raise


def test_what_arrives_is_what_was_sent_and_its_record_is_marked_as_foreign() -> None:
    with sending() as (address, sent):
        assert received(address) == (RECORD, DATA)
        assert sent.result(20) >= 0


@settings(max_examples=25)
@given(at=st.integers(0, STREAM - 1), change=st.integers(1, 255))
def test_one_byte_changed_anywhere_fails_the_transfer_at_both_ends(at: int, change: int) -> None:
    with pytest.raises(TransferFailed):
        edited(lambda data: data[:at] + bytes([data[at] ^ change]) + data[at + 1 :])


@settings(max_examples=15)
@given(length=st.integers(0, STREAM - 1))
def test_a_transfer_that_is_cut_off_anywhere_fails_at_both_ends(length: int) -> None:
    with pytest.raises(TransferFailed):
        edited(lambda data: data[:length])


FIRST = STREAM - MAC - len(DATA) - MAC * -(-len(DATA) // BLOCK)
"""Where the first block begins."""
EACH = BLOCK + MAC


def changing_places(data: bytes) -> bytes:
    second = FIRST + EACH
    return data[:FIRST] + data[second : second + EACH] + data[FIRST:second] + data[second + EACH :]


def test_a_block_and_its_signature_lie_where_these_tests_believe() -> None:
    seen: list[bytes] = []
    edited(lambda data: seen.append(data) or data)  # type: ignore[func-returns-value]
    assert seen[0][FIRST : FIRST + BLOCK] == DATA[:BLOCK]
    assert seen[0][FIRST + EACH : FIRST + EACH + BLOCK] == DATA[BLOCK : 2 * BLOCK]


@pytest.mark.parametrize(
    "edit",
    [
        changing_places,
        lambda data: data[: FIRST + EACH] + data[FIRST : FIRST + EACH] + data[FIRST + 2 * EACH :],
        lambda data: data[:FIRST] + data[FIRST + EACH :],
        lambda data: data[: FIRST + EACH] + data[FIRST : FIRST + EACH] + data[FIRST + EACH :],
    ],
    ids=["two change places", "one comes again in place of the next", "one is left out", "one comes twice"],
)  # fmt: skip
def test_blocks_count_in_their_own_places_only(edit: Edit) -> None:
    with pytest.raises(TransferFailed, match="not what was sent"):
        edited(edit)


def test_a_receiver_of_another_secret_is_hung_up_on_and_the_right_one_served_after_it() -> None:
    with sending() as (address, sent):
        with pytest.raises(TransferFailed, match="hung up"):
            received(address, OTHER)
        assert received(address) == (RECORD, DATA)
        sent.result(20)


def test_a_sender_of_another_secret_is_not_believed() -> None:
    """It cannot know whether the proof it got is right, so it takes any."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def pretend() -> None:
            with door.accept()[0] as receiver:
                nonce = os.urandom(32)
                receiver.sendall(MAGIC + nonce)
                keys = transfer._Keys.of(OTHER, nonce, exactly(receiver, PROOF)[:32])
                receiver.sendall(keys.sender + transfer._header(RECORD, keys))

        thread = threading.Thread(target=pretend, daemon=True)
        thread.start()
        with pytest.raises(TransferFailed, match="does not know the secret"):
            received(door.getsockname())
        thread.join(20)


def test_what_was_said_on_an_earlier_connection_opens_no_other() -> None:
    heard: list[bytes] = []
    said: list[bytes] = []

    def keep(data: bytes) -> bytes:
        said.append(data)
        return data

    with sending() as (address, _), between(address, bytes, proof=lambda data: heard.append(data) or data) as door:  # type: ignore[func-returns-value]
        received(door)
    with sending() as (address, sent):  # a receiver's words again
        with socket.create_connection(address) as connection:
            exactly(connection, GREETING)
            connection.sendall(heard[0])
            assert exactly(connection, 1) == b""
        with between(address, keep) as door:
            assert received(door) == (RECORD, DATA)
        sent.result(20)
    with pytest.raises(TransferFailed, match="does not know the secret"):
        edited(lambda data: said[0])  # a sender's words again


def test_only_so_many_strangers_are_listened_to_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "REQUEST_S", 60.0)
    with contextlib.ExitStack() as stack, sending() as (address, sent):
        strangers = [stack.enter_context(socket.create_connection(address, 10)) for _ in range(transfer.MOST + 3)]
        for stranger in strangers[:3]:
            assert len(exactly(stranger, GREETING + 1)) == GREETING
        assert received(address) == (RECORD, DATA)
        sent.result(20)


def test_strangers_who_say_anything_or_hang_up_hold_up_nobody() -> None:
    with sending() as (address, sent):
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"x" * 10_000, b""):
            with socket.create_connection(address) as stranger, contextlib.suppress(OSError):
                stranger.sendall(words)
        assert received(address) == (RECORD, DATA)
        sent.result(20)


def test_a_stranger_hears_nothing_but_a_greeting_and_is_hung_up_on_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with sending() as (address, sent):
        with monkeypatch.context() as patch:
            patch.setattr(transfer, "REQUEST_S", 0.2)  # for the stranger only
            with socket.create_connection(address) as stranger:
                stranger.settimeout(10)
                assert len(exactly(stranger, 10_000)) == GREETING
        received(address)
        sent.result(20)


def test_a_sender_whose_receiver_never_comes_ends() -> None:
    with sending(wait_s=0.1) as (_, sent), pytest.raises(TransferFailed, match=r"no receiver came within 0\.1 s"):
        sent.result(20)


def test_a_sender_whose_receiver_stands_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "STALL_S", 0.2)
    with (
        sending(bytes(50_000_000)) as (address, sent),
        transfer.receiving(address, SECRET),
        pytest.raises(TransferFailed, match="stood still"),
    ):
        sent.result(20)


def test_a_receiver_whose_sender_stands_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "STALL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as door, pytest.raises(TransferFailed, match="stood still"):
        received(door.getsockname())


def test_neither_end_waits_with_small_parts_for_an_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()

    def noting(end: socket.socket, *option: int) -> None:
        plain(end, *option)
        if end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY):
            seen.add(end.getsockname())

    plain = socket.socket.setsockopt
    with sending() as (address, sent):
        monkeypatch.setattr(socket.socket, "setsockopt", noting)
        received(address)
        sent.result(20)
    assert len(seen) == 2


def test_where_nobody_listens_there_is_no_sender() -> None:
    with transfer.listening("127.0.0.1") as listener:
        address = listener.getsockname()
    with pytest.raises(TransferFailed, match=r"no sender at 127\.0\.0\.1 port"):
        received(address)


def test_a_commit_that_was_replaced_while_it_was_sent_does_not_count_at_the_other_end() -> None:
    def replaced() -> None:
        raise Transient("the commit was replaced")

    with sending(demand_same=replaced) as (address, sent):
        with pytest.raises(TransferFailed, match="hung up"):
            received(address)
        with pytest.raises(Transient, match="was replaced"):
            sent.result(20)


def test_a_commit_that_the_receiver_does_not_hold_in_the_end_was_not_sent() -> None:
    with sending() as (address, sent):
        with transfer.receiving(address, SECRET) as incoming:
            incoming.read(memoryview(bytearray(incoming.record().shared)))
        with pytest.raises(TransferFailed, match="hung up"):
            sent.result(20)


GOOD = {"identity": [7, 2, 3, 40], "stored": False, "step": 1, "loose": 0, "data": 9, "layout": 2, "tree": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": -1}, {"layout": -64}, {"data": (1 << 40) + 1}, {"data": 1 << 40, "tree": 1}, {"data": 1 << 70},
        {"loose": 10}, {"tree": 1.0}, {"tree": True}, {"tree": None}, {"stored": 1}, {"step": -1}, {"step": 1 << 63},
        {"identity": [1, 2, 3]}, {"identity": [1, 2, 3, -4]}, {"identity": [1, 2, 3, "4"]}, {"identity": 5},
        {"identity": [1, 2, 3, 1 << 63]},
    ],
)  # fmt: skip
def test_a_record_of_lengths_that_cannot_be_is_refused_before_there_is_room_for_them(wrong: dict[str, Any]) -> None:
    with pytest.raises(TransferFailed):
        transfer.record_of(json.dumps({**GOOD, **wrong}).encode())


@given(
    st.one_of(st.binary(max_size=60), st.recursive(st.none() | st.integers(), st.lists).map(json.dumps).map(str.encode))
)
def test_whatever_else_comes_in_place_of_a_record_is_refused_in_one_line(payload: bytes) -> None:
    with pytest.raises(TransferFailed, match="the sender's record is invalid"):
        transfer.record_of(payload)


def test_a_record_that_is_too_long_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((1 << 30).to_bytes(4, "big"))
        with pytest.raises(TransferFailed, match="too long"):
            Incoming(ours, transfer._Keys.of(SECRET, b"", b"")).record()
