"""Transfers a commit from one host to another: both ends prove that they belong to the job, and every byte is verified.

The sender listens, the receiver connects. Both have a secret that no process outside the job has. On the connection::

    sender     16 bytes that name this protocol, 32 random ones
    receiver   32 random bytes, HMAC-SHA256(secret, "receiver" + both random parts)
    sender     HMAC-SHA256(secret, "sender" + both random parts)
               4 bytes length, the record as JSON, its HMAC
               blocks of 4 MiB (the last is shorter): the bytes, then their HMAC, which covers the block's number
               the HMAC of "whole": the commit was the same in the sender's memory until its last byte was sent
    receiver   the HMAC of "held": it is sealed there

The HMACs from the record on use a key from the secret and both random parts, so data of another connection is invalid.
Bytes are signed, but not encrypted, like those of the collectives of training. A client without a proof gets only the
greeting, its connection is closed, and it delays no other client. All errors are ``Transient``.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from hvd_elastic_ext.core.commit_record import Identity, Record
from hvd_elastic_ext.core.connections import MOST, REQUEST_S
from hvd_elastic_ext.core.errors import Transient
from hvd_elastic_ext.core.json_text import to_text

MAGIC: Final = b"hvd-elastic-mem\x01"
"""The first bytes of a sender; the last byte is the version of the protocol."""
BLOCK: Final = 4 << 20
"""Bytes of a block."""
LONGEST: Final = 1 << 40
"""Most bytes of a commit that is received."""
WAIT_S: Final = 60.0
"""Seconds that a sender waits for its receiver."""
STALL_S: Final = 20.0
"""Seconds that one end waits for the next bytes of the other."""

ROOM_S: Final = 0.1
"""Seconds until the next accept after one has failed for lack of descriptors."""

_NONCE: Final = 32
_MAC: Final = 32
_LENGTH: Final = 4
_LONGEST_HEADER: Final = 4096
_AHEAD: Final = 2
"""Number of blocks that are signed or verified while others are sent."""
_COUNTS: Final = ("step", "loose", "data", "layout", "tree", "call")


Job = TypeVar("Job")
Done = TypeVar("Done")


class TransferFailed(Transient):
    """A commit was not transferred. The message is one line with the reason."""


class _Keys(NamedTuple):
    """The keys of one connection: for the proof of each end, and for the signatures after it."""

    receiver: bytes
    sender: bytes
    session: bytes

    @classmethod
    def of(cls, secret: bytes, sender: bytes, receiver: bytes) -> _Keys:
        both = sender + receiver
        return cls(*(hmac.digest(secret, label + both, "sha256") for label in (b"receiver", b"sender", b"session")))

    def sign(self, label: bytes, data: memoryview | bytes = b"") -> bytes:
        # Hash the data first, on its own: other threads can run meanwhile.
        return hmac.digest(self.session, label + hashlib.sha256(data).digest(), "sha256")

    def sign_block(self, number: int, data: memoryview) -> bytes:
        return self.sign(b"block" + number.to_bytes(8, "big"), data)


# --- the sender


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """Return a socket that listens on ``address``, on any port. Raises ``OSError`` if that fails."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=MOST) as listener:
        yield listener


def send(
    listener: socket.socket,
    secret: bytes,
    record: Record,
    *,
    data: memoryview,
    demand_same: Callable[[], None],
    wait_s: float,
) -> float:
    """Send ``data``, the shared regions of the commit of ``record``, to the first client that knows ``secret``, which
    must connect within ``wait_s``. ``demand_same`` raises if the bytes were replaced meanwhile. Returns the seconds
    that it took, without the time until the receiver came.
    """
    connection, keys = _receiver(listener, secret, wait_s)
    listener.close()
    began = time.monotonic()
    with connection:
        _write(connection, keys.sender + _header(record, keys))
        _send_blocks(connection, keys, data)
        demand_same()
        _write(connection, keys.sign(b"whole"))
        if not hmac.compare_digest(_read(connection, _MAC), keys.sign(b"held")):
            raise TransferFailed("the receiver did not say that it holds the commit")
    return time.monotonic() - began


class _Caller:
    """A connected client that has not yet proved to be the receiver."""

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection = connection
        self.until = now + REQUEST_S
        self._nonce = os.urandom(_NONCE)
        self._received = bytearray()
        connection.setblocking(False)

    def greet(self) -> None:
        self.connection.send(MAGIC + self._nonce)

    def proved(self, secret: bytes) -> _Keys | None:
        """Return the connection's keys after the proof; None before it. Raises ``OSError`` for a wrong proof."""
        more = self.connection.recv(_NONCE + _MAC - len(self._received))
        self._received += more
        if not more:
            raise ConnectionResetError
        if len(self._received) < _NONCE + _MAC:
            return None
        keys = _Keys.of(secret, self._nonce, bytes(self._received[:_NONCE]))
        if not hmac.compare_digest(keys.receiver, self._received[_NONCE:]):
            raise PermissionError
        return keys


def _receiver(listener: socket.socket, secret: bytes, wait_s: float) -> tuple[socket.socket, _Keys]:
    """Return the first client that proves to be the receiver. Closes all others."""
    deadline = time.monotonic() + wait_s
    callers: list[_Caller] = []
    listener.setblocking(False)
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(listener, selectors.EVENT_READ)
        stack.callback(lambda: _close(callers))
        while (now := time.monotonic()) < deadline:
            due = min([deadline, *(caller.until for caller in callers)])
            for key, _ in selector.select(max(0.0, due - now)):
                if key.data is None:
                    _accept(listener, selector, callers)
                elif (keys := _keys_of(key.data, secret)) is not None:
                    callers.remove(key.data)
                    key.data.connection.settimeout(STALL_S)
                    return key.data.connection, keys
            _hang_up(callers, selector)
    raise TransferFailed(f"no receiver came within {wait_s:g} s")


def _accept(listener: socket.socket, selector: selectors.BaseSelector, callers: list[_Caller]) -> None:
    try:
        connection, _ = listener.accept()
    except (BlockingIOError, ConnectionError):  # the caller has disconnected already
        return
    except OSError:  # no descriptors left: without a pause, the next turn would try again at once
        if callers:
            callers[0].until = 0.0
        time.sleep(ROOM_S)
        return
    caller = _Caller(connection, time.monotonic())
    callers.append(caller)
    selector.register(connection, selectors.EVENT_READ, caller)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what we write last must not wait
        caller.greet()
    except OSError:
        caller.until = 0.0
    if len(callers) > MOST:
        callers[0].until = 0.0


def _keys_of(caller: _Caller, secret: bytes) -> _Keys | None:
    try:
        return caller.proved(secret)
    except BlockingIOError:
        return None
    except OSError:
        caller.until = 0.0
        return None


def _close(callers: Iterable[_Caller]) -> None:
    for caller in callers:
        caller.connection.close()


def _hang_up(callers: list[_Caller], selector: selectors.BaseSelector) -> None:
    """Close connections whose time is over."""
    now = time.monotonic()
    for caller in [each for each in callers if each.until <= now]:
        callers.remove(caller)
        selector.unregister(caller.connection)
        caller.connection.close()


def _header(record: Record, keys: _Keys) -> bytes:
    header = {
        "identity": [*record.identity],
        "stored": record.stored,
        **{name: getattr(record, name) for name in _COUNTS},
    }
    payload = to_text(header).encode("ascii")
    return len(payload).to_bytes(_LENGTH, "big") + payload + keys.sign(b"record", payload)


def _send_blocks(connection: socket.socket, keys: _Keys, data: memoryview) -> None:
    for (_, block), mac in _ahead(lambda each: (each, keys.sign_block(*each)), _blocks(data)):
        _write(connection, block)
        _write(connection, mac)


# --- the receiver


class Incoming:
    """The receiver's end of a connection, after the sender's proof."""

    def __init__(self, connection: socket.socket, keys: _Keys) -> None:
        self._connection = connection
        self._keys = keys

    def record(self) -> Record:
        """Return the record of the sent commit, without a local region. Raises :class:`TransferFailed` if the sender
        did not sign it."""
        length = int.from_bytes(_read(self._connection, _LENGTH), "big")
        if length > _LONGEST_HEADER:
            raise TransferFailed("the sender's record is too long")
        payload = _read(self._connection, length)
        self._demand(self._keys.sign(b"record", payload), "the record")
        return record_of(payload)

    def read(self, into: memoryview) -> None:
        """Fill ``into`` with the commit. Raises :class:`TransferFailed` unless each byte is verified."""
        for number, whole in _ahead(self._is_whole, self._arriving(into)):
            if not whole:
                raise TransferFailed(f"block {number} of the commit is not what was sent")
        self._demand(self._keys.sign(b"whole"), "the end of the commit")

    def confirm(self) -> None:
        """Tell the sender that the commit is held here. Ignores a closed connection."""
        with contextlib.suppress(OSError):
            self._connection.sendall(self._keys.sign(b"held"))

    def _arriving(self, into: memoryview) -> Iterator[tuple[int, memoryview, bytes]]:
        for number, block in _blocks(into):
            _read_into(self._connection, block)
            yield number, block, _read(self._connection, _MAC)

    def _is_whole(self, arrived: tuple[int, memoryview, bytes]) -> tuple[int, bool]:
        number, block, mac = arrived
        return number, hmac.compare_digest(mac, self._keys.sign_block(number, block))

    def _demand(self, mac: bytes, what: str) -> None:
        if not hmac.compare_digest(_read(self._connection, _MAC), mac):
            raise TransferFailed(f"{what} is not what was sent")


@contextmanager
def receiving(address: tuple[str, int], secret: bytes) -> Iterator[Incoming]:
    """Connect to the sender at ``address``, which must prove that it knows ``secret``. Raises :class:`TransferFailed`
    otherwise."""
    try:
        connection = socket.create_connection(address, timeout=STALL_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise TransferFailed(f"no sender at {address[0]} port {address[1]}: {error}") from None
    with connection:
        yield Incoming(connection, _handshake(connection, secret))


def _handshake(connection: socket.socket, secret: bytes) -> _Keys:
    greeting = _read(connection, len(MAGIC) + _NONCE)
    if not greeting.startswith(MAGIC):
        raise TransferFailed("what listens there is not a sender of this version")
    mine = os.urandom(_NONCE)
    keys = _Keys.of(secret, greeting[len(MAGIC) :], mine)
    _write(connection, mine + keys.receiver)
    if not hmac.compare_digest(_read(connection, _MAC), keys.sender):
        raise TransferFailed("what listens there does not know the secret of this transfer")
    return keys


def record_of(payload: bytes) -> Record:
    """Read a received record. Raises :class:`TransferFailed` for an invalid or impossible one."""
    try:
        header = json.loads(payload)
        identity, stored = Identity(*header["identity"]), header["stored"]
        counts = {name: header[name] for name in _COUNTS}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise TransferFailed("the sender's record is invalid") from None
    numbers = all(type(number) is int and 0 <= number < 1 << 63 for number in (*identity, *counts.values()))
    if not numbers or type(stored) is not bool:
        raise TransferFailed("the sender's record is invalid")
    record = Record(identity, **counts, local=0, stored=stored)
    if record.loose > record.data or record.shared > LONGEST:
        raise TransferFailed("the lengths in the sender's record cannot be")
    return record


# --- both


def _blocks(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    for start in range(0, len(data), BLOCK):
        yield start // BLOCK, data[start : start + BLOCK]


def _ahead(work: Callable[[Job], Done], jobs: Iterable[Job]) -> Iterator[Done]:
    """Yield the result of ``work`` for each job in order; the next ones are computed meanwhile."""
    with ThreadPoolExecutor(1, thread_name_prefix="hvd-elastic signs") as pool:
        under_way: deque[Future[Done]] = deque()
        for job in jobs:
            under_way.append(pool.submit(work, job))
            if len(under_way) > _AHEAD:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def _read(connection: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    _read_into(connection, memoryview(data))
    return bytes(data)


def _read_into(connection: socket.socket, into: memoryview) -> None:
    with _connection_errors():
        while into:
            count = connection.recv_into(into)
            if not count:
                raise TransferFailed("the other end hung up")
            into = into[count:]


def _write(connection: socket.socket, data: memoryview | bytes) -> None:
    with _connection_errors():
        connection.sendall(data)


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Translate errors of the connection to :class:`TransferFailed`."""
    try:
        yield
    except TimeoutError:
        raise TransferFailed(f"the other end stood still for {STALL_S:g} s") from None
    except OSError as error:
        raise TransferFailed(f"the connection was lost: {error.strerror or error}") from None
