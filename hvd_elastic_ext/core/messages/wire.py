"""The frames between launcher and agents: JSON objects, signed, numbered and limited in size. Pure: no socket here.

A connection begins with 16 bytes that name this protocol and 32 random ones of
the launcher, then 32 random ones of the agent. The key of the connection is derived from both and the job's key.
Everything after is frames::

    4 bytes    length of the rest, big endian
    32 bytes   HMAC-SHA256(session key, direction + 8 bytes sequence number + payload)
    payload    one JSON object, ASCII

Each direction counts its frames from 0, so nothing can be replayed, reordered,
left out or sent back. Frames are signed, not secret: no secret goes into one.

:class:`LauncherWire` and :class:`AgentWire` are the two ends. An invalid message from a peer is a :class:`WireError`.
No later byte can be trusted, so the connection must be closed. Agents import this module: it must load fast.
"""

from __future__ import annotations

import hmac
import json
import math
import os
from collections.abc import Mapping
from typing import Any, Final

MAGIC: Final = b"hvd-elastic-ctl\x01"
"""The first bytes of a launcher; the last byte is the version of the protocol."""
NONCE_SIZE: Final = 32
KEY_SIZE: Final = 32
"""Bytes of a job's key."""
MAX_FIRST: Final = 64 << 10
"""Largest first frame of either direction in bytes, without its length: it is stored before the peer has proved that it
has the key."""
MAX_FRAME: Final = 8 << 20
"""Largest later frame in bytes, without its length."""

FROM_AGENT: Final = b"a"
FROM_LAUNCHER: Final = b"l"

_HEAD: Final = 4
_MAC: Final = 32


class WireError(Exception):
    """A connection must end, or a message cannot be sent. The text is one line that quotes nothing of the message."""


def key_from_hex(text: object) -> bytes:
    """Read the job's key from its text in a join line. Raises :class:`WireError`, which does not quote it."""
    try:
        key = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        key = b""
    return _checked(key)


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_SIZE:
        raise WireError(f"the job's key must be {KEY_SIZE} bytes, written as {2 * KEY_SIZE} hexadecimal digits")
    return key


def _session_key(job_key: bytes, launcher_nonce: bytes, agent_nonce: bytes) -> bytes:
    return hmac.digest(job_key, b"session" + launcher_nonce + agent_nonce, "sha256")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is out of range")
    return number


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_encode: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
decode: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant).decode
"""Decode strict JSON, which can be encoded again. Raises ``ValueError`` or ``RecursionError``."""


class Sealer:
    """Encodes and signs messages as frames, for one direction of one connection."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._direction = direction
        self._sequence = 0

    def seal(self, message: Mapping[str, Any]) -> bytes:
        """Return one frame. Raises :class:`WireError`, without a change of state, if ``message`` is not JSON or too
        large."""
        try:
            payload = _encode(dict(message)).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise WireError(f"a message that is not JSON cannot be sent ({type(error).__name__})") from None
        size, limit = _MAC + len(payload), _limit(self._sequence)
        if size > limit:
            raise WireError(f"a message of {size} bytes cannot be sent; the limit is {limit}")
        mac = _sign(self._keyed, self._direction, self._sequence, payload=payload)
        self._sequence += 1
        return size.to_bytes(_HEAD, "big") + mac + payload


class Opener:
    """Verifies and decodes the bytes of one direction of one connection, which arrive in pieces of any size."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._direction = direction
        self._sequence = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the messages that ``data`` completes. Raises :class:`WireError` for invalid data."""
        buffer = self._buffer
        buffer += data
        messages = []
        start = 0
        while (end := self._frame_end(start)) is not None:
            messages.append(self._open(bytes(memoryview(buffer)[start + _HEAD : end])))
            self._sequence += 1
            start = end
        del buffer[:start]
        return messages

    def _frame_end(self, start: int) -> int | None:
        """Return the end of the frame at ``start``; None if the frame is incomplete."""
        if len(self._buffer) - start < _HEAD:
            return None
        size, limit = int.from_bytes(self._buffer[start : start + _HEAD], "big"), _limit(self._sequence)
        if size > limit:
            raise WireError(f"a frame is too large: more than {limit} bytes")
        if size < _MAC:
            raise WireError("a frame is too short to be signed")
        end = start + _HEAD + size
        return end if end <= len(self._buffer) else None

    def _open(self, frame: bytes) -> dict[str, Any]:
        mac, payload = frame[:_MAC], frame[_MAC:]
        if not hmac.compare_digest(mac, _sign(self._keyed, self._direction, self._sequence, payload=payload)):
            raise WireError("a frame is not signed with this job's key, or was altered, replayed or left out")
        try:
            message = decode(payload.decode("ascii"))
        except (ValueError, RecursionError) as error:
            raise WireError(f"a frame does not hold JSON ({type(error).__name__})") from None
        if not isinstance(message, dict):
            raise WireError("a frame holds JSON that is not an object")
        return message


def _limit(sequence: int) -> int:
    return MAX_FRAME if sequence else MAX_FIRST


def _sign(keyed: hmac.HMAC, direction: bytes, sequence: int, *, payload: bytes) -> bytes:
    mac = keyed.copy()  # to hash the key again takes longer than all the rest
    mac.update(direction + sequence.to_bytes(8, "big") + payload)
    return mac.digest()


class _End:
    """One end of a connection: an unencrypted greeting, then frames. The first error ends everything.

    ``expects``: the beginning of the other end's greeting, before its nonce. ``sends`` and ``receives``: directions.
    """

    def __init__(self, key: bytes, nonce: bytes | None, *, expects: bytes, sends: bytes, receives: bytes) -> None:
        self._key = _checked(key)
        self._nonce = os.urandom(NONCE_SIZE) if nonce is None else nonce
        self._expects = expects
        self._sends = sends
        self._receives = receives
        self._received = bytearray()
        self._sealer: Sealer | None = None
        self._opener: Opener | None = None
        self._broken: str | None = None

    @property
    def ready(self) -> bool:
        """Whether the other end's greeting has arrived, so that messages can be sealed."""
        return self._sealer is not None

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the messages that ``data`` completes. Raises :class:`WireError` for an invalid one, and at each later
        call."""
        if self._broken is not None:
            raise WireError(self._broken)
        try:
            return self._opener.feed(data) if self._opener is not None else self._greeted(data)
        except WireError as error:
            self._broken = str(error)
            raise

    def seal(self, message: Mapping[str, Any]) -> bytes:
        """Return the bytes of ``message``. Raises :class:`WireError` before :attr:`ready`, and for a message that
        cannot be sent."""
        if self._sealer is None:
            raise WireError("nothing can be sent before the other end has greeted")
        return self._sealer.seal(message)

    def _greeted(self, data: bytes) -> list[dict[str, Any]]:
        self._received += data
        begin, end = len(self._expects), len(self._expects) + NONCE_SIZE
        if not self._expects.startswith(self._received[:begin]):
            raise WireError("the other end is not a launcher of this version")
        if len(self._received) < end:
            return []
        nonces = {self._sends: self._nonce, self._receives: bytes(self._received[begin:end])}
        key = _session_key(self._key, nonces[FROM_LAUNCHER], nonces[FROM_AGENT])
        self._sealer, self._opener = Sealer(key, self._sends), Opener(key, self._receives)
        rest = bytes(self._received[end:])
        self._received.clear()
        return self._opener.feed(rest)


class LauncherWire(_End):
    """The launcher's end: send :attr:`greeting` on accept, then feed. ``key`` is the job's."""

    def __init__(self, key: bytes, *, nonce: bytes | None = None) -> None:
        super().__init__(key, nonce, expects=b"", sends=FROM_LAUNCHER, receives=FROM_AGENT)

    @property
    def greeting(self) -> bytes:
        """The first bytes that the launcher sends."""
        return MAGIC + self._nonce


class AgentWire(_End):
    """The agent's end: feed until :attr:`ready`, then seal the hello. ``key`` is the job's."""

    def __init__(self, key: bytes, *, nonce: bytes | None = None) -> None:
        super().__init__(key, nonce, expects=MAGIC, sends=FROM_AGENT, receives=FROM_LAUNCHER)
        self._sent_nonce = False

    def seal(self, message: Mapping[str, Any]) -> bytes:
        """See the base class. The agent's greeting is in front of the first message."""
        frame = super().seal(message)
        if self._sent_nonce:
            return frame
        self._sent_nonce = True
        return self._nonce + frame
