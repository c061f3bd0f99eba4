"""What the launcher has said of a world's keys, for all processes of the host: each key is asked for once. Pure.

In ``hvd.init()`` each process asks for the addresses of all others, in three scopes, so a host of 15 would ask 420
questions that have 30 different answers. A process stores its keys once in a world, so an answer holds for the world.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

_OK: Final = 200


class Key(NamedTuple):
    """``path`` is that of the question; each world has keys of its own."""

    generation: int
    path: str


class Proxy(Protocol):
    """The connection of a slot, as the questions of its process need it."""

    def pass_on(self, number: int) -> None:
        """Ask the launcher."""

    def pass_answer(self, number: int, status: int, body: bytes) -> None:
        """Answer a question."""


class Asker(NamedTuple):
    """One open question, by its number at the proxy."""

    proxy: Proxy
    number: int


class WorldKeys:
    """Keys of the newest world that a process of this host has asked about, and who waits for which."""

    def __init__(self) -> None:
        self._generation = 0
        self._known: dict[str, bytes] = {}
        self._waiting: dict[Key, list[Asker]] = {}
        """Who has asked. The launcher was asked for the first one."""

    def ask(self, key: Key, asker: Asker) -> None:
        """Answer, or ask the launcher, unless somebody waits for its answer already."""
        if key.generation == self._generation and key.path in self._known:
            asker.proxy.pass_answer(asker.number, _OK, self._known[key.path])
            return
        waiting = self._waiting.setdefault(key, [])
        waiting.append(asker)
        if len(waiting) == 1:
            asker.proxy.pass_on(asker.number)

    def is_passed_on(self, key: Key, asker: Asker) -> bool:
        """Whether the launcher was asked for this one."""
        return self._waiting.get(key, [asker])[0] == asker

    def answered(self, key: Key, status: int, value: bytes) -> None:
        """Pass on the launcher's answer to all who wait for it."""
        if status == _OK:
            self.store(key, value)
        for proxy, number in self._waiting.pop(key, []):
            proxy.pass_answer(number, status, value)

    def withdraw(self, key: Key, asker: Asker) -> bool:
        """Drop a question, and ask for the next one who waits; whether the launcher was asked for this one."""
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
        """Note the value of a key, as the launcher has it."""
        if key.generation > self._generation:
            self._generation, self._known = key.generation, {}
        if key.generation == self._generation:
            self._known[key.path] = value

    def lose(self, generation: int | None) -> None:
        """Drop the keys of a world that is lost: from now on the launcher says so, at once."""
        if generation == self._generation:
            self._known = {}
