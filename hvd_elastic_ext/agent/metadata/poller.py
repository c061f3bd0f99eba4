"""Looks, and looks again: what is said becomes a notice, once; who does not answer is asked more and more rarely."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from hvd_elastic_ext.agent.launcher.notice_files import Going, soonest_of
from hvd_elastic_ext.agent.metadata.detect import choose, firmware
from hvd_elastic_ext.agent.metadata.http import Web
from hvd_elastic_ext.agent.metadata.model import NoAnswer, Word

COMPLAIN_AFTER: Final = 3
"""One answer that fails is nothing to talk about: services restart, and forget."""
LOST_S: Final = 10.0
"""Longest pause for one that has answered before: half a minute is all the notice that some give."""
ABSENT_S: Final = 300.0
"""Longest pause for one that never has: most likely this is not its cloud."""
VOID_S: Final = 600.0
"""A word whose time is over for longer is of an earlier life of this machine. Shorter, it is late."""


class Source(Protocol):
    """Whom to look at."""

    @property
    def name(self) -> str: ...
    @property
    def every_s(self) -> float: ...
    @property
    def ahead_s(self) -> float: ...
    def look(self) -> list[Word]: ...


class Poller:
    """``say`` gets what has changed: ``going`` and ``advice``, or a ``problem`` with the looking itself.

    ``before`` is the notice that somebody before it has given, and that held until now.
    """

    def __init__(
        self, source: Source, *, wall: Callable[[], float], say: Callable[..., None], before: Going | None = None
    ) -> None:
        self._source = source
        self._wall = wall
        self._say = say
        self._held: dict[Word, Going] = {}
        """What each word came to when it came first: by the clock of then, whatever that shows later."""
        self._said: tuple[Going | None, str | None] | None = None
        self._before = before
        self._failures = 0
        self._complained = False

    def once(self) -> float:
        """Look; the pause after it, in seconds."""
        try:
            words = self._source.look()
        except NoAnswer as error:
            return self._failed(str(error))
        self._failures = 0
        if self._complained:
            self._complained = False
            self._say(cloud=self._source.name, problem=None)
        self._take(words)
        return self._source.every_s

    def _failed(self, problem: str) -> float:
        self._failures += 1
        if self._failures == COMPLAIN_AFTER:
            self._complained = True
            self._say(cloud=self._source.name, problem=problem)
        return pause(self._failures, self._source.every_s, met=self._said is not None)

    def _take(self, words: list[Word]) -> None:
        now = self._wall()
        self._held = {word: self._held.get(word) or self._came_to(word, now) for word in words}
        self._before = None
        hard = [held for word, held in self._held.items() if not word.soft and not _over(held, now)]
        advice = next((word.reason for word in words if word.soft), None)
        said = (soonest_of(hard), advice)
        if said != self._said:
            self._said = said
            self._say(going=said[0], advice=advice)

    def _came_to(self, word: Word, now: float) -> Going:
        if self._before is not None and self._before.reason == word.reason and word.within_s is not None:
            return self._before  # the same word: its time runs since it came first
        return going(word, now, self._source.ahead_s)


def _over(held: Going, now: float) -> bool:
    return held.by is not None and held.by + VOID_S <= now


def going(word: Word, now: float, ahead_s: float = 0.0) -> Going:
    """The notice that a word comes to, which is heard ``now``, from one whose clock is so far ahead."""
    if word.within_s is not None:
        return Going(word.reason, now + word.within_s)
    return Going(word.reason, None if word.at is None else word.at - ahead_s)


def pause(failures: int, every_s: float, *, met: bool) -> float:
    """Seconds until the next look, after so many that failed one after the other."""
    longest = max(LOST_S if met else ABSENT_S, every_s)
    return float(min(every_s * 2 ** min(failures, 16), longest))


def serve(source: str, url: str | None, pipe: int, *, before: Going | None) -> None:
    """Look for as long as the other end of ``pipe`` is open, and write there what is to be said, an object a line."""

    def say(**said: Any) -> None:
        os.write(pipe, json.dumps(said).encode() + b"\n")

    try:
        chosen = choose(source, url, Web, firmware=firmware)
    except ValueError as error:
        say(cloud=source, problem=str(error))
        select.select([pipe], [], [])
        return
    poller = Poller(chosen, wall=time.time, say=say, before=before)
    while True:
        pause_s = poller.once()
        if select.select([pipe], [], [], pause_s)[0]:
            return
