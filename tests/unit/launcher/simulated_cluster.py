"""A cluster in memory: agents and processes as the driver knows them, with a manual clock.

Every order has the effect that docs/agent.md describes. Time passes only in :meth:`Cluster.run` and similar methods.
"""

from __future__ import annotations

import functools
import io
import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, make_dataclass
from typing import Any, Final

from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.launcher.checkpoints.schedule import Durability, parse_checkpoint_every
from hvd_elastic_ext.launcher.custody.holders import NotedCommit
from hvd_elastic_ext.launcher.driver import options
from hvd_elastic_ext.launcher.driver.driver import Driver
from hvd_elastic_ext.launcher.driver.events import (
    AgentEnded,
    AgentJoined,
    AgentLost,
    HostsChanged,
    LaunchEnded,
    LauncherPaused,
    News,
)
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health.ledger import HealthLedger
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.world_change import WorldLimits
from tests.unit.launcher.simulated_helpers import Helpers
from tests.unit.launcher.simulated_processes import Process

GRACE_S: Final = 5.0
"""Grace period in seconds of an agent that gets a signal."""
USUAL: Final[Mapping[str, Any]] = {"limits": WorldLimits(settle_s=0.1)}
"""Values of options without a default."""
JobOptions: Any = make_dataclass(
    "JobOptions", [(each.name, Any, USUAL.get(each.name, each.default)) for each in fields(options.JobOptions)]
)
"""The same fields as the product's, but a test may change them while its job runs."""


def storing(every: str, **options: Any) -> JobOptions:
    """Return options with checkpoints at this interval, as on the command line."""
    return JobOptions(durability=Durability("/store", parse_checkpoint_every(every), mark="this"), **options)


class Cluster(Helpers):
    """``boot_s`` and ``join_s``: by host name. ``dead`` hosts cannot be reached; ``cut`` hosts have lost their network.

    Orders to ``deaf`` hosts are accepted and never arrive, as over a connection that is broken without notice. Messages
    of ``mute`` hosts are never read. Processes of ``undying`` hosts never end. ``unstartable``: by host, why the
    command cannot be started. ``sealed``: the commit that all processes report when they ask for a rank. ``lose``: by
    kind of message ("update", for example), how many of the first ones are lost. ``told`` counts all of them.
    ``lose_news``: the same for messages of agents. Processes of ``dumb`` hosts send no heartbeat while they start.
    """

    def __init__(
        self,
        options: JobOptions | None = None,
        *,
        ledger: HealthLedger | None = None,
        expects: str | None = None,
        commits: Iterable[NotedCommit] = (),
    ) -> None:
        super().__init__()
        self.lines = io.StringIO()
        self._read = 0
        self._entries: list[dict[str, Any]] = []
        self.options = options or JobOptions()
        self.scaled: list[tuple[int, tuple[str, ...]]] = []
        """Requests for hosts: the number, and the hosts that may go."""
        self.boot_s: dict[str, float] = {}
        self.dead: set[str] = set()
        self.ssh_says = "no route to host"
        self.misfits: dict[str, str] = {}
        self.lose: Counter[str] = Counter()
        self.hung_up = 0
        self.pid: int | None = 1
        """The pid that agents report for every process."""
        self._notices: dict[str, float] = {}
        self._going: dict[str, dict[str, Any]] = {}
        self._dismissed: set[str] = set()
        self.told: Counter[str] = Counter()
        self.deaf: set[str] = set()
        self.finishing: set[str] = set()
        self.unstartable: dict[str, str] = {}
        self.ends_s: dict[str, float] = {}
        self.clears_s = 0.0
        self.join_s: dict[str, float] = {}
        self._connections: Counter[str] = Counter()
        job = JobState.new(
            self.options,
            self.clock.mono(),
            helper_number=secrets.randbelow(1 << 48),
            ledger=ledger,
            expects=expects,
            commits=commits,
        )
        self.driver = Driver(job, self, journal=Journal(self.lines, self.clock), clock=self.clock)

    # --- for tests

    def hosts(self, **slots: int) -> None:
        """Publish a list of hosts."""
        self.publish(HostSet.of(slots))

    def publish(self, hosts: HostSet, departing: Mapping[str, tuple[str, float | None]] | None = None) -> None:
        self.driver.tell(HostsChanged(hosts, departing or {}))

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

    def standstill(self, seconds: float) -> None:
        """Let time pass for all but the launcher."""
        self.clock.now += seconds
        self.driver.tell(LauncherPaused(seconds))

    def ask(self, planner: Callable[[JobState], object]) -> None:
        """Call one planner, or another function of the state, and do the actions that it requests."""
        job = self.driver.job
        job.now = self.clock.mono()
        planner(job)
        self.driver.executor.do(job.take_actions())

    def until(self, condition: Callable[[], object], *, within: float = 60.0) -> float:
        """Let time pass until ``condition`` is true. Return the seconds that it took."""
        begun, again_at = self.sim.now, self.driver.look()
        while not condition():
            assert self.sim.now < begun + within, f"not within {within} s\n{self.lines.getvalue()}"
            again_at = self._go_on(again_at, begun + within)
        return self.sim.now - begun

    def kill(self, host: str, slot: int = 0, *, code: int = 137) -> None:
        """End a process, as by ``kill -9``."""
        process = self.agents[host][slot]
        self._end(process, code)

    def fail(self, host: str, error: str) -> None:
        """Let the training script of a host's first process raise an error."""
        process = self.agents[host][min(self.agents[host])]
        self.say(process, "failed", digest=error, error=error, traceback="")
        self._end(process, 1)

    def stop(self, host: str, slot: int = 0) -> None:
        self.agents[host][slot].stopped = True

    def lose_world(self, host: str) -> None:
        """The processes of a host lose their connections to the others of their world."""
        for process in self.training:
            if process.host == host:
                self._lose(process)

    def lose_agent(self, host: str, *, lost_first: bool = True) -> None:
        """An agent ends with all its knowledge, and so does its command. ``lost_first``: which of the two is read
        first."""
        self._connections[host] += 1
        del self.agents[host]
        self._forget(host)
        ends = (AgentLost(host, "connection reset"), LaunchEnded(host, 137, ""))
        for end in ends if lost_first else reversed(ends):
            self.driver.tell(end)

    def _forget(self, host: str) -> None:
        """Delete what an agent knew, and its memory."""
        self._ended = {seat: process for seat, process in self._ended.items() if seat[0] != host}
        self.memory = {seat: held for seat, held in self.memory.items() if seat[0] != host}
        self.pasts = {seat: held for seat, held in self.pasts.items() if seat[0] != host}

    def terminate(self, host: str) -> None:
        """Send SIGTERM to an agent: it gives notice, starts no process any more, and ends after its processes."""
        grace_s = GRACE_S if self.agents[host] else 0.0
        self.finishing.add(host)
        self._notices[host] = self.clock.mono() + grace_s
        notice = {"event": "notice", "reason": "SIGTERM", "grace_s": grace_s}
        if host not in self._kept:
            self.later(0.001, self._arrive, host, notice)
        self._see_out(host)

    def write_notice(self, host: str, reason: str, in_s: float | None = None) -> None:
        """Write into an agent's notice file that its host is about to go; an empty reason withdraws the notice."""
        going = {"reason": reason, "in_s": in_s} if reason else {}
        self._going[host] = going
        if host not in self._kept:
            self.later(0.001, self._arrive, host, {"event": "going", **going} if going else {"event": "staying"})

    def _see_out(self, host: str) -> None:
        late = self.clock.mono() >= self._notices[host]
        if late:
            for process in list(self.agents[host].values()):
                self._end(process, 143)
        needed = not late and host not in self._dismissed and any(seat[0] == host for seat in self.memory)
        if self.agents[host] or needed:
            self.later(0.05, self._see_out, host)
        else:
            self.later(0.01, self._finish, host)

    def inherit(self, *hosts: str, generation: int = 7) -> None:
        """A world of an earlier launcher trains on these hosts."""
        for rank, name in enumerate(hosts):
            process = Process(name, 0, 4, "training", rank, generation, agreed=generation, beat_at=self.clock.mono())
            self.agents[name] = {0: process}

    def disconnect(self, host: str) -> None:
        """Break an agent's connection: orders on their way are lost, and its messages are kept."""
        self._connections[host] += 1
        self._kept[host] = []
        self.driver.tell(AgentLost(host, "the connection was reset"))

    def reconnect(self, host: str, *, again_s: float = 0.0) -> None:
        """An agent connects again, and repeats its messages of the last ``again_s`` seconds before the break."""
        self.deaf.discard(host)
        self.mute.discard(host)
        kept, now = self._kept.pop(host), self.clock.mono()
        again = [news for at, news in self._said_lately.get(host, []) if now - at <= again_s]
        self.driver.tell(AgentJoined(host, self._hello(host)))
        for news in [*again, *(news for news in kept if news["event"] not in ("asked", "unasked"))]:
            self.driver.tell(News(host, news))
        for process in self.agents[host].values():
            if process.asked is not None:
                self._ask_again(process)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the journal lines of an event. An unknown name is an error, because it would never match."""
        assert name in EVENTS, name
        text = self.lines.getvalue()
        for line in text[self._read :].splitlines():
            entry = json.loads(line)
            unknown = entry.keys() - _fields(entry["event"])
            assert not unknown, f"core/events.py does not tell of {unknown} in {entry['event']}"
            self._entries.append(entry)
        self._read = len(text)
        return [entry for entry in self._entries if entry["event"] == name]

    # --- the executor's backend

    def start_agent(self, host: Host) -> None:
        if host.name in self.dead:
            self.later(1.0, self.driver.tell, LaunchEnded(host.name, 255, self.ssh_says))
            return
        self.later(self.join_s.get(host.name, 0.3), self.join, host.name)

    def hang_up(self, host: str, reason: str) -> None:
        """Close the connection. The agent connects again once its network works."""
        self.hung_up += 1
        if host in self.agents and host not in self._kept and host not in self.finishing:
            self._connections[host] += 1
            self._kept[host] = []
            self.later(0.001, self.driver.tell, AgentLost(host, reason))
            self.later(0.2, self._come_again, host)

    def _come_again(self, host: str) -> None:
        if host in self.cut:
            self.later(1.0, self._come_again, host)
        elif host in self._kept:
            self.reconnect(host)

    def join(self, name: str) -> None:
        """An agent connects."""
        if name in self._kept:
            self._come_again(name)
            return
        fresh = name not in self._beating
        self._beating.add(name)
        self.agents.setdefault(name, {})
        self.driver.tell(AgentJoined(name, self._hello(name)))
        if fresh:
            self.later(1.0, self._beat, name)
            for process in self.agents[name].values():
                if process.asked is not None:
                    self._ask_again(process)

    def _hello(self, name: str) -> dict[str, Any]:
        left_s = max(0.0, self._notices.get(name, 0.0) - self.clock.mono())
        notice = {"notice": {"reason": "SIGTERM", "grace_s": left_s}} if name in self._notices else {}
        going = {"going": self._going[name]} if self._going.get(name) else {}
        agent = str(id(self.agents[name]))  # another identity after each end
        return {"agent": agent, "facts": {}, "seats": self._seats(name), **notice, **going}

    def _seats(self, name: str) -> dict[str, Any]:
        ended = {slot: process for (host, slot), process in self._ended.items() if host == name}
        return {str(slot): self._account(process) for slot, process in {**ended, **self.agents[name]}.items()}

    def _account(self, process: Process) -> dict[str, Any]:
        """What an agent reports of a process when it connects."""
        held = self.memory.get((process.host, process.slot))
        more: dict[str, Any] = {"pid": self.pid, "parked": process.state == "parked", "agreed": process.agreed}
        if process.code is not None:
            beat = {"step": process.steps} | ({} if held is None else {"commit": held[:3]})
            more = {"beat": beat, "done": process.done}
        return {
            "life": process.life,
            "state": "running" if process.code is None else "rest",
            "code": process.code,
            "generation": process.generation,
            "loops": self.loops,
            "warned": process.warned,
            "held": held,
            **({"past": self.pasts.get((process.host, process.slot), 0), "call": process.call} if self.calls else {}),
            **more,
        }

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def start_order(self, seat: Seat, place: Place) -> dict[str, Any]:
        return {"env": {"HVD_ELASTIC_PLAN": place.text()}}

    def peer_address(self, host: str) -> str:
        return f"address-of-{host}"

    def go_env(self, host: str) -> dict[str, str]:
        return {}

    def scale(self, hosts: int, leaving: Sequence[str], reason: str) -> None:
        self.scaled.append((hosts, tuple(leaving)))

    def begin_world(self, generation: int, hosts: Sequence[str]) -> None:
        """Do nothing: no engine starts a program."""

    def unfit(self, host: Host) -> str | None:
        return self.misfits.get(host.name)

    def end_agent(self, host: Host) -> None:
        if host.name in self.dead:
            self.later(1.0, self.driver.tell, AgentEnded(host.name, 255, "no route to host"))
            return

        def end() -> None:
            for process in list(self.agents.get(host.name, {}).values()):
                self._end(process, 137)
            self.agents.pop(host.name, None)
            self.driver.tell(AgentEnded(host.name, 0, ""))

        self.later(0.3, end)

    def stop_launch(self, host: str) -> None:
        """Do nothing: no event follows after a launch is given up."""

    def send(self, host: str, order: Mapping[str, Any]) -> bool:
        if order["do"] == "all":
            return all(self.send(host, each) for each in order["orders"])
        if host not in self.agents or host in self._kept:
            return False
        if host not in self.cut | self.deaf:
            self.later(0.001, self._obey, host, dict(order), self._connections[host])
        return True

    def _obey(self, host: str, order: dict[str, Any], connection: int) -> None:
        seats = self.agents.get(host)
        if seats is None or connection != self._connections[host]:
            return
        if order["do"] == "finish":
            self._dismissed.add(host)
            if host not in self._notices:  # otherwise it checks its deadline itself
                self.finishing.add(host)
                self._finish(host)
            return
        if order["do"] in ("helper", "drop"):
            self._helper(host, order)
            return
        if order["do"] == "tell":
            for number, life in order["to"].items():
                self._tell(seats.get(int(number)), life, order["message"])
            return
        slot = order["slot"]
        process = seats.get(slot)
        if order["do"] == "start":
            if host in self.finishing:
                self.driver.tell(News(host, {"event": "refused", "slot": slot, "life": None, "reason": "about to end"}))
                return
            assert process is None
            if host in self.unstartable:
                failed = Process(host, slot, order["life"])
                self._news(failed, "not_started", reason=self.unstartable[host])
                return
            new = seats[slot] = Process(host, slot, order["life"], beat_at=self.clock.mono())
            self._news(new, "started", pid=1)
            self.later(self.boot_s.get(host, 3.0), self._park, new)
        elif order["do"] == "forget":
            self.forgotten.append((host, slot))
        elif process is None:
            return
        elif order["do"] == "kill":
            self._end(process, 137)
        elif order["do"] == "stop":
            self.later(self.ends_s.get(host, 0.0), self._end, process, 143)
        elif order["do"] == "answer" and process.asked == order["id"]:
            self._answered(process, order)

    def _tell(self, process: Process | None, life: int, message: Mapping[str, Any]) -> None:
        if process is None or life != process.life:
            return
        what = message["tell"]
        self.told[what] += 1
        if self.told[what] > self.lose[what]:
            self._told(process, message)

    def _finish(self, host: str) -> None:
        """The agent ends after its cleanup, and its connection is lost."""
        self._connections[host] += 1
        connection = self._connections[host]

        def gone() -> None:
            if self._connections[host] == connection:
                self.finishing.discard(host)
                self._dismissed.discard(host)
                del self.agents[host]
                codes = [each.code or 0 for seat, each in self._ended.items() if seat[0] == host]
                self._forget(host)
                self._notices.pop(host, None)
                self._kept.pop(host, None)
                self.driver.tell(AgentLost(host, "the agent hung up"))
                self.driver.tell(LaunchEnded(host, max(codes, default=0), ""))

        self.later(self.clears_s, gone)


@functools.cache
def _fields(event: str) -> frozenset[str]:
    return frozenset({"t", "mono", "generation", "event", *re.findall(r"\w+", EVENTS[event].fields)})
