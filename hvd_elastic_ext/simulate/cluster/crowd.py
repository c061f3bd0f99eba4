"""What many processes do at the same moment: one event of the driver, where nothing is in the way of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvd_elastic_ext.simulate.cluster.commits import Commit
from hvd_elastic_ext.simulate.cluster.processes import Process
from hvd_elastic_ext.simulate.cluster.times import LATENCY_S

if TYPE_CHECKING:
    from hvd_elastic_ext.simulate.cluster.agent import Line
    from hvd_elastic_ext.simulate.cluster.cluster import Cluster


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
