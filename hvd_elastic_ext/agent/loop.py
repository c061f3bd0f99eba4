"""The agent's loop: orders, reports of supervisors, output, signals and timers.

One :class:`Agent` is the parent of all training processes of its host. It waits in one poll (``descriptors.py``), does
what is ready, then what is due, and kills what a killed supervisor has left. It decides nothing about hosts or worlds:
a launcher orders what runs in which slot. Without a job, orders come in and events go out over the agent's own pipes.

Its end has several causes: an order to finish, the end of its input, a signal, or too long a time without a launcher.
In each case it stays until nothing runs in its slots. After a signal it first waits, with the work going on, until the
launcher has moved it to other hosts, or the grace is over.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.agent.descriptors import CHUNK, DescriptorLoop, Lines, Outbox, warn
from hvd_elastic_ext.agent.helper import Helpers
from hvd_elastic_ext.agent.orders import (
    GRACE_S,
    MAX_LINE,
    Drop,
    End,
    Finish,
    Join,
    Order,
    OrderError,
    Pace,
    RunHelper,
    Start,
    Tell,
    entry_of,
    read,
)
from hvd_elastic_ext.agent.slots.process import OutOfMemory
from hvd_elastic_ext.agent.slots.rendezvous import WorldKeys
from hvd_elastic_ext.agent.slots.slot import Slot
from hvd_elastic_ext.agent.slots.supervisor import STOP_SIGNALS
from hvd_elastic_ext.agent.slots.worker_link import released
from hvd_elastic_ext.core.messages.slot_protocol import NOT_STARTED
from hvd_elastic_ext.io import file_limits, process_tree

if TYPE_CHECKING:
    from hvd_elastic_ext.agent.channel import Channel
    from hvd_elastic_ext.agent.job import JoinedJob

REAP_S: Final = 1.0
"""Seconds that an ending agent waits for the processes that it has killed: one that waits for a disk ends late."""
LATE: Final = 1.5
"""A process in a world is late whose heartbeat is older than so many pauses between messages to the launcher."""
SOONER: Final = 4
"""So much more often the launcher is told of late processes: it kills one that was silent for too long, and the others
of its world wait for that."""
FLUSH_S: Final = 2.0
"""Seconds that an agent without a launcher tries to send its last events."""


class Agent(DescriptorLoop):
    """See the module's docstring. It ends when nothing runs any more, after an order to finish or the end of its input.

    ``joining`` makes it a member of a job, if its first order requests that. ``stdin``: the launcher's standard input.
    """

    def __init__(
        self,
        orders: int,
        outbox: Outbox,
        *,
        wake: int,
        clock: Callable[[], float],
        joining: Callable[[Agent, Join | End], JoinedJob],
        stdin: int | None = None,
    ) -> None:
        super().__init__()
        self._orders = orders
        self._outbox = outbox
        self._sink: Outbox | Channel = outbox
        """Where events go: the agent's own pipe, or the connection of the job."""
        self._wake = wake
        self._clock = clock
        self._joining = joining
        self._job: JoinedJob | None = None
        self._lines = Lines(MAX_LINE)
        self.memory = OutOfMemory()
        self.keys = WorldKeys()
        self.helpers = Helpers(self)
        self.stdin = stdin
        self._slots: dict[int, Slot] = {}
        self._few_files = False
        """Whether it has said that the host may open too few files."""
        self._heartbeats = 0
        self._heartbeat_at: float | None = None
        """When the next heartbeat message is due; None while there is nobody to report."""
        self._figures_at = 0.0
        """When the next one is due that counts; others tell only of late processes."""
        self._first = True
        """Whether no order has come yet: only the first one may join a job."""
        self._finishing = False
        """Whether nothing is started any more, and the agent ends once all slots are at rest."""
        self._commits_needed = False
        """Whether the launcher still needs the agent's commits after a signal to end. Until then the agent stays."""
        self._ending_now = False
        """Whether all slots have been told to end, and no launcher can prevent that."""
        self._end_at: float | None = None
        """When that is done after a signal to end, whatever the launcher does."""
        self._rested_at: float | None = None
        """Since when only events that are not sent yet keep the agent."""
        self._strays: process_tree.Strays | None = None
        """The processes of killed supervisors, while some may be left."""
        self._refused = False
        """Whether an order was refused: then an agent that has run nothing does not end with 0."""

    # --- what slots need: see AgentServices ------------------------------------------------------------------

    def now(self) -> float:
        """Seconds of the agent's clock; only differences have a meaning."""
        return self._clock()

    def tell(self, event: str, **fields: object) -> None:
        """Queue an event for the launcher: over the connection of the job, or without a job on standard output."""
        self._sink.put(event, **fields)

    def warn(self, problem: str) -> None:
        """Write one line to standard error, unless that would block. It is not an event."""
        warn(problem)

    def _check_open_files(self, slots: int) -> None:
        """Say once that this host may open too few files for its slots."""
        need, limit = file_limits.agent_files(slots), file_limits.present_limit()
        problem = file_limits.too_few(limit, need, f"a host with {slots} slots")
        if problem is not None and not self._few_files:
            self._few_files = True
            self.warn(problem)

    def lost_supervisor(self) -> None:
        """Note that a supervisor was killed: its processes, now the agent's children, must end."""
        self._strays = self._strays or process_tree.Strays(self._clock())

    # --- what a joined job needs: see job.py --------------------------------------------------

    @property
    def slots(self) -> Mapping[int, Slot]:
        """By number, every slot named by an order to start a process or a helper."""
        return self._slots

    def slot(self, number: int) -> Slot:
        """A slot, which is made if no order has named it yet."""
        return self._slots.setdefault(number, Slot(number, self))

    @property
    def heartbeats(self) -> int:
        """Number of heartbeat messages that were sent."""
        return self._heartbeats

    @property
    def ending(self) -> bool:
        """Whether the agent is about to end and nothing can prevent that."""
        return self._ending_now or self._end_at is not None

    def resume(self) -> None:
        """Allow starts again, for a new launcher."""
        if not self.ending:
            self._finishing, self._rested_at = False, None

    def order(self, entry: dict[str, Any]) -> None:
        """Execute an order of the launcher."""
        self._try(lambda: read(entry))

    def end_all(self, reason: str, grace_s: float | None = None) -> None:
        """End every slot, and then the agent."""
        self._finishing = self._ending_now = True
        self._commits_needed, self._end_at = False, None
        for slot in self._slots.values():
            slot.stop(reason, grace_s)

    # --- the loop ----------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until the end. Return the exit code: the first one of a slot that is not 0, in the order of slots."""
        self.watch(self._orders, self._listen)
        self.watch(self._wake, self._read_signals)
        try:
            while not self._over():
                self.hold_back(self._sink.full)
                self.write(self._outbox.descriptor, None if self._outbox.empty else self._outbox.write)
                self.look(self._pause())
                self._tick()
                self._sweep()
        finally:
            self.helpers.kill()
            self.helpers.end(REAP_S)
            if self._job is not None:
                self._job.close()
            for slot in self._slots.values():
                slot.close()
            if self._job is not None:
                self._job.hang_up_others()
        codes = [slot.code for _, slot in sorted(self._slots.items()) if slot.code]
        ran = any(slot.code is not None for slot in self._slots.values())
        return codes[0] if codes else NOT_STARTED if self._refused and not ran else 0

    def _over(self) -> bool:
        busy = self._strays is not None or not all(slot.at_rest for slot in self._slots.values())
        if busy or self._commits_needed or not self._finishing:
            return False
        now = self._clock()
        self._rested_at = now if self._rested_at is None else self._rested_at
        # Wait until a slow launcher has read everything; a launcher that is gone must not delay the end.
        return self._sink.empty or (self._ending_now and now >= self._rested_at + FLUSH_S)

    def _pause(self) -> float | None:
        """Seconds until something is due; None if nothing is due."""
        now = self._clock()
        due = [slot.worker_link.due() for slot in self._slots.values() if slot.worker_link is not None]
        due += [self._heartbeat_at, self._end_at]
        if self._job is not None:
            due.append(self._job.due())
        if self._strays is not None:
            due.append(now + process_tree.KILL_AGAIN_S)
        if self._rested_at is not None and self._ending_now:
            due.append(self._rested_at + FLUSH_S)
        moments = [moment for moment in due if moment is not None]
        return max(0.0, min(moments) - now) if moments else None

    def _tick(self) -> None:
        now = self._clock()
        for slot in self._slots.values():
            if slot.worker_link is not None:
                slot.worker_link.tick()
        for number in released(filter(None, (slot.standing for slot in self._slots.values()))):
            self._slots[number].pass_barrier()
        if self._end_at is not None and now >= self._end_at:
            self.end_all("the time after the notice is over")
        self._send_heartbeats(now)
        if self._job is not None:
            self._job.tick()

    def _send_heartbeats(self, now: float) -> None:
        """Send the newest heartbeat of each process. In a large job most messages report only silent processes."""
        if self._job is None and all(slot.worker_link is None for slot in self._slots.values()):
            self._heartbeat_at = None
            self._figures_at = 0.0
        elif self._heartbeat_at is None or now >= self._heartbeat_at:
            pace = Pace() if self._job is None else self._job.pace
            links = {number: slot.worker_link for number, slot in self._slots.items() if slot.worker_link is not None}
            newest = {number: beat for number, link in links.items() if (beat := link.heartbeat()) is not None}
            late_s = LATE * pace.heartbeat_s
            late = {
                number
                for number, beat in newest.items()
                if beat["age"] > late_s and links[number].worker.generation is not None
            }
            if now >= self._figures_at:
                figures, self._heartbeats = self._heartbeats % pace.figures_every == 0, self._heartbeats + 1
                told = {number for number, beat in newest.items() if figures or beat["age"] > pace.heartbeat_s}
                # Count from now, not from the due time, so that no heartbeats accumulate after a pause.
                self._figures_at = now + pace.heartbeat_s
            else:
                figures, told = False, late
            slots = {str(number): newest[number] for number in newest if number in told}
            self.tell("beats", slots=slots, **({} if figures else {"part": True}))
            self._heartbeat_at = min(self._figures_at, now + pace.heartbeat_s / SOONER if late else math.inf)

    # --- orders ------------------------------------------------------------------------------------

    def _listen(self) -> None:
        data = os.read(self._orders, CHUNK)
        if not data:
            self.unwatch(self._orders)
            self.end_all("the launcher has left")
        for line in self._lines.feed(data):
            if self._job is None:  # after the agent has joined, orders come over the connection
                self._try(lambda line=line: read(entry_of(line)))  # type: ignore[misc]

    def _try(self, reading: Callable[[], Order]) -> None:
        try:
            self._apply(reading())
        except OrderError as error:
            self._refused = True
            slot = None if error.slot is None else self._slots.get(error.slot)
            self.tell("refused", slot=error.slot, life=None if slot is None else slot.life, reason=str(error))
            where = "" if error.slot is None else f" for slot {error.slot}"
            self.warn(f"order refused{where}: {error}")
        self._first = False

    def _apply(self, order: Order) -> None:
        if isinstance(order, Finish):
            self._finishing, self._commits_needed = True, False
        elif isinstance(order, Pace):
            if self._job is not None:
                self._job.pace = order
        elif isinstance(order, Join | End):
            self._join(order)
        elif isinstance(order, Start):
            if self._finishing:
                raise OrderError("nothing more is started: the agent is about to end", order.slot)
            if self._job is not None:  # the launcher may be gone, and its standard error with it
                order = order._replace(output="frames")
            if order.slot not in self._slots:
                self._check_open_files(len(self._slots) + 1)
            self.slot(order.slot).start(order)
        elif isinstance(order, RunHelper):
            if self._job is None:
                self.helpers.run(order, env={}, secret=None)
            else:
                self.helpers.run(order, env=self._job.env, secret=self._job.secret)
        elif isinstance(order, Drop):
            self.helpers.kill()
            for number in order.slots:
                if number in self._slots:
                    self._slots[number].drop_kept()
        elif isinstance(order, Tell):
            for number, life in order.to.items():
                worker_link = slot.worker_link if (slot := self._slots.get(number)) is not None else None
                if worker_link is not None:
                    worker_link.tell(life, order.message)
        elif (slot := self._slots.get(order.slot)) is not None:
            slot.execute(order)
        else:
            raise OrderError("nothing was ever started in the slot", order.slot)

    def _join(self, order: Join | End) -> None:
        if not self._first:
            raise OrderError("this must be the first order")
        self._job = self._joining(self, order)
        self._sink = self._job.channel
        self.unwatch(self._orders)

    # --- signals and children ----------------------------------------------------------------------

    def _read_signals(self) -> None:
        numbers = os.read(self._wake, CHUNK)
        stops = [number for number in numbers if number in STOP_SIGNALS]
        if stops:
            self._end_on_signal(signal.Signals(stops[0]).name)
        if signal.SIGCHLD in numbers:
            self._reap()

    def _end_on_signal(self, name: str) -> None:
        """End at once, or, the first time, after a grace in which the launcher moves the work."""
        job, busy = self._job, [slot for slot in self._slots.values() if not slot.at_rest]
        if job is None or self._finishing:
            self.end_all(f"the agent was sent {name}")
            return
        job.notices.look()  # the sender may have written the reason and the deadline just before
        holds = any(slot.held is not None for slot in self._slots.values())
        least = GRACE_S if holds else 0.0  # the launcher may have another host fetch the held commit
        grace_s = max((slot.grace_s for slot in busy), default=least) if job.connected else 0.0
        if grace_s and (left_s := job.notices.left_s) is not None:
            grace_s = max(grace_s, left_s - grace_s)  # leave time for the grace of the slots afterwards
        job.tell_signal(name, grace_s)
        if not grace_s:
            self.end_all(f"the agent was sent {name}")
            return
        self._finishing, self._commits_needed, self._end_at = True, holds, self._clock() + grace_s

    def _reap(self) -> None:
        """Reap supervisors and helpers, and the processes of killed supervisors."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self.helpers.reaped(pid, code)
            for slot in self._slots.values():
                slot.reaped(pid, code)

    def _sweep(self) -> None:
        """Kill the processes of killed supervisors; then their slots continue."""
        if self._strays is not None:
            self._reap()
            supervisors = [slot.supervisor for slot in self._slots.values() if slot.supervisor is not None]
            supervisors += [] if self.helpers.pid is None else [self.helpers.pid]
            if self._strays.gone(self._clock(), supervisors, warn=self.warn):
                self._strays = None
                for slot in list(self._slots.values()):
                    slot.settle_if_lost()
