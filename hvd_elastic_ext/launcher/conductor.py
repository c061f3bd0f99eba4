"""One elastic job: the edges around the driver, in one asyncio loop.

Events come from the control port, the list of hosts, agents being started,
signals and the desk. Each is told to the driver, which then looks once; orders go out over the control port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import Asleep, Interrupted, JobFailed, UsageError
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.place import Place
from hvd_elastic_ext.launcher import dormant, hosts_desk, releases
from hvd_elastic_ext.launcher.capacity import Pace, pace, raise_file_limit, too_few_files
from hvd_elastic_ext.launcher.causes import SSH_FAILED
from hvd_elastic_ext.launcher.console import Console, seat_of
from hvd_elastic_ext.launcher.control import AgentJoined, AgentLost, Control, ControlEvent, News, Superseded
from hvd_elastic_ext.launcher.desk import Desk
from hvd_elastic_ext.launcher.dormant import Dormant, Keeps
from hvd_elastic_ext.launcher.driver import Driver
from hvd_elastic_ext.launcher.engines.mpirun import MpiRuns, mark_of
from hvd_elastic_ext.launcher.engines.mpirun import why_not as why_not_mpirun
from hvd_elastic_ext.launcher.engines.restarting import Restarting
from hvd_elastic_ext.launcher.engines.starting import slot_command, slot_env
from hvd_elastic_ext.launcher.environment import job_env, seat_env
from hvd_elastic_ext.launcher.feed import HostFeed
from hvd_elastic_ext.launcher.launches import Launches
from hvd_elastic_ext.launcher.output import Outlets
from hvd_elastic_ext.launcher.reach import Reach, there
from hvd_elastic_ext.launcher.rendezvous import Life, Seat
from hvd_elastic_ext.launcher.restarts import pause_before_restart
from hvd_elastic_ext.launcher.roster import Worker
from hvd_elastic_ext.launcher.rules import JobRules
from hvd_elastic_ext.launcher.saving import Saving, checkpoint_of, hosts_left, ledger_of, ports_of, state_of
from hvd_elastic_ext.launcher.settings import RunSettings
from hvd_elastic_ext.launcher.ssh import Ssh
from hvd_elastic_ext.launcher.statedir import Saved, StateDir
from hvd_elastic_ext.launcher.transports import ByName, Local, OverSsh, ToPods, Transport, end_line, join_line

log = logging.getLogger(__name__)

LATE_S: Final = 1.0
"""A loop that is later than this has stood still: it was stopped, its machine was, or a disk held it up."""
JUST_AFTER_S: Final = 0.001
WATCH_S: Final = 1.0
"""Longest time between two looks at who is silent; a host is looked at when its time is over."""
LAST_WORD_S: Final = 2.0
"""How long agents that were dismissed may take from their last word to their end."""
PACKAGES: Final = ("horovod", "torch", "hvd-elastic-ext")
"""Must be of the same version on all hosts."""


class Job:
    """Runs ``settings`` on the hosts of ``feed``. Raises ``UsageError`` if there is no way to those."""

    def __init__(
        self, settings: RunSettings, feed: HostFeed, *, journal: Journal, clock: Clock, outlets: Outlets
    ) -> None:
        self._settings, self._feed, self._journal, self._clock = settings, feed, journal, clock
        self._outlets = outlets
        self._tasks: set[asyncio.Task[Any]] = set()
        self._superseded = False
        self._room_for = 0
        self._dormant: Dormant | None = None
        self._mpi: MpiRuns | None = None
        self._had = HostSet()
        """The last list with a host in it: of a job that sleeps, where it was."""
        self._stop: Interrupted | None = None
        """Somebody has told the job to end."""
        self._pods = ToPods.found() if settings.rsh == "pod" else None
        self._releases = self._find_releases()
        if settings.engine == "mpirun" and (problem := why_not_mpirun()) is not None:
            raise UsageError(problem)

    def run(self) -> None:
        """Run to the end. Raises :class:`JobFailed` or :class:`Interrupted` unless training was done."""
        with StateDir(self._settings.state_dir) as self._folder:
            with Saving(self._folder.save) as self._saving:
                asyncio.run(self._main())
            if not self._driver.farewell.untold:
                self._folder.forget_key()

    async def _main(self) -> None:
        """One shift after the other: the job is begun, and after a sleep or a failure begun again."""
        self._loop = asyncio.get_running_loop()
        self._look_soon = asyncio.Event()
        folder, timestamps = self._settings.output_dir, self._settings.timestamps
        self._console = Console(self._outlets, folder, timestamps=timestamps, rank=self._rank)
        self._desk = Desk(self._folder.socket, self._at_the_desk)
        saved, woken, in_vain, restarts = self._folder.load() or Saved(), False, 0, 0
        how = self._settings.durability
        expects = checkpoint_of(saved, place=None if how is None else how.place)
        await self._releases.began()  # until signals are taken over, there is nothing to end but this process
        with self._signals():
            try:
                self._feed.listener = lambda: self._loop.call_soon_threadsafe(self._hosts_changed)
                while (outcome := await self._shift(saved, woken=woken, expects=expects)) is not None:
                    expects = self._driver.sealing.newest[0] or expects
                    if isinstance(outcome, Asleep):
                        in_vain = in_vain + 1 if woken and not self._driver.worlds.begun else 0
                        await self._sleep(outcome, in_vain)
                        woken = True
                    else:
                        await self._before_another(outcome, restarts)
                        woken, restarts = woken or self._driver.worlds.begun, restarts + 1
                    saved = self._saved()  # with what hosts were blocked for meanwhile
            except Asleep as asleep:
                await self._releases.left(code=asleep.exit_code if self._stop is None else self._stop.exit_code)
                raise
            finally:
                self._feed.listener = lambda: None
                await self._desk.stop()
                self._console.close()

    async def _shift(self, saved: Saved, *, woken: bool, expects: str | None) -> JobFailed | None:
        """Run the job until it ends; how, None if training is done. ``expects``: a checkpoint that was made."""
        self._incarnation = self._folder.next_incarnation()
        self._driver = self._make_driver(saved, woken=woken, expects=expects)
        self._launches = Launches(self._console.remark)
        self._left = HostSet(tuple(hosts_left(saved)))
        self._room_for = 0
        try:
            if not self._left:
                await self._open_desk()
                await self._first_hosts()
            await self._listen(ports_of(saved))
            await self._open_desk()
            self._take_back()
            self._hosts_changed()
            await self._drive()
            if self._driver.over:  # agents that said their last word a moment ago
                await self._launches.ended(within_s=LAST_WORD_S)
        except Asleep as asleep:  # there was never anything to end
            return asleep
        finally:
            await self._clean_up()
        if self._superseded:
            raise JobFailed("another launcher of this job has taken over; this one has nothing to say any more")
        await self._save()
        return self._driver.outcome

    async def _open_desk(self) -> None:
        if not self._desk.open:
            await self._desk.start()

    async def _sleep(self, asleep: Asleep, in_vain: int) -> None:
        """Wait for hosts. Raises :class:`Asleep` if that is over. ``in_vain``: so often it has just been woken."""
        if self._stop is not None:
            raise Asleep(f"{asleep} ({self._stop}); the same command goes on", path=asleep.path, step=asleep.step)
        self._dormant = Dormant(
            self._feed,
            lambda: self._driver.faults.ledger,
            JobRules.of(self._settings, woken=True).limits,
            journal=self._journal,
            clock=self._clock,
            releases=self._releases,
            max_wait_s=self._settings.max_wait_s,
            in_vain=in_vain,
            generation=self._driver.station.generation,
        )
        try:
            await self._dormant.sleep(asleep, self._had)
        finally:
            self._dormant = None

    async def _before_another(self, failure: JobFailed, restarts: int) -> None:
        """Wait until a job that has failed is to be begun again. Raises its failure if it is not."""
        settings = self._settings
        pause = pause_before_restart(failure, restarts, policy=settings.restart_policy, limit=settings.backoff_limit)
        if pause is None or self._stop is not None:
            raise failure
        log.warning(
            "%s; the job is begun again in %g s (%d of %d)", failure, pause, restarts + 1, settings.backoff_limit
        )
        self._driver.station.record("begun_again", number=restarts + 1, pause_s=pause, reason=str(failure))
        until = self._clock.mono() + pause
        while self._stop is None and (left := until - self._clock.mono()) > 0:
            self._look_soon.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._look_soon.wait(), left)
        if self._stop is not None:
            raise self._stop

    # --- the loop

    async def _drive(self) -> None:
        while not self._superseded:
            self._look_soon.clear()
            self._make_room()
            if self._reach.see(there(self._driver.station.roster.agents.values())):
                self._driver.ways_changed()
            begun = self._clock.mono()
            at = self._driver.look()
            if at is None:
                return
            self._control.switchboard.calm = self._driver.calm
            self._see_standstill(since=begun)
            await self._something_new(until=at)

    async def _something_new(self, *, until: float) -> None:
        """Wait for an event, for a silence that has become too long, or until then (mono)."""
        await asyncio.sleep(0)  # however late it is: what came in is taken in before anything is concluded from silence
        while (left := until - self._clock.mono()) > 0:
            begun, pause = self._clock.mono(), min(left, WATCH_S)
            silent_at = self._driver.fleet.next_silence()
            if silent_at is not None and silent_at > begun:
                pause = min(pause, silent_at - begun + JUST_AFTER_S)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._look_soon.wait(), pause)
            self._see_standstill(since=begun + pause)
            if self._look_soon.is_set() or self._driver.fleet.too_silent():
                return

    def _see_standstill(self, *, since: float) -> None:
        """Nobody else is to blame for a time in which this process did nothing."""
        late = self._clock.mono() - since
        if late > LATE_S:
            self._driver.overslept(late)

    def _make_driver(self, saved: Saved, *, woken: bool, expects: str | None) -> Driver:
        return Driver(
            JobRules.of(self._settings, woken=woken),
            self,
            journal=self._journal,
            clock=self._clock,
            ledger=ledger_of(saved, now=self._clock.mono(), wall=time.time()),
            generation=saved.generation,
            expects=expects,
            changed=self._save_soon,
        )

    def _find_releases(self) -> dormant.Releases:
        """Raises :class:`UsageError` if there is no cluster to let workers go in."""
        settings = self._settings
        if settings.releases is None:
            return Keeps()
        rules = JobRules.of(settings, woken=True)
        return releases.found(
            settings.releases,
            releases.Need(settings.num_proc, rules.limits.least, settings.default_slots),
            settings.state_dir,
            record=lambda event, **fields: self._journal.record(event, generation=self._feed.generation, **fields),
            clock=self._clock,
        )

    # --- hosts

    async def _first_hosts(self) -> None:
        """Wait for the first list: where to listen depends on who is to connect."""
        rules = JobRules.of(self._settings)
        patience_s = rules.elastic_timeout_s if rules.sleep_after_s is None else rules.sleep_after_s
        deadline = self._clock.mono() + patience_s
        while not self._feed.hosts():
            if self._feed.failure is not None:
                raise JobFailed(str(self._feed.failure))
            if self._driver.outcome is not None:
                raise self._driver.outcome
            if self._clock.mono() >= deadline:
                why = self._feed.reason or "the list of hosts is empty, or none has come"
                if rules.sleep_after_s is not None:
                    raise Asleep(f"no host in --sleep-after {patience_s:g} s: {why}")
                raise JobFailed(f"no host in --elastic-timeout {self._settings.elastic_timeout_s:g} s: {why}")
            self._look_soon.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._look_soon.wait(), 1.0)

    def _hosts_changed(self) -> None:
        self._feed.changed.clear()
        if self._dormant is not None:
            self._dormant.changed()
            return
        if self._feed.failure is not None:
            self._driver.end(JobFailed(str(self._feed.failure)))
        now, wall = self._clock.mono(), time.time()
        departing = {
            each.host: (each.reason, None if each.deadline is None else now + each.deadline - wall)
            for each in self._feed.departing()
        }
        self._had = self._hosts or self._had
        self._driver.hosts_changed(self._hosts, departing)
        self._look_soon.set()

    @property
    def _hosts(self) -> HostSet:
        """Those that were published; those of the last launcher until there is a list."""
        return self._feed.hosts() or self._left

    async def _listen(self, ports: Mapping[str, int]) -> None:
        """Open the one port, where the first host comes in."""
        settings = self._settings
        self._control = Control(
            settings.job,
            self._folder.key(),
            incarnation=self._incarnation,
            pace=Pace(settings.heartbeat_interval_s),
            orphan_grace_s=settings.orphan_grace_s,
            ports=ports,
            on_event=self._event,
        )
        versions = {package: _version(package) for package in PACKAGES}
        self._reach = Reach(self._control, given=settings.interfaces, rsh=settings.rsh, versions=versions)
        await self._reach.begin(self._hosts.names[0])
        hook = str(Path(__file__).parents[1] / "worker" / "hook")
        beats = {"HVD_ELASTIC_HEARTBEAT_INTERVAL": f"{settings.heartbeat_interval_s:g}"}
        adopts = {"HVD_ELASTIC_ADOPT": "1"} if settings.adopt else {}
        tuning = {**settings.env, **beats, **settings.notices.env(), **adopts}
        self.environment = job_env(os.environ, tuning, hook=hook)
        self._transport = self._make_transport()
        self._begin_engine()

    def _make_room(self) -> None:
        """Have as many files, and as few heartbeats, as so many hosts need."""
        settings = self._settings
        hosts = min(len(self._hosts), settings.max_num_proc or sys.maxsize)
        if hosts == self._room_for:
            return
        self._room_for = hosts
        asked_s, timeout_s = settings.heartbeat_interval_s, settings.heartbeat_timeout_s
        progress_s = settings.progress_timeout_s
        self._control.set_pace(pace(asked_s, timeout_s=timeout_s, hosts=hosts, progress_timeout_s=progress_s))
        said = too_few_files(hosts, raise_file_limit(hosts))
        if said is not None:
            log.warning("%s", said)

    def _make_transport(self) -> Transport:
        settings = self._settings
        if settings.rsh in ("local", "pod"):
            return self._pods or Local()
        far = OverSsh(Ssh(Path.cwd(), settings.ssh_port, settings.ssh_identity_file))
        return far if settings.rsh == "ssh" else ByName(Local(), far, self._reach.is_near)

    def _begin_engine(self) -> None:
        """With mpirun, have one of it for each world."""
        engine, settings = self._driver.engine, self._settings
        if isinstance(engine, Restarting) and settings.engine == "mpirun":
            self._mpi = MpiRuns(
                settings.state_dir,
                mark=mark_of(self._control.key),
                ssh=Ssh(Path.cwd(), settings.ssh_port, settings.ssh_identity_file),
                interfaces=settings.interfaces,
                is_near=self._reach.is_near,
                ended=self._mpi_ended,
            )
            engine.formed = self._mpi.begin

    def _mpi_ended(self, generation: int, why: str) -> None:
        if isinstance(self._driver.engine, Restarting):
            self._driver.engine.not_begun(generation, why)
            self._look_soon.set()

    def _take_back(self) -> None:
        """Agents of a launcher that died may live, and train."""
        if self._left:
            log.warning("a launcher of this job was here before and did not end it: looking for what it left running")
            self._driver.expect(self._left, until=self._clock.mono() + self._settings.orphan_grace_s)

    # --- events

    def _event(self, event: ControlEvent) -> None:
        match event:
            case News(host, news) if news["event"] == "output":
                life = seat_of(host, news.get("slot"), news.get("life"))
                self._driver.news(host, news)  # a sign of life as good as any
                if life is not None:
                    self._console.take(life, str(news.get("stream")), str(news.get("text")))
                return
            case News(host, news):
                self._driver.news(host, news)
                if news["event"] == "beats":
                    return
                if news["event"] == "ended" and (life := seat_of(host, news.get("slot"), news.get("life"))):
                    self._console.ended(life)
            case AgentJoined(host, hello):
                self._launches.came(host)
                self._driver.agent_joined(host, hello)
                self._driver.ways_changed(host)
            case AgentLost(host, reason):
                self._driver.agent_lost(host, reason)
            case Superseded():
                self._superseded = True
        self._look_soon.set()

    def _rank(self, life: Life) -> int | None:
        place = self._driver.station.rendezvous.place(life)
        if place is not None or self._driver.worlds.begun:
            return None if place is None else place.rank
        worker = self._driver.station.roster.alive(life)
        return None if worker is None else worker.planned

    def _at_the_desk(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        driver = self._driver
        ledger, answer = hosts_desk.answer(
            request, driver.faults.ledger, hosts=self._feed.hosts().hosts, now=self._clock.mono()
        )
        if ledger is not driver.faults.ledger:
            driver.faults.ledger = ledger
            event, fields = hosts_desk.told(request)
            driver.station.record(event, **fields)
            self._save_soon()
            self._look_soon.set()
            if self._dormant is not None:
                self._dormant.changed()
        return answer

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals become events. A terminal that hangs up does not matter to a job under ``nohup``."""
        hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
        numbers = (signal.SIGINT, signal.SIGTERM, *hangup)
        for number in numbers:
            self._loop.add_signal_handler(number, self._told_to_stop, number)
        try:
            yield
        finally:
            for number in numbers:
                self._loop.remove_signal_handler(number)

    def _told_to_stop(self, number: int) -> None:
        name = signal.Signals(number).name
        self._stop = Interrupted(number, f"stopped by {name}")
        self._look_soon.set()
        if self._dormant is not None:
            self._dormant.told(str(self._stop))
            return
        log.warning("%s: ending all workers, %g s grace", name, self._settings.grace_s)
        self._driver.end(self._stop)

    # --- Hands

    def start_agent(self, host: Host) -> None:
        self._launches.put(host.name, self._spawn(self._start_agent(host.name)))

    async def _start_agent(self, name: str) -> None:
        try:
            address = await self._reach.address(name)
        except OSError as error:
            self._driver.launch_ended(name, SSH_FAILED, f"the launcher cannot listen where it would come in: {error}")
            self._look_soon.set()
            return
        line = join_line(
            self._settings.job,
            name,
            key=self._control.key,
            launcher=address,
            incarnation=self._incarnation,
            orphan_grace_s=self._settings.orphan_grace_s,
            argv=slot_command(self._settings.engine, self._settings.command),
            env=self.environment,
        )
        if name in self._control.hosts:  # it has come by itself, before the way to it was known
            self._driver.ways_changed(name)
        ended = await self._launches.run(self._transport, name, line)
        if ended is not None:
            self._driver.launch_ended(name, ended.code, ended.last_words)
            self._look_soon.set()

    def stop_launch(self, host: str) -> None:
        self._launches.drop(host)

    def end_agent(self, host: Host) -> None:
        self._launches.put(host.name, self._spawn(self._end_agent(host.name)))

    async def _end_agent(self, name: str) -> None:
        line = end_line(self._settings.job, name, key=self._control.key, grace_s=self._settings.grace_s)
        ended = await self._launches.run(self._transport, name, line)
        if ended is not None:
            self._driver.agent_ended(name, ended.code, ended.last_words)
            self._look_soon.set()

    def hang_up(self, host: str, reason: str) -> None:
        self._control.drop(host, reason)

    def send(self, host: str, order: Mapping[str, Any]) -> bool:
        return self._control.send(host, order)

    def start_order(self, seat: Seat, place: Place) -> dict[str, Any]:
        env = seat_env(seat, place, incarnation=self._incarnation)
        env |= slot_env(self._settings.engine, job=self._settings.job, mark=mark_of(self._control.key))
        return {"env": env, "grace_s": self._settings.grace_s}

    def go_env(self, worker: Worker) -> dict[str, str]:
        agent = self._driver.station.roster.agents.get(worker.seat.host)
        return self._reach.environment(worker.seat.host, agent.facts if agent is not None else {})

    def unfit(self, host: Host, facts: Mapping[str, Any]) -> str | None:
        return self._reach.unfit(host.name, there(self._driver.station.roster.agents.values()))

    # --- what outlives this launcher

    def _save_soon(self) -> None:
        """When what happens now has happened: half of a change is nothing to remember."""
        self._spawn(self._save())

    async def _save(self) -> None:
        self._saving.soon(self._saved())

    def _saved(self) -> Saved:
        now, wall = self._clock.mono(), time.time()
        ports = self._control.ports if hasattr(self, "_control") else {}
        return state_of(self._driver, incarnation=self._incarnation, ports=ports, now=now, wall=wall)

    async def _clean_up(self) -> None:
        if self._mpi is not None:
            await self._mpi.end(everything=self._driver.over)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._launches.close()
        if hasattr(self, "_control"):
            await self._control.stop()

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a defect of hvd-elastic", exc_info=error)
            self._driver.end(JobFailed(f"a defect of hvd-elastic: {type(error).__name__}: {error}"))
            self._look_soon.set()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
