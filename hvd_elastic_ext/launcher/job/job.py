"""One elastic job in this process: its sessions, one after the other, and the sleeps and pauses between them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import Asleep, Interrupted, JobFailed, UsageError
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.pace import Lines
from hvd_elastic_ext.core.printable import fitting, printable
from hvd_elastic_ext.io.threads.background_calls import done_within
from hvd_elastic_ext.io.threads.beside import Beside
from hvd_elastic_ext.launcher.agents.transports.transports import PodTransport
from hvd_elastic_ext.launcher.driver.words import SOON_S, Wait, line, log_wait
from hvd_elastic_ext.launcher.exports import prometheus
from hvd_elastic_ext.launcher.exports.prometheus import JobMetric
from hvd_elastic_ext.launcher.folder.handover import CLOSE_S, Handover, StateWriter
from hvd_elastic_ext.launcher.health import host_requests
from hvd_elastic_ext.launcher.job import mpirun, stop_lines
from hvd_elastic_ext.launcher.job.admin_socket import AdminSocket
from hvd_elastic_ext.launcher.job.first_hosts import log_while_waiting
from hvd_elastic_ext.launcher.job.output import Console
from hvd_elastic_ext.launcher.job.session import Session
from hvd_elastic_ext.launcher.job.standard_input import NO_INPUT
from hvd_elastic_ext.launcher.job.stop_lines import COMMAND as STOP
from hvd_elastic_ext.launcher.membership import host_list, processes, spares
from hvd_elastic_ext.launcher.reporting import status
from hvd_elastic_ext.launcher.scaling import scalers
from hvd_elastic_ext.launcher.scaling.scaling import signals_of
from hvd_elastic_ext.launcher.sleep import releaser
from hvd_elastic_ext.launcher.sleep.releaser import FINAL_CALL_S
from hvd_elastic_ext.launcher.sleep.sleep import SleepingJob

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.recording import Recorder
    from hvd_elastic_ext.launcher.exports.metrics_port import Endpoint
    from hvd_elastic_ext.launcher.exports.prometheus import Counters
    from hvd_elastic_ext.launcher.exports.tensorboard import ScalarWriter
    from hvd_elastic_ext.launcher.exports.webhook import Notifier
    from hvd_elastic_ext.launcher.folder.state_folder import StateDir
    from hvd_elastic_ext.launcher.folder.state_json import Saved
    from hvd_elastic_ext.launcher.job.output import Outlets
    from hvd_elastic_ext.launcher.job.standard_input import StandardInput
    from hvd_elastic_ext.launcher.options.settings import RunSettings
    from hvd_elastic_ext.launcher.sources.hosts import HostFeed

log = logging.getLogger(__name__)


FIRST_S: Final = 10.0
"""Pause before the first one; each further one is twice as long, up to :data:`MOST_S`. Kubernetes' own for jobs."""
MOST_S: Final = 360.0


def pause_before_restart(failure: JobFailed, restarts: int, *, policy: str, limit: int) -> float | None:
    """Seconds until the job restarts after ``failure``, with ``restarts`` before; None if it is over."""
    on_request = isinstance(failure, Interrupted | Asleep)
    if policy != "OnFailure" or on_request or restarts >= limit:
        return None
    return pause_after(restarts + 1, first=FIRST_S, longest=MOST_S)


LOOK_S: Final = 1.0
"""Longest time between two looks of a pause before a restart at the clock."""
STATUS_S: Final = 1.0
"""Pause between two looks at what the status line shows."""


class Job:
    """Runs ``settings`` on the hosts of ``feed``. Raises ``UsageError`` if it cannot reach them.

    ``folder``: the job's own; ``saved``: the saved state that this launcher uses, see
    :func:`hvd_elastic_ext.launcher.folder.handover.started`.
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
        counters: Counters | None = None,
        notifier: Notifier | None = None,
        board: ScalarWriter | None = None,
        stdin: StandardInput = NO_INPUT,
    ) -> None:
        self._stdin = stdin
        self._settings, self._feed, self._journal, self._clock = settings, feed, journal, clock
        self._counters, self._notifier = counters, notifier
        if board is not None:
            board.signals = lambda: signals_of(self._session.driver.job)
        self._outlets, self._recorder = outlets, recorder
        self._folder, self._saved = folder, saved
        self._disk_answers = True
        """Whether the disk of the job's folder has answered at the end."""
        self._session: Session
        """The present session; in a sleep or a pause, the last one."""
        self._sleeping: SleepingJob | None = None
        self._pause: Wait | None = None
        """The pause before a restart."""
        self._stop: Interrupted | None = None
        """The signal that asked the job to stop."""
        self._pods = PodTransport.found() if settings.rsh == "pod" else None
        self._releases = self._new_releases()
        self._scaler = (
            None if settings.options.scaling is None else scalers.read(settings.scale_with).scaler(os.environ)
        )
        if (problem := mpirun.why_not(settings.options.engine)) is not None:
            raise UsageError(problem)

    def run(self) -> str:
        """Run to the end; how it ended. Raises :class:`JobFailed` or :class:`Interrupted` unless training was done."""
        try:
            asyncio.run(self._main())
        except Asleep:
            raise  # the next launcher continues the run
        except JobFailed as failure:
            self._end_run(failure.line)
            raise
        job = self._session.driver.job
        outcome = stop_lines.how_it_ended(job)
        self._end_run(outcome)
        if not job.shutdown.unconnected:
            self._in_folder(self._folder.forget_key)
        return outcome

    def _end_run(self, outcome: str) -> None:
        """Mark the run as ended, unless processes of it may still run."""
        saved = self._session.saved()
        if not saved.hosts_left:
            self._in_folder(lambda: self._folder.save(replace(saved, ended=True, outcome=outcome)))
            self._in_folder(self._folder.forget_key)

    def _in_folder(self, act: Callable[[], object]) -> None:
        """Do the last work in the job's folder, unless its disk does not answer: the process must end all the same."""
        if self._disk_answers and not done_within(act, CLOSE_S):
            self._disk_answers = False
            log.warning("the end of the run is not written after %g s: the disk does not answer", CLOSE_S)

    async def _main(self) -> None:
        """Run sessions until the job ends."""
        loop = asyncio.get_running_loop()
        self._stop_requested = asyncio.Event()
        self._writer = StateWriter(self._folder.save)
        output, timestamps = self._settings.options.output, self._settings.timestamps
        self._console = Console(
            self._outlets,
            None if output is None else Path(output),
            timestamps=timestamps,
            rank=lambda life: self._session.driver.job.rank(life),
            generation=lambda: self._session.driver.job.generation,
        )
        self._admin = AdminSocket(self._folder.socket, self._answer_admin)
        how = self._settings.options.durability
        saved, idle_wakes, restarts = self._saved, 0, 0
        known = Handover(saved, expects=saved.checkpoint_in(None if how is None else how.place))
        if self._releases is not None:
            await self._releases.began()  # before the signal handlers: a signal only has to end this process
        beside = Beside()
        beside.start(self._show_status, lacks="the status line is not shown")
        beside.start(self._notify_waits, lacks="--notify reports no waits")
        endpoint = self._open_endpoint(loop)
        with self._signals():
            try:
                self._feed.listener = lambda: loop.call_soon_threadsafe(self._hosts_changed)
                while (outcome := await self._run_session(known)) is not None:
                    begun = self._session.driver.job.world.begun
                    expects = self._session.driver.job.checkpoints.newest[0] or known.expects
                    if isinstance(outcome, Asleep):
                        idle_wakes = idle_wakes + 1 if known.woken and not begun else 0
                        await self._sleep(outcome, idle_wakes)
                        woken = True
                    else:
                        await self._pause_before_restart(outcome, restarts)
                        woken, restarts = known.woken or begun, restarts + 1
                    # After the pause, because the health ledger and the host list may have changed in it.
                    known = Handover(self._session.saved(), self._session.last_hosts, woken=woken, expects=expects)
            except Asleep as asleep:
                if self._releases is not None:
                    code = asleep.exit_code if self._stop is None else self._stop.exit_code
                    release = self._releases.launcher_ends(code=code)
                    await self._wait_and_log("for the cluster to release the job's workers", release)
                raise
            finally:
                self._feed.listener = lambda: None
                await beside.close()
                if self._scaler is not None:
                    self._scaler.close()
                self._outlets.status("")
                if endpoint is not None:
                    await asyncio.to_thread(endpoint.close)
                await self._admin.stop()
                await self._wait_and_log("for the job's last state to be written", self._close_writer(), CLOSE_S)

    async def _close_writer(self) -> None:
        self._disk_answers = await self._writer.close()

    async def _wait_and_log(self, what: str, work: Awaitable[None], most_s: float = FINAL_CALL_S) -> None:
        """Wait for the last work of this launcher, which takes ``most_s`` at most, and log the wait."""
        wait = Wait(what, self._clock.mono() + most_s, ", then the launcher ends")
        await log_while_waiting(work, wait, self._clock, failed=lambda: None)

    async def _show_status(self) -> None:
        """Keep the status line of a terminal."""
        while self._outlets.is_terminal and self._settings.log_level < logging.ERROR:
            await asyncio.sleep(STATUS_S)
            self._outlets.status(fitting(self._status(), shutil.get_terminal_size().columns - 1))

    async def _notify_waits(self) -> None:
        """Send the webhook a message if the job has long had too few processes."""
        while self._notifier is not None:
            await asyncio.sleep(SOON_S)
            job = self._session.driver.job
            if self._sleeping is None and job.short_since is not None and not job.ending:
                self._notifier.waits(self._status(), self._clock.mono() - job.short_since)

    def _open_endpoint(self, loop: asyncio.AbstractEventLoop) -> Endpoint | None:
        """Raises :class:`UsageError` if the port is not available."""
        if self._settings.metrics is None:
            return None
        from hvd_elastic_ext.launcher.exports.metrics_port import Endpoint

        endpoint = Endpoint(self._settings.metrics, self._metrics, loop)
        log.info("metrics: http://%s/metrics", self._settings.metrics._replace(port=endpoint.port))
        return endpoint

    def _metrics(self) -> Iterator[JobMetric]:
        """All metrics. In a sleep, those of the world are of its last moment."""
        yield JobMetric("asleep", "1 while the job sleeps", {(): float(self._sleeping is not None)})
        yield from prometheus.of_job(self._session.driver.job, self._clock.mono(), self._feed.hosts())
        if self._counters is not None:
            yield from self._counters.metrics()

    def _status(self) -> str:
        """What the job does at this moment, also in the words of servers and hosts: printable."""
        if self._sleeping is not None:
            return printable(self._sleeping.status())
        wait = self._pause
        return printable(self._session.status() if wait is None else line(wait, self._clock.mono()))

    async def _run_session(self, known: Handover) -> JobFailed | None:
        """Run one session. Return why it ended; None if training is done."""
        self._session = Session(
            self._settings,
            self._feed,
            known,
            journal=self._journal,
            clock=self._clock,
            folder=self._folder,
            writer=self._writer,
            admin=self._admin,
            console=self._console,
            pods=self._pods,
            scaler=self._scaler,
            recorder=self._recorder,
            stdin=self._stdin,
        )
        try:
            return await self._session.run()
        finally:
            self._console.close()  # the next session numbers its processes anew

    async def _sleep(self, asleep: Asleep, idle_wakes: int) -> None:
        """Wait for hosts. Raises :class:`Asleep` to stop. ``idle_wakes``: wakes in a row without training."""
        if self._stop is not None:
            raise Asleep(f"{asleep} ({self._stop}); the same command goes on", path=asleep.path, step=asleep.step)
        self._sleeping = SleepingJob(
            self._feed,
            lambda: self._session.driver.job.faults.ledger,
            self._session.driver.job.options.limits,
            journal=self._journal,
            clock=self._clock,
            releases=self._releases,
            max_wait_s=self._settings.max_wait_s,
            idle_wakes=idle_wakes,
            lines_s=self._settings.options.wait_lines_s,
            generation=self._session.driver.job.generation,
        )
        try:
            await self._sleeping.sleep(asleep, self._session.last_hosts)
        finally:
            self._sleeping = None

    async def _pause_before_restart(self, failure: JobFailed, restarts: int) -> None:
        """Wait before the restart of a failed job. Raises ``failure`` if there is no restart."""
        settings = self._settings
        pause = pause_before_restart(failure, restarts, policy=settings.restart_policy, limit=settings.backoff_limit)
        if pause is None or self._stop is not None:
            raise self._with_resume_hint(failure)
        number, limit = restarts + 1, settings.backoff_limit
        log.warning("%s; the job restarts in %g s (%d of %d)", failure.line, pause, number, limit)
        self._journal.record(
            "job_restarted",
            generation=self._session.driver.job.generation,
            number=number,
            pause_s=pause,
            reason=str(failure),
        )
        self._pause = Wait("for the restart of the job", self._clock.mono() + pause)
        try:
            await pause_until(self._pause, self._stop_requested, self._clock)
        finally:
            self._pause = None
        if self._stop is not None:
            raise self._stop

    def _new_releases(self) -> releaser.PodReleases | None:
        """Raises :class:`UsageError` if there is no cluster in which to release workers."""
        settings = self._settings
        if settings.releases is None:
            return None
        limits = settings.options.limits
        return releaser.found(
            settings.releases,
            releaser.Need(limits.start, limits.least, settings.default_slots),
            settings.state_dir,
            record=lambda event, **fields: self._journal.record(event, generation=self._feed.generation, **fields),
            clock=self._clock,
        )

    def _with_resume_hint(self, failure: JobFailed) -> JobFailed:
        """Add to an interrupt what the same command resumes from, or what would have kept that."""
        if not isinstance(failure, Interrupted) or not (more := stop_lines.what_is_kept(self._session.driver.job)):
            return failure
        return Interrupted(failure.signal_number, f"{failure}; {more}")

    # --- at any time, in a session or between two

    def _hosts_changed(self) -> None:
        if self._sleeping is not None:
            self._sleeping.changed()
            return
        self._session.hosts_changed()

    def _answer_admin(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if request.get("do") == "status":
            more: Mapping[str, Callable[[JobState], Any]] = {
                "processes": status.by_host,
                "details": status.details,
                "present": self._present,
            }
            found = {name: tell(self._session.driver.job) for name, tell in more.items() if request.get(name) is True}
            return {"said": self._status(), **found}
        if request.get("do") == "stop":
            return self._stop_by_command()
        driver, now = self._session.driver, self._clock.mono()
        if request.get("do") == "scale":
            return self._scale_by_hand(request.get("hosts"))
        known, published = driver.job.faults.ledger, self._feed.hosts()
        training = {life.seat.host for life in driver.job.world.members} if driver.job.standing else set()
        ledger, answer = host_requests.answer(
            request,
            known,
            hosts=published.hosts,
            now=now,
            training=training,
            starting=processes.starting(driver.job, now),
            spares=spares.by_host(driver.job),
            kept=host_list.unlisted_in_use(driver.job, published),
        )
        if ledger is not known:
            event, fields = host_requests.journal_entry(request)
            self._session.health_changed(ledger, event, fields)
            if self._sleeping is not None:
                self._sleeping.changed()
        refused = host_list.list_refused(driver.job)
        return {**answer, "refused": refused} if "hosts" in answer and refused else answer

    def _present(self, job: JobState) -> Mapping[str, Any]:
        """The job at this moment, for `hvd-elastic status --json`."""
        state, wait = status.state_of(job), status.wait_of(job)
        if self._sleeping is not None:
            state, wait = status.SLEEPS, self._sleeping.wait()
        elif self._pause is not None:
            state, wait = status.WAITS, self._pause
        elif (first := self._session.first_wait()) is not None:
            wait = first
        return {**status.numbers(job), **self._places(), "state": state, "wait": status.wait_json(wait, job.now)}

    def _places(self) -> dict[str, Any]:
        """Where the job writes, and which run it is."""
        return {
            "run": self._saved.run,
            "journal": str(self._settings.journal.absolute()),
            "output": self._settings.options.output,
        }

    def _stop_by_command(self) -> Mapping[str, Any]:
        """Stop the job as Ctrl-C does, for `hvd-elastic stop`. Unlike a second signal, a second one kills nothing."""
        ends = self._stop is not None
        if not ends and self._sleeping is None and self._pause is None:
            job = self._session.driver.job
            ends = job.outcome.failure is not None or job.before_exit.why is not None
        said = "" if ends else self._stop_job(Interrupted(signal.SIGINT, f"stopped by {STOP}"), STOP)
        argv = sys.argv[1:] if sys.argv[1:2] == ["run"] else None
        return {"said": said, "ends": ends, "cwd": str(Path.cwd()), "argv": argv, **self._places()}

    def _scale_by_hand(self, number: object) -> Mapping[str, Any]:
        """Answer ``hvd-elastic scale``. Raises :class:`UsageError`."""
        scaling = self._settings.options.scaling
        if scaling is None:
            raise UsageError("this job requests no hosts; start it with --autoscale POLICY --scale-with KIND/NAME")
        if not (number is None or (type(number) is int and number > 0)):
            raise UsageError(f"{number!r} is not a number of hosts")
        self._session.scale_by_hand(number)
        if number is None:
            return {"said": f"the policy {scaling.policy} decides again"}
        does = "" if self._scaler is not None else "; nothing adds or removes hosts (--scale-with recommend)"
        return {"said": f"asked for {number} hosts, within --min-np and --max-np, until `hvd-elastic scale auto`{does}"}

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals into events. Under ``nohup``, SIGHUP stays ignored."""
        loop = asyncio.get_running_loop()
        hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
        numbers = (signal.SIGINT, signal.SIGTERM, *hangup)
        for number in numbers:
            loop.add_signal_handler(number, self._on_stop_signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _on_stop_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        self._stop_job(Interrupted(number, f"stopped by {name}"), name)

    def _stop_job(self, why: Interrupted, name: str) -> str:
        """Stop the job, because of a signal or a command with this name. Returns what happens now, which is logged."""
        self._stop = why
        self._stop_requested.set()
        job = self._session.driver.job
        if self._sleeping is not None:
            self._sleeping.end(str(why))
            happens = f"{name}: the job sleeps, and its launcher ends"
        else:
            ends_already = job.outcome.failure is not None
            self._session.end(why)
            grace_s = self._settings.grace_s
            happens = (
                f"{name}: the job does not restart"
                if self._pause is not None
                else stop_lines.what_happens(name, job, ends_already=ends_already, grace_s=grace_s)
            )
        log.warning("%s", happens)
        return happens


async def pause_until(wait: Wait, stopped: asyncio.Event, clock: Clock) -> None:
    """Wait until that time, or until ``stopped`` is set, and log the wait at its pace."""
    assert wait.until is not None
    lines = Lines(clock.mono())
    while not stopped.is_set() and (left := wait.until - (now := clock.mono())) > 0:
        if lines.due(now, wait.why):
            log_wait(wait, now)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stopped.wait(), min(left, LOOK_S))
