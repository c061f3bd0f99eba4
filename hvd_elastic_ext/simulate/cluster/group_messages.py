"""Equal messages of many processes at the same moment: one event of the driver, if their connections work."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hvd_elastic_ext.launcher.rules.membership.rendezvous import ProcessId
from hvd_elastic_ext.launcher.state.actions import AssignRanks, Tell
from hvd_elastic_ext.simulate.cluster.commits import Commit
from hvd_elastic_ext.simulate.cluster.processes import Message, Process
from hvd_elastic_ext.simulate.cluster.times import AGAIN_S, LATENCY_S, RESEND_S

if TYPE_CHECKING:
    from hvd_elastic_ext.simulate.cluster.agent import Agent, Line
    from hvd_elastic_ext.simulate.cluster.cluster import Cluster
    from hvd_elastic_ext.simulate.cluster.launcher import Launcher


@dataclass(eq=False, slots=True)
class _Group:
    """A group. ``of``: the senders; ``processes``: those whose messages reach the launcher over ``lines`` in one event.

    ``others``: senders with a disturbed connection. The group is valid until the cluster's ``disturbances`` change.
    """

    of: Sequence[Process]
    disturbances: int
    processes: list[Process] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    ids: tuple[ProcessId, ...] = ()
    others: list[Process] = field(default_factory=list)


class GroupMessages:
    """Group messages of a cluster. If every step is an event, each message is a separate event, too."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._sim = cluster, cluster.sim
        self._questions = 0
        self._groups: deque[_Group] = deque(maxlen=4)
        self._recent: deque[tuple[float, int, _Group, Mapping[str, Any], Commit | None]] = deque()
        """Recent group messages, to be repeated for agents that lose their connection."""

    def report(self, processes: Sequence[Process], what: str, *, reported: Commit | None = None, **more: Any) -> None:
        """Send the same message from all processes. ``reported``: the commit that it reports."""
        self._send(processes, {"event": "said", "message": {"say": what, **more}}, reported)

    def changed(self) -> None:
        """Note that a world has lost a member."""
        self._cluster.disturbances += 1

    def ask(self, processes: Sequence[Process]) -> None:
        """Report the commits of all processes, and then ask for a rank for each."""
        by_sample: dict[tuple[int, Commit], list[Process]] = {}
        for process in processes:
            if process.commit is not None:
                process.sample = (process.batch, process.commit)
                by_sample.setdefault((process.batch, process.commit), []).append(process)
        for (batch, commit), those in by_sample.items():
            alike = processes if len(those) == len(processes) else those
            self.report(alike, "beat", reported=commit, step=batch, commit=commit.name)
        self._questions += 1
        for process in processes:
            process.asked = self._questions
            process.agent.unsettled = True
        self._send(processes, question(self._questions), None, kept=False)
        for process in processes:
            if process.agent.line is None:
                process.agent.lease()

    def _send(
        self, processes: Sequence[Process], news: Mapping[str, Any], reported: Commit | None, *, kept: bool = True
    ) -> None:
        """Send news. ``kept``: repeat them if the connection is lost."""
        group = self._group(processes)
        for process in group.others:
            process.agent.send(process, news, reported, kept=kept)
        if not group.processes:
            return
        now = self._sim.now
        if kept:
            self._recent.append((now, next(self._cluster.message_numbers), group, news, reported))
            while self._recent[0][0] < now - RESEND_S - AGAIN_S:
                self._recent.popleft()
        self._sim.at(now + LATENCY_S, self._arrives, group, news, reported)

    def _group(self, processes: Sequence[Process]) -> _Group:
        """Return the group for these processes; the cached one if no connection has changed."""
        cluster = self._cluster
        for known in self._groups:
            if known.of is processes and known.disturbances == cluster.disturbances:
                return known
        launcher, cut = cluster.launcher, cluster.cut
        alone = cluster.times.every_step or bool(cluster.late_s) or launcher is None
        group = _Group(processes, cluster.disturbances)
        for process in processes:
            agent = process.agent
            line = agent.line
            if alone or line is None or line.up or agent.down_since is not None or agent.host in cut:
                group.others.append(process)
            elif launcher is None or launcher.lines.get(agent.host) is not line:
                group.others.append(process)  # its hello is on its way
            else:
                group.processes.append(process)
                group.lines.append(line)
        group.ids = tuple([process.id for process in group.processes])
        self._groups.append(group)
        return group

    def recently_sent(self, agent: Agent) -> Iterator[tuple[float, int, Message]]:
        """Yield the recent group messages of an agent's processes, with time and sequence number."""
        for at, number, group, news, reported in self._recent:
            if at >= self._sim.now - RESEND_S - AGAIN_S:
                yield from (
                    (at, number, each.message(news, reported)) for each in group.processes if each.agent is agent
                )

    # --- messages of launchers

    def tell(self, launcher: Launcher, wanted: Tell) -> None:
        """Send the same message from a launcher to processes."""
        lines = self._lines(launcher, wanted.processes, wanted)
        if lines:
            self._sim.at(self._sim.now + LATENCY_S, self._deliver, lines, wanted, self._cluster.disturbances)

    def assign_ranks(self, launcher: Launcher, wanted: AssignRanks) -> None:
        """Send processes their world and ranks."""
        lines = self._lines(launcher, list(wanted.dealt.places), wanted)
        if lines:
            self._cluster.observer.ranks_sent(launcher)
            at, undisturbed = self._sim.now + LATENCY_S, self._cluster.disturbances
            self._sim.at(at, self._dealt, lines, wanted, undisturbed, launcher.incarnation)

    def _lines(
        self, launcher: Launcher, lives: Sequence[ProcessId], wanted: Tell | AssignRanks
    ) -> list[tuple[int, Line, ProcessId]]:
        """Return, by number, the connections that deliver at once. Messages over disturbed ones are sent one by one."""
        cluster, at = self._cluster, self._sim.now + LATENCY_S
        find, cut, late = launcher.lines.get, cluster.cut, bool(cluster.late_s)
        found: list[tuple[int, Line, ProcessId]] = []
        others = set[str]()
        for number, life in enumerate(lives):
            line = find(life.seat.host)
            if line is None:
                continue
            if late or line.down or line.down_at > at or (cut and life.seat.host in cut):
                others.add(life.seat.host)
            else:
                line.down_at = at
                found.append((number, line, life))
        for host, order in wanted.orders() if others else ():
            if host in others:
                launcher.send(host, order)
        return found

    def _receivers(
        self, lines: Sequence[tuple[int, Line, ProcessId]], wanted: Tell | AssignRanks, disturbances: int
    ) -> list[tuple[int, Process]]:
        """Yield the processes that receive the message; a network that was cut meanwhile delivers nothing."""
        cut, receivers = self._cluster.cut, list[tuple[int, Process]]()
        held: dict[str, Line] = {}
        self._sim.happened += len(lines) - 1
        if disturbances == self._cluster.disturbances:  # the usual case
            found = [(number, line.agent.processes.get(life.seat.slot), life) for number, line, life in lines]
            return [(number, each) for number, each, life in found if each is not None and each.life == life.number]
        for number, line, life in lines:
            agent = line.agent
            if not line.open or agent.line is not line or not agent.alive:
                continue
            if line.down or (cut and agent.host in cut):
                held[agent.host] = line
            elif (process := agent.processes.get(life.seat.slot)) is not None and process.life == life.number:
                receivers.append((number, process))
        for host, order in wanted.orders() if held else ():
            if host in held:
                held[host].down.append(order)
        return receivers

    def _deliver(self, lines: Sequence[tuple[int, Line, ProcessId]], wanted: Tell, disturbances: int) -> None:
        receivers = [process for _, process in self._receivers(lines, wanted, disturbances)]
        if wanted.message["tell"] == "update":
            self._cluster.training.interrupt_together(receivers, leave=wanted.message["leave"])
            return
        for process in receivers:
            process.agent.receive_message(process, wanted.message)

    def _dealt(
        self, lines: Sequence[tuple[int, Line, ProcessId]], wanted: AssignRanks, disturbances: int, incarnation: int
    ) -> None:
        numbers, those = wanted.dealt.numbers, list[Process]()
        for number, process in self._receivers(lines, wanted, disturbances):
            process.assigned_world = wanted.generation
            if process.asked == numbers[number]:
                process.asked, process.rank = None, number
                those.append(process)
        self._cluster.observer.ranks_given(those, incarnation=incarnation)
        self._cluster.training.answered(those, incarnation=incarnation, size=len(numbers))

    # --- messages of processes

    def _arrives(self, group: _Group, news: Mapping[str, Any], reported: Commit | None) -> None:
        cluster, launcher = self._cluster, self._cluster.launcher
        self._sim.happened += len(group.processes) - 1
        if cluster.disturbances == group.disturbances and launcher is not None:
            launcher.receive_group(group.ids, group.processes, news, reported)
            return
        receivers: list[tuple[Line, Process]] = []
        for line, process in zip(group.lines, group.processes, strict=True):
            if line.open and (line.up or line.agent.host in cluster.cut):
                line.up.append(process.message(news, reported))
            elif line.open and line.launcher is launcher:
                receivers.append((line, process))
        if launcher is not None and launcher.alive and receivers:
            launcher.receive_from_many(receivers, news, reported)


def question(number: int) -> dict[str, Any]:
    """Return the news of a question for a rank, without the sender."""
    return {"event": "asked", "id": number, "method": "GET", "path": "/rank_and_size/x:0", "body": ""}
