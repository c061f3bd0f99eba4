"""Agents and processes: started where they are wanted, sent away where not, cut off when they fall silent."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.hosts import Host, HostSet, is_same
from hvd_elastic_ext.core.rank_info import Place
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.health.restart_delay import Rests
from hvd_elastic_ext.launcher.rules.membership.devices import device_env, local_ranks
from hvd_elastic_ext.launcher.rules.membership.membership import Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat, seat_of, slot_number
from hvd_elastic_ext.launcher.state.blame import Faults
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.roster import Agent, Worker, take_beat

log = logging.getLogger(__name__)

STOP_AGAIN_S: Final = 10.0
"""How long after it was told to end a process is told so again."""
BEAT_S: Final = 2.0
"""How long before it fell silent a process may have been told something and heard it: it beats every so often."""
LEAVE_S: Final = 30.0
"""How long one that was told to leave at its next step may take once another one has come to its own; then it ends.

As long as nobody has, all may be in a long evaluation: to end one then would cost the others their steps.
"""
KILLED: Final = 137
"""Exit code of a process of which only its agent, had it lived, could have told how it ended."""
WAY_OUT_S: Final = 60.0
"""How long a process that is done, or was sent away, may be silent: an interpreter that ends waits for much."""
GONE_S: Final = 2.0
"""How long a host that is listed no more, or was not for a while, may be silent once its connection is lost: most
likely it is gone. And how long what its agent had said before may still be on its way."""
JOIN_S: Final = 60.0
"""How long an agent may take from its start to its first word."""
JOIN_EACH_S: Final = 1.0
"""What every agent that is on its way adds to that: only some are started at a time, the others stand in line."""


class Fleet:
    """Everything that lives, or ought to, on hosts. ``hosts`` are those that were published."""

    def __init__(self, station: Station, faults: Faults) -> None:
        self.hosts = HostSet()
        self.unheard: dict[Life, tuple[Worker, int]] = {}
        """Ends of processes, and how, that another launcher started: it may not have heard of them."""
        self.recovering: set[str] = set()
        """Hosts of which a member of a world failed, and that have not been back in one."""
        self.cut_off_live: set[Life] = set()
        """Processes that were in a world when their host was cut off."""
        self._rests = Rests()
        self._pods: dict[str, Host] = {}
        """Of each pod that was published, by host: the newest one under that name, and its newest life."""
        self._outlived: dict[str, _Outlived] = {}
        """Hosts of which another life is listed than that under which their agents joined."""
        self._lost: dict[str, tuple[str, str]] = {}
        """The pod under whose name an agent was last cut off, by its UID, and that agent itself: any other one that has
        come since may be its successor's."""
        self.may_start: Callable[[str], bool] = lambda host: True
        """Whether a host is ready for processes."""
        self.may_end: Callable[[str], bool] = lambda host: True
        """Whether nobody needs what the agent of a host that is listed no more has in its memory."""
        self._station = station
        self._faults = faults
        self._roster = station.roster

    def publish(self, hosts: HostSet) -> None:
        """Take in a new list. What was taken over from another launcher is known by its name only, until now."""
        self.hosts = hosts
        for pod in hosts:
            before = self._pods.get(pod.name)
            if pod.uid and pod != before:
                self._pods[pod.name] = pod
                if before is not None and pod.uid != before.uid:
                    self._see_recreated(pod)
                elif before is not None and not is_same(pod.life, before.life):
                    self._forget_former(pod.name)
        known: list[Agent | Worker] = [*self._roster.agents.values(), *self._roster.workers.values()]
        for each in known:
            host = hosts.get(each.host.name)
            if host is not None and (_says_nothing(each.host) or _says_more(host, each.host)):
                each.host = host
        self._see_earlier_lives(hosts)

    def _see_recreated(self, host: Host) -> None:
        """Another pod has taken the name: nothing of the former one holds for it, and nobody waits for that."""
        agent = self._roster.agents.get(host.name)
        uid, lost = self._lost.get(host.name, ("", ""))
        if agent is not None and agent.joined and uid and uid == agent.host.uid and lost != agent.itself:
            self._inherit(agent, host)
        elif agent is not None and agent.host.uid not in ("", host.uid):
            self._bury(agent, "its pod was recreated")
        elif agent is None and uid not in ("", host.uid):  # it was cut off before
            self._roster.commits.ended(host.name, "its pod was recreated")
        self._forget_former(host.name)

    def _see_earlier_lives(self, hosts: HostSet) -> None:
        """Take in which agents are those of containers that run no more, by a new list."""
        now, before = self._station.now(), self._outlived
        self._outlived = {}
        for name, agent in self._roster.agents.items():
            host = hosts.get(name)
            if host is None:
                agent.unlisted_at = now if hosts else agent.unlisted_at
            elif not is_same(agent.host.life, host.life):
                known = before.get(name)
                since = known.since if known is not None and known.host.life == host.life else now
                self._outlived[name] = _Outlived(host, since)
        self._end_earlier_lives()

    def _end_earlier_lives(self) -> None:
        """Nobody waits for an agent whose container runs no more, and its successor is not blamed.

        One that goes on speaking is of that container, whatever the list has said.
        """
        now, limit_s = self._station.now(), self._station.rules.heartbeat_timeout_s
        for name, (host, since) in list(self._outlived.items()):
            agent = self._roster.agents.get(name)
            if agent is not None and agent.joined and agent.heard > since + GONE_S:
                self._inherit(agent, host)
            elif agent is not None and agent.joined and now - agent.heard <= limit_s / 2:
                continue
            elif agent is not None:
                self._bury(agent, "its container was started again")
            del self._outlived[name]

    def _inherit(self, agent: Agent, host: Host) -> None:
        agent.host, agent.inherited_at = host, self._station.now()
        for worker in self._roster.on(host.name):
            worker.host = host

    def _bury(self, agent: Agent, reason: str) -> None:
        """Cut off an agent that is known to be dead, and its memory with it: nobody is to blame."""
        log.warning("%s is cut off: %s", agent.host.name, reason)
        self._station.record("fenced", host=agent.host.name, reason=reason)
        self._roster.commits.ended(agent.host.name, reason)
        self.cut_off(agent, reason, blame=False)

    def _forget_former(self, host: str) -> None:
        """Nothing that was noted of the former pod, or container, holds for this one."""
        self._rests.forget(host)
        self.recovering.discard(host)

    # --- agents

    def tend_agents(self, wanted: tuple[Seat, ...]) -> None:
        """Start agents where processes are wanted; end those of hosts that are not published any more."""
        now, needed = self._station.now(), dict.fromkeys(seat.host for seat in wanted)
        for name in needed:
            host = self.hosts.get(name)
            if name not in self._roster.agents and host is not None:
                self._roster.agents[name] = Agent(host, now)
                self._station.hands.start_agent(host)
        patience = JOIN_S + JOIN_EACH_S * sum(not agent.heard for agent in self._roster.agents.values())
        for name, agent in list(self._roster.agents.items()):
            # One that was told to finish does so. Where its host is wanted again, another follows it.
            leaves = agent.finishing or (name not in needed and name not in self.hosts)
            if leaves and not agent.dismissed and not self._roster.on(name) and self.may_end(name):
                # That of a blocked host stays: what it holds may be needed.
                self.dismiss(agent)
            if not agent.heard and now - agent.since > patience and name in self._roster.agents:
                del self._roster.agents[name]
                self._station.hands.stop_launch(name)
                detail = f"no agent came within {patience:g} s"
                self._faults.strike(Cause.UNREACHABLE, agent.host, detail=detail, tried_s=now - agent.since)

    def dismiss(self, agent: Agent) -> None:
        """Have an agent end."""
        if agent.dismissed:
            return
        agent.finishing = agent.dismissed = True
        if not self._station.hands.send(agent.host.name, {"do": "finish"}):
            self._station.hands.stop_launch(agent.host.name)
            self._roster.agents.pop(agent.host.name, None)
            self._roster.commits.lost(agent.host.name, heard=agent.heard, why="it was not connected when it was to end")

    def joined(self, name: str, hello: Mapping[str, Any]) -> list[tuple[Worker, int]]:
        """An agent is there: make the roster what it says that there is. Processes that ended unseen, and how."""
        now = self._station.now()
        agent = self._roster.agents.get(name)
        if agent is None:
            agent = self._roster.agents[name] = Agent(self.hosts.get(name) or Host(name, 1), now)
        agent.joined, agent.heard, agent.facts = True, now, hello.get("facts") or {}
        agent.itself = str(hello.get("agent") or "")
        # It may be another one; what is to end is told so again, and what is about to go says so again.
        agent.finishing, agent.dismissed, agent.leaves_by, agent.going = False, False, None, None
        self._roster.commits.came(name, agent.itself, hello.get("seats") or {})
        missed = self._take_stock(agent, hello.get("seats") or {}, now)
        problem = self._station.hands.unfit(agent.host, agent.facts)
        if problem is not None:
            log.warning("%s cannot be used: %s", name, problem)
            self._faults.strike(Cause.NEVER_READY, agent.host, detail=problem, tried_s=now - agent.since)
            self.dismiss(agent)  # the next one, after the cooldown, is looked at anew
        return missed

    def _take_stock(self, agent: Agent, seats: Mapping[str, Any], now: float) -> list[tuple[Worker, int]]:
        there: set[Life] = set()
        ended: dict[Life, Mapping[str, Any]] = {}
        for number, status in seats.items():
            seat = seat_of(agent.host.name, number)
            if seat is None or not isinstance(status, dict) or not isinstance(status.get("life"), int):
                continue
            life = Life(seat, status["life"])
            self._roster.lived(life)
            if status.get("state") == "running" and status.get("code") is None:
                there.add(life)
                if (worker := self._roster.alive(life)) is None:
                    self._roster.workers[life.seat] = _adopted(life, agent.host, status, now)
                else:
                    self._catch_up(worker, status)
            else:
                ended[life] = status
                worker, code = _adopted(life, agent.host, status, now), status.get("code")
                heard = self._roster.alive(life) is not None or self._roster.ended.get(life.seat, 0) >= life.number
                if not heard and _tells_of_the_end(worker) and isinstance(code, int):
                    self.unheard[life] = worker, code
        return self._compare(agent, there, ended)

    def _compare(
        self, agent: Agent, there: set[Life], ended: Mapping[Life, Mapping[str, Any]]
    ) -> list[tuple[Worker, int]]:
        """Make up for what was lost with the last connection: orders, and how processes ended."""
        gone: list[tuple[Worker, int]] = []
        for worker in self._roster.on(agent.host.name):
            status = ended.get(worker.life)
            if worker.life in there:
                self._order_again(worker)
            elif worker.started or status is not None:
                code = (status or {}).get("code")
                worker.done = worker.done or bool((status or {}).get("done"))
                worker.warned = worker.warned or bool((status or {}).get("warned"))
                gone.append((worker, code if isinstance(code, int) else KILLED))
            else:  # the order to start it never came
                del self._roster.workers[worker.seat]
        return gone

    def _catch_up(self, worker: Worker, status: Mapping[str, Any]) -> None:
        """Note what a process said that was never read: a connection may end with news on it."""
        now, generation = self._station.now(), status.get("generation")
        self.started(worker, status.get("pid"))  # or, if it has none yet, its agent says so later
        worker.loops = worker.loops or status.get("loops") is True
        worker.done = worker.done or bool(status.get("done"))
        worker.warned = worker.reclaimed = bool(status.get("warned"))
        if status.get("parked") and worker.stage is Stage.BOOTING:
            worker.stage, worker.since = Stage.PARKED, now
        if isinstance(generation, int) and worker.generation < generation <= self._station.generation:
            worker.generation, worker.since = generation, now
        if isinstance(agreed := status.get("agreed"), int):
            worker.agreed = max(worker.agreed, min(agreed, worker.generation))

    def started(self, worker: Worker, pid: Any) -> None:
        """A process runs. That may be told twice, or by its agent's account of what it has."""
        if worker.started or type(pid) is not int:
            return
        worker.started, worker.pid = True, pid
        place = {"rank": worker.planned, "local_rank": worker.local_rank}
        self._station.record("spawned", host=worker.seat.host, slot=worker.seat.slot, pid=worker.pid, **place)

    def _order_again(self, worker: Worker) -> None:
        worker.told_at = None if worker.told_at is None else -math.inf
        if worker.killed is not None:
            self._station.order(worker, "kill")
        elif worker.stopping_at is not None:
            self._ask_to_leave(worker)
        elif worker.leaving is not None:
            self._station.order(worker, "stop")

    # --- processes

    def tend_processes(self, wanted: tuple[Seat, ...], members: tuple[Life, ...]) -> None:
        """Start processes in wanted seats; end those that nobody needs, and those that do not get ready."""
        now, kept, needed = self._station.now(), set(members), frozenset(wanted)
        for seat, place, neighbours in _plans(wanted, self._roster.workers, joining=bool(members)):
            agent = self._roster.agents.get(seat.host)
            free = self._rests.over(seat, now)
            if free and agent is not None and agent.joined and not agent.finishing and self.may_start(seat.host):
                self._start(agent, seat, place, neighbours=neighbours, standby=bool(members))
        for worker in list(self._roster.workers.values()):
            # One that is live without being a member is of a world that went on without it, behind a link that was cut.
            if worker.stage is Stage.LIVE and worker.stopping_at is None and worker.life in kept:
                continue  # as thousands are
            useful = worker.seat in needed and worker.stage is not Stage.LIVE
            if not useful and worker.life not in kept and worker.leaving is None and not worker.done:
                self.send_away(worker, "it is not needed")
            if worker.stage is Stage.BOOTING and now - worker.since > self._station.rules.standby_timeout_s:
                detail = f"{worker.seat} did not get ready in time"
                tried_s = worker.tried_s(now)
                self._faults.strike(Cause.NEVER_READY, worker.host, worker.seat.slot, detail=detail, tried_s=tried_s)
                self.kill(worker, Cause.NEVER_READY)
            if worker.stopping_at == math.inf and self._is_late(worker):
                worker.stopping_at = now + LEAVE_S
            if any(at is not None and now >= at for at in (worker.stopping_at, worker.stop_again_at)):
                self._stop(worker)

    def awake(self, wanted: tuple[Seat, ...]) -> list[Seat]:
        """Of the wanted seats those that do not rest after their process left."""
        now = self._station.now()
        return [seat for seat in wanted if self._rests.over(seat, now)]

    def rest(self, seat: Seat) -> None:
        """A process has left of its own accord: what follows it at once would most likely leave, too."""
        self._rests.begin(seat, self._station.now(), self._station.rules.cooldown_s)

    def _start(self, agent: Agent, seat: Seat, place: Place, *, neighbours: Mapping[int, int], standby: bool) -> None:
        """``neighbours``: local rank of each slot of the host that is in use."""
        life = self._roster.next_life(seat)
        order = self._station.hands.start_order(seat, place)
        given = {**self._station.hands.environment, **order["env"]}
        env = {**order["env"], **self._devices(agent, seat, given, neighbours=neighbours)}
        more = {"life": life.number, "link": True, "note": str(place.local_rank)}
        if not self._station.hands.send(seat.host, {**order, "do": "start", "slot": seat.slot, "env": env, **more}):
            return
        worker = Worker(life, agent.host, Stage.BOOTING, self._station.now())
        worker.planned, worker.local_rank = place.rank, place.local_rank
        self._roster.workers[seat] = worker
        if standby:
            self._station.record("standby", host=seat.host, slot=seat.slot)

    def _devices(
        self, agent: Agent, seat: Seat, env: Mapping[str, str], *, neighbours: Mapping[int, int]
    ) -> dict[str, str]:
        host = self.hosts.get(seat.host) or agent.host
        usable = self._faults.ledger.usable_slots(self._station.now(), host)
        blocked = [slot for slot in range(host.slots) if slot not in usable]
        return device_env(env, agent.facts, slot=seat.slot, slots=host.slots, local_ranks=neighbours, blocked=blocked)

    def send_away(self, worker: Worker, why: str) -> None:
        """Have a process leave: a member of a world at its next step, anybody else at once."""
        worker.leaving, worker.leaving_since = why, self._station.now()
        if worker.stage is Stage.LIVE and worker.life not in self._station.rendezvous.waiting:
            worker.stopping_at = math.inf
            self._ask_to_leave(worker)
        else:
            self._stop(worker)

    def _stop(self, worker: Worker) -> None:
        """Have a process end, and once more if it is there after a while: orders get lost."""
        worker.stopping_at, worker.stop_again_at = None, self._station.now() + STOP_AGAIN_S
        self._station.order(worker, "stop")

    def _is_late(self, worker: Worker) -> bool:
        """Whether others have left the world that a process was told to leave."""
        meeting = self._station.rendezvous
        return bool(meeting.waiting) or (meeting.formed and worker.life not in meeting.members)

    def _ask_to_leave(self, worker: Worker) -> None:
        generation, why = self._station.generation, worker.leaving
        self._station.tell(worker, "update", generation=generation, leave=True, reason=why)

    def refused(self, host: str, slot: Any, reason: str) -> None:
        """An agent does not do what it was told. If that was to start a process, it is told so again in a while."""
        log.warning("the agent on %s refuses an order: %s", host, reason)
        worker = self._roster.of(host, slot, None)
        if worker is not None and not worker.started:
            del self._roster.workers[worker.seat]
            self.rest(worker.seat)

    def end(self, worker: Worker, why: str = "the job ends") -> None:
        """End a process, with its grace: now, even if it was to leave at its next step."""
        if worker.leaving is None or worker.stopping_at is not None:
            worker.leaving, worker.stopping_at = worker.leaving or why, None
            self._station.order(worker, "stop")

    def kill(self, worker: Worker, cause: Cause) -> None:
        """End a process at once; it may be stopped, and deaf to anything else."""
        if worker.killed is None:
            worker.killed, worker.killed_at = cause, self._station.now()
        self._station.order(worker, "kill")

    # --- silence

    def overslept(self, seconds: float) -> None:
        """The launcher itself stood still for so long: what agents have said meanwhile is not read yet."""
        now = self._station.now()
        self._outlived = {
            name: each._replace(since=min(now, each.since + seconds)) for name, each in self._outlived.items()
        }
        for agent in self._roster.agents.values():
            agent.heard = min(now, agent.heard + seconds) if agent.heard else agent.heard

    def next_silence(self) -> float | None:
        """When the next host will have been silent for too long, unless it speaks (mono)."""
        agents = self._roster.agents.values()
        return min((agent.heard + self._patience_s(agent) for agent in agents if agent.heard), default=None)

    def too_silent(self) -> bool:
        """Whether :meth:`notice_silence` would have something to do."""
        silent_at = self.next_silence()
        return (silent_at is not None and silent_at < self._station.now()) or bool(self._silent())

    def notice_silence(self, *, blame: bool) -> None:
        """Cut off hosts and kill processes of which nothing was heard for too long."""
        self._end_earlier_lives()
        now = self._station.now()
        for agent in list(self._roster.agents.values()):
            if agent.heard and now - agent.heard > self._patience_s(agent):
                self.cut_off(agent, f"nothing was heard of it for {now - agent.heard:.1f} s", blame=blame)
        for worker in self._silent():
            reason = f"its process was silent for {worker.silent_s:.1f} s"
            self._station.record("fenced", host=worker.seat.host, slot=worker.seat.slot, reason=reason)
            self.kill(worker, Cause.SILENT)
        self._ask_for_lost_ends()

    def _patience_s(self, agent: Agent) -> float:
        """How long a host may be silent."""
        limit_s = self._station.rules.heartbeat_timeout_s
        if agent.host.name in self._outlived:
            return limit_s / 2 if agent.joined else 0.0
        listed = agent.host.name in self.hosts and agent.unlisted_at < agent.heard
        gone = not agent.joined and bool(self.hosts) and not listed
        return min(limit_s, GONE_S) if gone else limit_s

    def _ask_for_lost_ends(self) -> None:
        """A process that its agent's beats told of, and no longer do, has ended: have the agent say how, once more."""
        limit, agents = self._station.rules.heartbeat_timeout_s, self._roster.agents
        lost: dict[str, list[Worker]] = {}
        for seat, worker in self._roster.workers.items():
            agent = agents.get(seat.host)
            if worker.named_at is not None and agent is not None and agent.beats_at - worker.named_at > limit:
                lost.setdefault(seat.host, []).append(worker)
        for host, workers in lost.items():
            for worker in workers:
                worker.named_at = None
            names = ", ".join(str(worker.seat) for worker in workers)
            log.warning("%s must have ended, which was not told; its agent is asked what it has", names)
            self._station.hands.hang_up(host, "news of it were lost")

    def _silent(self) -> list[Worker]:
        limit = self._station.rules.heartbeat_timeout_s
        silent = [worker for worker in self._roster.workers.values() if worker.silent_s > limit]
        return list(filter(self._is_to_be_killed, silent))

    def _is_to_be_killed(self, worker: Worker) -> bool:
        """For its silence. One that nobody waits for may be on its way out, and say no more."""
        limit, meeting = self._station.rules.heartbeat_timeout_s, self._station.rendezvous
        # One that was silent before it was told to leave has not heard that, and is on no way out.
        silent_since = self._station.now() - worker.silent_s + BEAT_S
        told = worker.leaving is not None and silent_since > worker.leaving_since
        left = told and meeting.formed and worker.life not in meeting.members
        return worker.killed is None and worker.silent_s > (max(limit, WAY_OUT_S) if worker.done or left else limit)

    def cut_off(self, agent: Agent, reason: str, *, blame: bool) -> None:
        """Nobody waits for a silent host any more. If its agent comes again, its processes are told to leave."""
        name = agent.host.name
        self._lost[name] = agent.host.uid, agent.itself
        # One that has said nothing as the successor's was none: it died with its pod.
        blame = blame and agent.heard > agent.inherited_at
        del self._roster.agents[name]
        self._roster.commits.lost(name, heard=agent.heard, why=reason)
        for worker in self._roster.on(name):
            del self._roster.workers[worker.seat]
            self._station.rendezvous.ended(worker.life)
            if worker.stage is Stage.LIVE:
                self.cut_off_live.add(worker.life)
                self.recovering.update([name] if blame else [])
        self._station.hands.stop_launch(name)
        self._station.hands.hang_up(name, reason)  # a machine that goes on after a pause has noticed nothing
        if not blame or agent.finishing or agent.leaves_by is not None or name in self._station.leaves_by:
            return
        log.warning("%s is cut off: %s", name, reason)
        self._station.record("fenced", host=name, reason=reason)
        self._faults.strike(Cause.FENCED, agent.host, detail=reason)


def _adopted(life: Life, host: Host, status: Mapping[str, Any], now: float) -> Worker:
    """A process that another launcher started."""
    generation = status.get("generation")
    live = isinstance(generation, int) and generation > 0
    stage = Stage.LIVE if live else Stage.PARKED if status.get("parked") else Stage.BOOTING
    loops = status.get("loops") is not False  # if nothing is known of it, it is a script as most are
    worker = Worker(life, host, stage, now, started=True, pid=status.get("pid"), loops=loops)
    worker.done = bool(status.get("done"))
    worker.warned = worker.reclaimed = bool(status.get("warned"))
    noted = slot_number(str(status.get("note")))
    worker.local_rank = life.seat.slot if noted is None else noted
    if isinstance(status.get("beat"), dict):
        take_beat(worker, status["beat"])
    if live:
        worker.live_at = now
        worker.generation = worker.agreed = int(str(generation))
    return worker


def _tells_of_the_end(worker: Worker) -> bool:
    """Whether the end of a process says something of the training: that was done, or went with it, or has no loop."""
    return worker.stage is Stage.LIVE and (worker.done or not worker.loops or worker.keeps_nothing)


def _says_nothing(host: Host) -> bool:
    return not (host.uid or host.node)


def _says_more(host: Host, known: Host) -> bool:
    """Whether a list tells the life of a pod that was known without."""
    return bool(host.life) and not known.life and host.uid == known.uid


class _Outlived(NamedTuple):
    """``host``: as it was listed last, with its present life; ``since`` then (mono)."""

    host: Host
    since: float


class _Plan(NamedTuple):
    """``neighbours``: local rank of each slot of the host that is in use."""

    seat: Seat
    place: Place
    neighbours: Mapping[int, int]


def _plans(wanted: tuple[Seat, ...], workers: Mapping[Seat, Worker], *, joining: bool) -> list[_Plan]:
    """Each wanted seat without a process, with the place that one is to show to user code until it has one."""
    if workers.keys() >= set(wanted):
        return []
    by_host: dict[str, list[tuple[int, Seat]]] = {}
    for rank, seat in enumerate(wanted):
        by_host.setdefault(seat.host, []).append((rank, seat))
    plans: list[_Plan] = []
    for cross, group in enumerate(by_host.values()):
        free = [(rank, seat) for rank, seat in group if seat not in workers]
        if not free:
            continue
        living = {seat.slot: workers[seat].local_rank for _, seat in group if seat in workers}
        neighbours = local_ranks([seat.slot for _, seat in group], living)
        for at, seat in free:
            # One that joins others is not shown rank 0: what that does at the start has been done.
            rank = max(1, len(wanted) - 1) if joining and at == 0 else at
            local = neighbours[seat.slot]
            place = Place(rank, max(len(wanted), rank + 1), local, len(group), cross, len(by_host))
            plans.append(_Plan(seat, place, neighbours))
    return plans
