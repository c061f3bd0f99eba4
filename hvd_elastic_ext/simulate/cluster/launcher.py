"""One simulated launcher: a real driver, with simulated input and output like that of ``session.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.launcher.driver.driver import Driver
from hvd_elastic_ext.launcher.driver.events import (
    AgentEnded,
    AgentJoined,
    AgentLost,
    Expected,
    HostsChanged,
    LaunchEnded,
    LauncherPaused,
    News,
    PeersChanged,
)
from hvd_elastic_ext.launcher.folder import state_json
from hvd_elastic_ext.launcher.folder.handover import start_of, write_noted_change
from hvd_elastic_ext.launcher.folder.state_json import Saved, job_of, saved_of
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.simulate.cluster.agent import Agent, Line
from hvd_elastic_ext.simulate.cluster.processes import Message
from hvd_elastic_ext.simulate.cluster.times import LATENCY_S

if TYPE_CHECKING:
    from hvd_elastic_ext.simulate.cluster.cluster import Cluster

NO_ROUTE_S: Final = 1.0
CALM_S: Final = 120.0
"""Longest time between two looks while a world trains and nothing else happens."""
CALM_PER_HOST_S: Final = 0.35
WAITING_S: Final = 10.0
"""The same while processes start, or wait for hosts."""
MOVING_S: Final = 1.0
"""The same while a world changes, or a host cannot be reached."""
EACH_S: Final = 0.002
"""Seconds that each host adds to the last two."""
SHARE: Final = 0.8
"""Share of ``--heartbeat-timeout``: longest age of a reachable host's last message before a look."""
WHOLE_S: Final = 60.0
"""Shortest time between two heartbeats in which all hosts report their processes."""
WHOLE_PER_HOST_S: Final = 0.5
HEARTBEAT: Final = {"event": "beats", "slots": {}, "part": True}
"""A heartbeat that names no process."""


class Motion(Enum):
    """Kinds of activity in a cluster."""

    CALM = "one world trains"
    WAITING = "processes start, or wait"
    MOVING = "a world changes"


class Launcher:
    """``saved``: the state that the earlier launcher has written. ``lines``: connections by host."""

    def __init__(self, cluster: Cluster, incarnation: int, saved: Saved, *, expects: str | None = None) -> None:
        self.incarnation, self.born = incarnation, cluster.sim.now
        self.alive = True
        self.lines: dict[str, Line] = {}
        self.dirty = True
        """Whether an event has happened, so that the driver must look."""
        self._due = False
        """Whether only the time for a look has come."""
        self.look_at: float | None = self.born
        self._cluster, self._sim = cluster, cluster.sim
        self._commands: dict[str, object] = {}
        """The start command of each host's agent, or the started agent."""
        self._starting: set[str] = set()
        """Hosts whose agents are still starting."""
        self._to_save = False
        self._missed: list[Callable[[], None]] | None = None
        """Events that arrive while the launcher is stopped."""
        self.stopped_at: float | None = None
        """Time since which the launcher is stopped."""
        self.written: list[tuple[float, Saved]] = [(self.born, saved)]
        """Saved states, with the time of each."""
        self._heard_at = self._told_at = self.born
        """Time of the last heartbeats of all hosts, if heartbeats are not single messages."""
        self.looks = 0
        self.driver = self._driver(saved, expects)
        left = HostSet(saved.hosts_left)
        if left:
            self.driver.tell(Expected(tuple(left), self.born + cluster.options.orphan_grace_s))
        self._left = left
        self.publish()

    def _driver(self, saved: Saved, expects: str | None) -> Driver:
        cluster, time = self._cluster, self._sim.time
        write_noted_change(saved, journal=cluster.new_journal(), clock=time)
        helpers = cluster.chance.randrange(1 << 48)
        job = job_of(saved, cluster.options, now=time.mono(), wall=time.wall(), helper_number=helpers, expects=expects)
        recorder = cluster.recorder
        if recorder is not None:
            recorder.job_started(start_of(saved, job, wall=time.wall(), expects=expects))
        return Driver(
            job,
            self,
            journal=cluster.new_journal(),
            clock=time,
            changed=self._changed,
            recorder=recorder,
        )

    @property
    def starting(self) -> bool:
        """Whether agents are being started."""
        return bool(self._starting)

    def publish(self) -> None:
        """Give the newest host list to the driver."""
        if self._missed is not None:
            self._missed.append(self.publish)
            return
        cluster = self._cluster
        hosts = cluster.listed or self._left
        self.driver.tell(HostsChanged(hosts, {host: ("preempted", by) for host, by in cluster.departing.items()}))
        self.dirty = True

    def stop(self, seconds: float) -> None:
        """Stop the launcher, as by SIGSTOP."""
        if self._missed is None:
            self._missed, self.dirty, self.look_at = [], False, None
            self.stopped_at = self._sim.now
            self._sim.later(seconds, self._cont, self._sim.now)

    def _cont(self, since: float) -> None:
        missed, self._missed, self.stopped_at = self._missed or [], None, None
        if self.alive:
            self.driver.tell(LauncherPaused(self._sim.now - since))
            self.look()
            for act in missed:
                act()
            self.dirty = True

    def receive(self, line: Line, message: Message) -> None:
        """Receive an agent's message."""
        if self._missed is not None:
            self._missed.append(lambda: self.receive(line, message))
            return
        if not (line.open and self.alive):
            return
        agent, host = line.agent, line.agent.host
        known = self.lines.get(host) is line
        if not (known if "event" in message.news else agent.alive):
            return  # a dead agent sends no hello: both ends authenticate each other first
        for slot, commit in message.reported:
            self._cluster.observer.commit_reported(agent, slot, commit)
        if message.sealed is not None:
            self._cluster.observer.sealed(message.sealed)
        if agent.down_since is not None and host not in self._cluster.cut:
            agent.reached()
        self._cluster.observer.heard(agent, message.news)
        if message.news.get("event") == "exited":
            self._cluster.observer.end_received(agent, message.news["slot"])
        if "event" in message.news:
            self.driver.tell(News(host, message.news))
            self.dirty = self.dirty or message.news["event"] != "beats"
            return
        if (before := self.lines.get(host)) is not None:
            before.open = False
            self._cluster.tell_loss(before)
            self.driver.tell(AgentLost(host, "it came again"))
        self.lines[host] = line
        self.driver.tell(AgentJoined(host, message.news))
        self.driver.tell(PeersChanged(host))
        self.dirty = True

    def look(self) -> None:
        """Let the driver look."""
        due, self.dirty, self._due = self._due, False, False
        if self._missed is not None:
            return
        self.looks += 1
        if self._cluster.times.every_step:
            self.look_at = self.driver.look()
        else:
            self._receive_heartbeats(whole=due)
            self._look_ahead()
        if self._to_save:
            self._to_save = False
            self._save()

    def due(self) -> None:
        """Note that the time has come at which a planner wants a look."""
        self.dirty = self._due = True

    def _look_ahead(self) -> None:
        """Plan the next look: at the time that a planner wants, or after a pause in which calm jobs miss nothing."""
        at = self.driver.look(longest_s=math.inf)
        motion = self._cluster.motion()
        every = self.driver.job.options.durability
        steps = None if every is None else every.every.steps
        calm_s = CALM_S + CALM_PER_HOST_S * len(self.lines)
        calm_s = calm_s if steps is None else min(calm_s, max(1.0, steps * self._cluster.times.step_s / 4))
        each_s = EACH_S * len(self.lines)
        pause_s = {Motion.CALM: calm_s, Motion.WAITING: WAITING_S + each_s, Motion.MOVING: MOVING_S + each_s}[motion]
        self.look_at = None if at is None else min(at, self._sim.now + pause_s)

    def _receive_heartbeats(self, *, whole: bool) -> None:
        """Receive heartbeats of all reachable hosts. ``whole``: with reports on their processes."""
        now, timeout_s = self._sim.now, self.driver.job.options.heartbeat_timeout_s
        for world in self._cluster.training.worlds:
            if world.phase == "training" and world.members:
                self.receive_heartbeat(world.members[0].agent)  # the number of steps done by now
        whole = whole and now - self._told_at >= max(WHOLE_S, WHOLE_PER_HOST_S * len(self.lines))
        if not whole and now - self._heard_at < timeout_s * SHARE / 2:
            return
        self._heard_at, agents = now, self.driver.job.roster.agents
        self._told_at = now if whole else self._told_at
        latest = now - timeout_s * SHARE / 2
        if whole:
            for line in list(self.lines.values()):
                self.receive_heartbeat(line.agent)
            return
        for host, line in self.lines.items() if self._missed is None else ():
            early = host in agents and agents[host].last_message_at <= latest
            if early and line.agent.alive and host not in self._cluster.cut:
                self.driver.tell(News(host, HEARTBEAT))

    def receive_heartbeat(self, agent: Agent) -> None:
        """Receive an agent's heartbeat now, if heartbeats are not single messages."""
        if self._reaches(agent) and not self._cluster.times.every_step:
            self.receive(self.lines[agent.host], agent.beats())

    def _reaches(self, agent: Agent) -> bool:
        line = self.lines.get(agent.host)
        return line is not None and line.agent is agent and agent.alive and agent.host not in self._cluster.cut

    def lost(self, line: Line, reason: str) -> None:
        """Notice a broken connection."""
        if self._missed is not None:
            self._missed.append(lambda: self.lost(line, reason))
            return
        if self.alive and self.lines.get(line.agent.host) is line:
            line.open = False
            del self.lines[line.agent.host]
            self.driver.tell(AgentLost(line.agent.host, reason))
            self.dirty = True

    def command_ended(self, agent: Agent, code: int) -> None:
        """Notice the end of an agent that this launcher started."""
        if self._missed is not None:
            self._missed.append(lambda: self.command_ended(agent, code))
            return
        if self.alive and self._commands.get(agent.host) is agent:
            del self._commands[agent.host]
            self.driver.tell(LaunchEnded(agent.host, code, ""))
            self.dirty = True

    # --- what the next launcher needs

    def _changed(self) -> None:
        self._to_save = True
        self.dirty = self.dirty or self._cluster.launcher_dies  # the next look saves it

    def _save(self) -> None:
        if not self._cluster.launcher_dies:
            return
        time = self._sim.time
        saved = saved_of(self.driver.job, incarnation=self.incarnation, ports={}, wall=time.wall(), run=None)
        self.written.append((time.mono() + self._cluster.save_s, saved))

    @property
    def left(self) -> Saved:
        """Return the saved state in its folder."""
        newest = [saved for at, saved in self.written if at <= self._sim.now][-1]
        return state_json.from_text(state_json.to_text(newest))

    # --- what the executor acts through

    def start_agent(self, host: Host) -> None:
        token = self._commands[host.name] = object()
        self._starting.add(host.name)
        self._sim.later(self._cluster.start_s(host.name), self._start, host.name, token)

    def _start(self, host: str, token: object) -> None:
        cluster = self._cluster
        if not self.alive or self._commands.get(host) is not token:
            return
        agent = cluster.agents.get(host)
        if not cluster.reaches(host) or host in cluster.absent:
            self._sim.later(NO_ROUTE_S, self._not_started, host, token)
        elif agent is None:
            agent = self._commands[host] = cluster.new_agent(host)
            self._starting.discard(host)
            agent.connect()
        elif agent.finishing:
            self._sim.later(self._cluster.start_s(host), self._start, host, token)
        else:
            agent.connect()
            self.stop_launch(host)
            self.driver.tell(LaunchEnded(host, 0, "adopted"))
            self.dirty = True

    def _not_started(self, host: str, token: object) -> None:
        if self.alive and self._commands.get(host) is token:
            self.stop_launch(host)
            self.driver.tell(LaunchEnded(host, 255, self._cluster.ssh_says))
            self.dirty = True

    def send(self, host: str, order: Mapping[str, Any]) -> bool:
        line = self.lines.get(host)
        if not self.alive or line is None:
            return False
        for each in order["orders"] if order["do"] == "all" else (order,):
            self._notes(line, each)
        self._cluster.down(line, order)
        return True

    def _notes(self, line: Line, order: Mapping[str, Any]) -> None:
        match order["do"]:
            case "answer":
                self._cluster.observer.ranks_sent(self)
            case "tell" if order["message"]["tell"] == "go":
                self._cluster.observer.called(line.agent, order["to"])
            case "kill":
                self._cluster.observer.kill_sent(line.agent, order["slot"])
            case "finish" | "forget":
                self._cluster.observer.released(line.agent, order.get("slot"))

    def stop_launch(self, host: str) -> None:
        self._commands.pop(host, None)
        self._starting.discard(host)

    def hang_up(self, host: str, reason: str) -> None:
        line = self.lines.pop(host, None)
        if line is not None:
            line.open = False
            self._sim.later(LATENCY_S, self._hung_up, host, reason)
            self._cluster.tell_loss(line)

    def _hung_up(self, host: str, reason: str) -> None:
        if self.alive and host not in self.lines:
            self.driver.tell(AgentLost(host, reason))
            self.dirty = True

    def end_agent(self, host: Host) -> None:
        self._sim.later(self._cluster.times.agent_s, self._end_agent, host.name)

    def _end_agent(self, host: str) -> None:
        if not self.alive:
            return
        reached = self._cluster.reaches(host)
        if reached and (agent := self._cluster.agents.get(host)) is not None:
            self._cluster.agent_dies(agent, code=0)
        self.driver.tell(AgentEnded(host, 0 if reached else 255, "" if reached else self._cluster.ssh_says))
        self.dirty = True

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def start_order(self, seat: Seat, place: Place) -> dict[str, Any]:
        return {"env": {}}

    def peer_address(self, host: str) -> str:
        return f"address-of-{host}"

    def go_env(self, host: str) -> dict[str, str]:
        return {}

    def scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        """Request a number of hosts from the host supply."""
        if self._cluster.scales is not None:
            self._sim.later(LATENCY_S, self._cluster.scales, self, hosts, tuple(leaving))

    def begin_world(self, generation: int, hosts: Sequence[str]) -> None:
        """Do nothing: the simulated engine starts no program."""

    def unfit(self, host: Host) -> str | None:
        return None
