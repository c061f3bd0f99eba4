"""Callbacks for events in a simulated cluster. They do not influence the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hvd_elastic_ext.simulate.cluster.processes import Commit

if TYPE_CHECKING:
    from hvd_elastic_ext.simulate.cluster.agent import Agent
    from hvd_elastic_ext.simulate.cluster.launcher import Launcher
    from hvd_elastic_ext.simulate.cluster.processes import Process, World


class Observer:
    """Each method is called when its event happens, and does nothing by default."""

    # --- worlds

    def moved(self, process: Process, before: str) -> None:
        """A process has another state than ``before``. An empty ``before``: it was started."""

    def entered(self, world: World) -> None:
        """The members of a world are connected."""

    def agreed(self, world: World, elected: Commit | None) -> None:
        """The ranks of a world have agreed on their state; None: it begins anew."""

    def steps(self, world: World, count: int) -> None:
        """A world has done steps."""

    def rank_given(self, process: Process, *, incarnation: int, rank: int) -> None:
        """A process has received its rank."""

    # --- launchers

    def heard(self, agent: Agent, news: Mapping[str, Any]) -> None:
        """A launcher has received news, or the first message of a connection."""

    def called(self, agent: Agent, lives: Mapping[str, int]) -> None:
        """A launcher has called parked processes to a world. ``lives``: the life of each, by slot."""

    def sealed(self, commit: Commit) -> None:
        """A launcher has received the report of a complete checkpoint."""

    def commit_reported(self, agent: Agent, slot: int, commit: Commit) -> None:
        """A launcher has received the report of a commit."""

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
