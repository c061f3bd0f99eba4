"""Finds out which signals the nodes of pods have. Pure except for its memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from discover.selection.objects import NodeView
from discover.verdicts.signals import Finding, Table, node_signals
from discover.verdicts.verdicts import ActiveSignal

UNKNOWN_NODE_GRACE: Final = 10.0
"""Seconds for which a pod's node may be unknown, because nodes and pods arrive over two connections."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeSignals:
    """The signals of a node. It is the same object until they change."""

    signs: tuple[ActiveSignal, ...] = ()


NO_SIGNALS: Final = NodeSignals()


class NodeSignalTracker:
    """Keeps the signals of the nodes that pods run on.

    It remembers when signals without a time of their own were first seen, and when nodes were first missing.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._held: dict[str, tuple[NodeView | None, NodeSignals]] = {}
        """Each node as it was last looked at (None: it does not exist), and its signals."""
        self._missed: dict[str, float] = {}
        """Since when nodes have been unknown, in Unix seconds."""

    def of(self, name: str) -> NodeSignals:
        """Return the signals of the node ``name``; :data:`NO_SIGNALS` if that node is not followed."""
        known = self._held.get(name)
        return NO_SIGNALS if known is None else known[1]

    def follow(
        self, now: float, nodes: Mapping[str, NodeView] | None, *, used: Iterable[str], exists: Mapping[str, bool]
    ) -> None:
        """Look at the ``nodes``. ``now`` is in Unix seconds.

        ``nodes``: None if the daemon may not read them. ``used``: nodes that pods run on. ``exists``: see
        :meth:`discover.selection.selection.Selector.select`.
        """
        held: dict[str, tuple[NodeView | None, NodeSignals]] = {}
        missed: dict[str, float] = {}
        for name in used if nodes is not None else ():
            node, before = nodes.get(name), self._held.get(name)
            if node is None:
                since = missed[name] = min(now, self._missed.get(name, now))
                if now < since + UNKNOWN_NODE_GRACE or exists.get(name) is not False:
                    if before is not None:
                        # Its last signals still count, so that a node that is deleted does not become usable again.
                        held[name] = before
                    continue
            if before is not None and before[0] is node:
                held[name] = before
            else:
                held[name] = (node, self._signals_of(now, name, node, before or (None, NO_SIGNALS)))
        self._held, self._missed = held, missed

    def missing(self, now: float) -> tuple[float | None, tuple[str, ...]]:
        """Return when the next node will have been missing for too long, None without one, and which nodes have been.

        Times are in Unix seconds.
        """
        ends = {name: since + UNKNOWN_NODE_GRACE for name, since in self._missed.items()}
        missing = tuple(sorted(name for name, end in ends.items() if now >= end))
        return min((end for end in ends.values() if now < end), default=None), missing

    def _signals_of(
        self, now: float, name: str, node: NodeView | None, before: tuple[NodeView | None, NodeSignals]
    ) -> NodeSignals:
        known, signals = before
        same = known is not None and node is not None and known.uid == node.uid
        signs = with_first_seen(node_signals(node, self._table), f"node {name}", now, signals.signs if same else ())
        return signals if signs == signals.signs else NodeSignals(signs)


def with_first_seen(
    findings: Iterable[Finding], subject: str, now: float, earlier: tuple[ActiveSignal, ...]
) -> tuple[ActiveSignal, ...]:
    """Return ``findings`` with the time at which each was first seen: ``now``, or the time in ``earlier``."""
    since = {sign.finding.signal.name: sign.first_seen for sign in earlier}
    return tuple(ActiveSignal(finding, since.get(finding.signal.name, now), subject) for finding in findings)
