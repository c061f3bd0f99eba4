"""A cluster in virtual time. Its agents and processes behave as real ones, also while launchers end and restart."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Journal, Sink
from hvd_elastic_ext.launcher.driver.events import HealthChanged
from hvd_elastic_ext.launcher.driver.options import JobOptions
from hvd_elastic_ext.launcher.driver.recording import Recorder
from hvd_elastic_ext.launcher.folder.state_json import Saved
from hvd_elastic_ext.launcher.health.ledger import HealthLedger, Subject
from hvd_elastic_ext.simulate.cluster.agent import Agent, Line
from hvd_elastic_ext.simulate.cluster.helpers import Helpers
from hvd_elastic_ext.simulate.cluster.launcher import Launcher, Motion
from hvd_elastic_ext.simulate.cluster.observer import Observer
from hvd_elastic_ext.simulate.cluster.processes import Message, Process
from hvd_elastic_ext.simulate.cluster.times import LATENCY_S, Times
from hvd_elastic_ext.simulate.cluster.training import Training
from hvd_elastic_ext.simulate.cluster.virtual_time import Sim

LOST_S: Final = 10.0
"""Seconds without an acknowledgement after which a connection counts as lost."""


class NoJournal:
    """A journal that drops all lines."""

    def write(self, text: str, /) -> object:
        """Do nothing."""

    def flush(self) -> object:
        """Do nothing."""


def _host(name: str, slots: int, known: Host | None) -> Host:
    return known if known is not None and known.slots == slots else Host(name, slots)


class Cluster:
    """``boot_s``: by host, the seconds until a process is ready; None: never. ``ends_s``: by host, the seconds until a
    process that is told to stop has ended, if they differ. ``late_s``: delay of all messages of a host. ``cut``: hosts
    without a network. ``absent``: hosts that do not exist. ``kinds``: kinds of hosts, if known. ``listed`` and
    ``departing``: the newest accepted list. ``chance``: the source of all randomness. ``launcher_dies``: whether the
    launcher will die, so that its saved states matter; ``save_s``: seconds to save one. ``ssh_says``: what a command
    says that does not reach its host. ``scales`` gets the number of hosts that a launcher requests, and the hosts that
    it releases.
    """

    training_kind: type[Training] = Training
    agent_kind: type[Agent] = Agent
    launcher_kind: type[Launcher] = Launcher
    helpers_kind: type[Helpers] = Helpers

    def __init__(
        self,
        options: JobOptions,
        times: Times,
        observer: Observer,
        *,
        seed: int = 0,
        launcher_dies: bool = False,
        journal: Sink | None = None,
    ) -> None:
        self.sim, self.options, self.times, self.observer = Sim(), options, times, observer
        self.chance = random.Random(seed)  # noqa: S311 a simulation
        self.launcher_dies = launcher_dies
        self.journal: Any = io.StringIO() if journal is None else journal
        self.keeps_journal = not isinstance(self.journal, NoJournal)
        self.cut: set[str] = set()
        self.absent: set[str] = set()
        self.kinds: dict[str, str] = {}
        self.boot_s: dict[str, float | None] = {}
        self.ends_s: dict[str, float] = {}
        self.late_s: dict[str, float] = {}
        self.save_s = 0.02
        self.ssh_says = "no route to host"
        self.listed = HostSet()
        self.departing: dict[str, float | None] = {}
        self.agents: dict[str, Agent] = {}
        self.launcher: Launcher | None = None
        self.scales: Callable[[Launcher, int, Sequence[str]], None] | None = None
        self.training = self.training_kind(self.sim, self.observer, self.cut, times)
        self.helpers = self.helpers_kind(self)
        self._lives = 0
        self.recorder: Recorder | None = None
        """Records all events of launchers."""
        self._saved = Saved()
        self._incarnation = 0

    def drawn(self, seconds: float) -> float:
        """Return a random time with this median."""
        spread = self.times.spread
        return seconds * math.exp(self.chance.gauss(0.0, spread)) if spread else seconds

    def start_s(self, host: str) -> float:
        """Return the seconds that the start of an agent takes."""
        return self.drawn(self.times.of(self.kinds.get(host, ""), "agent_s"))

    def new_journal(self) -> Journal:
        """Return the journal of a new launcher."""
        return Journal(self.journal, self.sim.time)

    def reaches(self, host: str) -> bool:
        """Whether a command reaches a host: one that starts its agent, or ends it."""
        return host not in self.cut

    # --- time

    def run(self, until: float, *, stops: Callable[[Launcher], bool] = lambda launcher: False) -> None:
        """Run until a time, or until ``stops``, which is checked after each look."""
        sim = self.sim
        while sim.now < until:
            launcher = self.launcher
            if launcher is not None and launcher.dirty:
                launcher.look()
                if stops(launcher):
                    return
            at = min(until, until if sim.next_at is None else sim.next_at)
            if launcher is not None and launcher.look_at is not None and launcher.look_at < at:
                at = launcher.look_at + 1e-6
                launcher.due()
            sim.happen(at)
        if self.launcher is not None and self.launcher.dirty:
            self.launcher.look()

    # --- launchers

    def start_launcher(self) -> None:
        """Start a launcher, the first one or the next one; at most one runs."""
        if self.launcher is None:
            self._incarnation += 1
            self.launcher = self.launcher_kind(self, self._incarnation, self._saved)

    def next_session(self, saved: Saved, *, expects: str | None) -> None:
        """Continue the launcher's job after a sleep or a failure. ``expects``: the checkpoint that it must find."""
        self.launcher, self._incarnation = None, self._incarnation + 1
        self.launcher = self.launcher_kind(self, self._incarnation, saved, expects=expects)

    def kill_launcher(self) -> None:
        """Kill the launcher, as by ``kill -9``."""
        launcher, self.launcher = self.launcher, None
        if launcher is None:
            return
        self._saved, launcher.alive = launcher.left, False
        self.observer.launcher_died(launcher)
        for agent in self.agents.values():
            if (line := agent.line) is not None and line.launcher is launcher:
                line.open = False
                agent.down_since = self.sim.now if agent.down_since is None else agent.down_since
                self.tell_loss(line)

    def motion(self) -> Motion:
        """Return the present kind of activity."""
        launcher, worlds = self.launcher, self.training.worlds
        if launcher is None or self.cut or len(worlds) > 1:
            return Motion.MOVING
        trains = len(worlds) == 1 and worlds[0].phase == "training"
        if worlds and (not trains or worlds[0].interrupted or worlds[0].fresh or worlds[0].stalled_at is not None):
            return Motion.MOVING
        if launcher.driver.job.decision.members is not None:
            return Motion.MOVING
        if any(agent.finishing for agent in self.agents.values()):
            return Motion.MOVING
        if not trains or launcher.starting:
            return Motion.WAITING
        count = sum([len(agent.processes) for agent in self.agents.values()])
        return Motion.CALM if len(worlds[0].members) == count else Motion.WAITING

    # --- messages

    def up(self, line: Line, message: Message) -> None:
        """Send a message to the launcher."""
        line.up_at = max(line.up_at, self._arrival(line))
        self.sim.at(line.up_at, self._arrives_up, line, message)

    def _arrives_up(self, line: Line, message: Message) -> None:
        if line.open and (line.up or line.agent.host in self.cut):
            line.up.append(message)  # behind the messages that wait already: a connection keeps the order
        elif line.open and line.launcher.alive:
            line.launcher.receive(line, message)

    def _arrival(self, line: Line) -> float:
        at = self.sim.time.now + LATENCY_S
        return at + self.late_s.get(line.agent.host, 0.0) if self.late_s else at

    def down(self, line: Line, order: Mapping[str, Any]) -> None:
        """Send an order to an agent."""
        line.down_at = max(line.down_at, self._arrival(line))
        self.sim.at(line.down_at, self._arrives_down, line, order)

    def _arrives_down(self, line: Line, order: Mapping[str, Any]) -> None:
        if not line.open or line.agent.line is not line or not line.agent.alive:
            return
        if line.down or line.agent.host in self.cut:
            line.down.append(order)
        else:
            line.agent.obey(order)

    def tell_loss(self, line: Line) -> None:
        """Note that the other end of a connection is gone. An agent with a network notices this."""
        if line.agent.host not in self.cut:
            self.sim.later(LATENCY_S, line.agent.line_lost, line)

    def drop(self, host: str) -> None:
        """Break a connection, with all messages in transit."""
        agent = self.agents.get(host)
        if agent is not None and (line := agent.line) is not None and line.open and host not in self.cut:
            line.open = False
            agent.down_since = self.sim.now
            self.sim.later(LATENCY_S, agent.line_lost, line)
            self.sim.later(LATENCY_S, line.launcher.lost, line, "connection reset")

    def cut_off(self, host: str) -> None:
        """Cut the network of a host."""
        if host in self.cut:
            return
        agent = self.agents.get(host)
        if agent is not None and self.launcher is not None:
            self.launcher.receive_heartbeat(agent)
        self.cut.add(host)
        for process in [] if agent is None else list(agent.processes.values()):
            self.training.may_stall(process.world)
        if agent is not None:
            agent.down_since = self.sim.now if agent.down_since is None else agent.down_since
            if agent.line is not None:
                self.sim.later(LOST_S, self._times_out, agent.line, self.sim.now)

    def _times_out(self, line: Line, cut_at: float) -> None:
        if line.agent.host in self.cut and line.agent.down_since == cut_at:
            line.open = False
            line.agent.line_lost(line)
            line.launcher.lost(line, "nothing was acknowledged")

    def link_back(self, host: str) -> None:
        """Restore the network of a host."""
        if host not in self.cut:
            return
        self.cut.discard(host)
        self.training.look_again(list(self.agents))
        agent = self.agents.get(host)
        if agent is None or (line := agent.line) is None:
            return
        if not line.open:
            agent.line_lost(line)
            return
        self.sim.later(LATENCY_S, self._goes_through, line)

    def _goes_through(self, line: Line) -> None:
        """Deliver the messages held back by a cut network, in order."""
        if line.agent.host in self.cut:
            return
        ups, downs, line.up, line.down = line.up, line.down, [], []
        for message in ups:
            self._arrives_up(line, message)
        for order in downs:
            self._arrives_down(line, order)

    # --- agents and processes

    def new_agent(self, host: str) -> Agent:
        """Start an agent on a host."""
        self._lives += 1
        agent = self.agents[host] = self.agent_kind(self, host, f"{host}-{self._lives}")
        return agent

    def agent_dies(self, agent: Agent, *, code: int = 137) -> None:
        """End an agent with all its processes and commits."""
        if not agent.alive:
            return
        self.observer.dies(agent)
        agent.alive = False
        del self.agents[agent.host]
        for process in list(agent.processes.values()):
            self.training.gone(process)
        if (line := agent.line) is not None and agent.host not in self.cut:
            arrives_at = max(line.up_at, self.sim.now + LATENCY_S)  # after all messages of the agent
            self.sim.at(arrives_at, line.launcher.lost, line, "connection reset")
            self.sim.at(arrives_at + LATENCY_S, line.launcher.command_ended, agent, code)

    def boots(self, process: Process) -> None:
        """Plan the moment at which a started process is ready."""
        agent = process.agent
        own = agent.host in self.boot_s
        boot_s = self.boot_s[agent.host] if own else self.times.of(agent.kind, "boot_s")
        if boot_s is not None:
            if agent.booted is None or agent.booted[0] != self.sim.now:  # those that start together take the same time
                agent.booted = (self.sim.now, boot_s if own else self.drawn(boot_s))
            self.sim.later(agent.booted[1], agent.park, process)

    def process(self, host: str, slot: int) -> Process | None:
        """Return the process in a slot; None if there is none."""
        agent = self.agents.get(host)
        return None if agent is None else agent.processes.get(slot)

    def stop(self, process: Process) -> None:
        """Stop a process, as by SIGSTOP."""
        process.stopped = True
        self.training.may_stall(process.world)

    def cont(self, process: Process) -> None:
        """Continue a process, as by SIGCONT. Its launcher sends messages again that the process may have missed."""
        process.stopped = False
        process.agent.park(process)
        self.training.reads_results(process)
        self.training.look_again([process.host])

    # --- hosts

    def publish(self, hosts: dict[str, int], departing: dict[str, float | None] | None = None) -> None:
        """Accept a new host list. ``departing``: seconds until hosts will be gone, if known."""
        now = self.sim.now
        known = {host.name: host for host in self.listed}
        self.listed = HostSet(tuple(_host(name, slots, known.get(name)) for name, slots in hosts.items()))
        self.departing = {host: None if in_s is None else now + in_s for host, in_s in (departing or {}).items()}
        self.observer.listed(self.listed.names, self.departing)
        if self.launcher is not None:
            self.launcher.publish()

    def block(self, host: str, seconds: float | None) -> None:
        """Block a host by hand."""
        if (launcher := self.launcher) is not None:
            ledger = launcher.driver.job.faults.ledger
            until = None if seconds is None else self.sim.now + seconds
            self._health(launcher, ledger.block(Subject("host", host), until, ""), "blocked", host)

    def clear(self, host: str) -> None:
        """Clear a host by hand: remove its strikes and blocks."""
        if (launcher := self.launcher) is not None:
            ledger = launcher.driver.job.faults.ledger
            faults = [fault.subject for fault in ledger.faults]
            for subject in dict.fromkeys([*ledger.records, *faults]):
                if subject.name == host:
                    ledger = ledger.cleared(subject)
            self._health(launcher, ledger, "cleared", host)

    def _health(self, launcher: Launcher, ledger: HealthLedger, event: str, host: str) -> None:
        launcher.driver.tell(HealthChanged(ledger, event, {"host": host, "reason": ""}))
