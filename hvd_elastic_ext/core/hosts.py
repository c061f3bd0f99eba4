"""Hosts, and sets of them in order of seniority."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from typing import Any

from hvd_elastic_ext.core.sequences import common_ends

MAX_NAME = 253
"""Longest host name in characters (RFC 1035 §2.3.4, less the root's dot)."""
MAX_SLOTS = 1024
"""Most slots of one host: agents refuse a slot with a higher number. More count as a typing error."""

_ONE = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_LABEL = re.compile(rf"{_ONE}\Z")
_NAME = re.compile(rf"{_ONE}(?:\.{_ONE})*\Z")


def name_error(name: str) -> str | None:
    """Return what is wrong with a host name; None if it is valid.

    Accepted: dotted labels of ASCII letters, digits, ``-`` and ``_``, no label
    starting or ending with ``-`` (RFC 1123 §2.1; ``_`` because container tools
    use it), and so IPv4 addresses too. IPv6 is refused, because Horovod splits
    ``host:slots`` at the colon. This rule also prevents ssh from reading a host name as an option.
    """
    if len(name) <= MAX_NAME and _NAME.match(name):
        return None
    if not name:
        return "the host name is empty"
    if len(name) > MAX_NAME:
        return f"the host name has {len(name)} characters; the longest allowed is {MAX_NAME}"
    if not name.isascii():
        return f"host name {name!r} is not ASCII; write an internationalised name as xn--…"
    if name.startswith("-"):
        return f"host name {name!r} starts with '-' and would be read as an option"
    if any(c.isspace() for c in name):
        return f"host name {name!r} contains white space; write host:slots, nothing else"
    if ":" in name:
        return f"host name {name!r} contains ':'; IPv6 addresses cannot be used with Horovod, give the host a name"
    bad = next((label for label in name.split(".") if not _LABEL.match(label)), None)
    if bad is not None:
        return f"host name {name!r} is not a valid name: label {bad!r} must be 1 to 63 letters, digits or inner '-'"
    return None


@dataclass(frozen=True, slots=True)
class Host:
    """One machine (or pod) that can run training processes. A text is empty if the source does not know it.

    Raises ``ValueError`` for an invalid name, fewer than one slot, or more than :data:`MAX_SLOTS`.
    """

    name: str
    slots: int
    """How many processes it can run."""
    uid: str = ""
    """Distinguishes two pods with the same name: a recreated pod."""
    node: str = ""
    """The name of the pod's machine."""
    life: str = ""
    """Distinguishes two containers that ran in one pod."""
    price: str = ""
    """The cost of the host for an hour, as a number."""

    def __post_init__(self) -> None:
        problem = name_error(self.name)
        if problem is not None:
            raise ValueError(problem)
        if isinstance(self.slots, bool) or not isinstance(self.slots, int):
            raise ValueError(f"host {self.name!r}: slots must be a whole number, not {self.slots!r}")
        if self.slots < 1:
            raise ValueError(f"host {self.name!r} has {self.slots} slots; at least 1 is needed, or leave the host out")
        if self.slots > MAX_SLOTS:
            raise ValueError(f"host {self.name!r} has more slots than the {MAX_SLOTS} that are allowed")

    def same_life(self, other: Host) -> bool:
        """Whether name, uid and life are the same, as far as known. A recreated pod, or a pod with a restarted
        container, is another host: all its processes have ended.
        """
        return self.name == other.name and is_same(self.uid, other.uid) and is_same(self.life, other.life)


def is_same(one: str, other: str) -> bool:
    """Whether two UIDs, or lives, may be equal: an unknown one may equal any."""
    return not one or not other or one == other


@dataclass(frozen=True, slots=True)
class HostSet:
    """Hosts with unique names, most senior first.

    Raises ``ValueError`` if a name occurs twice.
    """

    hosts: tuple[Host, ...] = ()
    _by_name: dict[str, Host] | None = field(init=False, repr=False, compare=False, hash=False, default=None)
    _slots: int | None = field(init=False, repr=False, compare=False, hash=False, default=None)

    def __post_init__(self) -> None:
        if len(self._index()) < len(self.hosts):
            name = next(name for name, count in Counter(self.names).items() if count > 1)
            raise ValueError(f"host {name!r} is listed twice; give each host once, with all its slots")

    @classmethod
    def of(cls, slots: dict[str, int]) -> HostSet:
        """Build a set from a mapping of name to slots, in the mapping's order."""
        return cls(tuple(Host(name, n) for name, n in slots.items()))

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)

    def __contains__(self, name: object) -> bool:
        return name in self._index()

    @property
    def by_name(self) -> Mapping[str, Host]:
        """Return all hosts by name, in order."""
        return self._index()

    def has_all(self, names: KeysView[str]) -> bool:
        """Whether the set has hosts of all these names."""
        return names <= self._index().keys()

    def get(self, name: str) -> Host | None:
        """The host of this name; None if there is none."""
        return self._index().get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all hosts, most senior first."""
        return tuple(host.name for host in self.hosts)

    @property
    def slots(self) -> int:
        """Training processes that all hosts together can run."""
        if self._slots is None:
            object.__setattr__(self, "_slots", sum([host.slots for host in self.hosts]))
        return self._slots or 0

    def without(self, names: Iterable[str]) -> HostSet:
        """Return the hosts without those of these names, in the same order."""
        index, slots, made = dict(self._index()), self.slots, HostSet()
        for name in names:
            if (host := index.pop(name, None)) is not None:
                slots -= host.slots
        # Names are unique already, and an index costs more than a copy of one.
        for field_name, value in (("hosts", tuple(index.values())), ("_by_name", index), ("_slots", slots)):
            object.__setattr__(made, field_name, value)
        return made

    def without_index(self) -> HostSet:
        """Return an equal set that needs a quarter of the memory until a host is looked up by name."""
        object.__setattr__(self, "_by_name", None)
        return self

    def _index(self) -> dict[str, Host]:
        index = self._by_name
        if index is None:
            index = {host.name: host for host in self.hosts}
            object.__setattr__(self, "_by_name", index)
        return index

    def as_slots(self) -> dict[str, int]:
        """Return slots by name, in order of seniority: the form that Horovod uses."""
        return {host.name: host.slots for host in self.hosts}


@dataclass(frozen=True, slots=True)
class HostChange:
    """The difference between two host sets, by name. It is false if there is none.

    A host with another life under its name is in both ``removed`` and ``added``.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    shrunk: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.grown or self.shrunk)


def follow(
    before: HostSet, now: Iterable[Host], *, newcomers: Callable[[Host], Any] | None = None
) -> tuple[HostSet, HostChange]:
    """Return ``now`` in order of seniority, and how it differs from ``before``; a different order is not a change.

    Earlier hosts keep their place, and newcomers follow in the given order. Ranks follow this order, so the oldest
    survivor is rank 0. A host with another life under its name is a newcomer, because it holds no state.
    ``newcomers``: another sort key for newcomers.
    """
    current = now if isinstance(now, HostSet) else HostSet(tuple(now))
    there = current.by_name
    start, end = common_ends(before.hosts, current.hosts)  # nearly all of them
    middle = current.hosts[start : len(current) - end]
    staying: list[Host] = []
    gone: list[str] = []
    grown: list[str] = []
    shrunk: list[str] = []
    for old in before.hosts[start : len(before) - end]:
        name = old.name
        host = there.get(name)
        if host is old:
            staying.append(host)
        elif host is None or not old.same_life(host):
            gone.append(name)
        else:
            staying.append(host)
            if host.slots != old.slots:
                (grown if host.slots > old.slots else shrunk).append(name)
    fresh: list[Host] = []
    if len(staying) < len(middle):
        stay = {host.name for host in staying}
        fresh = [host for host in middle if host.name not in stay]
    if newcomers is not None:
        fresh.sort(key=newcomers)
    change = HostChange(tuple(host.name for host in fresh), tuple(gone), tuple(grown), tuple(shrunk))
    ordered = (*current.hosts[:start], *staying, *current.hosts[len(current) - end :], *fresh)
    return (current if ordered == current.hosts else HostSet(ordered)), change
