"""The orders that an agent accepts: one JSON object for each line, checked before execution. Pure."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.agent.fields import MAX_COUNT, Fields, OrderError, is_name

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
    """Start a process in a free slot. ``env`` is added to the agent's own environment. Without ``cwd`` it runs in the
    agent's directory."""

    slot: int
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str | None = None
    grace_s: float = GRACE_S
    commits: int = COMMITS
    core: bool = False
    output: str = "frames"
    life: int | None = None
    link: bool = False
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
    """Pass ``message`` to processes. ``to``: by slot, the life of the process that must get it."""

    to: dict[int, int]
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
    """The intervals between heartbeats.

    ``figures_every``: one message of so many reports every process; the others report only silent ones.
    """

    heartbeat_s: float = HEARTBEAT_S
    figures_every: int = 1


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
    preload: bool = False
    """Whether the agent keeps an interpreter with the script's imports done, and forks it for new processes."""


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
        preload=fields.flag("preload"),
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
