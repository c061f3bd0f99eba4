"""One elastic job in this process: one shift after the other, and what goes on between two of them.

A shift has a conductor, and with it a driver, of its own. It ends with the job, with a failure after which the job is
begun again, or because the job goes to sleep. Here is what outlives a shift: signals, the desk, the terminal, what is
known from one to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import Asleep, Interrupted, JobFailed, UsageError
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.agents.transports.transports import PodTransport
from hvd_elastic_ext.launcher.driver.recording import Recorder
from hvd_elastic_ext.launcher.engines.mpirun import why_not as why_not_mpirun
from hvd_elastic_ext.launcher.job import runs
from hvd_elastic_ext.launcher.job.admin_socket import Desk
from hvd_elastic_ext.launcher.job.console import Console
from hvd_elastic_ext.launcher.job.output import Outlets
from hvd_elastic_ext.launcher.job.restart_policy import pause_before_restart
from hvd_elastic_ext.launcher.job.saved_state import Handover, Saving, checkpoint_of, hosts_left
from hvd_elastic_ext.launcher.job.session import Conductor
from hvd_elastic_ext.launcher.job.state_folder import Saved, StateDir
from hvd_elastic_ext.launcher.options.policy import rules_of
from hvd_elastic_ext.launcher.options.settings import RunSettings
from hvd_elastic_ext.launcher.rules.health import host_requests
from hvd_elastic_ext.launcher.sources.feed import HostFeed
from hvd_elastic_ext.launcher.suspend import releaser, sleep
from hvd_elastic_ext.launcher.suspend.sleep import Dormant, Keeps

log = logging.getLogger(__name__)


class Job:
    """Runs ``settings`` on the hosts of ``feed``. Raises ``UsageError`` if there is no way to those.

    ``folder``: the job's own; ``saved``: what this launcher goes by, see
    :func:`hvd_elastic_ext.launcher.job.runs.begun`.
    """

    def __init__(
        self,
        settings: RunSettings,
        feed: HostFeed,
        *,
        folder: StateDir,
        saved: Saved,
        journal: Journal,
        clock: Clock,
        outlets: Outlets,
        recorder: Recorder | None = None,
    ) -> None:
        self._settings, self._feed, self._journal, self._clock = settings, feed, journal, clock
        self._outlets, self._recorder = outlets, recorder
        self._folder, self._saved = folder, saved
        self._conductor: Conductor
        """That of the present shift; in a sleep or a pause, of the one before it."""
        self._dormant: Dormant | None = None
        self._stop: Interrupted | None = None
        """Somebody has told the job to end."""
        self._pods = PodTransport.found() if settings.rsh == "pod" else None
        self._releases = self._find_releases()
        if settings.engine == "mpirun" and (problem := why_not_mpirun()) is not None:
            raise UsageError(problem)

    def run(self) -> None:
        """Run to the end. Raises :class:`JobFailed` or :class:`Interrupted` unless training was done."""
        try:
            with Saving(self._folder.save) as self._saving:
                asyncio.run(self._main())
        except Asleep:
            raise  # the run goes on with the next launcher
        except JobFailed:
            self._end_run()
            raise
        self._end_run()
        if not self._conductor.driver.job.shutdown.untold:
            self._folder.forget_key()

    def _end_run(self) -> None:
        """Whoever is started next begins another run, unless something of this one may still be running."""
        saved = self._conductor.saved()
        if not hosts_left(saved):
            self._folder.save(runs.ended(saved))
            self._folder.forget_key()

    async def _main(self) -> None:
        """One shift after the other: the job is begun, and after a sleep or a failure begun again."""
        loop = asyncio.get_running_loop()
        self._told = asyncio.Event()
        folder, timestamps = self._settings.output_dir, self._settings.timestamps
        self._console = Console(
            self._outlets, folder, timestamps=timestamps, rank=lambda life: self._conductor.driver.job.rank(life)
        )
        self._desk = Desk(self._folder.socket, self._at_the_desk)
        how = self._settings.durability
        saved, in_vain, restarts = self._saved, 0, 0
        known = Handover(saved, expects=checkpoint_of(saved, place=None if how is None else how.place))
        await self._releases.began()  # until signals are taken over, there is nothing to end but this process
        with self._signals():
            try:
                self._feed.listener = lambda: loop.call_soon_threadsafe(self._hosts_changed)
                while (outcome := await self._shift(known)) is not None:
                    begun = self._conductor.driver.job.world.begun
                    expects = self._conductor.driver.job.checkpoints.newest[0] or known.expects
                    if isinstance(outcome, Asleep):
                        in_vain = in_vain + 1 if known.woken and not begun else 0
                        await self._sleep(outcome, in_vain)
                        woken = True
                    else:
                        await self._before_another(outcome, restarts)
                        woken, restarts = known.woken or begun, restarts + 1
                    # Only now: meanwhile hosts may have been blocked, and others listed.
                    known = Handover(self._conductor.saved(), self._conductor.had, woken=woken, expects=expects)
            except Asleep as asleep:
                await self._releases.left(code=asleep.exit_code if self._stop is None else self._stop.exit_code)
                raise
            finally:
                self._feed.listener = lambda: None
                await self._desk.stop()
                self._console.close()

    async def _shift(self, known: Handover) -> JobFailed | None:
        """Run the job until it ends; how, None if training is done."""
        self._conductor = Conductor(
            self._settings,
            self._feed,
            known,
            journal=self._journal,
            clock=self._clock,
            folder=self._folder,
            saving=self._saving,
            desk=self._desk,
            console=self._console,
            pods=self._pods,
            recorder=self._recorder,
        )
        return await self._conductor.run()

    async def _sleep(self, asleep: Asleep, in_vain: int) -> None:
        """Wait for hosts. Raises :class:`Asleep` if that is over. ``in_vain``: so often it has just been woken."""
        if self._stop is not None:
            raise Asleep(f"{asleep} ({self._stop}); the same command goes on", path=asleep.path, step=asleep.step)
        self._dormant = Dormant(
            self._feed,
            lambda: self._conductor.driver.job.faults.ledger,
            rules_of(self._settings, woken=True).limits,
            journal=self._journal,
            clock=self._clock,
            releases=self._releases,
            max_wait_s=self._settings.max_wait_s,
            in_vain=in_vain,
            generation=self._conductor.driver.job.generation,
        )
        try:
            await self._dormant.sleep(asleep, self._conductor.had)
        finally:
            self._dormant = None

    async def _before_another(self, failure: JobFailed, restarts: int) -> None:
        """Wait until a job that has failed is to be begun again. Raises its failure if it is not."""
        settings = self._settings
        pause = pause_before_restart(failure, restarts, policy=settings.restart_policy, limit=settings.backoff_limit)
        if pause is None or self._stop is not None:
            raise self._with_where_it_goes_on(failure)
        log.warning(
            "%s; the job is begun again in %g s (%d of %d)", failure, pause, restarts + 1, settings.backoff_limit
        )
        self._journal.record(
            "begun_again",
            generation=self._conductor.driver.job.generation,
            number=restarts + 1,
            pause_s=pause,
            reason=str(failure),
        )
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._told.wait(), pause)
        if self._stop is not None:
            raise self._stop

    def _find_releases(self) -> sleep.Releases:
        """Raises :class:`UsageError` if there is no cluster to let workers go in."""
        settings = self._settings
        if settings.releases is None:
            return Keeps()
        rules = rules_of(settings, woken=True)
        return releaser.found(
            settings.releases,
            releaser.Need(settings.num_proc, rules.limits.least, settings.default_slots),
            settings.state_dir,
            record=lambda event, **fields: self._journal.record(event, generation=self._feed.generation, **fields),
            clock=self._clock,
        )

    def _with_where_it_goes_on(self, failure: JobFailed) -> JobFailed:
        """Say of a job that was told to stop where the same command takes it up."""
        path, step = self._conductor.driver.job.checkpoints.newest
        if path is None or not isinstance(failure, Interrupted):
            return failure
        more = f"the same command goes on after step {step}, with the checkpoint {path}"
        return Interrupted(failure.signal_number, f"{failure}; {more}")

    # --- what happens at any time, in a shift or between two

    def _hosts_changed(self) -> None:
        if self._dormant is not None:
            self._feed.changed.clear()
            self._dormant.changed()
            return
        self._conductor.hosts_changed()

    def _at_the_desk(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        driver, now = self._conductor.driver, self._clock.mono()
        known, hosts = driver.job.faults.ledger, self._feed.hosts().hosts
        training = {life.seat.host for life in driver.job.world.members} if driver.job.standing else set()
        ledger, answer = host_requests.answer(request, known, hosts=hosts, now=now, training=training)
        if ledger is not known:
            event, fields = host_requests.told(request)
            self._conductor.health_changed(ledger, event, fields)
            if self._dormant is not None:
                self._dormant.changed()
        return answer

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals become events. A terminal that hangs up does not matter to a job under ``nohup``."""
        loop = asyncio.get_running_loop()
        hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
        numbers = (signal.SIGINT, signal.SIGTERM, *hangup)
        for number in numbers:
            loop.add_signal_handler(number, self._told_to_stop, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _told_to_stop(self, number: int) -> None:
        name = signal.Signals(number).name
        self._stop = Interrupted(number, f"stopped by {name}")
        self._told.set()
        if self._dormant is not None:
            self._dormant.told(str(self._stop))
            return
        log.warning("%s: the job ends; its processes have %g s to end", name, self._settings.grace_s)
        self._conductor.end(self._stop)
