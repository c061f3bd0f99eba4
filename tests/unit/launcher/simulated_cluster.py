"""The simulated cluster as tests of the launcher use it: agents, messages and helpers that fail when a test says so.

It is that of ``hvd_elastic_ext/simulate/cluster``, with a launcher that runs from the beginning. Every order has the
effect that docs/agent.md describes. Time passes only in :meth:`Cluster.run` and similar methods.
"""

from __future__ import annotations

import functools
import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, make_dataclass
from types import MappingProxyType
from typing import Any, Final

from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.launcher.checkpoints.schedule import Durability, parse_checkpoint_every
from hvd_elastic_ext.launcher.custody.holders import NotedCommit
from hvd_elastic_ext.launcher.driver import options
from hvd_elastic_ext.launcher.driver.driver import Driver
from hvd_elastic_ext.launcher.driver.events import HostsChanged, LauncherPaused
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.folder.state_json import Saved
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from hvd_elastic_ext.simulate.cluster import agent, cluster, helpers, launcher
from hvd_elastic_ext.simulate.cluster.agent import Line
from hvd_elastic_ext.simulate.cluster.observer import Observer
from hvd_elastic_ext.simulate.cluster.processes import Commit, Message
from hvd_elastic_ext.simulate.cluster.times import AGAIN_S, LATENCY_S, RESEND_S, Times
from tests.unit.launcher.simulated_processes import Process, Training

TIMES: Final = Times(
    agent_s=0.3,
    boot_s=3.0,
    ends_s=0.0,
    transfer_s=0.1,
    write_s=0.0,
    seal_s=0.0,
    load_s=0.0,
    every_step=True,
)
USUAL: Final[Mapping[str, Any]] = {"limits": WorldLimits(settle_s=0.1)}
"""Values of options without a default."""
JobOptions: Any = make_dataclass(
    "JobOptions", [(each.name, Any, USUAL.get(each.name, each.default)) for each in fields(options.JobOptions)]
)
"""The same fields as the product's, but a test may change them while its job runs."""


def storing(every: str, **options: Any) -> JobOptions:
    """Return options with checkpoints at this interval, as on the command line."""
    return JobOptions(durability=Durability("/store", parse_checkpoint_every(every), mark="this"), **options)


class Kept(dict[tuple[int, ...], Commit]):
    """Commits that are kept, by lineage, incarnation, generation and number: there is one after each step."""

    def __missing__(self, name: tuple[int, ...]) -> Commit:
        lineage, incarnation, generation, number = name
        return Commit(incarnation, generation, number, number, lineage)


class Helpers(helpers.Helpers):
    """``asked``: every request for a checkpoint, with its host. ``transferred``: every commit that was sent: source
    host, target host and step; ``pasts_sent``: the same for results of calls, with their number. ``dropped``: hosts
    that were told to drop helpers.

    ``takes_s``: duration of each kind of helper; ``held_s``: additional time by host. ``answers``: by host and kind,
    the answer in place of the usual one; an exit code: the helper's process fails. Helpers of ``silent`` hosts never
    answer.
    """

    def __init__(self, whole: cluster.Cluster) -> None:
        super().__init__(whole)
        self.kept = Kept()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.past_requests: list[dict[str, Any]] = []
        self.transferred: list[tuple[str, str, int]] = []
        self.pasts_sent: list[tuple[str, str, int]] = []
        self.dropped: list[str] = []
        self.takes_s = {"write": 0.5, "seal": 0.1, "load": 0.5, "held": 0.2, "verify": 0.3}
        self.held_s: dict[str, float] = {}
        self.answers: dict[tuple[str, str], dict[str, Any] | int] = {}
        self.silent: set[str] = set()

    def of(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        """Return every request of a kind, with its host."""
        return [(host, request) for host, request in self.asked if request["do"] == kind]

    def begin(self, agent: agent.Agent, order: Mapping[str, Any]) -> None:
        kind = order["request"]["do"]
        if kind.endswith("_past"):
            self.past_requests.append(dict(order["request"]))
        elif kind in self.takes_s:
            self.asked.append((agent.host, dict(order["request"])))
        super().begin(agent, order)

    def starts_s(self, agent: agent.Agent, request: Mapping[str, Any]) -> float:
        kind = request["do"]
        return self.takes_s[kind] + self.held_s.get(agent.host, 0.0) if kind in self.takes_s else 0.0

    def program(self, agent: agent.Agent, request: Mapping[str, Any]) -> Callable[..., None]:
        answer = self.answers.get((agent.host, request["do"]))
        if agent.host in self.silent:
            return lambda *_: None
        usual = super().program(agent, request)
        return usual if answer is None else functools.partial(self.answer, answer)

    def answer(self, answer: dict[str, Any] | int, agent: agent.Agent, number: int, _: Mapping[str, Any]) -> None:
        """A helper gives this answer, and ends."""
        if not agent.alive or agent.helpers.pop(number, None) is None:
            return
        if isinstance(answer, int):
            agent.helper_ended(number, "Traceback\nOSError: no room")
        else:
            agent.answer(number, answer)
            agent.helper_ended(number)

    def drop(self, agent: agent.Agent, slots: list[int]) -> None:
        self.dropped.append(agent.host)
        super().drop(agent, slots)

    def path(self, request: Mapping[str, Any], commit: Commit) -> str:
        return "/store/x"

    def _arrives(
        self, agent: agent.Agent, number: int, request: Mapping[str, Any], sender: agent.Agent, offered: int, of: int
    ) -> None:
        before = agent.memory.get(request["slot"])
        super()._arrives(agent, number, request, sender, offered, of)
        if (held := agent.memory.get(request["slot"])) is not None and held is not before:
            self.transferred.append((sender.host, agent.host, held.batch))

    def _past_arrives(
        self, agent: agent.Agent, number: int, request: Mapping[str, Any], sender: agent.Agent, offered: int, of: int
    ) -> None:
        whole = number in agent.helpers
        super()._past_arrives(agent, number, request, sender, offered, of)
        if whole and len(agent.pasts.get(request["slot"], ())) >= request["results"]:
            self.pasts_sent.append((sender.host, agent.host, len(sender.pasts[of])))


class Agent(agent.Agent):
    """``again_s``: how old messages are at most that it repeats in its next connection."""

    _cluster: Cluster
    again_s = RESEND_S + AGAIN_S
    _cleared = False

    def beats(self) -> Message:
        training, now, slots = self._cluster.training, self._sim.now, {}
        for process in self.processes.values():
            if not process.stopped:
                process.sampled_at = now
                training.trains(process)
            if process.state != "booting" or self.host not in self._cluster.dumb:
                beat = training.beat_of(process)
                slots[str(process.slot)] = {"life": process.life, "age": now - process.sampled_at, "beat": beat}
        return Message({"event": "beats", "slots": slots})

    def connect(self, pause: float = AGAIN_S) -> None:
        if self.host not in self._cluster.apart:
            super().connect(pause)

    def ended(self, process: Process, code: int) -> None:
        if self.host not in self._cluster.undying:
            super().ended(process, code)

    def _recently_sent(self) -> list[Message]:
        return [message for at, message in self._recent if at >= self._sim.now - self.again_s]

    def _start(self, order: Mapping[str, Any]) -> None:
        why = self._cluster.unstartable.get(self.host)
        if why is None:
            super()._start(order)
        else:
            self._tell("not_started", Process(self, order["slot"], order["life"], 0), reason=why)

    def _forget(self, slot: int) -> None:
        self._cluster.forgotten.append((self.host, slot))
        super()._forget(slot)

    def _status(self, slot: int) -> dict[str, Any]:
        found = super()._status(slot)
        running = self.processes.get(slot)
        process = self._ended[slot][0] if running is None and slot in self._ended else running
        if process is None:
            return found
        found |= {"pid": self._cluster.pid, "loops": self._cluster.training.has_loop(process), "warned": process.warned}
        if running is None:
            held = self.memory.get(slot)
            found["beat"] = {"step": process.batch} | ({} if held is None else {"commit": held.name})
        return found

    def _see_out(self) -> None:
        if self._cluster.clears_s and not self._cleared:
            self._cleared = True
            self._sim.later(self._cluster.clears_s, self._see_out)
        else:
            super()._see_out()


class Launcher(launcher.Launcher):
    _cluster: Cluster

    def publish(self) -> None:
        """Do nothing: a test publishes hosts."""

    def start_order(self, seat: Seat, place: Place) -> dict[str, Any]:
        return {"env": {"HVD_ELASTIC_PLAN": place.text()}}

    def scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        self._cluster.scaled.append((hosts, tuple(leaving)))

    @property
    def environment(self) -> Mapping[str, str]:
        return self._cluster.environment

    def begin_world(self, generation: int, hosts: Sequence[str]) -> None:
        self._cluster.begun.append((generation, list(hosts)))

    def unfit(self, host: Host) -> str | None:
        return self._cluster.misfits.get(host.name)

    def _start(self, host: str, token: object) -> None:
        agent = self._cluster.agents.get(host)
        if agent is None or host not in self._cluster.cut - self._cluster.dead:
            super()._start(host, token)
        else:
            agent.connect()  # once its network works

    def hang_up(self, host: str, reason: str) -> None:
        self._cluster.hung_up += 1
        super().hang_up(host, reason)


class Cluster(cluster.Cluster):
    """``join_s``: by host, the seconds until its agent connects. ``dead`` hosts cannot be reached; ``cut`` hosts have
    lost their network. Agents of hosts that are ``apart`` do not connect.

    Orders to ``deaf`` hosts are accepted and never arrive, as over a connection that is broken without notice. Messages
    of ``mute`` hosts are never read, except heartbeats. Processes of ``undying`` hosts never end. Processes of ``dumb``
    hosts send no heartbeat while they start. ``unstartable``: by host, why the command cannot be started. ``misfits``:
    by host, why it does not fit. ``lose_news``: by kind of message of agents, how many of the next ones are lost.
    ``forgotten``: slots whose memory was given back. ``begun``: generation and hosts of each world that began.
    ``scaled``: requests for hosts: the number, and the hosts that may go. ``pid``: what agents report for processes.
    """

    agent_kind, launcher_kind, helpers_kind = Agent, Launcher, Helpers
    training_kind = Training
    training: Training
    helpers: Helpers
    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        options: JobOptions | None = None,
        *,
        training: Callable[..., Training] | None = None,
        expects: str | None = None,
        commits: Iterable[NotedCommit] = (),
    ) -> None:
        if training is not None:
            self.training_kind = training
        super().__init__(options or JobOptions(), TIMES, Observer(), seed=secrets.randbits(64))
        self.training.cluster = self
        self.clock, self.later = self.sim.time, self.sim.later
        self._read = 0
        self._entries: list[dict[str, Any]] = []
        self.scaled: list[tuple[int, tuple[str, ...]]] = []
        self.begun: list[tuple[int, list[str]]] = []
        self.forgotten: list[tuple[str, int]] = []
        self.join_s: dict[str, float] = {}
        self.clears_s = 0.0
        self.dead: set[str] = set()
        self.deaf: set[str] = set()
        self.mute: set[str] = set()
        self.dumb: set[str] = set()
        self.apart: set[str] = set()
        self.undying: set[str] = set()
        self.misfits: dict[str, str] = {}
        self.unstartable: dict[str, str] = {}
        self.lose_news: Counter[str] = Counter()
        self.hung_up = 0
        self.pid: int | None = 1
        self.next_session(Saved(commits=tuple(commits)), expects=expects)

    # --- time

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end, again_at = self.sim.now + seconds, self.driver.look()
        while self.sim.now < end:
            again_at = self._go_on(again_at, end)

    def _go_on(self, again_at: float | None, end: float) -> float | None:
        """Go to the next event, the next look, or ``end``. Return when to look then."""
        at = min((at for at in (again_at, self.sim.next_at) if at is not None), default=end)
        self.sim.happen(end if at >= end else max(self.sim.now, at) + 1e-6)  # everything takes some time
        return self.driver.look()

    def until(self, condition: Callable[[], object], *, within: float = 60.0) -> float:
        """Let time pass until ``condition`` is true. Return the seconds that it took."""
        begun, again_at = self.sim.now, self.driver.look()
        while not condition():
            assert self.sim.now < begun + within, f"not within {within} s\n{self.journal.getvalue()}"
            again_at = self._go_on(again_at, begun + within)
        return self.sim.now - begun

    def standstill(self, seconds: float) -> None:
        """Let time pass for all but the launcher."""
        self.clock.now += seconds
        self.driver.tell(LauncherPaused(seconds))

    # --- the launcher

    @property
    def driver(self) -> Driver:
        assert self.launcher is not None
        return self.launcher.driver

    def hosts(self, **slots: int) -> None:
        """Publish a list of hosts."""
        self.publish(HostSet.of(slots))

    def publish(self, hosts: HostSet, departing: Mapping[str, tuple[str, float | None]] | None = None) -> None:
        self.driver.tell(HostsChanged(hosts, departing or {}))

    def ask(self, planner: Callable[[JobState], object]) -> None:
        """Call one planner, or another function of the state, and do the actions that it requests."""
        job = self.driver.job
        job.now = self.clock.mono()
        planner(job)
        self.driver.executor.do(job.take_actions())

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the journal lines of an event. An unknown name is an error, because it would never match."""
        assert name in EVENTS, name
        text = self.journal.getvalue()
        for line in text[self._read :].splitlines():
            entry = json.loads(line)
            unknown = entry.keys() - _fields(entry["event"])
            assert not unknown, f"core/events.py does not tell of {unknown} in {entry['event']}"
            self._entries.append(entry)
        self._read = len(text)
        return [entry for entry in self._entries if entry["event"] == name]

    # --- processes

    @property
    def members(self) -> list[Process]:
        """The processes in the world, by rank."""
        return self.training.members

    @property
    def world(self) -> list[str]:
        """The host of each rank."""
        return [process.host for process in self.members]

    def say(self, process: Process, what: str, **more: Any) -> None:
        process.agent.report(process, what, **more)

    def first(self, host: str) -> Process:
        """The process in a host's first slot that has one."""
        return min(self.agents[host].processes.items())[1]

    def kill(self, host: str, slot: int = 0, *, code: int = 137) -> None:
        """End a process, as by ``kill -9``."""
        self.training.ends(self.agents[host].processes[slot], code)

    def fail(self, host: str, error: str) -> None:
        """Let the training script of a host's first process raise an error."""
        process = self.first(host)
        self.say(process, "failed", digest=error, error=error, traceback="")
        self.training.ends(process, 1)

    def lose_world(self, host: str) -> None:
        """The processes of a host lose their connections to the others of their world."""
        for process in self.members:
            if process.host == host:
                self.training.loses(process)

    def inherit(self, *hosts: str, generation: int = 7) -> None:
        """A world of an earlier launcher trains on these hosts."""
        for rank, name in enumerate(hosts):
            agent = self.new_agent(name)
            process = Process(agent, 0, 4, 0, "training", generation, generation, rank=rank, sampled_at=self.sim.now)
            agent.processes[0] = process

    # --- agents

    @property
    def finishing(self) -> set[str]:
        """Hosts whose agents are about to end."""
        return {host for host, agent in self.agents.items() if agent.finishing}

    def agent_dies(self, agent: Agent, *, code: int = 137) -> None:
        self.apart.discard(agent.host)
        super().agent_dies(agent, code=code)

    def lose_agent(self, host: str) -> None:
        """An agent ends with all its knowledge, and so does its command."""
        self.agent_dies(self.agents[host])

    def vanish(self, host: str) -> None:
        """A machine and all that it runs are gone, and nobody is told."""
        self.agents.pop(host).alive = False

    def write_notice(self, host: str, reason: str, in_s: float | None = None) -> None:
        """Write into an agent's notice file that its host is about to go; an empty reason withdraws the notice."""
        if reason:
            self.agents[host].announce(in_s, reason)
        else:
            self.agents[host].recall()

    def disconnect(self, host: str) -> None:
        """Break an agent's connection, with all messages in transit: it does not connect again by itself."""
        self.apart.add(host)
        if (line := self.agents[host].line) is not None:
            line.open = False
            line.agent.line_lost(line)
            line.launcher.lost(line, "the connection was reset")

    def reconnect(self, host: str, *, again_s: float = RESEND_S + AGAIN_S) -> None:
        """An agent connects again, and repeats its messages of the last ``again_s`` seconds."""
        for hosts in (self.apart, self.deaf, self.mute):
            hosts.discard(host)
        self.agents[host].again_s = again_s
        self.agents[host].connect()

    def join(self, host: str) -> None:
        """An agent that nobody has started connects."""
        (self.agents.get(host) or self.new_agent(host)).connect()

    # --- messages and commands

    def start_s(self, host: str) -> float:
        return self.join_s.get(host, self.times.agent_s)

    def reaches(self, host: str) -> bool:
        return host not in self.dead

    def up(self, line: Line, message: Message) -> None:
        if line.agent.host in self.cut:
            return
        if message.news.get("event") == "beats":
            self._arrives_up(line, message)  # at once: what is seen at a moment is known then
        else:
            super().up(line, message)

    def _arrives_up(self, line: Line, message: Message) -> None:
        event = message.news.get("event")
        if line.agent.host in self.mute and event not in (None, "beats"):
            return
        if self.lose_news[event]:
            self.lose_news[event] -= 1
            return
        super()._arrives_up(line, message)

    def down(self, line: Line, order: Mapping[str, Any]) -> None:
        for each in order["orders"] if order["do"] == "all" else (order,):
            self.ordered(line.agent.host, each)
        if line.agent.host not in self.cut | self.deaf:
            super().down(line, order)

    def ordered(self, host: str, order: Mapping[str, Any]) -> None:
        """A launcher has sent an order to a host."""

    def tell_loss(self, line: Line) -> None:
        if line.agent.host in self.cut:
            self.later(1.0, self.tell_loss, line)  # it notices this once it has its network again
        else:
            self.later(LATENCY_S, line.agent.line_lost, line)


@functools.cache
def _fields(event: str) -> frozenset[str]:
    return frozenset({"t", "mono", "generation", "event", *re.findall(r"\w+", EVENTS[event].fields)})
