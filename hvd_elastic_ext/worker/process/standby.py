"""Enters a world with a training process, leaves it, and enters the next one.

A process that an agent starts begins in a world of its own: Horovod is initialised with size 1. It parks in
``hvd.init()``. When the launcher calls it, it joins the others as survivors of a lost world do: by an elastic
re-initialisation, which blocks until the next generation forms. If the others have begun their training loop, they can
be met only there: the process goes on alone, its script builds its objects and sees its *planned* rank, and it parks
again at its loop.

While it is parked it is in no world: the threads of its library would otherwise look for work all the time, a thousand
times a second in Horovod's, and others would wait for their end once it is called.

:mod:`hvd_elastic_ext.worker.engines.slot_standby` uses the same messages for another purpose: it waits in one thread
for one world, without Horovod. This module has a thread for the link, and enters one world after another.

Standard library only: the import hook loads this into every training script.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final

from hvd_elastic_ext.core.messages.rank_info import ALONE, VARIABLES, Place, place_of
from hvd_elastic_ext.core.messages.slot_protocol import (
    DEVICE,
    ENGINE,
    GENERATION,
    GENERATION_WAIT_S,
    PLAN,
    RENDEZVOUS_PORT,
)
from hvd_elastic_ext.worker.process import error_report, link
from hvd_elastic_ext.worker.process.fence import HOROVOD_FENCE, Fence
from hvd_elastic_ext.worker.process.link import Link, Message
from hvd_elastic_ext.worker.process.steps import StepTimer

log = logging.getLogger(__name__)

ADDRESS: Final = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
PORT: Final = "HOROVOD_GLOO_RENDEZVOUS_PORT"
ATTEMPTS: Final = 5
"""How often a process tries to join its first world."""
BARRIER_LINE_S: Final = 5.0
"""Seconds in a barrier of this host's new processes until a line says so."""
BARRIER_S: Final = 600.0
"""Most seconds in such a barrier."""
ALL_BARRIERS: Final = 1 << 31
"""The number of a barrier after all others."""
ATTEMPT_PAUSE_S: Final = 0.5
"""The pause after the first attempt; after the n-th it is n times as long."""


class CallOver(Exception):
    """The training call that this process is in is over: its result is known, and the process goes on with it."""


class OrderedExit(SystemExit):
    """This process leaves for the launcher: it is not in the next world, or ends with its own. The script's own
    ``sys.exit()`` raises another ``SystemExit``.
    """


class Standby:
    """The state of this process. The main thread and the thread of ``link`` share it."""

    def __init__(
        self, link: Link, *, fence: Fence = HOROVOD_FENCE, environ: MutableMapping[str, str] = os.environ
    ) -> None:
        self.link = link
        self.planned: Place | None = None
        """The ranks and sizes that user code sees; None: the real ones."""
        self.leaving = False
        """Whether this process is not part of the next world."""
        self.generation: int | None = _number(environ.get(GENERATION))
        """The world that this process is in."""
        self.on_update: Callable[[Message], None] = lambda message: None
        """Called on the link's thread when hosts will change."""
        self.on_keep: Callable[[Message], None] = lambda message: None
        """Called on that thread when a commit must stay until it is written as a checkpoint."""
        self.on_commit_interval: Callable[[Message], None] = lambda message: None
        """Called on that thread when only every n-th ``commit()`` shall make a commit."""
        place = place_of(environ.get(PLAN, "")) if link.connected and DEVICE in environ else None
        self.local_rank = None if place is None else place.local_rank
        """The local rank that user code sees until the end, because it selects the device; None: the real one."""
        self._fence = fence
        self._environ = environ
        self._reclaimed = False
        self._terminated = False
        """Whether it got a SIGTERM that its script handles."""
        self._warned = False
        self._shown: set[Place] = set()
        self._alone = False
        self._live = ADDRESS in environ
        self._reported_error: BaseException | None = None
        self._removed: list[Callable[[], object]] = []
        self._changed = threading.Condition()
        self._go: Message | None = None
        self._results_came = False
        self.came_later = False
        """Whether it has joined others in ``init`` that had begun their training function, and not begun its own."""
        self._passed = (0, 0)
        """The last barrier that this process may pass: the call before it, and its number from there on."""
        self._goes_alone = False
        """Whether the others have begun their training loop: this process meets them there, and not in ``init``."""
        self._for_next_world: dict[str, str] = {}
        self.step_timer: StepTimer | None = None
        """Measures steps, if this process has a link."""
        self._waiting_for_rank = False
        self._between_worlds = False
        """Whether it has left its last world, and has not received the number of the next one."""
        if link.connected:
            fence.exclude_port(_number(environ.get(RENDEZVOUS_PORT)))
            link.on_message, link.on_lost = self._on_message, self._on_lost

    # For the main thread

    @property
    def parks(self) -> bool:
        """Whether this process is in a world of its own and is not called yet."""
        return self._alone and not self._live

    @property
    def goes_alone(self) -> bool:
        """Whether the others train already: this process meets them at its loop."""
        return self._goes_alone

    def alive(self) -> bool:
        """Whether this process may stay. Reports each change of the answer, because a script may act on it."""
        self.link.status.progress += 1
        leaving = self.leaving or self._reclaimed
        if leaving != self._warned:
            self._warned = leaving
            self.link.send("warned", leaving=leaving)
        return not leaving

    def on_removed(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when this process has left its last world."""
        self._removed.append(callback)

    def init(self, join: Callable[[], None], shutdown: Callable[[], None], *, later: bool) -> None:
        """Replace ``hvd.init()``: park, and join the world of the others.

        With ``later``, the script's training loop can do that, too: if the others are there already, this process stays
        in a world of its own until its loop.

        Raises :class:`OrderedExit` in a process that must leave.
        """
        if not self.link.connected:
            self._fence.tracking(join)()
            return
        self.link.start()
        if self.leaving:
            self.leave()
        if self._live:
            self._join(join)
            return
        again = self._alone
        self._join_alone(join)  # also before it parks: Horovod asks for no rank the first time
        if later and again:
            return
        shutdown()
        if not self.park(at="init", later=later, call=0):  # it is in no call that is known here
            self._join_alone(join)
            return
        self._join_first(join, shutdown)

    def park(
        self, *, at: str = "loop", later: bool = False, call: int = 1, is_over: Callable[[], bool] = lambda: False
    ) -> bool:
        """Wait until this process is called, and adopt the environment that comes with the call. It has left its world
        of one before.

        ``at``: "init" or "loop". With ``later`` it can also park at its loop: return False if it is to do that.
        ``call``: the training call that it is in. ``is_over`` is asked when results of calls have come; if it is true,
        this raises :class:`CallOver`.
        """
        self.link.send("parked", at=at, later=later, call=call)
        with self._changed:
            while self._go is None:
                if later and self._goes_alone:
                    return False
                if self.leaving:  # before results, with which it would go on alone as if it had been in the job
                    raise OrderedExit(0)  # the process was never in the job: no ``on_removed``
                if self._results_came:
                    self._results_came = False
                    if is_over():
                        raise CallOver
                    self.link.send(
                        "parked", at=at, later=later, call=call
                    )  # they are not the ones that this call needs
                if not self.link.connected:
                    raise SystemExit("hvd-elastic: the agent of this host has gone; a parked process cannot continue")
                self._changed.wait()
            go = self._go
        self._environ.update({name: str(value) for name, value in dict(go.get("env") or {}).items()})
        self._environ.setdefault(ADDRESS, "127.0.0.1")
        self._environ.setdefault(PORT, self._environ.get(RENDEZVOUS_PORT, ""))
        self._live, self.planned, self.came_later = True, None, at == "init" and go.get("later") is True
        return True

    def pass_barrier(
        self, call: int, number: int, *, line_s: float = BARRIER_LINE_S, most_s: float = BARRIER_S
    ) -> None:
        """Wait for the processes of this host that come later, too, and have not come to this barrier yet: the
        ``number``-th after ``call``. A process that fails, or passes it by, is not waited for.
        """
        self.link.send("barrier", call=call, number=number)
        began, told = time.monotonic(), False
        with self._changed:
            while self._passed < (call, number) and self.link.connected:
                if self.leaving:
                    raise OrderedExit(0)
                waited = time.monotonic() - began
                if waited >= most_s:
                    log.warning("hvd.barrier(): other new processes of this host have not come within %g s", most_s)
                    return
                if waited >= line_s and not told:
                    told = True
                    log.warning("hvd.barrier() waits for other new processes of this host")
                self._changed.wait((most_s if told else line_s) - waited)

    def leave_barriers(self, call: int) -> None:
        """Report that this process comes to no barrier between ``call`` and the next one any more."""
        self.link.send("barrier", call=call, number=ALL_BARRIERS)

    def was_shown_another_place(self, place: tuple[int, ...]) -> bool:
        """Whether user code has seen other ranks or sizes than the real ones."""
        return any(shown[: len(place)] != place for shown in self._shown)

    def leave(self) -> None:
        """End this process after its last world."""
        self._call_removed()
        raise OrderedExit(0)

    @contextlib.contextmanager
    def training(self, call: int = 1, *, collectives: bool = False) -> Iterator[None]:
        """Report that the script has an elastic loop, and how the loop ends. ``call``: the number of this call.
        ``collectives``: whether results of collectives before it will be kept."""
        self.came_later = False
        self.link.send("looping", call=call, **({"collectives": True} if collectives else {}))
        try:
            yield
        except CallOver:
            raise
        except Exception as error:
            self.failed(error)
            raise
        except SystemExit as end:
            well, status = self.ends_training(end), self.link.status
            self.link.send("left", call=call, well=well, step=status.step, commit=status.commit)
            self.link.flush()
            raise
        self.link.beat()  # reports the last step
        self.link.send("done", call=call)
        self.link.flush()

    def watch_signals(self) -> None:
        """Report a SIGTERM that the script handles. Only the main thread can begin that."""
        self.link.on_signal = self._on_signal
        self.link.watch_signals()

    def ends_training(self, end: SystemExit) -> bool:
        """Whether the script itself ends training well, as by ``sys.exit(0)``, and nothing has told it to leave."""
        self.link.read_signals()
        well = end.code is None or (isinstance(end.code, int) and end.code == 0)
        told = self.leaving or self._reclaimed or self._terminated
        return well and not told and not isinstance(end, OrderedExit)

    def failed(self, error: BaseException) -> None:
        """Report a failure of the script, once for each error, and whether it only follows from a lost peer."""
        lost, own = error_report.follows_lost_peer(error), error_report.is_failure(error)
        if error is self._reported_error or not (lost or own):
            return
        self._reported_error = error
        if lost:
            self.link.send("peer_lost", error=error_report.line_of(error))
        if own:
            self.link.send("failed", **error_report.describe(error))
        self.link.flush()

    @property
    def fixed_world(self) -> bool:
        """Whether this process was started for one world and ends with it. Other processes form the next one."""
        return self.link.connected and ENGINE in self._environ

    def start_fixed_world(self) -> None:
        """Start the link of a process that begins in its only world."""
        if self.fixed_world and not self._live:
            self._live = True
            self.link.status.fresh = True
            self.link.start()

    def end_fixed_world(self) -> None:
        """Report the last step before this process ends with its world."""
        if self.fixed_world:
            self.link.beat()
            self.link.flush()

    def entered(self, rank: int, size: int) -> None:
        """Report that a world has formed."""
        self.link.status.fresh = True
        self.link.send("entered", generation=self.generation, rank=rank, size=size)

    def synced(self) -> None:
        """Report that the ranks agree on the state, and which commit this process holds."""
        status = self.link.status
        self.link.send("synced", step=status.step, commit=status.commit)

    # Inside

    def _join_alone(self, join: Callable[[], None]) -> None:
        """Form a world of one. Horovod accepts only rank 0 of 1 for it."""
        before = {name: self._environ.get(name) for name in (*VARIABLES, "HOROVOD_GLOO_IFACE")}
        self._environ["HOROVOD_ELASTIC"] = "0"  # else Horovod asks for a rank the second time
        self._environ.update(ALONE.environment())
        self._environ["HOROVOD_GLOO_IFACE"] = "lo"
        try:
            join()
        finally:
            self._environ["HOROVOD_ELASTIC"] = "1"  # it stays set: DistributedOptimizer reads it
            for name, value in before.items():
                if value is None:
                    del self._environ[name]
                else:
                    self._environ[name] = value
        self._alone = True
        with self._changed:
            if self.planned is None:
                self._plan(place_of(self._environ.get(PLAN, "")))

    def _join_first(self, join: Callable[[], None], shutdown: Callable[[], None]) -> None:
        """Join the world of the others. If it does not form, leave it and wait for the next one: nobody has done
        anything in it.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._join(join)
            except Exception as error:
                if attempt == ATTEMPTS or not (isinstance(error, ValueError) or error_report.follows_lost_peer(error)):
                    raise
                log.warning("joining the job failed, trying again: %s", error)
            time.sleep(ATTEMPT_PAUSE_S * attempt)
            shutdown()
        return None

    def _join(self, join: Callable[[], None]) -> None:
        with self._changed:
            leaving = self.leaving
            self._waiting_for_rank = self._between_worlds = not leaving
        if leaving:
            self.leave()
        before = self.generation
        self._environ.update(self._for_next_world)  # not earlier: other threads may read the environment
        self.link.beat()  # ranks depend on which process holds the newest commit
        try:
            self._connect(join)
            self._await_world(before)
        finally:
            with self._changed:
                self._between_worlds = False

    def _connect(self, join: Callable[[], None]) -> None:
        """Ask for a rank, and connect to the others."""
        self.link.status.waiting = True
        try:
            self._fence.tracking(join)()
        finally:
            self.link.status.waiting = False
            with self._changed:
                self._waiting_for_rank = False

    def _await_world(self, before: int | None) -> None:
        """Wait for the generation of the world: it may arrive a moment after the rank."""
        deadline = time.monotonic() + GENERATION_WAIT_S
        with self._changed:
            while self.generation == before and self.link.connected:
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    return

    def _plan(self, place: Place | None) -> None:
        self.planned = place
        if place is not None:
            self._shown.add(place)

    def _call_removed(self) -> None:
        for callback in self._removed:
            try:
                callback()
            except Exception:
                log.exception("on_removed: %r failed", callback)

    # For the link's thread

    def _on_message(self, message: Message) -> None:
        act = {
            "go": self._on_go,
            "alone": self._on_alone,
            "plan": self._on_plan,
            "world": self._on_world,
            "update": self._on_update,
            "fence": self._on_fence,
            "env": self._on_env,
            "keep": self.on_keep,
            "commit_interval": self.on_commit_interval,
            "reclaim": self._on_reclaim,
            "results": self._on_results,
            "barrier": self._on_barrier,
        }.get(message["tell"])
        if act is None:
            log.debug("the agent sent %r, which is unknown to this version", message["tell"])
        else:
            act(message)

    def _on_go(self, message: Message) -> None:
        with self._changed:
            self._go = message
            self._changed.notify_all()

    def _on_alone(self, _: Message) -> None:
        with self._changed:
            self._goes_alone = True
            self._changed.notify_all()

    def _on_plan(self, message: Message) -> None:
        with self._changed:
            if not self._live:
                self._plan(Place(*(int(message[name]) for name in Place._fields)))

    def _on_world(self, message: Message) -> None:
        with self._changed:
            self.generation = int(message["generation"])
            self._waiting_for_rank = self._between_worlds = False
            self._changed.notify_all()

    def _on_update(self, message: Message) -> None:
        with self._changed:
            self.leaving = bool(message.get("leave"))
            stuck = self.leaving and self._waiting_for_rank
            self._changed.notify_all()
        if stuck:
            self._leave_from_here()
        self.on_update(message)

    def _on_reclaim(self, message: Message) -> None:
        """Note that this host or the whole job is about to be reclaimed and no other world follows, or that this is no
        longer the case."""
        self._reclaimed = message.get("leaving") is True

    def _on_results(self, _: Message) -> None:
        """Results of finished calls have come into this slot's past."""
        with self._changed:
            self._results_came = True
            self._changed.notify_all()

    def _on_barrier(self, message: Message) -> None:
        """All who are waited for have come to a barrier."""
        with self._changed:
            self._passed = max(self._passed, (int(message["call"]), int(message["number"])))
            self._changed.notify_all()

    def _on_signal(self, number: int) -> None:
        """Report a SIGTERM that the script handles: it may end training because of it. On any thread."""
        if number == signal.SIGTERM and not self._terminated:
            self._terminated = True
            self.link.send("terminated")

    def _on_fence(self, message: Message) -> None:
        with self._changed:  # no thread enters a world meanwhile
            if self._between_worlds:
                # The order is for the world that this process has left: for a later world, its number would have come
                # first. To cut the connections of the world that forms now would abort all processes in it.
                log.info("ignored an order to cut the connections of a world that this process has left already")
                return
            taken = self._fence.take()
        log.warning("cut off from all peers: %d connections", self._fence.shut(taken))

    def _on_env(self, message: Message) -> None:
        self._for_next_world = {str(name): str(value) for name, value in dict(message.get("env") or {}).items()}

    def _leave_from_here(self) -> None:
        """End the process from the link's thread: the main thread waits in Horovod for a rank that will not come."""
        self._call_removed()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)

    def _on_lost(self) -> None:
        with self._changed:
            self._changed.notify_all()


_current: list[Standby] = []


def current() -> Standby:
    """Return the state of this process; without a link it does nothing."""
    if not _current or (not _current[0].link.connected and link.is_announced(os.environ)):
        _current[:] = [Standby(link.current())]
        if _current[0].link.connected:
            _report_uncaught_errors()
            _current[0].watch_signals()
    return _current[0]


def planned() -> Place | None:
    """Return the ranks and sizes that user code sees instead of the real ones, if any."""
    return _current[0].planned if _current else None


def local_rank() -> int | None:
    """Return the local rank that user code sees instead of the real one, if any."""
    kept, place = (_current[0].local_rank if _current else None), planned()
    return kept if kept is not None or place is None else place.local_rank


def _report_uncaught_errors() -> None:
    """Report errors outside the training function, too."""
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        _current[0].failed(error)
        before(kind, error, trace)

    sys.excepthook = report


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
