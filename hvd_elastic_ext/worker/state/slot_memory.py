"""The commit memory of this process's slot: which State has it, and which commit stays in it until it is a checkpoint.

The agent (or torchrun's keeper) owns the memory, so its commits outlive this process. One State at a time has it.

For a checkpoint the launcher names a future commit, so that all ranks hold the same one. This process reports the side
that contains it. The agent reads that side while training commits to the others, and clears the mark afterwards. If the
job ends with that commit, training waits there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.core.messages.slot_protocol import COMMITS
from hvd_elastic_ext.worker.calls.result import program
from hvd_elastic_ext.worker.commits import inherited
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer
from hvd_elastic_ext.worker.commits.memory import open_sides
from hvd_elastic_ext.worker.parts import rng
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.link import Link, Message
from hvd_elastic_ext.worker.sync.commit_interval import CommitSchedule

if TYPE_CHECKING:
    from hvd_elastic_ext.worker.state.keeper import Keeper

log = logging.getLogger(__name__)


Instead = Callable[[], int]
Name = tuple[int, int, int]
"""The name of a commit within its lineage: incarnation, generation and number."""
LONGEST_REASON: Final = 500
"""Characters of an error that are sent to the launcher."""
POLL_S: Final = 0.5
"""Seconds between two looks at the link, while training waits at the held commit."""


class HeldCommit:
    """The held commit of one State. The link's thread requests it; the main thread holds it and reports."""

    def __init__(self, buffer: CommitBuffer, link: Link, now: Callable[[], float] = time.monotonic) -> None:
        self._buffer = buffer
        self._link = link
        self._now = now
        self._turn = threading.Condition()
        self._wanted: Name | None = None
        self._newest: Name = (0, 0, 0)
        """The newest commit. A commit writes this, then reads :attr:`_wanted`. A request writes :attr:`_wanted`, then
        reads this. So at least one of them sees the other."""
        self._waits_there = False
        self._over = False
        """Whether training is done. No later commit comes then, so requests are refused."""
        self._requests = 0
        """Number of requests. Each request ends the wait for the one before."""

    @property
    def is_requested(self) -> bool:
        """Whether the launcher has named a future commit."""
        return self._wanted is not None

    def request(self, message: Message) -> None:
        """Hold the commit of this name (None: none), and wait there if ``stay`` is set. Runs on the link's thread.

        It replaces the earlier request.
        """
        with self._turn:
            over = self._over
            if not over:
                self._requests += 1
                self._wanted = None  # hold nothing while memory is prepared
                self._turn.notify_all()
        if message["commit"] is None:
            return
        if over or not self._buffer.can_keep:
            self._link.send("commit_not_kept", wanted=message["commit"], newest=None)
            return
        incarnation, generation, number = map(int, message["commit"])
        self._buffer.prepare_to_keep()
        with self._turn:
            self._wanted, self._waits_there = (incarnation, generation, number), message.get("stay") is True
            # Reported at once: other ranks may wait at that commit, and this rank would wait for them in its next step.
            missed, wanted = self._newest >= self._wanted, self._wanted
            self._wanted = None if missed else wanted
        if missed:
            self._link.send("commit_not_kept", wanted=wanted, newest=self._newest)

    def pass_on(self, to: HeldCommit) -> None:
        """Give an open request to the State of the next training call: its commits go on with the numbers."""
        with self._turn:
            wanted, self._wanted = self._wanted, None
            message = {"commit": wanted, "stay": self._waits_there}
        if wanted is not None:
            to.request(message)

    def committed(self, identity: Identity, step: int, *, instead: Instead | None = None) -> None:
        """Note a sealed commit: hold it if it is the requested one. If that one was missed, the launcher names another.

        ``instead`` puts other contents into memory under the commit's name, and returns the side. If it raises, there
        is no checkpoint of this commit; if the job ends here, the commit itself is held.
        """
        self._newest, self._over = identity[1:], False
        if self._wanted is None:
            return
        with self._turn:
            wanted, name = self._wanted, identity[1:]
            if wanted is None or name < wanted:
                return
            self._wanted, stays, number = None, self._waits_there, self._requests
            fits = name == wanted and identity.lineage
            side = self._buffer.keep() if fits and instead is None else None
        began, more = self._now(), {}
        if fits and instead is not None:
            side, failed = self._made(instead, number)
            more = {"files": failed is None, "stall_s": round(self._now() - began, 3)}
            if failed is not None and stays:
                side = self._kept(number)
            elif failed is not None:
                self._link.send("commit_not_kept", wanted=wanted, newest=name, failed=failed[:LONGEST_REASON])
        elif side is None:
            self._link.send("commit_not_kept", wanted=wanted, newest=name)
        if side is None:
            return
        self._link.send("commit_kept", commit=identity, step=step, side=side, **more)
        if stays:
            self._stay(number)

    def last(self, identity: Identity, step: int, *, instead: Instead) -> str | None:
        """Note the last commit of training: hold the contents from ``instead`` in its place.

        Return the error of ``instead``, if there is one; then the commit itself is used.
        """
        began = self._now()
        with self._turn:
            self._wanted, self._over, number = None, True, self._requests
        side, failed = self._made(instead, number)
        if side is not None:
            stall_s = round(self._now() - began, 3)
            self._link.send("last_commit", commit=identity, step=step, side=side, files=True, stall_s=stall_s)
        return failed

    def _made(self, instead: Instead, number: int) -> tuple[int | None, str | None]:
        """Return the side, None if another request came meanwhile; and the error, if there was one."""
        try:
            side = instead()
        except Exception as error:  # an error of the user's code: training continues
            log.exception("save of checkpoint= failed")
            return None, " ".join(f"save of checkpoint= failed: {type(error).__name__}: {error}".split())
        with self._turn:
            if self._requests == number:
                return side, None
            self._buffer.keep_none()  # no message would release this side
            return None, None

    def _kept(self, number: int) -> int | None:
        with self._turn:
            return self._buffer.keep() if self._requests == number else None

    def _stay(self, number: int) -> None:
        """Wait until this process ends, or another request comes."""
        self._link.status.waiting = True
        with self._turn:
            while self._link.connected and self._requests == number:
                self._turn.wait(POLL_S)
        self._link.status.waiting = False


class Memory(NamedTuple):
    """The commit memory of a slot, and what goes with it."""

    buffer: CommitBuffer
    held: HeldCommit | None
    """None if the memory has no side on which a commit could stay."""
    schedule: CommitSchedule


# --- which State has it


class _SlotMemory:
    """The commit memory that outlives this process. One State at a time has it: the one whose call runs.

    The first State gets it when it is made, unless it holds a commit of a later call; others when their call begins.
    """

    def __init__(self) -> None:
        self._descriptors: tuple[int, ...] | None = None
        self._looked = False
        """Whether the first State has asked for it."""
        self._owner: weakref.ref[Keeper] | None = None
        self._given = False
        """Whether a State has it, or had it."""
        self._held: HeldCommit | None = None
        self.ours: bool | None = None
        """Whether the commit in it was this program's when the first State was made; None without a commit."""

    def for_new(self, call: int) -> Memory | None:
        """The memory for a State that is made now; None if another one has it or had it."""
        if self._looked:
            return None
        self._looked, self._descriptors = True, _descriptors()
        if self._descriptors is None:
            return None
        memory = self._opened(self._descriptors)
        commit, record = memory.buffer.last(), memory.buffer.record
        if commit is not None:
            is_given = commit.record.stored or not commit.local
            self.ours = is_given or rng.read_rank_local(commit).program == program()
        if record is not None and record.call > call and self.ours:
            return None  # this process has to catch up first: the commit is not its own to replace
        self._given = True
        return memory

    def made(self, keeper: Keeper) -> None:
        """Note the State that was made with the memory of :meth:`for_new`."""
        if self._given and self._owner is None:
            self._owner = weakref.ref(keeper)

    def for_call_of(self, keeper: Keeper, call: int) -> Memory | None:
        """The memory for the State whose call begins; None if it has it, if there is none, or if the commit there is of
        a later call: then this call is over, and its State must not replace that commit."""
        before = None if self._owner is None else self._owner()
        if self._descriptors is None or before is keeper:
            return None
        last = CommitBuffer(open_sides(self._descriptors)).record
        if last is not None and last.call > call and self.ours:
            return None
        if before is not None:
            before.leave_memory()
        self._owner, self._given = weakref.ref(keeper), True
        return self._opened(self._descriptors)

    def _opened(self, descriptors: tuple[int, ...]) -> Memory:
        process, buffer = standby.current(), CommitBuffer(open_sides(descriptors))
        if not buffer.can_keep:
            return Memory(buffer, None, CommitSchedule())
        held = HeldCommit(buffer, process.link)
        schedule = CommitSchedule(process.link.status, named=lambda: held.is_requested)
        process.on_keep, process.on_commit_interval = held.request, schedule.asked
        if self._held is not None:
            self._held.pass_on(held)
        self._held = held
        return Memory(buffer, held, schedule)


SLOT = _SlotMemory()


def _descriptors() -> tuple[int, ...] | None:
    """Return memory that outlives this process; None if there is none."""
    descriptors = inherited.commit_descriptors(os.environ)
    lost = [descriptor for descriptor in descriptors or () if not inherited.is_memory(descriptor)]
    if lost:
        # For example, a program in between has closed the descriptors: training must not fail for that.
        log.warning(
            "commit memory: %s=%s did not reach this process, its commits end with it; "
            "start training processes with the descriptors of their parent",
            COMMITS,
            os.environ.get(COMMITS),
        )
        return None
    return descriptors
