"""Histories of a cluster: which event happens when. Their text form is a script, which a test can contain.

0.0 hosts a:1 b:2          the list of hosts; `-c:5` will be gone in 5 s, `-c` at an unknown time
8.0 kill a                 kill -9 of the process in slot 0; `a/1` is that in slot 1
8.0 kill b ahead           ... after it has sealed one commit more than the others; `behind`: one less
0.0 calls 6 9              the script has three training calls: of 6 steps, of 9, and one until training is done
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

VERBS: Final = {
    "hosts": "a new list",
    "empty": "a list without any host",
    "garbage": "a list that is refused",
    "kill": "kill -9 of a process",
    "crash": "it ends with exit code 1",
    "leave": "it ends with 0 before training is done; without a host all members do, so many seconds apart",
    "stop": "SIGSTOP",
    "cont": "SIGCONT",
    "slow": "processes of a host that are started from now on take so many seconds to get ready",
    "never": "they never do",
    "agent": "kill -9 of an agent",
    "cut": "a host loses its network",
    "back": "and has it again",
    "drop": "a connection breaks with all that is on its way, and is made again: news come twice",
    "late": "all messages of a host are so many seconds late",
    "notice": "a host's notice file says that it is about to go, in so many seconds if that is known",
    "stay": "it does not say so any more",
    "sigterm": "an agent is sent SIGTERM",
    "block": "a host is blocked by hand, for so many seconds if that is said",
    "clear": "what is held against it is forgotten, by hand",
    "launcher": "kill -9 of the launcher; it is started again after so many seconds",
    "bad": "from now on the process in a slot ends with an exit code as soon as it is in a world",
    "calls": "the script has more than one training call: the steps of all but the last one",
    "prologue": "the first processes have their world from hvd.init() on, so long before their loop; `quiet`: without "
    "collectives there",
    "brittle": "from now on processes do not live through the loss of a peer: they say so, and end",
    "sync": "from now on ranks take so long to agree",
    "transfer": "from now on commits take so long from agent to agent",
    "save": "from now on the launcher's state is written so many seconds late",
    "store": "checkpoints are made, about every so many seconds",
    "disk": "hosts share no storage: each has its own",
    "most": "worlds have so many processes at most; those of other hosts are spares",
    "spares": "so many spares are beside the training, also on its own hosts",
    "devices": "slots have devices, so that a spare in an extra seat stands for one of them",
    "wait": "a holder that cannot be reached is waited for so many seconds",
    "standstill": "the launcher stands still for so many seconds",
    "well": "all is well again; if nobody says so that is 10 s after the last event",
    "alone": "nothing heals: what is left has to train, or to end",
}


class Event(NamedTuple):
    """``hosts``: those of a list, each with its slots. ``going``: hosts that will be gone, and in how many seconds;
    None if unknown."""

    at: float
    verb: str
    host: str = ""
    slot: int = 0
    value: float | None = None
    word: str = ""
    hosts: tuple[tuple[str, int], ...] = ()
    going: tuple[tuple[str, float | None], ...] = ()

    def __str__(self) -> str:
        words = [f"{self.at:.2f}".rstrip("0").rstrip("."), self.verb]
        words += [f"{host}:{slots}" for host, slots in self.hosts]
        words += [f"-{host}" if in_s is None else f"-{host}:{in_s:g}" for host, in_s in self.going]
        words += [f"{self.host}/{self.slot}" if self.slot else self.host] if self.host else []
        words += [] if self.value is None else [f"{self.value:g}"]
        return " ".join([*words, self.word] if self.word else words)


class History(NamedTuple):
    events: tuple[Event, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.events))

    @property
    def every_host(self) -> dict[str, int]:
        """All hosts that are ever listed, with the slots that they had last."""
        return {host: slots for event in self.events for host, slots in event.hosts}


def script(text: str) -> History:
    """Read the text of :meth:`History.__str__`; ``;`` may separate events, too. Raises ``ValueError``."""
    lines = [step.split() for line in text.splitlines() for step in line.split("#")[0].split(";")]
    return History(tuple(_event(words) for words in lines if words))


def _event(words: list[str]) -> Event:
    at, verb, *rest = words
    if verb not in VERBS:
        raise ValueError(f"{verb!r} is nothing that happens; write one of {', '.join(VERBS)}")
    if verb == "hosts":
        listed = tuple((host, int(slots)) for host, slots in (word.split(":") for word in rest if word[0] != "-"))
        going = [word[1:].partition(":") for word in rest if word[0] == "-"]
        return Event(
            float(at), verb, hosts=listed, going=tuple((host, float(s) if s else None) for host, _, s in going)
        )
    if verb == "calls":
        return Event(float(at), verb, word=" ".join(rest))
    host, slot = rest.pop(0).split("/") if rest and "/" in rest[0] else (_name(rest), "0")
    value = float(rest.pop(0)) if rest and rest[0][0].isdigit() else None
    return Event(float(at), verb, host, int(slot), value, rest[0] if rest else "")


def _name(rest: list[str]) -> str:
    return rest.pop(0) if rest and not rest[0][0].isdigit() else ""


# --- random histories

HOSTS: Final = ("a", "b", "c", "d")
GAPS: Final = (0.0, 0.0, 0.01, 0.1, 0.3, 0.6, 1.1, 2.3, 4.7)
FIRST: Final = (4.0, 2.6, 5.5, 1.15, 0.5)
"""Times of the first event: usually when all processes train."""
WELL: Final = (12.0, 0.0, 3.0, 7.0)
"""Seconds from the last event until everything is repaired."""
SLOTS: Final = (1, 1, 1, 2)
CALLS: Final = ("6", "12 3", "9 2 20", "1 1 1 30")
PROLOGUES: Final = (1.0, 3.0, 6.0)
APART: Final = (0.0, 0.3, 3.0)
"""Seconds from the end of one rank to that of the next one, when all leave the training function."""
Raw = tuple[int, int, int, int]
"""The numbers that make an event, all below :data:`RANGE`: they choose its time, kind, host and value."""
RANGE: Final = 720
MOST: Final = 12
"""Most events of a random history, without the first one."""

_WEIGHTS: Final = {
    "kill": 12, "crash": 3, "leave": 3, "stop": 4, "cont": 3, "slow": 3, "never": 1, "agent": 5, "cut": 5, "back": 5,
    "drop": 3, "late": 2, "notice": 4, "stay": 2, "sigterm": 3, "block": 3, "clear": 3, "launcher": 4, "sync": 2,
    "transfer": 2, "save": 1, "hosts": 12, "empty": 1, "garbage": 1, "standstill": 1,
}  # fmt: skip
_KINDS: Final = tuple(verb for verb, weight in _WEIGHTS.items() for _ in range(weight))
_VALUES: Final[dict[str, tuple[float | None, ...]]] = {
    "slow": (3.0, 6.0),
    "late": (0.4, 0.1, 1.2, 0.0),
    "notice": (None, 5.0, 1.5, 12.0),
    "block": (None, 4.0),
    "launcher": (0.5, 0.0, 1.5, 5.0),
    "sync": (1.5, 0.6),
    "transfer": (2.0, 4.0),
    "save": (0.5,),
    "standstill": (2.0, 9.0),
}
_NO_HOST: Final = frozenset({"launcher", "sync", "transfer", "save", "empty", "garbage", "standstill"})
_WITH_SLOT: Final = frozenset({"kill", "crash", "leave", "stop", "cont"})


def decode(shape: Raw, raw: Sequence[Raw]) -> History:
    """Make a history from numbers. The same numbers always make the same history, and lower numbers make a simpler
    one."""
    count, first, alone, slots = shape
    names = HOSTS[: 2 + count % 3]
    sizes = {host: SLOTS[(slots // 4**index) % 4] for index, host in enumerate(names)}
    begin = len(names) if slots % 3 else max(1, len(names) - 1)
    events = [Event(0.0, "store", value=2.0)] if count // 3 % 8 == 7 else []
    events += [Event(0.0, "disk")] if events and count // 24 % 3 == 2 else []
    events += _program(count // 72 % 10, first // len(FIRST))
    events += [Event(0.0, "wait", value=20.0)] if alone // 12 % 6 == 5 else []
    if alone // 72 % 3 == 1:
        events.append(Event(0.0, "spares", value=1.0 + alone // 216 % 2))
        events += [Event(0.0, "devices")] if slots // 256 == 1 else []
    elif alone // 72 % 3 == 2:
        events.append(Event(0.0, "most", value=float(max(1, sum(sizes.values()) - 1 - alone // 216))))
    events.append(Event(0.0, "hosts", hosts=tuple(list(sizes.items())[:begin])))
    at = FIRST[first % len(FIRST)]
    for number, each in enumerate(raw):
        at = round(at + (GAPS[each[0] % len(GAPS)] if number else 0.0), 2)
        events.append(_decoded(at, each, sizes))
    if alone % 12 == 11:
        events.append(Event(at, "alone"))
    else:
        events.append(Event(round(at + WELL[alone % len(WELL)], 2), "well"))
    return History(tuple(events))


def _program(kind: int, which: int) -> list[Event]:
    """What the processes run: most have one training call, and no prologue."""
    events = []
    if kind in (7, 8) or (kind == 9 and which % 2):
        events.append(Event(0.0, "calls", word=CALLS[which % len(CALLS)]))
    if kind == 8 or (kind == 9 and not which % 2):
        events.append(Event(0.0, "prologue", value=PROLOGUES[which // 4 % 3], word=("", "", "quiet")[which // 12 % 3]))
    return events


def _decoded(at: float, raw: Raw, sizes: dict[str, int]) -> Event:
    _, kind, who, value = raw
    verb, names = _KINDS[kind % len(_KINDS)], list(sizes)
    if verb == "hosts":
        return _listed(at, raw, sizes)
    if verb == "leave" and value // 14 % 3 == 2:
        return Event(at, verb, value=APART[value % len(APART)])
    host = "" if verb in _NO_HOST else names[who % len(names)]
    slot = value // 7 % sizes[host] if verb in _WITH_SLOT else 0
    values = _VALUES.get(verb, (None,))
    word = ("", "", "ahead", "behind")[value % 4] if verb == "kill" else ""
    return Event(at, verb, host, slot, values[value % len(values)], word)


def _listed(at: float, raw: Raw, sizes: dict[str, int]) -> Event:
    """Each host is listed, not listed, or about to go."""
    _, _, which, how = raw
    names = list(sizes)
    listed = [host for index, host in enumerate(names) if which // 2**index % 2 == 0] or [names[how % len(names)]]
    going: list[tuple[str, float | None]] = []
    for index, host in enumerate(names):
        if host not in listed and how // 4**index % 4 == 3:
            going.append((host, (None, 3.0, 8.0)[how // 3 % 3]))
    return Event(at, "hosts", hosts=tuple((host, sizes[host]) for host in listed), going=tuple(going))


_FAILURES: Final = ("bad", "bad", "crash", "kill", "kill", "hosts", "block", "clear")


def failing(below: Callable[[int], int]) -> History:
    """Return a random history of a script that does not live through the loss of a peer, in which processes fail.

    Networks, agents and launchers work: so it is certain which end follows from which.
    """
    sizes = {host: 1 + below(2) for host in HOSTS[: 2 + below(2)]}
    events = [Event(0.0, "brittle"), Event(0.0, "hosts", hosts=tuple(sizes.items()))]
    if not below(3):
        events.insert(0, Event(0.0, "prologue", value=PROLOGUES[below(len(PROLOGUES))]))
    at = FIRST[below(len(FIRST))]
    for _ in range(1 + below(5)):
        verb, host = _FAILURES[below(len(_FAILURES))], list(sizes)[below(len(sizes))]
        if verb == "hosts":
            events.append(_listed(at, (0, 0, below(RANGE), 0), sizes))
        elif verb in ("block", "clear"):
            events.append(Event(at, verb, host, 0, 4.0 if verb == "block" else None))
        else:
            events.append(Event(at, verb, host, below(sizes[host])))
        at = round(at + GAPS[below(len(GAPS))], 2)
    return History((*events, Event(round(at + 30.0, 2), "well")))


def drawn(below: Callable[[int], int]) -> History:
    """Return a random history; ``below`` returns a random number below its argument."""
    shape = (below(RANGE), below(RANGE), below(RANGE), below(RANGE))
    count = 1 + below(MOST)
    return decode(shape, [(below(RANGE), below(RANGE), below(RANGE), below(RANGE)) for _ in range(count)])
