"""Finds out which signals the nodes of pods have. Pure except for its memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from discover.selection.objects import NodeView, different
from discover.selection.signals import Finding, Table, node_signals
from discover.selection.verdicts import ActiveSignal

UNKNOWN_NODE_GRACE: Final = 10.0
"""Seconds for which a pod's node may be unknown, because nodes and pods arrive over two connections."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeSignals:
    """The signals of a node. It is the same object until they change."""

    signs: tuple[ActiveSignal, ...] = ()


NO_SIGNALS: Final = NodeSignals()


class NodeSignalTracker:
    """Looks again only at nodes that may have changed.

    It remembers when signals without a time of their own were first seen, and when nodes were first missing.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._nodes: Mapping[str, NodeView] | None = None
        self._held: dict[str, tuple[NodeView | None, NodeSignals]] = {}
        self._missed: dict[str, float] = {}

    def of(self, name: str) -> NodeSignals:
        """Return the signals of the node ``name``; :data:`NO_SIGNALS` if that node is not followed."""
        known = self._held.get(name)
        return NO_SIGNALS if known is None else known[1]

    def follow(
        self,
        now: float,
        nodes: Mapping[str, NodeView] | None,
        *,
        used: Collection[str],
        moved: Iterable[str],
        exists: Mapping[str, bool],
    ) -> list[str]:
        """Look at the ``nodes``; return the names of those whose signals have changed. ``now`` is in Unix seconds.

        ``nodes``: None if the daemon may not read them. ``used``: nodes that pods run on. ``moved``: nodes on which a
        pod has come, gone, started or ended. ``exists``: see
        :meth:`discover.selection.selection.Selector.select`.
        """
        before, self._nodes = self._nodes, nodes
        if nodes is None:
            changed = [name for name, (_, signals) in self._held.items() if signals is not NO_SIGNALS]
            self._held, self._missed = {}, {}
            return changed
        of_nodes = [*used, *self._held] if before is None else [*different(before, nodes), *moved]
        due = {*of_nodes, *self._missed}
        return [name for name in due if self._look(now, name, nodes.get(name), used=name in used, exists=exists)]

    def look_at_all(self) -> None:
        """Look at all nodes the next time. The remembered times stay."""
        self._nodes = None

    def missing(self, now: float) -> tuple[float | None, tuple[str, ...]]:
        """Return when the next node will have been missing for too long, None without one, and which nodes have been.

        Times are in Unix seconds.
        """
        ends = {name: since + UNKNOWN_NODE_GRACE for name, since in self._missed.items()}
        missing = tuple(sorted(name for name, end in ends.items() if now >= end))
        return min((end for end in ends.values() if now < end), default=None), missing

    def _look(self, now: float, name: str, node: NodeView | None, *, used: bool, exists: Mapping[str, bool]) -> bool:
        """Look at one node; return whether its signals have changed."""
        before = self.of(name)
        since = self._missed.pop(name, now)
        if not used:
            self._held.pop(name, None)
        else:
            if node is None:
                since = self._missed[name] = min(now, since)
                if now < since + UNKNOWN_NODE_GRACE or exists.get(name) is not False:
                    # The last known signals still count, so that a node that is deleted does not become usable again.
                    return False
            self._held[name] = (node, self._signals_of(now, name, node))
        return self.of(name) is not before

    def _signals_of(self, now: float, name: str, node: NodeView | None) -> NodeSignals:
        if (entry := self._held.get(name)) is not None and entry[0] is node:
            return entry[1]
        known, signals = entry or (None, NO_SIGNALS)
        same = known is not None and node is not None and known.uid == node.uid
        signs = with_first_seen(node_signals(node, self._table), f"node {name}", now, signals.signs if same else ())
        return signals if signs == signals.signs else NodeSignals(signs)


def with_first_seen(
    findings: Iterable[Finding], subject: str, now: float, earlier: tuple[ActiveSignal, ...]
) -> tuple[ActiveSignal, ...]:
    """Return ``findings`` with the time at which each was first seen: ``now``, or the time in ``earlier``."""
    since = {sign.finding.signal.name: sign.first_seen for sign in earlier}
    return tuple(ActiveSignal(finding, since.get(finding.signal.name, now), subject) for finding in findings)
