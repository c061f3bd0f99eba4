"""Horovod's elastic driver, fed by push. Only the modules named ``horovod_…`` import ``horovod.runner``.

The driver is bent from outside, by subclasses, where it must be:

* hosts come from a :class:`HostFeed` the moment they change, instead of from a
  script run every second under the driver's lock;
* what workers should know is compared with what they were told, and told again
  until they act on it; Horovod sends each change once, stamped with whole
  seconds. They are never told that they may skip the next sync;
* a failed host is blocked for as long as Horovod's documentation says;
* newcomers are ordered by name, not by the accident of a set;
* a worker without a place in the new world is told to leave, instead of being
  handed a rank of -1, on which Horovod aborts it.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from horovod.common.util import gloo_built
from horovod.runner.common.util import env as env_util
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.common.util.timeout import TimeoutException
from horovod.runner.elastic import driver as stock
from horovod.runner.elastic.registration import WorkerStateRegistry
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.feed import HostFeed
from hvd_elastic_ext.launcher.health import NOT_STARTED, HostRecord, exit_cause
from hvd_elastic_ext.launcher.horovod_hosts import OrderedHostManager
from hvd_elastic_ext.launcher.horovod_notify import Place, WorkerClient
from hvd_elastic_ext.launcher.plan import World, describe_resize, must_tell
from hvd_elastic_ext.launcher.settings import RunSettings

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Longest pause between two looks at desired against actual."""
RETRY_S: Final = 0.05
"""Pause before trying again to tell workers what they could not be told."""
TELL_AGAIN_S: Final = 5.0
"""Workers that have not acted on a message for this long are sent it again."""
JOIN_S: Final = 5.0
"""How long the threads that attend to workers may take once the workers have ended."""


class WorkerProcess(Protocol):
    """What the driver needs of a worker: see :class:`hvd_elastic_ext.launcher.agents.Worker`."""

    @property
    def told_to_leave(self) -> bool: ...

    def wait(self) -> int: ...

    def stop(self) -> None: ...

    def end(self) -> None: ...


StartWorker = Callable[[SlotInfo], WorkerProcess]


class PushedDriver(stock.ElasticDriver):  # type: ignore[misc]
    """See the module's docstring. ``start_worker`` is called once for every process to start."""

    def __init__(
        self, settings: RunSettings, feed: HostFeed, *, journal: Journal, clock: Clock, rendezvous: Any
    ) -> None:
        # Horovod's own __init__ is not called: it would start its polling thread on a host manager of its choice.
        self._rendezvous = rendezvous
        self._host_manager = OrderedHostManager(feed, settings.cooldown_s, clock, self._struck)
        self._min_num_proc = settings.min_num_proc
        self._max_num_proc = settings.max_num_proc
        self._verbose = 2 if settings.verbose else 0
        self._host_assignments: dict[str, list[SlotInfo]] = {}
        self._rank_assignments: dict[int, SlotInfo] = {}
        self._world_size = 0
        self._wait_hosts_cond = threading.Condition()
        self._timeout = settings.elastic_timeout_s
        self._create_worker_fn: StartWorker | None = None
        self._worker_clients: dict[tuple[str, int], Any] = {}
        self._worker_registry = WorkerStateRegistry(self, self._host_manager, reset_limit=settings.reset_limit)
        self._results = stock.ResultsRecorder()
        self._shutdown = threading.Event()
        self._discovery_thread = threading.Thread(target=self._discover_hosts, name="hvd-driver", daemon=True)

        self._feed = feed
        self._journal = journal
        self._clock = clock
        self._workers: dict[tuple[str, int], WorkerProcess] = {}
        self._threads: list[threading.Thread] = []
        self._failed: dict[str, str] = {}
        self._cooled_down: set[str] = set()
        self._told: tuple[int, World, float] | None = None
        self._stamp = 0
        self.generation = 0
        self.first_cause: str | None = None
        """The first fault since the last world formed, in words."""

    def watch(self) -> None:
        """Begin to follow the feed."""
        self._discovery_thread.start()

    def world(self) -> World:
        """Processes on each host as they are assigned now."""
        return {host: len(slots) for host, slots in self._host_assignments.items()}

    def current_rank(self, host: str, slot: int) -> int | None:
        """The rank that ``slot`` of ``host`` has now, or None outside the world."""
        slots = self._host_assignments.get(host, [])
        return slots[slot].rank if slot < len(slots) else None

    def available_hosts(self) -> list[str]:
        """Hosts that may be used now, most senior first."""
        return list(self._host_manager.current_hosts.host_assignment_order)

    def wait_for_slots(self, slots: int) -> None:
        """Block until ``slots`` processes can be started. Raises :class:`JobFailed` when that takes too long."""
        try:
            self.wait_for_available_slots(slots)
        except TimeoutException:
            hosts = self._feed.hosts()
            why = f"; {self._feed.reason}" if self._feed.reason else ""
            raise JobFailed(
                f"{slots} slots are needed and {hosts.slots} were there ({', '.join(hosts.names) or 'no hosts'}) "
                f"after {self._timeout:g} s{why}; give more time with --elastic-timeout"
            ) from None
        except RuntimeError:
            raise JobFailed(self.first_cause or "the job was ended") from None

    def outcome(self) -> str | None:
        """Block until the job has ended; None if training is done, else why not."""
        results = self.get_results()
        self.stop()
        if results.error_message is not None:
            return str(results.error_message)
        failed = {name: code for name, (code, _) in results.worker_results.items() if code != 0}
        if failed:
            return self.first_cause or ", ".join(f"{name} ended with {code}" for name, code in failed.items())
        return None if results.worker_results else self.first_cause or "no worker reported a result"

    # --- following the feed ------------------------------------------------------------------------

    def _discover_hosts(self) -> None:
        while not self._shutdown.is_set():
            self._feed.changed.clear()
            if self._feed.failure is not None:
                self.fail(str(self._feed.failure))
                return
            try:
                pause = self._look()
            except Exception:
                log.exception("looking at the hosts failed; this is a defect of hvd-elastic; looking again")
                pause = LOOK_S
            self._clock.wait(self._feed.changed, pause)

    def _look(self) -> float:
        """Compare the hosts with the world and tell workers what they have to know; seconds to the next look."""
        with self._wait_hosts_cond:
            self._cooled_down |= self._host_manager.cooled_down()
            if self._host_manager.update_available_hosts() != HostUpdateResult.no_update:
                self._wait_hosts_cond.notify_all()
            desired = self._desired()
        untold = self._must_tell(desired) and not self._tell(desired)
        return RETRY_S if untold else self._pause()

    def _pause(self) -> float:
        release = self._host_manager.seconds_to_next_release()
        return LOOK_S if release is None else min(LOOK_S, release)

    def _desired(self) -> World:
        """The world that would be formed now; empty if there are too few slots for one."""
        hosts = self._host_manager.current_hosts
        if hosts.count_available_slots() < self._min_num_proc:
            return {}
        assignments, _ = self._get_host_assignments(hosts)
        return {host: len(slots) for host, slots in assignments.items()}

    def _must_tell(self, desired: World) -> bool:
        tell, reason = must_tell(
            now=self._clock.mono(),
            generation=self.generation,
            actual=self.world(),
            desired=desired,
            told=self._told,
            again_after_s=TELL_AGAIN_S,
        )
        log.debug("tell workers: %s, %s", tell, reason)
        return tell

    def _tell(self, desired: World) -> bool:
        """Send rank 0 the news; False if it cannot be told just now."""
        coordinator = self.get_coordinator_info()
        client: WorkerClient | None = coordinator and self.get_worker_client(coordinator)
        if client is None:
            return False
        if self._told is None or self._told[:2] != (self.generation, desired):
            # A repeated message keeps its stamp, so that nobody who heard it acts on it twice.
            self._stamp = max(self._stamp + 1, int(self._clock.wall()))
        try:
            # "Removed" alone would let Horovod's workers skip their sync: newcomers would wait for them for ever.
            client.notify_hosts_updated(self._stamp, HostUpdateResult.mixed)
        except OSError as error:
            log.info("rank 0 could not be told of new hosts, trying again: %s", error)
            return False
        self._told = (self.generation, desired, self._clock.mono())
        return True

    def register_worker_server(self, host: str, slot: int, addresses: Mapping[str, list[Place]], key: bytes) -> None:
        self._worker_clients[(host, slot)] = WorkerClient(itertools.chain(*addresses.values()), key)

    # --- worlds ------------------------------------------------------------------------------------

    def resume(self) -> None:
        try:
            super().resume()
        except (RuntimeError, TimeoutException, ValueError) as error:
            self.first_cause = f"{self.first_cause}; then: {error}" if self.first_cause else str(error)
            raise

    def _update_host_assignments(self, current_hosts: Any) -> list[SlotInfo]:
        before = self.world() or None
        pending: list[SlotInfo] = super()._update_host_assignments(current_hosts)
        self.generation += 1
        self._feed.generation = self.generation
        resize = describe_resize(before, self.world(), failed=self._failed, cooled_down=self._cooled_down)
        self._journal.record(
            "resized",
            generation=self.generation,
            cause=resize.cause,
            added=resize.added,
            removed=resize.removed,
            size=resize.size,
            hosts=self.world(),
            failed=dict(self._failed),
        )
        self._failed.clear()
        self._cooled_down.clear()
        self.first_cause = None
        self._feed.changed.set()  # hosts may have changed again while this world formed
        return pending

    def dismiss(self, host: str, slot: int) -> None:
        """End a worker that has no place in the world, and return once it has ended."""
        worker = self._workers.get((host, slot))
        if worker is not None:
            worker.end()

    def _struck(self, host: str, record: HostRecord) -> None:
        until = record.blocked_until
        seconds = 0.0 if until is None else until - self._clock.mono()
        self._journal.record(
            "struck",
            generation=self.generation,
            subject=host,
            cause=self._failed.get(host, "a process failed"),
            until=self._clock.wall() + seconds,
            cooldown_s=round(seconds, 3),
            failures=record.failures,
        )
        for (name, _), worker in list(self._workers.items()):
            if name == host:
                worker.stop()

    # --- workers -----------------------------------------------------------------------------------

    def _start_worker_process(self, slot_info: SlotInfo) -> None:
        thread = threading.Thread(target=self._run_worker, args=(slot_info,), name="hvd-worker", daemon=True)
        thread.start()
        self._results.expect(thread)
        self._threads.append(thread)

    def _run_worker(self, slot: SlotInfo) -> None:
        host, local_rank = slot.hostname, slot.local_rank
        worker, code, cause = self._serve_worker(slot)
        self._journal.record("exited", generation=self.generation, host=host, slot=local_rank, code=code, cause=cause)
        if self._workers.get((host, local_rank)) is not worker:
            return  # its slot was given to another process meanwhile, which this exit says nothing about
        told_to_leave = worker is not None and worker.told_to_leave
        if code != 0 and not told_to_leave and self.has_rank_assignment(host, local_rank):
            self._failed.setdefault(host, cause)
            self.first_cause = self.first_cause or f"rank {self.current_rank(host, local_rank)} on {host}: {cause}"
        try:
            self._handle_worker_exit(slot, code, time.time())
        except (RuntimeError, threading.BrokenBarrierError) as error:
            log.debug("exit of %s[%s] came after the end: %s", host, local_rank, error)

    def _serve_worker(self, slot: SlotInfo) -> tuple[WorkerProcess | None, int, str]:
        """Start a worker and wait for its end: it, its exit code, and why it ended."""
        assert self._create_worker_fn is not None
        key = (slot.hostname, slot.local_rank)
        try:
            worker = self._create_worker_fn(slot)
        except OSError as error:  # this machine's: no ssh here, no more processes, no place for its output
            self._workers.pop(key, None)
            log.warning("no process could be started for %s: %s", slot.hostname, error)
            return None, NOT_STARTED, f"could not be started: {error}"
        self._workers[key] = worker
        if self._shutdown.is_set():
            worker.stop()
        code = worker.wait()
        return worker, code, exit_cause(code, told_to_leave=worker.told_to_leave)

    def started(self, slot: SlotInfo, pid: int) -> None:
        """Note that the training process of ``slot`` runs, as ``pid`` on its host."""
        self._journal.record(
            "spawned",
            generation=self.generation,
            host=slot.hostname,
            slot=slot.local_rank,
            rank=slot.rank,
            pid=pid,
        )

    # --- endings -----------------------------------------------------------------------------------

    def stop(self, error_message: str | None = None) -> None:
        self._shutdown.set()
        self._feed.changed.set()
        super().stop(error_message)
        self.stop_workers()

    def fail(self, why: str) -> None:
        """End the job from any thread, at once: nobody waits for anybody any more."""
        self.first_cause = self.first_cause or why
        self._results.set_error_message(why)
        self._shutdown.set()
        self._feed.changed.set()
        with self._wait_hosts_cond:
            self._wait_hosts_cond.notify_all()
        self.stop_workers()
        barrier = self._worker_registry._barrier
        if barrier is not None:
            barrier.abort()

    def stop_workers(self) -> None:
        """Tell every worker to end; return at once."""
        for worker in list(self._workers.values()):
            worker.stop()

    def end_workers(self) -> None:
        """End every worker and return when all have ended, their last output is out and their ends are journalled."""
        self.stop_workers()
        for worker in list(self._workers.values()):
            worker.end()
        deadline = self._clock.mono() + JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock.mono()))


def check_gloo() -> None:
    """Raises :class:`JobFailed` if this Horovod cannot be elastic."""
    try:
        built = gloo_built()
    except queue.Empty:  # Horovod looks in a process of its own, and takes its word for granted
        raise JobFailed("Horovod crashed while it was looked at; `hvd-elastic doctor` says more") from None
    if not built:
        raise JobFailed(
            "Horovod was built without Gloo, which elastic jobs need; scripts/build-horovod builds one that has it"
        )


def worker_env(environ: Mapping[str, str], *, server: str, port: int, interface: str) -> dict[str, str]:
    """What every worker's environment has beyond its host's own: the launcher's, and how to find its server."""
    own = {name: value for name, value in environ.items() if env_util.is_exportable(name)}
    found = create_run_env_vars(server, [interface], port, elastic=True)
    return {**own, **{name: str(value) for name, value in found.items()}, "PYTHONUNBUFFERED": "1"}


def slot_env(slot: SlotInfo) -> dict[str, str]:
    """The part of a worker's environment that says which slot it fills."""
    return dict(create_slot_env_vars(slot))
