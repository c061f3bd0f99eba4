"""One elastic job, from its settings to its exit code.

The main thread waits for events (the job's end, signals) and acts on them;
everything that can block runs in other threads.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import Interrupted, JobFailed
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.agents import Output, Shell, Worker, interface_addresses, interface_towards
from hvd_elastic_ext.launcher.feed import HostFeed
from hvd_elastic_ext.launcher.horovod_driver import PushedDriver, check_gloo, slot_env, worker_env
from hvd_elastic_ext.launcher.horovod_rendezvous import Rendezvous
from hvd_elastic_ext.launcher.settings import RunSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """The job ended by itself; ``why`` is None for success."""

    why: str | None


@dataclass(frozen=True, slots=True)
class Told:
    """The launcher was told to stop."""

    signal_number: int


Event = Ended | Told


class Job:
    """Runs ``settings`` on the hosts of ``feed``."""

    def __init__(self, settings: RunSettings, feed: HostFeed, *, journal: Journal, clock: Clock) -> None:
        check_gloo()
        self._settings = settings
        self._journal = journal
        self._rendezvous = Rendezvous(verbose=settings.verbose)
        self._driver = PushedDriver(settings, feed, journal=journal, clock=clock, rendezvous=self._rendezvous)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._shell = Shell(settings.rsh, settings.ssh_port, settings.ssh_identity_file)
        self._env: dict[str, str] = {}

    def run(self) -> None:
        """Run to the end. Raises :class:`JobFailed` or :class:`Interrupted` unless training was done."""
        with _signals_into(self._events):
            self._driver.watch()
            thread = threading.Thread(target=self._train, name="hvd-job", daemon=True)
            thread.start()
            try:
                self._until_the_end()
            finally:
                self._driver.fail("the launcher is ending")
                self._driver.end_workers()
                self._rendezvous.stop()

    def _until_the_end(self) -> None:
        match self._events.get():
            case Told(number):
                name = signal.Signals(number).name
                log.warning("%s: ending all workers, %g s grace", name, self._settings.grace_s)
                raise Interrupted(number, f"stopped by {name}")
            case Ended(None):
                return
            case Ended(why):
                raise JobFailed(f"training failed: {why}")

    def _train(self) -> None:
        try:
            self._events.put(Ended(self._outcome()))
        except Exception as error:
            log.exception("the job's thread ended; this is a defect of hvd-elastic")
            self._events.put(Ended(str(error) or type(error).__name__))

    def _outcome(self) -> str | None:
        driver, settings = self._driver, self._settings
        try:
            driver.wait_for_slots(settings.num_proc)
            interface, address = self._address(driver.available_hosts())
        except JobFailed as error:
            return str(error)
        port = self._rendezvous.serve(driver, address)
        self._env = {
            **worker_env(os.environ, server=address, port=port, interface=interface),
            **settings.env,
            "HVD_ELASTIC_WORKER_JOURNAL": str(settings.journal.absolute()),
        }
        driver.start(settings.num_proc, self._start_worker)
        return driver.outcome()

    def _address(self, hosts: list[str]) -> tuple[str, str]:
        """The network interface that workers use among one another, and this machine's address on it."""
        own = interface_addresses()
        interface = self._settings.interfaces[0] if self._settings.interfaces else interface_towards(hosts)
        if interface is None or interface not in own:
            wrong = f"{interface} has no IPv4 address here" if interface else f"none leads to {', '.join(hosts)}"
            raise JobFailed(
                f"network interface: {wrong}; name one that every host has with --network-interfaces "
                f"(this machine has: {', '.join(sorted(own))})"
            )
        return interface, own[interface]

    def _start_worker(self, slot: Any) -> Worker:
        out, err = self._outputs(slot.rank)
        host, local_rank = slot.hostname, slot.local_rank

        def label() -> str:
            rank = self._driver.current_rank(host, local_rank)
            return "-" if rank is None else str(rank)

        return Worker(
            self._shell.command(host),
            argv=self._settings.command,
            env={**self._env, **slot_env(slot)},
            grace_s=self._settings.grace_s,
            label=label,
            on_start=lambda pid: self._driver.started(slot, pid),
            out=out,
            err=err,
        )

    def _outputs(self, rank: int) -> tuple[Output, Output]:
        """Where a worker's output goes: the terminal, and files that are appended to."""
        timestamps = self._settings.timestamps
        if self._settings.output_dir is None:
            return Output(sys.stdout, timestamps=timestamps), Output(sys.stderr, timestamps=timestamps)
        folder = self._settings.output_dir / f"rank.{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        return (
            Output(sys.stdout, _append(folder / "stdout"), timestamps=timestamps),
            Output(sys.stderr, _append(folder / "stderr"), timestamps=timestamps),
        )


def _append(path: Path) -> TextIO:
    return path.open("a", encoding="utf-8")


@contextmanager
def _signals_into(events: queue.SimpleQueue[Event]) -> Iterator[None]:
    """Signals become events; a second one does nothing more, the grace is short enough.

    A terminal that hangs up does not matter to a job under ``nohup``.
    """
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, *hangup):
        before[number] = signal.signal(number, lambda n, _: events.put(Told(n)))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
