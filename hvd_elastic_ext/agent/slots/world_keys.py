"""Caches the launcher's answers about a world's keys for all processes of the host: each key is requested once. Pure.

In ``hvd.init()`` each process asks for the addresses of all others, in three scopes, so a host of 15 would ask 420
questions that have 30 different answers. A process stores its keys once in a world, so an answer holds for the world.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

_OK: Final = 200
_LOST: Final = 500
"""The launcher's answer to every question for a key of a world that is lost."""


class Key(NamedTuple):
    """A key of a world. ``path``: the path of its question. Each world has its own keys."""

    generation: int
    path: str


class Proxy(Protocol):
    """The connection of a slot, for the questions of its process."""

    def pass_on(self, number: int) -> None:
        """Ask the launcher."""

    def pass_answer(self, number: int, status: int, body: bytes) -> None:
        """Answer a question."""


class Asker(NamedTuple):
    """One open question, with its number at the proxy."""

    proxy: Proxy
    number: int


class WorldKeys:
    """Keys of the newest world that a process of this host has requested, and the requests that wait for each."""

    def __init__(self) -> None:
        self._generation = self._lost = 0
        """Numbers of worlds: that of the keys, and the newest lost one."""
        self._known: dict[str, bytes] = {}
        self._waiting: dict[Key, list[Asker]] = {}
        """The waiting requests of each key. The first one was passed on to the launcher."""

    def ask(self, key: Key, asker: Asker) -> None:
        """Answer the question if the key is known. Else ask the launcher, unless it has been asked already."""
        if key.generation == self._generation and key.path in self._known:
            asker.proxy.pass_answer(asker.number, _OK, self._known[key.path])
            return
        waiting = self._waiting.setdefault(key, [])
        waiting.append(asker)
        if len(waiting) == 1:
            asker.proxy.pass_on(asker.number)

    def is_passed_on(self, key: Key, asker: Asker) -> bool:
        """Whether this question was passed on to the launcher."""
        return self._waiting.get(key, [asker])[0] == asker

    def answered(self, key: Key, status: int, value: bytes) -> None:
        """Pass on the launcher's answer to all waiting requests."""
        if status == _OK:
            self.store(key, value)
        elif status == _LOST:
            self.lose(key.generation)
        for proxy, number in self._waiting.pop(key, []):
            proxy.pass_answer(number, status, value)

    def withdraw(self, key: Key, asker: Asker) -> bool:
        """Drop a question, and pass on the next waiting one. Return whether the dropped one was passed on."""
        waiting = self._waiting.get(key, [])
        if asker not in waiting:
            return True
        first = waiting[0] == asker
        waiting.remove(asker)
        if not waiting:
            del self._waiting[key]
        elif first:
            waiting[0].proxy.pass_on(waiting[0].number)
        return first

    def store(self, key: Key, value: bytes) -> None:
        """Store the value of a key from the launcher."""
        if key.generation <= self._lost:  # a late answer, for a world that is lost
            return
        if key.generation > self._generation:
            self._generation, self._known = key.generation, {}
        if key.generation == self._generation:
            self._known[key.path] = value

    def lose(self, generation: int | None) -> None:
        """Drop the keys of a lost world. Later questions go to the launcher, which answers that the world is lost."""
        self._lost = max(self._lost, generation or 0)
        if self._generation <= self._lost:
            self._known = {}
