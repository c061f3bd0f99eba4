"""The way of a training process into a world, out of it, and into the next one.

A process that an agent started with a link begins in a world of its own: Horovod
is initialised with size 1, the script builds what it needs, and sees the place it
is *planned* to have. Then it parks. Told to go, it joins the job as survivors of a
lost world do: through an elastic re-initialisation, which blocks until the next
generation forms.

Standard library only: the import hook loads this into every training script.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final

from hvd_elastic_ext.core.rank_info import ALONE, VARIABLES, Place, place_of
from hvd_elastic_ext.core.slot_protocol import ENGINE, GENERATION
from hvd_elastic_ext.worker.process import error_report, link
from hvd_elastic_ext.worker.process.fence import HOROVODS, Fence
from hvd_elastic_ext.worker.process.link import Link, Tell

log = logging.getLogger(__name__)

PLAN: Final = "HVD_ELASTIC_PLAN"
DEVICE: Final = "HVD_ELASTIC_DEVICE"
DOOR: Final = "HVD_ELASTIC_DOOR"
ADDRESS: Final = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
PORT: Final = "HOROVOD_GLOO_RENDEZVOUS_PORT"

WORLD_S: Final = 2.0
"""How long news of the world that was just joined may take over the link: they were sent before it formed."""


class Standby:
    """One process's way. ``link`` tells what to do; main thread and link thread meet here."""

    def __init__(self, link: Link, *, fence: Fence = HOROVODS, environ: MutableMapping[str, str] = os.environ) -> None:
        self.link = link
        self.planned: Place | None = None
        """What user code is to see as its place; None as soon as the real one may be seen."""
        self.leaving = False
        """Told to leave: not part of the next world."""
        self.generation: int | None = _number(environ.get(GENERATION))
        """Of the world this process is in."""
        self.updated: Callable[[Tell], None] = _ignore
        """Called on the link's thread when hosts will change."""
        self.keep: Callable[[Tell], None] = _ignore
        """Called there when a commit is to be kept for whoever makes it durable."""
        self.thin: Callable[[Tell], None] = _ignore
        """Called there when only every n-th call of ``commit()`` is to commit."""
        place = place_of(environ.get(PLAN, "")) if link.connected and DEVICE in environ else None
        self.local_rank = None if place is None else place.local_rank
        """What user code is to see as its local rank for good: by it a script finds its device. None: the real one."""
        self._fence = fence
        self._environ = environ
        self._reclaimed = False
        self._warned = False
        self._shown: set[Place] = set()
        self._alone = False
        self._live = ADDRESS in environ
        self._said: BaseException | None = None
        self._removed: list[Callable[[], object]] = []
        self._news = threading.Condition()
        self._go: Tell | None = None
        self._for_next_world: dict[str, str] = {}
        self._waiting_for_rank = False
        if link.connected:
            fence.spare(_port(environ.get(DOOR)))
            link.told, link.lost = self._told, self._lost

    # For the main thread

    @property
    def parks(self) -> bool:
        """Whether this process is in a world of its own and has yet to be told to go."""
        return self._alone and not self._live

    def alive(self) -> bool:
        """Whether this process has not been told to leave. Scripts ask before every batch; they may end by themselves
        when they see that it has, so that the launcher hears of that, and of what they see when it is withdrawn.
        """
        self.link.vitals.progress += 1
        leaving = self.leaving or self._reclaimed
        if leaving != self._warned:
            self._warned = leaving
            self.link.say("warned", leaving=leaving)
        return not leaving

    def on_removed(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when this process has left its world for good."""
        self._removed.append(callback)

    def init(self, join: Callable[[], None], shutdown: Callable[[], None], *, later: bool) -> None:
        """Stand in for ``hvd.init()``. With ``later`` the script's training loop is going to park; else this does.

        Raises ``SystemExit`` in a process that was told to leave.
        """
        if not self.link.connected:
            self._fence.watching(join)()
            return
        self.link.start()
        if self.leaving:
            self.leave()
        if not (self._live or self._alone):
            self._join_alone(join)
            if later:
                return
        if not self._live:
            self.park()
            shutdown()
        self._join(join)

    def park(self) -> None:
        """Wait until the process may go live, and take over what it is to go with."""
        self.link.say("parked")
        with self._news:
            while self._go is None:
                if self.leaving:
                    raise SystemExit(0)  # it has never been in the job: there is nothing to be removed from
                if not self.link.connected:
                    raise SystemExit("hvd-elastic: the agent of this host has gone; a parked process cannot go on")
                self._news.wait()
            go = self._go
        self._environ.update({name: str(value) for name, value in dict(go.get("env") or {}).items()})
        self._environ.setdefault(ADDRESS, "127.0.0.1")
        self._environ.setdefault(PORT, self._environ.get(DOOR, ""))
        self._live, self.planned = True, None

    def saw_otherwise(self, place: tuple[int, ...]) -> bool:
        """Whether user code was shown another place than the one it got."""
        return any(shown[: len(place)] != place for shown in self._shown)

    def leave(self) -> None:
        """End this process: it was told to, and its world has ended for it."""
        self._call_removed()
        raise SystemExit(0)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Around the whole of training: say that it is a loop that will say how it ends, and how it does."""
        self.link.say("looping")
        try:
            yield
        except Exception as error:
            self.failed(error)
            raise
        self.link.beat()  # how far it has come, to the last step
        self.link.say("done")
        self.link.flush()

    def failed(self, error: BaseException) -> None:
        """Say that the script failed; once for each error."""
        if error_report.is_failure(error) and error is not self._said:
            self._said = error
            self.link.say("failed", **error_report.describe(error))
            self.link.flush()

    @property
    def restarts(self) -> bool:
        """Whether this process was started for one world, and is to end with it: others follow it into the next."""
        return self.link.connected and ENGINE in self._environ

    def begun_in_world(self) -> None:
        """A process that was started for one world is in it: listen and beat from now on."""
        if self.restarts and not self._live:
            self._live = True
            self.link.vitals.fresh = True
            self.link.start()

    def end_of_world(self) -> None:
        """This process ends with its world: say how far it has come, for those that follow it."""
        if self.restarts:
            self.link.beat()
            self.link.flush()

    def entered(self, rank: int, size: int) -> None:
        """Say that a world has formed."""
        self.link.vitals.fresh = True
        self.link.say("entered", generation=self.generation, rank=rank, size=size)

    def synced(self) -> None:
        """Say that the ranks of this world have agreed on the state, and which commit each holds now."""
        vitals = self.link.vitals
        self.link.say("synced", step=vitals.step, commit=vitals.commit)

    # Inside

    def _join_alone(self, join: Callable[[], None]) -> None:
        """Make a world of one. Horovod takes no other place than the first of one for it."""
        before = {name: self._environ.get(name) for name in (*VARIABLES, "HOROVOD_GLOO_IFACE")}
        self._environ["HOROVOD_ELASTIC"] = "1"  # for good: DistributedOptimizer asks for it when it is made
        self._environ.update(ALONE.environment())
        self._environ["HOROVOD_GLOO_IFACE"] = "lo"
        try:
            join()
        finally:
            for name, value in before.items():
                if value is None:
                    del self._environ[name]
                else:
                    self._environ[name] = value
        self._alone = True
        with self._news:
            if self.planned is None:
                self._plan(place_of(self._environ.get(PLAN, "")))

    def _join(self, join: Callable[[], None]) -> None:
        with self._news:
            if self.leaving:
                left = True
            else:
                left, self._waiting_for_rank = False, True
        if left:
            self.leave()
        before = self.generation
        self._environ.update(self._for_next_world)  # not as it is told: other threads may be reading
        self.link.beat()  # ranks go by who holds the newest commit
        try:
            self._fence.watching(join)()
        finally:
            with self._news:
                self._waiting_for_rank = False
        self._await_world(before)

    def _await_world(self, before: int | None) -> None:
        """The launcher says which world it is before it answers; that may arrive a moment later."""
        deadline = time.monotonic() + WORLD_S
        with self._news:
            while self.generation == before and self.link.connected:
                if not self._news.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
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

    def _told(self, message: Tell) -> None:
        act = {
            "go": self._told_go,
            "plan": self._told_plan,
            "world": self._told_world,
            "update": self._told_update,
            "fence": self._told_fence,
            "env": self._told_env,
            "keep": self.keep,
            "thin": self.thin,
            "reclaim": self._told_reclaim,
        }.get(message["tell"])
        if act is None:
            log.debug("the agent says %r, which this version does not know", message["tell"])
        else:
            act(message)

    def _told_go(self, message: Tell) -> None:
        with self._news:
            self._go = message
            self._news.notify_all()

    def _told_plan(self, message: Tell) -> None:
        with self._news:
            if not self._live:
                self._plan(Place(*(int(message[name]) for name in Place._fields)))

    def _told_world(self, message: Tell) -> None:
        with self._news:
            self.generation = int(message["generation"])
            self._waiting_for_rank = False
            self._news.notify_all()

    def _told_update(self, message: Tell) -> None:
        with self._news:
            self.leaving = bool(message.get("leave"))
            stuck = self.leaving and self._waiting_for_rank
            self._news.notify_all()
        if stuck:
            self._leave_from_here()
        self.updated(message)

    def _told_reclaim(self, message: Tell) -> None:
        """The host, or the whole job, is about to be taken away, and there is no world to leave for; or it is not."""
        self._reclaimed = message.get("leaving") is True

    def _told_fence(self, message: Tell) -> None:
        addresses = message.get("addresses")
        cut = self._fence.cut(None if addresses is None else [str(address) for address in addresses])
        log.warning("cut off from %s: %d connections", "all peers" if addresses is None else addresses, cut)

    def _told_env(self, message: Tell) -> None:
        self._for_next_world = {str(name): str(value) for name, value in dict(message.get("env") or {}).items()}

    def _leave_from_here(self) -> None:
        """The main thread is in Horovod, asking for a rank that it will not get, and hears nothing."""
        self._call_removed()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)

    def _lost(self) -> None:
        with self._news:
            self._news.notify_all()


_current: list[Standby] = []


def current() -> Standby:
    """Return this process's way; without a link it does nothing."""
    if not _current or (not _current[0].link.connected and link.is_announced(os.environ)):
        _current[:] = [Standby(link.current())]
        if _current[0].link.connected:
            _tell_failures()
    return _current[0]


def planned() -> Place | None:
    """The place that user code is to see, if it is not the real one."""
    return _current[0].planned if _current else None


def local_rank() -> int | None:
    """The local rank that user code is to see, if it is not the real one."""
    kept, place = (_current[0].local_rank if _current else None), planned()
    return kept if kept is not None or place is None else place.local_rank


def _tell_failures() -> None:
    """Let the launcher know of errors outside the training function, too."""
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        _current[0].failed(error)
        before(kind, error, trace)

    sys.excepthook = told


def _port(text: str | None) -> int | None:
    return _number(text)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _ignore(message: Mapping[str, Any]) -> None:
    """Nobody listens."""
