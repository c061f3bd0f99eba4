"""One slot of the agent: its commit memory, and the process that runs in it.

The memory outlives processes: the next process of the slot continues from the last one's commit. A slot is *at rest*
when nothing runs in it. A process that has ended leaves it so only when all that it had started has ended, too, since
that may still use memory and devices. A start that is ordered meanwhile waits for that.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any, Final, Protocol

from hvd_elastic_ext.agent.descriptors import CHUNK
from hvd_elastic_ext.agent.orders import COMMITS, AnswerQuestion, Forget, Kill, OrderError, Start, Stop, ToSlot
from hvd_elastic_ext.agent.slots.commit_memory import CommitMemory
from hvd_elastic_ext.agent.slots.process import OutOfMemory, Run, begin
from hvd_elastic_ext.agent.slots.supervisor import Inheritance
from hvd_elastic_ext.agent.slots.worker_link import UNKNOWN, LinkServices, Standing, WorkerLink
from hvd_elastic_ext.core.messages.slot_protocol import NOT_STARTED

STATES: Final = ("booting", "parked", "live", "done", "ending")
"""States of a slot's process: before its world; ready for it; in it; after training; ended, but child processes are
left."""


class AgentServices(LinkServices, Protocol):
    """What a slot uses of the agent."""

    memory: OutOfMemory
    stdin: int | None

    def lost_supervisor(self) -> None: ...


class Slot:
    """See the module's docstring."""

    def __init__(self, number: int, agent: AgentServices) -> None:
        self.number = number
        self._agent = agent
        self._commits: CommitMemory | None = None
        self._order: Start
        """The newest start that was executed."""
        self._next: Start | None = None
        """The start that waits until the run has ended."""
        self._run: Run | None = None
        """The process and what it has left; None at rest."""
        self._stopping: str | None = None
        """Why its processes were told to end, or the start that waits is not to be executed."""
        self._forget = False
        """Whether to release the commit memory when the slot is at rest."""
        self._forget_before_next = False
        """Whether to release the commit memory when the run has ended, so that :attr:`_next` begins without it."""
        self.worker_link: WorkerLink | None = None
        """Link and rendezvous proxy; None if they were not ordered."""
        self.life = 0
        """Number of the newest process in the slot, from 1."""
        self.code: int | None = None
        """Exit code of the last process, as in a shell; None if there was none yet."""

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs in it, neither a process nor its supervisor."""
        return self._run is None

    @property
    def supervisor(self) -> int | None:
        """The live supervisor."""
        return None if self._run is None or self._run.reaped else self._run.supervisor

    @property
    def trains(self) -> bool:
        """Whether its process runs and is in a world; without a link, whether it may be in one."""
        alive = self._run is not None and self._run.code is None
        return alive and (self.worker_link is None or self.worker_link.worker.generation is not None)

    @property
    def grace_s(self) -> float:
        """Grace of the process that was started last."""
        return self._order.grace_s

    @property
    def in_use(self) -> bool:
        """Whether a process was started in it, or it has commit memory."""
        return self.life > 0 or self._commits is not None

    @property
    def state(self) -> str:
        """One of :data:`STATES`; empty if nothing runs in it."""
        if self._run is None:
            return ""
        if self._run.code is not None:
            return "ending"
        if self.worker_link is None:
            return "live"
        worker = self.worker_link.worker
        return "done" if worker.done else "parked" if worker.parked else "live" if self.trains else "booting"

    @property
    def standing(self) -> Standing | None:
        """Where in its script its process is; None if there is none, or if it is or was in a world."""
        link = self.worker_link
        if self._run is None or self._run.code is not None or link is None or link.worker.generation is not None:
            return None
        return Standing(self.number, link.worker.reached, link.worker.waits)

    def pass_barrier(self) -> None:
        """Let its process pass the barrier in which it waits."""
        if self.worker_link is not None:
            call, number = self.worker_link.worker.reached
            self.worker_link.tell(self.life, {"tell": "barrier", "call": call, "number": number})

    def heartbeat_age(self, now: float) -> float | None:
        """Seconds since the newest heartbeat of the process that runs; None if it has sent none."""
        link = self.worker_link
        alive = self._run is not None and self._run.code is None
        return link.worker.age(now) if alive and link is not None and link.worker.heartbeat is not None else None

    @property
    def commit_bytes(self) -> int:
        """Bytes of this machine's memory that its commits use."""
        return 0 if self._commits is None else self._commits.size

    @property
    def held(self) -> list[int] | None:
        """The newest commit of a world in its memory: incarnation, generation, number and step."""
        return None if self._commits is None else self._commits.held()

    def status(self) -> dict[str, object]:
        """All that a new launcher needs to know of the slot."""
        run, held = self._run, self.held
        note = self._order.note if self.life else None
        worker = UNKNOWN if self.worker_link is None else self.worker_link.worker
        return {
            "life": self.life,
            "pid": None if run is None else run.pid,
            "state": "rest" if run is None else "running",
            "code": self.code if run is None else run.code,
            **worker.status(),
            **({} if note is None else {"note": note}),
            **({} if held is None else {"held": held}),
            **({"past": self.results} if self.results else {}),
        }

    def _tell(self, event: str, **fields: object) -> None:
        self._agent.tell(event, slot=self.number, life=self.life, **fields)

    # --- orders ------------------------------------------------------------------------------------

    def start(self, order: Start) -> None:
        """Start a process now, or as soon as the last run's processes are cleared.

        Raises :class:`OrderError` if a process runs already, if the number of commit memories differs, or if the life
        is not a new one.
        """
        ending = self._run is not None and self._run.code is not None and self._next is None
        if not self.at_rest and not ending:
            raise OrderError("the slot is taken: stop its process and wait until it has ended", self.number)
        if self._commits is not None and not self._forget and len(self._commits.descriptors) != order.commits:
            held = len(self._commits.descriptors)
            raise OrderError(f"'commits' must be {held}, as many as the slot has; or forget it first", self.number)
        if order.life is not None and order.life <= self.life:
            raise OrderError(f"'life' must be above {self.life}, the slot's last", self.number)
        if ending:
            self._next, self._stopping = order, None
            self._forget_before_next, self._forget = self._forget, False
            return
        self._order, self.life = order, order.life or self.life + 1
        self._stopping, self._forget = None, False
        self._launch()

    def execute(self, order: ToSlot) -> None:
        """Execute an order that needs no free slot."""
        match order:
            case Stop():
                self.stop("told to stop", order.grace_s)
            case Kill():
                self.kill()
            case AnswerQuestion():
                if self.worker_link is not None:
                    self.worker_link.answer(order)
            case Forget():
                self.forget()

    def stop(self, reason: str, grace_s: float | None = None) -> None:
        """End the slot's processes."""
        self._stopping = reason
        if self._run is not None:
            self._run.stop(self._order.grace_s if grace_s is None else grace_s)

    def kill(self) -> None:
        """Kill the slot's processes at once."""
        if self.supervisor is not None:
            os.kill(self.supervisor, signal.SIGCONT)  # not reaped yet: no other process can have this number
        self.stop("told to be killed", 0.0)

    def forget(self) -> None:
        """End the slot's processes and release the commit memory."""
        self._forget = True
        if self.at_rest:
            self._release()
        else:
            self.stop("forgotten")

    def memory(self) -> tuple[int, ...]:
        """Descriptors of the commit memory, which is made if there is none yet."""
        if self._commits is None:
            self._commits = CommitMemory(self.number, COMMITS)
        return self._commits.descriptors

    @property
    def past(self) -> int | None:
        """The descriptor of the results of training calls; None if there is no memory."""
        return None if self._commits is None else self._commits.past

    @property
    def results(self) -> int:
        """How many results of training calls its memory holds."""
        return 0 if self._commits is None else self._commits.results

    def drop_kept(self) -> None:
        """Let kept commits be overwritten."""
        if self._commits is not None:
            self._commits.drop_kept()

    # --- a process's life --------------------------------------------------------------------------

    def _launch(self) -> None:
        killed = self._agent.memory.count()
        try:
            inheritance = self._inheritance()
            self._run = begin(self._agent, self._order, inheritance, written=self._written)
        except OSError as error:
            if self.worker_link is not None:
                self.worker_link.end_of_life()
            self._not_started(str(error))
            self._rest("could not be started")
            return
        self._run.killed_before = killed
        if self.worker_link is not None:
            self.worker_link.handed_down()
        self._agent.watch(self._run.up, self._read_reports)

    def _inheritance(self) -> Inheritance:
        if self._commits is None:
            self._commits = CommitMemory(self.number, self._order.commits)
        stdin = self._agent.stdin if self._order.stdin else None
        past = self._commits.past if self._commits.descriptors else None  # for a process that trains only
        if not self._order.link:
            self._close_worker_link()
            return Inheritance(self._commits.descriptors, stdin=stdin, past=past)
        if self.worker_link is None:
            self.worker_link = WorkerLink(self.number, self._agent)
        link, proxy = self.worker_link.begin(self.life)
        return Inheritance(self._commits.descriptors, link, proxy, stdin, past)

    def _written(self, stream: str, text: str) -> None:
        self._tell("output", stream=stream, text=text)

    def _read_reports(self) -> None:
        """Read what the supervisor reports."""
        run = self._run
        assert run is not None
        data = os.read(run.up, CHUNK)
        for line in run.news.feed(data):
            if line is not None:
                self._take(run, json.loads(line))
        if not data:
            self._agent.unwatch(run.up)
            run.silent = True
            if run.finished:
                self._settle()
            elif self.lost:
                self._agent.lost_supervisor()

    def _take(self, run: Run, news: dict[str, Any]) -> None:
        if "started" in news:
            run.pid = news["started"]
            self._tell("started", pid=run.pid)
            run.outputs.listen()  # only now: the report of the start comes before all output
            if self.worker_link is not None:
                self.worker_link.listen()
        elif "not_started" in news:
            run.code = NOT_STARTED
            self._stopping = "could not be started"
            self._not_started(news["not_started"], news["remedy"])
        elif "exited" in news:
            self._exited(news["exited"])
        elif "defect" in news:
            self._agent.warn(f"slot {self.number}: a defect of hvd-elastic: {news['defect']}")
        else:
            run.finished = True
            if news["left"]:
                self._tell("left", pids=news["left"])
                self._agent.warn(f"slot {self.number}: processes that cannot be killed remain: {news['left']}")

    def _not_started(self, reason: str, remedy: str = "") -> None:
        self.code = NOT_STARTED
        self._tell("not_started", reason=reason)
        self._agent.warn("; ".join(filter(None, (f"cannot start the training process: {reason}", remedy))))

    def _exited(self, status: int) -> None:
        """Report the end of the training process; ``status`` is its exit code, or -N for signal N."""
        run = self._run
        assert run is not None
        run.outputs.drain()
        if self.worker_link is not None:
            self.worker_link.end_of_process()
        run.code = self.code = status if status >= 0 else 128 - status
        number = -status if status < 0 else None
        oom = run.code != 0 and self._agent.memory.explains(run.killed_before)
        self._tell("exited", pid=run.pid, code=run.code, signal=number, oom=oom, held=self.held, past=self.results)

    def reaped(self, pid: int, status: int) -> None:
        """Note the end of a child of the agent: the supervisor, or the training process after that was killed."""
        run = self._run
        if run is None:
            return
        if pid == run.supervisor:
            run.reaped = True
            if self.lost:
                self._agent.lost_supervisor()
        elif pid == run.pid and run.code is None:
            self._exited(status)

    @property
    def lost(self) -> bool:
        """Whether the supervisor was killed.

        Closed pipes do not prove it: the kernel closes them before its children become children of the agent.
        """
        run = self._run
        return run is not None and run.silent and run.reaped and not run.finished

    def settle_if_lost(self) -> None:
        """Continue after the supervisor was killed and none of its processes is left."""
        if self.lost:
            self._settle()

    def _settle(self) -> None:
        """Finish a run whose processes have all ended, and execute the orders that came meanwhile."""
        run = self._run
        assert run is not None
        if run.code is None:  # its supervisor was killed, so the kernel killed it, too
            self._exited(-signal.SIGKILL)
        run.close()
        if self.worker_link is not None:
            self.worker_link.end_of_life()
        self._run = None
        if self._next is None:
            self._rest(self._stopping or "it has ended")
        else:
            self._replace(self._next)

    def _replace(self, order: Start) -> None:
        """Start the process that was ordered meanwhile, unless it was stopped before its start."""
        reason, forget = self._stopping, self._forget
        self._next, self._stopping = None, None
        self._forget, self._forget_before_next = self._forget_before_next, False
        self._rest("another was ordered")
        if reason is None:
            self.start(order)
            return
        self._order, self.life = order, order.life or self.life + 1
        self._not_started(reason)
        self._forget = forget
        self._rest(reason)

    def _rest(self, reason: str) -> None:
        self._tell("ended", code=self.code, reason=reason)
        if self._forget:
            self._release()

    def _release(self) -> None:
        self._forget = False
        self.close()
        self._tell("forgotten")

    def close(self) -> None:
        """Close commit memory, link and proxy. Can be called again."""
        if self._commits is not None:
            self._commits.close()
            self._commits = None
        self._close_worker_link()

    def _close_worker_link(self) -> None:
        if self.worker_link is not None:
            self.worker_link.close()
            self.worker_link = None
