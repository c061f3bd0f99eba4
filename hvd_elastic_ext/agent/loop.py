"""The agent's loop: orders, reports of supervisors, output, signals and timers. See the package."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.agent.descriptors import CHUNK, DescriptorLoop, Lines, Outbox, warn
from hvd_elastic_ext.agent.helper import Helper
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
    is_name,
    read,
)
from hvd_elastic_ext.agent.slots.process import OutOfMemory
from hvd_elastic_ext.agent.slots.rendezvous import WorldKeys
from hvd_elastic_ext.agent.slots.slot import Slot
from hvd_elastic_ext.agent.slots.supervisor import STOP_SIGNALS
from hvd_elastic_ext.agent.slots.warm_starts import WarmStarts
from hvd_elastic_ext.agent.slots.worker_link import released
from hvd_elastic_ext.core.messages.slot_protocol import NOT_STARTED
from hvd_elastic_ext.io import file_limits, process_tree

if TYPE_CHECKING:
    from hvd_elastic_ext.agent.channel import Channel
    from hvd_elastic_ext.agent.job import JoinedJob

REAP_S: Final = 1.0
"""Seconds that an ending agent waits for the processes that it has killed: one that waits for a disk ends late."""
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
        self.warm = WarmStarts(self)
        self.stdin = stdin
        self._slots: dict[int, Slot] = {}
        self._few_files = False
        self._heartbeats = 0
        self._heartbeat_at: float | None = None
        self._first = True
        self._finishing = False
        self._needed = False
        """Whether the launcher still needs the agent's commits after a signal to end. Until then the agent stays."""
        self._ending_now = False
        self._end_at: float | None = None
        self._rested_at: float | None = None
        self._strays: process_tree.Strays | None = None
        self._refused = False
        self._helper: Helper | None = None
        self._dropped: dict[int, frozenset[int]] = {}
        """Slots of killed helpers, by process number, until the agent has reaped the process."""

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
        """Note that a supervisor or the template was killed: its processes, now the agent's children, must end."""
        self._strays = self._strays or process_tree.Strays(self._clock())

    # --- what a joined job needs: see job.py --------------------------------------------------

    @property
    def slots(self) -> Mapping[int, Slot]:
        """By number, every slot named by an order to start a process or a helper."""
        return self._slots

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
            self.warm.try_again()

    def order(self, entry: dict[str, Any]) -> None:
        """Execute an order of the launcher."""
        self._try(lambda: read(entry))

    def end_all(self, reason: str, grace_s: float | None = None) -> None:
        """End every slot, and then the agent."""
        self._finishing = self._ending_now = True
        self._needed, self._end_at = False, None
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
            self.kill_helper()
            self.warm.end(REAP_S)
            process_tree.reap(self._dropped, within_s=REAP_S)
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
        if busy or self._needed or not self._finishing:
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
        preloads = self._job is not None and self._job.preloads and not self._finishing
        if preloads:
            self.warm.look((number, slot.example) for number, slot in self._slots.items() if not slot.at_rest)
        else:
            self.warm.close()
        self._send_heartbeats(now)
        if self._job is not None:
            self._job.tick()

    def _send_heartbeats(self, now: float) -> None:
        """Send the newest heartbeat of each process. In a large job most messages report only silent processes."""
        if self._job is None and all(slot.worker_link is None for slot in self._slots.values()):
            self._heartbeat_at = None
        elif self._heartbeat_at is None or now >= self._heartbeat_at:
            pace = Pace() if self._job is None else self._job.pace
            figures, self._heartbeats = self._heartbeats % pace.figures_every == 0, self._heartbeats + 1
            links = {number: slot.worker_link for number, slot in self._slots.items()}
            newest = {number: link.heartbeat() for number, link in links.items() if link is not None}
            slots = {
                str(number): heartbeat
                for number, heartbeat in newest.items()
                if heartbeat is not None and (figures or heartbeat["age"] > pace.heartbeat_s)
            }
            self.tell("beats", slots=slots, **({} if figures else {"part": True}))
            # Count from now, not from the due time, so that no heartbeats accumulate after a pause.
            self._heartbeat_at = now + pace.heartbeat_s

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
            self._finishing, self._needed = True, False
        elif isinstance(order, Pace):
            if self._job is not None:
                self._job.pace = order
        elif isinstance(order, Join | End):
            self._join(order)
        elif isinstance(order, Start):
            if self._finishing:
                raise OrderError("nothing is started any more: the agent is about to end", order.slot)
            if self._job is not None:  # the launcher may be gone, and its standard error with it
                order = order._replace(output="frames")
            if order.slot not in self._slots:
                self._check_open_files(len(self._slots) + 1)
            self._slots.setdefault(order.slot, Slot(order.slot, self)).start(order)
        elif isinstance(order, RunHelper):
            self._run_helper(order)
        elif isinstance(order, Drop):
            self.kill_helper()
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

    def _run_helper(self, order: RunHelper) -> None:
        """Start a helper. A new one replaces the one before."""
        order = order._replace(request={**order.request, **self._secret(order.request)})
        self.kill_helper()
        env = {} if self._job is None else self._job.env
        try:
            memory = {number: self._slots.setdefault(number, Slot(number, self)).memory() for number in order.slots}
            pasts = {number: past for number in memory if (past := self._slots[number].past) is not None}
            self._helper = Helper(self, order, memory=memory, pasts=pasts, env=env, tell=self.tell)
        except OSError as error:
            self.tell("helper_ended", id=order.number, code=NOT_STARTED, words=str(error))

    def _secret(self, request: Mapping[str, Any]) -> dict[str, str]:
        """The secret by which this end of a transfer proves that it belongs to the job."""
        transfer = request.get("transfer")
        if transfer is None:
            return {}
        if not is_name(transfer):
            raise OrderError("'request.transfer' must be a name of at most 255 printable ASCII characters")
        if self._job is None:
            raise OrderError("commits are transferred between agents that have joined a job")
        return {"secret": self._job.secret(transfer)}

    def kill_helper(self) -> None:
        """Kill the helper."""
        if self._helper is not None:
            if self._helper.pid is not None:
                self._dropped[self._helper.pid] = self._helper.slots
            self._helper.drop()
            self._helper = None

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
        self._finishing, self._needed, self._end_at = True, holds, self._clock() + grace_s

    def _reap(self) -> None:
        """Reap supervisors, and the processes of killed supervisors."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._tell_held(self._dropped.pop(pid, frozenset()))
            self.warm.reaped(pid, os.waitstatus_to_exitcode(status))
            for slot in self._slots.values():
                slot.reaped(pid, os.waitstatus_to_exitcode(status))
            if self._helper is not None:
                self._tell_held(self._helper.slots if pid == self._helper.pid else ())
                self._helper.reaped(pid, os.waitstatus_to_exitcode(status))

    def _tell_held(self, numbers: Iterable[int]) -> None:
        """Report the commits in the memory of these slots after a helper, which may have ended without an answer."""
        if numbers:
            slots = {number: self._slots[number] for number in numbers}
            pasts = {str(number): slot.results for number, slot in slots.items() if slot.results}
            self.tell("held", slots={str(number): slot.held for number, slot in slots.items()}, pasts=pasts)

    def _sweep(self) -> None:
        """Kill the processes of killed supervisors; then their slots continue."""
        if self._strays is not None:
            self._reap()
            supervisors = [slot.supervisor for slot in self._slots.values() if slot.supervisor is not None]
            others = (None if self._helper is None else self._helper.pid, self.warm.pid)
            supervisors += [pid for pid in others if pid is not None]
            if self._strays.gone(self._clock(), supervisors, warn=self.warn):
                self._strays = None
                for slot in list(self._slots.values()):
                    slot.settle_if_lost()
