"""A commit that the launcher names is left where it is, for whoever makes it durable.

The launcher names one that is still to come, so that all ranks keep the same.
Which side it lies on is said; the agent, who owns the memory, reads it there
while training goes on to commit on the others, and clears the mark when it has done.
Where the job is to end with that commit, nobody goes on beyond it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.process.link import Link, Message

log = logging.getLogger(__name__)

Instead = Callable[[], int]
Name = tuple[int, int, int]
"""Of a commit within its lineage: incarnation, generation and number."""
SAID: Final = 500
"""Characters of what went wrong that are told."""
LOOK_S: Final = 0.5
"""How often one that stays looks whether there is anybody left who could have it go on."""


class Keeping:
    """Of one State. The link's thread asks, the main thread keeps, and says so."""

    def __init__(self, buffer: CommitBuffer, link: Link, now: Callable[[], float] = time.monotonic) -> None:
        self._buffer = buffer
        self._link = link
        self._now = now
        self._turn = threading.Condition()
        self._wanted: Name | None = None
        self._newest: Name = (0, 0, 0)
        """The last commit that was told of. Written before :attr:`_wanted` is read, and read after that was written."""
        self._stays = False
        self._asks = 0
        """How often it was asked. Who stays for one goes on with the next, whenever that comes."""

    @property
    def waits(self) -> bool:
        """Whether a commit that is still to come was named."""
        return self._wanted is not None

    def asked(self, message: Message) -> None:
        """Keep the commit of this name (None: none), and with ``stay`` wait there. On the link's thread.

        Of one that was asked for before nothing holds any more.
        """
        with self._turn:
            self._asks += 1
            self._wanted = None  # nothing is kept while memory is made ready
            self._turn.notify_all()
        if message["commit"] is None:
            return
        if not self._buffer.can_keep:
            self._link.say("not_kept", wanted=message["commit"], newest=None)
            return
        incarnation, generation, number = map(int, message["commit"])
        self._buffer.prepare_to_keep()
        with self._turn:
            self._wanted, self._stays = (incarnation, generation, number), message.get("stay") is True
            # Said at once: others may stay where they have kept it, and this rank would wait for them in its next step.
            missed, wanted = self._newest >= self._wanted, self._wanted
            self._wanted = None if missed else wanted
        if missed:
            self._link.say("not_kept", wanted=wanted, newest=self._newest)

    def committed(self, identity: Identity, step: int, *, instead: Instead | None = None) -> None:
        """A commit was sealed: if it is the one, it is kept. If that was missed, the launcher names another.

        ``instead`` lays something else into memory, which is kept under its name, and says on which side. What it
        raises costs this checkpoint, and nothing more; where nobody goes on beyond that, the commit itself is kept.
        """
        self._newest = identity[1:]
        if self._wanted is None:
            return
        with self._turn:
            wanted, name = self._wanted, identity[1:]
            if wanted is None or name < wanted:
                return
            self._wanted, stays, asks = None, self._stays, self._asks
            fits = name == wanted and identity.lineage
            side = self._buffer.keep() if fits and instead is None else None
        began, more = self._now(), {}
        if fits and instead is not None:
            side, failed = self._made(instead, asks)
            more = {"files": failed is None, "stall_s": round(self._now() - began, 3)}
            if failed is not None and stays:
                side = self._kept(asks)
            elif failed is not None:
                self._link.say("not_kept", wanted=wanted, newest=name, failed=failed[:SAID])
        elif side is None:
            self._link.say("not_kept", wanted=wanted, newest=name)
        if side is None:
            return
        self._link.say("kept", commit=identity, step=step, side=side, **more)
        if stays:
            self._stay(asks)

    def last(self, identity: Identity, step: int, *, instead: Instead) -> str | None:
        """Training is done, and that was its last commit: have what ``instead`` makes kept in the place of it.

        If that raises the commit itself is what there is; what it raised is returned.
        """
        began = self._now()
        with self._turn:
            self._wanted, asks = None, self._asks
        side, failed = self._made(instead, asks)
        if side is not None:
            stall_s = round(self._now() - began, 3)
            self._link.say("last", commit=identity, step=step, side=side, files=True, stall_s=stall_s)
        return failed

    def _made(self, instead: Instead, asks: int) -> tuple[int | None, str | None]:
        """On which side it is, None if nobody wants it any more; and why it failed, if it did."""
        try:
            side = instead()
        except Exception as error:  # the user's code: a checkpoint is worth less than the training
            log.exception("save of checkpoint= failed")
            return None, " ".join(f"save of checkpoint= failed: {type(error).__name__}: {error}".split())
        with self._turn:
            if self._asks == asks:
                return side, None
            self._buffer.keep_none()  # it took long: nobody would let go of it
            return None, None

    def _kept(self, asks: int) -> int | None:
        with self._turn:
            return self._buffer.keep() if self._asks == asks else None

    def _stay(self, asks: int) -> None:
        """Wait until this process is ended, or is told that training goes on after all."""
        self._link.status.waiting = True
        with self._turn:
            while self._link.connected and self._asks == asks:
                self._turn.wait(LOOK_S)
        self._link.status.waiting = False
