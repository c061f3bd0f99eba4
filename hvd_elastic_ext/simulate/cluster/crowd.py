"""What many processes do at the same moment: one event of the driver, where nothing is in the way of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvd_elastic_ext.launcher.rules.membership.rendezvous import ProcessId
from hvd_elastic_ext.launcher.state.actions import Deal, Tell
from hvd_elastic_ext.simulate.cluster.commits import Commit
from hvd_elastic_ext.simulate.cluster.processes import Process
from hvd_elastic_ext.simulate.cluster.times import LATENCY_S

if TYPE_CHECKING:
    from hvd_elastic_ext.simulate.cluster.agent import Line
    from hvd_elastic_ext.simulate.cluster.cluster import Cluster
    from hvd_elastic_ext.simulate.cluster.launcher import Launcher


class Crowd:
    """The processes of a cluster. Where every step is an event, each message is one, too."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._sim = cluster, cluster.sim
        self._questions = 0

    def say(self, processes: Sequence[Process], what: str, *, told: Commit | None = None, **more: Any) -> None:
        """They say the same on their links. ``told``: the commit that this tells of."""
        self._send(processes, {"event": "said", "message": {"say": what, **more}}, told)

    def ask(self, processes: Sequence[Process]) -> None:
        """They ask for a rank, and say before what they hold."""
        by_sample: dict[tuple[int, Commit], list[Process]] = {}
        for process in processes:
            if process.commit is not None:
                process.sample = (process.batch, process.commit)
                by_sample.setdefault((process.batch, process.commit), []).append(process)
        for (batch, commit), those in by_sample.items():
            self.say(those, "beat", told=commit, step=batch, commit=commit.name)
        self._questions += 1
        for process in processes:
            process.asked = self._questions
            process.agent.unsettled = True
        self._send(processes, question(self._questions), None, kept=False)
        for process in processes:
            process.agent.lease()

    def _send(
        self, processes: Sequence[Process], news: Mapping[str, Any], told: Commit | None, *, kept: bool = True
    ) -> None:
        """``kept``: they are said again if the connection is lost."""
        cluster, now = self._cluster, self._sim.now
        at, alone = now + LATENCY_S, cluster.times.every_step or bool(cluster.late_s)
        together: list[tuple[Line, Process]] = []
        for process in processes:
            agent = process.agent
            line = agent.line
            if alone or line is None or line.up or line.up_at > at or agent.host in cluster.cut:
                agent.send(process, news, told, kept=kept)
                continue
            line.up_at = at
            together.append((line, process))
            if kept:
                agent.remember(process, news, told)
        if together:
            self._sim.at(at, self._arrives, together, news, told)

    # --- what launchers tell

    def tell(self, launcher: Launcher, wanted: Tell) -> None:
        """A launcher tells processes the same."""
        lines = self._lines(launcher, wanted.processes, wanted)
        if lines:
            self._sim.at(self._sim.now + LATENCY_S, self._told, lines, wanted)

    def deal(self, launcher: Launcher, wanted: Deal) -> None:
        """A launcher tells processes which world they are in, and their ranks."""
        lines = self._lines(launcher, [each.life for each in wanted.answers], wanted)
        if lines:
            self._cluster.observer.deals(launcher)
            self._sim.at(self._sim.now + LATENCY_S, self._dealt, lines, wanted, launcher.incarnation)

    def _lines(
        self, launcher: Launcher, lives: Sequence[ProcessId], wanted: Tell | Deal
    ) -> list[tuple[int, Line, ProcessId]]:
        """By number, connections that something goes over at once. Where something is in the way, it goes by itself."""
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

    def _hear(self, lines: Sequence[tuple[int, Line, ProcessId]], wanted: Tell | Deal) -> list[tuple[int, Process]]:
        """Processes that hear it; a network that was cut meanwhile does not let it through."""
        cut, heard = self._cluster.cut, list[tuple[int, Process]]()
        held: dict[str, Line] = {}
        self._sim.happened += len(lines) - 1
        for number, line, life in lines:
            agent = line.agent
            if not line.open or agent.line is not line or not agent.alive:
                continue
            if line.down or (cut and agent.host in cut):
                held[agent.host] = line
            elif (process := agent.processes.get(life.seat.slot)) is not None and process.life == life.number:
                heard.append((number, process))
        for host, order in wanted.orders() if held else ():
            if host in held:
                held[host].down.append(order)
        return heard

    def _told(self, lines: Sequence[tuple[int, Line, ProcessId]], wanted: Tell) -> None:
        for _, process in self._hear(lines, wanted):
            process.agent.told(process, wanted.message)

    def _dealt(self, lines: Sequence[tuple[int, Line, ProcessId]], wanted: Deal, incarnation: int) -> None:
        answers, observer = wanted.answers, self._cluster.observer
        those = list[Process]()
        for number, process in self._hear(lines, wanted):
            process.told_world = wanted.generation
            if process.asked == answers[number].number:
                process.asked, process.rank = None, number
                observer.dealt(process, incarnation=incarnation, rank=number)
                those.append(process)
        self._cluster.training.answered(those, incarnation=incarnation, size=len(answers))

    # --- what they say

    def _arrives(self, sent: Sequence[tuple[Line, Process]], news: Mapping[str, Any], told: Commit | None) -> None:
        cluster, launcher = self._cluster, self._cluster.launcher
        self._sim.happened += len(sent) - 1
        heard: list[tuple[Line, Process]] = []
        for line, process in sent:
            if line.open and (line.up or line.agent.host in cluster.cut):
                line.up.append(process.message(news, told))
            elif line.open and line.launcher is launcher:
                heard.append((line, process))
        if launcher is not None and launcher.alive and heard:
            launcher.hear_together(heard, news, told)


def question(number: int) -> dict[str, Any]:
    """A question for a rank, but for who asks it."""
    return {"event": "asked", "id": number, "method": "GET", "path": "/rank_and_size/x:0", "body": ""}
