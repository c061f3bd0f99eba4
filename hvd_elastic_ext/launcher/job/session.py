"""One session of an elastic job: sockets, agents and files around one driver, in one asyncio loop.

Events come from the control port, the host list, the launches of agents and the job. The driver gets each of them and
plans; the control port sends its orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import Asleep, JobFailed, Transient
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.io.code.files import code_of
from hvd_elastic_ext.io.threads.background_calls import BackgroundCalls
from hvd_elastic_ext.io.threads.beside import Beside
from hvd_elastic_ext.launcher.agents.capacity import HeartbeatPace, heartbeat_pace, raise_file_limit, too_few_files
from hvd_elastic_ext.launcher.agents.environment import (
    agent_options,
    job_env,
    mark_of,
    process_env,
    seat_env,
    slot_command,
    slot_env,
)
from hvd_elastic_ext.launcher.agents.server import Control, ControlEvent, Superseded
from hvd_elastic_ext.launcher.agents.transports.launches import Launches
from hvd_elastic_ext.launcher.agents.transports.transports import (
    PodTransport,
    end_line,
    join_line,
    ssh_of,
    transport_of,
)
from hvd_elastic_ext.launcher.driver import events
from hvd_elastic_ext.launcher.driver.driver import Driver
from hvd_elastic_ext.launcher.driver.events import (
    AgentEnded,
    AgentJoined,
    End,
    Expected,
    HealthChanged,
    HostsChanged,
    LaunchEnded,
    LauncherPaused,
    News,
    PeersChanged,
    WorldNotBegun,
)
from hvd_elastic_ext.launcher.driver.recording import Recorder
from hvd_elastic_ext.launcher.driver.words import Wait
from hvd_elastic_ext.launcher.folder.handover import Handover, StateWriter, start_of, write_noted_change
from hvd_elastic_ext.launcher.folder.state_folder import StateDir
from hvd_elastic_ext.launcher.folder.state_json import Saved, job_of, saved_of
from hvd_elastic_ext.launcher.health import silence
from hvd_elastic_ext.launcher.health.causes import SSH_FAILED
from hvd_elastic_ext.launcher.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.job.addresses import Addresses, there, versions_here
from hvd_elastic_ext.launcher.job.admin_socket import AdminSocket
from hvd_elastic_ext.launcher.job.first_hosts import FirstHosts, log_while_waiting
from hvd_elastic_ext.launcher.job.mpirun import MPIRUN, MpiRuns
from hvd_elastic_ext.launcher.job.output import Console, seat_of
from hvd_elastic_ext.launcher.job.standard_input import NO_INPUT, StandardInput
from hvd_elastic_ext.launcher.membership.host_list import keeps_unlisted
from hvd_elastic_ext.launcher.membership.rendezvous import Seat, is_for_a_rank
from hvd_elastic_ext.launcher.options.settings import RunSettings
from hvd_elastic_ext.launcher.reporting import all_waits
from hvd_elastic_ext.launcher.scaling import signals
from hvd_elastic_ext.launcher.scaling.scalers import Scaler
from hvd_elastic_ext.launcher.scaling.signals import ScalingInputs
from hvd_elastic_ext.launcher.sources.hosts import HostFeed

log = logging.getLogger(__name__)

PAUSE_THRESHOLD_S: Final = 1.0
"""If the loop is later than this, the process or machine was stopped, or a disk blocked it."""
SCALE_S: Final = 120.0
"""Longest time for a request for hosts; a program has less."""
SCALE_POLL_S: Final = 15.0
"""Time between two looks at the number of requested hosts."""
JUST_AFTER_S: Final = 0.001
MAX_WAIT_S: Final = 1.0
"""Longest wait before the next check whether a planner is due."""
AGENTS_EXIT_S: Final = 2.0
"""How long agents may take to exit after their last message."""


class Session:
    """Runs one driver. The caller closes ``admin`` and ``console``. ``pods`` starts agents in pods."""

    def __init__(
        self,
        settings: RunSettings,
        feed: HostFeed,
        known: Handover,
        *,
        journal: Journal,
        clock: Clock,
        folder: StateDir,
        writer: StateWriter,
        admin: AdminSocket,
        console: Console,
        pods: PodTransport | None,
        scaler: Scaler | None = None,
        recorder: Recorder | None = None,
        stdin: StandardInput = NO_INPUT,
    ) -> None:
        self._stdin = stdin
        self._settings, self._feed, self._clock = settings, feed, clock
        self._folder, self._writer, self._admin, self._console = folder, writer, admin, console
        self._pods = pods
        self._loop = asyncio.get_running_loop()
        self._look_soon = asyncio.Event()
        self._beside = Beside()
        """All tasks but the loop itself, :meth:`_drive`: none of them can end the job. One that a host needs costs that
        host at most."""
        self._superseded = False
        self._first: FirstHosts | None = None
        """The wait for the first host list, while it lasts."""
        self._adapted_to = (0, 0)
        self._program: MpiRuns | None = None
        self._launches = Launches(console.remark)
        self._aside = BackgroundCalls()
        self._scaler = scaler
        self._inputs = ScalingInputs(signals.sources(settings.observe), scaler)
        self._left = HostSet(known.saved.hosts_left)
        self._ports = known.saved.ports
        """Port on which the last launcher or session listened, by address."""
        self.last_hosts = known.last_hosts
        """The last host list that was not empty."""
        self._run = known.saved.run
        self._incarnation = known.saved.incarnation
        """The last launcher's or session's, until this one has its own."""
        write_noted_change(known.saved, journal=journal, clock=clock)
        options = settings.options.woken_up() if known.woken else settings.options
        now, wall = clock.mono(), time.time()
        helper_number = secrets.randbelow(1 << 48)
        job = job_of(known.saved, options, now=now, wall=wall, helper_number=helper_number, expects=known.expects)
        if recorder is not None:
            recorder.job_started(start_of(known.saved, job, wall=wall, expects=known.expects))
        self.driver = Driver(job, self, journal=journal, clock=clock, changed=self._save_soon, recorder=recorder)

    async def run(self) -> JobFailed | None:
        """Run to the end. Return the reason; None if training is done. Raises :class:`JobFailed` if it cannot begin."""
        try:
            await self._begin_in_folder()
            if not self._left:
                await self._open_admin_socket()
                await self._first_hosts()
            await self._listen()
            await self._open_admin_socket()
            self._expect_agents()
            self.hosts_changed()
            self._beside.start(self._follow_scale, lacks="--autoscale gets no signals")
            await self._drive()
            if self.driver.over:  # agents may not have exited yet
                await self._launches.ended(within_s=AGENTS_EXIT_S)
        except Asleep as asleep:  # nothing was started
            return asleep
        finally:
            await self._clean_up()
        if self._superseded:
            raise JobFailed("another launcher of this job has taken over; this one stops")
        self._save_soon()
        return self.driver.outcome

    def end(self, why: JobFailed) -> None:
        """End the job with this outcome. A second call ends it at once."""
        self._tell(End(why))

    def _tell(self, event: events.Event) -> None:
        """Pass an event to the driver, and let it look soon."""
        self.driver.tell(event)
        self._look_soon.set()

    async def _open_admin_socket(self) -> None:
        if not self._admin.open:
            await self._admin.start()

    # --- the loop

    async def _drive(self) -> None:
        while not self._superseded:
            self._look_soon.clear()
            self._adapt_to_hosts()
            if self._addresses.see(there(self.driver.job.roster.agents.values())):
                self.driver.tell(PeersChanged())
            begun = self._clock.mono()
            at = self.driver.look()
            job = self.driver.job
            self._feed.generation, self._feed.keeps = job.generation, keeps_unlisted(job)
            if at is None:
                return
            self._control.poller.steady = job.steady
            self._check_standstill(since=begun)
            await self._wait_for_event(until=at)

    async def _wait_for_event(self, *, until: float) -> None:
        """Wait for an event, until a planner is due (a host may be silent too long), or until ``until`` (mono)."""
        await asyncio.sleep(0)  # read what has arrived before silence is judged
        while (left := until - self._clock.mono()) > 0:
            begun, pause = self._clock.mono(), min(left, MAX_WAIT_S)
            due_at = self.driver.due_at()
            if due_at is not None and due_at > begun:
                pause = min(pause, due_at - begun + JUST_AFTER_S)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._look_soon.wait(), pause)
            self._check_standstill(since=begun + pause)
            if self._look_soon.is_set() or self.driver.is_due():
                return

    def _check_standstill(self, *, since: float) -> None:
        """Tell the driver if this process was paused: hosts are not to blame for that silence."""
        late = self._clock.mono() - since
        if late > PAUSE_THRESHOLD_S:
            self.driver.tell(LauncherPaused(late))

    # --- hosts

    async def _first_hosts(self) -> None:
        """Wait for the first host list: the address to listen on depends on it."""
        options = self._settings.options
        first = FirstHosts(
            self._feed,
            self._settings.sources,
            self._clock,
            elastic_timeout_s=options.elastic_timeout_s,
            sleep_after_s=options.sleep_after_s if options.below_min == "sleep" else None,
        )
        self._first = first
        while not self._feed.hosts():
            self._look_soon.clear()
            if self.driver.outcome is not None:
                raise self.driver.outcome
            pause = first.look()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._look_soon.wait(), pause)
        self._first = None

    def status(self) -> str:
        """What the session does at this moment, in one line."""
        return all_waits.status(self.driver.job) if self._first is None else self._first.status()

    def first_wait(self) -> Wait | None:
        """The wait for a first host list, while it lasts."""
        return None if self._first is None else self._first.wait()

    def hosts_changed(self) -> None:
        """Take in the host list. Call it in the loop's thread."""
        if self._feed.failure is not None:
            self.driver.tell(End(JobFailed(str(self._feed.failure))))
        now, wall = self._clock.mono(), time.time()
        departing = {
            each.host: (each.reason, None if each.deadline is None else now + each.deadline - wall)
            for each in self._feed.departing()
        }
        self.last_hosts = self._hosts or self.last_hosts
        self._tell(HostsChanged(self._hosts, departing, self._feed.reason))

    @property
    def _hosts(self) -> HostSet:
        """The published hosts; those of the last launcher until there is a list."""
        return self._feed.hosts() or self._left

    async def _begin_in_folder(self) -> None:
        """Take the number of this launcher's life, and the job's key. Both must be on the disk before any agent starts,
        so this waits for the disk, but in a thread: lines come, and a signal ends the wait.
        """
        taken = asyncio.ensure_future(self._aside.call(lambda: (self._folder.next_incarnation(), self._folder.key())))
        wait = Wait(
            f"for the disk of {self._folder.path}: this launcher's number must be there before anything starts",
            ends="it ends when the disk answers",
        )
        await log_while_waiting(taken, wait, self._clock, failed=lambda: self.driver.outcome)
        self._incarnation, self._key = taken.result()

    async def _listen(self) -> None:
        """Open the control port on the address that the first host uses."""
        settings = self._settings
        environ = {**os.environ, **settings.variables}
        self._control = Control(
            settings.job,
            self._key,
            incarnation=self._incarnation,
            pace=HeartbeatPace(settings.heartbeat_interval_s),
            options=agent_options(settings, environ),
            ports=self._ports,
            on_event=self._event,
        )
        self._code = code_of("--code", settings.code, sender=settings.job if settings.options.send_code else "")
        self._addresses = Addresses(
            self._control,
            given=settings.interfaces,
            rsh=settings.rsh,
            versions=versions_here(settings.options.engine),
            code=self._code.sha256,
        )
        first = self._hosts.names[0]
        what = f"for the address of {first}: no name server has answered yet"
        wait = Wait(what, ends="it ends when the resolver of this machine gives up; then the host is tried again")
        await log_while_waiting(self._addresses.begin(first), wait, self._clock, failed=lambda: self.driver.outcome)
        hook = str(Path(__file__).parents[2] / "worker" / "hook")
        self.environment = job_env(environ, {**settings.env, **process_env(settings)}, hook=hook)
        self._transport = transport_of(
            settings, is_near=self._addresses.is_near, pods=self._pods, stdin=self._stdin.descriptor
        )
        self._begin_engine()

    def _adapt_to_hosts(self) -> None:
        """Set the file limit and the heartbeat interval for the number of hosts."""
        options = self._settings.options
        most = options.limits.most or sys.maxsize
        hosts = min(len(self._hosts), most)
        written = 0 if options.output is None else min(self._hosts.slots, most)
        if (hosts, written) == self._adapted_to:
            return
        self._adapted_to = (hosts, written)
        asked_s, timeout_s = self._settings.heartbeat_interval_s, options.heartbeat_timeout_s
        progress_s = options.progress_timeout_s
        self._control.set_pace(heartbeat_pace(asked_s, timeout_s=timeout_s, hosts=hosts, progress_timeout_s=progress_s))
        warning = too_few_files(hosts, raise_file_limit(hosts, written=written), written=written)
        if warning is not None:
            log.warning("%s", warning)

    def _begin_engine(self) -> None:
        """Prepare the program that starts the processes of each world, if the engine has one."""
        settings = self._settings
        if settings.options.engine == MPIRUN:
            self._program = MpiRuns(
                settings.state_dir,
                mark=mark_of(self._control.key),
                ssh=ssh_of(settings),
                interfaces=settings.interfaces,
                is_near=self._addresses.is_near,
                ended=self._program_ended,
            )

    def _program_ended(self, generation: int, why: str) -> None:
        self._tell(WorldNotBegun(generation, why))

    def _expect_agents(self) -> None:
        """Expect the agents of a launcher that died: they may still train."""
        if self._left:
            log.warning("an earlier launcher did not end this job: looking for what it left running")
            self.driver.tell(Expected(tuple(self._left), self._clock.mono() + self._settings.options.orphan_grace_s))

    # --- events

    def _event(self, event: ControlEvent) -> None:
        if isinstance(event, News) and event.news["event"] in ("output", "exited", "ended"):
            self._show_output(event.host, event.news)  # first: the driver takes the rank away of a process that exits
        if isinstance(event, Superseded):
            self._superseded = True
        else:
            self.driver.tell(event)
        if isinstance(event, News) and changes_no_plan(event.news):
            if event.news["event"] == "beats" and silence.is_due_on(self.driver.job, event.host):
                self._look_soon.set()  # the others of its world wait for that
            return
        match event:
            case AgentJoined(host):
                self._launches.agent_joined(host)
                self._save_soon()  # the next launcher must find this host, even before there is a world
                self.driver.tell(PeersChanged(host))
        if not (isinstance(event, News) and event.news["event"] == "output"):
            self._look_soon.set()

    def _show_output(self, host: str, news: Mapping[str, Any]) -> None:
        life = seat_of(host, news.get("slot"), news.get("life"))
        if life is None:
            return
        if news["event"] == "output":
            self._console.take(life, str(news.get("stream")), str(news.get("text")))
        elif news["event"] == "exited":
            self._console.exited(life)
        else:
            self._console.ended(life)

    def scale_by_hand(self, hosts: int | None) -> None:
        """A user has asked for a number of hosts; None: the policy decides again."""
        self._tell(events.ScaleByHand(hosts))

    def health_changed(self, ledger: HealthLedger, event: str, fields: Mapping[str, Any]) -> None:
        """An operator changed a host's health; ``event`` and ``fields`` go into the journal."""
        self._tell(HealthChanged(ledger, event, fields))

    # --- orders of the driver

    def start_agent(self, host: Host) -> None:
        """In a task, in place of an earlier start for this host; :class:`LaunchEnded` follows if not given up."""
        name = host.name
        task = self._beside.once(
            functools.partial(self._start_agent, name),
            failed=lambda why: self._tell(LaunchEnded(name, SSH_FAILED, why)),
        )
        self._launches.put(name, task)

    async def _start_agent(self, name: str) -> None:
        try:
            address = await self._addresses.address(name)
        except OSError as error:
            self._tell(
                LaunchEnded(name, SSH_FAILED, f"the launcher cannot listen on the address for this host: {error}")
            )
            return
        line = join_line(
            self._settings.job,
            name,
            key=self._control.key,
            launcher=address,
            incarnation=self._incarnation,
            orphan_grace_s=self._settings.options.orphan_grace_s,
            argv=slot_command(self._settings.options.engine, self._settings.command),
            env=self.environment,
            code=self._code.wanted,
        )
        if name in self._control.hosts:  # its agent connected before the route was known
            self.driver.tell(PeersChanged(name))
        ended = await self._launches.run(self._transport, name, line, code=self._code)
        if ended is not None:
            self._tell(LaunchEnded(name, ended.code, ended.message))

    def stop_launch(self, host: str) -> None:
        """An agent that runs continues; no event follows."""
        self._launches.drop(host)

    def end_agent(self, host: Host) -> None:
        """In a task, in place of an earlier start for this host; :class:`AgentEnded` follows if not given up."""
        name = host.name
        task = self._beside.once(
            functools.partial(self._end_agent, name), failed=lambda why: self._tell(AgentEnded(name, SSH_FAILED, why))
        )
        self._launches.put(name, task)

    async def _end_agent(self, name: str) -> None:
        line = end_line(self._settings.job, name, key=self._control.key, grace_s=self._settings.grace_s)
        ended = await self._launches.run(self._transport, name, line)
        if ended is not None:
            self._tell(AgentEnded(name, ended.code, ended.message))

    def hang_up(self, host: str, reason: str) -> None:
        """Orders that are not sent yet are lost."""
        self._control.drop(host, reason)

    def send(self, host: str, order: Mapping[str, Any]) -> bool:
        """Over the control port, without waiting; True does not mean that the order arrives."""
        return self._control.send(host, order)

    def start_order(self, seat: Seat, place: Place) -> dict[str, Any]:
        """``env``: the variables of the seat and those of the engine; ``grace_s``: the grace period in seconds."""
        env = seat_env(seat, place, incarnation=self._incarnation)
        env |= slot_env(self._settings.options.engine, job=self._settings.job, mark=mark_of(self._control.key))
        facts = self.driver.job.roster.facts_of(seat.host)
        stdin = {"stdin": True} if self._stdin.goes_to(seat, rank=place.rank, facts=facts) else {}
        return {"env": env, "grace_s": self._settings.grace_s, **stdin}

    def go_env(self, host: str) -> dict[str, str]:
        """The network interface for Gloo, by what the host's agent reports; empty if none has to be named."""
        return self._addresses.environment(host, self.driver.job.roster.facts_of(host))

    def begin_world(self, generation: int, hosts: Sequence[str]) -> None:
        """Only mpirun has something to start; with other engines nothing is started."""
        self._stdin.world_begins()
        if self._program is not None:
            self._program.begin(generation, list(hosts))

    def scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        """In a task; :class:`Scaled` follows."""
        scale = functools.partial(self._scale, hosts, leaving, reason)
        self._beside.start(scale, lacks=f"{hosts} hosts are not requested (--scale-with)")

    async def _scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        assert self._scaler is not None
        scale = functools.partial(self._scaler.scale, hosts, leaving, reason)
        try:
            await self._aside.call(scale, within_s=SCALE_S)
        except (Transient, OSError) as error:
            self._tell(events.Scaled(hosts, str(error)))
        except Exception as error:
            self._tell(events.Scaled(hosts, f"a defect of hvd-elastic: {type(error).__name__}: {error}"))
            log.exception("a defect of hvd-elastic: %d hosts are not requested; the job goes on", hosts)
        else:
            self._tell(events.Scaled(hosts))

    async def _follow_scale(self) -> None:
        """Tell the driver from time to time the signals and the number of requested hosts, which others may change."""
        while self._inputs.any:
            for event in await self._inputs.read():
                self._tell(event)
            await asyncio.sleep(SCALE_POLL_S)

    def peer_address(self, host: str) -> str:
        """On the interface that processes use; the loopback address if the agent has not reported that one."""
        return self._addresses.peer_address(host, self.driver.job.roster.facts_of(host))

    def unfit(self, host: Host) -> str | None:
        """By what all agents report that have connected and do not finish."""
        return self._addresses.unfit(host.name, there(self.driver.job.roster.agents.values()))

    # --- what outlives this launcher

    def _save_soon(self) -> None:
        self._writer.soon(self.saved)

    def saved(self) -> Saved:
        """The state for the next session or launcher."""
        job = self.driver.job
        job.now = self._clock.mono()
        ports = self._control.ports if hasattr(self, "_control") else self._ports
        return saved_of(job, incarnation=self._incarnation, ports=ports, wall=time.time(), run=self._run)

    async def _clean_up(self) -> None:
        if self._program is not None:
            await self._program.end(everything=self.driver.over)
        await self._beside.close()
        running = await self._launches.close()
        if running and self.driver.over:
            log.warning(
                "not ended after %g s, and left to end by itself: agent of %s", AGENTS_EXIT_S, ", ".join(running)
            )
        if hasattr(self, "_control"):
            await self._control.stop()


def changes_no_plan(news: Mapping[str, Any]) -> bool:
    """Heartbeats, whose absence the loop notices, and questions for keys, which need no look to answer.

    When a world forms, each process asks twice for the addresses of all others: looks for them would be hundreds.
    """
    if news["event"] == "asked":
        return not is_for_a_rank(str(news.get("method")), str(news.get("path")))
    return str(news["event"]) == "beats"
