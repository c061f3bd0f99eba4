"""Decides what to publish after a look. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from discover.common.source import Observation, Unsettled
from hvd_elastic_ext.core.errors import HOSTS_KEPT, ElasticError, SourceUnavailable
from hvd_elastic_ext.core.hosts import HostChange, HostSet, follow
from hvd_elastic_ext.core.publication import Publication

SETTLE_TIMEOUT = 5.0
"""Seconds for which a source may stay unsettled without a problem."""

Seen = Observation | Unsettled | ElasticError
"""The result of one look at the source."""


@dataclass(frozen=True, slots=True)
class DaemonState:
    """What the daemon knows before a look.

    ``life`` names this run of the daemon. ``seniority``: the hosts in the order in which they came; until the first
    publication, those of an earlier run. ``last``: the last publication. ``seen``: the last observation, which has the
    same hosts as ``last``. ``unsettled_since`` is in monotonic seconds.
    """

    life: str
    seniority: HostSet = field(default_factory=HostSet)
    last: Publication | None = None
    seen: Observation | None = None
    unsettled_since: float | None = None


@dataclass(frozen=True, slots=True)
class PublicationDecision:
    """``state.last`` is what should be published. ``news``: this look has changed it.

    ``followed``: the look gave an observation. ``problem``: why it gave none, or why the observation is in doubt; else
    empty.
    """

    state: DaemonState
    news: bool = False
    problem: str = ""
    followed: bool = False


def decide(now: float, state: DaemonState, seen: Seen) -> tuple[PublicationDecision, str]:
    """Return ``(decision, reason)`` for one look. If the look failed, the last good hosts stay.

    ``now`` is in monotonic seconds.
    """
    kept = HOSTS_KEPT if state.last is not None or state.seniority else ""
    if isinstance(seen, Unsettled):
        since = now if state.unsettled_since is None else state.unsettled_since
        waiting = replace(state, unsettled_since=since)
        if now - since < SETTLE_TIMEOUT:
            return PublicationDecision(waiting), "waiting for the source to settle"
        problem = f"{SourceUnavailable(seen.where, seen.why)}{kept}"
        return PublicationDecision(waiting, problem=problem), problem
    if isinstance(seen, ElasticError):
        problem = f"{seen}{kept}" if isinstance(seen, SourceUnavailable) else str(seen)
        return PublicationDecision(replace(state, unsettled_since=None), problem=problem), problem
    return _follow(replace(state, unsettled_since=None), seen)


def publication_of(state: DaemonState, seen: Observation) -> tuple[Publication, HostChange]:
    """Return a publication of ``seen`` under the next sequence number, and what has changed. Known hosts come first,
    then new ones by name.
    """
    sequence = 1 if state.last is None else state.last.sequence + 1
    hosts, change = follow(state.seniority, seen.hosts, newcomers=lambda host: host.name)
    return Publication(state.life, sequence, hosts, seen.departing), change


def _follow(state: DaemonState, seen: Observation) -> tuple[PublicationDecision, str]:
    if state.last is not None and _same(seen, state.seen):
        return PublicationDecision(state, problem=seen.doubt, followed=True), _size(state.last.hosts)
    publication, change = publication_of(state, seen)
    hosts = publication.hosts
    if publication.has_same_content(state.last):
        return PublicationDecision(replace(state, seen=seen), problem=seen.doubt, followed=True), _size(hosts)
    reason = "; ".join(filter(None, [_size(hosts), _describe(change), _leaving(publication, state.last)]))
    after = replace(state, seniority=hosts, last=publication, seen=seen)
    return PublicationDecision(after, news=True, problem=seen.doubt, followed=True), reason


def _same(seen: Observation, before: Observation | None) -> bool:
    """A quick test: a source without changes may return the same objects again."""
    return before is not None and seen.hosts is before.hosts and seen.departing == before.departing


def _size(hosts: HostSet) -> str:
    return f"{len(hosts)} host{'' if len(hosts) == 1 else 's'}, {hosts.slots} slot{'' if hosts.slots == 1 else 's'}"


def _describe(change: HostChange) -> str:
    parts = [("added", change.added), ("removed", change.removed), ("grown", change.grown), ("shrunk", change.shrunk)]
    return ", ".join(f"{verb} {_names(names)}" for verb, names in parts if names)


def _leaving(publication: Publication, before: Publication | None) -> str:
    known = frozenset(() if before is None else before.departing)
    news = [each for each in publication.departing if each not in known]
    return ", ".join(f"{each.host} departing ({each.reason})" for each in news)


def _names(names: tuple[str, ...]) -> str:
    shown = " ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
