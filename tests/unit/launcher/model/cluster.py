"""A cluster in virtual time that is true to what agents and processes do, whatever becomes of its launchers."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any, Final

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.driver.recording import Recorder
from hvd_elastic_ext.launcher.rules.health.ledger import Subject
from hvd_elastic_ext.launcher.rules.membership.next_world import WorldLimits
from hvd_elastic_ext.launcher.state.events import HealthChanged
from hvd_elastic_ext.launcher.state.saved import Saved
from tests.unit.launcher.model.agent import LATENCY_S, Agent, Line, Message
from tests.unit.launcher.model.helpers import Helpers
from tests.unit.launcher.model.launcher import Launcher
from tests.unit.launcher.model.oracle import Oracle
from tests.unit.launcher.model.training import Process, Training
from tests.unit.launcher.model.virtual_time import Sim
from tests.unit.launcher.simulated_cluster import JobOptions

BOOT_S: Final = 1.0
LOST_S: Final = 10.0
"""A connection counts as lost when the other end has acknowledged nothing for so long."""


@dataclass
class ShortOptions(JobOptions):
    """The rules of a job, all times short."""

    limits: WorldLimits = field(default_factory=lambda: WorldLimits(settle_s=0.3, settle_cap_s=2.0))
    cooldown_s: tuple[float, float] = (2.0, 8.0)
    heartbeat_timeout_s: float = 3.0
    standby_timeout_s: float = 15.0
    orphan_grace_s: float = 8.0
    elastic_timeout_s: float = 120.0
    commit_wait_s: float = 6.0
    failure_budget: int = 1000


class Cluster:
    """``boot_s`` by host: None never gets ready. ``late_s``: how late all messages of a host are. ``cut``: no network.

    ``listed`` and ``departing``: the newest list that was accepted.
    ``launcher_dies: it will, so that what it saves matters; ``save_s``: how long that takes.
    """

    def __init__(self, options: ShortOptions | None = None, *, launcher_dies: bool = True) -> None:
        self.sim, self.options = Sim(), options or ShortOptions()
        self.launcher_dies = launcher_dies
        self.journal = io.StringIO()
        self.cut: set[str] = set()
        self.boot_s: dict[str, float | None] = {}
        self.late_s: dict[str, float] = {}
        self.save_s = 0.02
        self.listed = HostSet()
        self.departing: dict[str, float | None] = {}
        self.agents: dict[str, Agent] = {}
        self.launcher: Launcher | None = None
        self.oracle = Oracle(self)
        self.training = Training(self.sim, self.oracle, self.cut)
        self.helpers = Helpers(self)
        self._lives = 0
        self.recorder: Recorder | None = None
        """Writes down all that launchers are told."""
        self._saved = Saved()
        self._incarnation = 0

    # --- time

    def run(self, until: float) -> None:
        """Let time pass until then, or until the job is over."""
        sim = self.sim
        while sim.now < until:
            launcher = self.launcher
            if launcher is not None and launcher.dirty:
                launcher.look()
            at = min(until, until if sim.next_at is None else sim.next_at)
            if launcher is not None and launcher.look_at is not None and launcher.look_at < at:
                at, launcher.dirty = launcher.look_at + 1e-6, True
            sim.happen(at)
        if self.launcher is not None and self.launcher.dirty:
            self.launcher.look()

    # --- launchers

    def start_launcher(self) -> None:
        """Start a launcher, after another one or as the first; there is one at most."""
        if self.launcher is None:
            self._incarnation += 1
            launcher = Launcher(self, self._incarnation, self._saved)
            self.launcher = launcher

    def kill_launcher(self) -> None:
        """As by ``kill -9``."""
        launcher, self.launcher = self.launcher, None
        if launcher is None:
            return
        self._saved, launcher.alive = launcher.left, False
        self.oracle.launcher_died(launcher)
        for agent in self.agents.values():
            if (line := agent.line) is not None and line.launcher is launcher:
                line.open = False
                agent.down_since = self.sim.now if agent.down_since is None else agent.down_since
                self.tell_loss(line)

    # --- messages

    def up(self, line: Line, message: Message) -> None:
        """Send a message to the launcher."""
        line.up_at = max(line.up_at, self.sim.now + LATENCY_S + self.late_s.get(line.agent.host, 0.0))
        self.sim.at(line.up_at, self._arrives_up, line, message)

    def _arrives_up(self, line: Line, message: Message) -> None:
        if line.open and (line.up or line.agent.host in self.cut):
            line.up.append(message)  # behind what is held up already: connections keep the order
        elif line.open and line.launcher.alive:
            line.launcher.hear(line, message)

    def down(self, line: Line, order: dict[str, Any]) -> None:
        """Send an order to an agent."""
        line.down_at = max(line.down_at, self.sim.now + LATENCY_S + self.late_s.get(line.agent.host, 0.0))
        self.sim.at(line.down_at, self._arrives_down, line, order)

    def _arrives_down(self, line: Line, order: dict[str, Any]) -> None:
        if not line.open or line.agent.line is not line or not line.agent.alive:
            return
        if line.down or line.agent.host in self.cut:
            line.down.append(order)
        else:
            line.agent.obey(order)

    def tell_loss(self, line: Line) -> None:
        """The other end of a connection is gone: an agent that has a network notices."""
        if line.agent.host not in self.cut:
            self.sim.later(LATENCY_S, line.agent.line_lost, line)

    def drop(self, host: str) -> None:
        """A connection breaks, with all that is on its way."""
        agent = self.agents.get(host)
        if agent is not None and (line := agent.line) is not None and line.open and host not in self.cut:
            line.open = False
            agent.down_since = self.sim.now
            self.sim.later(LATENCY_S, agent.line_lost, line)
            self.sim.later(LATENCY_S, line.launcher.lost, line, "connection reset")

    def cut_off(self, host: str) -> None:
        """A host loses its network."""
        if host in self.cut:
            return
        self.cut.add(host)
        agent = self.agents.get(host)
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
        """A host has its network again."""
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
        """What a network that was cut has held up arrives, in order."""
        if line.agent.host in self.cut:
            return
        ups, downs, line.up, line.down = line.up, line.down, [], []
        for message in ups:
            self._arrives_up(line, message)
        for order in downs:
            self._arrives_down(line, order)

    # --- agents and processes

    def new_agent(self, host: str) -> Agent:
        self._lives += 1
        agent = self.agents[host] = Agent(self, host, f"{host}-{self._lives}")
        return agent

    def agent_dies(self, agent: Agent, *, code: int = 137) -> None:
        """An agent ends, and all that it has with it."""
        if not agent.alive:
            return
        self.oracle.dies(agent)
        agent.alive = False
        del self.agents[agent.host]
        for process in list(agent.processes.values()):
            self.training.gone(process)
        if (line := agent.line) is not None and agent.host not in self.cut:
            heard_at = max(line.up_at, self.sim.now + LATENCY_S)  # behind all that it has said
            self.sim.at(heard_at, line.launcher.lost, line, "connection reset")
            self.sim.at(heard_at + LATENCY_S, line.launcher.command_ended, agent, code)

    def boots(self, process: Process) -> None:
        """A process was started."""
        boot_s = self.boot_s.get(process.agent.host, BOOT_S)
        if boot_s is not None:
            self.sim.later(boot_s, process.agent.park, process)

    def process(self, host: str, slot: int) -> Process | None:
        agent = self.agents.get(host)
        return None if agent is None else agent.processes.get(slot)

    def stop(self, process: Process) -> None:
        """As by SIGSTOP."""
        process.stopped = True

    def cont(self, process: Process) -> None:
        """As by SIGCONT. What it was told meanwhile it may have missed: its launcher tells it again."""
        process.stopped = False
        process.agent.park(process)
        self.training.look_again([process.agent.host])

    # --- hosts

    def publish(self, hosts: dict[str, int], departing: dict[str, float | None] | None = None) -> None:
        """A new list was accepted. ``departing``: in how many seconds hosts will be gone, if that is known."""
        now = self.sim.now
        self.listed = HostSet.of(hosts)
        self.departing = {host: None if in_s is None else now + in_s for host, in_s in (departing or {}).items()}
        self.oracle.listed(self.listed.names, self.departing)
        if self.launcher is not None:
            self.launcher.publish()

    def block(self, host: str, seconds: float | None) -> None:
        """By hand."""
        if (launcher := self.launcher) is not None:
            ledger = launcher.driver.job.faults.ledger
            until = None if seconds is None else self.sim.now + seconds
            self._health(launcher, ledger.block(Subject("host", host), until, ""), "blocked", host)

    def clear(self, host: str) -> None:
        """By hand: forget what is held against a host."""
        if (launcher := self.launcher) is not None:
            ledger = launcher.driver.job.faults.ledger
            faults = [fault.subject for fault in ledger.faults]
            for subject in dict.fromkeys([*ledger.records, *faults]):
                if subject.name == host:
                    ledger = ledger.cleared(subject)
            self._health(launcher, ledger, "cleared", host)

    def _health(self, launcher: Launcher, ledger: Any, event: str, host: str) -> None:
        launcher.driver.tell(HealthChanged(ledger, event, {"host": host, "reason": ""}))
