"""The plan of a seed: hosts, options, and which fault happens when. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

FAULTS_S: Final = 75.0
"""Seconds from the first steps in which faults are made."""
NAMES: Final = ("localhost", "127.0.0.1", "127.0.0.2", "127.0.0.3")
MOST_PROCESSES: Final = 5
MOST_SLOTS: Final = 2
"""Of a host."""
TOGETHER: Final = (0.58, 0.26, 0.11, 0.05)
"""Probabilities of one, two, three and four faults within :data:`MOMENT_S`."""
MOMENT_S: Final = 0.1
GARBAGE: Final = ("127.0.0.1:x\n", "localhost\x00:1", "localhost:1\n127.0.0.1:1 #", "one two\n", "localhost:0\n")


class Do(Enum):
    """A kind of fault, with the text that describes it."""

    KILL = "kill -9 of {which}"
    TERM = "SIGTERM to {which}"
    STOP = "SIGSTOP to {which}, for {seconds:.1f} s"
    STOP_AGENT = "SIGSTOP to the agent of {host}, for {seconds:.1f} s"
    STOP_HOST = "SIGSTOP to everything on {host}, for {seconds:.1f} s"
    STOP_LAUNCHER = "SIGSTOP to the launcher, for {seconds:.1f} s"
    KILL_AGENT = "kill -9 of the agent of {host}"
    KILL_AGENTS = "kill -9 of all agents"
    TERM_AGENT = "SIGTERM to the agent of {host}"
    LIST = "the list is {text!r}, for {seconds:.1f} s"
    NOTICE = "a notice on {host}, taken back after {seconds:.1f} s"
    NOTICE_BACK = "a notice on {host} with a deadline in {deadline:.1f} s, taken back after {seconds:.1f} s"
    NOTICE_GONE = "a notice on {host} with a deadline in {deadline:.1f} s, when its agent is killed with -9"
    BLOCK = "{host} is blocked by hand, and cleared after {seconds:.1f} s"
    KILL_LAUNCHER = "kill -9 of the launcher, started again after {seconds:.1f} s"


WEIGHTS: Final = {
    Do.KILL: 10.0, Do.TERM: 1.0, Do.STOP: 2.0, Do.STOP_AGENT: 1.0, Do.STOP_HOST: 1.0, Do.STOP_LAUNCHER: 1.0,
    Do.KILL_AGENT: 1.5, Do.TERM_AGENT: 1.0, Do.LIST: 8.0, Do.NOTICE: 1.5, Do.NOTICE_BACK: 1.0, Do.NOTICE_GONE: 1.0,
    Do.BLOCK: 2.0, Do.KILL_LAUNCHER: 2.5,
}  # fmt: skip
"""How often each kind comes, relative to the others."""
SECONDS: Final = {
    Do.STOP: (0.5, 6.0), Do.STOP_AGENT: (0.5, 6.0), Do.STOP_HOST: (0.5, 6.0), Do.STOP_LAUNCHER: (0.5, 6.0),
    Do.LIST: (0.3, 12.0), Do.NOTICE: (0.6, 12.0), Do.BLOCK: (1.0, 12.0), Do.KILL_LAUNCHER: (0.0, 2.0),
}  # fmt: skip
"""Shortest and longest duration of each kind, in seconds."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host of the job, while it is listed."""

    name: str
    slots: int

    @property
    def line(self) -> str:
        return f"{self.name}:{self.slots}\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """``at``: seconds from the first steps. ``which``: indexes into the processes that live then; empty: all of
    them."""

    at: float
    do: Do
    host: str = ""
    which: tuple[int, ...] = ()
    seconds: float = 0.0
    deadline: float = 0.0
    text: str = ""

    def __str__(self) -> str:
        return f"{self.at:7.3f} s  {self.told}"

    @property
    def told(self) -> str:
        """The fault as text."""
        which = f"process {' and '.join(map(str, self.which))}" if self.which else "all processes"
        fields = {"host": self.host, "seconds": self.seconds, "deadline": self.deadline, "text": self.text}
        return self.do.value.format(which=which, **fields)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a seed. ``most``: the value of ``--max-np``, ``spares``: that of ``--spares``; None without that
    option."""

    seed: int
    checkpoints: bool
    hosts: tuple[Host, ...]
    most: int | None
    faults: tuple[Fault, ...]
    spares: int | None = None

    @property
    def listed(self) -> str:
        """The host list with all hosts."""
        return "".join(host.line for host in self.hosts)

    @property
    def size(self) -> int:
        """The size of the largest world."""
        slots = sum(host.slots for host in self.hosts)
        return slots if self.most is None else min(slots, self.most)

    def __str__(self) -> str:
        hosts = ", ".join(host.line.strip() for host in self.hosts)
        most = "" if self.most is None else f", at most {self.most} processes"
        most += "" if self.spares is None else f", spares: {self.spares}"
        how = "with checkpoints" if self.checkpoints else "without checkpoints"
        return "\n".join([f"seed {self.seed}, {how}: {hosts}{most}", *map(str, self.faults)])


def plan(seed: int, *, checkpoints: bool) -> Plan:
    """Return the plan of a seed."""
    chance = random.Random(seed)
    hosts = _hosts(chance)
    slots = sum(host.slots for host in hosts)
    most = slots - 1 if slots > 2 and chance.random() < 0.25 else None
    faults = tuple(fault for at in _moments(chance) for fault in _together(chance, at, hosts, checkpoints=checkpoints))
    spares = 1 if random.Random(f"{seed} spares").random() < 0.4 else None  # its own chance: the rest is as without
    return Plan(seed, checkpoints, hosts, most, faults, spares)


def _hosts(chance: random.Random) -> tuple[Host, ...]:
    names = NAMES[: chance.choice((2, 3, 3, 4))]
    left = MOST_PROCESSES - len(names)
    slots = []
    for _ in names:
        slots.append(2 if left and chance.random() < 0.3 else 1)
        left -= slots[-1] - 1
    return tuple(map(Host, names, slots))


def _moments(chance: random.Random) -> Iterator[float]:
    at = chance.uniform(0.5, 2.0)
    while at < FAULTS_S:
        yield at
        at += chance.uniform(0.05, 1.0) if chance.random() < 0.35 else chance.uniform(1.5, 9.0)


def _together(chance: random.Random, at: float, hosts: tuple[Host, ...], *, checkpoints: bool) -> Iterator[Fault]:
    count = chance.choices((1, 2, 3, 4), TOGETHER)[0]
    weights = {**WEIGHTS, **({Do.KILL_AGENTS: 1.5} if checkpoints else {})}
    times = [at, *(at + chance.uniform(0.0, MOMENT_S) for _ in range(count - 1))]
    for moment in sorted(times):
        (do,) = chance.choices(list(weights), list(weights.values()))
        yield _fault(chance, moment, do, hosts=hosts)


def _fault(chance: random.Random, at: float, do: Do, *, hosts: tuple[Host, ...]) -> Fault:
    fault = Fault(round(at, 3), do, host=chance.choice(hosts).name)
    if do in SECONDS:
        fault = replace(fault, seconds=round(chance.uniform(*SECONDS[do]), 3))
    if do is Do.KILL:
        return replace(fault, which=chance.choice(((0,), (1,), (2,), (0, 1), (1, 2), (), ())))
    if do in (Do.TERM, Do.STOP):
        return replace(fault, which=(chance.randrange(4),))
    if do is Do.LIST:
        return replace(fault, text=_list(chance, hosts))
    if do in (Do.NOTICE_BACK, Do.NOTICE_GONE):
        deadline = round(chance.uniform(3.0, 12.0), 3)
        return replace(fault, deadline=deadline, seconds=round(chance.uniform(0.6, deadline), 3))
    return fault


def _list(chance: random.Random, hosts: tuple[Host, ...]) -> str:
    """Return a host list: usually some of the hosts, sometimes with other slots; or an empty or invalid one."""
    kind = chance.random()
    if kind < 0.15:
        return ""
    if kind < 0.27:
        return chance.choice(GARBAGE)
    some = chance.sample(hosts, chance.randint(1, len(hosts) - (kind < 0.9)))
    if kind >= 0.9:
        some = [replace(host, slots=3 - host.slots) if chance.random() < 0.5 else host for host in some]
    return "".join(host.line for host in some)
