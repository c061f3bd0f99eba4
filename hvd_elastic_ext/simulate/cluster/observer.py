"""Callbacks for events in a simulated cluster. They do not influence the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvd_elastic_ext.simulate.cluster.commits import Commit

if TYPE_CHECKING:
    from hvd_elastic_ext.simulate.cluster.agent import Agent
    from hvd_elastic_ext.simulate.cluster.launcher import Launcher
    from hvd_elastic_ext.simulate.cluster.processes import Process, World


class Observer:
    """Each method is called when its event happens, and does nothing by default."""

    # --- worlds

    def moved(self, process: Process, before: str) -> None:
        """A process has another state than ``before``. An empty ``before``: it was started."""

    def moved_together(self, processes: Sequence[Process], before: Sequence[str]) -> None:
        """Processes have the same new state. ``before``: the earlier state of each."""
        for process, state in zip(processes, before, strict=True):
            self.moved(process, state)

    def entered(self, world: World) -> None:
        """The members of a world are connected."""

    def agreed(self, world: World, elected: Commit | None) -> None:
        """The ranks of a world have agreed on their state; None: it begins anew."""

    def steps(self, world: World, count: int) -> None:
        """A world has done steps."""

    def rank_given(self, process: Process, *, incarnation: int, rank: int) -> None:
        """A process has received its rank."""

    def ranks_given(self, processes: Sequence[Process], *, incarnation: int) -> None:
        """The same for many processes, each with its rank set."""
        for process in processes:
            self.rank_given(process, incarnation=incarnation, rank=process.rank)

    # --- launchers

    def heard(self, agent: Agent, news: Mapping[str, Any]) -> None:
        """A launcher has received news, or the first message of a connection."""

    def called(self, agent: Agent, lives: Mapping[str, int]) -> None:
        """A launcher has called parked processes to a world. ``lives``: the life of each, by slot."""

    def sealed(self, commit: Commit) -> None:
        """A launcher has received the report of a complete checkpoint."""

    def commit_reported(self, agent: Agent, slot: int, commit: Commit) -> None:
        """A launcher has received the report of a commit."""

    def commits_reported(self, processes: Sequence[Process], commit: Commit) -> None:
        """The same for many processes."""
        for process in processes:
            self.commit_reported(process.agent, process.slot, commit)

    def end_received(self, agent: Agent, slot: int) -> None:
        """A launcher has received the report of a process's end."""

    def kill_sent(self, agent: Agent, slot: int) -> None:
        """A launcher has sent an order to kill a process."""

    def ranks_sent(self, launcher: Launcher) -> None:
        """A launcher has sent ranks."""

    def released(self, agent: Agent, slot: int | None = None) -> None:
        """A launcher has ordered an agent to end, or to release a slot's memory."""

    def launcher_died(self, launcher: Launcher) -> None:
        """A launcher was killed."""

    # --- hosts

    def listed(self, hosts: Iterable[str], departing: Mapping[str, float | None]) -> None:
        """A new list was accepted."""

    def dies(self, agent: Agent) -> None:
        """An agent ends."""
