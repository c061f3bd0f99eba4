"""The orders that an agent accepts: one JSON object for each line, checked before execution. Pure.

A new order is a class here, its row in ``_READERS``, and what executes it: :meth:`Slot.execute` for an order to a slot,
:meth:`Agent._apply` for any other. The launcher sends it by ``JobState.order`` (functions with a name of their own are
in ``launcher/driver/orders.py``); the simulated agent ignores what it does not know (``simulate/cluster/agent.py``). An
order that is refused to a slot whose process has not started yet counts as a refused start. A bad order changes
nothing, and its refusal repeats no value: an environment may contain secrets.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

GRACE_S: Final = 5.0
"""Seconds between asking a process tree to end and killing it, unless the order says otherwise."""
COMMITS: Final = 3
"""Commit memories of a slot, unless the order says otherwise: two are used in turn, the third while one is kept."""
OUTPUTS: Final = ("frames", "stderr")
"""Where a process's output may go: in frames to the agent's standard output, or unchanged to its standard error."""
MAX_COMMITS: Final = 16
MAX_LINE: Final = 8 << 20
"""Bytes of the longest order. The kernel accepts far less for arguments and environment together."""
MAX_ANSWER: Final = 1 << 20
"""Bytes of the longest answer to a question."""
HEARTBEAT_S: Final = 1.0
ORPHAN_GRACE_S: Final = 60.0


class Start(NamedTuple):
    """Start a process in a free slot."""

    slot: int
    argv: tuple[str, ...]
    env: dict[str, str]
    """Added to the agent's own environment."""
    cwd: str | None = None
    """The directory in which it runs; None: that of the agent."""
    grace_s: float = GRACE_S
    commits: int = COMMITS
    core: bool = False
    """Whether it may leave a core dump."""
    output: str = "frames"
    """One of :data:`OUTPUTS`."""
    life: int | None = None
    """Its number, above that of the slot's last process; None: the next one."""
    link: bool = False
    """Whether it gets a link and a rendezvous proxy."""
    note: str | None = None
    """A text for the next launcher; the agent does not read it."""
    stdin: bool = False
    """Whether the process reads the launcher's standard input, if this agent has inherited it."""


class Stop(NamedTuple):
    """End a slot's process with everything that it started. Without ``grace_s``, use the grace from its start order."""

    slot: int
    grace_s: float | None = None


class Kill(NamedTuple):
    """Kill a slot's process with everything that it started, at once."""

    slot: int


class AnswerQuestion(NamedTuple):
    """The answer to question ``number`` of a slot."""

    slot: int
    number: int
    status: int
    body: bytes


class Tell(NamedTuple):
    """Pass ``message`` to processes."""

    to: dict[int, int]
    """By slot, the life of the process that must get it."""
    message: dict[str, Any]


class Forget(NamedTuple):
    """As :class:`Stop`, and release the slot's commit memory."""

    slot: int


class RunHelper(NamedTuple):
    """Run a helper for ``request``, with the commit memory of ``slots``."""

    number: int
    slots: tuple[int, ...]
    request: dict[str, Any]


class Drop(NamedTuple):
    """End the helper. The commits in ``slots`` that were kept for it may be overwritten."""

    slots: tuple[int, ...]


class Finish(NamedTuple):
    """Start no more processes; end when all slots are at rest."""


class Pace(NamedTuple):
    """The intervals between heartbeats."""

    heartbeat_s: float = HEARTBEAT_S
    """Seconds between two messages."""
    figures_every: int = 1
    """One message of so many reports every process; the others report only silent ones."""


class Join(NamedTuple):
    """Serve the launcher at ``address`` over a connection, from now on, as the agent of ``host`` in ``job``."""

    job: str
    host: str
    key: str
    address: tuple[str, int]
    incarnation: int
    orphan_grace_s: float
    argv: tuple[str, ...] = ()
    """Command of each process whose start order has none."""
    env: dict[str, str] = {}  # noqa: RUF012 - it is never changed
    """Environment of each process; its start order goes first. Sent only here: others can read the connection."""
    code: bytes = b""
    """Files whose checksum the agent reports: see ``io/code/checksum.py``."""


class End(NamedTuple):
    """Let the agent of ``host`` in ``job`` end everything, and itself, after ``grace_s``."""

    job: str
    host: str
    key: str
    grace_s: float


class Options(NamedTuple):
    """The options of the job that agents need. A launcher sends them in its welcome: a later one may have others."""

    orphan_grace_s: float | None = None
    """How long the host runs on without a launcher; None: as long as the join order says."""
    notices_from: str | None = None
    """The cloud whose metadata service the host asks whether it is taken back, or ``auto``; None: none."""
    metadata_url: str | None = None
    """The URL of that service; None: that of the host's own environment, or else the usual one."""
    notice_file: str | None = None
    """A file with notices for the host; None: that of the host's own environment, if it names one."""
    metrics: str | None = None
    """ADDRESS:PORT at which the agent answers Prometheus; None: nowhere."""
    observe: bool = False
    """Whether the agent reports the load of its host."""


class Welcome(NamedTuple):
    """The first message of a launcher."""

    incarnation: int
    pace: Pace
    options: Options


ToSlot = Stop | Kill | AnswerQuestion | Forget
Order = Start | ToSlot | Tell | RunHelper | Drop | Finish | Pace | Join | End


def entry_of(line: bytes | None) -> dict[str, Any]:
    """Return the JSON object in a line; None is a line that was too long to keep. Raises :class:`OrderError`."""
    if line is None:
        raise OrderError(f"is longer than {MAX_LINE} bytes")
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        # Report no part of the line itself: an environment may contain secrets.
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise OrderError(f"is not JSON{where}") from None
    if not isinstance(entry, dict):
        raise OrderError("is not a JSON object")
    return entry


def read(entry: dict[str, Any]) -> Order:
    """Read one order from its JSON object. Raises :class:`OrderError`."""
    fields = Fields(entry)
    kind = fields.choice("do", tuple(_READERS))
    order: Order = _READERS[kind](fields)
    fields.done()
    return order


def completed(entry: dict[str, Any], order: Join) -> dict[str, Any]:
    """Return an order from the connection, completed with the values for all processes from the join order."""
    env = {} if entry.get("env") is None else entry["env"]
    if entry.get("do") != "start" or not isinstance(env, dict):
        return entry
    usual = {"argv": list(order.argv)} if order.argv else {}
    return {**usual, **entry, "env": {**order.env, **env}}


def read_welcome(entry: dict[str, Any]) -> Welcome:
    """Read the first message of a launcher. Raises :class:`OrderError`."""
    fields = Fields(entry)
    fields.choice("do", ("welcome",))
    incarnation = fields.whole("incarnation", most=MAX_COUNT)
    # A later launcher may send fields that this agent does not know.
    return Welcome(incarnation, _pace(fields), _options(fields))


def _options(fields: Fields) -> Options:
    return Options(
        orphan_grace_s=fields.seconds("orphan_grace_s", None),
        notices_from=fields.text("notices_from"),
        metadata_url=fields.text("metadata_url"),
        notice_file=fields.text("notice_file"),
        metrics=fields.text("metrics"),
        observe=fields.flag("observe"),
    )


def _pace(fields: Fields) -> Pace:
    return Pace(fields.span("heartbeat_s", HEARTBEAT_S), fields.whole("figures_every", 1, least=1, most=MAX_COUNT))


def _start(fields: Fields) -> Start:
    return Start(
        slot=fields.slot(),
        argv=fields.words("argv"),
        env=fields.table("env"),
        cwd=fields.text("cwd"),
        grace_s=fields.span("grace_s", GRACE_S),
        commits=fields.whole("commits", COMMITS, most=MAX_COMMITS),
        core=fields.flag("core"),
        output=fields.choice("output", OUTPUTS, "frames"),
        life=fields.life(),
        link=fields.flag("link"),
        note=None if fields.peek("note") is None else fields.name("note"),
        stdin=fields.flag("stdin"),
    )


def _answer(fields: Fields) -> AnswerQuestion:
    slot, number = fields.slot(), fields.whole("id", most=MAX_COUNT)
    return AnswerQuestion(
        slot, number, fields.whole("status", least=100, most=599), fields.data("body", most=MAX_ANSWER)
    )


def _join(fields: Fields) -> Join:
    return Join(
        job=fields.name("job"),
        host=fields.name("host"),
        key=fields.name("key"),
        address=_address(fields),
        incarnation=fields.whole("incarnation", most=MAX_COUNT),
        orphan_grace_s=fields.span("orphan_grace_s", ORPHAN_GRACE_S),
        argv=() if fields.peek("argv") is None else fields.words("argv"),
        env=fields.table("env"),
        code=fields.data("code", most=MAX_ANSWER),
    )


def _address(fields: Fields) -> tuple[str, int]:
    match fields.take("launcher"):
        case [str(name), int(port)] if is_name(name) and type(port) is int and port in _PORTS:
            return name, port
    raise fields.wrong("launcher", "an address and a port")


_PORTS: Final = range(1, 65536)

_READERS: Final[dict[str, Any]] = {
    "start": _start,
    "stop": lambda fields: Stop(fields.slot(), fields.seconds("grace_s", None)),
    "kill": lambda fields: Kill(fields.slot()),
    "answer": _answer,
    "tell": lambda fields: Tell(fields.lives("to"), fields.thing("message")),
    "forget": lambda fields: Forget(fields.slot()),
    "helper": lambda fields: RunHelper(
        fields.whole("id", most=MAX_COUNT), fields.slots("slots"), fields.thing("request")
    ),
    "drop": lambda fields: Drop(fields.slots("slots")),
    "finish": lambda fields: Finish(),
    "pace": _pace,
    "join": _join,
    "end": lambda fields: End(fields.name("job"), fields.name("host"), fields.name("key"), fields.span("grace_s", 0.0)),
}


# --- fields ----------------------------------------------------------------------------------------------


MAX_SLOT: Final = 1023
"""Highest number of a slot: of a host with as many slots as :data:`hvd_elastic_ext.core.hosts.MAX_SLOTS` allows."""
MAX_COUNT: Final = (1 << 63) - 1
"""Largest value of a count that grows for the whole life of a job."""

_LONG_S: Final = 1e6
_REQUIRED: Final = object()


class OrderError(ValueError):
    """An invalid order. The message is one line without any of its values; ``slot`` is set if that could be read."""

    def __init__(self, problem: str, slot: int | None = None) -> None:
        super().__init__(problem)
        self.slot = slot


class Fields:
    """Takes the fields of an object one by one and refuses wrong, missing and unknown ones.

    A field that is null counts as missing. Methods that take a field raise :class:`OrderError`.
    """

    def __init__(self, entry: dict[str, Any]) -> None:
        self._entry = dict(entry)
        self._known: list[str] = []
        self._slot: int | None = None

    def slot(self) -> int:
        """The required field ``slot``, from 0 to :data:`MAX_SLOT`. Later errors contain it."""
        self._slot = self.whole("slot", most=MAX_SLOT)
        return self._slot

    def wrong(self, name: str, must_be: str) -> OrderError:
        """Return the error, for the caller to raise, that the field must be as ``must_be`` says."""
        return OrderError(f"'{name}' must be {must_be}", self._slot)

    def take(self, name: str, default: object = _REQUIRED) -> Any:
        """The field unchecked, or the default if it is missing. Raises :class:`OrderError` if there is no default."""
        self._known.append(name)
        value = self._entry.pop(name, None)
        if value is None and default is _REQUIRED:
            raise OrderError(f"'{name}' is missing", self._slot)
        return default if value is None else value

    def checked(self, name: str, must_be: str, valid: Callable[[Any], bool], default: object = _REQUIRED) -> Any:
        """The field if it is ``valid``, or the default if it is missing."""
        value = self.take(name, default)
        if value is not default and not valid(value):
            raise self.wrong(name, must_be)
        return value

    def whole(self, name: str, default: object = _REQUIRED, *, least: int = 0, most: int) -> int:
        """A whole number from ``least`` to ``most``, neither a float nor a boolean; the default if it is missing."""
        must_be = f"a whole number from {least} to {most}"
        return int(self.checked(name, must_be, lambda value: type(value) is int and least <= value <= most, default))

    def life(self) -> int | None:
        """The field ``life``, from 1; None if it is missing."""
        return None if self.peek("life") is None else self.whole("life", least=1, most=MAX_COUNT)

    def peek(self, name: str) -> Any:
        """The field unchecked; None if it is missing. A later call still has to take it."""
        self._known.append(name)
        return self._entry.get(name)

    def seconds(self, name: str, default: float | None) -> float | None:
        """Seconds, from 0 to a million; the default, which may be None, if it is missing."""
        value = self.checked(name, f"seconds from 0 to {_LONG_S:g}", _is_time, default)
        return None if value is None else float(value)

    def span(self, name: str, default: float) -> float:
        """As ``seconds``, but never None."""
        value = self.seconds(name, default)
        assert value is not None
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: object = _REQUIRED) -> str:
        """One of ``choices``, or the default if it is missing."""
        return str(self.checked(name, f"one of {', '.join(choices)}", lambda value: value in choices, default))

    def flag(self, name: str) -> bool:
        """A boolean; False if it is missing."""
        return bool(self.checked(name, "true or false", lambda value: isinstance(value, bool), False))

    def text(self, name: str) -> str | None:
        """A string that is not empty; None if it is missing."""
        value = self.checked(name, "a string that is not empty", _is_word, None)
        return None if value is None else str(value)

    def data(self, name: str, *, most: int) -> bytes:
        """Bytes, written in base64."""
        value = self.take(name, "")
        try:
            data = binascii.a2b_base64(value.encode("ascii")) if value else b""
        except (AttributeError, ValueError):
            raise self.wrong(name, "base64") from None
        if len(data) > most:
            raise self.wrong(name, f"at most {most} bytes")
        return data

    def thing(self, name: str, default: object = _REQUIRED) -> dict[str, Any]:
        """A JSON object, its content unchecked; the default if it is missing."""
        value: dict[str, Any] = self.checked(name, "an object", lambda value: isinstance(value, dict), default)
        return value

    def name(self, name: str) -> str:
        """A word that messages to users may contain."""
        return str(self.checked(name, "a name of at most 255 printable ASCII characters", is_name))

    def lives(self, name: str) -> dict[int, int]:
        """Lives by slot."""
        value = self.checked(name, "an object of lives by slot", _is_lives)
        return {int(slot): life for slot, life in value.items()}

    def slots(self, name: str) -> tuple[int, ...]:
        """A required list of slot numbers; it may be empty."""
        return tuple(self.checked(name, "a list of slots", _is_slots))

    def words(self, name: str) -> tuple[str, ...]:
        """A required command: a list of strings, the first of them not empty."""
        return tuple(self.checked(name, "a list of strings that names a program", _is_command))

    def table(self, name: str) -> dict[str, str]:
        """Strings by name, as in an environment; empty if it is missing. A name is not empty and contains no ``=``."""
        value = self.thing(name, {})
        bad = [key for key, text in value.items() if not _is_word(key) or "=" in key or not _is_text(text)]
        if bad:
            raise self.wrong(name, f"an object of strings; the one named {bad[0]!r:.60} is not")
        return value

    def done(self) -> None:
        """Raise :class:`OrderError` if a field is left that was not taken. Call it last."""
        if self._entry:
            name = next(iter(self._entry))
            fields = ", ".join(dict.fromkeys(self._known))
            raise OrderError(f"'{name:.60}' is not a known field; known fields are {fields}", self._slot)


def is_name(value: object) -> bool:
    """Whether messages to users may contain this word."""
    return isinstance(value, str) and 0 < len(value) < 256 and value.isascii() and value.isprintable()


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LONG_S


def _is_text(value: object) -> bool:
    """Whether the kernel accepts this as an argument: no NUL, and nothing that cannot be encoded."""
    if not isinstance(value, str) or "\0" in value:
        return False
    return not any("\ud800" <= letter <= "\udfff" and not "\udc80" <= letter <= "\udcff" for letter in value)


def _is_word(value: object) -> bool:
    return bool(value) and _is_text(value)


def _is_command(value: object) -> bool:
    return isinstance(value, list) and bool(value) and _is_word(value[0]) and all(map(_is_text, value))


def _is_slots(value: object) -> bool:
    return isinstance(value, list) and all(type(slot) is int and 0 <= slot <= MAX_SLOT for slot in value)


def _is_lives(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_life, value.items()))


def _is_life(item: tuple[str, Any]) -> bool:
    slot, life = item
    return slot.isascii() and slot.isdigit() and len(slot) <= 4 and int(slot) <= MAX_SLOT and type(life) is int
